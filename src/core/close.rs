//! States of graceful close (FIN) and reset (RST, RFC 9293 3.5.2), their retransmission, and when RST
//! is required.
//!
//! KCP has no end of stream and no reset. Peers that advertise [`CONTROL_CAPABLE`] exchange CONTROL
//! segments, each in a datagram of its own, with the meaning of RFC 9293 3.6 and 3.5.2 (bytes:
//! docs/wire.md). Deviations: FIN takes no sequence number, because `una` counts data segments alone,
//! and FIN-ACK acknowledges it; RST is retransmitted until RST-ACK.
//!
//! A RST is valid only with number and timestamp of a recent segment of its receiver. Any other RST
//! draws a ping, like the challenge ACK of RFC 5961 3.2; the next RST can name that ping.

use crate::core::clock::Micros;
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, Header};
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// A FIN is valid up to this many segments beyond RCV.NXT: no receive window is larger.
const MAX_FIN_DISTANCE: u32 = u16::MAX as u32;

/// A CONTROL segment to send. Its `conv`, `wnd` and `una` are filled in as for every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlSegment {
    pub(crate) kind: ControlType,
    pub(crate) sn: Sn,
    pub(crate) ts: Ts,
}

/// Whether the peer supports FIN and RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlSupport {
    /// `close_notify` is off: CONTROL segments are neither sent nor acted on. Entered at
    /// construction, never left.
    Disabled,
    /// The peer has not shown yet whether it supports CONTROL. Entered at construction; left on the
    /// first ACK, window probe or window update, or on a ping with [`CONTROL_CAPABLE`].
    Unknown,
    /// The peer does not support CONTROL: another implementation, or `close_notify` is off there.
    /// Entered from `Unknown` on an ACK, window probe or window update without [`CONTROL_CAPABLE`];
    /// left on an ACK, window probe, window update or ping with [`CONTROL_CAPABLE`].
    Unsupported,
    /// The peer supports CONTROL. Entered on an ACK, window probe, window update or ping with
    /// [`CONTROL_CAPABLE`], never left.
    Supported,
}

/// Our half of the stream (RFC 9293 3.3.2: ESTABLISHED, FIN-WAIT-1, FIN-WAIT-2).
#[derive(Clone, Copy, Debug)]
enum SendClose {
    /// The application may write. Entered at construction; left on [`CloseState::close`].
    Open,
    /// FIN was not sent yet. Entered on [`CloseState::close`]; left when FIN is sent, after the
    /// first transmission of the last segment. Never left unless the peer is
    /// [`ControlSupport::Supported`].
    FinQueued,
    /// FIN is retransmitted. Entered when FIN is sent; left on FIN-ACK.
    FinSent { fin: LocalFin, timer: RetransmitTimer },
    /// The peer has every byte and our FIN. Entered on FIN-ACK, never left.
    FinAcked { fin: LocalFin },
}

/// The peer's half of the stream (RFC 9293 3.3.2: ESTABLISHED, CLOSE-WAIT).
#[derive(Clone, Copy, Debug)]
enum RecvClose {
    /// No valid FIN. Entered at construction, and from `FinReceived` when data at or beyond the FIN
    /// arrives; left on FIN.
    Open,
    /// Data before the FIN is missing. Entered on FIN, also from itself; left for `Complete` when
    /// RCV.NXT reaches `sn`, for `Open` when data contradicts the FIN.
    FinReceived { sn: Sn, ts: Ts },
    /// All data of the peer has arrived. Entered when RCV.NXT reaches the `sn` of the FIN, never
    /// left. Invariant: `sn` is RCV.NXT.
    Complete { sn: Sn },
}

/// Whether the application reads (`std::net::Shutdown::Read`).
#[derive(Clone, Copy, Debug)]
enum ReadSide {
    /// Entered at construction; left on [`CloseState::shutdown_read`].
    Reading,
    /// New data of a peer that supports CONTROL is dropped without an ACK and answered with RST
    /// (RFC 9293 3.6.1); new data of any other peer is acknowledged. Entered on
    /// [`CloseState::shutdown_read`], never left. `discarded`: data was dropped without an ACK.
    Discarding { discarded: bool },
}

