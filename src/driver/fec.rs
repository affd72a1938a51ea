//! FEC towards one address: which datagrams form a group, how many of its parity packets leave, and
//! when a group that does not fill is closed.
//!
//! The encoder numbers and computes; this decides. Parity that cannot arrive before a retransmission is left
//! out, as is parity of groups that no segment waits for. Its seqids are used all the same, as if the packets
//! were lost.
//!
//! A group does not depend on the local IP. If a peer has connections with several IPs of this host from one
//! port, its groups mix packets of several of its source addresses, and it recovers less. Nothing is
//! delivered wrongly, since connections belong to an address too. The decoder (`PeerTable::decode`) belongs
//! to the peer's address as well: it mixes the groups that a peer keeps for each IP of this host, and
//! recovers less.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use crate::config::{IP_UDP_HEADERS, SEGMENT_HEADER};
use crate::core::connection::fec::{ClosedGroup, FlowTiming};
use crate::fec::{FecConfig, FecEncoder, HEADER_LEN};

const MILLION: u64 = 1_000_000;
/// Groups of a layout that leave whole. A decoder with another configuration learns the layout only from
/// whole groups.
const LEARNING_GROUPS: u32 = 16;
/// Bytes of a filler: IP and UDP headers, FEC header, window update.
const FILLER_BYTES: usize = IP_UDP_HEADERS + HEADER_LEN + SEGMENT_HEADER;

/// FEC encoder of one address and the state of its current group.
#[derive(Debug)]
pub(crate) struct FecSender {
    encoder: FecEncoder,
    group: Option<OpenGroup>,
    closed: Option<ClosedGroup>,
    /// The group is being closed, with this number of parity packets.
    closing: Option<usize>,
    /// Groups since the layout began, at most [`LEARNING_GROUPS`].
    groups: u32,
    /// A packet has left with a header of the encoder.
    started: bool,
    /// Parity packets, and their bytes, since the last [`Self::take_parity_sent`].
    parity_sent: (usize, usize),
}

impl FecSender {
    #[cfg(any(test, fuzzing, feature = "_testkit"))]
    pub(crate) fn new(config: FecConfig) -> Self {
        Self::starting_at(config, 0)
    }

    /// The first packet has this seqid, or the next one that begins a group.
    pub(crate) fn starting_at(config: FecConfig, seqid: u32) -> Self {
        Self {
            encoder: FecEncoder::starting_at(config, seqid),
            group: None,
            closed: None,
            closing: None,
            groups: 0,
            started: false,
            parity_sent: (0, 0),
        }
    }

    /// Towards a peer that has learned the layout.
    #[cfg(test)]
    pub(crate) fn learned(config: FecConfig) -> Self {
        Self { groups: LEARNING_GROUPS, ..Self::new(config) }
    }

    /// Whether every group leaves whole, so that the peer can learn the layout.
    fn is_learning(&self) -> bool {
        self.groups < LEARNING_GROUPS
    }

    /// The encoder, which writes the parity that is due.
    pub(crate) fn encoder(&self) -> &FecEncoder {
        &self.encoder
    }

    /// Most shards that a layout may have unless the decoder of the peer learns any: from the first packet on
    /// not more than now. kcp-go compares the numbers of groups. Larger groups have smaller numbers, which it
    /// would take for late ones.
    pub(crate) fn max_shards(&self) -> usize {
        if self.started { self.encoder.config().shards() } else { FecConfig::MAX_SHARDS }
    }

    /// Changes the layout, if the new one has at most `max_shards`.
    pub(crate) fn set_config(&mut self, config: FecConfig, max_shards: usize) {
        if config != self.encoder.config() && config.shards() <= max_shards {
            (self.group, self.groups) = (None, 0);
            self.encoder.set_config(config);
        }
    }

    /// Writes the header of a data packet, see [`FecEncoder::seal`]. Returns the number of parity
    /// packets that leave now.
    pub(crate) fn seal(&mut self, now: Instant, flow: &FlowTiming, packet: &mut [u8]) -> usize {
        // The last unprotected packet between two layouts leaves the encoder at the start of a group.
        let unprotected = self.encoder.is_unprotected();
        self.started = true;
        let due = self.encoder.seal(now, packet);
        if unprotected {
            return 0;
        }
        let group = self.group.get_or_insert_with(|| OpenGroup::new(now, flow));
        if self.closing.is_none() {
            group.add(now, flow, packet.len(), self.encoder.config());
        }
        self.finish_group(now, flow, due)
    }

    /// Length of a run of data packets, at least 1, that only its last packet may end the group. The loss
    /// rate before the first packet applies to all.
    pub(crate) fn run_len(&self) -> usize {
        if self.encoder.is_unprotected() {
            return 1;
        }
        self.encoder.config().data_shards() - self.encoder.packets_in_group()
    }

