//! Tests of the state machine: scripted peers, and deterministic simulation with a virtual clock, modelled
//! paths and applications.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers of a simulation are small"
)]
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "tests print results, and virtual time counts from a real instant"
)]

use std::time::Instant;

mod amplification;
mod bbr;
mod bottleneck;
mod bundling;
mod burst_copies;
mod close;
mod echo;
mod fec_coverage;
mod fragments;
mod gro_batches;
mod gso_batches;
mod long_fat_path;
mod malicious_peer;
mod matrix;
mod mtu_discovery;
mod pacing;
mod path_changes;
mod paths;
mod peer_restart;
mod repair;
mod repair_hostile;
pub(crate) mod report;
mod response_limit;
mod script;
mod scripted_peer;
mod sequence_wrap;
pub(crate) mod sim;
mod sim_host;
pub(crate) mod sim_plan;
mod sweeps;
mod two_endpoints;
mod una_proof;
mod window_autotune;
mod windows;

/// The real instant that virtual time counts from.
pub(crate) fn origin() -> Instant {
    Instant::now()
}
