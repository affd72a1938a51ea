//! The public API over loopback sockets and transports of the test. A program of its own have only tests that need
//! one: with a global allocator or subscriber, a count of descriptors, or processes that start it again.

#[path = "../common/mod.rs"]
mod common;

mod cancel;
mod codec;
mod config;
mod cooperation;
mod datagrams;
mod delayed_ack;
mod drain;
mod endpoint;
mod glob_import;
mod listener;
mod migration;
mod network;
#[cfg(feature = "qlog")]
mod qlog;
mod refusal;
mod settings;
mod shards;
mod shutdown;
mod split;
mod stopped;
mod stream;
mod transport;
