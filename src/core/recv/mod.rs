//! Receiving: reordering, reassembly of messages, acknowledgements to send.

pub(crate) mod pending_acks;
mod reassembly;
pub(crate) mod receiver;
