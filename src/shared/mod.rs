//! What handles and driver share: queues of bytes, settings, wakers. No protocol state.

pub(crate) mod connection;
mod datagrams;
pub(crate) mod notifier;
mod options;
mod recv_queue;
mod send_queue;
