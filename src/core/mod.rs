//! The sans-I/O KCP state machine: no sockets, no clock, no randomness, no tasks.
//!
//! Files import in one direction (`scripts/check-imports`): `connection` composes `send`, `recv`,
//! `recovery`, `congestion`, `path`, `redundancy` and the states of `open`, `close`,
//! `stateless_reset`, `time_wait` and `keepalive`; all of these use `clock`, `segment` and `seq`.
//!
//! Two locks: `util::buffer_pool`, the process-wide pool of receive buffers, is locked for one pop; the
//! model that connections of one path share (`congestion::flow`) is locked for one event.

#![forbid(unsafe_code)]

mod clock;
pub(crate) mod close;
mod congestion;
pub(crate) mod connection;
mod keepalive;
pub(crate) mod open;
pub(crate) mod path;
pub(crate) mod qlog;
mod recovery;
mod recv;
mod redundancy;
pub mod segment;
mod send;
pub mod seq;
pub(crate) mod stateless_reset;
pub(crate) mod time_wait;

#[cfg(test)]
pub(crate) mod tests;
