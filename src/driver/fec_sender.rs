//! FEC towards one address: which datagrams form a group, how many of its parity packets leave, and
//! when a group that does not fill is closed.
//!
//! The encoder numbers and computes; this decides. Parity that cannot arrive before a
//! retransmission would is left out, as is parity of groups that nobody waits for; its seqids are
//! used all the same, like those of lost packets.
//!
//! A group does not depend on the local IP. A peer that has connections with several IPs of this host
//! from one port gets groups in which these are mixed, and recovers less: to it they are from several
//! addresses. Nothing is delivered wrongly, since its connections are those of an address too. The
//! decoder is that of the peer's address as well: of a peer that has a group for each IP of this host
//! these are mixed in it, and less is recovered (`PeerTable::decode`).

mod group;
#[cfg(test)]
mod tests;

use std::time::Instant;

use crate::config::{IP_UDP_HEADERS, SEGMENT_HEADER};
use crate::core::connection::fec::{ClosedGroup, FlowTiming};
use crate::core::connection::fec_counters::ParitySent;
use crate::driver::fec_probes::FecProbes;
use crate::driver::fec_sender::group::{Closing, OpenGroup};
use crate::fec::{FecConfig, FecEncoder, HEADER_LEN};

const MILLION: u64 = 1_000_000;
/// Bytes of a filler: FEC header and window update.
const FILLER_BYTES: usize = IP_UDP_HEADERS + HEADER_LEN + SEGMENT_HEADER;

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
        let new = || OpenGroup::new(now, flow, splits_burst);
        let group = self.group.get_or_insert_with(new);
        if self.closing.is_none() {
            group.add(now, flow, packet.len(), self.encoder.config());
        }
        self.finish_group(now, flow, due, false)
    }

    /// Data packets in a row, at least one, of which only the last may end the group or come before a
    /// FEC probe. All are judged by the loss rate before the first.
    pub(crate) fn run_len(&self, now: Instant, flow: &FlowTiming) -> usize {
        if self.encoder.is_unprotected() {
            return 1;
        }
        let left = self.encoder.config().data_shards() - self.encoder.packets_in_group();
        let before_probe = left > 1 && self.probes.is_due(now, flow.rto);
        left - usize::from(before_probe)
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
        let realigns = group.realigns(config);
        if realigns && flow.has_unsent {
            // The rest of the message is about to fill the group.
            return None;
        }
        let closing = match flow.parity_rate.filter(|_| realigns) {
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
