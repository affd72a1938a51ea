//! FEC towards one address: which datagrams form a group, how many of its parity packets leave, and
//! when a group that does not fill is closed.
//!
//! The encoder numbers and computes; this decides. Parity that cannot arrive before a
//! retransmission would is left out, as is parity of groups that nobody waits for; its seqids are
//! used all the same, like those of lost packets.

use std::time::{Duration, Instant};

use crate::config::{IP_UDP_HEADERS, SEGMENT_HEADER};
use crate::core::connection::fec::{ClosedGroup, FlowTiming};
use crate::core::connection::fec_counters::ParitySent;
use crate::driver::fec_probes::FecProbes;
use crate::fec::{FecConfig, FecEncoder, HEADER_LEN};

/// A group that has been open for this long, or for half a round trip if that is shorter, is
/// closed if the parity that it may have then suffices; another one when it has taken no packet for
/// that long.
const CLOSE_AFTER: Duration = Duration::from_millis(25);
/// A group is closed early if it has this many times the parity that recovers the expected losses.
/// Measured: with less, groups that lose too much cost more latency at 5 % loss than the shorter
/// ones save.
const EARLY_CLOSE_MARGIN: u64 = 10;
const MILLION: u64 = 1_000_000;
/// Bytes of a filler: FEC header and window update.
const FILLER_BYTES: usize = IP_UDP_HEADERS + HEADER_LEN + SEGMENT_HEADER;

/// A group that is not full.
#[derive(Clone, Copy, Debug)]
struct OpenGroup {
    /// The connection that began it, and the order of transmission of its first segment.
    conv: u32,
    first_xmit_seq: u64,
    opened: Instant,
    /// Sum of the times from `opened` to each packet.
    offsets: Duration,
    /// It began with what the same connection sent together with the last packet of the group before,
    /// and has packets of that connection alone: the packets of a message are in two groups, and the
    /// parity of each is an interval between messages later.
    splits_burst: bool,
    /// When it is closed, if it can be.
    close_at: Option<Instant>,
    packets: usize,
    /// Bytes of all packets, and of the longest one; IP packets.
    bytes: usize,
    longest: usize,
}

/// How a group is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) fillers: usize,
    pub(crate) parities: usize,
}

/// FEC encoder of one address and the state of its current group.
#[derive(Debug)]
pub(crate) struct FecSender {
    encoder: FecEncoder,
    group: Option<OpenGroup>,
    closed: Option<ClosedGroup>,
    /// When the last packet of the group before left, and of which connection.
    last_ended: Option<(Instant, u32)>,
    /// The group is being closed, with so many parity packets.
    closing: Option<usize>,
    probes: FecProbes,
    /// Nothing shows that the peer decodes FEC: none is sent.
    disabled: bool,
    /// A packet has left with a header of the encoder.
    started: bool,
    /// Bytes of parity that may leave, times a million, where its rate is limited. Negative after
    /// packets that took more than there was.
    credit: i64,
    /// Since it was last taken.
    parity_sent: ParitySent,
}

impl FecSender {
    pub(crate) fn new(config: FecConfig) -> Self {
        Self {
            encoder: FecEncoder::new(config),
            group: None,
            closed: None,
            last_ended: None,
            closing: None,
            probes: FecProbes::default(),
            disabled: false,
            started: false,
            credit: 0,
            parity_sent: ParitySent::default(),
        }
    }

    /// Towards a peer that is known to decode the layout.
    #[cfg(test)]
    pub(crate) fn confirmed(config: FecConfig, now: Instant) -> Self {
        let mut fec = Self::new(config);
        fec.probes.on_sent(now);
        fec.on_probe_answered();
        fec
    }

    /// The encoder, which writes the parity that is due.
    pub(crate) fn encoder(&self) -> &FecEncoder {
        &self.encoder
    }

    /// Whether datagrams leave without FEC, since nothing shows that the peer decodes it.
    pub(crate) fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// A further connection of the address may have another peer, which decodes FEC.
    pub(crate) fn on_connection_joined(&mut self) {
        if std::mem::take(&mut self.disabled) {
            self.probes = FecProbes::default();
        }
    }

