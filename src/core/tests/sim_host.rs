//! One side of a simulation: a [`Kcp`], its application, and the invariants checked after each turn.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Instant;

use bytes::Bytes;

use super::sim::CONV;
use super::sim_plan::{DAY, Plan, SECOND, SidePlan};
use crate::config::{
    DEFAULT_WINDOW, KcpConfig, KeepaliveInterval, Mode, SEGMENT_CHARGE, SEGMENT_HEADER, Setting,
};
use crate::core::congestion::autotune;
use crate::core::connection::{Kcp, Seed};
use crate::core::segment::{self, Command, Segments};
use crate::core::seq::Sn;
use crate::error::ConnectionError;
use crate::testkit::rng::Rng;

/// Datagrams that the socket buffer of a suspended host holds.
const SOCKET_BUFFER: u32 = 512;
/// Longest interval between window probes, microseconds.
const PROBE_LIMIT: u64 = 5 * SECOND;
/// Largest window, segments, up to which all segments are checked after each event.
const CHEAP_WINDOW: u16 = 256;

/// Eight bytes of the test pattern, which differs at each index and for each salt.
fn word(salt: u64, index: u64) -> [u8; 8] {
    (index ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).to_le_bytes()
}

/// `len` bytes of the test pattern from `offset`.
pub(crate) fn pattern(salt: u64, offset: u64, len: usize) -> Vec<u8> {
    let skip = (offset % 8) as usize;
    let mut bytes = Vec::with_capacity(len + 16);
    let mut index = offset / 8;
    while bytes.len() < skip + len {
        bytes.extend_from_slice(&word(salt, index));
        index += 1;
    }
    bytes.truncate(skip + len);
    bytes.drain(..skip);
    bytes
}

/// Whether `bytes` are the test pattern from `offset`.
pub(crate) fn is_pattern(salt: u64, offset: u64, bytes: &[u8]) -> bool {
    let (mut rest, mut offset) = (bytes, offset);
    while !rest.is_empty() {
        let (word, skip) = (word(salt, offset / 8), (offset % 8) as usize);
        let take = rest.len().min(8 - skip);
        let (now, later) = rest.split_at(take);
        if now != &word[skip..skip + take] {
            return false;
        }
        (rest, offset) = (later, offset + take as u64);
    }
    true
}

/// One side.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) kcp: Kcp,
    plan: SidePlan,
    salt: u64,
    rng: Rng,
    /// Bytes not yet given to `kcp`, and the part of them in the current write.
    unwritten: u64,
    in_write: u64,
    pub(crate) written: u64,
    write_at: u64,
    /// Bytes of the peer's pattern read here.
    pub(crate) read: u64,
    read_at: u64,
    ping_at: u64,
    change_at: u64,
    /// Lengths of the peer's messages that are still to be read.
    messages: VecDeque<usize>,
    /// End offset and time of each write of the peer that is still to be read.
    writes: VecDeque<(u64, u64)>,
    /// Latency of each write of the peer, microseconds.
    pub(crate) latencies: Vec<u64>,
    timeout: Option<u64>,
    pub(crate) heard_at: u64,
    pub(crate) ended_at: Option<u64>,
    /// Last advertised `una` and right edge of the receive window.
    advertised: (Sn, Sn),
    /// Largest values of the settings so far.
    largest_mtu: u16,
    largest_window: u16,
    stored_before: usize,
    slowest: Option<NonZeroU64>,
    /// A corrupted datagram has arrived, so the data read is not compared any more.
    corrupted: bool,
    /// Bytes of the peer's pattern that were compared.
    pub(crate) compared: u64,
    /// The peer's segments are larger than kcp-go's.
    jumbo: bool,
    suspended_inbox: u32,
    /// Time of the last turn.
    turn_at: u64,
    checks: u64,
}