/// State of both directions, and the CONTROL segments that are due.
#[derive(Debug)]
pub(crate) struct CloseState {
    control: ControlSupport,
    send: SendClose,
    recv: RecvClose,
    reset: ResetState,
    read: ReadSide,
    /// FIN-ACK, RST-ACK, or RST of [`Self::refuse`] that the next datagram carries.
    reply: Option<ControlSegment>,
    /// Number and timestamp of the peer's latest PUSH, which our RST copies.
    last_push: Option<(Sn, Ts)>,
}

/// Whether the peer supports CONTROL segments.
impl CloseState {
    pub(crate) fn new(close_notify: bool) -> Self {
        Self {
            control: if close_notify { ControlSupport::Unknown } else { ControlSupport::Disabled },
            send: SendClose::Open,
            recv: RecvClose::Open,
            reset: ResetState::Idle,
            read: ReadSide::Reading,
            reply: None,
            last_push: None,
        }
    }

    /// `frg` of our ACKs, window probes, window updates and pings.
    pub(crate) fn capability(&self) -> u8 {
        if self.control == ControlSupport::Disabled { 0 } else { CONTROL_CAPABLE }
    }

    /// Whether the peer has advertised [`CONTROL_CAPABLE`].
    pub(crate) fn peer_supports_control(&self) -> bool {
        self.control == ControlSupport::Supported
    }

    /// Whether the peer is known not to support CONTROL.
    pub(crate) fn peer_lacks_control(&self) -> bool {
        self.control == ControlSupport::Unsupported
    }

    /// Learns the CONTROL capability from the `frg` of a segment. `is_ping`: the segment is an
    /// empty PUSH far behind RCV.NXT, the only kind of PUSH with a free `frg`.
    pub(crate) fn on_capability(&mut self, header: &Header, is_ping: bool) {
        let advertises = header.frg == CONTROL_CAPABLE;
        match (self.control, header.command) {
            // Their `frg` has another meaning.
            (ControlSupport::Disabled, _) | (_, Command::Control | Command::Repair) => {}
            (_, Command::Push) if !is_ping => {}
            _ if advertises => self.control = ControlSupport::Supported,
            (
                ControlSupport::Unknown,
                Command::Ack | Command::WindowProbe | Command::WindowUpdate,
            ) => {
                self.control = ControlSupport::Unsupported;
                self.reset.cancel();
            }
            _ => {}
        }
    }

    /// Whether a ping has to find out if the peer supports FIN.
    pub(crate) fn needs_capability_ping(&self) -> bool {
        self.is_closing() && self.control == ControlSupport::Unknown
    }
}

/// FIN of this side.
impl CloseState {
    /// The application writes no more: FIN is due after the queued data.
    pub(crate) fn close(&mut self) {
        if let SendClose::Open = self.send {
            self.send = SendClose::FinQueued;
        }
    }

