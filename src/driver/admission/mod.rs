//! Admission: which datagrams of peers may open a connection, and how fast this side opens its own.
//!
//! Source addresses can be forged (RFC 9000 8.1), so only limits in total bound memory. Once half of a limit
//! is used, a peer has to prove by a [`Retry`] that it receives at its address.

pub(super) mod replay;
pub(super) mod retry;
mod source;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::config::{Config, Limits};
use crate::core::open::InitialSegment;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header, Segments};
use crate::core::stateless_reset::stateless_reset;
use crate::driver::admission::replay::{KnownInitial, ReplayFilter};
use crate::driver::admission::retry::Retry;
use crate::driver::admission::source::{ConnectionsBySource, Source};
use crate::driver::connection::{Conn, Key};
use crate::driver::expiring_map::ExpiringMap;
use crate::driver::memory::Memory;
use crate::driver::routing::{Demux, Routing};
use crate::shared::accept_queue::AcceptQueue;
use crate::shared::connection::Handle;
use crate::shared::notifier::ConnId;
use crate::stats::EndpointStats;
use crate::util::sync::{Arc, Mutex, lock};

/// Divisor: initial datagrams are answered without state while more than `max / 2` connections are
/// unvalidated.
const CROWDED_DIVISOR: usize = 2;
/// Unvalidated connections of one source that get an allowance within [`ALLOWANCE_PERIOD`]. A forged IP
/// address can have any port, and the bytes arrive at one host.
const MAX_ALLOWANCES: usize = 8;
const ALLOWANCE_PERIOD: Duration = Duration::from_secs(30);
/// Sources with a counted allowance; beyond that the oldest count is dropped.
const MAX_SOURCES: usize = 4_096;

/// Initial datagrams per [`PACING_PERIOD`]: half of what the 208 KiB default of Linux
/// `net.core.rmem_default` holds.
const CONNECT_BURST: usize = 64;
/// Length of a pacing period: the resolution of Tokio's timers.
const PACING_PERIOD: Duration = Duration::from_millis(1);

/// RSTs without state per second (RFC 9000 10.3.3). A busy listener that has restarted reaches all its peers
/// within a few seconds.
const MAX_RESETS_PER_SECOND: u32 = 16_384;
/// Most RSTs without state to one source from the second half of [`MAX_RESETS_PER_SECOND`], so that one
/// source that draws many leaves the share of the others.
const MAX_RESETS_PER_SOURCE: u16 = 512;

/// Which connections may open.
#[derive(Debug)]
pub(super) struct Admission {
    /// The queue of passively opened connections; `None` until the first `listen`.
    accept: Option<Arc<AcceptQueue>>,
    pub(super) unvalidated: UnvalidatedPeers,
    pub(super) sources: ConnectionsBySource,
    pub(super) retry: Retry,
    resets: ResetLimiter,
    /// Replay filter of the initial datagrams that passed admission or hint at a restart, shared by the
    /// shards of a listener (SO_REUSEPORT). No other lock is taken while this one is held.
    pub(super) initial_nonces: Arc<Mutex<ReplayFilter>>,
    pub(super) connect_pacer: ConnectPacer,
}

/// Why a peer may not open a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoListener,
    Filtered,
    MaxConnections,
    MaxPerSource,
    Backlog,
    /// A peer at another address uses the conversation id under the same key.
    ConvInUse,
}

impl Refusal {
    /// Whether a retransmission would be refused too, so that the peer is sent a RST.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::NoListener | Self::Filtered)
    }

    pub(super) fn count(self, stats: &mut EndpointStats) {
        *match self {
            Self::NoListener => &mut stats.refused.no_listener,
            Self::Filtered => &mut stats.refused.accept_filter,
            Self::MaxConnections => &mut stats.refused.max_connections,
            Self::MaxPerSource => &mut stats.refused.max_per_source,
            Self::Backlog => &mut stats.refused.backlog,
            Self::ConvInUse => &mut stats.refused.conv_in_use,
        } += 1;
    }
}

impl Admission {
    /// `retry_key` is secret and random. `capability`: the `frg` of this endpoint's pings.
    pub(super) fn new(
        now: Instant,
        limits: &Limits,
        accept: Option<Arc<AcceptQueue>>,
        retry_key: [u64; 2],
        capability: u8,
    ) -> Self {
        Self {
            accept,
            unvalidated: UnvalidatedPeers::new(limits),
            sources: ConnectionsBySource::default(),
            retry: Retry::new(now, retry_key, capability),
            resets: ResetLimiter::new(now),
            initial_nonces: Arc::new(Mutex::new(ReplayFilter::of_initials())),
            connect_pacer: ConnectPacer::new(now),
        }
    }

