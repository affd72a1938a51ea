//! Sending: the send buffer, the peer's window, and which segment leaves next.

pub(crate) mod remote_window;
pub(crate) mod send_buffer;
pub(crate) mod sender;
