//! A RST of an endpoint that does not know the connection (as the Stateless Reset of RFC 9000 10.3).
//!
//! The endpoint echoes a ping or an initial segment, and has nothing else to say: `una` and `wnd` are 0.
//! With one key for all, anybody can have such a RST made: by a copy of a ping, sent to another endpoint
//! of the same key, and pass it on. So it is only believed if the peer then answers none of a few more
//! pings, so that a lost datagram or two do not make up for the peer's answer.

use super::clock::Micros;
use super::segment::{Command, ControlType, HEADER_LEN, Header};
use super::seq::Sn;
use crate::error::ConnectionError;

/// Shortest time from one ping to the next, microseconds; an RTO if that is longer. An outage has to last
/// four times as long to hide all [`PINGS`] from the peer.
const MIN_PING_INTERVAL: u64 = 200_000;
/// Shortest time in which the peer may answer the last ping, microseconds; an RTO if that is longer.
const MIN_PONG_TIME: u64 = 100_000;
/// Pings to a peer that is said not to know the connection. With a tenth of the datagrams lost, the ping
/// before them and these all stay unanswered once in 20,000 times.
const PINGS: u8 = 5;
/// Time in which the peer may answer the initial segment, microseconds: the RTO without a sample (RFC 6298
/// 2.1).
const INITIAL_ANSWER_TIME: u64 = 1_000_000;

/// What an endpoint answers to `header`, a ping or an initial segment of a connection that it does not
/// know, or will not take.
pub(crate) fn stateless_reset(header: &Header) -> Header {
    let frg = ControlType::Reset as u8;
    Header { command: Command::Control, frg, wnd: 0, una: Sn(0), len: 0, ..*header }
}

/// The RST without state that `datagram` consists of; `None` if it is anything else.
pub(crate) fn parse(datagram: &[u8]) -> Option<Header> {
    if datagram.len() != HEADER_LEN {
        return None;
    }
    let header = Header::parse(datagram).ok()?;
    let is_reset = header.command == Command::Control
        && ControlType::from_frg(header.frg) == Some(ControlType::Reset);
    (is_reset && (header.una, header.wnd) == (Sn(0), 0)).then_some(header)
}

/// Whether the peer is said not to know the connection. Allocated while it is: few connections ever are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UnconfirmedReset(Option<Box<Pending>>);

/// What the peer's endpoint has answered with a RST without state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// A ping, or the peer has sent a RST that names an old segment: the connection may be half-open (RFC
    /// 9293 3.5.1). From `at` on a ping is due, if
    /// `pings` more are to leave, or else the connection ends with `Reset`. Left on a sign of life of the
    /// peer.
    HalfOpen { at: Micros, pings: u8 },
    /// The initial segment. The connection ends at that time with `Refused`. Left on any other datagram
    /// of the peer.
    Refused(Micros),
}

impl UnconfirmedReset {
    fn enter(&mut self, pending: Pending) {
        self.0.get_or_insert_with(|| Box::new(pending));
    }

    /// The endpoint has answered a ping so, or a RST names an old segment. Another ping is due at `at`.
    pub(crate) fn on_ping_reset(&mut self, at: Micros) {
        self.enter(Pending::HalfOpen { at, pings: PINGS });
    }

    /// Whether another ping is due.
    pub(crate) fn is_ping_due(&self, now: Micros) -> bool {
        matches!(self.0.as_deref(), Some(Pending::HalfOpen { at, pings: 1.. }) if now >= *at)
    }

    /// A ping leaves. `rto` is in microseconds.
    #[inline]
    pub(crate) fn on_ping_sent(&mut self, now: Micros, rto: u64) {
        if let Some(Pending::HalfOpen { at, pings: pings @ 1.. }) = self.0.as_deref_mut() {
            *pings -= 1;
            let least = if *pings > 0 { MIN_PING_INTERVAL } else { MIN_PONG_TIME };
            *at = now.add_micros(rto.max(least));
        }
    }

    /// The endpoint has answered the initial segment so.
    pub(crate) fn on_initial_reset(&mut self, now: Micros) {
        self.enter(Pending::Refused(now.add_micros(INITIAL_ANSWER_TIME)));
    }

    /// Another datagram of the peer arrived. `is_new`: with something new, a sign of life.
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

    /// Whether the endpoint has refused the connection, and nothing has contradicted it.
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

    #[test]
    fn pending_reset_ends_the_connection_unless_the_peer_shows_life() {
        let mut pending = UnconfirmedReset::default();
        assert!(!pending.is_ping_due(Micros(5)));
        for index in 0..5 {
            let now = Micros(5 + index * 200_000);
            pending.on_ping_reset(now);
            assert_eq!((pending.deadline(), pending.end(now)), (Some(now), None));
            // One that the socket or the rate limit holds back does not count.
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
