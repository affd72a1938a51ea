//! Output of datagrams (kcp-go `flush`): `poll_transmit`, its priorities, which segments share a
//! datagram, when ACKs are sent ([`AckPolicy`]; kcp-go `ackNoDelay`), and out-of-band datagrams
//! (kcp-go OOB).
//!
//! Order of [`Kcp::poll_transmit`]: CONTROL segments, the initial segment, MTU probes, repair
//! symbols, bundles without a newer segment, full segments in datagrams of their own, everything
//! small in one datagram.

use std::time::Instant;

use crate::config::{AckPolicy, WritePolicy};
use crate::core::clock::Micros;
use crate::core::connection::Kcp;
use crate::core::keepalive::dataless_sn;
use crate::core::path::amplification::SendBudget;
use crate::core::recv::Receiver;
use crate::core::recv::acks::PendingAcks;
use crate::core::segment::{Command, HEADER_LEN, Header};
use crate::core::send::SendCandidate;
use crate::core::seq::{Sn, Ts};
use crate::util::Framing;

/// Full datagrams sent before pending ACKs. The datagrams of a GSO batch are of equal size, only
/// the last may be shorter, so ACKs wait for it. 44 = 65,000 / 1,472: largest batch
/// (`driver/output/send_batch.rs`) by largest UDP payload of Ethernet, bytes. With the default MTU of
/// 1,400 a batch holds 46 datagrams: 44 full ones and a short one fit.
pub(super) const MAX_FULL_DATAGRAMS_BEFORE_ACK: u32 = 44;

/// Contents of one datagram.
///
/// ```
/// use std::time::Instant;
///
/// use bytes::Bytes;
/// use kcpx::Config;
/// use kcpx::proto::{Kcp, Seed};
///
/// let now = Instant::now();
/// let mut kcp = Kcp::new(7, &Config::new(), now, Seed::default())?;
/// kcp.send(now, Bytes::from_static(b"hello"));
/// let mut datagram = Vec::new();
/// let transmitted = kcp.poll_transmit(now, &mut datagram).unwrap();
/// assert_eq!(transmitted.len, datagram.len());
/// assert_eq!((transmitted.segments, transmitted.new_segments), (1, 1));
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transmitted {
    /// Bytes appended.
    pub len: usize,
    /// Data segments in it.
    pub segments: u32,
    /// Data segments sent for the first time. FEC covers only datagrams with such segments:
    /// retransmissions need no parity, and later datagrams repeat ACKs.
    pub new_segments: u32,
    /// ACKs in it.
    pub acks: u32,
    /// A full new segment to a validated peer: further datagrams of the same size may share its GSO
    /// batch.
    pub(crate) gso_follows: bool,
    /// A repair symbol, which neither FEC nor duplicates protect.
    pub(crate) is_repair: bool,
    /// Nothing else is due: [`Kcp::poll_transmit`] need not be called again before the next event.
    pub(crate) is_last: bool,
}

