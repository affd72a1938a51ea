//! `wireshark/kcp.lua` in tshark: what it shows of recorded and of live datagrams.
//!
//! The captures are written here, from the vectors of this repository and from a relay, so that nothing needs
//! the privilege to capture. Without tshark the tests say that they are skipped.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bytes;
mod capture;
mod foreign;
mod hostile;
mod live;
mod own;
mod recorded;
mod smux;
mod tshark;