    /// Most shards that a layout may have, unless the decoder of the peer learns any: not more than
    /// now, from the first packet on. kcp-go compares the numbers of groups, which are smaller if
    /// these are larger, and so late ones to it.
    pub(crate) fn max_shards(&self) -> usize {
        if self.started { self.encoder.config().shards() } else { FecConfig::MAX_SHARDS }
    }

    /// Changes the layout, if that has at most `max_shards`. The peer has to show that it decodes
    /// the new one.
    pub(crate) fn set_config(&mut self, config: FecConfig, max_shards: usize) {
        if config != self.encoder.config() && config.shards() <= max_shards {
            (self.group, self.probes, self.disabled) = (None, FecProbes::default(), false);
            self.encoder.set_config(config);
        }
    }

    /// Writes the header of a data packet, see [`FecEncoder::seal`]. Returns the number of parity
    /// packets that leave now.
    pub(crate) fn seal(&mut self, now: Instant, flow: &FlowTiming, packet: &mut [u8]) -> usize {
        // The last packet between two layouts leaves the encoder at the start of a group.
        let unprotected = self.encoder.is_unprotected();
        self.started = true;
        let due = self.encoder.seal(now, packet);
        if unprotected {
            return 0;
        }
        self.probes.on_packet();
        let splits_burst = self.last_ended == Some((now, flow.conv)) && flow.parity_rate.is_some();
        let new = || OpenGroup { splits_burst, ..OpenGroup::new(now, flow) };
        let group = self.group.get_or_insert_with(new);
        if self.closing.is_none() {
            group.add(now, flow, packet.len(), self.encoder.config());
        }
        self.finish_group(now, flow, due, false)
    }

    /// Writes the header of a FEC probe, which does not leave. Returns the number of parity packets
    /// that leave now.
    pub(crate) fn seal_probe(
        &mut self,
        now: Instant,
        flow: &FlowTiming,
        packet: &mut [u8],
    ) -> usize {
        let due = self.encoder.seal(now, packet);
        let parities = self.finish_group(now, flow, due, true);
        self.probes.on_sent(now);
        // One parity packet goes into the FEC probe, which counts as a lost packet.
        if let Some(closed) = &mut self.closed {
            closed.packets = closed.packets.saturating_sub(1);
            closed.parities = closed.parities.saturating_sub(1);
        }
        parities
    }

    /// Ends the group if it is full, with at most `due` parity packets.
    fn finish_group(
        &mut self,
        now: Instant,
        flow: &FlowTiming,
        due: usize,
        has_probe: bool,
    ) -> usize {
        if self.encoder.packets_in_group() > 0 {
            return 0;
        }
        self.last_ended = Some((now, flow.conv));
        let is_whole = self.probes.needs_whole_group();
        self.probes.on_group();
        self.disabled = self.probes.have_failed();
        let closing = self.closing.take();
        // A group of one packet may hold a FEC probe alone.
        let Some(group) = self.group.take() else { return closing.unwrap_or(due).min(due) };
        if !is_whole && group.is_late(now, flow) {
            return 0;
        }
        let parities = match (closing, flow.parity_rate) {
            (Some(parities), _) => parities,
            (None, Some(rate)) if !is_whole => {
                let parities = self.affordable(&group, rate);
                // A FEC probe takes one, and another one may be lost.
                if has_probe { (parities + 1).max(2) } else { parities }
            }
            (None, _) => due,
        };
        let parities = parities.min(due);
        // What a peer does not decode is not worth waiting for.
        self.closed = self.probes.is_confirmed().then_some(ClosedGroup {
            conv: group.conv,
            first_xmit_seq: group.first_xmit_seq,
            opened: group.opened,
            packets: self.encoder.config().data_shards() + parities,
            parities,
        });
        parities
    }

    /// Parity packets of a group where `rate` limits their bytes, per million bytes of data packets:
    /// the nearest number, so that over several groups the rate is kept.
    fn affordable(&mut self, group: &OpenGroup, rate: u32) -> usize {
        let cost = i64::try_from(group.longest).unwrap_or(1).max(1) * MILLION.cast_signed();
        let earned = i64::try_from(group.bytes).unwrap_or(0) * i64::from(rate);
        let data = self.encoder.config().data_shards() as u64;
        let most = (data * u64::from(rate)).div_ceil(MILLION).cast_signed();
        self.credit = (self.credit + earned).min((most + 1) * cost);
        let parities = ((self.credit + cost / 2) / cost).clamp(0, most);
        self.credit -= parities * cost;
        usize::try_from(parities).unwrap_or(0)
    }

