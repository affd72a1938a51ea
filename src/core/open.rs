//! Opening a connection: initial segments, conversation ids that a listener assigns, restarts.
//!
//! KCP has no handshake: the first segment of an unknown conversation id opens a connection. A peer
//! that restarts with the same id sends such a segment too, so initial segments are compared
//! ([`OpenedBy`]) and a ping asks the peer for its state ([`RestartCheck`]).

use super::clock::Micros;
use super::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header, Segments};
use super::seq::{Sn, Ts};

/// Longest interval between transmissions of an initial segment without data, microseconds. The
/// first interval is the RTO, each further one doubles (RFC 6298 5.5). 1 s allows a dozen
/// transmissions within the ten seconds of a connect.
const MAX_INITIAL_INTERVAL: u64 = 1_000_000;

/// Transmissions of an initial segment without data before it gets number 0. A kcp-go listener with
/// an old session of this address and port replaces that session only on number 0.
const NUMBERED_TRANSMISSIONS: u8 = 3;

/// How long only stale or invalid `una` arrive before a ping asks the peer, microseconds; three
/// RTOs if that is longer.
const STALE_PEER_TIMEOUT: u64 = 1_000_000;

/// Whether this side has sent anything, and the initial segment without data of `Kcp::open`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Establishment {
    /// Nothing was sent. Entered at construction; left on `Kcp::open`, or when the first datagram
    /// is sent.
    Idle,
    /// The initial segment is sent until the peer answers. Entered on `Kcp::open`; left when a
    /// datagram of the connection arrives or our first data is sent.
    Opening(OpenRequest),
    /// A datagram was sent, and no initial segment is outstanding. Never left.
    Started,
}

/// An initial segment without data: a window probe with a timestamp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRequest {
    /// Random and not 0, so that connections with the same conversation id differ.
    ts: Ts,
    /// When the segment is sent next.
    expires: Micros,
    /// Microseconds from the next transmission to the one after it.
    interval: u64,
    progress: OpenProgress,
    /// A ping of the peer has arrived since the first transmission.
    pinged: bool,
    /// Transmissions so far.
    sent: u8,
    /// Number 0 is allowed, which replaces a session of this address at kcp-go listeners.
    replaces: bool,
}

/// An initial segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitialProbe {
    pub(crate) ts: Ts,
    /// Send it with number 0.
    pub(crate) replaces: bool,
}

/// Whether the initial segment was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenProgress {
    /// Nothing was sent. Entered on `Kcp::open`.
    Queued,
    /// Another datagram was sent before it, for instance a ping. Entered from `Queued`.
    Overtaken,
    /// It is retransmitted. Entered on its first transmission, never left.
    Sent,
}

impl Establishment {
    /// Whether this side has sent a datagram.
    #[inline]
    pub(crate) fn has_started(&self) -> bool {
        match self {
            Self::Idle => false,
            Self::Opening(request) => request.progress != OpenProgress::Queued,
            Self::Started => true,
        }
    }

    /// Queues an initial segment with timestamp `ts` for `at`, unless a datagram was sent already.
    /// `rto` in microseconds.
    pub(crate) fn open(&mut self, at: Micros, ts: Ts, rto: u64) {
        if !self.has_started() {
            let progress = OpenProgress::Queued;
            *self = Self::Opening(OpenRequest {
                ts,
                expires: at,
                interval: rto,
                progress,
                pinged: false,
                sent: 0,
                replaces: true,
            });
        }
    }

    /// Sets whether the initial segment may have number 0.
    pub(crate) fn set_replaces(&mut self, replaces: bool) {
        if let Self::Opening(request) = self {
            request.replaces = replaces;
        }
    }

    /// A datagram is sent.
    #[inline]
    pub(crate) fn on_datagram_sent(&mut self) {
        match self {
            Self::Idle => *self = Self::Started,
            Self::Opening(request) if request.progress == OpenProgress::Queued => {
                request.progress = OpenProgress::Overtaken;
            }
            Self::Opening(_) | Self::Started => {}
        }
    }

