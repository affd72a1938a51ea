//! Path MTU discovery: DPLPMTUD (RFC 8899) with black hole detection, and datagrams that the
//! operating system rejects (`EMSGSIZE`).
//!
//! A router that drops a datagram for its size reports that by ICMP. If ICMP is filtered, full
//! datagrams disappear while small ones arrive: a black hole (RFC 2923 2.1, RFC 8899 4.3). kcp-go
//! 5.7.3 and later truncate datagrams above [`BASE_PLPMTU`]. [`MtuDiscovery`] starts at the
//! configured size, or at [`BASE_PLPMTU`] if that is smaller. While full segments of the configured
//! size are acknowledged it sends no probe; below that size it probes for more, at once and then
//! once a minute. So no segment exceeds the larger of [`BASE_PLPMTU`] and a size that the peer has
//! acknowledged. After `BLACK_HOLE_THRESHOLD` losses of datagrams above [`MIN_PLPMTU`] without an ACK
//! of one as large, a ping checks that the peer is reachable; its pong allows one padded MTU probe
//! (RFC 8899 4.1).
//! Ping and MTU probe are an empty and a padded PUSH, numbered far before SND.UNA: any KCP
//! implementation treats them as duplicates, skips the payload, and acknowledges number and
//! timestamp. The timestamp is a random cookie, so the ACK proves that a datagram of this size
//! arrived. If pings are answered and MTU probes are not, new segments are cut smaller.
//!
//! Existing segments keep their size: the peer may have received one and its ACK was lost, so its
//! number cannot be reused for other bytes. Until these segments are acknowledged the caller lets
//! routers fragment ([`Oversized`], [`MtuDiscovery::may_fragment`]).
//!
//! Deviations from RFC 8899: up to [`BASE_PLPMTU`] the search starts complete at the configured
//! size, not in BASE (5.2), so a path that carries that size costs no probe; the search walks
//! [`PLPMTU_TABLE`] instead of small steps (5.3.2); probes are sent only while data is in flight.

use crate::core::clock::Micros;
use crate::core::keepalive::{COOKIE_LIFE, PING_DISTANCE, PingId, Role};
use crate::core::segment::HEADER_LEN;
use crate::core::seq::{Sn, Ts};

/// PLPMTU candidates below the configured size, bytes of UDP payload (RFC 8899 5.3.2). 1,200 is the
/// minimum of QUIC (RFC 9000 14) and fits the minimum MTU of IPv6 (RFC 8200 5); 1,000 fits common
/// tunnels inside that MTU; every IPv4 host reassembles 508 (RFC 1122 3.3.2: 576 bytes less the
/// largest IP header and the UDP header).
const PLPMTU_TABLE: [u16; 4] = [BASE_PLPMTU, 1_200, 1_000, MIN_PLPMTU_PAYLOAD];
/// BASE_PLPMTU of RFC 8899 5.1.2, bytes of UDP payload: the largest size used without a probe.
/// Ethernet over IPv4 carries it, and every KCP implementation receives it.
const BASE_PLPMTU: u16 = 1_472;
const MIN_PLPMTU_PAYLOAD: u16 = 508;
/// Bytes of each probed size reserved for cipher and FEC header, which need at most 36: the sizes
/// searched are the same on every connection.
const OVERHEAD_MARGIN: u16 = 40;
/// MIN_PLPMTU of RFC 8899 5.1.2, bytes of a KCP datagram: the last size of the table, never probed.
const MIN_PLPMTU: usize = kcp_size(MIN_PLPMTU_PAYLOAD);
/// MAX_PROBES of RFC 8899 5.1.2: lost MTU probes of one size. In the search downwards a later pong
/// confirms each loss.
const MAX_PROBES: u8 = 3;
/// PROBE_TIMER of RFC 8899 5.1.1, microseconds: shortest interval of MTU probes, and the wait for
/// the ACK of an MTU probe or ping; two RTOs if that is longer. Deviates: 1 s instead of the
/// recommended 15 s.
const PROBE_TIMER: u64 = 1_000_000;
/// PMTU_RAISE_TIMER of RFC 8899 5.1.1, microseconds. Deviates: 60 s instead of 600 s.
const PMTU_RAISE_TIMER: u64 = 60_000_000;
/// Lifetime of a route MTU from an ICMP message, microseconds: longer than in Linux
/// (`net.ipv6.route.mtu_expires`, 10 minutes), which fragments larger probes until then.
const REPORT_LIFE: u64 = 660_000_000;
/// Most doublings of the interval of unanswered pings.
const MAX_PING_BACKOFF: u8 = 3;
/// Smallest sequence number of a probe: a peer that lost its state expects number 0, and would
/// store a probe inside its window.
const MIN_PROBE_SN: u32 = 1 << 16;

