//! State of the receiving half: the replay filter, the pause after many receive errors, and the addresses of
//! datagrams that arrived and were of no use.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::driver::admission::replay::ReplayFilter;
use crate::driver::expiring_map::ExpiringMap;
use crate::error::TimeoutCause;
use crate::util::path::LocalIp;

/// Time between two turns after which datagrams may wait that the runtime has not reported yet: the process
/// was stopped, or its threads were busy.
const READINESS_LAG: Duration = Duration::from_millis(100);

/// Receive errors without a datagram between them before receiving pauses.
const ERRORS_BEFORE_BACKOFF: u32 = 64;
/// Longest pause between two receive calls. Pauses start at 2 ms and double.
const MAX_BACKOFF: Duration = Duration::from_millis(50);

/// How long an address of unusable datagrams is remembered, from the first one on.
const UNUSABLE_PERIOD: Duration = Duration::from_secs(60);
/// Addresses of unusable datagrams that are remembered, and so the most events in that time.
const MAX_ADDRESSES: usize = 256;

#[derive(Debug)]
pub(super) struct Input {
    /// The runtime can no longer say when the socket is ready. This ends the endpoint.
    pub(super) readiness_error: Option<io::Error>,
    /// The local IP of the datagram that is being handled.
    pub(super) local_ip: LocalIp,
    /// The source of the same datagrams.
    pub(super) from: Option<SocketAddr>,
    /// UDP payload of the datagram that is being handled, bytes.
    pub(super) len: usize,
    pub(super) backoff: RecvBackoff,
    /// The nonces of the last `replay_window` datagrams of this socket.
    pub(super) replay_filter: ReplayFilter,
    pub(super) unusable: Unusable,
    /// The last turn received as long as it may, see [`Self::catches_up`].
    pub(super) has_caught_up: bool,
    /// Errors of the statistics that report a closed port, up to the last turn.
    refused: u64,
}

impl Input {
    pub(super) fn new(replay_window: usize) -> Self {
        Self {
            readiness_error: None,
            local_ip: LocalIp::ANY,
            from: None,
            len: 0,
            backoff: RecvBackoff::default(),
            replay_filter: ReplayFilter::of_latest(replay_window),
            unusable: Unusable::default(),
            has_caught_up: false,
            refused: 0,
        }
    }

    /// Whether a turn that comes `pause` after the last one receives everything that waits. The turn after a
    /// full catch-up does not: the catch-up itself may have taken as long.
    pub(super) fn catches_up(&mut self, pause: Duration) -> bool {
        let had_caught_up = std::mem::take(&mut self.has_caught_up);
        pause >= READINESS_LAG && !had_caught_up
    }

    /// `total` errors so far report a closed port. `peer`: the only peer of the endpoint, which has that
    /// port.
    pub(super) fn on_refusals(
        &mut self,
        now: Instant,
        total: u64,
        peer: impl FnOnce() -> Option<SocketAddr>,
    ) {
        if total != self.refused
            && let Some(peer) = peer()
        {
            self.unusable.on_refused(now, peer);
        }
        self.refused = total;
    }
}

/// Exponential back-off of the receive side of a socket.
///
/// A receive error usually reports an ICMP message about a datagram sent earlier, and counts as loss. Many
/// errors without a datagram between them have another cause, and a driver that kept receiving would spin.
#[derive(Debug, Default)]
pub(super) struct RecvBackoff {
    /// Receive errors since the last datagram.
    errors: u32,
    /// End of the pause. `Some` from an error beyond [`ERRORS_BEFORE_BACKOFF`] until the first receive call
    /// after the pause.
    until: Option<Instant>,
}

impl RecvBackoff {
    /// The socket has delivered a datagram.
    pub(super) fn on_received(&mut self) {
        self.errors = 0;
    }

    /// The socket has returned an error. Returns whether receiving pauses until the deadline.
    pub(super) fn on_error(&mut self, now: Instant) -> bool {
        self.errors = self.errors.saturating_add(1);
        let Some(beyond) = self.errors.checked_sub(ERRORS_BEFORE_BACKOFF).filter(|more| *more > 0)
        else {
            return false;
        };
        let pause = Duration::from_millis(1 << beyond.min(6)).min(MAX_BACKOFF);
        self.until = Some(now + pause);
        true
    }

    /// Whether to receive now. Ends a pause after its deadline.
    pub(super) fn may_receive(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        self.until = None;
        true
    }

    pub(super) fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// When the pause ends; `None` without one.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until
    }
}

/// Counts of one address.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Datagrams under another cipher or of another format.
    unreadable: u8,
    /// Segments of no connection.
    unmatched: u8,
}

/// The addresses of unusable datagrams in the last minute, for events and for the errors of connections that
/// time out.
#[derive(Debug, Default)]
pub(super) struct Unusable {
    addresses: ExpiringMap<SocketAddr, Counts>,
    /// When the system last reported a closed port, and its address.
    refused: Option<(Instant, SocketAddr)>,
}

impl Unusable {
    /// The counts of `from`; `None` if there are too many addresses. A `known` address, one with connections,
    /// takes the place of another.
    fn counts(&mut self, now: Instant, from: SocketAddr, known: bool) -> Option<&mut Counts> {
        while self.addresses.pop_expired(now).is_some() {}
        if !self.addresses.contains(&from) {
            if self.addresses.len() >= MAX_ADDRESSES {
                if !known {
                    return None;
                }
                self.addresses.pop_first();
            }
            self.addresses.insert(now + UNUSABLE_PERIOD, from, Counts::default());
        }
        self.addresses.get_mut(&from)
    }

