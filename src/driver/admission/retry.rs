//! Retry (RFC 9000 8.1.2): address validation without state, for times with many unvalidated connections.
//!
//! KCP has no Retry packet. A ping takes its place: an empty PUSH far behind the receive window, which every
//! KCP peer acknowledges with the same `sn` and `ts`. Both are a keyed function of the peer's address, the
//! conversation id and the time, like a SYN cookie (RFC 4987 3.6), so nothing is stored for the answer. The
//! ACK shows that the peer receives at its address: the next copy of its initial datagram opens the
//! connection, with a validated peer.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher24;

use crate::core::segment::{CONTROL_CAPABLE, Command, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::driver::admission::source::{KeysBySource, Source};
use crate::driver::connection::Key;
use crate::driver::expiring_map::ExpiringMap;

/// A token is valid in the period that it was made in and in the next one: for at least 8 s.
const PERIOD: Duration = Duration::from_secs(8);
/// Fixed bits of the `sn` of a token: a number between 1 and 1.5 times 2^30 behind 0, the RCV.NXT of a peer
/// that has received nothing. The lowest bit marks a ping of the side that did not open the connection.
const SN_BASE: u32 = 0xA000_0001;
/// Bits of `sn` that are part of the token; with the bits of `ts` it has 60.
const SN_BITS: u32 = 28;
/// The window of a token: the peer sends no further data before the connection is open.
const WINDOW: u16 = 1;
/// Most peers that have answered.
const MAX_ANSWERED: usize = 4_096;
/// How long the next copy of an initial segment is awaited after the answer: longer than the longest interval
/// between two copies.
const ANSWER_LIFETIME: Duration = Duration::from_secs(10);

/// `sn` and `ts` of a ping that stands for a Retry packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    sn: Sn,
    ts: Ts,
}

/// Whether a datagram answers a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It has no ACK of a valid token.
    None,
    /// It has one, and its peer may open the connection now.
    Taken,
    /// The same. At [`MAX_ANSWERED`] the oldest answer of the source with the most answers is dropped.
    Replaced,
}

/// Makes tokens, checks their answers, and remembers these until the connection opens.
#[derive(Debug)]
pub(crate) struct Retry {
    /// SipHash-2-4 is a PRF, and its keyed interface is stable, unlike `RandomState`.
    key: [u64; 2],
    start: Instant,
    /// The `frg` of a ping of this endpoint, its CONTROL capability.
    capability: u8,
    /// Peers that have answered, and whether the answer has the CONTROL capability.
    answered: ExpiringMap<Key, bool>,
    /// The keys of `answered`, with the times until which they are kept.
    by_source: KeysBySource<Key>,
}

impl Retry {
    /// `key` is secret and random. `capability`: the `frg` of this endpoint's pings.
    pub(crate) fn new(now: Instant, key: [u64; 2], capability: u8) -> Self {
        let (answered, by_source) = (ExpiringMap::default(), KeysBySource::default());
        Self { key, start: now, capability, answered, by_source }
    }

    /// The ping that answers an initial datagram under `key`.
    pub(crate) fn ping(&self, now: Instant, key: Key) -> Header {
        let Token { sn, ts } = self.token(self.period(now), key);
        let (conv, command, frg) = (key.1, Command::Push, self.capability);
        let (una, wnd) = (Sn(0), WINDOW);
        Header { conv, command, frg, wnd, ts, sn, una, len: 0 }
    }

    /// Takes the valid segments of a datagram from `key`, of no connection.
    pub(crate) fn on_datagram(&mut self, now: Instant, key: Key, datagram: &[u8]) -> Answer {
        let answers = |(header, _): &(Header, &[u8])| {
            header.command == Command::Ack
                && header.sn.0 & !sn_mask() == SN_BASE
                && self.is_token(now, key, Token { sn: header.sn, ts: header.ts })
        };
        let Some((ack, _)) = Segments::new(datagram).find(answers) else { return Answer::None };
        let is_capable = ack.frg == CONTROL_CAPABLE;
        self.expire(now);
        if let Some(known) = self.answered.get_mut(&key) {
            *known |= is_capable;
            return Answer::Taken;
        }
        let is_full = self.answered.len() >= MAX_ANSWERED;
        if let Some(dropped) = self.by_source.oldest_of_fullest().filter(|_| is_full) {
            self.forget(&dropped);
        }
        let until = now + ANSWER_LIFETIME;
        self.by_source.insert(Source::of(key.0.ip()), until, key);
        self.answered.insert(until, key, is_capable);
        if is_full { Answer::Replaced } else { Answer::Taken }
    }

    /// Whether the peer has answered a token lately. Forgets the answer. `is_capable`: its initial segment
    /// has the CONTROL capability, and so must its answer.
    pub(crate) fn take_answer(&mut self, now: Instant, key: &Key, is_capable: bool) -> bool {
        self.expire(now);
        let answer = self.answered.get_mut(key).copied();
        answer.is_some_and(|answer| answer || !is_capable) && self.forget(key)
    }

