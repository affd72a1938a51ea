//! A TCP tunnel over KCP that replaces either side of kcptun.
//!
//! The library is what the program `kcpx-tunnel` consists of: [`settings`] are what a tunnel is to do,
//! in types, after its options have been read; [`process`] is what a tunnel has in common with its
//! process: the signal to end, changed settings, counters.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod process;
pub mod settings;