    /// Ends the group if it is full, with at most `due` parity packets.
    fn finish_group(&mut self, now: Instant, flow: &FlowTiming, due: usize) -> usize {
        if self.encoder.packets_in_group() > 0 {
            return 0;
        }
        let is_learning = self.is_learning();
        self.groups = self.groups.saturating_add(1).min(LEARNING_GROUPS);
        let (group, closing) = (self.group.take(), self.closing.take());
        let Some(group) = group else { return 0 };
        if !is_learning && group.is_late(now, flow) {
            return 0;
        }
        let parities = closing.unwrap_or(due).min(due);
        // No segment waits for parity while the peer learns the layout, since the peer recovers nothing.
        self.closed = (!is_learning).then_some(ClosedGroup {
            conv: group.conv,
            first_xmit_seq: group.first_xmit_seq,
            opened: group.opened,
            packets: self.encoder.config().data_shards() + parities,
            parities,
        });
        parities
    }

    /// The parity that is due may not leave, so no segment waits for it.
    pub(crate) fn on_parity_withheld(&mut self) {
        self.closed = None;
    }

    /// `packets` parity packets leave, with `bytes`.
    pub(crate) fn on_parity_sent(&mut self, packets: usize, bytes: usize) {
        self.parity_sent.0 += packets;
        self.parity_sent.1 += bytes;
    }

    /// Parity packets, and their bytes, that have left since the last call.
    pub(crate) fn take_parity_sent(&mut self) -> (usize, usize) {
        std::mem::take(&mut self.parity_sent)
    }

    /// The group of the parity that left with the last packet.
    pub(crate) fn take_closed(&mut self) -> Option<ClosedGroup> {
        self.closed.take().filter(|group| group.parities > 0)
    }

    /// When to call [`Self::begin_closing`] with the connection `conv`, if that began the group. Another
    /// connection may be unknown to the peer, and fillers must not be its first datagrams.
    pub(crate) fn deadline(&self, conv: u32) -> Option<Instant> {
        let group = self.group.as_ref().filter(|group| group.conv == conv)?;
        group.close_at.filter(|_| !self.is_learning())
    }

    /// How to close the group now, if it is due and `may_fill` permits; otherwise it stays open until it is
    /// full.
    pub(crate) fn begin_closing(
        &mut self,
        now: Instant,
        flow: &FlowTiming,
        may_fill: bool,
    ) -> Option<Closing> {
        let (config, is_learning) = (self.encoder.config(), self.is_learning());
        let group = self.group.as_mut()?;
        group.close_at.take_if(|at| *at <= now)?;
        let may_close = may_fill && !is_learning && !group.is_late(now, flow);
        let closing = group.closing(config).filter(|_| may_close)?;
        self.closing = Some(closing.parities);
        Some(closing)
    }
}

// A FEC group that is not full: its packets, and when and how it is closed.

/// A group that has been open for this long, or for half a round trip if that is shorter, is closed if its
/// parity then suffices. A group whose parity does not suffice is closed once it has taken no packet for this
/// long.
const CLOSE_AFTER: Duration = Duration::from_millis(25);
/// A group is closed early if it has this multiple of the parity that recovers the expected losses. Measured:
/// with less, groups that lose too much cost more latency at 5 % loss than shorter groups save.
const EARLY_CLOSE_MARGIN: u64 = 10;

/// A group that is not full.
#[derive(Clone, Copy, Debug)]
struct OpenGroup {
    /// The connection that began the group, and the order of transmission of its first segment.
    conv: u32,
    first_xmit_seq: u64,
    opened: Instant,
    /// Sum of the times from `opened` to each packet.
    offsets: Duration,
    /// When the group is closed, if it can be.
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
        let len = len + IP_UDP_HEADERS;
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

    /// Whether parity would come no earlier than a retransmission, going by the mean time since the packets
    /// left.
    fn is_late(&self, now: Instant, flow: &FlowTiming) -> bool {
        let packets = u32::try_from(self.packets).unwrap_or(u32::MAX);
        let mean = self.offsets / packets.max(1);
        let limit = flow.srtt.map_or(flow.rto, |srtt| srtt.max(flow.rto / 2));
        now.saturating_duration_since(self.opened).saturating_sub(mean) > limit
    }

    /// The fillers and parity packets that may close the group: together no more bytes than parity adds to
    /// whole groups, and no more fillers than data packets.
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
    /// Whether the parity can recover nearly every group of this number of data packets.
    fn suffices(self, packets: usize, loss_rate: u32) -> bool {
        let sent = (packets + self.fillers + self.parities) as u64;
        sent * u64::from(loss_rate) * EARLY_CLOSE_MARGIN <= self.parities as u64 * MILLION
    }
}