    /// The parity that is due may not leave: nobody waits for it.
    pub(crate) fn on_parity_withheld(&mut self) {
        self.closed = None;
    }

    /// So many parity packets leave, with so many bytes.
    pub(crate) fn on_parity_sent(&mut self, packets: usize, bytes: usize) {
        self.parity_sent.packets += packets as u64;
        self.parity_sent.bytes += bytes as u64;
    }

    /// What has left since this was last called.
    pub(crate) fn take_parity_sent(&mut self) -> ParitySent {
        std::mem::take(&mut self.parity_sent)
    }

    /// The group whose parity left with the last packet.
    pub(crate) fn take_closed(&mut self) -> Option<ClosedGroup> {
        self.closed.take().filter(|group| group.parities > 0)
    }

    /// Whether a FEC probe takes the last place in the group now.
    pub(crate) fn wants_probe(&self, now: Instant, flow: &FlowTiming) -> bool {
        let left = self.encoder.config().data_shards() - self.encoder.packets_in_group();
        left == 1
            && !self.encoder.is_unprotected()
            && self.probes.is_due(now, flow.rto)
            && (self.probes.needs_whole_group()
                || self.group.as_ref().is_none_or(|group| !group.is_late(now, flow)))
    }

    /// A FEC probe was answered: the peer decodes the layout.
    pub(crate) fn on_probe_answered(&mut self) {
        self.probes.on_answered();
    }

    /// When [`Self::begin_closing`] is to be called with the connection `conv`: the one that began
    /// the group. Of another one the peer may not have heard, and its fillers would be the first.
    /// A decoder learns the layout from whole groups alone, so none is closed before that.
    pub(crate) fn deadline(&self, conv: u32) -> Option<Instant> {
        let group = self.group.as_ref().filter(|group| group.conv == conv)?;
        group.close_at.filter(|_| self.probes.is_confirmed())
    }

    /// How the group is closed now, if it is to be and `may_fill` permits; otherwise it stays open
    /// until it is full.
    pub(crate) fn begin_closing(
        &mut self,
        now: Instant,
        flow: &FlowTiming,
        may_fill: bool,
    ) -> Option<Closing> {
        let config = self.encoder.config();
        let group = self.group.as_mut()?;
        group.close_at.take_if(|at| *at <= now)?;
        let may_close = may_fill && self.probes.is_confirmed() && !group.is_late(now, flow);
        let group = *group;
        let closing = match flow.parity_rate.filter(|_| group.realigns(config)) {
            Some(rate) if may_close => {
                self.credit -= i64::try_from(FILLER_BYTES).unwrap_or(0) * MILLION.cast_signed();
                Some(Closing { fillers: 1, parities: self.affordable(&group, rate) })
            }
            _ => group.closing(config, flow.parity_rate).filter(|_| may_close),
        }?;
        self.closing = Some(closing.parities);
        Some(closing)
    }
}

impl OpenGroup {
    fn new(now: Instant, flow: &FlowTiming) -> Self {
        Self {
            conv: flow.conv,
            first_xmit_seq: flow.next_xmit_seq,
            opened: now,
            offsets: Duration::ZERO,
            splits_burst: false,
            close_at: None,
            packets: 0,
            bytes: 0,
            longest: 0,
        }
    }

    /// A packet of `len` bytes joins the group.
    fn add(&mut self, now: Instant, flow: &FlowTiming, len: usize, config: FecConfig) {
        let len = len + IP_UDP_HEADERS;
        self.splits_burst &= flow.conv == self.conv;
        self.packets += 1;
        self.bytes += len;
        self.longest = self.longest.max(len);
        self.offsets += now.saturating_duration_since(self.opened);
        // What has not left yet may be the rest of the message.
        if self.realigns(config) && !flow.has_unsent {
            self.close_at = Some(now);
            return;
        }
        let limit = flow.srtt.map_or(CLOSE_AFTER, |srtt| (srtt / 2).min(CLOSE_AFTER));
        self.close_at = self.closing(config, flow.parity_rate).map(|closing| {
            if closing.suffices(self.packets, flow.loss_rate) {
                (self.opened + limit).max(now)
            } else {
                now + limit
            }
        });
    }

