//! The sans-I/O KCP state machine: no sockets, no clock, no randomness, no tasks.
//!
//! Files import in one direction, without a circle (`scripts/check-imports`): `connection` composes
//! `send`, `recv`, `recovery`, `congestion`, `path` and the state types of `close`, `reset`,
//! `open`, `stateless_reset`, `time_wait` and `keepalive`; all of these use `clock`, `segment`,
//! `seq` and `ping`, and `connection`, `send` and `recv` use `redundancy`.
//!
//! Two locks: `recv` takes delivery buffers of 64 KiB from `util::buffer_pool`, a process-wide pool
//! behind a `Mutex` that is held for one pop; connections of one path share a model behind a `Mutex`
//! that is held for one event (`congestion::flow`).

#![forbid(unsafe_code)]

mod clock;
pub(crate) mod close;
mod congestion;
pub(crate) mod connection;
mod keepalive;
pub(crate) mod open;
pub(crate) mod path;
mod ping;
mod recovery;
mod recv;
mod redundancy;
mod reset;
pub mod segment;
mod send;
pub mod seq;
pub(crate) mod stateless_reset;
pub(crate) mod time_wait;

#[cfg(test)]
pub(crate) mod tests;
