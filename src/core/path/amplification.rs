//! Anti-amplification limit and address proof (RFC 9000 8.1): at most three times the bytes received
//! from an unvalidated address are sent to it, and only an ACK that fits the initial segment
//! validates it.
//!
//! The limit bounds the traffic that a forged source address can direct at a victim. Deviates:
//! [`Amplification::limited`] has an initial allowance, usually one full datagram, since KCP has no
//! padded Initial packet (RFC 9000 14.1) and pings must be retransmitted. Without an allowance the
//! data of the peer is not acknowledged: its retransmissions refill the limit. Otherwise both sides
//! would wait for each other once the limit is used up (RFC 9002 6.2.2.1). Tests:
//! `driver/tests/address_validation.rs` and in this file.
//!
//! An ACK of a ping shows that its sender receives our datagrams, not that it opened the connection:
//! some listeners open a session for any PUSH, pings included, and acknowledge it. So the ACK has to
//! fit the initial segment ([`AddressProof`]).

use crate::core::keepalive::is_of_opener;
use crate::core::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header};
use crate::core::seq::Ts;

/// Bytes out for each byte in (RFC 9000 8.1).
const FACTOR: usize = 3;
/// Pings, one a second, for which bytes are reserved: else acknowledgements could use up the
/// allowance, and the peer would never be validated.
const PINGS: usize = 10;
/// Divisor of the initial allowance: the most that is reserved for pings.
const KEPT_DIVISOR: usize = 4;

/// The limit of one connection. Bytes of UDP payload, cipher and FEC header included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Amplification {
    /// The peer is validated, or this side opened the connection. Entered at construction and when
    /// the peer is validated; left only for an accepted connection before its first datagram.
    #[default]
    Unlimited,
    /// The peer opened the connection and is not validated. Entered when a connection is accepted;
    /// left when the peer is validated.
    Limited {
        /// Bytes received from the peer's address.
        received: usize,
        /// Bytes sent to that address.
        sent: usize,
        /// Bytes that may be sent before anything is received.
        initial_allowance: usize,
    },
}

/// Bytes that may be sent now under the anti-amplification limit (RFC 9000 8.1).
///
/// ```
/// use std::time::Instant;
///
/// use kcpx::Config;
/// use kcpx::proto::{Kcp, Seed, SendBudget};
///
/// let now = Instant::now();
/// let mut kcp = Kcp::new(7, &Config::new(), now, Seed::default())?;
/// assert_eq!(kcp.send_budget(), SendBudget::Unlimited);
/// kcp.require_validation(now, 1_400);
/// assert_eq!(kcp.send_budget(), SendBudget::Bytes(1_400));
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendBudget {
    /// The peer is validated: no limit.
    Unlimited,
    /// The peer is unvalidated: the next datagram of
    /// [`Kcp::poll_transmit`](crate::proto::Kcp::poll_transmit) has at most this number of bytes.
    Bytes(usize),
}

impl Amplification {
    /// The limit of an unvalidated peer. `initial_allowance`: bytes that may be sent before
    /// anything is received.
    pub(crate) fn limited(initial_allowance: usize) -> Self {
        Self::Limited { received: 0, sent: 0, initial_allowance }
    }

    /// Whether data of the peer is not acknowledged yet.
    #[inline]
    pub(crate) fn withholds_acks(&self) -> bool {
        matches!(self, Self::Limited { initial_allowance: 0, .. })
    }

    /// A datagram of the peer was accepted.
    #[inline]
    pub(crate) fn on_received(&mut self, bytes: usize) {
        if let Self::Limited { received, .. } = self {
            *received = received.saturating_add(bytes);
        }
    }