    /// Whether a datagram from `key` has a ping of [`Self::ping`], reflected.
    pub(crate) fn is_reflection(&self, now: Instant, key: Key, datagram: &[u8]) -> bool {
        Segments::new(datagram).any(|(header, _)| {
            header.command == Command::Push
                && header.len == 0
                && header.sn.0 & !sn_mask() == SN_BASE
                && self.is_token(now, key, Token { sn: header.sn, ts: header.ts })
        })
    }

    fn period(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() / PERIOD.as_secs()
    }

    fn is_token(&self, now: Instant, key: Key, token: Token) -> bool {
        let period = self.period(now);
        [Some(period), period.checked_sub(1)].into_iter().flatten().any(|period| {
            // Not in constant time: an observer who can measure it sees the token as well.
            self.token(period, key) == token
        })
    }

    fn token(&self, period: u64, key: Key) -> Token {
        let (peer, conv) = key;
        let ip = match peer.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut input = [0; 30];
        let parts: [&[u8]; 4] =
            [&ip.octets(), &peer.port().to_le_bytes(), &conv.to_le_bytes(), &period.to_le_bytes()];
        for (place, byte) in input.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        let [key0, key1] = self.key;
        let hash = SipHasher24::new_with_keys(key0, key1).hash(&input);
        #[expect(clippy::cast_possible_truncation, reason = "each half is a part of the token")]
        let (low, high) = (hash as u32, (hash >> 32) as u32);
        Token { sn: Sn(SN_BASE | (high << 1 & sn_mask())), ts: Ts(low) }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((key, until, _)) = self.answered.pop_expired(now) {
            self.by_source.remove(Source::of(key.0.ip()), until, key);
        }
    }

    /// Returns false if the key is unknown.
    fn forget(&mut self, key: &Key) -> bool {
        let Some((until, _)) = self.answered.remove(key) else { return false };
        self.by_source.remove(Source::of(key.0.ip()), until, *key);
        true
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        assert!(self.answered.values().count() <= MAX_ANSWERED);
        assert_eq!(self.by_source.len(), self.answered.len());
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.check_invariants();
        self.answered.len()
    }
}

