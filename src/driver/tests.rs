//! Whole endpoints on a simulated network (`sim_world`), by subject.

mod address_validation;
mod aggregate;
mod backlog;
mod close;
mod codec;
mod connect;
mod datagrams;
mod delayed_ack;
mod drain;
mod echo_host;
mod exit;
mod failures;
mod fairness;
mod fec;
mod fixtures;
mod gro_batches;
mod gso_batches;
mod half_closed;
mod hand_over;
mod heard;
mod keepalive;
mod lifecycle;
mod local_ip;
mod lossy_network;
mod memory;
mod migration;
mod mtu_discovery;
#[cfg(target_os = "linux")]
mod offload;
mod open_without_data;
mod path_vectors;
mod paths;
mod port_release;
#[cfg(feature = "qlog")]
mod qlog;
mod redundancy;
mod redundancy_stock;
mod replay;
mod requests;
mod resource_limits;
mod retry;
#[cfg(all(feature = "netlink", target_os = "linux"))]
mod roaming;
mod scalability;
mod settings;
mod sim_network;
mod sim_time;
mod sim_world;
mod simultaneous_passive_open;
mod sources;
mod stateless_reset;
mod stopped;
#[cfg(feature = "_testkit")]
mod swarm;
mod task;
mod unvalidated_memory;

/// Counts of a driver.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections served.
    pub(super) served: usize,
    /// Datagrams that were taken with the one before them in the same GRO batch: without FEC, and with.
    pub(super) taken_together: [usize; 2],
}
