//! Admission of unvalidated peers: how many connections they have opened, and to how many of a source
//! more may be sent than three times what it sent.
//!
//! Source addresses can be forged (RFC 9000 8.1), so only the limits in total bound memory. From half
//! of them on, a peer has to show by a [`Retry`](crate::driver::admission::retry) that its address is its own.

pub(crate) mod replay;
pub(crate) mod retry;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::config::Limits;
use crate::driver::expiring_map::ExpiringMap;
use crate::shared::conn_id::ConnId;

/// Divisor: initial datagrams are answered without state while more than `max / 2` connections are
/// unvalidated.
const CROWDED_DIVISOR: usize = 2;
/// Connections of one source that have an allowance within [`ALLOWANCE_PERIOD`] and are not
/// validated. Who forges an IP address can choose any port, and the bytes meet at one host.
const MAX_ALLOWANCES: usize = 8;
const ALLOWANCE_PERIOD: Duration = Duration::from_secs(30);
/// Sources whose allowances are counted; beyond that the oldest count is dropped.
const MAX_SOURCES: usize = 4_096;

#[derive(Debug)]
pub(crate) struct UnvalidatedPeers {
    total: usize,
    /// Allowances of a source since the first of them.
    allowances: ExpiringMap<Source, usize>,
    /// `Limits::max_unvalidated`.
    max: usize,
}

impl UnvalidatedPeers {
    pub(crate) fn new(limits: &Limits) -> Self {
        let max = limits.max_unvalidated.min(limits.max_connections);
        Self { total: 0, allowances: ExpiringMap::default(), max }
    }

    /// Whether more than half of the places are taken.
    pub(crate) fn is_crowded(&self) -> bool {
        self.total > self.max / CROWDED_DIVISOR
    }

    /// Counts a connection.
    pub(crate) fn enter(&mut self) {
        self.total += 1;
    }

    /// Removes a connection, validated or ended, from the count.
    pub(crate) fn leave(&mut self) {
        self.total -= 1;
    }

    /// Takes one allowance of `ip`. Returns false if its source has none left.
    ///
    /// It is not given back when its connection ends: who forges the address could have it spent
    /// again and again.
    pub(crate) fn take_allowance(&mut self, now: Instant, ip: IpAddr) -> bool {
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
    pub(crate) fn return_allowance(&mut self, ip: IpAddr) {
        let source = Source::of(ip);
        let Some(taken) = self.allowances.get_mut(&source) else { return };
        *taken = taken.saturating_sub(1);
        if *taken == 0 {
            // It takes the place of no source that has spent some.
            self.allowances.remove(&source);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.total
    }
}

// What is bounded per source: whom a source address stands for, and which source has most of a table.

/// An IPv4 address, or the /64 prefix of an IPv6 address, since one host has all addresses of its
/// prefix (RFC 7421).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Source(IpAddr);

impl Source {
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => {
                let prefix = ip.to_bits() >> 64 << 64;
                Self(Ipv6Addr::from_bits(prefix).into())
            }
            ip => Self(ip),
        }
    }
}

/// Connections that the peers of each source have opened.
#[derive(Debug, Default)]
pub(crate) struct ConnectionsBySource(HashMap<Source, usize>);

impl ConnectionsBySource {
    /// A peer at `ip` has opened a connection, or moves one there.
    pub(crate) fn enter(&mut self, ip: IpAddr) {
        *self.0.entry(Source::of(ip)).or_default() += 1;
    }

