//! FEC towards one address: which datagrams form a group, how many of its parity packets leave, and
//! when a group that does not fill is closed.
//!
//! The encoder numbers and computes; this decides. Parity that cannot arrive before a
//! retransmission would is left out, as is parity of groups that nobody waits for; its seqids are
//! used all the same, like those of lost packets.

use std::time::{Duration, Instant};

use crate::config::SEGMENT_HEADER;
use crate::core::connection::fec::FlowTiming;
use crate::driver::fec_sounding::Soundings;
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
/// Bytes of IPv4 and UDP headers.
const IP_OVERHEAD: usize = 28;
/// Bytes of a filler: FEC header and window update.
const FILLER_BYTES: usize = IP_OVERHEAD + HEADER_LEN + SEGMENT_HEADER;

/// A group that is not full.
#[derive(Clone, Copy, Debug)]
struct OpenGroup {
    /// The connection that began it, and the order of transmission of its first segment.
    conv: u32,
    first_xmit_seq: u64,
    opened: Instant,
    /// Sum of the times from `opened` to each packet.
    offsets: Duration,
    /// When it is closed, if it can be.
    close_at: Option<Instant>,
    packets: usize,
    /// Bytes of all packets, and of the longest one; IP packets.
    bytes: usize,
    longest: usize,
}

/// A group whose parity leaves now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosedGroup {
    pub(crate) conv: u32,
    pub(crate) first_xmit_seq: u64,
    pub(crate) opened: Instant,
    pub(crate) parities: usize,
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
    /// The group is being closed, with so many parity packets.
    closing: Option<usize>,
    soundings: Soundings,
    /// Nothing shows that the peer decodes FEC: none is sent.
    disabled: bool,
}

impl FecSender {
    pub(crate) fn new(config: FecConfig) -> Self {
        Self {
            encoder: FecEncoder::new(config),
            group: None,
            closed: None,
            closing: None,
            soundings: Soundings::default(),
            disabled: false,
        }
    }

    /// The encoder, which writes the parity that is due.
    pub(crate) fn encoder(&self) -> &FecEncoder {
        &self.encoder
    }

    /// Whether datagrams leave without FEC, since nothing shows that the peer decodes it.
    pub(crate) fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// Changes the layout. The peer has to show that it decodes the new one.
    pub(crate) fn set_config(&mut self, config: FecConfig) {
        if config != self.encoder.config() {
            (self.group, self.soundings, self.disabled) = (None, Soundings::default(), false);
            self.encoder.set_config(config);
        }
    }

    /// Writes the header of a data packet, see [`FecEncoder::seal`]. Returns the number of parity
    /// packets that leave now.
    pub(crate) fn seal(&mut self, now: Instant, flow: &FlowTiming, packet: &mut [u8]) -> usize {
        let due = self.encoder.seal(now, packet);
        if self.encoder.is_unprotected() {
            return 0;
        }
        self.soundings.on_packet();
        let group = self.group.get_or_insert_with(|| OpenGroup::new(now, flow));
        if self.closing.is_none() {
            group.add(now, flow, packet.len(), self.encoder.config());
        }
        self.finish_group(now, flow, due)
    }

    /// Writes the header of a sounding, which does not leave. Returns the number of parity packets
    /// that leave now.
    pub(crate) fn seal_sounding(
        &mut self,
        now: Instant,
        flow: &FlowTiming,
        packet: &mut [u8],
    ) -> usize {
        let due = self.encoder.seal(now, packet);
        self.soundings.on_sent(now);
        self.finish_group(now, flow, due)
    }

    /// Ends the group if it is full, with at most `due` parity packets.
    fn finish_group(&mut self, now: Instant, flow: &FlowTiming, due: usize) -> usize {
        if self.encoder.packets_in_group() > 0 {
            return 0;
        }
        self.soundings.on_group();
        self.disabled = self.soundings.have_failed();
        let parities = self.closing.take().unwrap_or(due).min(due);
        // A group of one packet may hold a sounding alone.
        let Some(group) = self.group.take() else { return parities };
        if group.is_late(now, flow) {
            return 0;
        }
        // What a peer does not decode is not worth waiting for.
        self.closed = self.soundings.is_confirmed().then_some(ClosedGroup {
            conv: group.conv,
            first_xmit_seq: group.first_xmit_seq,
            opened: group.opened,
            parities,
        });
        parities
    }

    /// The group whose parity left with the last packet.
    pub(crate) fn take_closed(&mut self) -> Option<ClosedGroup> {
        self.closed.take().filter(|group| group.parities > 0)
    }

    /// Whether a sounding takes the last place in the group now.
    pub(crate) fn wants_sounding(&self, now: Instant, flow: &FlowTiming) -> bool {
        let left = self.encoder.config().data_shards() - self.encoder.packets_in_group();
        left == 1
            && !self.encoder.is_unprotected()
            && self.soundings.is_due(now, flow.rto)
            && self.group.as_ref().is_none_or(|group| !group.is_late(now, flow))
    }

    /// A sounding was answered: the peer decodes the layout.
    pub(crate) fn on_sounding_answered(&mut self) {
        self.soundings.on_answered();
    }

    /// When [`Self::begin_closing`] is to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.group.as_ref()?.close_at
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
        // A decoder learns the layout from whole groups alone.
        let may_close = may_fill && self.soundings.is_confirmed() && !group.is_late(now, flow);
        let closing = group.closing(config).filter(|_| may_close)?;
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
            close_at: None,
            packets: 0,
            bytes: 0,
            longest: 0,
        }
    }

    /// A packet of `len` bytes joins the group.
    fn add(&mut self, now: Instant, flow: &FlowTiming, len: usize, config: FecConfig) {
        let len = len + IP_OVERHEAD;
        self.packets += 1;
        self.bytes += len;
        self.longest = self.longest.max(len);
        self.offsets += now.saturating_duration_since(self.opened);
        let limit = flow.srtt.map_or(CLOSE_AFTER, |srtt| (srtt / 2).min(CLOSE_AFTER));
        self.close_at = self.closing(config).map(|closing| {
            if closing.suffices(self.packets, flow.loss_rate) {
                (self.opened + limit).max(now)
            } else {
                now + limit
            }
        });
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
    /// parity adds to whole groups, and no more fillers than data packets.
    fn closing(&self, config: FecConfig) -> Option<Closing> {
        let fillers = config.data_shards().saturating_sub(self.packets);
        if self.packets < 2 || fillers > self.packets {
            return None;
        }
        let allowed = self.bytes * config.parity_shards() / config.data_shards();
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