    /// Whether [`Self::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        !matches!(self.send, SendClose::Open)
    }

    /// Whether FIN has to be sent or retransmitted, now or later.
    fn owes_fin(&self) -> bool {
        matches!(self.send, SendClose::FinQueued | SendClose::FinSent { .. })
            && self.peer_supports_control()
    }

    /// Whether our FIN is acknowledged, or cannot be sent.
    pub(crate) fn is_fin_complete(&self) -> bool {
        matches!(self.send, SendClose::FinAcked { .. })
            || matches!(self.control, ControlSupport::Disabled | ControlSupport::Unsupported)
    }

    /// Whether FIN was sent and FIN-ACK has not arrived.
    pub(crate) fn awaits_fin_ack(&self) -> bool {
        matches!(self.send, SendClose::FinSent { .. })
    }

    /// When FIN is retransmitted.
    pub(crate) fn fin_deadline(&self) -> Option<Micros> {
        match self.send {
            SendClose::FinSent { timer, .. } => Some(timer.expires),
            _ => None,
        }
    }

    /// Whether FIN is due, once every segment was sent.
    pub(crate) fn fin_is_due(&self, now: Micros) -> bool {
        self.owes_fin() && self.fin_deadline().is_none_or(|at| now >= at)
    }

    /// The FIN to send now, if due. `sn` is SND.NXT, `ts` the timestamp of `now`; `rto` in
    /// microseconds.
    pub(crate) fn poll_fin(
        &mut self,
        now: Micros,
        sn: Sn,
        ts: Ts,
        rto: u64,
    ) -> Option<ControlSegment> {
        if !self.fin_is_due(now) {
            return None;
        }
        let (first_ts, previous) = match self.send {
            SendClose::FinSent { fin, timer } => (fin.first_ts_at(ts), Some(timer)),
            _ => (ts, None),
        };
        self.send = SendClose::FinSent {
            fin: LocalFin { sn, first_ts, last_ts: ts },
            timer: RetransmitTimer::restart(previous, now, rto),
        };
        Some(ControlSegment { kind: ControlType::Fin, sn, ts })
    }

    /// Whether this side has sent a FIN with `sn` and `ts`.
    pub(crate) fn is_own_fin(&self, sn: Sn, ts: Ts) -> bool {
        match self.send {
            SendClose::FinSent { fin, .. } | SendClose::FinAcked { fin } => fin.matches(sn, ts),
            SendClose::Open | SendClose::FinQueued => false,
        }
    }

    /// A FIN-ACK arrived. Returns whether it names our FIN.
    pub(crate) fn on_fin_ack(&mut self, sn: Sn, ts: Ts) -> bool {
        let (SendClose::FinSent { fin, .. } | SendClose::FinAcked { fin }) = self.send else {
            return false;
        };
        if !fin.matches(sn, ts) {
            return false;
        }
        self.send = SendClose::FinAcked { fin };
        self.reset.on_peer_unaware();
        true
    }
}

/// FIN of the peer, and data after `shutdown_read`.
impl CloseState {
    /// A FIN arrived, with a valid `una`; `nxt` is RCV.NXT. Returns whether the FIN is valid.
    pub(crate) fn on_fin(&mut self, sn: Sn, ts: Ts, nxt: Sn) -> bool {
        let in_window = sn.offset_from(nxt).is_some_and(|ahead| ahead <= MAX_FIN_DISTANCE);
        // A FIN that has not taken effect may be forged: the peer's own FIN replaces it.
        let agrees = match self.recv {
            RecvClose::Open | RecvClose::FinReceived { .. } => true,
            RecvClose::Complete { sn: known } => known == sn,
        };
        // Our own FIN, reflected, passes the other checks if both streams have the same length.
        if !in_window || !agrees || self.is_own_fin(sn, ts) {
            return false;
        }
        self.recv = RecvClose::FinReceived { sn, ts };
        self.on_in_order(nxt);
        true
    }

    /// RCV.NXT is now `nxt`. At the `sn` of the FIN the peer's stream is complete and FIN-ACK is
    /// due.
    pub(crate) fn on_in_order(&mut self, nxt: Sn) {
        if let RecvClose::FinReceived { sn, ts } = self.recv
            && sn == nxt
        {
            self.recv = RecvClose::Complete { sn };
            self.reply = Some(ControlSegment { kind: ControlType::FinAck, sn, ts });
        }
    }

    /// The FIN that waits for data came from another process than the data.
    pub(crate) fn forget_fin(&mut self) {
        if let RecvClose::FinReceived { .. } = self.recv {
            self.recv = RecvClose::Open;
        }
    }

    /// Whether no FIN of the peer has arrived and the application reads.
    pub(crate) fn is_receiving(&self) -> bool {
        matches!((self.recv, self.read), (RecvClose::Open, ReadSide::Reading))
    }

