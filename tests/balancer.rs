//! Connections behind real balancers: nftables with conntrack, and nginx. Linux, with network namespaces for
//! a client, a balancer and four servers. Needs root, iproute2, nftables, conntrack, and nginx with its
//! stream module; a test prints SKIPPED if one that it needs is missing.
//!
//! The tests load the configuration files of docs/scaling.
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

/// Connections of a test, each with its own socket.
const CROWD: usize = 200;

/// Fails a test that hangs. Shorter than the timeouts for a silent peer, so a timeout does not pass for a
/// reset.
const GUARD: Duration = Duration::from_secs(45);

/// Polls `condition` until it holds.
#[track_caller]
fn wait(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < GUARD, "not within {GUARD:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The default configuration, or one with authenticated migration, for servers and clients.
fn config(migrates: bool) -> Config {
    let mut config = Config::new();
    if migrates {
        config = config.cipher(Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap());
        config = config.migration(Migration::Authenticated);
    }
    config
}
