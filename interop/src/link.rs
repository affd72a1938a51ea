//! One direction of a path under a virtual clock in milliseconds: the link model of kcpx's tests,
//! and the datagrams in flight.

use std::time::Duration;

use kcpx::testkit::link::{self, Damage, LinkConfig};
use kcpx_netem::InFlight;

pub use kcpx::testkit::rng::Rng;

/// Microseconds per millisecond; the link model counts the former.
const MILLIS: u64 = 1_000;
/// Parts per million in one percent.
const PERCENT: u32 = 10_000;

/// Link properties that the tests vary.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Uniform loss in percent.
    pub loss: u8,
    /// Datagrams that arrive twice, in percent.
    pub duplicates: u8,
    /// Propagation delay in milliseconds, at least 1.
    pub delay: u64,
    /// Uniform jitter in milliseconds, drawn per datagram, so that datagrams are reordered.
    pub jitter: u64,
}

impl Path {
    /// 10 ms delay, nothing else.
    pub const CLEAN: Self = Self { loss: 0, duplicates: 0, delay: 10, jitter: 0 };

    /// `loss` percent loss, 2 % duplicates, 10 ms to 25 ms with reordering.
    #[must_use]
    pub const fn lossy(loss: u8) -> Self {
        Self { loss, duplicates: 2, delay: 10, jitter: 15 }
    }

    fn config(self) -> LinkConfig {
        LinkConfig {
            delay: self.delay.max(1) * MILLIS,
            jitter: self.jitter * MILLIS,
            loss: u32::from(self.loss) * PERCENT,
            duplicate: u32::from(self.duplicates) * PERCENT,
            copies: 1,
            copy_delay: self.jitter * MILLIS,
            ..LinkConfig::default()
        }
    }
}

/// One direction, with its datagrams in flight: the next to arrive first.
#[derive(Debug)]
pub struct Link {
    model: link::Link,
    in_flight: InFlight,
}

impl Link {
    /// An empty link.
    #[must_use]
    pub fn new(path: Path, seed: u64) -> Self {
        let model = link::Link::new(path.config(), seed);
        Self { model, in_flight: InFlight::default() }
    }

    /// Sends a datagram at `now`, in milliseconds.
    pub fn send(&mut self, now: u64, datagram: &[u8]) {
        self.model.send(now * MILLIS, datagram.len(), |at, damage| {
            assert_eq!(damage, Damage::None, "no path here corrupts");
            self.in_flight.push(Duration::from_millis(at.div_ceil(MILLIS)), datagram);
        });
    }

    /// The next datagram that has arrived by `now`.
    pub fn arrive(&mut self, now: u64) -> Option<Vec<u8>> {
        self.in_flight.pop_due(Duration::from_millis(now)).map(|(_, datagram)| datagram)
    }

    /// When the next datagram arrives, in milliseconds.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.in_flight.next_due().map(|due| due.as_millis() as u64)
    }
}
