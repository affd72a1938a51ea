//! The public API over loopback sockets and transports of the test. Tests have a program of their own if they set a
//! global allocator or subscriber, or count descriptors.

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