    /// Whether data with number `sn` is beyond the end of the peer's stream. Before the stream is
    /// complete such data contradicts the FIN, and the FIN is forgotten.
    pub(crate) fn is_beyond_fin(&mut self, sn: Sn) -> bool {
        match self.recv {
            RecvClose::Complete { sn: end } => sn.since(end) >= 0,
            RecvClose::FinReceived { sn: end, .. } if sn.since(end) >= 0 => {
                self.recv = RecvClose::Open;
                false
            }
            RecvClose::Open | RecvClose::FinReceived { .. } => false,
        }
    }

    /// Whether the peer's stream is complete.
    pub(crate) fn is_recv_complete(&self) -> bool {
        matches!(self.recv, RecvClose::Complete { .. })
    }

    /// The application reads no more.
    pub(crate) fn shutdown_read(&mut self) {
        if let ReadSide::Reading = self.read {
            self.read = ReadSide::Discarding { discarded: false };
        }
    }

    /// Whether data was dropped without an ACK after [`Self::shutdown_read`].
    pub(crate) fn has_discarded_data(&self) -> bool {
        matches!(self.read, ReadSide::Discarding { discarded: true })
    }

    /// Whether to drop data with number `sn` without an ACK: the read side is shut down, the data
    /// is new, and the peer supports RST. `nxt` is RCV.NXT. Duplicates are acknowledged.
    pub(crate) fn discards(&mut self, sn: Sn, nxt: Sn) -> bool {
        let discards = self.peer_supports_control() && sn.since(nxt) >= 0;
        let ReadSide::Discarding { discarded } = &mut self.read else { return false };
        *discarded |= discards;
        discards
    }
}

/// RST, and when it is required.
impl CloseState {
    /// Whether RST may be sent: the peer supports CONTROL, or that is unknown.
    pub(crate) fn may_send_reset(&self) -> bool {
        matches!(self.control, ControlSupport::Unknown | ControlSupport::Supported)
    }

    /// Whether RST is required when the connection ends with `reason`, because the peer may believe
    /// that it is open. `peer_has_closed`: the peer's stream is complete and was read.
    pub(crate) fn must_send_reset(&self, reason: ConnectionError, peer_has_closed: bool) -> bool {
        match reason {
            ConnectionError::Aborted
            | ConnectionError::EndpointClosed
            | ConnectionError::ProtocolViolation
            | ConnectionError::RuntimeShutdown => true,
            // Written data is lost, and the peer knows of no end.
            ConnectionError::LingerTimeout => self.peer_supports_control(),
            // The peer has every byte, but waits for more while FIN is unacknowledged.
            ConnectionError::Closed => {
                (self.has_discarded_data() && !peer_has_closed) || self.owes_fin()
            }
            _ => false,
        }
    }

    /// Whether the connection must stay to answer further data with RST: the peer supports RST, has
    /// not ended its stream, and no data was dropped yet. `peer_has_closed` as in
    /// [`Self::must_send_reset`].
    pub(crate) fn awaits_peer_data(&self, peer_has_closed: bool) -> bool {
        self.peer_supports_control() && !peer_has_closed && !self.has_discarded_data()
    }

    /// State of RST, ours or the peer's.
    pub(crate) fn reset(&self) -> &ResetState {
        &self.reset
    }

    /// As [`Self::reset`], to start, cancel or expire our RST.
    pub(crate) fn reset_mut(&mut self) -> &mut ResetState {
        &mut self.reset
    }

    /// When RST is sent next, or its lifetime ends. `Micros(0)`: RST is due.
    pub(crate) fn reset_deadline(&self) -> Option<Micros> {
        let (until, next) = self.reset.until().zip(self.reset.next_transmission())?;
        Some(if self.peer_supports_control() { next.min(until) } else { until })
    }