    /// Our first data is sent, or the peer has answered: the initial segment is no longer needed.
    /// Returns whether it was outstanding.
    #[inline]
    pub(crate) fn cancel_initial(&mut self) -> bool {
        let Self::Opening(_) = self else { return false };
        *self = if self.has_started() { Self::Started } else { Self::Idle };
        true
    }

    /// Whether an initial segment is due.
    pub(crate) fn is_due(&self, now: Micros) -> bool {
        matches!(self, Self::Opening(request) if now >= request.expires)
    }

    /// The initial segment to send now, if one is due.
    pub(crate) fn poll_initial(&mut self, now: Micros) -> Option<InitialProbe> {
        let Self::Opening(request) = self else { return None };
        if now < request.expires {
            return None;
        }
        request.expires = now.add_micros(request.interval);
        request.interval = (2 * request.interval).min(MAX_INITIAL_INTERVAL);
        request.progress = OpenProgress::Sent;
        let replaces = request.replaces && request.sent >= NUMBERED_TRANSMISSIONS;
        request.sent = request.sent.saturating_add(1);
        Some(InitialProbe { ts: request.ts, replaces })
    }

    /// Whether an initial segment with timestamp `ts` was sent and is outstanding.
    pub(crate) fn is_initial(&self, ts: Ts) -> bool {
        matches!(self, Self::Opening(request)
            if request.progress == OpenProgress::Sent && request.ts == ts)
    }

    /// Whether an initial segment is outstanding or queued.
    pub(crate) fn is_initial_outstanding(&self) -> bool {
        matches!(self, Self::Opening(_))
    }

    /// A ping of the peer arrived, perhaps a Retry: once, the initial segment is sent again after
    /// the pong.
    pub(crate) fn on_ping(&mut self, now: Micros) {
        if let Self::Opening(request) = self
            && request.progress == OpenProgress::Sent
            && !request.pinged
        {
            (request.pinged, request.expires) = (true, now);
        }
    }

    /// The network has changed: an initial segment without an answer is sent again at once.
    pub(crate) fn on_network_changed(&mut self, now: Micros) {
        if let Self::Opening(request) = self {
            request.expires = now;
        }
    }

    /// Sends a queued initial segment now.
    pub(crate) fn expedite(&mut self, now: Micros) {
        if let Self::Opening(request) = self
            && request.progress != OpenProgress::Sent
        {
            request.expires = now;
        }
    }

    /// Whether an initial segment was sent and is unanswered.
    pub(crate) fn awaits_answer(&self) -> bool {
        matches!(self, Self::Opening(request) if request.progress == OpenProgress::Sent)
    }

    /// When the initial segment is sent next.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        match self {
            Self::Opening(request) => Some(request.expires),
            Self::Idle | Self::Started => None,
        }
    }
}

/// The peer's state as its datagrams show it: two independent facts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerState {
    freshness: Freshness,
    restart: RestartCheck,
    /// `None` before data arrived.
    process: Option<PeerProcess>,
}

/// The process that has sent the latest data. Its timestamps count from a random epoch. Timestamps of another
/// process at the same address are hours away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PeerProcess {
    /// Timestamp of the data minus its arrival, milliseconds.
    epoch: Ts,
    /// Whether it had received data. If not, another process has the same `una`.
    has_received: bool,
    /// Only a FIN came of it, which may be forged.
    sent_fin_alone: bool,
}

impl PeerProcess {
    /// The process that has sent a segment with `ts` and `una`, which arrived at `now`.
    #[expect(clippy::cast_possible_truncation, reason = "timestamps wrap by design")]
    fn of(now: Micros, ts: Ts, una: Sn) -> Self {
        let epoch = Ts(ts.0.wrapping_sub((now.0 / 1_000) as u32));
        Self { epoch, has_received: una != Sn(0), sent_fin_alone: false }
    }

    fn is(self, other: Self) -> bool {
        let distance = self.epoch.since(other.epoch).unsigned_abs();
        distance < MAX_EPOCH_DISTANCE || (self.has_received && other.has_received)
    }
}

