//! TIME-WAIT: answers of a connection that has ended (RFC 9293 3.3.2, 3.6.1).
//!
//! The peer may have missed the last ACK, FIN-ACK or RST-ACK, and a late duplicate of its initial
//! segment must not open a new connection. Deviates: lasts [`TIME_WAIT_DURATION`] instead of twice
//! the MSL of two minutes, and both sides enter it.

use std::time::Duration;

use super::close::ALL_READ;
use super::open::{InitialHash, OpenedBy};
use super::segment::{CONTROL_CAPABLE, Command, ControlType, Header, Segments};
use super::seq::Sn;

/// How long an ended connection still answers.
pub(crate) const TIME_WAIT_DURATION: Duration = Duration::from_secs(60);

/// How far before RCV.NXT segments are still acknowledged, and how far beyond SND.UNA `una` may be:
/// no window is larger.
const MAX_WINDOW: u32 = u16::MAX as u32;

/// State of a connection that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    /// Initial segments that belong to the ended connection.
    pub(crate) opened_by: OpenedBy,
    /// RCV.NXT: the next number expected.
    pub(crate) rcv_nxt: Sn,
    /// SND.UNA: the oldest unacknowledged number.
    pub(crate) snd_una: Sn,
    /// Nothing was acknowledged, and nothing is: no application had the connection, or the peer's address
    /// is unproved.
    pub(crate) withheld: bool,
    /// The peer supports CONTROL segments.
    pub(crate) supports_control: bool,
    /// The peer may believe that the connection is open: RST answers new data and pings.
    pub(crate) reset_on_data: bool,
    /// The peer has our FIN, and everything that arrived was read: a RST to a peer without new data
    /// says so ([`ALL_READ`]).
    pub(crate) all_read: bool,
    /// The initial segment with which a restarted peer ended the connection: its retransmission may
    /// open the next one, once.
    pub(crate) successor: Option<InitialHash>,
}

/// Answer to a datagram for a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeWaitOutcome {
    /// The datagram opens another connection under the same conversation id.
    Open(InitialHash),
    /// Send this segment.
    Reply(Header),
    /// No reply.
    Drop,
}

impl TimeWait {
    /// Handles a datagram that passed `validate`. `initial`: the hash of its initial segment, if it
    /// begins with one.
    pub(crate) fn on_datagram(
        &mut self,
        initial: Option<InitialHash>,
        datagram: &[u8],
    ) -> TimeWaitOutcome {
        if let Some(initial) = initial {
            if self.opened_by.was_overtaken(initial) {
                self.opened_by.add(initial);
                return TimeWaitOutcome::Drop;
            }
            // The peer's first data, late: the connection ended after the window probe, before data
            // was accepted.
            let is_first_data = matches!(initial, InitialHash::Data(_))
                && self.opened_by.awaits_data(self.rcv_nxt != Sn(0));
            if !is_first_data && !self.opened_by.contains(initial) {
                // If this side opened the connection, `opened_by` does not have the peer's first
                // data: the segment is a retransmission of acknowledged data.
                let is_by_peer = self.opened_by.is_by_peer();
                return if is_by_peer {
                    TimeWaitOutcome::Open(initial)
                } else {
                    TimeWaitOutcome::Drop
                };
            }
            // A duplicate of the initial segment although later data was acknowledged: the peer has
            // restarted with the same first data. Its retransmission opens a connection after
            // TIME-WAIT.
            if !is_first_data && !self.withheld && self.rcv_nxt != Sn(1) {
                return TimeWaitOutcome::Drop;
            }
        }
        self.reply(datagram).map_or(TimeWaitOutcome::Drop, TimeWaitOutcome::Reply)
    }

    /// The reply: a CONTROL segment if due, else an ACK of the last known PUSH in `datagram`. `wnd`
    /// is 0: nothing more is read.
    fn reply(&self, datagram: &[u8]) -> Option<Header> {
        let (mut duplicate, mut control) = (None, None);
        for (header, _) in Segments::new(datagram) {
            match header.command {
                Command::Push if self.has_received(header.sn) => duplicate = Some(header),
                Command::Push => control = control.or_else(|| self.reset(&header)),
                Command::Control => control = control.or_else(|| self.acknowledge_control(&header)),
                Command::Ack | Command::WindowProbe | Command::WindowUpdate | Command::Repair => {}
            }
        }
        let una = if self.withheld { Sn(0) } else { self.rcv_nxt };
        let reply = |to, command, frg| Header { command, frg, wnd: 0, una, len: 0, ..to };
        match control {
            Some((to, kind)) => {
                let is_orderly = self.all_read && kind == ControlType::Reset && to.len == 0;
                let wnd = if is_orderly { ALL_READ } else { 0 };
                Some(Header { wnd, ..reply(to, Command::Control, kind as u8) })
            }
            None => duplicate.map(|to| reply(to, Command::Ack, 0)),
        }
    }