    /// Whether one filler, once, has the next group begin with a message.
    fn realigns(&self, config: FecConfig) -> bool {
        self.splits_burst && self.packets > 1 && self.packets + 1 == config.data_shards()
    }

    /// Whether the packets of the group left so long ago, in the mean, that parity comes no earlier
    /// than a retransmission.
    fn is_late(&self, now: Instant, flow: &FlowTiming) -> bool {
        let packets = u32::try_from(self.packets).unwrap_or(u32::MAX);
        let mean = self.offsets / packets.max(1);
        let limit = flow.srtt.map_or(flow.rto, |srtt| srtt.max(flow.rto / 2));
        now.saturating_duration_since(self.opened).saturating_sub(mean) > limit
    }

    /// The fillers and parity packets with which the group may be closed: together no more bytes than
    /// parity adds to whole groups, or its rate per million bytes admits, and no more fillers than
    /// data packets.
    fn closing(&self, config: FecConfig, rate: Option<u32>) -> Option<Closing> {
        let fillers = config.data_shards().saturating_sub(self.packets);
        if self.packets < 2 || fillers > self.packets {
            return None;
        }
        let allowed = match rate {
            None => self.bytes * config.parity_shards() / config.data_shards(),
            Some(rate) => {
                usize::try_from(self.bytes as u64 * u64::from(rate) / MILLION).unwrap_or(0)
            }
        };
        let left = allowed.checked_sub(fillers * FILLER_BYTES)?;
        let parities = (left / self.longest.max(1)).min(config.parity_shards());
        (parities > 0).then_some(Closing { fillers, parities })
    }
}

