//! A RST of an endpoint that does not know the connection (like the Stateless Reset of RFC 9000
//! 10.3).
//!
//! It copies the ping or initial segment that it answers, with `una` and `wnd` 0. Endpoints that
//! share a key would produce the same RST for a copied ping, so it is not proof: it takes effect
//! only if the peer answers none of [`PINGS`] further pings. Several pings, so that a lost pong or
//! two do not end the connection.

use super::clock::Micros;
use super::segment::{Command, ControlType, HEADER_LEN, Header};
use super::seq::Sn;
use crate::error::ConnectionError;

/// Shortest interval between these pings, microseconds; an RTO if that is longer. Only an outage of
/// four intervals hides all [`PINGS`].
const MIN_PING_INTERVAL: u64 = 200_000;
/// Shortest wait for the answer to the last ping, microseconds; an RTO if that is longer.
const MIN_PONG_TIME: u64 = 100_000;
/// Pings to the peer after such a RST. At 10 % loss, these and the ping before them all stay
/// unanswered once in 20,000 times.
const PINGS: u8 = 5;
/// How long the peer may still answer the initial segment, microseconds: the RTO without a sample
/// (RFC 6298 2.1).
const INITIAL_ANSWER_TIME: u64 = 1_000_000;

/// The answer of an endpoint to `header`, a ping or an initial segment of a connection that it does
/// not know or refuses.
pub(crate) fn stateless_reset(header: &Header) -> Header {
    let frg = ControlType::Reset as u8;
    Header { command: Command::Control, frg, wnd: 0, una: Sn(0), len: 0, ..*header }
}

/// The stateless RST, if `datagram` is one and nothing else.
pub(crate) fn parse(datagram: &[u8]) -> Option<Header> {
    if datagram.len() != HEADER_LEN {
        return None;
    }
    let header = Header::parse(datagram).ok()?;
    let is_reset = header.command == Command::Control
        && ControlType::from_frg(header.frg) == Some(ControlType::Reset);
    (is_reset && (header.una, header.wnd) == (Sn(0), 0)).then_some(header)
}

/// A stateless RST that has not taken effect yet. Boxed, since few connections ever receive one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UnconfirmedReset(Option<Box<Pending>>);

/// The segment of ours that a stateless RST answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// A ping; also entered on a RST that names an old segment: the connection may be half-open
    /// (RFC 9293 3.5.1). At `at` the next of `pings` pings is due, or with none left the connection
    /// ends with `Reset`. Left on a sign of life of the peer.
    HalfOpen { at: Micros, pings: u8 },
    /// The initial segment. The connection ends at that time with `Refused`. Left on any other
    /// datagram of the peer.
    Refused(Micros),
}

impl UnconfirmedReset {
    fn enter(&mut self, pending: Pending) {
        self.0.get_or_insert_with(|| Box::new(pending));
    }

    /// A ping was answered with a stateless RST, or a RST names an old segment. The next ping is
    /// due at `at`.
    pub(crate) fn on_ping_reset(&mut self, at: Micros) {
        self.enter(Pending::HalfOpen { at, pings: PINGS });
    }

    /// Whether another ping is due.
    pub(crate) fn is_ping_due(&self, now: Micros) -> bool {
        matches!(self.0.as_deref(), Some(Pending::HalfOpen { at, pings: 1.. }) if now >= *at)
    }

    /// A ping is sent. `rto` in microseconds.
    #[inline]
    pub(crate) fn on_ping_sent(&mut self, now: Micros, rto: u64) {
        if let Some(Pending::HalfOpen { at, pings: pings @ 1.. }) = self.0.as_deref_mut() {
            *pings -= 1;
            let least = if *pings > 0 { MIN_PING_INTERVAL } else { MIN_PONG_TIME };
            *at = now.add_micros(rto.max(least));
        }
    }

    /// The initial segment was answered with a stateless RST.
    pub(crate) fn on_initial_reset(&mut self, now: Micros) {
        self.enter(Pending::Refused(now.add_micros(INITIAL_ANSWER_TIME)));
    }

    /// Another datagram of the peer arrived. `is_new`: it is a sign of life, not a replay.
    #[inline]
    pub(crate) fn on_received(&mut self, is_new: bool) {
        if self.0.as_deref().is_some_and(|pending| is_new || matches!(pending, Pending::Refused(_)))
        {
            self.0 = None;
        }
    }

    /// When the connection ends, or a ping is due.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.0.as_deref().map(|pending| match pending {
            Pending::HalfOpen { at, .. } | Pending::Refused(at) => *at,
        })
    }

    /// Whether the endpoint refused the connection, uncontradicted so far.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.0.as_deref(), Some(Pending::Refused(_)))
    }

    /// Why the connection ends now, if it does.
    pub(crate) fn end(&self, now: Micros) -> Option<ConnectionError> {
        match self.0.as_deref()? {
            Pending::HalfOpen { at, pings: 0 } if now >= *at => Some(ConnectionError::Reset),
            Pending::Refused(at) if now >= *at => Some(ConnectionError::Refused),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::seq::Ts;

    fn ping() -> Header {
        let (sn, ts) = (Sn(0xC000_0000), Ts(77));
        Header { conv: 5, command: Command::Push, frg: 0xA5, wnd: 128, ts, sn, una: Sn(9), len: 0 }
    }

    #[test]
    fn reset_without_state_echoes_a_ping_and_says_nothing_else() {
        let reset = stateless_reset(&ping());
        let mut datagram = Vec::new();
        reset.emit(&mut datagram);
        assert_eq!((datagram.len(), parse(&datagram)), (HEADER_LEN, Some(reset)));
        assert_eq!((reset.conv, reset.sn, reset.ts), (5, Sn(0xC000_0000), Ts(77)));
        for other in [Header { wnd: 1, ..reset }, Header { una: Sn(1), ..reset }, ping()] {
            let mut datagram = Vec::new();
            other.emit(&mut datagram);
            assert_eq!(parse(&datagram), None, "{other:?}");
        }
        let twice = [datagram.clone(), datagram].concat();
        assert_eq!(parse(&twice), None);
    }

    /// Rules: W-89, W-90.
    #[test]
    fn pending_reset_ends_the_connection_unless_the_peer_shows_life() {
        let mut pending = UnconfirmedReset::default();
        assert!(!pending.is_ping_due(Micros(5)));
        for index in 0..5 {
            let now = Micros(5 + index * 200_000);
            pending.on_ping_reset(now);
            assert_eq!((pending.deadline(), pending.end(now)), (Some(now), None));
            // A ping that socket or rate limit hold back does not count.
            assert!(pending.is_ping_due(now) && pending.is_ping_due(now));
            pending.on_ping_sent(now, 30_000);
            assert!(!pending.is_ping_due(now));
        }
        pending.on_received(false);
        let end = Micros(900_005);
        assert_eq!((pending.deadline(), pending.end(Micros(900_004))), (Some(end), None));
        assert!(!pending.is_ping_due(end));
        assert_eq!(pending.end(end), Some(ConnectionError::Reset));
        pending.on_received(true);
        assert_eq!((pending.deadline(), pending.end(Micros(u64::MAX))), (None, None));
        pending.on_initial_reset(Micros(5));
        assert_eq!(pending.end(Micros(1_000_004)), None);
        assert_eq!(pending.end(Micros(1_000_005)), Some(ConnectionError::Refused));
        pending.on_received(false);
        assert_eq!(pending, UnconfirmedReset::default());
    }
}
