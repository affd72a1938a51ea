//! Sending: the send buffer, the peer's window, and which segment leaves next.

mod bundling;
pub(crate) mod controller;
mod redundancy_credit;
mod redundant;
pub(crate) mod remote_window;
mod repair;
mod retransmit;
pub(crate) mod send_buffer;
pub(crate) mod sender;
pub(crate) mod una_proof;