/// Datagrams.
impl Kcp {
    /// Appends at most one datagram to `out`, which may already hold others. `None`: nothing is due
    /// and nothing was appended.
    ///
    /// Full segments are sent in datagrams of their own, one after the other and of equal size;
    /// ACKs, window updates, pings and short segments share one datagram. For an unvalidated peer
    /// [`Kcp::send_budget`] applies, with a part reserved for pings: a segment that does not fit
    /// waits, and no segment is retransmitted.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmitted> {
        let (now, start) = (self.clock.tick(now), out.len());
        let sent = self.write_datagram(now, out)?;
        self.qlog.on_sent(now, out.get(start..));
        Some(sent)
    }

    fn write_datagram(&mut self, now: Micros, out: &mut Vec<u8>) -> Option<Transmitted> {
        self.last_poll_transmit = now;
        self.send.expire_unproved(now);
        let whole = self.send_budget();
        // A connection that has ended sends no ping.
        let budget = match self.close_reason {
            Some(_) => whole,
            None => self.amplification.budget_beside_pings(usize::from(self.sent_overhead)),
        };
        let is_lone_ping =
            self.withholds_acks() || (self.keepalive.is_due() && !budget.admits(2 * HEADER_LEN));
        if !(if is_lone_ping { whole } else { budget }).admits(HEADER_LEN) {
            return None;
        }
        let start = out.len();
        if (self.close_reason.is_none() && self.rate_limiter.blocked_until(now).is_some())
            || (!self.emit_control(now, out) && self.close_reason.is_some())
        {
            return None;
        }
        let is_control = out.len() > start;
        if is_lone_ping && !is_control {
            return self.write_lone_ping(now, whole, out);
        }
        // The pong is sent first: if it answers a Retry, the initial segment counts only after it.
        if is_control || (!self.acks_due(now) && self.emit_initial(now, out)) {
            return Some(self.on_datagram_sent(now, out.len() - start, Transmitted::default()));
        }
        if budget.may_probe_mtu() && self.write_mtu_probe(now, out) {
            return Some(self.on_datagram_sent(now, out.len() - start, Transmitted::default()));
        }
        if self.write_repair(now, budget, out) {
            let sent = Transmitted { is_repair: true, ..Transmitted::default() };
            return Some(self.on_datagram_sent(now, out.len() - start, sent));
        }
        if self.write_bundle(now, budget, out) {
            return Some(self.on_datagram_sent(now, out.len() - start, Transmitted::default()));
        }
        self.send.defer_out_of_window_rto(now);
        let mut sent = Transmitted::default();
        let next = self.next_within(now, budget);
        let full = next.filter(|next| HEADER_LEN + next.len >= self.current_mtu());
        // A GSO batch is written at one instant. ACKs of earlier arrivals do not wait for its end:
        // a rate limit may spread the batch over a long time.
        let overdue = self.acks.since().is_some_and(|since| since < now) && self.acks_due(now);
        let has_acks = !self.acks.is_empty() || self.recv.has_recovered_acks();
        let acks_may_wait = !has_acks
            || (self.full_datagrams_since_ack < MAX_FULL_DATAGRAMS_BEFORE_ACK && !overdue);
        // Address validation comes before data.
        let validates = self.keepalive.is_due() && !self.keepalive.is_validated();
        let is_new = next.is_some_and(|next| next.is_new());
        if is_new && self.keepalive.is_validated() && self.send.oversized().is_none() {
            self.send.path.mtu.on_new_data(now, self.send.una());
        }
        match full.filter(|_| acks_may_wait && !validates) {
            Some(next) => {
                self.full_datagrams_since_ack += 1;
                self.window_update_pending = false;
                // The next one may leave on another path.
                let may_batch = budget.may_batch() && !self.send.is_aggregating();
                sent.gso_follows = next.is_new() && may_batch;
                self.append_segment(now, next, out, &mut sent);
            }
            None => self.write_small_datagram(now, next, start, budget, out, &mut sent),
        }
        let len = out.len() - start;
        (len > 0).then(|| self.on_data_sent(now, len, sent))
    }

    /// Appends a datagram with the ping that is due and the answer to an initial segment without
    /// data: neither acknowledges anything.
    fn write_lone_ping(
        &mut self,
        now: Micros,
        budget: SendBudget,
        out: &mut Vec<u8>,
    ) -> Option<Transmitted> {
        let start = out.len();
        let fits = |out: &Vec<u8>| budget.admits(out.len() - start + HEADER_LEN);
        self.write_ping(now, fits(out), out);
        if fits(out) && std::mem::take(&mut self.window_update_pending) {
            self.write_dataless(Command::WindowUpdate, Ts(0), out);
        }
        let len = out.len() - start;
        (len > 0).then(|| {
            let sent = self.on_datagram_sent(now, len, Transmitted::default());
            // FIN is due once anything was sent.
            Transmitted { is_last: !self.has_control_due(now), ..sent }
        })
    }

    /// Appends the ping that is due, if it fits.
    fn write_ping(&mut self, now: Micros, fits: bool, out: &mut Vec<u8>) {
        if fits && let Some(ping) = self.keepalive.poll_ping(now, self.least_una(), self.role) {
            self.pending_reset.on_ping_sent(now, self.send.path.rtt.rto());
            self.new_ping(ping).emit(out);
        }
    }

    /// Continues a GSO batch after a datagram with [`Transmitted::gso_follows`]: appends up to
    /// `max` further datagrams of [`Kcp::current_mtu`] bytes each, with space for `framing`, and
    /// returns how many. Fewer than `max`: call [`Kcp::poll_transmit`]. All datagrams of a batch
    /// have the same `now` and nothing arrives between them, so conditions that a datagram cannot
    /// change are checked once. The datagrams are the same as without batches
    /// (core/tests/gso_batches.rs).
    pub(crate) fn poll_transmit_more(
        &mut self,
        max: usize,
        framing: Framing,
        out: &mut Vec<u8>,
    ) -> usize {
        let now = self.last_poll_transmit;
        let has_acks = !self.acks.is_empty() || self.recv.has_recovered_acks();
        let before_acks =
            MAX_FULL_DATAGRAMS_BEFORE_ACK.saturating_sub(self.full_datagrams_since_ack);
        let max = if has_acks { max.min(before_acks as usize) } else { max };
        if self.mtu_probe_deadline().is_some_and(|at| at <= now) {
            return 0;
        }
        let (size, start) = (self.current_mtu(), out.len());
        let template = self.push_template(now);
        let mut count = self.write_run(now, template, max, framing, out);
        while count < max
            && !self.has_repair_due(now)
            && self.rate_limiter.blocked_until(now).is_none()
            && let Some(next) = self.send.next_new(now, self.may_send_new())
            && HEADER_LEN + next.len == size
        {
            self.send.begin_datagram();
            framing.begin(out);
            if !self.write_segment(now, template, next, out) {
                out.truncate(out.len() - framing.header_len);
                break;
            }
            framing.end(out);
            self.rate_limiter.on_sent(now, size);
            count += 1;
        }
        if count > 0 {
            self.full_datagrams_since_ack += u32::try_from(count).unwrap_or(u32::MAX);
            self.on_datagrams_sent(now, count, count * size);
            self.qlog.on_batch_sent(now, out.get(start..), size, framing);
        }
        count
    }

    /// Appends the next full segments, at most `max`, as long as none of them affects whether the
    /// next may be sent.
    fn write_run(
        &mut self,
        now: Micros,
        template: Header,
        max: usize,
        framing: Framing,
        out: &mut Vec<u8>,
    ) -> usize {
        let each_counts = self.is_rate_limited() || self.has_repair_due(now);
        if each_counts || !self.may_send_new() {
            return 0;
        }
        let count = self.send.transmit_run(now, template, max, framing, out, &mut self.stats);
        if count > 0 {
            self.on_segments_written();
        }
        count
    }

    /// A datagram is sent (OnPacketSent of RFC 9002 A.5): counters, rate limit, anti-amplification
    /// limit.
    pub(super) fn on_datagram_sent(
        &mut self,
        now: Micros,
        len: usize,
        mut sent: Transmitted,
    ) -> Transmitted {
        sent.len = len;
        if !self.has_started() {
            self.keepalive.on_first_sent(now);
        }
        self.establishment.on_datagram_sent();
        self.rate_limiter.on_sent(now, len);
        self.on_datagrams_sent(now, 1, len);
        sent
    }

    /// As [`Self::on_datagram_sent`], and sets `is_last`.
    fn on_data_sent(&mut self, now: Micros, len: usize, sent: Transmitted) -> Transmitted {
        let sent = self.on_datagram_sent(now, len, sent);
        if let Some(paths) = self.send.paths.as_mut().filter(|_| sent.segments > 0) {
            paths.on_used(now);
        }
        let is_last = !sent.gso_follows && !self.has_work_at(now);
        if is_last {
            // ACKs wait for the end of a GSO batch, and no batch is open.
            self.full_datagrams_since_ack = 0;
        }
        Transmitted { is_last, ..sent }
    }

    /// `count` datagrams of `bytes` in total are sent: the part of [`Self::on_datagram_sent`] that
    /// a GSO batch does once.
    #[inline]
    fn on_datagrams_sent(&mut self, now: Micros, count: usize, bytes: usize) {
        self.stats.sent.datagrams += count as u64;
        self.stats.sent.datagram_bytes += bytes as u64;
        self.amplification.on_sent(bytes + count * usize::from(self.sent_overhead));
        self.update_auto_redundancy(now);
        self.update_timers(now);
    }

    /// Appends one datagram of everything small that is due: ACKs, window probe, ping, segments
    /// while they fit, and a window update if there is nothing else.
    fn write_small_datagram(
        &mut self,
        now: Micros,
        mut next: Option<SendCandidate>,
        start: usize,
        budget: SendBudget,
        out: &mut Vec<u8>,
        sent: &mut Transmitted,
    ) {
        let size = budget.cap(self.current_mtu());
        let available = |out: &Vec<u8>| size.saturating_sub(out.len() - start);
        self.full_datagrams_since_ack = 0;
        if next.is_some()
            || self.window_update_pending
            || self.keepalive.is_due()
            || self.acks_due(now)
        {
            // The ping ends the limit, so it has precedence.
            let pings = usize::from(self.keepalive.is_due() && !budget.is_unlimited());
            self.write_acks((available(out) / HEADER_LEN).saturating_sub(pings), out, sent);
        }
        if available(out) >= HEADER_LEN && self.send.remote.poll_window_probe(now) {
            self.stats.probes.zero_window += 1;
            self.write_dataless(Command::WindowProbe, Ts(0), out);
        }
        // A ping does not answer an initial segment: the peer may have restarted.
        let answers_initial = self.window_update_pending && self.keepalive.is_due();
        if answers_initial && out.len() == start && available(out) >= HEADER_LEN {
            self.window_update_pending = false;
            self.write_dataless(Command::WindowUpdate, Ts(0), out);
        }
        self.write_ping(now, available(out) >= HEADER_LEN, out);
        let (segments_start, nxt) = (out.len(), self.send.nxt());
        // A segment cut for a larger PLPMTU is sent in a datagram of its own.
        while let Some(segment) =
            next.filter(|n| out.len() == start || HEADER_LEN + n.len <= available(out))
        {
            self.append_segment(now, segment, out, sent);
            // A redundant copy is sent in the next datagram: in this one it would be lost together
            // with the first.
            let copy = self.send.due_copy(now);
            next = if copy.is_some() { None } else { self.next_within(now, budget) };
        }
        if sent.new_segments > 0 && (out.len() - start) * 2 < size && budget.may_retransmit() {
            self.bundle_copies(now, nxt, segments_start, available(out), out);
        }
        // Every segment carries `wnd`: a window update is needed only without another segment.
        if std::mem::take(&mut self.window_update_pending) && out.len() == start {
            self.write_dataless(Command::WindowUpdate, Ts(0), out);
        }
    }

    /// The next segment that the budget admits.
    fn next_within(&self, now: Micros, budget: SendBudget) -> Option<SendCandidate> {
        let allowed = |next: &SendCandidate| next.is_new() || budget.may_retransmit();
        self.next_segment(now).filter(|next| budget.admits(HEADER_LEN + next.len) && allowed(next))
    }

    /// The next segment that may be sent, regardless of the budget.
    pub(super) fn next_segment(&self, now: Micros) -> Option<SendCandidate> {
        self.send.next(now, self.may_send_new())
    }

    /// Whether the write policy admits new segments: always with [`WritePolicy::Immediate`], else
    /// after a flush or when the writer has to wait.
    #[inline]
    pub(super) fn may_send_new(&self) -> bool {
        self.write_policy == WritePolicy::Immediate || self.flush_requested || self.is_backlogged()
    }

    /// The header of PUSHs sent at `now`, without number, `frg` and length.
    #[inline]
    fn push_template(&mut self, now: Micros) -> Header {
        let ts = self.clock.timestamp(now);
        self.header(Command::Push, 0, Sn(0), ts, 0)
    }

    /// Appends the PUSH of `next` and counts it in `sent`.
    fn append_segment(
        &mut self,
        now: Micros,
        next: SendCandidate,
        out: &mut Vec<u8>,
        sent: &mut Transmitted,
    ) {
        if sent.segments == 0 {
            self.send.begin_datagram();
        }
        let template = self.push_template(now);
        if self.write_segment(now, template, next, out) {
            self.qlog.on_transmit(now, next);
            sent.segments += 1;
            sent.new_segments += u32::from(next.is_new());
        }
    }

    /// Appends the PUSH of `next` and records its transmission. Returns `false` if the segment is
    /// gone.
    #[inline]
    fn write_segment(
        &mut self,
        now: Micros,
        template: Header,
        next: SendCandidate,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(segment) = self.send.transmit(now, template.ts, next, &mut self.stats) else {
            return false;
        };
        segment.emit(template, out);
        self.on_segments_written();
        true
    }

    /// Segments were written: no initial segment is needed, and the last one ends a flush.
    #[inline]
    fn on_segments_written(&mut self) {
        self.establishment.cancel_initial();
        if self.send.send_buffer().is_empty() {
            (self.flush_requested, self.cork_until) = (false, None);
        }
    }

    /// Appends a segment without payload, numbered far before SND.UNA ([`dataless_sn`]).
    pub(super) fn write_dataless(&mut self, command: Command, ts: Ts, out: &mut Vec<u8>) {
        let sn = dataless_sn(self.send.una());
        self.header(command, self.close_state.capability(), sn, ts, 0).emit(out);
    }

    /// A header with the current `wnd` and `una`; records the window as advertised. `una` is 0
    /// while acknowledgements are withheld.
    pub(super) fn header(&mut self, command: Command, frg: u8, sn: Sn, ts: Ts, len: u32) -> Header {
        let withholds = self.withholds_acks();
        let una = if withholds { Sn(0) } else { self.recv.nxt() };
        let wnd = self.recv.advertise_window();
        Header { conv: self.conv, command, frg, wnd, ts, sn, una, len }
    }

    /// Whether [`Kcp::poll_transmit`] would append a datagram at `now`, apart from rate limit and
    /// anti-amplification limit, or a timeout would expire that may open the window.
    pub(crate) fn has_pending_transmit(&self, now: Instant) -> bool {
        self.has_work_at(self.clock.at(now))
    }

    pub(super) fn has_work_at(&self, at: Micros) -> bool {
        let due = self.window_update_pending || self.keepalive.is_due() || self.has_control_due(at);
        let is_due = |deadline: Option<Micros>| deadline.is_some_and(|deadline| deadline <= at);
        let due = due || self.has_initial_due(at) || is_due(self.mtu_probe_deadline());
        let due = due || self.has_path_work_at(at);
        due || is_due(self.send.remote.deadline())
            || self.has_repair_due(at)
            || self.has_bundle_due(at)
            || self.acks_due(at)
            || self.next_segment(at).is_some()
            // The timeout may open the window.
            || is_due(self.send.unproved_deadline(self.may_send_new()))
    }
}

