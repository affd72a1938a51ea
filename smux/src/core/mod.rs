//! The protocol: no I/O, no clock, no Tokio. Time is an argument, and the caller calls wakers.

pub(crate) mod batch;
pub(crate) mod frame;
pub(crate) mod inbox;
pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod read_buffers;
pub(crate) mod receive_window;
pub(crate) mod session;
pub(crate) mod stream;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod turns;