/// Bytes of the KCP datagram in a UDP payload of `plpmtu` bytes.
const fn kcp_size(plpmtu: u16) -> usize {
    (plpmtu - OVERHEAD_MARGIN) as usize
}

/// Path MTU discovery of one connection. Sizes are bytes of a KCP datagram unless said otherwise.
#[derive(Debug)]
pub(crate) struct MtuDiscovery {
    /// Upper bound of the UDP payload, bytes: as configured, or lowered by `EMSGSIZE`.
    max_mtu: u16,
    /// Bytes that cipher and FEC header add to the datagram of a first transmission.
    overhead: u16,
    /// Bytes of the FEC header alone, which retransmissions and probes do not have.
    fec_header: u16,
    state: State,
    black_hole_detector: BlackHoleDetector,
    /// `None` until the first probe: most connections never send one.
    last_probes: Option<Box<LastProbes>>,
}

/// A ping or MTU probe to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) sn: Sn,
    pub(crate) cookie: Ts,
    /// Bytes of the KCP datagram; [`HEADER_LEN`] for a ping. An MTU probe is as long as a first
    /// transmission with FEC header.
    pub(crate) size: usize,
}

/// The states of RFC 8899 5.2.
#[derive(Debug)]
enum State {
    /// Nothing to search: the configured size is at most MIN_PLPMTU. Entered and left when the
    /// configured size or the overhead changes.
    Disabled(Option<Box<Reduced>>),
    /// No black hole is suspected. The PLPMTU is the configured size (`None`) or a reduced one; at
    /// construction the smaller of configured size and BASE_PLPMTU. Entered on an acknowledged MTU
    /// probe, on an ACK of a datagram as large as the lost ones in `Base`, and when a raise finds
    /// nothing. Left to `Base` on BLACK_HOLE_THRESHOLD lost datagrams, to `SearchingUp` on `raise_at`
    /// with new data.
    SearchComplete(Option<Box<Reduced>>),
    /// Confirms the peer with pings and the current size with MTU probes (RFC 8899 BASE). Entered
    /// on suspicion of a black hole. Left to `SearchComplete` on an ACK of an MTU probe or of a
    /// datagram as large as the lost ones, to `SearchingDown` or `Error` on MAX_PROBES lost probes.
    Base(Box<Base>),
    /// Probes the next smaller size of the table while segments are cut for MIN_PLPMTU. Entered
    /// on a black hole. Left to `SearchComplete` on an ACK of an MTU probe, to itself with the next
    /// size or to `Error` on MAX_PROBES lost probes.
    SearchingDown(Box<Search>),
    /// Probes the configured size and then smaller ones, MAX_PROBES times each. Entered on `raise_at` with
    /// new data. Left to `SearchComplete` on an ACK, to the state before when no probe is acked, and to
    /// `Base` on BLACK_HOLE_THRESHOLD lost datagrams.
    SearchingUp(Box<Search>),
    /// The PLPMTU is MIN_PLPMTU (RFC 8899 ERROR). Entered when every larger size of the table is
    /// lost. Left to `SearchingUp` on `raise_at` with new data.
    Error(Box<Reduced>),
}

