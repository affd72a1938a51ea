//! Anti-amplification limit: an unvalidated peer is sent at most three times what came from its
//! address (RFC 9000 8.1).
//!
//! This bounds what an attacker with a forged source address can make this side send to the victim.
//! Deviates: a peer is sent the initial allowance of [`Amplification::limited`], one full
//! datagram, since KCP has no padded Initial packet (RFC 9000 14.1) and pings must be
//! retransmitted. A peer without an allowance is sent nothing that acknowledges its data: it
//! retransmits then, which refills the limit. Otherwise both sides would wait for each other once the
//! limit is used up (RFC 9002 6.2.2.1). Tests: `driver/tests/address_validation.rs` and the tests of
//! this file.

use crate::core::segment::HEADER_LEN;

/// Bytes out for each byte in (RFC 9000 8.1).
const FACTOR: usize = 3;
/// Pings for which bytes are kept, one a second: without an answer to one the peer is never validated, and
/// acknowledgements would use up all of the allowance.
const PINGS: usize = 10;
/// At most this part of the initial allowance is kept, as divisor.
const KEPT_DIVISOR: usize = 4;

/// The limit of one connection (RFC 9000 8.1). Bytes are UDP payload, cipher and FEC header
/// included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Amplification {
    /// The peer is validated, or this side opened the connection. Entered at construction, and when
    /// the peer is validated, then never left.
    #[default]
    Unlimited,
    /// The peer connected and is not validated. Entered when a connection is accepted.
    Limited {
        /// Bytes received from the address of the peer.
        received: usize,
        /// Bytes sent to that address.
        sent: usize,
        /// Bytes that may be sent even if nothing was received.
        initial_allowance: usize,
    },
}

/// What the anti-amplification limit (RFC 9000 8.1) lets leave to a peer now.
///
/// ```
/// use std::time::Instant;
///
/// use kcpx::KcpConfig;
/// use kcpx::proto::{Kcp, Seed, SendBudget};
///
/// let now = Instant::now();
/// let mut kcp = Kcp::new(7, &KcpConfig::new(), now, Seed::default())?;
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
    /// The peer is unvalidated: a datagram of
    /// [`Kcp::poll_transmit`](crate::proto::Kcp::poll_transmit) has at most this many bytes.
    Bytes(usize),
}

impl Amplification {
    /// The limit of an unvalidated peer. `initial_allowance`: bytes that may be sent even if
    /// nothing was received.
    pub(crate) fn limited(initial_allowance: usize) -> Self {
        Self::Limited { received: 0, sent: 0, initial_allowance }
    }

    /// Whether nothing that the peer sent is acknowledged yet.
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

    /// A datagram leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        if let Self::Limited { sent, .. } = self {
            *sent = sent.saturating_add(bytes);
        }
    }

    /// Bytes that the next KCP datagram may have: `overhead`, the bytes that cipher and FEC header
    /// add to it, is deducted.
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

    /// The same for a datagram that is no lone ping.
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

    /// Whether data segments are retransmitted: to an unvalidated peer none is.
    #[must_use]
    #[inline]
    pub const fn may_retransmit(self) -> bool {
        self.is_unlimited()
    }

    /// Whether MTU probes leave (RFC 8899): the budget of an unvalidated peer is for data and
    /// pings.
    #[must_use]
    #[inline]
    pub const fn may_probe_mtu(self) -> bool {
        self.is_unlimited()
    }

    /// Whether datagrams leave in GSO batches: the budget of an unvalidated peer is checked for
    /// each datagram.
    #[must_use]
    #[inline]
    pub const fn may_batch(self) -> bool {
        self.is_unlimited()
    }

    /// Whether anything beside the datagrams of the connection may leave: duplicates, FEC parity
    /// and out-of-band datagrams.
    #[must_use]
    #[inline]
    pub const fn may_send_extras(self) -> bool {
        self.is_unlimited()
    }

    /// Whether a datagram of `size` bytes may leave.
    #[must_use]
    #[inline]
    pub const fn admits(self, size: usize) -> bool {
        match self {
            Self::Unlimited => true,
            Self::Bytes(bytes) => size <= bytes,
        }
    }

    /// The largest datagram of at most `size` bytes that may leave.
    #[inline]
    pub(crate) fn cap(self, size: usize) -> usize {
        match self {
            Self::Unlimited => size,
            Self::Bytes(bytes) => size.min(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
