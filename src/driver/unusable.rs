//! Datagrams that arrived and were of no use: which addresses they came from in the last minute, for the
//! events of the endpoint and for the errors of connections that time out.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::driver::expiring_map::ExpiringMap;
use crate::error::TimeoutCause;
use crate::sys::Socket;
use crate::trace;

/// How long an address is remembered, from its first such datagram on.
const PERIOD: Duration = Duration::from_secs(60);
/// Addresses that are remembered, and so the most events in that time.
const MAX_ADDRESSES: usize = 256;

/// Counts of one address.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// The cipher or the format is another.
    unreadable: u8,
    /// Segments of no connection.
    unmatched: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Unusable {
    addresses: ExpiringMap<SocketAddr, Counts>,
    /// When the system last reported that a port is closed, and whose: known where the socket has one
    /// peer.
    refused: Option<(Instant, SocketAddr)>,
}

impl Unusable {
    /// The counts of `from`; `None` if there are too many. An address with connections is taken in any
    /// case.
    fn counts(&mut self, now: Instant, from: SocketAddr, known: bool) -> Option<&mut Counts> {
        while self.addresses.pop_expired(now).is_some() {}
        if !self.addresses.contains(&from) {
            if self.addresses.len() >= MAX_ADDRESSES {
                if !known {
                    return None;
                }
                self.addresses.pop_first();
            }
            self.addresses.insert(now + PERIOD, from, Counts::default());
        }
        self.addresses.get_mut(&from)
    }

    /// A datagram could not be read. Returns whether that is to be reported.
    fn on_unreadable(&mut self, now: Instant, from: SocketAddr, known: bool) -> bool {
        let Some(counts) = self.counts(now, from, known) else { return false };
        let is_first = counts.unreadable == 0;
        counts.unreadable = counts.unreadable.saturating_add(1);
        is_first
    }

    fn on_unmatched(&mut self, now: Instant, from: SocketAddr) {
        if let Some(counts) = self.counts(now, from, true) {
            counts.unmatched = counts.unmatched.saturating_add(1);
        }
    }

    pub(crate) fn on_refused(&mut self, now: Instant, peer: SocketAddr) {
        self.refused = Some((now, peer));
    }

    /// What came from `peer` lately, beside what its connections took.
    pub(crate) fn heard(&self, now: Instant, peer: SocketAddr) -> TimeoutCause {
        let counts = self.addresses.get_live(now, &peer).copied().unwrap_or_default();
        let is_refusal = |(at, of): (Instant, SocketAddr)| {
            of == peer && now.saturating_duration_since(at) <= PERIOD
        };
        match counts {
            Counts { unreadable: count @ 1.., .. } => TimeoutCause::Unreadable(count),
            _ if self.refused.is_some_and(is_refusal) => TimeoutCause::Refusal,
            Counts { unmatched: count @ 1.., .. } => TimeoutCause::OtherConnections(count),
            Counts { .. } => TimeoutCause::Nothing,
        }
    }
}

impl<S: Socket> Driver<S> {
    /// A datagram failed the cipher, or has no segments.
    pub(super) fn on_unreadable(&mut self, now: Instant, from: SocketAddr) {
        if self.unusable.on_unreadable(now, from, self.peers.contains(from)) {
            trace::unreadable(self.local(), from);
        }
    }

    /// Segments of no connection came, perhaps from the peer of one.
    pub(super) fn on_unmatched(&mut self, now: Instant, from: SocketAddr) {
        if self.peers.contains(from) {
            self.unusable.on_unmatched(now, from);
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;

    fn from(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn unreadable_datagrams_are_reported_once_a_minute_and_address() {
        let start = Instant::now();
        let mut unusable = Unusable::default();
        let reports = |unusable: &mut Unusable, now: Instant| {
            let all = (1..=1_000).flat_map(|port| [port; 3]);
            all.filter(|port| unusable.on_unreadable(now, from(*port), false)).count()
        };
        assert_eq!(reports(&mut unusable, start), MAX_ADDRESSES);
        assert_eq!(reports(&mut unusable, start + PERIOD / 2), 0);
        // An address with a connection is counted all the same.
        assert!(unusable.on_unreadable(start, from(2_000), true));
        assert_eq!(unusable.addresses.len(), MAX_ADDRESSES);
        assert_eq!(reports(&mut unusable, start + PERIOD), MAX_ADDRESSES);
    }

    #[test]
    fn what_says_most_is_named() {
        let now = Instant::now();
        let mut unusable = Unusable::default();
        assert_eq!(unusable.heard(now, from(1)), TimeoutCause::Nothing);
        unusable.on_unmatched(now, from(1));
        unusable.on_unmatched(now, from(1));
        assert_eq!(unusable.heard(now, from(1)), TimeoutCause::OtherConnections(2));
        unusable.on_refused(now, from(2));
        assert_eq!(unusable.heard(now, from(1)), TimeoutCause::OtherConnections(2));
        unusable.on_refused(now, from(1));
        assert_eq!(unusable.heard(now, from(1)), TimeoutCause::Refusal);
        unusable.on_unreadable(now, from(1), true);
        assert_eq!(unusable.heard(now, from(1)), TimeoutCause::Unreadable(1));
        assert_eq!(unusable.heard(now + 2 * PERIOD, from(1)), TimeoutCause::Nothing);
    }
}