/// Data of `State::Base`; `reduced` as before the suspicion.
#[derive(Debug)]
struct Base {
    probing: Probing,
    reduced: Option<Reduced>,
}

/// Data of `State::SearchingDown` and `State::SearchingUp`.
#[derive(Debug)]
struct Search {
    probing: Probing,
    reduced: Reduced,
}

/// A PLPMTU below the configured size.
#[derive(Clone, Copy, Debug)]
struct Reduced {
    /// Bytes of a KCP datagram.
    plpmtu: usize,
    /// When new data starts a probe of a larger size (PMTU_RAISE_TIMER).
    raise_at: Micros,
}

/// Segments of a connection that exceed the MTU, since they were cut before it fell, and those before them, until all
/// of them are acknowledged. The loss of a datagram above the MTU counts as no black hole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oversized {
    /// The number after the last of them.
    until: Sn,
    /// When SND.UNA last advanced.
    last_progress: Micros,
}

impl Oversized {
    /// All segments below `until`. `before`: the oversized segments so far.
    pub(crate) fn until(now: Micros, until: Sn, before: Option<Self>) -> Self {
        let last_progress = before.map_or(now, |before| before.last_progress);
        Self { until, last_progress }
    }

    /// SND.UNA advanced to `una`. Returns the segments that are left.
    pub(crate) fn on_una(self, now: Micros, una: Sn) -> Option<Self> {
        (self.until.since(una) > 0).then_some(Self { last_progress: now, ..self })
    }

    /// When SND.UNA last advanced.
    pub(crate) fn last_progress(self) -> Micros {
        self.last_progress
    }
}

/// The next step while a size is under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A ping is sent at `Probing::next`.
    PingDue,
    /// A ping waits for its pong and is retransmitted at `Probing::next`.
    PingSent,
    /// An MTU probe is sent at `Probing::next`.
    ProbeDue,
    /// An MTU probe waits for its ACK until `Probing::next` (PROBE_TIMER).
    ProbeSent,
}

/// A size under test. Below the current size pings and MTU probes alternate, so that a loss counts
/// only while the path works.
#[derive(Clone, Copy, Debug)]
struct Probing {
    /// Bytes of a KCP datagram.
    size: usize,
    /// Sequence number of all pings and MTU probes of this size.
    sn: Sn,
    stage: Stage,
    /// Cookie of the MTU probe; retransmissions keep it.
    probe_ts: Option<Ts>,
    /// Pings sent in the latest round.
    ping_count: u8,
    /// True from the timeout of an MTU probe to the pong that confirms its loss.
    probe_timed_out: bool,
    /// Lost MTU probes of this size (PROBE_COUNT of RFC 8899 5.1.3); only confirmed losses in
    /// `Base` and `SearchingDown`.
    probe_count: u8,
    /// When the next ping or MTU probe is sent.
    next: Micros,
}

impl Probing {
    fn new(stage: Stage, size: usize, sn: Sn, next: Micros) -> Self {
        Self {
            size,
            sn,
            stage,
            probe_ts: None,
            ping_count: 0,
            probe_timed_out: false,
            probe_count: 0,
            next,
        }
    }

    /// PROBE_TIMER expired without an ACK of the MTU probe: a ping comes next.
    fn on_probe_timeout(&mut self) {
        if self.stage == Stage::ProbeSent {
            (self.stage, self.probe_timed_out) = (Stage::PingDue, true);
        }
    }
}

/// The latest ping and MTU probe; kept across changes of state.
#[derive(Debug, Default)]
struct LastProbes {
    /// The latest ping, and its time.
    ping: Option<(PingId, Micros)>,
    /// Time of the latest MTU probe.
    mtu_probe_at: Option<Micros>,
}