impl Closing {
    /// Whether the parity can recover nearly every group of so many data packets that is closed
    /// so.
    fn suffices(self, packets: usize, loss_rate: u32) -> bool {
        let sent = (packets + self.fillers + self.parities) as u64;
        sent * u64::from(loss_rate) * EARLY_CLOSE_MARGIN <= self.parities as u64 * MILLION
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::driver::packet_codec::{PacketCodec, SendExtras, Written};
    use crate::driver::send_batch::SendBatch;
    use crate::testkit::rng::Rng;

    fn config(data: usize, parity: usize) -> FecConfig {
        FecConfig::new(data, parity).unwrap()
    }

    fn flow() -> FlowTiming {
        let (srtt, rto) = (Some(Duration::from_millis(50)), Duration::from_millis(62));
        let (loss_rate, parity_rate, has_unsent) = (0, None, false);
        FlowTiming { conv: 1, next_xmit_seq: 1, srtt, rto, loss_rate, parity_rate, has_unsent }
    }

    /// Parity packets of the group that the last of these packets, at these times, completes.
    fn parities(fec: &mut FecSender, start: Instant, times: &[u64]) -> usize {
        let at = |millis: &u64| start + Duration::from_millis(*millis);
        let mut count = 0;
        for time in times {
            count = fec.seal(at(time), &flow(), &mut [0; 100]);
        }
        count
    }

    #[test]
    fn parity_is_left_out_where_a_retransmission_comes_first() {
        let start = Instant::now();
        let mut fec = FecSender::confirmed(config(5, 2), start);
        assert_eq!(
            parities(&mut fec, start, &[0, 25, 50, 75, 100]),
            2,
            "50 ms before, in the mean"
        );
        assert_eq!(parities(&mut fec, start, &[200, 226, 252, 278, 304]), 0);
        assert_eq!(parities(&mut fec, start, &[400, 401, 402, 403, 480]), 0);
        // The seqids of parity are used all the same.
        let mut packet = [0; 100];
        fec.seal(start, &flow(), &mut packet);
        assert_eq!(packet[..4], [21, 0, 0, 0]);
    }

    #[test]
    fn closing_costs_no_more_bytes_than_parity_adds_to_whole_groups() {
        let start = Instant::now();
        for seed in 0..1_000 {
            let mut rng = Rng::new(seed);
            let config = config(rng.range(2, 100) as usize, rng.range(1, 50) as usize);
            let mut group = OpenGroup::new(start, &flow());
            for _ in 1..rng.range(1, config.data_shards() as u64) {
                group.add(start, &flow(), rng.range(1, 1_400) as usize, config);
            }
            let Some(closing) = group.closing(config, None) else {
                assert_eq!(group.close_at, None);
                continue;
            };
            let added = closing.fillers * FILLER_BYTES + closing.parities * group.longest;
            let allowed = group.bytes * config.parity_shards() / config.data_shards();
            assert!(added <= allowed && closing.fillers <= group.packets, "seed {seed}");
            assert_eq!(group.packets + closing.fillers, config.data_shards());
        }
    }

    #[test]
    fn fec_probe_uses_up_one_parity_packet_of_its_group() {
        let start = Instant::now();
        for (parity, covered) in [(2, Some((5, 1))), (1, None)] {
            let mut fec = FecSender::confirmed(config(5, parity), start);
            (0..4).for_each(|_| assert_eq!(fec.seal(start, &flow(), &mut [0; 100]), 0));
            assert_eq!(fec.seal_probe(start, &flow(), &mut [0; 32]), parity);
            let closed = fec.take_closed().map(|group| (group.packets - 1, group.parities));
            assert_eq!(closed, covered);
        }
    }

    #[test]
    fn parity_that_may_not_leave_is_not_waited_for() {
        let start = Instant::now();
        for may_send_extras in [true, false] {
            let mut codec = PacketCodec::new(&Config::new(), [0; 32]);
            let mut tx = SendBatch::default();
            let mut fec = FecSender::confirmed(config(5, 2), start);
            for _ in 0..5 {
                let fec = Some((&mut fec, &flow()));
                let extras = SendExtras { fec, duplicates: 0, may_send_extras };
                codec.encode(start, &mut tx, ([127, 0, 0, 1], 1).into(), extras, |tail| {
                    tail.extend([0; 100]);
                    Written::NewData
                });
            }
            assert_eq!(tx.len(), if may_send_extras { 7 } else { 5 });
            assert_eq!(fec.take_closed().is_some(), may_send_extras);
        }
    }

    #[test]
    fn layout_is_bounded_from_the_first_packet_on() {
        let mut fec = FecSender::new(config(10, 3));
        let set = |fec: &mut FecSender, data, parity| {
            fec.set_config(config(data, parity), fec.max_shards());
            fec.encoder.config() == config(data, parity)
        };
        assert!(set(&mut fec, 20, 5) && set(&mut fec, 5, 2) && set(&mut fec, 10, 3));
        fec.seal(Instant::now(), &flow(), &mut [0; 100]);
        assert!(!set(&mut fec, 10, 4) && set(&mut fec, 5, 2) && !set(&mut fec, 5, 3));
    }

    #[test]
    fn last_packet_between_two_layouts_is_in_no_group() {
        let start = Instant::now();
        let mut fec = FecSender::new(config(5, 2));
        fec.set_config(config(4, 2), FecConfig::MAX_SHARDS);
        while fec.encoder.is_unprotected() {
            assert_eq!(fec.seal(start, &flow(), &mut [0; 100]), 0);
            assert!(fec.group.is_none());
        }
        fec.seal(start, &flow(), &mut [0; 100]);
        assert_eq!(fec.group.map(|group| group.packets), Some(1));
    }

    #[test]
    fn group_is_closed_early_only_if_its_parity_suffices() {
        let (start, config) = (Instant::now(), config(5, 2));
        let close_after = |loss_rate| {
            let mut group = OpenGroup::new(start, &flow());
            for millis in [0, 10, 20] {
                let now = start + Duration::from_millis(millis);
                group.add(now, &FlowTiming { loss_rate, ..flow() }, 1_000, config);
            }
            (group.close_at.unwrap() - start).as_millis()
        };
        // Open for 25 ms; or idle for that long.
        assert_eq!([0, 16_000, 17_000, 100_000].map(close_after), [25, 25, 45, 45]);
    }

    #[test]
    fn group_that_splits_a_message_is_closed_with_the_message_before_the_next_one() {
        let (start, config) = (Instant::now(), config(6, 4));
        let limited = FlowTiming { parity_rate: Some(166_666), ..flow() };
        let mut fec = FecSender::confirmed(config, start);
        let at = |millis| start + Duration::from_millis(millis);
        let message = |fec: &mut FecSender, millis| {
            let parities = [0; 2].map(|_| fec.seal(at(millis), &limited, &mut [0; 560]));
            (parities, fec.deadline(1))
        };
        // In whole messages: parity leaves with the third one.
        assert_eq!(message(&mut fec, 0), ([0, 0], None));
        assert_eq!(message(&mut fec, 10).0, [0, 0]);
        assert_eq!(message(&mut fec, 20), ([0, 1], None));
        // A FEC probe takes a place in between.
        assert_eq!(message(&mut fec, 30).0, [0, 0]);
        assert_eq!(message(&mut fec, 40).0, [0, 0]);
        assert_eq!(fec.seal(at(50), &limited, &mut [0; 560]), 0);
        assert_eq!(fec.seal_probe(at(50), &limited, &mut [0; 32]), 2);
        assert_eq!(fec.seal(at(50), &limited, &mut [0; 560]), 0);
        assert_eq!(message(&mut fec, 60).0, [0, 0]);
        let (parities, deadline) = message(&mut fec, 70);
        assert_eq!((parities, deadline), ([0, 0], Some(at(70))));
        let closing = fec.begin_closing(at(70), &limited, true).unwrap();
        assert_eq!(closing.fillers, 1);
        fec.seal(at(70), &limited, &mut [0; 32]);
        assert_eq!(fec.encoder().packets_in_group(), 0);
        assert_eq!(message(&mut fec, 80), ([0, 0], None), "the next group splits nothing");
    }

    #[test]
    fn group_is_not_realigned_for_another_connection_or_within_a_message() {
        let (start, config) = (Instant::now(), config(4, 2));
        let limited = FlowTiming { parity_rate: Some(400_000), ..flow() };
        // A group that begins in the middle of what leaves, and is full but for one packet.
        let fillers = |ends: u32, later: u32, has_unsent| {
            let mut fec = FecSender::confirmed(config, start);
            let of = |conv| FlowTiming { conv, has_unsent, ..limited };
            for conv in [1, 1, 1, ends, 1, 1, later] {
                fec.seal(start, &of(conv), &mut [0; 560]);
            }
            assert_eq!(fec.encoder().packets_in_group(), 3);
            fec.begin_closing(start, &of(1), true).map(|closing| closing.fillers)
        };
        assert_eq!(fillers(1, 1, false), Some(1));
        assert_eq!(fillers(1, 1, true), None, "the message goes on");
        assert_eq!(fillers(2, 1, false), None, "the burst was of another connection");
        assert_eq!(fillers(1, 2, false), None, "another connection takes part");
    }

    #[test]
    fn group_is_not_closed_before_a_fec_probe_is_answered() {
        let start = Instant::now();
        let mut fec = FecSender::new(config(5, 2));
        let later = start + Duration::from_millis(40);
        let fill = |fec: &mut FecSender| {
            for _ in 0..4 {
                fec.seal(start, &flow(), &mut [0; 1_000]);
            }
            fec.deadline(1)
        };
        assert_eq!(fill(&mut fec), None, "no timer runs for a group that stays open");
        assert_eq!(fec.begin_closing(later, &flow(), true), None);
        assert_eq!(fec.seal_probe(start, &flow(), &mut [0; 32]), 2);
        fec.on_probe_answered();
        let closed = fec.take_closed();
        assert!(closed.is_none(), "the FEC probe was not answered when the parity left");
        assert_eq!(fill(&mut fec), Some(start + Duration::from_millis(25)));
        assert_eq!(fec.deadline(2), None, "another connection of the address");
        let closing = fec.begin_closing(later, &flow(), true);
        assert_eq!(closing, Some(Closing { fillers: 1, parities: 1 }));
        assert_eq!(fec.seal(later, &flow(), &mut [0; 32]), 1);
        let closed = fec.take_closed().unwrap();
        assert_eq!((closed.packets, closed.parities), (6, 1));
    }
}