impl SidePlan {
    /// When the host, which is suspended at times and wakes in ticks, notices an event at `at`.
    pub(super) fn host_time(&self, at: u64) -> u64 {
        let at = if at >= self.freeze.0 { at.max(self.freeze.1) } else { at };
        if self.tick > 0 { at.div_ceil(self.tick) * self.tick } else { at }
    }
}

/// Largest send window, segments, autotuning included.
fn largest_window(config: &KcpConfig) -> u16 {
    let grows = config.auto_windows && config.send_window == DEFAULT_WINDOW;
    if grows { autotune::MAX_AUTO_WINDOW } else { config.send_window }
}

/// Receive memory of a receive window at the limit of autotuning, bytes; 0 without autotuning.
fn grown_budget(config: &KcpConfig) -> usize {
    let grows = config.auto_windows && config.recv_window == DEFAULT_WINDOW;
    if grows { usize::from(autotune::MAX_AUTO_WINDOW) * SEGMENT_CHARGE } else { 0 }
}

impl Side {
    pub(super) fn new(plan: &Plan, i: usize, origin: Instant) -> Self {
        let own = &plan.sides[i];
        own.config.validate().unwrap();
        let mut rng = Rng::keyed(plan.seed, 100 + i as u64);
        let seed = Seed::new(own.ts_epoch, rng.next());
        let never = |every: u64| if every > 0 { every } else { u64::MAX };
        let mut side = Self {
            kcp: Kcp::starting_at(CONV, &own.config, origin, seed, plan.start),
            plan: own.clone(),
            salt: plan.seed.wrapping_mul(2) + i as u64,
            rng,
            unwritten: own.traffic.bytes,
            in_write: 0,
            written: 0,
            write_at: 0,
            read: 0,
            read_at: 0,
            ping_at: never(own.probe_every),
            change_at: never(own.change_every),
            messages: VecDeque::new(),
            writes: VecDeque::new(),
            latencies: Vec::new(),
            timeout: None,
            heard_at: 0,
            ended_at: None,
            advertised: (plan.start, plan.start),
            largest_mtu: own.config.mtu,
            largest_window: largest_window(&own.config),
            slowest: own.config.rate_limit,
            stored_before: grown_budget(&own.config),
            corrupted: false,
            compared: 0,
            jumbo: plan.sides[1 - i].config.mtu > 1_500,
            suspended_inbox: 0,
            turn_at: 0,
            checks: 0,
        };
        side.next_write(0);
        side.set_redundancy();
        side
    }

    fn set_redundancy(&mut self) {
        let SidePlan { repair, bundling, .. } = self.plan;
        if repair > 0 {
            self.kcp.set_repair_rate(repair);
        }
        if bundling > 0 {
            self.kcp.set_bundling_rate(bundling);
        }
    }

    /// A corrupted datagram arrives.
    pub(super) fn expect_damage(&mut self) {
        self.corrupted = true;
    }

    /// Loses all state and restarts without data to send.
    pub(super) fn restart(&mut self, now: Instant) {
        let seed = Seed::new(self.rng.next() as u32, self.rng.next());
        self.kcp = Kcp::with_config(CONV, &self.plan.config, now, seed).unwrap();
        self.advertised = (Sn(0), Sn(0));
        (self.unwritten, self.in_write, self.corrupted) = (0, 0, true);
    }

    /// Ends pings, also keepalives, and changes of settings.
    pub(super) fn stop_application(&mut self) {
        (self.ping_at, self.change_at) = (u64::MAX, u64::MAX);
        self.kcp.apply(Setting::Keepalive(KeepaliveInterval::Never, None));
    }

    /// Whether everything was written, read by the peer and acknowledged.
    pub(super) fn is_done(&self, peer: &Self) -> bool {
        self.unwritten == 0 && peer.read == self.written && self.kcp.is_drained()
    }

