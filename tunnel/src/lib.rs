//! A TCP tunnel over KCP that replaces either side of kcptun.
//!
//! This library is the implementation of the program `kcpx-tunnel`: [`options`] reads the command
//! line, the environment and files; [`settings`] are the typed result; [`client`] and [`server`]
//! are the two roles; [`process`] connects tunnels to their process: signals, reloads, counters;
//! [`run()`] runs a whole process.

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
mod macros;
mod net;
mod relay;
mod resolve;
mod run;
mod session;
mod stats;
mod transport;

pub use run::run;