/// Milliseconds between the epochs of two segments of one process: their delays, the drift of clocks, and the time
/// for which a host was suspended. Another process is nearer once in 600 times.
const MAX_EPOCH_DISTANCE: u32 = 3_600_000;

/// Whether the peer's `una` is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// No datagram arrived. Entered at construction; left on the first datagram.
    Unheard,
    /// Entered on the first datagram and on each current `una`; left on a datagram without one.
    Current,
    /// Since this time every `una` was below an earlier one or beyond SND.NXT: the path delivers
    /// old datagrams, or the peer has lost its state. Left on a current `una`.
    StaleSince(Micros),
}

/// Whether the peer has restarted at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestartCheck {
    /// No restart is suspected. Entered at construction, and when the peer shows the state of this
    /// connection; left on a different initial segment.
    Idle,
    /// A different initial segment arrived and a ping was sent. Left on a pong, or when the peer
    /// shows the state.
    PingSent,
    /// The pong does not show the state of this connection. The next different initial segment ends
    /// the connection. Left when the peer shows the state.
    PongReceived,
}

/// Meaning of a different initial segment from the peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Send a ping.
    Suspected,
    /// The peer has restarted.
    Confirmed,
}

impl PeerState {
    pub(crate) fn new() -> Self {
        Self { freshness: Freshness::Unheard, restart: RestartCheck::Idle, process: None }
    }

    /// The process that has sent the data before, if a segment with `ts` and `una` comes from another one.
    fn other_process(&self, now: Micros, ts: Ts, una: Sn) -> Option<PeerProcess> {
        self.process.filter(|known| !known.is(PeerProcess::of(now, ts, una)))
    }

    /// Whether a segment with `ts` and `una` comes from another process than the data before.
    pub(crate) fn is_another_process(&self, now: Micros, ts: Ts, una: Sn) -> bool {
        self.other_process(now, ts, una).is_some_and(|known| !known.sent_fin_alone)
    }

    /// A FIN with `ts` and `una` arrived.
    pub(crate) fn on_fin(&mut self, now: Micros, ts: Ts, una: Sn) {
        let process = PeerProcess { sent_fin_alone: true, ..PeerProcess::of(now, ts, una) };
        self.process.get_or_insert(process);
    }

    /// Whether the FIN before data with `ts` and `una` came from another process, or was forged.
    pub(crate) fn contradicts_fin(&self, now: Micros, ts: Ts, una: Sn) -> bool {
        self.other_process(now, ts, una).is_some_and(|known| known.sent_fin_alone)
    }

    /// Data with `ts` and `una` arrived.
    #[inline]
    pub(crate) fn on_data(&mut self, now: Micros, ts: Ts, una: Sn) {
        self.process = Some(PeerProcess::of(now, ts, una));
    }

    /// A datagram arrived, or FEC recovered it.
    #[inline]
    pub(crate) fn on_received(&mut self) {
        if self.freshness == Freshness::Unheard {
            self.freshness = Freshness::Current;
        }
    }

    /// Whether any datagram arrived.
    pub(crate) fn has_received(&self) -> bool {
        self.freshness != Freshness::Unheard
    }

    /// A datagram arrived from the network, not from FEC. `is_current`: one of its segments has a
    /// current `una`. Returns whether to send a ping: only the pong can end the connection, so
    /// replayed datagrams cannot (core/tests/peer_restart.rs). `rto` in microseconds.
    #[inline]
    pub(crate) fn on_una(&mut self, now: Micros, is_current: bool, rto: impl Fn() -> u64) -> bool {
        if is_current {
            self.freshness = Freshness::Current;
            return false;
        }
        let since = match self.freshness {
            Freshness::StaleSince(since) => since,
            Freshness::Unheard | Freshness::Current => now,
        };
        self.freshness = Freshness::StaleSince(since);
        now.since(since) >= STALE_PEER_TIMEOUT.max(3 * rto())
    }

    /// A valid ACK, new data in order, or a pong with the state of this connection arrived: the
    /// peer has not restarted.
    #[inline]
    pub(crate) fn on_state_shown(&mut self) {
        self.restart = RestartCheck::Idle;
    }

