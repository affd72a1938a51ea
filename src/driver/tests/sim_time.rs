//! Time of a simulation: sleeps of applications, and the clocks of hosts, which drift and stop.
#![cfg_attr(
    not(feature = "_testkit"),
    allow(dead_code, reason = "the swarm alone needs some of it")
)]

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::sim_network::Net;
use crate::util::sync::{Arc, Mutex, lock};

/// The rate of a clock that is right.
pub(super) const RIGHT: u64 = 1_000_000;

/// The virtual clock of applications.
#[derive(Clone, Debug)]
pub(super) struct Clock(pub(super) Arc<Mutex<Net>>);

impl Clock {
    /// Virtual microseconds since the start.
    pub(super) fn now(&self) -> u64 {
        lock(&self.0).now
    }

    pub(super) async fn sleep(&self, micros: u64) {
        let alarm = lock(&self.0).new_alarm(micros);
        poll_fn(|cx| {
            let mut net = lock(&self.0);
            if net.now >= alarm.0 {
                return Poll::Ready(());
            }
            net.alarms.insert(alarm, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// The clock of a host: `local` microseconds at `since`, from then on `rate` of a million.
#[derive(Clone, Copy, Debug)]
struct HostClock {
    since: u64,
    local: u64,
    rate: u64,
}

impl HostClock {
    fn at(self, now: u64) -> u64 {
        self.local + (now - self.since) * self.rate / RIGHT
    }

    /// When it shows `local`; `None` if it stands still.
    fn when(self, local: u64) -> Option<u64> {
        let left = local.saturating_sub(self.local);
        let wait =
            (left * RIGHT).checked_div(self.rate).map(|_| (left * RIGHT).div_ceil(self.rate));
        if left == 0 { Some(self.since) } else { wait.map(|wait| self.since + wait) }
    }
}

/// The clocks of all hosts, and the hosts whose processes are suspended.
#[derive(Debug)]
pub(super) struct Hosts {
    start: Instant,
    clocks: HashMap<SocketAddr, HostClock>,
    pub(super) suspended: HashSet<SocketAddr>,
}

impl Hosts {
    pub(super) fn new(start: Instant) -> Self {
        Self { start, clocks: HashMap::new(), suspended: HashSet::new() }
    }

    fn clock(&self, host: SocketAddr) -> HostClock {
        let right = HostClock { since: 0, local: 0, rate: RIGHT };
        self.clocks.get(&host).copied().unwrap_or(right)
    }

    /// From `now` on the clock of `host` runs at `rate` millionths.
    pub(super) fn set_rate(&mut self, host: SocketAddr, now: u64, rate: u64) {
        let local = self.clock(host).at(now);
        self.clocks.insert(host, HostClock { since: now, local, rate });
    }

    /// The time on the clock of `host` at `now`.
    pub(super) fn instant(&self, host: SocketAddr, now: u64) -> Instant {
        self.start + Duration::from_micros(self.clock(host).at(now))
    }

    /// When a timer of `host` expires; `None` while the host is suspended or its clock stands still.
    pub(super) fn when(&self, host: SocketAddr, deadline: Instant) -> Option<u64> {
        let nanos = deadline.saturating_duration_since(self.start).as_nanos();
        let local = u64::try_from(nanos.div_ceil(1_000)).unwrap();
        self.clock(host).when(local).filter(|_| !self.suspended.contains(&host))
    }
}

#[test]
fn timer_of_a_host_expires_when_its_clock_shows_the_deadline() {
    let start = Instant::now();
    let mut hosts = Hosts::new(start);
    let host = SocketAddr::from(([10, 0, 0, 1], 1));
    for (now, rate) in [(0, RIGHT), (1_000, 900_001), (7_000, 0), (9_000, 1_100_000)] {
        hosts.set_rate(host, now, rate);
        for wait in [1, 999, 123_456, 60_000_000] {
            let deadline = hosts.instant(host, now) + Duration::from_micros(wait);
            let Some(when) = hosts.when(host, deadline) else {
                assert_eq!(rate, 0);
                continue;
            };
            assert!(
                hosts.instant(host, when) >= deadline && hosts.instant(host, when - 1) < deadline
            );
        }
    }
}