/// The bits of `sn` that are part of a token.
const fn sn_mask() -> u32 {
    ((1 << SN_BITS) - 1) << 1
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], port))
    }

    /// The ACK with which a peer answers the ping in `datagram`.
    fn answer(datagram: &[u8]) -> Vec<u8> {
        let header = Header::parse(datagram).unwrap();
        let mut out = Vec::new();
        Header { command: Command::Ack, frg: 0, wnd: 32, ..header }.emit(&mut out);
        out
    }

    fn written(retry: &Retry, now: Instant, key: Key) -> Vec<u8> {
        let mut out = Vec::new();
        retry.ping(now, key).emit(&mut out);
        out
    }

    /// Rules: W-40, W-42, W-43.
    #[test]
    fn retry_token_is_taken_from_its_own_peer_in_time() {
        let now = Instant::now();
        let mut retry = Retry::new(now, [1, 2], CONTROL_CAPABLE);
        let key = (peer(1, 5), 7);
        let ack = answer(&written(&retry, now, key));
        for other in [(peer(2, 5), 7), (peer(1, 6), 7), (peer(1, 5), 8)] {
            assert_eq!(retry.on_datagram(now, other, &ack), Answer::None);
        }
        let mut other = Retry::new(now, [1, 3], CONTROL_CAPABLE);
        assert_eq!(other.on_datagram(now, key, &ack), Answer::None, "another key");
        assert_eq!(retry.on_datagram(now + 2 * PERIOD, key, &ack), Answer::None, "too late");
        assert!(!retry.take_answer(now, &key, false));
        let later = now + 2 * PERIOD - Duration::from_millis(1);
        assert_eq!(retry.on_datagram(later, key, &ack), Answer::Taken);
        assert_eq!(retry.on_datagram(later, key, &ack), Answer::Taken, "a duplicate");
        assert!(!retry.take_answer(later, &key, true), "the answer has no CONTROL capability");
        let capable = retry.ping(later, key);
        assert!(retry.is_reflection(later, key, &written(&retry, later, key)));
        assert!(!retry.is_reflection(later, key, &ack));
        let mut datagram = Vec::new();
        Header { command: Command::Ack, wnd: 32, ..capable }.emit(&mut datagram);
        assert_eq!(retry.on_datagram(later, key, &datagram), Answer::Taken);
        assert!(retry.take_answer(later, &key, true) && !retry.take_answer(later, &key, false));
        assert_eq!(retry.len(), 0);
    }

    /// Rules: W-38, W-39.
    #[test]
    fn retry_token_differs_in_every_bit_and_lies_far_behind() {
        let now = Instant::now();
        let retry = Retry::new(now, [1, 2], CONTROL_CAPABLE);
        let (mut ones, mut zeros) = ((0, 0), (0, 0));
        for conv in 0..1_000 {
            let header = Header::parse(&written(&retry, now, (peer(1, 5), conv))).unwrap();
            let behind = 0_u32.wrapping_sub(header.sn.0);
            assert!((1 << 30..(1 << 31) - 65_536).contains(&behind), "{behind}");
            assert_eq!((header.sn.0 & 1, header.una, header.len), (1, Sn(0), 0));
            ones = (ones.0 | header.sn.0, ones.1 | header.ts.0);
            zeros = (zeros.0 | !header.sn.0, zeros.1 | !header.ts.0);
        }
        let free = (ones.0 & zeros.0, ones.1 & zeros.1);
        assert_eq!(free.0.count_ones() + free.1.count_ones(), 60);
    }

    #[test]
    fn retry_answers_are_bounded_and_the_fullest_source_gives_way() {
        let now = Instant::now();
        let mut retry = Retry::new(now, [1, 2], CONTROL_CAPABLE);
        let open = |retry: &mut Retry, at: u64, peer: SocketAddr, conv: u32| {
            let (now, key) = (now + Duration::from_millis(at), (peer, conv));
            let ack = answer(&written(retry, now, key));
            retry.on_datagram(now, key, &ack)
        };
        // An honest client, then floods of 20 sources, an IPv6 prefix among them.
        assert_eq!(open(&mut retry, 0, peer(99, 5), 7), Answer::Taken);
        let v6 = |host: u32| (0x2001_0db8_u128 << 96 | u128::from(host)).to_be_bytes();
        let mut dropped = 0;
        for at in 1..=1_000 {
            let mut answers: Vec<_> =
                (1..20).map(|host| open(&mut retry, at, peer(host, 5), at as u32)).collect();
            answers.push(open(&mut retry, at, SocketAddr::from((v6(at as u32), 5)), 1));
            dropped += answers.iter().filter(|answer| **answer == Answer::Replaced).count();
        }
        assert_eq!((retry.len(), dropped), (MAX_ANSWERED, 20_001 - MAX_ANSWERED));
        // Another client comes, and both are still there. The other sources have equal shares.
        assert_eq!(open(&mut retry, 1_000, peer(98, 5), 7), Answer::Replaced);
        let later = now + Duration::from_millis(1_001);
        assert!(retry.take_answer(later, &(peer(99, 5), 7), false), "the oldest, but the only one");
        assert!(retry.take_answer(later, &(peer(98, 5), 7), false));
        let left = |retry: &mut Retry, host: u8| {
            let mut take = |conv| retry.take_answer(later, &(peer(host, 5), conv), false);
            (1..=1_000).filter(|conv| take(*conv)).count()
        };
        for host in 1..20 {
            assert!((203..=205).contains(&left(&mut retry, host)), "source {host}");
        }
        assert!((203..=205).contains(&retry.len()), "the prefix: {}", retry.len());
        retry.expire(later + ANSWER_LIFETIME);
        assert_eq!(retry.len(), 0);
    }

    /// Rules: W-40, W-43.
    #[test]
    fn retry_token_is_a_siphash_of_peer_conv_and_period() {
        let now = Instant::now();
        let retry = Retry::new(now, [1, 2], CONTROL_CAPABLE);
        for (second, period) in [(0, 0_u64), (7, 0), (8, 1), (23, 2)] {
            let ping = retry.ping(now + Duration::from_secs(second), (peer(1, 5), 7));
            let mut input =
                [[0; 10].as_slice(), &[0xFF, 0xFF, 192, 0, 2, 1, 5, 0, 7, 0, 0, 0]].concat();
            input.extend(period.to_le_bytes());
            let hash = SipHasher24::new_with_keys(1, 2).hash(&input);
            let number = u64::from(ping.sn.0 - 0xA000_0001) / 2;
            assert_eq!(
                (number, u64::from(ping.ts.0)),
                (hash >> 32 & 0x0FFF_FFFF, hash & 0xFFFF_FFFF)
            );
        }
    }

    /// Rule: W-41.
    #[test]
    fn retry_answer_admits_for_ten_seconds() {
        let (now, key) = (Instant::now(), (peer(1, 5), 7));
        for (millis, admits) in [(9_999, true), (10_001, false)] {
            let mut retry = Retry::new(now, [1, 2], CONTROL_CAPABLE);
            let ack = answer(&written(&retry, now, key));
            assert_eq!(retry.on_datagram(now, key, &ack), Answer::Taken);
            assert_eq!(retry.take_answer(now + Duration::from_millis(millis), &key, false), admits);
        }
    }
}
