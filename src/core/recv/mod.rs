//! Receiving: reordering, message reassembly, delivery to the application, and ACKs to send.

mod delivery_buffer;
pub(crate) mod pending_acks;
mod reassembly;
pub(crate) mod receiver;
mod repair;