    pub(super) fn check_end(&self, peer: &Self) {
        let stats = self.kcp.stats();
        assert_eq!(stats.sent.payload_bytes, self.written);
        assert_eq!(stats.received.payload_bytes, self.read);
        assert_eq!(stats.sent.segments, peer.kcp.stats().received.segments);
        assert!(self.messages.is_empty());
        assert_eq!(self.kcp.close_reason(), None);
        assert_eq!(self.kcp.poll_timeout(), None, "an idle connection has no timer");
        // Late duplicates, answers to a ping or MTU probe that no longer waits for one, and timestamps from
        // weeks ago count as invalid.
        let may_be_invalid = |plan: &SidePlan| plan.link.duplicate > 0 || plan.freeze.1 > 24 * DAY;
        let [own, other] = [&self.plan, &peer.plan].map(may_be_invalid);
        if !own && !other && stats.probes.pings + stats.probes.mtu == 0 {
            assert_eq!(
                (stats.anomalies.invalid_acks, stats.anomalies.invalid_una),
                (0, 0),
                "{stats:?}"
            );
        }
    }

    pub(super) fn progress(&self) -> String {
        let Self { written, unwritten, read, timeout, kcp, .. } = self;
        let stats = kcp.stats();
        format!(
            "written {written}, unwritten {unwritten}, read {read}, timer {timeout:?}, {stats:?}"
        )
    }

    /// Timers and application; returns the lengths of the messages written.
    pub(super) fn begin_turn(&mut self, now: u64, instant: Instant) -> Vec<usize> {
        self.turn_at = now;
        if let Some(memory) = self.plan.memory {
            let more = memory.saturating_sub(self.kcp.recv_memory());
            self.kcp.limit_recv_memory(more, false);
        }
        self.on_timeout(instant);
        self.read(now);
        if self.change_at <= now {
            self.change_at = now + self.plan.change_every;
            self.change_settings();
        }
        let lengths = self.write(now, instant);
        if self.ping_at <= now {
            self.ping_at = now + self.plan.probe_every;
            self.kcp.ping(instant);
        }
        lengths
    }

    pub(super) fn on_timeout(&mut self, instant: Instant) -> bool {
        let due = self.kcp.poll_timeout().is_some_and(|at| at <= instant);
        if due {
            self.kcp.handle_timeout(instant);
        }
        due
    }

    /// Checks the invariants after all due data was sent.
    pub(super) fn end_turn(&mut self, now: u64, origin: Instant) {
        let since = |at: Instant| at.saturating_duration_since(origin).as_micros() as u64;
        let timeout = self.kcp.poll_timeout().map(since);
        assert!(timeout.is_none_or(|at| at > now), "a timer spins at {now} us");
        self.timeout = timeout.map(|at| self.plan.host_time(at));
        if self.kcp.close_reason().is_some() {
            self.ended_at.get_or_insert(now);
        }
        self.check(now);
    }

    /// The peer wrote messages of these lengths; `end` is the offset and the time.
    pub(super) fn expect(&mut self, lengths: Vec<usize>, end: (u64, u64), measure: bool) {
        self.messages.extend(lengths);
        let known = self.writes.back().map_or(self.read, |&(last, _)| last);
        if measure && end.0 > known {
            self.writes.push_back(end);
        }
    }

    /// Applies the settings of one alternative, which may change in use.
    fn change_settings(&mut self) {
        if self.plan.alternatives.is_empty() {
            return;
        }
        let which = self.rng.below(self.plan.alternatives.len() as u64) as usize;
        let KcpConfig {
            timing,
            congestion_control,
            send_window,
            recv_window,
            mtu,
            ack_policy,
            write_policy,
            rate_limit,
            ..
        } = self.plan.alternatives[which];
        self.kcp.set_timing(timing);
        self.kcp.set_congestion_control(congestion_control);
        self.kcp.set_ack_policy(ack_policy);
        self.kcp.set_write_policy(write_policy);
        self.kcp.set_rate_limit(rate_limit);
        self.set_windows(send_window, recv_window);
        self.set_mtu(mtu);
        (self.plan.config.timing, self.plan.config.congestion_control) =
            (timing, congestion_control);
        self.plan.config.rate_limit = rate_limit;
        self.slowest = self.slowest.into_iter().chain(rate_limit).min();
    }