    /// The queue of the listener, open or not; `None` before the first `listen`.
    pub(super) fn accept(&self) -> Option<&Arc<AcceptQueue>> {
        self.accept.as_ref()
    }

    pub(super) fn is_listening(&self) -> bool {
        self.accept.as_ref().is_some_and(|accept| accept.is_open())
    }

    pub(super) fn listen(&mut self) -> Arc<AcceptQueue> {
        self.accept.insert(AcceptQueue::new()).clone()
    }

    /// The accept queue, if a connection may be opened under `key`.
    pub(super) fn admit(
        &self,
        now: Instant,
        key: Key,
        config: &Config,
        routing: &Routing,
    ) -> Result<Arc<AcceptQueue>, Refusal> {
        let accept = self.accept.as_ref().filter(|accept| accept.is_open());
        let accept = accept.ok_or(Refusal::NoListener)?;
        let (from, conv) = key;
        if config.accept_filter.as_ref().is_some_and(|filter| !filter.admits(from, conv)) {
            return Err(Refusal::Filtered);
        }
        let limits = &config.limits;
        let free = limits.max_connections.saturating_sub(routing.conns.len());
        if free == 0 {
            return Err(Refusal::MaxConnections);
        }
        if self.sources.count(from.ip()) >= limits.max_per_source.unwrap_or(free) {
            return Err(Refusal::MaxPerSource);
        }
        if accept.len() >= limits.backlog {
            return Err(Refusal::Backlog);
        }
        if routing.is_conv_of_another_address(now, key) {
            return Err(Refusal::ConvInUse);
        }
        Ok(accept.clone())
    }

    /// Whether only peers with a validated address may open a connection.
    pub(super) fn is_crowded(&self, memory: &Memory) -> bool {
        self.unvalidated.is_crowded() || memory.is_crowded()
    }

    /// Records a datagram that could open a connection, and returns what is known of it.
    pub(super) fn remember_initial(
        &self,
        now: Instant,
        nonce: &[u8],
        datagram: &[u8],
    ) -> KnownInitial {
        lock(&self.initial_nonces).insert_initial(now, nonce, datagram)
    }

    /// Lifts the limits of an unvalidated peer. Returns the handle if its accept was deferred.
    pub(super) fn finish_validation(
        &mut self,
        conn: &mut Conn,
        memory: &mut Memory,
    ) -> Option<Handle> {
        let validation = *conn.take_validation()?;
        self.unvalidated.leave();
        memory.on_validated(conn.held());
        if validation.has_allowance && conn.is_validated() {
            self.unvalidated.return_allowance(conn.peer().ip());
        }
        validation.deferred
    }

    /// Whether the source of `to` may take over a connection of the source of `from`. Without this limit a
    /// client at its limit could move its connections away and open the same number again.
    pub(super) fn may_move(&self, from: IpAddr, to: IpAddr, limits: &Limits) -> bool {
        // A move takes no free place, so by default one source may have half of all connections.
        let max = limits.max_per_source.unwrap_or_else(|| limits.max_connections.div_ceil(2));
        Source::of(from) == Source::of(to) || self.sources.count(to) < max
    }

    /// The RST without state that answers `echoed`, if one may leave to `to` (as the Stateless Reset of RFC
    /// 9000 10.3). Only pings and initial segments with the CONTROL capability are answered, so only peers
    /// that understand it get one; it is no longer than they are.
    ///
    /// A conversation id that is in use at another address draws none: the connection has roamed, or copies
    /// of its datagrams are meant to reset it.
    pub(super) fn stateless_reset(
        &mut self,
        now: Instant,
        to: SocketAddr,
        echoed: &Header,
        demux: &Demux,
    ) -> Option<Header> {
        let accept = self.accept.as_ref()?;
        // The locks of `hands_over` and `is_live` come last, so they are taken no more often than a RST may
        // leave. While this process hands over, the next reader of the socket is to answer.
        let may_reset =
            self.resets.admit(now, to.ip()) && !accept.hands_over() && !demux.is_live(echoed.conv);
        may_reset.then(|| stateless_reset(echoed))
    }

    /// `passive` connections were opened by peers, and `unvalidated` are not validated.
    #[cfg(feature = "_testkit")]
    pub(super) fn check_invariants(&self, passive: usize, unvalidated: usize) {
        assert_eq!(self.sources.total(), passive, "connections by source");
        assert_eq!(self.unvalidated.len(), unvalidated, "connections of unvalidated peers");
        self.retry.check_invariants();
    }
}

/// The ping with the CONTROL capability in a datagram of no connection.
pub(super) fn capable_ping(datagram: &[u8]) -> Option<Header> {
    let is_ping = |header: &Header| {
        header.command == Command::Push && header.len == 0 && header.frg == CONTROL_CAPABLE
    };
    Segments::new(datagram).map(|(header, _)| header).find(is_ping)
}