    /// A connection with a peer at `ip` has ended, or moves away.
    pub(crate) fn leave(&mut self, ip: IpAddr) {
        if let Entry::Occupied(mut count) = self.0.entry(Source::of(ip)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Connections of the source of `ip`.
    pub(crate) fn count(&self, ip: IpAddr) -> usize {
        self.0.get(&Source::of(ip)).copied().unwrap_or(0)
    }

    #[cfg(feature = "_testkit")]
    pub(crate) fn total(&self) -> usize {
        self.0.values().sum()
    }
}

/// Keys of a table by source and time. A table that is full drops the oldest key of the source that
/// has most of them, as Longest Queue Drop does (Suter et al., "Design Considerations for Supporting
/// TCP with Per-flow Queueing", 1998): so nobody loses an entry to a source with more of them.
#[derive(Debug)]
pub(crate) struct KeysBySource<K> {
    keys: HashMap<Source, BTreeSet<(Instant, K)>>,
    /// The sources by their count; among equals, the last is that with the oldest key.
    by_count: BTreeSet<(usize, Reverse<Option<Instant>>, Source)>,
}

impl<K> Default for KeysBySource<K> {
    fn default() -> Self {
        Self { keys: HashMap::new(), by_count: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> KeysBySource<K> {
    pub(crate) fn insert(&mut self, source: Source, at: Instant, key: K) {
        self.change(source, |keys| keys.insert((at, key)));
    }

    pub(crate) fn remove(&mut self, source: Source, at: Instant, key: K) {
        self.change(source, |keys| keys.remove(&(at, key)));
    }

    /// The oldest key of the source that has most of them.
    pub(crate) fn oldest_of_fullest(&self) -> Option<K> {
        let (_, _, source) = self.by_count.last()?;
        self.keys.get(source)?.first().map(|(_, key)| *key)
    }

    fn change(&mut self, source: Source, change: impl FnOnce(&mut BTreeSet<(Instant, K)>) -> bool) {
        let keys = self.keys.entry(source).or_default();
        self.by_count.remove(&place(source, keys));
        change(keys);
        if keys.is_empty() {
            self.keys.remove(&source);
        } else {
            self.by_count.insert(place(source, keys));
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.keys.len(), self.by_count.len());
        self.keys.values().map(BTreeSet::len).sum()
    }
}

/// The place of a source in `KeysBySource::by_count`.
fn place<K>(
    source: Source,
    keys: &BTreeSet<(Instant, K)>,
) -> (usize, Reverse<Option<Instant>>, Source)
where
    K: Ord,
{
    (keys.len(), Reverse(keys.first().map(|(at, _)| *at)), source)
}

// Pacing of connects: how many initial datagrams leave per millisecond.
//
// The initial datagrams of ten thousand connections opened at once would overflow the receive
// buffer of the peer's socket. A lost initial datagram is retransmitted only after the initial
// RTO (RFC 6298 2.1; no round-trip time is measured yet), which takes longer than waiting in this
// queue.

/// Initial datagrams per [`CONNECT_PERIOD`]: half of what the 208 KiB default of Linux
/// `net.core.rmem_default` holds.
const CONNECT_BURST: usize = 64;
/// Length of a period: the resolution of Tokio's timers.
const CONNECT_PERIOD: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct ConnectPacer {
    /// Initial datagrams that may still leave in this period.
    credit: usize,
    /// When the next period begins with a credit of [`CONNECT_BURST`].
    renewal: Instant,
    /// Connections whose initial datagram waits, in order.
    waiting: VecDeque<ConnId>,
}

impl ConnectPacer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { credit: CONNECT_BURST, renewal: now + CONNECT_PERIOD, waiting: VecDeque::new() }
    }

    /// Whether `id` may send its initial datagram now. Otherwise `id` waits for [`Self::release`].
    pub(crate) fn admit(&mut self, id: ConnId) -> bool {
        let Some(credit) = self.credit.checked_sub(1) else {
            self.waiting.push_back(id);
            return false;
        };
        self.credit = credit;
        true
    }

    /// A peer has answered an initial datagram: one more may leave in this period.
    pub(crate) fn on_answer(&mut self) {
        self.credit = (self.credit + 1).min(CONNECT_BURST);
    }

    /// Appends the connections that may send now to `ready`.
    pub(crate) fn release(&mut self, now: Instant, ready: &mut VecDeque<ConnId>) {
        if now >= self.renewal {
            (self.credit, self.renewal) = (CONNECT_BURST, now + CONNECT_PERIOD);
        }
        let count = self.credit.min(self.waiting.len());
        ready.extend(self.waiting.drain(..count));
        if self.waiting.is_empty() && self.waiting.capacity() > CONNECT_BURST {
            // Many connects at once are rare: their memory is not kept.
            self.waiting = VecDeque::new();
        }
    }

    /// When the next initial datagrams may leave.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.renewal)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[test]
    fn allowances_of_one_ipv6_prefix_count_together_for_half_a_minute() {
        let mut peers = UnvalidatedPeers::new(&Limits::default());
        let (start, at) = (Instant::now(), |host: u16| [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into());
        let half = start + ALLOWANCE_PERIOD / 2;
        assert!((0..8).all(|host| peers.take_allowance(start, at(host))));
        assert!(!peers.take_allowance(half, at(8)) && peers.take_allowance(half, ip(1)));
        peers.return_allowance(at(3));
        assert!(peers.take_allowance(half, at(8)) && !peers.take_allowance(half, at(9)));
        let later = start + ALLOWANCE_PERIOD;
        assert!((0..8).all(|host| peers.take_allowance(later, at(host))));
        assert!(!peers.take_allowance(later, at(8)));
        for source in 0..10_000_u32 {
            peers.take_allowance(later, IpAddr::from(source.to_be_bytes()));
            assert!(peers.allowances.len() <= MAX_SOURCES);
        }
    }

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

    #[test]
    fn source_is_an_ipv4_address_or_an_ipv6_prefix() {
        let of = |ip: &str| Source::of(ip.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
    }

    #[test]
    fn fullest_source_loses_its_oldest_key_and_among_equals_the_oldest() {
        let source = |host: u8| Source::of([192, 0, 2, host].into());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keys = KeysBySource::default();
        for (host, second, key) in [(9, 1, 'a'), (1, 2, 'b'), (5, 3, 'c'), (1, 4, 'd')] {
            keys.insert(source(host), at(second), key);
        }
        assert_eq!((keys.oldest_of_fullest(), keys.len()), (Some('b'), 4));
        keys.remove(source(1), at(2), 'b');
        assert_eq!(keys.oldest_of_fullest(), Some('a'));
        keys.remove(source(9), at(1), 'a');
        assert_eq!(keys.oldest_of_fullest(), Some('c'));
        keys.remove(source(5), at(3), 'c');
        keys.remove(source(1), at(4), 'd');
        assert_eq!((keys.oldest_of_fullest(), keys.len(), keys.keys.len()), (None, 0, 0));
    }

    fn id(slot: u32) -> ConnId {
        ConnId { slot, generation: 1 }
    }

    #[test]
    fn connect_pacer_admits_64_per_millisecond_in_order() {
        let start = Instant::now();
        let mut pacer = ConnectPacer::new(start);
        let admitted = (0..1_000).filter(|slot| pacer.admit(id(*slot))).count();
        assert_eq!((admitted, pacer.deadline()), (CONNECT_BURST, Some(start + CONNECT_PERIOD)));
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
        assert_eq!(now - start, CONNECT_PERIOD * 15);
    }
}