impl State {
    fn reduced(&self) -> Option<&Reduced> {
        match self {
            Self::Disabled(reduced) | Self::SearchComplete(reduced) => reduced.as_deref(),
            Self::Base(base) => base.reduced.as_ref(),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&search.reduced),
            Self::Error(reduced) => Some(reduced),
        }
    }

    fn reduced_mut(&mut self) -> Option<&mut Reduced> {
        match self {
            Self::Disabled(reduced) | Self::SearchComplete(reduced) => reduced.as_deref_mut(),
            Self::Base(base) => base.reduced.as_mut(),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&mut search.reduced),
            Self::Error(reduced) => Some(reduced),
        }
    }

    fn probing(&self) -> Option<&Probing> {
        match self {
            Self::Base(base) => Some(&base.probing),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&search.probing),
            Self::Disabled(_) | Self::SearchComplete(_) | Self::Error(_) => None,
        }
    }

    fn probing_mut(&mut self) -> Option<&mut Probing> {
        match self {
            Self::Base(base) => Some(&mut base.probing),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&mut search.probing),
            Self::Disabled(_) | Self::SearchComplete(_) | Self::Error(_) => None,
        }
    }
}

/// Losses of datagrams above MIN_PLPMTU, at least one RTO apart and without an ACK of one as large
/// between them, that suggest a black hole (RFC 8899 4.3; quinn and s2n-quic use the same 3).
const BLACK_HOLE_THRESHOLD: u8 = 3;

/// Counts losses of datagrams above MIN_PLPMTU since the last ACK of one as large (RFC 8899 4.3).
#[derive(Debug, Default)]
struct BlackHoleDetector {
    /// Losses since the last reset.
    suspicious_loss_count: u8,
    /// When the latest of them was counted.
    last_loss: Micros,
    /// Largest datagram counted, bytes.
    largest: usize,
}

impl BlackHoleDetector {
    /// Counts the loss of a datagram of `size` bytes; losses within one RTO count once. Returns
    /// whether [`BLACK_HOLE_THRESHOLD`] is reached. `rto` in microseconds.
    fn on_loss(&mut self, now: Micros, size: usize, rto: u64) -> bool {
        if self.suspicious_loss_count > 0 && now.since(self.last_loss) < rto {
            return false;
        }
        (self.suspicious_loss_count, self.last_loss) = (self.suspicious_loss_count + 1, now);
        self.largest = self.largest.max(size);
        self.suspicious_loss_count >= BLACK_HOLE_THRESHOLD
    }

    fn reset(&mut self) {
        (self.suspicious_loss_count, self.largest) = (0, 0);
    }

    /// Whether a loss was counted since the last reset.
    #[inline]
    fn is_suspicious(&self) -> bool {
        self.suspicious_loss_count > 0
    }

    /// Whether an ACK of a datagram of `size` bytes refutes the suspicion: no larger one was lost.
    fn is_refuted_by(&self, size: usize) -> bool {
        size >= self.largest
    }
}

/// Sizes.
impl MtuDiscovery {
    /// `max_mtu`: upper bound of the UDP payload, bytes.
    pub(crate) fn new(max_mtu: u16) -> Self {
        let base = Reduced { plpmtu: kcp_size(BASE_PLPMTU), raise_at: Micros(0) };
        let mut discovery = Self {
            max_mtu,
            overhead: 0,
            fec_header: 0,
            state: State::SearchComplete((max_mtu > BASE_PLPMTU).then(|| Box::new(base))),
            black_hole_detector: BlackHoleDetector::default(),
            last_probes: None,
        };
        discovery.stop_probing();
        discovery
    }

    /// Discovery on another path of the same connection.
    pub(crate) fn with_settings(&self) -> Self {
        let mut discovery = Self::new(self.max_mtu);
        discovery.take_settings(self);
        discovery
    }