    /// Datagrams were sent.
    #[inline]
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        if let Self::Limited { sent, .. } = self {
            *sent = sent.saturating_add(bytes);
        }
    }

    /// Size limit of the next KCP datagram. `overhead`: bytes that cipher and FEC header add to it.
    #[inline]
    pub(crate) fn budget(&self, overhead: usize) -> SendBudget {
        match *self {
            Self::Unlimited => SendBudget::Unlimited,
            Self::Limited { received, sent, initial_allowance } => {
                let total = received.saturating_mul(FACTOR).max(initial_allowance);
                SendBudget::Bytes(total.saturating_sub(sent).saturating_sub(overhead))
            }
        }
    }

    /// As [`Self::budget`], less the bytes reserved for pings: for any datagram but a lone ping.
    #[inline]
    pub(crate) fn budget_beside_pings(&self, overhead: usize) -> SendBudget {
        match (*self, self.budget(overhead)) {
            (Self::Limited { initial_allowance, .. }, SendBudget::Bytes(bytes)) => {
                let kept = PINGS * (HEADER_LEN + overhead);
                SendBudget::Bytes(bytes.saturating_sub(kept.min(initial_allowance / KEPT_DIVISOR)))
            }
            (_, budget) => budget,
        }
    }
}

impl SendBudget {
    /// Whether the peer is validated.
    #[must_use]
    #[inline]
    pub const fn is_unlimited(self) -> bool {
        matches!(self, Self::Unlimited)
    }

    /// Whether data segments are retransmitted: not to an unvalidated peer.
    #[must_use]
    #[inline]
    pub const fn may_retransmit(self) -> bool {
        self.is_unlimited()
    }

    /// Whether MTU probes are sent (RFC 8899): the budget of an unvalidated peer is for data and
    /// pings.
    #[must_use]
    #[inline]
    pub const fn may_probe_mtu(self) -> bool {
        self.is_unlimited()
    }

    /// Whether datagrams are sent in GSO batches: the budget of an unvalidated peer is checked per
    /// datagram.
    #[must_use]
    #[inline]
    pub const fn may_batch(self) -> bool {
        self.is_unlimited()
    }

    /// Whether duplicates, FEC parity and out-of-band datagrams may be sent.
    #[must_use]
    #[inline]
    pub const fn may_send_extras(self) -> bool {
        self.is_unlimited()
    }

    /// Whether a datagram of `size` bytes may be sent.
    #[must_use]
    #[inline]
    pub const fn admits(self, size: usize) -> bool {
        match self {
            Self::Unlimited => true,
            Self::Bytes(bytes) => size <= bytes,
        }
    }

    /// `size`, or the budget if that is smaller.
    #[inline]
    pub(crate) fn cap(self, size: usize) -> usize {
        match self {
            Self::Unlimited => size,
            Self::Bytes(bytes) => size.min(bytes),
        }
    }
}

/// The ACK that the initial segment demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AddressProof {
    /// Any ACK of a segment of ours. Entered at construction.
    #[default]
    Ack,
    /// An ACK with the CONTROL capability, which the initial segment has. Entered when a connection
    /// is accepted without data.
    CapableAck,
    /// An ACK with the CONTROL capability, or any ACK and a second copy of the initial segment: a
    /// client retransmits it while nothing is acknowledged, a listener never sends one. Entered
    /// when a connection is accepted with data and acknowledgements are withheld until the peer is
    /// validated.
    AckAndDuplicate { acked: bool, duplicated: bool },
}

impl AddressProof {
    /// Whether an ACK of the peer can have this `frg`.
    pub(crate) fn admits(self, frg: u8) -> bool {
        self != Self::CapableAck || frg == CONTROL_CAPABLE
    }

    /// An ACK of a segment of ours arrived. Returns whether the address is validated.
    pub(crate) fn on_ack(&mut self, frg: u8) -> bool {
        match self {
            Self::AckAndDuplicate { acked, duplicated } if frg != CONTROL_CAPABLE => {
                *acked = true;
                *duplicated
            }
            _ => self.admits(frg),
        }
    }

    /// The first data segment arrived again. Returns whether the address is validated.
    pub(crate) fn on_duplicate_received(&mut self) -> bool {
        let Self::AckAndDuplicate { acked, duplicated } = self else { return false };
        *duplicated = true;
        *acked
    }