/// The header of an initial segment without data.
pub(super) fn initial_without_data(datagram: &[u8]) -> Option<Header> {
    let Some(InitialSegment::WindowProbe(_)) = InitialSegment::parse(datagram) else { return None };
    Header::parse(datagram).ok()
}

/// The connections of unvalidated peers, and the allowances of each source: an unvalidated peer with an
/// allowance may be sent more than three times what it sent (RFC 9000 8.1).
#[derive(Debug)]
pub(super) struct UnvalidatedPeers {
    total: usize,
    /// Allowances of a source since the first of them.
    allowances: ExpiringMap<Source, usize>,
    /// `Limits::max_unvalidated`.
    max: usize,
}

impl UnvalidatedPeers {
    pub(super) fn new(limits: &Limits) -> Self {
        let max = limits.max_unvalidated.min(limits.max_connections);
        Self { total: 0, allowances: ExpiringMap::default(), max }
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.total > self.max / CROWDED_DIVISOR
    }

    pub(super) fn enter(&mut self) {
        self.total += 1;
    }

    /// Removes a connection, validated or ended, from the count.
    pub(super) fn leave(&mut self) {
        self.total -= 1;
    }

    /// Takes one allowance of `ip`. Returns false if its source has none left.
    ///
    /// The end of a connection does not return its allowance: a forged address could use it again and again.
    pub(super) fn take_allowance(&mut self, now: Instant, ip: IpAddr) -> bool {
        while self.allowances.pop_expired(now).is_some() {}
        let source = Source::of(ip);
        if let Some(taken) = self.allowances.get_mut(&source) {
            let is_left = *taken < MAX_ALLOWANCES;
            *taken += usize::from(is_left);
            return is_left;
        }
        if self.allowances.len() >= MAX_SOURCES {
            self.allowances.pop_first();
        }
        self.allowances.insert(now + ALLOWANCE_PERIOD, source, 1);
        true
    }

    /// The peer at `ip` that took an allowance is validated.
    pub(super) fn return_allowance(&mut self, ip: IpAddr) {
        let source = Source::of(ip);
        let Some(taken) = self.allowances.get_mut(&source) else { return };
        *taken = taken.saturating_sub(1);
        if *taken == 0 {
            // A source without allowances in use must not take the place of one that has some.
            self.allowances.remove(&source);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.total
    }
}

/// Pacing of connects: how many initial datagrams leave per millisecond.
///
/// The initial datagrams of ten thousand connections opened at once would overflow the receive buffer of the
/// peer's socket. A lost one is retransmitted only after the initial RTO (RFC 6298 2.1), which takes longer
/// than waiting here.
#[derive(Debug)]
pub(super) struct ConnectPacer {
    /// Initial datagrams that may still leave in this period.
    credit: usize,
    /// When the next period begins with a credit of [`CONNECT_BURST`].
    renewal: Instant,
    /// Connections with a waiting initial datagram, in order.
    waiting: VecDeque<ConnId>,
}

impl ConnectPacer {
    pub(super) fn new(now: Instant) -> Self {
        Self { credit: CONNECT_BURST, renewal: now + PACING_PERIOD, waiting: VecDeque::new() }
    }

    /// Whether `id` may send its initial datagram now. Otherwise `id` waits for [`Self::release`].
    pub(super) fn admit(&mut self, id: ConnId) -> bool {
        let Some(credit) = self.credit.checked_sub(1) else {
            self.waiting.push_back(id);
            return false;
        };
        self.credit = credit;
        true
    }

    /// A peer has answered an initial datagram: one more may leave in this period.
    pub(super) fn on_answer(&mut self) {
        self.credit = (self.credit + 1).min(CONNECT_BURST);
    }

    /// Appends the connections that may send now to `ready`.
    pub(super) fn release(&mut self, now: Instant, ready: &mut VecDeque<ConnId>) {
        if now >= self.renewal {
            (self.credit, self.renewal) = (CONNECT_BURST, now + PACING_PERIOD);
        }
        let count = self.credit.min(self.waiting.len());
        ready.extend(self.waiting.drain(..count));
        if self.waiting.is_empty() && self.waiting.capacity() > CONNECT_BURST {
            // Many connects at once are rare, so the memory is not kept.
            self.waiting = VecDeque::new();
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.renewal)
    }
}

/// The RSTs without state of this second.
#[derive(Debug)]
pub(super) struct ResetLimiter {
    second_start: Instant,
    sent: u32,
    /// RSTs to each source, from half of [`MAX_RESETS_PER_SECOND`] on.
    by_source: HashMap<Source, u16>,
}

impl ResetLimiter {
    pub(super) fn new(now: Instant) -> Self {
        Self { second_start: now, sent: 0, by_source: HashMap::new() }
    }

