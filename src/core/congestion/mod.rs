//! What bounds the rate of sending: congestion window, pacing, rate limit, automatic windows.

pub(crate) mod pacer;
pub(crate) mod rate_limiter;
pub(crate) mod reno;
pub(crate) mod window_autotune;