    /// Whether the datagram of this segment counts for the anti-amplification limit: neither echoes
    /// of our segments nor answers of a listener to our pings do. A ping of the side that opened the connection does:
    /// it may be all that it sends after a burst of losses.
    pub(crate) fn counts(self, header: &Header, is_ping: bool) -> bool {
        let is_capable = header.frg == CONTROL_CAPABLE;
        match header.command {
            // Window probes of this side have timestamp 0.
            Command::WindowProbe => is_capable && header.ts != Ts(0),
            Command::Push if header.len == 0 => is_capable && is_ping && is_of_opener(header.sn),
            // An application may echo.
            Command::Push => self != Self::CapableAck,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::seq::Sn;

    /// Rule: P-29.
    #[test]
    fn amplification_limit_is_3x_received_or_the_initial_allowance() {
        let mut limit = Amplification::limited(1_200);
        assert_eq!(limit.budget(0), SendBudget::Bytes(1_200));
        limit.on_received(100);
        limit.on_sent(1_000);
        assert_eq!(limit.budget(40), SendBudget::Bytes(160));
        limit.on_received(400);
        assert_eq!(limit.budget(40), SendBudget::Bytes(460));
        limit.on_sent(600);
        assert_eq!(limit.budget(0), SendBudget::Bytes(0));
    }

    #[test]
    fn amplification_unlimited_counts_nothing_and_admits_everything() {
        let mut limit = Amplification::default();
        limit.on_sent(usize::MAX);
        let budget = limit.budget(40);
        assert_eq!(budget, SendBudget::Unlimited);
        assert!(budget.admits(usize::MAX) && budget.may_retransmit() && budget.may_batch());
        assert!(!SendBudget::Bytes(1_200).may_probe_mtu() && SendBudget::Bytes(24).admits(24));
    }

    /// Rule: P-28.
    #[test]
    fn ack_validates_if_it_fits_the_initial_segment() {
        let held = AddressProof::AckAndDuplicate { acked: false, duplicated: false };
        assert!(AddressProof::Ack.on_ack(0) && AddressProof::Ack.on_ack(CONTROL_CAPABLE));
        let mut capable = AddressProof::CapableAck;
        assert!(!capable.on_ack(0) && !capable.admits(0) && !capable.on_duplicate_received());
        assert!(capable.on_ack(CONTROL_CAPABLE));
        let (mut once, mut ack_first, mut ack_last) = (held, held, held);
        assert!(once.on_ack(CONTROL_CAPABLE), "a listener of this crate rejects a ping");
        assert!(!ack_first.on_ack(0) && !ack_first.on_ack(0) && ack_first.on_duplicate_received());
        assert!(
            !ack_last.on_duplicate_received()
                && !ack_last.on_duplicate_received()
                && ack_last.on_ack(0)
        );
    }

    #[test]
    fn echoes_and_answers_of_a_listener_do_not_count() {
        let held = AddressProof::AckAndDuplicate { acked: false, duplicated: false };
        let header = |command, frg, ts, len| {
            let (sn, una) = (Sn(0xC000_0000), Sn(0));
            Header { conv: 7, command, frg, wnd: 128, ts: Ts(ts), sn, una, len }
        };
        for proof in [AddressProof::Ack, AddressProof::CapableAck, held] {
            let counts =
                |command, frg, ts, len| proof.counts(&header(command, frg, ts, len), len == 0);
            let is_capable = proof == AddressProof::CapableAck;
            let ping = header(Command::Push, CONTROL_CAPABLE, 5, 0);
            let of_listener = Header { sn: Sn(ping.sn.0 | 1), ..ping };
            assert!(proof.counts(&ping, true) && !proof.counts(&of_listener, true));
            assert!(!proof.counts(&Header { frg: 0, ..ping }, true), "nor without CONTROL");
            assert!(!proof.counts(&ping, false), "nor a segment in the window");
            assert!(counts(Command::WindowProbe, CONTROL_CAPABLE, 5, 0));
            assert!(!counts(Command::WindowProbe, CONTROL_CAPABLE, 0, 0), "one of this side");
            assert!(!counts(Command::Ack, CONTROL_CAPABLE, 5, 0));
            assert!(!counts(Command::WindowUpdate, CONTROL_CAPABLE, 5, 0));
            assert!(!counts(Command::Control, 1, 5, 0));
            assert_eq!(counts(Command::Push, 0, 5, 9), !is_capable, "an application may echo");
        }
    }
}
