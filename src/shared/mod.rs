//! State shared by the handles of an endpoint and its driver: byte queues, datagrams, settings, requests,
//! wakers. No protocol state.

pub(crate) mod accept_queue;
pub(crate) mod connection;
pub(crate) mod datagrams;
pub(crate) mod memory_use;
pub(crate) mod notifier;
pub(crate) mod recv_queue;
pub(crate) mod requests;
pub(crate) mod send_queue;
pub(crate) mod waiters;
