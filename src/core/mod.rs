//! The KCP protocol without I/O, clock, randomness or waiting.

#![forbid(unsafe_code)]

mod clock;
pub(crate) mod close;
mod congestion;
pub(crate) mod connection;
mod keepalive;
pub(crate) mod open;
mod path;
mod recovery;
mod recv;
pub mod segment;
mod send;
pub mod seq;

#[cfg(test)]
pub(crate) mod tests;