    /// The RST to send now, if one is due. `rto` is in microseconds.
    pub(crate) fn poll_reset(&mut self, now: Micros, rto: u64) -> Option<ControlSegment> {
        if !self.peer_supports_control() || !self.reset.poll(now, rto) {
            return None;
        }
        // Without a PUSH of the peer the RST is invalid: the peer answers with a ping, and the next
        // RST names that ping.
        let (sn, ts) = self.last_push.unwrap_or_default();
        Some(ControlSegment { kind: ControlType::Reset, sn, ts })
    }

    /// Number and timestamp of the peer's latest PUSH, which our RST echoes.
    pub(crate) fn last_push(&self) -> Option<(Sn, Ts)> {
        self.last_push
    }

    /// A data segment or a ping arrived: our RST names it, and is sent at once if the peer is being
    /// reset.
    pub(crate) fn on_push(&mut self, sn: Sn, ts: Ts) {
        self.last_push = Some((sn, ts));
        self.reset.on_peer_unaware();
    }

    /// A valid RST arrived: RST-ACK is due.
    pub(crate) fn on_reset(&mut self, reset: &Header) {
        self.reset.on_received(reset.wnd == ALL_READ);
        let (sn, ts) = (reset.sn, reset.ts);
        self.reply = Some(ControlSegment { kind: ControlType::ResetAck, sn, ts });
    }

    /// Whether the peer's RST interrupts only future writes of this side: the peer has read
    /// everything, and its stream is complete.
    pub(crate) fn was_reset_orderly(&self) -> bool {
        self.reset.is_orderly() && self.is_recv_complete()
    }

    /// RST is due, once, for a segment of a connection that is not this one.
    pub(crate) fn refuse(&mut self, segment: &Header) {
        if self.peer_supports_control() {
            let (sn, ts) = (segment.sn, segment.ts);
            self.reply.get_or_insert(ControlSegment { kind: ControlType::Reset, sn, ts });
        }
    }

    /// A RST-ACK arrived. Returns whether it names our RST.
    pub(crate) fn on_reset_ack(&mut self, sn: Sn, ts: Ts) -> bool {
        let valid = self.last_push == Some((sn, ts));
        if valid {
            self.reset.on_ack();
        }
        valid
    }
}

/// Replies, due in any state.
impl CloseState {
    /// Whether CONTROL segments of the peer are acted on.
    pub(crate) fn is_enabled(&self) -> bool {
        self.control != ControlSupport::Disabled
    }

    /// Whether a reply is due. `withholds`: nothing is acknowledged, so FIN-ACK waits.
    pub(crate) fn has_reply(&self, withholds: bool) -> bool {
        self.reply.is_some_and(|reply| !(withholds && reply.kind == ControlType::FinAck))
    }

    /// The reply to send now, if one is due; `withholds` as in [`Self::has_reply`].
    pub(crate) fn poll_reply(&mut self, withholds: bool) -> Option<ControlSegment> {
        if self.has_reply(withholds) { self.reply.take() } else { None }
    }

    /// Asserts the invariants of the states; `nxt` is RCV.NXT.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self, nxt: Sn) {
        if let RecvClose::Complete { sn } = self.recv {
            assert_eq!(sn, nxt, "no data arrives behind the end of the stream");
        }
        if let SendClose::FinSent { .. } | SendClose::FinAcked { .. } = self.send {
            assert!(self.peer_supports_control(), "FIN leaves to peers that support it");
        }
    }
}

/// Our FIN, with the timestamps of its first and latest transmission.
#[derive(Clone, Copy, Debug)]
struct LocalFin {
    sn: Sn,
    first_ts: Ts,
    last_ts: Ts,
}

/// How long transmissions of a FIN are remembered without an answer, milliseconds: 12 days. Timestamps compare within
/// 2^31 ms, and a FIN of the peer with a timestamp in between counts as a reflection.
const FIN_MEMORY: i32 = 1 << 30;

impl LocalFin {
    /// Whether one of its transmissions had `sn` and `ts`.
    fn matches(&self, sn: Sn, ts: Ts) -> bool {
        self.sn == sn && ts.is_within(self.first_ts, self.last_ts)
    }