    fn has_received(&self, sn: Sn) -> bool {
        !self.withheld
            && self.rcv_nxt.offset_from(sn).is_some_and(|age| (1..=MAX_WINDOW).contains(&age))
    }

    /// RST for new data or a ping with a valid `una`, which proves that the sender receives our
    /// segments.
    fn reset(&self, push: &Header) -> Option<(Header, ControlType)> {
        let una_is_valid =
            push.una.offset_from(self.snd_una).is_some_and(|ahead| ahead <= MAX_WINDOW);
        let is_capable_ping = push.len == 0 && push.frg == CONTROL_CAPABLE;
        let supported = self.supports_control || is_capable_ping;
        (supported && self.reset_on_data && una_is_valid).then_some((*push, ControlType::Reset))
    }

    /// FIN-ACK or RST-ACK for a retransmitted FIN or RST of the peer.
    fn acknowledge_control(&self, header: &Header) -> Option<(Header, ControlType)> {
        let acknowledges = match ControlType::from_frg(header.frg)? {
            ControlType::Fin if header.sn == self.rcv_nxt && !self.withheld => ControlType::FinAck,
            ControlType::Reset => ControlType::ResetAck,
            _ => return None,
        };
        self.supports_control.then_some((*header, acknowledges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::seq::Ts;

    const FIRST: InitialHash = InitialHash::Data(1);
    const PROBE: InitialHash = InitialHash::WindowProbe(2);

    /// After 4 segments of the peer; the peer has acknowledged 6 of ours.
    fn ended(opened_by: OpenedBy) -> TimeWait {
        TimeWait {
            opened_by,
            rcv_nxt: Sn(4),
            snd_una: Sn(6),
            withheld: false,
            supports_control: true,
            reset_on_data: true,
            all_read: false,
            successor: None,
        }
    }

    fn segment(command: Command, frg: u8, sn: u32, una: u32) -> Header {
        let (sn, ts, una) = (Sn(sn), Ts(77), Sn(una));
        Header { conv: 9, command, frg, wnd: 128, ts, sn, una, len: 0 }
    }

    fn reply_to(state: &TimeWait, segments: &[Header]) -> Option<Header> {
        let mut datagram = Vec::new();
        segments.iter().for_each(|header| header.emit(&mut datagram));
        match state.clone().on_datagram(None, &datagram) {
            TimeWaitOutcome::Reply(header) => Some(header),
            TimeWaitOutcome::Drop => None,
            TimeWaitOutcome::Open(_) => panic!("no initial segment"),
        }
    }

    /// No application had the connection, so RST answers all data, also that which opened it.
    #[test]
    fn withheld_data_is_reset_and_the_end_not_acknowledged() {
        for rcv_nxt in [0, 1, 4] {
            let mut state =
                TimeWait { rcv_nxt: Sn(rcv_nxt), withheld: true, ..ended(OpenedBy::by(FIRST)) };
            let data = Header { len: 1, ..segment(Command::Push, 0, 0, 6) };
            let mut datagram = Vec::new();
            data.emit(&mut datagram);
            datagram.push(7);
            let TimeWaitOutcome::Reply(reply) = state.on_datagram(Some(FIRST), &datagram) else {
                panic!("no answer to the first data, {rcv_nxt}");
            };
            assert_eq!((reply.command, reply.frg), (Command::Control, ControlType::Reset as u8));
            assert_eq!(reply.una, Sn(0));
            let fin = segment(Command::Control, ControlType::Fin as u8, rcv_nxt, 6);
            assert_eq!(reply_to(&state, &[fin]), None);
        }
    }

    /// Rule: W-94.
    #[test]
    fn time_wait_acknowledges_the_last_duplicate_with_a_closed_window() {
        let push = |sn| segment(Command::Push, 0, sn, 6);
        let reply = reply_to(&ended(OpenedBy::default()), &[push(2), push(3)]).unwrap();
        let ack = Header { wnd: 0, una: Sn(4), ..segment(Command::Ack, 0, 3, 6) };
        assert_eq!(reply, ack);
        let ack = segment(Command::Ack, CONTROL_CAPABLE, 3, 6);
        assert_eq!(reply_to(&ended(OpenedBy::default()), &[ack]), None);
    }

    /// No window is larger. A number further back is no duplicate, and means that the peer does not know of the end.
    #[test]
    fn time_wait_acknowledges_duplicates_of_the_last_65_535_numbers() {
        let state = TimeWait { rcv_nxt: Sn(100), ..ended(OpenedBy::default()) };
        for (back, answer) in [
            (0, Command::Control),
            (1, Command::Ack),
            (65_535, Command::Ack),
            (65_536, Command::Control),
        ] {
            let push = segment(Command::Push, 0, state.rcv_nxt.back(back).0, 6);
            assert_eq!(reply_to(&state, &[push]).unwrap().command, answer, "{back} back");
        }
    }

    /// Rule: W-95.
    #[test]
    fn time_wait_acknowledges_the_last_fin_and_any_reset() {
        let control = |kind: ControlType, sn| segment(Command::Control, kind as u8, sn, 6);
        for (header, kind) in [
            (control(ControlType::Fin, 4), Some(ControlType::FinAck)),
            (control(ControlType::Fin, 5), None),
            (control(ControlType::Reset, 1_000), Some(ControlType::ResetAck)),
            (control(ControlType::FinAck, 4), None),
        ] {
            let state = ended(OpenedBy::default());
            let reply = reply_to(&state, &[segment(Command::Push, 0, 3, 6), header]);
            let expected =
                kind.map(|kind| Header { wnd: 0, una: Sn(4), ..control(kind, header.sn.0) });
            let ack = Header { wnd: 0, una: Sn(4), ..segment(Command::Ack, 0, 3, 6) };
            assert_eq!(reply, Some(expected.unwrap_or(ack)));
            let state = TimeWait { supports_control: false, ..state };
            assert_eq!(reply_to(&state, &[header]), None);
        }
    }

    /// Rules: W-96, W-97.
    #[test]
    fn time_wait_resets_a_peer_that_sends_new_data() {
        let state = ended(OpenedBy::default());
        let push = segment(Command::Push, 0, 4, 6);
        let reset = reply_to(&state, &[push]).unwrap();
        assert_eq!((reset.command, reset.frg), (Command::Control, ControlType::Reset as u8));
        assert_eq!((reset.sn, reset.ts, reset.una, reset.wnd), (Sn(4), Ts(77), Sn(4), 0));
        for una in [5, 6 + MAX_WINDOW + 1] {
            assert_eq!(reply_to(&state, &[segment(Command::Push, 0, 4, una)]), None, "{una}");
        }
        let peer_ended = TimeWait { reset_on_data: false, ..state };
        assert_eq!(reply_to(&peer_ended, &[push]), None);
        // A ping advertises the capability itself.
        let unknown = TimeWait { supports_control: false, ..state };
        let ping = segment(Command::Push, CONTROL_CAPABLE, 1 << 31, 6);
        assert!(reply_to(&unknown, &[ping]).is_some());
        assert_eq!(reply_to(&unknown, &[Header { frg: 0, ..ping }]), None);
    }

    #[test]
    fn time_wait_says_to_a_ping_alone_that_everything_was_read() {
        let state = TimeWait { all_read: true, ..ended(OpenedBy::default()) };
        let ping = segment(Command::Push, CONTROL_CAPABLE, 1 << 31, 6);
        assert_eq!(reply_to(&state, &[ping]).unwrap().wnd, ALL_READ);
        assert_eq!(reply_to(&ended(OpenedBy::default()), &[ping]).unwrap().wnd, 0);
        let (mut datagram, data) = (Vec::new(), segment(Command::Push, 0, 4, 6));
        Header { len: 1, ..data }.emit(&mut datagram);
        datagram.push(7);
        let TimeWaitOutcome::Reply(reset) = state.clone().on_datagram(None, &datagram) else {
            panic!("no RST")
        };
        assert_eq!((reset.frg, reset.wnd), (ControlType::Reset as u8, 0));
    }

    #[test]
    fn initial_segment_in_time_wait_opens_unless_it_is_of_the_ended_connection() {
        let on = |state: &mut TimeWait, initial| state.on_datagram(Some(initial), &[]);
        let other = InitialHash::Data(3);
        let mut by_data = ended(OpenedBy::by(FIRST));
        assert_eq!(on(&mut by_data, FIRST), TimeWaitOutcome::Drop);
        assert_eq!(on(&mut by_data, other), TimeWaitOutcome::Open(other));
        // The window probe of the ended connection, overtaken by its data; then a new window probe.
        assert_eq!(on(&mut by_data, PROBE), TimeWaitOutcome::Drop);
        let next = InitialHash::WindowProbe(4);
        assert_eq!(on(&mut by_data, next), TimeWaitOutcome::Open(next));
        // The first data of a connection that a window probe opened.
        assert_eq!(on(&mut ended(OpenedBy::by(PROBE)), other), TimeWaitOutcome::Drop);
        // The same, not accepted before the end: the reply tells that the connection has ended.
        let mut offered = TimeWait { rcv_nxt: Sn(0), ..ended(OpenedBy::by(PROBE)) };
        offered.opened_by.add(FIRST);
        let (mut datagram, data) = (Vec::new(), segment(Command::Push, 0, 0, 6));
        data.emit(&mut datagram);
        for initial in [FIRST, other] {
            let outcome = offered.on_datagram(Some(initial), &datagram);
            assert!(matches!(outcome, TimeWaitOutcome::Reply(_)), "{outcome:?}");
        }
        // The peer of a connection that this side opened.
        assert_eq!(on(&mut ended(OpenedBy::default()), other), TimeWaitOutcome::Drop);
    }
}