    /// Takes over what the caller adds to datagrams. The largest size is one of the path: the system may have
    /// lowered it.
    pub(crate) fn take_settings(&mut self, other: &Self) {
        let overhead = |of: &Self| (of.overhead, of.fec_header);
        if overhead(self) != overhead(other) {
            (self.overhead, self.fec_header) = overhead(other);
            self.stop_probing();
        }
    }

    /// Upper bound of the UDP payload, bytes.
    pub(crate) fn max_mtu(&self) -> u16 {
        self.max_mtu
    }

    /// Upper bound of the KCP datagram: `max_mtu` less the overhead.
    fn max_datagram(&self) -> usize {
        usize::from(self.max_mtu.saturating_sub(self.overhead)).max(HEADER_LEN + 1)
    }

    /// Largest KCP datagram to send now: `max_datagram`, or the reduced PLPMTU if that is smaller.
    pub(crate) fn current_mtu(&self) -> usize {
        let max = self.max_datagram();
        self.state.reduced().map_or(max, |reduced| max.min(reduced.plpmtu))
    }

    /// Sets the bytes that the caller adds: `overhead` to each datagram, `fec_header` to first
    /// transmissions. Both count against `max_mtu`.
    pub(crate) fn set_overhead(&mut self, overhead: u16, fec_header: u16) {
        self.overhead = overhead.saturating_add(fec_header);
        self.fec_header = fec_header;
        self.stop_probing();
    }

    /// Sets the bytes of the FEC header that first transmissions have at present. The size of
    /// segments does not change.
    pub(crate) fn set_fec_header(&mut self, fec_header: u16) {
        self.fec_header = fec_header;
    }

    /// Size of the first transmission that a retransmission of `size` bytes proves to pass:
    /// retransmissions have no FEC header.
    pub(crate) fn retransmission_size(&self, size: usize) -> usize {
        size.saturating_sub(usize::from(self.fec_header))
    }

    /// Sets the upper bound of the UDP payload, bytes, and restarts detection.
    pub(crate) fn on_max_mtu_changed(&mut self, max_mtu: u16) {
        self.max_mtu = max_mtu;
        self.stop_probing();
    }

    /// `EMSGSIZE` for a UDP payload of `size` bytes: lowers `max_mtu` to the next size of
    /// [`PLPMTU_TABLE`] (RFC 8899 4.6; a local report needs no validation). Returns whether
    /// `max_mtu` fell. Probing does not raise it: the operating system knows the MTU of the route.
    ///
    /// Ignored up to the smallest size: the error may stem from an ICMP message about an earlier
    /// datagram (`sys/refusal.rs`).
    pub(crate) fn on_message_too_big(&mut self, size: usize) -> bool {
        let Some(next) = self.next_below(size).filter(|next| *next < self.max_mtu) else {
            return false;
        };
        self.on_max_mtu_changed(next);
        true
    }

    /// As [`Self::on_message_too_big`], if the MTU may come from an ICMP message, which can be
    /// forged: lowers the PLPMTU until [`REPORT_LIFE`] is over and a probe is acknowledged. Returns
    /// whether it fell.
    pub(crate) fn on_packet_too_big(&mut self, now: Micros, size: usize) -> bool {
        let Some(plpmtu) = self.next_below(size).map(kcp_size) else { return false };
        if plpmtu >= self.current_mtu() {
            return false;
        }
        let raise_at = now.add_micros(REPORT_LIFE);
        self.black_hole_detector.reset();
        self.complete(Some(Reduced { plpmtu, raise_at }));
        true
    }

    /// The next size of the table below a refused size. `None` above `max_mtu`: that datagram was
    /// written before `max_mtu` fell.
    fn next_below(&self, size: usize) -> Option<u16> {
        let size = u16::try_from(size).ok().filter(|size| *size <= self.max_mtu)?;
        PLPMTU_TABLE.into_iter().find(|next| *next < size)
    }

