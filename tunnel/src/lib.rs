//! A TCP tunnel over KCP that replaces either side of kcptun.
//!
//! The library is what the program `kcpx-tunnel` consists of: [`options`] reads the command line,
//! the environment and files; [`settings`] are what a tunnel is to do, in types; [`client`] and
//! [`server`] are its two roles; [`process`] is what a tunnel has in common with its process: the
//! signal to end, changed settings, counters.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod client;
pub mod options;
pub mod process;
pub mod server;
pub mod settings;
pub mod snappy;

mod carrier;
mod connection;
mod detect;
mod direct;
mod drain;
mod macros;
mod net;
mod relay;
mod resolve;
mod session;
mod stats;
mod transport;
