//! A FEC group that is not full: its packets, and when and how it is closed.

use std::time::{Duration, Instant};

use super::{FILLER_BYTES, MILLION};
use crate::config::IP_UDP_HEADERS;
use crate::core::connection::fec::FlowTiming;
use crate::fec::FecConfig;

/// A group that has been open for this long, or for half a round trip if that is shorter, is
/// closed if the parity that it may have then suffices; another one when it has taken no packet for
/// that long.
const CLOSE_AFTER: Duration = Duration::from_millis(25);
/// A group is closed early if it has this many times the parity that recovers the expected losses.
/// Measured: with less, groups that lose too much cost more latency at 5 % loss than the shorter
/// ones save.
const EARLY_CLOSE_MARGIN: u64 = 10;

/// A group that is not full.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenGroup {
    /// The connection that began it, and the order of transmission of its first segment.
    pub(super) conv: u32,
    pub(super) first_xmit_seq: u64,
    pub(super) opened: Instant,
    /// Sum of the times from `opened` to each packet.
    offsets: Duration,
    /// When it is closed, if it can be.
    pub(super) close_at: Option<Instant>,
    pub(super) packets: usize,
    /// Bytes of all packets, and of the longest one; IP packets.
    pub(super) bytes: usize,
    pub(super) longest: usize,
}

/// How a group is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) fillers: usize,
    pub(crate) parities: usize,
}

impl OpenGroup {
    pub(super) fn new(now: Instant, flow: &FlowTiming) -> Self {
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
    pub(super) fn add(&mut self, now: Instant, flow: &FlowTiming, len: usize, config: FecConfig) {
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

    /// Whether the packets of the group left so long ago, in the mean, that parity comes no earlier
    /// than a retransmission.
    pub(super) fn is_late(&self, now: Instant, flow: &FlowTiming) -> bool {
        let packets = u32::try_from(self.packets).unwrap_or(u32::MAX);
        let mean = self.offsets / packets.max(1);
        let limit = flow.srtt.map_or(flow.rto, |srtt| srtt.max(flow.rto / 2));
        now.saturating_duration_since(self.opened).saturating_sub(mean) > limit
    }

    /// The fillers and parity packets with which the group may be closed: together no more bytes than
    /// parity adds to whole groups, and no more fillers than data packets.
    pub(super) fn closing(&self, config: FecConfig) -> Option<Closing> {
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