    /// Whether routers may fragment oversized segments (`oversized`: there are some), or the first full segment,
    /// which a peer that never answered may not have received. Not while a validated peer is probed: MTU probes
    /// would arrive in fragments.
    pub(crate) fn may_fragment(&self, oversized: bool, validated: bool) -> bool {
        match self.state.probing() {
            Some(probing) => !validated && probing.ping_count > 1,
            None => oversized,
        }
    }

    /// The path has changed: the next new data starts a search for more than a reduced size. A smaller path MTU
    /// shows as a black hole.
    pub(crate) fn on_path_changed(&mut self, now: Micros) {
        if let Some(reduced) = self.state.reduced_mut() {
            reduced.raise_at = now;
        }
    }
}

/// Events.
impl MtuDiscovery {
    /// Whether ACKs of large datagrams matter now: from the first suspicious loss to a reset.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        self.black_hole_detector.is_suspicious()
    }

    /// A segment sent in a datagram of `size` bytes is retransmitted; `size` as in
    /// [`Self::retransmission_size`]. `rto` in microseconds.
    pub(crate) fn on_segment_lost(&mut self, now: Micros, size: usize, rto: u64, una: Sn) {
        let mtu = self.current_mtu();
        // Larger segments were cut for a larger PLPMTU.
        let is_suspected = matches!(self.state, State::Base(_) | State::SearchingDown(_));
        if is_suspected || size <= MIN_PLPMTU || size > mtu {
            return;
        }
        if self.black_hole_detector.on_loss(now, size, rto) {
            let probing = Probing::new(Stage::PingDue, mtu, mtu_probe_sn(una), now);
            self.state =
                State::Base(Box::new(Base { probing, reduced: self.state.reduced().copied() }));
        }
    }

    /// A segment sent in a datagram of `size` bytes, as in [`Self::on_segment_lost`], is
    /// acknowledged.
    pub(crate) fn on_segment_acked(&mut self, size: usize) {
        if self.is_watching() && self.black_hole_detector.is_refuted_by(size) {
            self.black_hole_detector.reset();
            if let State::Base(base) = &self.state {
                self.complete(base.reduced);
            }
        }
    }

    /// New data is about to be sent to a validated peer, and no oversized segment is in flight: starts the search
    /// upwards if `raise_at` has passed.
    pub(crate) fn on_new_data(&mut self, now: Micros, una: Sn) {
        let max = self.max_datagram();
        let (State::SearchComplete(Some(reduced)) | State::Error(reduced)) = &self.state else {
            return;
        };
        if now < reduced.raise_at || reduced.plpmtu >= max {
            return;
        }
        let raise_at = now.add_micros(PMTU_RAISE_TIMER);
        let reduced = Reduced { raise_at, ..**reduced };
        let probing = Probing::new(Stage::ProbeDue, max, mtu_probe_sn(una), now);
        self.state = State::SearchingUp(Box::new(Search { probing, reduced }));
    }

    /// An ACK arrived that matches no segment in flight. Returns whether it answers a ping or an
    /// MTU probe.
    pub(crate) fn on_ack(&mut self, now: Micros, ping: PingId) -> bool {
        let Some(probing) = self.state.probing_mut().filter(|probing| probing.sn == ping.sn) else {
            return false;
        };
        if probing.probe_ts == Some(ping.cookie) {
            let size = probing.size;
            self.on_probe_acked(now, size);
            return true;
        }
        let Some(last) = &self.last_probes else { return false };
        let pong = last.ping.is_some_and(|(known, _)| known.cookie == ping.cookie);
        if probing.stage != Stage::PingSent || !pong {
            return false;
        }
        probing.probe_count += u8::from(std::mem::take(&mut probing.probe_timed_out));
        if probing.probe_count >= MAX_PROBES {
            self.on_black_hole(now);
        } else {
            let earliest = last.mtu_probe_at.map_or(now, |sent| sent.add_micros(PROBE_TIMER));
            (probing.stage, probing.next) = (Stage::ProbeDue, now.max(earliest));
        }
        true
    }
}