    /// A datagram failed the cipher, or has no segments. Returns whether to report it.
    pub(super) fn on_unreadable(&mut self, now: Instant, from: SocketAddr, known: bool) -> bool {
        let Some(counts) = self.counts(now, from, known) else { return false };
        let is_first = counts.unreadable == 0;
        counts.unreadable = counts.unreadable.saturating_add(1);
        is_first
    }

    /// Segments of no connection came from an address with connections.
    pub(super) fn on_unmatched(&mut self, now: Instant, from: SocketAddr) {
        if let Some(counts) = self.counts(now, from, true) {
            counts.unmatched = counts.unmatched.saturating_add(1);
        }
    }

    fn on_refused(&mut self, now: Instant, peer: SocketAddr) {
        self.refused = Some((now, peer));
    }

    /// Why a connection with `peer` may have timed out, from the most telling of its unusable datagrams.
    pub(super) fn heard(&self, now: Instant, peer: SocketAddr) -> TimeoutCause {
        let counts = self.addresses.get_live(now, &peer).copied().unwrap_or_default();
        let is_refusal = |(at, of): (Instant, SocketAddr)| {
            of == peer && now.saturating_duration_since(at) <= UNUSABLE_PERIOD
        };
        match counts {
            Counts { unreadable: count @ 1.., .. } => TimeoutCause::Unreadable(count),
            _ if self.refused.is_some_and(is_refusal) => TimeoutCause::Refusal,
            Counts { unmatched: count @ 1.., .. } => TimeoutCause::OtherConnections(count),
            Counts { .. } => TimeoutCause::Nothing,
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;

    #[test]
    fn backoff_starts_after_64_errors_and_doubles_up_to_50_ms() {
        let (mut backoff, mut now) = (RecvBackoff::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..=ERRORS_BEFORE_BACKOFF + 6 {
            assert!(backoff.may_receive(now));
            assert_eq!(backoff.on_error(now), backoff.is_active());
            if let Some(until) = backoff.deadline() {
                assert!(!backoff.may_receive(now) && backoff.is_active());
                pauses.push((until - now).as_millis());
                now = until;
            }
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 50, 50]);
        backoff.on_received();
        assert!(backoff.may_receive(now) && !backoff.on_error(now) && !backoff.is_active());
    }

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
        assert_eq!(reports(&mut unusable, start + UNUSABLE_PERIOD / 2), 0);
        // An address with a connection is counted all the same.
        assert!(unusable.on_unreadable(start, from(2_000), true));
        assert_eq!(unusable.addresses.len(), MAX_ADDRESSES);
        assert_eq!(reports(&mut unusable, start + UNUSABLE_PERIOD), MAX_ADDRESSES);
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
        assert_eq!(unusable.heard(now + 2 * UNUSABLE_PERIOD, from(1)), TimeoutCause::Nothing);
    }

    #[test]
    fn counts_of_unusable_datagrams_stay_at_255() {
        let now = Instant::now();
        let mut unusable = Unusable::default();
        for _ in 0..300 {
            unusable.on_unmatched(now, from(1));
            unusable.on_unreadable(now, from(2), true);
        }
        assert_eq!(unusable.heard(now, from(1)), TimeoutCause::OtherConnections(255));
        assert_eq!(unusable.heard(now, from(2)), TimeoutCause::Unreadable(255));
    }

    #[test]
    fn cause_of_a_timeout_is_remembered_for_a_minute_after_its_first_sign() {
        const MINUTE: Duration = Duration::from_secs(60);
        let start = Instant::now();
        let mut input = Input::new(0);
        for (at, total) in [(Duration::ZERO, 1), (MINUTE / 2, 1)] {
            input.on_refusals(start + at, total, || Some(from(1)));
            input.unusable.on_unmatched(start + at, from(2));
        }
        let causes =
            |input: &Input, at| [1, 2].map(|port| input.unusable.heard(start + at, from(port)));
        let before = [TimeoutCause::Refusal, TimeoutCause::OtherConnections(2)];
        let last = MINUTE - Duration::from_nanos(1);
        assert_eq!(causes(&input, last), before);
        assert_eq!(causes(&input, MINUTE + Duration::from_nanos(1)), [TimeoutCause::Nothing; 2]);
        // A further refusal counts from its own time, and concerns an endpoint with one peer.
        input.on_refusals(start + MINUTE, 2, || Some(from(1)));
        assert_eq!(causes(&input, MINUTE + last)[0], TimeoutCause::Refusal);
        input.on_refusals(start + 3 * MINUTE, 3, || None);
        input.on_refusals(start + 3 * MINUTE, 3, || Some(from(1)));
        assert_eq!(causes(&input, 3 * MINUTE)[0], TimeoutCause::Nothing);
    }

    #[test]
    fn turn_after_100_ms_receives_everything_but_not_twice_in_a_row() {
        let mut input = Input::new(0);
        let [short, long] = [99_999, 100_000].map(Duration::from_micros);
        assert_eq!([short, long, long].map(|pause| input.catches_up(pause)), [false, true, true]);
        input.has_caught_up = true;
        assert_eq!([long, long].map(|pause| input.catches_up(pause)), [false, true]);
        input.has_caught_up = true;
        assert_eq!([short, long].map(|pause| input.catches_up(pause)), [false, true]);
    }
}