/// Appends at most `max` of the waiting `acks`, with the fields of `template`.
pub(super) fn emit_acks(
    acks: &mut PendingAcks,
    recv: &mut Receiver,
    template: Header,
    max: usize,
    out: &mut Vec<u8>,
    sent: &mut Transmitted,
) {
    acks.take(template.una, max, |ack| {
        recv.on_ack_sent(ack.sn);
        Header { sn: ack.sn, ts: ack.ts, ..template }.emit(out);
        sent.acks += 1;
    });
}

/// ACKs.
impl Kcp {
    /// Appends at most `max` of the pending ACKs, unless they leave on another path than data.
    fn write_acks(&mut self, max: usize, out: &mut Vec<u8>, sent: &mut Transmitted) {
        if self.acks_leave_elsewhere().is_none() {
            self.append_acks(max, out, sent);
        }
    }

    /// Appends at most `max` of the pending ACKs.
    pub(super) fn append_acks(&mut self, max: usize, out: &mut Vec<u8>, sent: &mut Transmitted) {
        let max = self.write_recovered_acks(max, out, sent);
        if self.acks.is_empty() {
            return;
        }
        let template = self.header(Command::Ack, self.close_state.capability(), Sn(0), Ts(0), 0);
        emit_acks(&mut self.acks, &mut self.recv, template, max, out, sent);
    }

