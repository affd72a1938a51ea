//! A RST of an endpoint that does not know the connection (as the Stateless Reset of RFC 9000 10.3).
//!
//! The endpoint echoes a ping or an initial segment, and has nothing else to say: `una` and `wnd` are 0.
//! With one key for all, anybody can have such a RST made: by a copy of a ping, sent to another endpoint
//! of the same key, and pass it on. So it is only believed if the peer then shows no sign of life for one
//! more round trip, in which it is asked again.

use super::clock::Micros;
use super::segment::{Command, ControlType, HEADER_LEN, Header};
use super::seq::Sn;
use crate::error::ConnectionError;

/// Shortest time in which the peer may contradict a RST without state, microseconds; an RTO if that is
/// longer.
const MIN_PENDING: u64 = 100_000;

/// What an endpoint answers to `header`, a ping or an initial segment of a connection that it does not
/// know, or will not take.
pub(crate) fn stateless_reset(header: &Header) -> Header {
    let frg = ControlType::Reset as u8;
    Header { command: Command::Control, frg, wnd: 0, una: Sn(0), len: 0, ..*header }
}

/// The RST without state that `datagram` consists of; `None` if it is anything else.
pub(crate) fn parse(datagram: &[u8]) -> Option<Header> {
    let header = Header::parse(datagram).ok().filter(|_| datagram.len() == HEADER_LEN)?;
    let is_reset = header.command == Command::Control
        && ControlType::from_frg(header.frg) == Some(ControlType::Reset);
    (is_reset && (header.una, header.wnd) == (Sn(0), 0)).then_some(header)
}

/// Whether the peer is said not to know the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnconfirmedReset {
    /// Entered at construction, and on a sign of life of the peer; left on a RST without state.
    #[default]
    None,
    /// The peer's endpoint answered a ping with a RST without state. The connection ends at that time
    /// with `Reset`. Left on a sign of life.
    Forgotten(Micros),
    /// It answered the initial segment so. The connection ends at that time with `Refused`. Left on any
    /// other datagram of the peer.
    Refused(Micros),
}

impl UnconfirmedReset {
    /// The endpoint has answered a ping so. `rto` is in microseconds. Returns whether that is news, so
    /// that the peer is to be asked once more.
    pub(crate) fn on_ping_reset(&mut self, now: Micros, rto: u64) -> bool {
        let is_news = *self == Self::None;
        if is_news {
            *self = Self::Forgotten(now.add_micros(rto.max(MIN_PENDING)));
        }
        is_news
    }

    /// The endpoint has answered the initial segment so.
    pub(crate) fn on_initial_reset(&mut self, now: Micros, rto: u64) {
        if *self == Self::None {
            *self = Self::Refused(now.add_micros(rto.max(MIN_PENDING)));
        }
    }

    /// Another datagram of the peer arrived. `is_new`: with something new, a sign of life.
    #[inline]
    pub(crate) fn on_received(&mut self, is_new: bool) {
        if is_new || matches!(self, Self::Refused(_)) {
            *self = Self::None;
        }
    }

    /// When the connection ends.
    pub(crate) fn deadline(self) -> Option<Micros> {
        match self {
            Self::None => None,
            Self::Forgotten(at) | Self::Refused(at) => Some(at),
        }
    }

    /// Why the connection ends now, if it does.
    pub(crate) fn end(self, now: Micros) -> Option<ConnectionError> {
        match self {
            Self::Forgotten(at) if now >= at => Some(ConnectionError::Reset),
            Self::Refused(at) if now >= at => Some(ConnectionError::Refused),
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
        assert!(pending.on_ping_reset(Micros(5), 30_000) && !pending.on_ping_reset(Micros(6), 0));
        assert_eq!(pending.deadline(), Some(Micros(5 + MIN_PENDING)));
        pending.on_received(false);
        assert_eq!(pending.end(Micros(4 + MIN_PENDING)), None);
        assert_eq!(pending.end(Micros(5 + MIN_PENDING)), Some(ConnectionError::Reset));
        pending.on_received(true);
        assert_eq!((pending.deadline(), pending.end(Micros(u64::MAX))), (None, None));
        pending.on_initial_reset(Micros(5), 400_000);
        assert_eq!(pending.end(Micros(400_005)), Some(ConnectionError::Refused));
        pending.on_received(false);
        assert_eq!(pending, UnconfirmedReset::None);
    }
}
