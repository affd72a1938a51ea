//! Limits of the sending rate: congestion window, pacing, rate limit, window autotuning.

mod bbr;
pub(crate) mod control;
pub(crate) mod controller;
mod delivery_rate;
mod flow;
pub(crate) mod pacer;
pub(crate) mod rate_limiter;
pub(crate) mod reno;
pub(crate) mod window_autotune;

pub(crate) use bbr::INITIAL_WINDOW;
pub(crate) use flow::PathHandle;