    /// A pong arrived.
    pub(crate) fn on_pong(&mut self) {
        if self.restart != RestartCheck::Idle {
            self.restart = RestartCheck::PongReceived;
        }
    }

    /// Whether a different initial segment arrived since the peer last showed its state.
    pub(crate) fn is_restart_suspected(&self) -> bool {
        self.restart != RestartCheck::Idle
    }

    /// A different initial segment arrived from the peer's address.
    pub(crate) fn on_other_initial(&mut self) -> Restart {
        if self.restart == RestartCheck::PongReceived {
            return Restart::Confirmed;
        }
        self.restart = RestartCheck::PingSent;
        Restart::Suspected
    }
}

/// The first segment of a connection, like a QUIC Initial (RFC 9000 17.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InitialSegment<'a> {
    /// Payload of the first data segment.
    Data(&'a [u8]),
    /// Timestamp of a window probe that opens a connection without data; not 0.
    WindowProbe(Ts),
}

impl<'a> InitialSegment<'a> {
    /// The initial segment at the start of `datagram`: PUSH number 0 with `una` 0, or a window
    /// probe with [`CONTROL_CAPABLE`], `una` 0 and a timestamp other than 0.
    pub(crate) fn parse(datagram: &'a [u8]) -> Option<Self> {
        let header = Header::parse(datagram).ok().filter(|header| header.una == Sn(0))?;
        match header.command {
            Command::Push if header.sn == Sn(0) => {
                let len = usize::try_from(header.len).ok()?;
                datagram.get(HEADER_LEN..)?.get(..len).map(Self::Data)
            }
            Command::WindowProbe if header.frg == CONTROL_CAPABLE && header.len == 0 => {
                // Window probes of an open connection have timestamp 0.
                Some(Self::WindowProbe(header.ts)).filter(|_| header.ts != Ts(0))
            }
            _ => None,
        }
    }

    /// The rest of `datagram` from its first initial segment with data on.
    pub(crate) fn find_datagram(datagram: &'a [u8]) -> Option<&'a [u8]> {
        let mut at = 0;
        for (_, payload) in Segments::new(datagram) {
            let rest = datagram.get(at..)?;
            if let Some(Self::Data(_)) = Self::parse(rest) {
                return Some(rest);
            }
            at += HEADER_LEN + payload.len();
        }
        None
    }

    /// PUSH number 0, at any position in `datagram`.
    pub(crate) fn find_data(datagram: &'a [u8]) -> Option<Self> {
        let mut segments = Segments::new(datagram);
        let (_, payload) =
            segments.find(|(header, _)| header.command == Command::Push && header.sn == Sn(0))?;
        Some(Self::Data(payload))
    }

    /// The hash to store for this segment. The caller computes `hash` with a random key, so that a
    /// peer cannot produce collisions.
    pub(crate) fn hashed(self, hash: u64) -> InitialHash {
        match self {
            Self::Data(_) => InitialHash::Data(hash),
            Self::WindowProbe(_) => InitialHash::WindowProbe(hash),
        }
    }
}

/// The hash of an [`InitialSegment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InitialHash {
    Data(u64),
    WindowProbe(u64),
}

/// Hashes of the initial segments of a connection; none if this side opened it. A segment with one
/// of these hashes is a duplicate, not a restart of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenedBy {
    data: Option<u64>,
    window_probe: Option<u64>,
}

impl OpenedBy {
    /// A connection that the peer opened with `initial`.
    pub(crate) fn by(initial: InitialHash) -> Self {
        match initial {
            InitialHash::Data(hash) => Self { data: Some(hash), window_probe: None },
            InitialHash::WindowProbe(hash) => Self { data: None, window_probe: Some(hash) },
        }
    }

    /// Adds the second initial segment: data after a window probe (later data replaces it until one
    /// is accepted), or a window probe that arrives after the first data.
    pub(crate) fn add(&mut self, initial: InitialHash) {
        match initial {
            InitialHash::Data(hash) => self.data = Some(hash),
            InitialHash::WindowProbe(hash) => self.window_probe = Some(hash),
        }
    }

