//! Other implementations beside kcpx.
//!
//! A [`pair::Pair`] is our state machine and a [`peer::Peer`] of another implementation, connected
//! by two seeded [`link::Link`]s under a virtual clock in milliseconds: no sockets, no waiting, the same
//! course for the same seed. A `kcpx_netem::Relay` stands between real sockets.

pub mod implementation;
pub mod kcp_go;
pub mod link;
pub mod others;
pub mod ours;
pub mod pair;
pub mod peer;
pub mod transfer;
pub mod tshark;
pub mod work;

use std::ops::Range;

/// The environment variable that replays one case.
pub const SEED_VARIABLE: &str = "KCP_TEST_SEED";

/// The environment variable with the number of cases per test.
pub const COUNT_VARIABLE: &str = "KCP_TEST_SEEDS";

/// The seeds a test runs: `range`, unless [`SEED_VARIABLE`] or [`COUNT_VARIABLE`] is set.
///
/// # Panics
///
/// When a variable is not a number.
#[must_use]
pub fn seeds(range: Range<u64>) -> Range<u64> {
    let number = |name| {
        let value = std::env::var(name).ok()?;
        Some(value.parse::<u64>().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
    };
    match (number(SEED_VARIABLE), number(COUNT_VARIABLE)) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => range.start..range.start + count,
        (None, None) => range,
    }
}