    /// Whether one more may leave to `ip`. Counts it.
    fn admit(&mut self, now: Instant, ip: IpAddr) -> bool {
        if now.saturating_duration_since(self.second_start) >= Duration::from_secs(1) {
            *self = Self::new(now);
        }
        if self.sent >= MAX_RESETS_PER_SECOND {
            return false;
        }
        if self.sent >= MAX_RESETS_PER_SECOND / 2 {
            let of_source = self.by_source.entry(Source::of(ip)).or_default();
            if *of_source >= MAX_RESETS_PER_SOURCE {
                return false;
            }
            *of_source += 1;
        }
        self.sent += 1;
        true
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    /// Rule: P-30.
    #[test]
    fn allowances_of_one_ipv6_prefix_count_together_for_half_a_minute() {
        let mut peers = UnvalidatedPeers::new(&Limits::default());
        let (start, at) = (Instant::now(), |host: u16| [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into());
        let half = start + Duration::from_millis(29_999);
        assert!((0..8).all(|host| peers.take_allowance(start, at(host))));
        assert!(!peers.take_allowance(half, at(8)) && peers.take_allowance(half, ip(1)));
        peers.return_allowance(at(3));
        assert!(peers.take_allowance(half, at(8)) && !peers.take_allowance(half, at(9)));
        let later = start + Duration::from_secs(30);
        assert!((0..8).all(|host| peers.take_allowance(later, at(host))));
        assert!(!peers.take_allowance(later, at(8)));
        for source in 0..10_000_u32 {
            peers.take_allowance(later, IpAddr::from(source.to_be_bytes()));
            assert!(peers.allowances.len() <= MAX_SOURCES);
        }
    }

    /// Rule: P-31.
    #[test]
    fn admission_ends_when_the_table_is_half_full() {
        let limits = Limits { max_unvalidated: 64, ..Limits::default() };
        let mut peers = UnvalidatedPeers::new(&limits);
        while !peers.is_crowded() {
            peers.enter();
        }
        assert_eq!(peers.len(), 33);
        peers.leave();
        assert!(!peers.is_crowded());
    }

    #[test]
    fn unvalidated_peers_have_at_most_half_of_the_connections() {
        let limits = Limits { max_connections: 100, ..Limits::default() };
        let mut peers = UnvalidatedPeers::new(&limits);
        while !peers.is_crowded() {
            peers.enter();
        }
        assert_eq!(peers.len(), 51);
    }

    fn id(slot: u32) -> ConnId {
        ConnId { slot, generation: 1 }
    }

    /// Rule: P-26.
    #[test]
    fn connect_pacer_admits_64_per_millisecond_in_order() {
        let start = Instant::now();
        let mut pacer = ConnectPacer::new(start);
        let admitted = (0..1_000).filter(|slot| pacer.admit(id(*slot))).count();
        assert_eq!((admitted, pacer.deadline()), (CONNECT_BURST, Some(start + PACING_PERIOD)));
        let mut ready = VecDeque::new();
        pacer.release(start, &mut ready);
        assert!(ready.is_empty(), "no peer has answered");
        pacer.on_answer();
        pacer.release(start, &mut ready);
        assert_eq!(ready, [id(64)]);
        assert!(pacer.admit(ready[0]));
        let mut now = start;
        while let Some(at) = pacer.deadline() {
            now = at;
            let before = ready.len();
            pacer.release(now, &mut ready);
            assert!(ready.len() - before <= CONNECT_BURST);
            assert!(ready.iter().skip(before).all(|id| pacer.admit(*id)));
        }
        assert!(ready.iter().map(|id| id.slot).eq(64..1_000));
        assert_eq!(now - start, Duration::from_millis(15));
    }

    /// Rule: W-81.
    #[test]
    fn resets_are_limited_in_each_second() {
        let start = Instant::now();
        let mut limiter = ResetLimiter::new(start);
        for second in 0..3 {
            let now = start + Duration::from_secs(second);
            let ip = |host: u32| IpAddr::from((host % 100).to_be_bytes());
            assert_eq!((0..100_000).filter(|host| limiter.admit(now, ip(*host))).count(), 16_384);
        }
    }

    /// Rule: W-82.
    #[test]
    fn one_source_leaves_most_of_the_second_half_to_others() {
        let now = Instant::now();
        let mut limiter = ResetLimiter::new(now);
        let mut sent = |host: u8| {
            (0..100_000).filter(|_| limiter.admit(now, [192, 0, 2, host].into())).count()
        };
        assert_eq!((sent(1), sent(2), sent(1)), (8_192 + 512, 512, 0));
    }
}
