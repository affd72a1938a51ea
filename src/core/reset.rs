//! Reset of a connection (RST, RFC 9293 3.5.2): its lifetime, and the retransmission timer of RST
//! and FIN.

use super::clock::Micros;

/// Longest interval between transmissions of a FIN or a RST, microseconds. The first interval is
/// the RTO, each further one doubles (RFC 6298 5.5). Deviates: 1 s, where RFC 6298 2.5 demands at
/// least 60 s.
pub(crate) const MAX_CONTROL_INTERVAL: u64 = 1_000_000;

/// How long a RST is retransmitted, and how old the segment it names may be, microseconds.
pub(crate) const RESET_LIFETIME: u64 = 10_000_000;

/// `wnd` of a RST after its receiver acknowledged our FIN and everything from it was read. No other
/// RST has this value.
pub(crate) const ALL_READ: u16 = u16::MAX;

/// Retransmission timer of a FIN or a RST.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetransmitTimer {
    pub(crate) expires: Micros,
    /// Microseconds between the latest transmission and `expires`.
    interval: u64,
}

impl RetransmitTimer {
    /// The timer after a transmission at `now`: doubles the interval of the `previous` timer. The
    /// first interval is `rto` microseconds.
    pub(crate) fn restart(previous: Option<Self>, now: Micros, rto: u64) -> Self {
        let interval = previous.map_or(rto, |timer| 2 * timer.interval).min(MAX_CONTROL_INTERVAL);
        Self { expires: now.add_micros(interval), interval }
    }
}

/// Our RST, or the peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResetState {
    /// No RST was sent or received. Entered at construction and on [`Self::cancel`]; left on
    /// [`Self::start`] or a valid RST.
    Idle,
    /// RST is retransmitted until `until`. `timer` is `None` while RST is due. Entered on
    /// [`Self::start`] from any other state, with `timer` `None`; left on a valid RST-ACK, a valid
    /// RST, [`Self::cancel`] or at `until`.
    Sending { until: Micros, timer: Option<RetransmitTimer> },
    /// Our RST arrived. Entered on RST-ACK; left on [`Self::start`] or a valid RST.
    Acked,
    /// No RST-ACK arrived within [`RESET_LIFETIME`]. Entered at `until`; left on [`Self::start`] or
    /// a valid RST.
    Expired,
    /// The peer has reset the connection. Entered on a valid RST; left on [`Self::start`].
    /// `orderly`: a RST had [`ALL_READ`].
    Received { orderly: bool },
}

impl ResetState {
    /// Starts to send RST. No effect while RST is being sent: the lifetime stays.
    pub(crate) fn start(&mut self, now: Micros) {
        if self.until().is_none() {
            *self = Self::Sending { until: now.add_micros(RESET_LIFETIME), timer: None };
        }
    }

    /// Stops sending RST.
    pub(crate) fn cancel(&mut self) {
        if self.until().is_some() {
            *self = Self::Idle;
        }
    }

    /// When the lifetime of our RST ends; `None` unless RST is being sent.
    pub(crate) fn until(&self) -> Option<Micros> {
        match self {
            Self::Sending { until, .. } => Some(*until),
            Self::Idle | Self::Acked | Self::Expired | Self::Received { .. } => None,
        }
    }

    /// When RST is sent next; `None` unless RST is being sent. `Micros(0)`: RST is due.
    pub(crate) fn next_transmission(&self) -> Option<Micros> {
        match self {
            Self::Sending { timer, .. } => Some(timer.map_or(Micros(0), |timer| timer.expires)),
            Self::Idle | Self::Acked | Self::Expired | Self::Received { .. } => None,
        }
    }

    /// Stops sending RST if its lifetime has ended at `now`.
    pub(crate) fn expire(&mut self, now: Micros) {
        if self.until().is_some_and(|until| now >= until) {
            *self = Self::Expired;
        }
    }

    /// Whether RST is due; if so, restarts the timer. `rto` in microseconds.
    pub(crate) fn poll(&mut self, now: Micros, rto: u64) -> bool {
        let Self::Sending { until, timer } = self else { return false };
        let is_due = now < *until && timer.is_none_or(|timer| now >= timer.expires);
        if is_due {
            *timer = Some(RetransmitTimer::restart(*timer, now, rto));
        }
        is_due
    }

    /// A segment shows that our RST did not arrive: RST is due.
    pub(crate) fn on_peer_unaware(&mut self) {
        if let Self::Sending { timer, .. } = self {
            *timer = None;
        }
    }

    /// A valid RST-ACK arrived.
    pub(crate) fn on_ack(&mut self) {
        if self.until().is_some() {
            *self = Self::Acked;
        }
    }

    /// A valid RST arrived; `orderly`: with [`ALL_READ`].
    pub(crate) fn on_received(&mut self, orderly: bool) {
        *self = Self::Received { orderly: orderly || self.is_orderly() };
    }

    /// Whether the peer has reset the connection after it read everything.
    pub(crate) fn is_orderly(&self) -> bool {
        matches!(self, Self::Received { orderly: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: u64 = 200_000;

    #[test]
    fn reset_is_retransmitted_with_doubled_gaps_until_its_lifetime_is_over() {
        let mut state = ResetState::Idle;
        assert!(!state.poll(Micros(0), RTO));
        state.start(Micros(0));
        let (mut now, mut sent) = (Micros(0), 0);
        while now < Micros(RESET_LIFETIME) {
            assert!(state.poll(now, RTO) && !state.poll(now, RTO));
            let next = state.next_transmission().unwrap();
            assert!(next.since(now) <= MAX_CONTROL_INTERVAL);
            (now, sent) = (next, sent + 1);
        }
        // At 0, 0.2, 0.6 and 1.4 s, then each second.
        assert_eq!(sent, 12);
        assert!(!state.poll(now, RTO));
        state.start(now);
        assert_eq!(state.until(), Some(Micros(RESET_LIFETIME)), "start does not prolong it");
        state.expire(now);
        assert!(matches!(state, ResetState::Expired));
    }

    #[test]
    fn reset_that_starts_again_has_no_timer() {
        for ended in
            [ResetState::Acked, ResetState::Expired, ResetState::Received { orderly: true }]
        {
            let mut state = ended;
            state.on_peer_unaware();
            state.on_ack();
            state.cancel();
            assert_eq!((state.until(), state.next_transmission()), (None, None));
            state.start(Micros(5));
            assert_eq!(state.next_transmission(), Some(Micros(0)));
            assert!(state.poll(Micros(5), RTO));
        }
    }
}