    /// Whether `initial` may be the connection's window probe, overtaken by its first data.
    pub(crate) fn was_overtaken(&self, initial: InitialHash) -> bool {
        matches!(initial, InitialHash::WindowProbe(_))
            && self.data.is_some()
            && self.window_probe.is_none()
    }

    /// Whether `initial` is a known initial segment of the connection.
    pub(crate) fn contains(&self, initial: InitialHash) -> bool {
        match initial {
            InitialHash::Data(hash) => self.data == Some(hash),
            InitialHash::WindowProbe(hash) => self.window_probe == Some(hash),
        }
    }

    /// Whether the peer opened with a window probe and its first data is still to come: none
    /// arrived, or none was `taken`.
    pub(crate) fn awaits_data(&self, taken: bool) -> bool {
        self.window_probe.is_some() && (self.data.is_none() || !taken)
    }

    /// Whether the peer opened the connection without data.
    pub(crate) fn is_without_data(&self) -> bool {
        self.window_probe.is_some()
    }

    /// Whether the peer opened the connection.
    pub(crate) fn is_by_peer(&self) -> bool {
        self.data.is_some() || self.window_probe.is_some()
    }
}

/// Rewrites a valid datagram with conversation id 0, with which clients of tokio_kcp request an id
/// from the listener. The new id is the low half of `hash`, a keyed hash of the sender's address
/// and the initial segment: a retransmission gets the same id, and the id is as hard to guess as a
/// random one.
#[expect(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
pub(crate) fn assign_conv(datagram: &[u8], hash: u64) -> Vec<u8> {
    let conv = (hash as u32).max(1);
    let mut assigned = Vec::with_capacity(datagram.len());
    for (header, payload) in Segments::new(datagram) {
        Header { conv, ..header }.emit(&mut assigned);
        assigned.extend_from_slice(payload);
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: u64 = 200_000;

    fn segment(command: Command, frg: u8, sn: u32, ts: u32) -> Vec<u8> {
        let (sn, ts, una) = (Sn(sn), Ts(ts), Sn(0));
        let mut datagram = Vec::new();
        Header { conv: 0, command, frg, wnd: 128, ts, sn, una, len: 0 }.emit(&mut datagram);
        datagram
    }

    /// Rule: W-154.
    #[test]
    fn initial_segment_is_retransmitted_with_doubled_gaps_until_answered() {
        let mut state = Establishment::Idle;
        state.open(Micros(7), Ts(5), RTO);
        assert!(!state.has_started() && !state.awaits_answer());
        assert_eq!((state.deadline(), state.poll_initial(Micros(6))), (Some(Micros(7)), None));
        let (mut now, mut gaps) = (Micros(7), Vec::new());
        for _ in 0..7 {
            let replaces = gaps.len() >= 3;
            assert_eq!(state.poll_initial(now), Some(InitialProbe { ts: Ts(5), replaces }));
            state.on_datagram_sent();
            assert_eq!(state.poll_initial(now), None);
            let at = state.deadline().unwrap();
            gaps.push(at.since(now) / RTO);
            now = at;
        }
        assert_eq!(gaps, [1, 2, 4, 5, 5, 5, 5]);
        state.open(now, Ts(6), RTO);
        state.set_replaces(false);
        let again = Some(InitialProbe { ts: Ts(5), replaces: false });
        assert_eq!(state.poll_initial(now), again, "open has no effect once started");
        assert!(state.cancel_initial() && state.has_started() && !state.cancel_initial());
        assert_eq!((state.poll_initial(now), state.deadline()), (None, None));
    }

    #[test]
    fn initial_segment_overtaken_by_another_datagram_still_leaves() {
        let mut state = Establishment::Idle;
        state.open(Micros(0), Ts(5), RTO);
        state.on_datagram_sent();
        assert!(state.has_started() && !state.awaits_answer());
        assert_eq!(state.poll_initial(Micros(0)).map(|probe| probe.ts), Some(Ts(5)));
        assert!(state.awaits_answer());
    }

    #[test]
    fn initial_segment_canceled_before_anything_left_has_not_started() {
        let mut state = Establishment::Idle;
        state.open(Micros(0), Ts(5), RTO);
        assert!(state.cancel_initial() && !state.has_started());
        state.on_datagram_sent();
        assert!(state.has_started());
    }

    #[test]
    fn initial_segment_is_sent_again_once_when_a_ping_arrives() {
        let mut state = Establishment::Idle;
        state.open(Micros(7), Ts(5), RTO);
        state.on_ping(Micros(0));
        assert_eq!(state.poll_initial(Micros(0)), None, "the first one has not left");
        assert!(state.poll_initial(Micros(7)).is_some());
        state.on_ping(Micros(9));
        let again = Some(InitialProbe { ts: Ts(5), replaces: false });
        assert_eq!((state.deadline(), state.poll_initial(Micros(9))), (Some(Micros(9)), again));
        state.on_ping(Micros(10));
        assert_eq!(state.poll_initial(Micros(10)), None);
    }

    #[test]
    fn datagram_that_fec_recovered_shows_that_the_peer_is_there() {
        let mut peer = PeerState::new();
        assert!(!peer.has_received());
        peer.on_received();
        assert!(peer.has_received());
    }

    #[test]
    fn restart_is_confirmed_by_an_initial_segment_after_a_pong_without_state() {
        let mut peer = PeerState::new();
        peer.on_pong();
        assert_eq!(peer.on_other_initial(), Restart::Suspected);
        assert_eq!(peer.on_other_initial(), Restart::Suspected);
        peer.on_pong();
        peer.on_state_shown();
        assert_eq!(peer.on_other_initial(), Restart::Suspected);
        peer.on_pong();
        assert_eq!(peer.on_other_initial(), Restart::Confirmed);
    }

    #[test]
    fn stale_una_for_a_second_draws_a_ping() {
        let mut peer = PeerState::new();
        assert!(!peer.has_received());
        let mut on_una = |ms: u64, is_current| {
            peer.on_received();
            peer.on_una(Micros(ms * 1_000), is_current, || RTO)
        };
        assert!(!on_una(0, false) && !on_una(999, false) && on_una(1_000, false));
        assert!(on_una(1_001, false), "until a current datagram arrives");
        assert!(!on_una(1_500, true) && !on_una(1_600, false) && !on_una(2_599, false));
        assert!(on_una(2_600, false));
        assert!(peer.has_received());
    }

    #[test]
    fn initial_segment_is_parsed_from_the_first_segment_alone() {
        let push = segment(Command::Push, 0, 0, 5);
        assert_eq!(InitialSegment::parse(&push), Some(InitialSegment::Data(b"")));
        let probe = segment(Command::WindowProbe, CONTROL_CAPABLE, 9, 5);
        assert_eq!(InitialSegment::parse(&probe), Some(InitialSegment::WindowProbe(Ts(5))));
        let replacing = segment(Command::WindowProbe, CONTROL_CAPABLE, 0, 5);
        assert_eq!(InitialSegment::parse(&replacing), Some(InitialSegment::WindowProbe(Ts(5))));
        for other in [
            segment(Command::WindowProbe, CONTROL_CAPABLE, 9, 0),
            segment(Command::WindowProbe, 0, 9, 5),
            segment(Command::Push, 0, 1, 5),
            segment(Command::Ack, CONTROL_CAPABLE, 0, 5),
        ] {
            assert_eq!(InitialSegment::parse(&other), None);
        }
        let both = [probe, push].concat();
        assert_eq!(InitialSegment::find_data(&both), Some(InitialSegment::Data(b"")));
    }

    #[test]
    fn assigned_conv_is_in_every_segment_and_never_zero() {
        let datagram = [segment(Command::Push, 0, 0, 5), segment(Command::Ack, 0, 3, 5)].concat();
        for (hash, conv) in [(0xFFFF_FFFF_0000_0007, 7), (1 << 32, 1)] {
            let assigned = assign_conv(&datagram, hash);
            let expected = Segments::new(&datagram).map(|(header, _)| Header { conv, ..header });
            assert!(Segments::new(&assigned).map(|(header, _)| header).eq(expected));
        }
    }
}