    /// The first transmission that an answer may name after one more at `ts`: older ones than [`FIN_MEMORY`] are
    /// forgotten.
    fn first_ts_at(&self, ts: Ts) -> Ts {
        let firsts = [self.first_ts, self.last_ts];
        let is_recent = |first: &Ts| (0..FIN_MEMORY).contains(&ts.since(*first));
        firsts.into_iter().find(is_recent).unwrap_or(ts)
    }
}

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

    fn segment(command: Command, frg: u8) -> Header {
        let (sn, ts, una) = (Sn(0), Ts(0), Sn(0));
        Header { conv: 1, command, frg, wnd: 128, ts, sn, una, len: 0 }
    }

    fn supported() -> CloseState {
        let mut state = CloseState::new(true);
        state.on_capability(&segment(Command::Ack, CONTROL_CAPABLE), false);
        state
    }

    /// Rules: W-13, P-1.
    #[test]
    fn control_capability_is_learned_from_free_frg_fields_alone() {
        for (command, frg, is_ping, supported, complete) in [
            (Command::Ack, CONTROL_CAPABLE, false, true, false),
            (Command::WindowUpdate, 0, false, false, true),
            (Command::Push, CONTROL_CAPABLE, true, true, false),
            (Command::Push, CONTROL_CAPABLE, false, false, false),
            (Command::Push, 0, true, false, false),
            (Command::Control, CONTROL_CAPABLE, false, false, false),
            (Command::Repair, CONTROL_CAPABLE, false, false, false),
        ] {
            let mut state = CloseState::new(true);
            state.on_capability(&segment(command, frg), is_ping);
            assert_eq!(state.peer_supports_control(), supported, "{command:?} {frg}");
            assert_eq!(state.is_fin_complete(), complete, "{command:?} {frg}");
        }
        let mut disabled = CloseState::new(false);
        disabled.on_capability(&segment(Command::Ack, CONTROL_CAPABLE), false);
        assert!(!disabled.peer_supports_control() && disabled.capability() == 0);
    }

    #[test]
    fn fin_waits_for_a_capability_that_comes_late() {
        let mut state = CloseState::new(true);
        state.close();
        assert!(state.needs_capability_ping());
        state.on_capability(&segment(Command::Ack, 0), false);
        assert!(state.is_fin_complete() && !state.needs_capability_ping());
        assert_eq!(state.poll_fin(Micros(0), Sn(1), Ts(0), RTO), None);
        state.on_capability(&segment(Command::Ack, CONTROL_CAPABLE), false);
        state.on_capability(&segment(Command::Ack, 0), false);
        assert!(state.poll_fin(Micros(0), Sn(1), Ts(0), RTO).is_some());
    }

    #[test]
    fn fin_that_has_not_taken_effect_is_replaced_by_the_next() {
        let mut state = supported();
        assert!(state.on_fin(Sn(60_000), Ts(1), Sn(5)), "forged, far ahead");
        assert!(state.on_fin(Sn(7), Ts(2), Sn(5)));
        state.on_in_order(Sn(7));
        assert!(state.is_recv_complete());
        assert!(!state.on_fin(Sn(60_000), Ts(1), Sn(7)) && state.on_fin(Sn(7), Ts(3), Sn(7)));
    }

    /// Rule: W-60.
    #[test]
    fn fin_is_retransmitted_with_doubled_gaps_until_fin_ack() {
        let mut state = supported();
        state.close();
        let mut gaps = Vec::new();
        let mut now = Micros(0);
        for ts in 0..5 {
            assert_eq!(state.poll_fin(now, Sn(7), Ts(ts), RTO).map(|fin| fin.ts), Some(Ts(ts)));
            assert_eq!(state.poll_fin(now, Sn(7), Ts(ts), RTO), None);
            let at = state.fin_deadline().unwrap();
            gaps.push(at.since(now));
            now = at;
        }
        assert_eq!(gaps, [RTO, 2 * RTO, 4 * RTO, MAX_CONTROL_INTERVAL, MAX_CONTROL_INTERVAL]);
        assert!(!state.on_fin_ack(Sn(7), Ts(5)) && !state.on_fin_ack(Sn(6), Ts(0)));
        assert!(state.on_fin_ack(Sn(7), Ts(2)), "a FIN-ACK of any transmission counts");
        assert_eq!((state.fin_deadline(), state.is_fin_complete()), (None, true));
        assert!(state.is_own_fin(Sn(7), Ts(4)), "a late reflection is still recognised");
    }

    #[test]
    fn reset_after_a_fin_leaves_at_once_and_starts_its_own_gaps() {
        let mut state = supported();
        state.close();
        for second in 0..3 {
            state.poll_fin(Micros(second * 1_000_000), Sn(7), Ts(0), RTO).unwrap();
        }
        state.on_push(Sn(3), Ts(9));
        let now = Micros(2_000_001);
        state.reset_mut().start(now);
        assert_eq!(state.reset_deadline(), Some(Micros(0)));
        let rst = ControlSegment { kind: ControlType::Reset, sn: Sn(3), ts: Ts(9) };
        assert_eq!(state.poll_reset(now, RTO), Some(rst));
        assert_eq!(state.reset_deadline(), Some(now.add_micros(RTO)));
        assert_eq!(state.poll_reset(now, RTO), None);
        // Data of the peer shows that the RST was lost.
        state.on_push(Sn(4), Ts(10));
        assert_eq!(state.poll_reset(now, RTO).map(|rst| rst.sn), Some(Sn(4)));
    }

    /// Rule: W-54.
    #[test]
    fn fin_ack_shows_that_the_reset_did_not_arrive() {
        let mut state = supported();
        state.on_push(Sn(3), Ts(9));
        state.close();
        state.poll_fin(Micros(0), Sn(7), Ts(0), RTO).unwrap();
        state.reset_mut().start(Micros(0));
        assert!(state.poll_reset(Micros(0), RTO).is_some());
        assert!(state.poll_reset(Micros(0), RTO).is_none());
        assert!(!state.on_fin_ack(Sn(6), Ts(0)) && state.poll_reset(Micros(0), RTO).is_none());
        assert!(state.on_fin_ack(Sn(7), Ts(0)));
        assert!(state.poll_reset(Micros(0), RTO).is_some());
    }

    #[test]
    fn reset_ends_on_rst_ack_and_after_its_lifetime() {
        let mut state = supported();
        state.on_push(Sn(3), Ts(9));
        state.reset_mut().start(Micros(0));
        assert!(!state.on_reset_ack(Sn(3), Ts(8)) && state.on_reset_ack(Sn(3), Ts(9)));
        assert_eq!(state.reset().until(), None);
        state.reset_mut().start(Micros(5));
        state.reset_mut().expire(Micros(RESET_LIFETIME + 4));
        assert_eq!(state.reset().until(), Some(Micros(RESET_LIFETIME + 5)));
        assert_eq!(state.poll_reset(Micros(RESET_LIFETIME + 5), RTO), None);
        state.reset_mut().expire(Micros(RESET_LIFETIME + 5));
        assert_eq!((state.reset().until(), state.reset_deadline()), (None, None));
    }

    /// Rule: W-67.
    #[test]
    fn reset_is_required_while_the_peer_waits_for_data_or_fin() {
        let (linger, closed) = (ConnectionError::LingerTimeout, ConnectionError::Closed);
        let mut state = CloseState::new(true);
        assert!(!state.must_send_reset(linger, false), "a RST could not be sent");
        state = supported();
        assert!(state.must_send_reset(linger, true) && !state.must_send_reset(closed, false));
        state.close();
        assert!(state.must_send_reset(closed, true), "the FIN has not left");
        state.poll_fin(Micros(0), Sn(7), Ts(0), RTO).unwrap();
        assert!(state.must_send_reset(closed, true), "it may have been lost");
        assert!(state.on_fin_ack(Sn(7), Ts(0)));
        assert!(!state.must_send_reset(closed, true) && !state.must_send_reset(closed, false));
    }

    /// Rule: W-70.
    #[test]
    fn reset_behind_a_complete_stream_says_that_everything_was_read() {
        for (fin, wnd, orderly) in
            [(true, ALL_READ, true), (true, 0, false), (false, ALL_READ, false)]
        {
            let mut state = supported();
            assert!(!fin || state.on_fin(Sn(2), Ts(0), Sn(2)));
            let frg = ControlType::Reset as u8;
            state.on_reset(&Header { wnd, ..segment(Command::Control, frg) });
            assert_eq!(state.was_reset_orderly(), orderly, "{fin} {wnd}");
        }
    }

    #[test]
    fn peer_without_control_is_sent_no_reset() {
        let mut state = CloseState::new(true);
        assert!(state.may_send_reset());
        state.reset_mut().start(Micros(0));
        assert_eq!(state.poll_reset(Micros(0), RTO), None, "nothing shows that the peer takes it");
        state.on_capability(&segment(Command::Ack, 0), false);
        assert!(!state.may_send_reset() && state.reset().until().is_none());
    }

    /// Rules: W-61, W-62.
    #[test]
    fn fin_counts_once_everything_before_it_has_arrived() {
        let mut state = supported();
        assert!(!state.on_fin(Sn(1), Ts(0), Sn(2)), "behind RCV.NXT");
        assert!(!state.on_fin(Sn(2 + MAX_FIN_DISTANCE + 1), Ts(0), Sn(2)), "beyond any window");
        assert!(state.on_fin(Sn(4), Ts(0), Sn(2)));
        state.on_in_order(Sn(3));
        assert!(
            !state.has_reply(false) && !state.is_recv_complete() && !state.is_beyond_fin(Sn(3))
        );
        state.on_in_order(Sn(4));
        let ack = ControlSegment { kind: ControlType::FinAck, sn: Sn(4), ts: Ts(0) };
        assert_eq!((state.poll_reply(false), state.is_recv_complete()), (Some(ack), true));
        assert!(state.is_beyond_fin(Sn(4)) && !state.is_beyond_fin(Sn(3)));
        assert!(!state.on_fin(Sn(5), Ts(0), Sn(4)), "contradicts the one that has taken effect");
        assert!(state.on_fin(Sn(4), Ts(6), Sn(4)), "the FIN-ACK was lost");
        assert_eq!(state.poll_reply(false), Some(ControlSegment { ts: Ts(6), ..ack }));
    }

    /// Rule: W-63.
    #[test]
    fn fin_that_data_contradicts_is_taken_back() {
        let mut state = supported();
        assert!(state.on_fin(Sn(4), Ts(0), Sn(2)));
        assert!(!state.is_beyond_fin(Sn(5)), "the data is taken");
        state.on_in_order(Sn(4));
        assert!(!state.is_recv_complete() && !state.has_reply(false));
    }

    #[test]
    fn read_shutdown_discards_new_data_of_a_peer_that_can_be_reset() {
        let mut state = CloseState::new(true);
        assert!(!state.discards(Sn(5), Sn(5)));
        state.shutdown_read();
        assert!(!state.discards(Sn(5), Sn(5)) && !state.has_discarded_data());
        state.on_capability(&segment(Command::Ack, CONTROL_CAPABLE), false);
        assert!(!state.discards(Sn(4), Sn(5)), "a duplicate");
        assert!(state.awaits_peer_data(false) && !state.awaits_peer_data(true));
        assert!(!state.must_send_reset(ConnectionError::Closed, false));
        assert!(state.discards(Sn(5), Sn(5)) && state.has_discarded_data());
        state.shutdown_read();
        assert!(state.has_discarded_data() && !state.awaits_peer_data(false));
        assert!(state.must_send_reset(ConnectionError::Closed, false));
        assert!(!state.must_send_reset(ConnectionError::Closed, true));
    }

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
