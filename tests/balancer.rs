//! Connections behind real balancers: nftables with conntrack, and nginx. Linux, with network
//! namespaces: a client, a balancer, four servers. Needs root, iproute2, nftables, conntrack,
//! nginx with its stream module; without one of them the tests that need it say SKIPPED.
//!
//! The configurations are those of docs/scaling, which users copy.
#![cfg(target_os = "linux")]

mod common;

#[path = "balancer/crowd.rs"]
mod crowd;
#[path = "balancer/network.rs"]
mod network;
#[path = "balancer/nft.rs"]
mod nft;
#[path = "balancer/nft_cases.rs"]
mod nft_cases;
#[path = "balancer/nginx.rs"]
mod nginx;
#[path = "balancer/nginx_cases.rs"]
mod nginx_cases;
#[path = "balancer/server.rs"]
mod server;

use std::thread::sleep;
use std::time::{Duration, Instant};

use kcpx::{Algorithm, Cipher, Config, Migration};

/// Connections of a test, each with a socket of its own.
const CROWD: usize = 200;

/// Against tests that hang. Shorter than the timeouts of a peer that is gone, which would pass for
/// a reset.
const GUARD: Duration = Duration::from_secs(45);

/// Waits for something that is only seen by looking at it.
#[track_caller]
fn wait(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < GUARD, "not within {GUARD:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The configuration of all servers and clients: the default one, or one that migrates.
fn config(migrates: bool) -> Config {
    let mut config = Config::new();
    if migrates {
        config = config.cipher(Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap());
        config.migration = Migration::Authenticated;
    }
    config
}
