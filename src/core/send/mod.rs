//! Sending: what waits for an acknowledgement or a window, and what leaves next.

pub(crate) mod remote_window;
mod retransmit;
pub(crate) mod send_buffer;
pub(crate) mod sender;
