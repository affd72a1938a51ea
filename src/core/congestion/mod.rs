//! Limits of the sending rate: congestion window, pacing, rate limit, window autotuning.

pub(crate) mod pacer;
pub(crate) mod rate_limiter;
pub(crate) mod reno;
pub(crate) mod window_autotune;