    /// Whether each datagram is acknowledged before the next one is processed.
    pub(crate) fn acks_at_once(&self) -> bool {
        self.ack_policy == AckPolicy::Immediate
    }

    /// Whether pending ACKs are sent now even without another segment.
    pub(super) fn acks_due(&self, now: Micros) -> bool {
        if self.recv.has_recovered_acks() {
            return true;
        }
        match self.ack_policy {
            AckPolicy::PerBatch => {
                !self.acks.is_empty()
                    && !self.acks.are_delayed()
                    && self.ack_deadline().is_none_or(|at| now >= at)
            }
            AckPolicy::Immediate => !self.acks.is_empty(),
            AckPolicy::Interval => {
                self.acks.is_immediate()
                    || self.acks.arrivals() as usize >= self.current_mtu() / HEADER_LEN
                    || self.ack_deadline().is_some_and(|at| now >= at)
            }
        }
    }

    /// Delays the pending ACKs of one or two segments in order until [`Self::end_ack_delay`],
    /// unless another datagram is due (RFC 9293 3.8.6.3). Only under [`AckPolicy::PerBatch`], and
    /// neither ACKs of an unvalidated peer nor of bulk. Returns whether ACKs are delayed.
    pub(crate) fn delay_acks(&mut self, now: Instant) -> bool {
        if self.ack_policy != AckPolicy::PerBatch
            || !self.keepalive.is_validated()
            || self.ack_deadline().is_some()
        {
            return false;
        }
        self.acks.delay();
        if self.acks.are_delayed() && self.has_pending_transmit(now) {
            self.acks.end_delay();
        }
        self.acks.are_delayed()
    }

