//! Whole tunnels, in this process and as programs.

#[path = "../common/mod.rs"]
mod common;
#[cfg(unix)]
#[path = "../program/mod.rs"]
mod program;

mod beside_bulk;
mod kcptun;
mod leaving;
mod mismatch;
mod process;
mod replay;
mod roaming;
mod tunnel;
