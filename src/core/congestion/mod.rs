//! Limits of the sending rate: congestion window, pacing, rate limit, window autotuning.

mod ack_aggregation;
pub(crate) mod control;
pub(crate) mod controller;
mod delivery_rate;
mod flow;
mod loss_base;
mod model;
pub(crate) mod pacer;
pub(crate) mod rate_limiter;
pub(crate) mod reno;
pub(crate) mod window_autotune;
mod windowed_max;

pub(crate) use flow::PathHandle;
pub(crate) use model::INITIAL_WINDOW;
