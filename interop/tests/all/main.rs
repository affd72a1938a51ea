//! kcpx against other implementations.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_capability;
mod cores;
mod kcp_go;
mod kcp_go_fec;
mod kcp_go_paths;
mod mtu_probe;
mod redundancy;
mod tokio_kcp;