    /// Sets both windows. The advertised right edge must not move back.
    pub(crate) fn set_windows(&mut self, send: u16, recv: u16) {
        self.kcp.set_windows(send, recv).unwrap();
        self.largest_window = self.largest_window.max(send);
        self.stored_before = self.stored_before.max(self.plan.config.recv_budget());
        (self.plan.config.send_window, self.plan.config.recv_window) = (send, recv);
    }

    /// Sets the MTU. Segments in flight may exceed it.
    pub(crate) fn set_mtu(&mut self, mtu: u16) {
        self.kcp.set_mtu(mtu).unwrap();
        self.largest_mtu = self.largest_mtu.max(mtu);
        self.plan.config.mtu = mtu;
    }

    /// When a datagram that reaches the host at `at` is read; `None` if the socket buffer is full.
    pub(super) fn arrival(&mut self, at: u64) -> Option<u64> {
        let (from, to) = self.plan.freeze;
        if (from..to).contains(&at) {
            self.suspended_inbox += 1;
            if self.suspended_inbox > SOCKET_BUFFER {
                return None;
            }
        }
        Some(self.plan.host_time(at))
    }

    /// When the next timer or action of the application is due.
    pub(super) fn due(&self) -> Option<u64> {
        if self.kcp.close_reason().is_some() {
            return None;
        }
        let has_data = self.in_write > 0 || self.unwritten > 0;
        let write = (has_data && self.write_at > self.turn_at).then_some(self.write_at);
        let read = (self.plan.reading.chunks > 0 && self.kcp.readable().is_some())
            .then_some(self.read_at.max(self.turn_at));
        let wake = self.ping_at.min(self.change_at);
        let wake = (wake < u64::MAX).then_some(wake);
        let host = [write, read, wake].into_iter().flatten().map(|at| self.plan.host_time(at));
        host.chain(self.timeout).min()
    }

    fn next_write(&mut self, now: u64) {
        let traffic = &self.plan.traffic;
        if traffic.every > 0 {
            self.in_write = traffic.largest_write.min(self.unwritten);
            // The first write is due at time zero.
            self.write_at += if self.written > 0 { traffic.every } else { 0 };
            return;
        }
        let size = self.rng.range(1, traffic.largest_write.max(1));
        self.in_write = size.min(self.unwritten);
        self.write_at = now + self.rng.below(traffic.pause + 1);
    }

    /// Writes the data that is due and fits; returns the lengths of the messages written.
    pub(super) fn write(&mut self, now: u64, instant: Instant) -> Vec<usize> {
        let mut lengths = Vec::new();
        let message = self.plan.config.mode == Mode::Message;
        let whole = self.plan.traffic.whole;
        while self.in_write > 0 && self.write_at <= now && self.kcp.close_reason().is_none() {
            let capacity = self.kcp.send_capacity();
            let mut size = usize::try_from(self.in_write).unwrap_or(usize::MAX);
            if message && whole {
                size = size.min(self.kcp.max_message_size());
                let data = Bytes::from(pattern(self.salt, self.written, size));
                if self.kcp.send_message(instant, data).is_err() {
                    break;
                }
                lengths.push(size);
            } else {
                size = size.min(capacity);
                if size == 0 {
                    break;
                }
                let mss = self.kcp.send_unit();
                self.kcp.send(instant, Bytes::from(pattern(self.salt, self.written, size)));
                let pieces = (0..size).step_by(mss).map(|at| mss.min(size - at));
                lengths.extend(pieces.filter(|_| message));
            }
            self.written += size as u64;
            self.unwritten -= size as u64;
            self.in_write -= size as u64;
            if self.in_write == 0 && self.unwritten > 0 {
                self.next_write(now);
            }
        }
        lengths
    }

