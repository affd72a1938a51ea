//! Two [`Kcp`]s with a path that loses, delays and duplicates, for tests that drive both.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::scripted_peer::config;
use super::sim::CONV;
use super::sim_plan::MILLIS;
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::segment::{Header, InputError, Segments};
use crate::error::ConnectionError;
use crate::testkit::rng::Rng;

pub(super) struct TwoEndpoints {
    pub(super) sides: [Kcp; 2],
    /// Called with the first header of each datagram; `false` drops it.
    pub(super) filter: Box<dyn FnMut(&Header) -> bool>,
    /// Datagrams sent by both.
    pub(super) sent: u64,
    /// Datagrams that each side received, and those without data that it sent.
    pub(super) received: [u64; 2],
    pub(super) sent_without_data: [u64; 2],
    /// Datagrams in flight by time of arrival: receiver and bytes.
    wire: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    rng: Rng,
    loss: u64,
    origin: Instant,
    pub(super) now: u64,
}

impl TwoEndpoints {
    /// `loss` in parts per million. If not zero, datagrams are also duplicated and reordered.
    pub(super) fn new(seed: u64, loss: u64) -> Self {
        let origin = super::origin();
        let kcp = |ts_epoch, cookie_seed| {
            Kcp::with_config(CONV, &config(), origin, Seed::new(ts_epoch, cookie_seed)).unwrap()
        };
        Self {
            sides: [kcp(u32::MAX - 500, 7), kcp(77, 8)],
            filter: Box::new(|_| true),
            sent: 0,
            received: [0; 2],
            sent_without_data: [0; 2],
            wire: BTreeMap::new(),
            rng: Rng::new(seed),
            loss,
            origin,
            now: 0,
        }
    }

    pub(super) fn instant(&self) -> Instant {
        self.origin + Duration::from_micros(self.now)
    }

    pub(super) fn write(&mut self, side: usize, data: &[u8]) {
        let now = self.instant();
        self.sides[side].send(now, Bytes::copy_from_slice(data));
    }

    pub(super) fn close(&mut self, side: usize) {
        let now = self.instant();
        self.sides[side].close(now);
    }

    pub(super) fn abort(&mut self, side: usize) -> bool {
        let now = self.instant();
        self.sides[side].abort(now)
    }

    pub(super) fn read(&mut self, side: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(chunk) = self.sides[side].recv() {
            all.extend_from_slice(&chunk);
        }
        all
    }

    /// A datagram from the other side, or a forged one, arrives at `side`.
    pub(super) fn input(&mut self, side: usize, datagram: &[u8]) -> Result<(), InputError> {
        let result = self.sides[side].input(self.instant(), datagram, PacketType::Regular);
        self.received[side] += 1;
        self.sides[side].check_invariants();
        result
    }

    pub(super) fn ends(&self) -> [Option<ConnectionError>; 2] {
        [self.sides[0].close_reason(), self.sides[1].close_reason()]
    }

    /// Runs both for `micros` of virtual time.
    pub(super) fn run(&mut self, micros: u64) {
        let until = self.now + micros;
        loop {
            self.transmit();
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let timers = self.sides.iter().filter_map(Kcp::poll_timeout).min();
            let timer = timers.map(|at| {
                let at = at.saturating_duration_since(self.origin).as_micros() as u64;
                at.max(self.now)
            });
            let Some(next) = [arrival, timer].into_iter().flatten().min().filter(|t| *t <= until)
            else {
                break;
            };
            assert!(next > self.now || arrival == Some(next), "a timer spins at {next}");
            self.now = next;
            let now = self.instant();
            self.sides.iter_mut().for_each(|kcp| kcp.handle_timeout(now));
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= next) {
                let (to, datagram) = entry.remove();
                self.input(to, &datagram).unwrap();
            }
        }
        self.now = until;
    }

    fn transmit(&mut self) {
        let now = self.instant();
        for side in [0, 1] {
            let mut datagram = Vec::new();
            while let Some(sent) = self.sides[side].poll_transmit(now, &mut datagram) {
                self.sent += 1;
                self.sent_without_data[side] += u64::from(sent.segments == 0);
                let (first, _) = Segments::new(&datagram).next().unwrap();
                let copies = 1 + u64::from(self.rng.chance(self.loss as u32 / 4));
                for _ in 0..copies {
                    if (self.filter)(&first) && !self.rng.chance(self.loss as u32) {
                        let jitter = if self.loss > 0 { self.rng.range(0, 8 * MILLIS) } else { 0 };
                        let at = self.now + 10 * MILLIS + jitter;
                        let rank = self.sent * 4 + copies + self.wire.len() as u64 * 1_000_000;
                        self.wire.insert((at, rank), (1 - side, datagram.clone()));
                    }
                }
                datagram.clear();
            }
        }
    }
}