/// Probes and transitions.
impl MtuDiscovery {
    /// When the next ping or MTU probe is sent.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.state.probing().map(|probing| probing.next)
    }

    /// The ping or MTU probe that is due, if any. `rto` in microseconds; `cookie` is random.
    pub(crate) fn poll_probe(
        &mut self,
        now: Micros,
        rto: u64,
        cookie: impl FnOnce() -> Ts,
    ) -> Option<Probe> {
        if now < self.deadline()? {
            return None;
        }
        self.expire_probe();
        let probing = self.state.probing_mut()?;
        let last = self.last_probes.get_or_insert_default();
        let wait = PROBE_TIMER.max(2 * rto);
        let sn = probing.sn;
        if let Stage::ProbeDue | Stage::ProbeSent = probing.stage {
            (probing.stage, probing.next) = (Stage::ProbeSent, now.add_micros(wait));
            last.mtu_probe_at = Some(now);
            let cookie = *probing.probe_ts.get_or_insert_with(cookie);
            let size = probing.size + usize::from(self.fec_header);
            return Some(Probe { sn, cookie, size });
        }
        // A ping without a pong is retransmitted with the same cookie.
        let is_resent = probing.stage == Stage::PingSent;
        let known = last.ping.filter(|_| is_resent).map(|(known, _)| known.cookie);
        let cookie = known.unwrap_or_else(cookie);
        last.ping = Some((PingId { sn, cookie }, now));
        let sent = if is_resent { probing.ping_count } else { 0 };
        probing.stage = Stage::PingSent;
        probing.next = now.add_micros(wait << sent.min(MAX_PING_BACKOFF));
        probing.ping_count = sent.saturating_add(1);
        Some(Probe { sn, cookie, size: HEADER_LEN })
    }

    /// PROBE_TIMER expired without an ACK of the MTU probe: a ping distinguishes a lost size from a
    /// lost path. The search upwards needs no ping; after MAX_PROBES it continues with the next
    /// smaller size.
    fn expire_probe(&mut self) {
        match &mut self.state {
            State::Base(base) => base.probing.on_probe_timeout(),
            State::SearchingDown(search) => search.probing.on_probe_timeout(),
            State::SearchingUp(search) if search.probing.stage == Stage::ProbeSent => {
                search.probing.probe_count += 1;
                if search.probing.probe_count < MAX_PROBES {
                    return;
                }
                match next_smaller(search.probing.size).filter(|s| *s > search.reduced.plpmtu) {
                    Some(size) => {
                        let (sn, next) = (search.probing.sn, search.probing.next);
                        search.probing = Probing::new(Stage::ProbeDue, size, sn, next);
                    }
                    None => {
                        let reduced = search.reduced;
                        self.complete(Some(reduced));
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether this ping was sent within [`COOKIE_LIFE`], answered or not.
    pub(crate) fn is_recent_ping(&self, now: Micros, id: PingId) -> bool {
        let ping = self.last_probes.as_ref().and_then(|last| last.ping);
        ping.is_some_and(|(known, sent)| known == id && now.since(sent) <= COOKIE_LIFE)
    }

    /// Whether this is the outstanding MTU probe or the latest ping.
    pub(crate) fn is_probe(&self, id: PingId) -> bool {
        let probe = self
            .state
            .probing()
            .is_some_and(|probing| (probing.sn, probing.probe_ts) == (id.sn, Some(id.cookie)));
        let ping = self.last_probes.as_ref().and_then(|last| last.ping);
        probe || ping.is_some_and(|(known, _)| known == id)
    }

    /// The MTU probe of `size` bytes is acknowledged: the path carries that size.
    fn on_probe_acked(&mut self, now: Micros, size: usize) {
        self.black_hole_detector.reset();
        let reduced = match &self.state {
            _ if size >= self.max_datagram() => None,
            State::Base(base) => base.reduced,
            state => state
                .reduced()
                .map(|_| Reduced { plpmtu: size, raise_at: now.add_micros(PMTU_RAISE_TIMER) }),
        };
        self.complete(reduced);
    }

    /// The path does not carry the size under test: cuts segments for [`MIN_PLPMTU`] until an MTU
    /// probe of a smaller size is acknowledged.
    fn on_black_hole(&mut self, now: Micros) {
        self.black_hole_detector.reset();
        let Some(probing) = self.state.probing().copied() else { return };
        let raise_at = now.add_micros(PMTU_RAISE_TIMER);
        let reduced = Reduced { plpmtu: MIN_PLPMTU, raise_at };
        self.state = match next_smaller(probing.size).filter(|size| *size > MIN_PLPMTU) {
            Some(size) => {
                let probing = Probing::new(Stage::ProbeDue, size, probing.sn, now);
                State::SearchingDown(Box::new(Search { probing, reduced }))
            }
            None => State::Error(Box::new(reduced)),
        };
    }

    /// Ends detection and search without a result: the PLPMTU does not change.
    fn stop_probing(&mut self) {
        self.black_hole_detector.reset();
        self.complete(self.state.reduced().copied());
    }

    /// Ends probing with PLPMTU `reduced`, or the configured size if `None`.
    fn complete(&mut self, reduced: Option<Reduced>) {
        let disabled = self.max_datagram() <= MIN_PLPMTU;
        self.state = match reduced {
            _ if disabled => State::Disabled(reduced.map(Box::new)),
            Some(reduced) if reduced.plpmtu <= MIN_PLPMTU => State::Error(Box::new(reduced)),
            reduced => State::SearchComplete(reduced.map(Box::new)),
        };
    }
}

/// The largest size of the table that is smaller than `size` even with its margin, bytes of a KCP
/// datagram.
fn next_smaller(size: usize) -> Option<usize> {
    PLPMTU_TABLE.into_iter().find(|next| usize::from(*next) < size).map(kcp_size)
}

/// As [`Role::ping_sn`], but not below [`MIN_PROBE_SN`]. Always with the active role: the peer is
/// validated, or this side opened the connection.
fn mtu_probe_sn(una: Sn) -> Sn {
    match Role::Active.ping_sn(una) {
        Sn(sn) if sn < MIN_PROBE_SN => Role::Active.ping_sn(Sn(PING_DISTANCE)),
        sn => sn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules: W-20, W-48.
    #[test]
    fn mtu_probe_is_never_within_the_window_of_a_peer_without_state() {
        for una in [0, 1, (1 << 30) - 1, 1 << 30, (1 << 30) + 65_535, (1 << 30) + 65_537, u32::MAX]
        {
            let Sn(sn) = mtu_probe_sn(Sn(una));
            let even = una.wrapping_sub(1 << 30) & !1;
            assert_eq!(sn, if even < 65_536 { u32::MAX - 1 } else { even }, "{una}");
        }
    }

    #[test]
    fn probe_of_a_larger_size_ends_when_the_largest_size_changes() {
        let changes: [fn(&mut MtuDiscovery); 3] = [
            |discovery| discovery.on_max_mtu_changed(1_300),
            |discovery| discovery.set_overhead(60, 8),
            |discovery| {
                let mut other = MtuDiscovery::new(1_400);
                other.set_overhead(60, 8);
                discovery.take_settings(&other);
            },
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let mut discovery = MtuDiscovery::new(1_400);
            assert!(discovery.on_packet_too_big(Micros(0), 1_300));
            let later = Micros(3_600_000_000);
            discovery.on_new_data(later, Sn(0));
            assert!(discovery.deadline().is_some(), "a probe of 1,400 bytes is due");
            change(&mut discovery);
            let probe = discovery.poll_probe(later, 100_000, || Ts(7));
            assert!(probe.is_none() && discovery.deadline().is_none(), "change {i}");
        }
    }
}