    /// Ends [`Self::delay_acks`]. Returns whether ACKs were delayed.
    pub(crate) fn end_ack_delay(&mut self) -> bool {
        self.acks.end_delay()
    }

    /// When pending ACKs are sent: all of them under [`AckPolicy::Interval`], ACKs of bulk under
    /// [`AckPolicy::PerBatch`]. `None`: at once, or with the next turn of the driver.
    pub(super) fn ack_deadline(&self) -> Option<Micros> {
        match self.ack_policy {
            AckPolicy::PerBatch if self.is_peer_unvalidated() => None,
            AckPolicy::PerBatch => {
                self.acks.bulk_deadline(self.close_state.peer_supports_control())
            }
            AckPolicy::Immediate => None,
            AckPolicy::Interval => {
                self.acks.since().map(|since| since.add_micros(self.interval.into()))
            }
        }
    }
}

/// Out-of-band datagrams.
impl Kcp {
    /// When the rate limit admits the next out-of-band datagram; `None`: now.
    pub(crate) fn rate_limited_until(&self, now: Instant) -> Option<Instant> {
        self.rate_limiter.blocked_until(self.clock.at(now)).map(|at| self.clock.instant(at))
    }

    /// Asks the peer whether it accepts out-of-band datagrams without FEC.
    pub(crate) fn ask_for_datagrams(&mut self) {
        self.repair_state().hello.start_for_datagrams();
    }

    /// Whether the peer accepts out-of-band datagrams without FEC; `None` while unknown.
    pub(crate) fn peer_accepts_datagrams(&self) -> Option<bool> {
        let hello = &self.repair.as_ref()?.hello;
        if self.close_state.peer_lacks_control() {
            return Some(false);
        }
        hello.peer_accepts_datagrams()
    }

    /// Charges bytes outside KCP datagrams to the rate limit: out-of-band datagrams, duplicates,
    /// FEC parity and overhead.
    pub(crate) fn on_out_of_band_sent(&mut self, now: Instant, bytes: usize) {
        let now = self.clock.tick(now);
        self.rate_limiter.on_sent(now, bytes);
    }

    /// Whether a rate limit is set.
    #[inline]
    pub(crate) fn is_rate_limited(&self) -> bool {
        self.rate_limiter.next().is_some()
    }

    /// An out-of-band datagram of the peer arrived. It may be a replay, so it is no sign of life,
    /// but may draw a ping.
    pub(crate) fn on_out_of_band_received(&mut self, now: Instant) {
        self.keepalive.on_received(self.clock.at(now), false);
    }
}