    fn read(&mut self, now: u64) {
        let reading = &self.plan.reading;
        let (chunks, every, pause) = (reading.chunks, reading.every, reading.pause);
        if chunks > 0 && (now < self.read_at || self.kcp.readable().is_none()) {
            return;
        }
        if (pause.0..pause.1).contains(&now) {
            self.read_at = pause.1;
            return;
        }
        let mut count = 0;
        while chunks == 0 || count < chunks {
            let Some(chunk) = self.kcp.recv() else { break };
            count += 1;
            // The salts of the two sides differ in the last bit.
            let right = self.corrupted || is_pattern(self.salt ^ 1, self.read, &chunk);
            assert!(right, "wrong bytes at {}", self.read);
            self.read += chunk.len() as u64;
            self.compared += if self.corrupted { 0 } else { chunk.len() as u64 };
            if self.plan.config.mode == Mode::Message && !self.corrupted {
                assert_eq!(self.messages.pop_front(), Some(chunk.len()), "message boundaries");
            }
        }
        self.read_at = now + every;
        while let Some(&(_, at)) = self.writes.front().filter(|&&(end, _)| end <= self.read) {
            self.latencies.push(now - at);
            self.writes.pop_front();
        }
    }

    pub(super) fn check_datagram(&mut self, datagram: &[u8]) {
        let config = &self.plan.config;
        let mtu = usize::from(config.mtu);
        let is_single = Segments::new(datagram).count() == 1;
        let limit = if is_single { usize::from(self.largest_mtu) } else { mtu };
        assert!(datagram.len() <= limit, "{} bytes in a datagram", datagram.len());
        segment::validate(datagram, CONV).unwrap();
        let mut walked = 0;
        for (header, payload) in Segments::new(datagram) {
            walked += SEGMENT_HEADER + payload.len();
            let edge = header.una.advance(u32::from(header.wnd));
            assert!(header.una.since(self.advertised.0) >= 0, "una moved back");
            let is_kept = edge.since(self.advertised.1) >= 0 || self.jumbo;
            assert!(is_kept, "the window's right edge moved back");
            self.advertised = (header.una, edge);
            let is_dataless = payload.is_empty() && header.command != Command::Ack;
            assert!(!is_dataless || header.sn != Sn(0), "only data opens a connection");
        }
        assert_eq!(walked, datagram.len());
    }

    fn check(&mut self, now: u64) {
        let config = &self.plan.config;
        let stats = self.kcp.stats();
        self.checks += 1;
        if config.send_window.max(config.recv_window) <= CHEAP_WINDOW
            || self.checks.is_multiple_of(64)
        {
            self.kcp.check_invariants();
        }
        assert!(stats.path.in_flight_segments <= u32::from(self.largest_window));
        let mss = u64::from(self.largest_mtu) - SEGMENT_HEADER as u64;
        assert!(stats.unsent_bytes <= u64::from(self.largest_window) * mss);
        let stored = if self.corrupted { 0 } else { stats.received.payload_bytes - self.read };
        let budget = config.recv_budget().max(self.stored_before) as u64;
        let budget = if self.jumbo { 2 * budget + 65_536 } else { budget };
        assert!(stored <= budget, "{stored} bytes stored");
        let max_rto = config.max_retransmit_interval;
        assert!(stats.path.rto <= max_rto, "{:?}", stats.path.rto);
        let waits = self.kcp.close_reason().is_none() && !self.kcp.is_drained();
        // Rate limit and host tick add to this.
        let limit = self.slowest.map_or(0, |rate| 2 * mss.max(1_500) * SECOND / rate.get());
        let longest = (max_rto.as_micros() as u64).max(PROBE_LIMIT);
        let slack = limit + self.plan.tick + longest + SECOND / 100;
        let latest = self.plan.host_time(now + slack);
        if waits {
            let timeout = self.timeout.expect("unacknowledged data without a timer");
            assert!(timeout <= latest, "at {now} us the next timer is at {timeout} us");
        }
    }

    pub(crate) fn ended(&self) -> Option<ConnectionError> {
        self.kcp.close_reason()
    }
}
