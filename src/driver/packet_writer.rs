//! Where the datagrams of one connection are written: the send batch of the turn, the packet codec
//! of the endpoint, and FEC towards the destination address.

use std::time::Instant;

use crate::core::connection::Kcp;
use crate::core::connection::fec::FlowTiming;
use crate::driver::fec_sender::FecSender;
use crate::driver::packet_codec::{PacketCodec, SendExtras, Written};
use crate::driver::send_batch::SendBatch;
use crate::util::Framing;
use crate::util::path::Path;

/// Send batch, packet codec and FEC, borrowed while one connection transmits.
#[derive(Debug)]
pub(crate) struct PacketWriter<'a> {
    pub(crate) tx: &'a mut SendBatch,
    pub(crate) codec: &'a mut PacketCodec,
    /// FEC towards the destination address, if it is on. All connections to one address share it,
    /// since parity carries no conversation id.
    pub(crate) fec: Option<&'a mut FecSender>,
}

/// Datagrams that [`PacketWriter::transmit`] appended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Appended {
    /// Their number, copies and parity included; zero if nothing may leave now.
    pub(crate) datagrams: usize,
    /// The next one may belong to the same GSO batch.
    pub(crate) in_gso_batch: bool,
    /// The stream has nothing else to send now.
    pub(crate) is_last: bool,
}

impl PacketWriter<'_> {
    /// Appends the next datagram of `kcp`, with `duplicates` copies and the parity that it
    /// completes. `in_gso_batch`: that of the datagram before, if nothing else left after it. Up to `max`
    /// datagrams of the GSO batch are appended at once, unless each has copies.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        kcp: &mut Kcp,
        (path, duplicates): (Path, u8),
        (mut in_gso_batch, max): (bool, usize),
    ) -> Appended {
        let may_send_extras = kcp.send_budget().may_send_extras();
        self.update_fec(kcp);
        if in_gso_batch && duplicates == 0 {
            return self.transmit_run(now, kcp, path, max);
        }
        let flow = if self.fec.is_some() { kcp.flow_timing() } else { FlowTiming::default() };
        let before = self.tx.bytes();
        let (mut len, mut is_last) = (0, false);
        let write = |tail: &mut Vec<u8>| {
            let (mut new_segments, mut is_repair) = (1, false);
            if in_gso_batch {
                let size = kcp.current_mtu();
                len = size * kcp.poll_transmit_more(1, Framing::default(), tail);
            } else if let Some(sent) = kcp.poll_transmit(now, tail) {
                (len, in_gso_batch, is_last) = (sent.len, sent.gso_follows, sent.is_last);
                (new_segments, is_repair) = (sent.new_segments, sent.is_repair);
            }
            match len {
                0 => Written::Nothing,
                _ if is_repair => Written::Repair,
                _ if new_segments > 0 => Written::NewData,
                _ => Written::Other,
            }
        };
        let fec = self.fec.as_deref_mut().map(|fec| (fec, &flow));
        let extras = SendExtras { fec, duplicates, may_send_extras };
        let datagrams = self.codec.encode(now, self.tx, path, extras, write);
        if datagrams > 0 {
            kcp.on_out_of_band_sent(now, self.tx.bytes() - before - len);
            in_gso_batch &= !self.report_closed_group(now, kcp);
        }
        Appended { datagrams, in_gso_batch, is_last }
    }

    /// Appends up to `max` further datagrams of a GSO batch, all of equal length, and the parity that they
    /// complete.
    fn transmit_run(&mut self, now: Instant, kcp: &mut Kcp, path: Path, max: usize) -> Appended {
        let (framing, before) = (self.codec.framing(self.fec.is_some()), self.tx.bytes());
        let (mtu, flow) = (kcp.current_mtu(), self.fec.is_some().then(|| kcp.flow_timing()));
        let size = framing.around(mtu);
        let mut max = max.min(self.tx.capacity_left(size));
        if size > mtu && kcp.is_rate_limited() {
            // Each is charged with what is added to it before the next one may leave.
            max = max.min(1);
        }
        if let Some(fec) = &self.fec {
            max = max.min(fec.run_len());
        }
        let write = |tail: &mut Vec<u8>| kcp.poll_transmit_more(max, framing, tail);
        let count = self.tx.append_equal(path, write);
        let mut appended = Appended { datagrams: count, in_gso_batch: true, is_last: false };
        if count == 0 || size == mtu {
            return appended;
        }
        if let (Some(fec), Some(flow)) = (self.fec.as_deref_mut(), &flow) {
            let run = (count, size);
            appended.datagrams += self.codec.protect_run(now, self.tx, path, (fec, flow), run);
        }
        kcp.on_out_of_band_sent(now, self.tx.bytes() - before - count * mtu);
        appended.in_gso_batch = !self.report_closed_group(now, kcp);
        appended
    }

    /// Sends without FEC to a peer that takes repair symbols instead.
    fn update_fec(&mut self, kcp: &mut Kcp) {
        let Some(_) = &self.fec else { return };
        let used = kcp.uses_fec();
        kcp.set_fec_used(used);
        if !used {
            self.fec = None;
        }
    }

    /// Closes the FEC group if it is due and the batch has space left: appends fillers and parity.
    /// Returns the number of datagrams.
    pub(crate) fn close_group(&mut self, now: Instant, kcp: &mut Kcp, path: Path) -> usize {
        if self.tx.is_full() {
            return 0;
        }
        let conv = kcp.conv();
        let due = |fec: &&mut FecSender| fec.deadline(conv).is_some_and(|at| at <= now);
        let Some(fec) = self.fec.as_deref_mut().filter(due) else { return 0 };
        let (flow, before) = (kcp.flow_timing(), self.tx.bytes());
        let may_fill = kcp.may_fill_fec_group(now);
        let Some(closing) = fec.begin_closing(now, &flow, may_fill) else { return 0 };
        let (mut datagrams, mut written) = (0, 0);
        for _ in 0..closing.fillers {
            let write = |tail: &mut Vec<u8>| {
                written += kcp.write_fec_filler(now, tail);
                Written::NewData
            };
            let fec = self.fec.as_deref_mut().map(|fec| (fec, &flow));
            let extras = SendExtras { fec, duplicates: 0, may_send_extras: true };
            datagrams += self.codec.encode(now, self.tx, path, extras, write);
        }
        kcp.on_out_of_band_sent(now, self.tx.bytes() - before - written);
        self.report_closed_group(now, kcp);
        datagrams
    }

    /// Hands the group whose parity has just left to loss detection. Returns whether there was one: a
    /// segment behind it may count as lost now, and would leave before the rest of a GSO batch.
    fn report_closed_group(&mut self, now: Instant, kcp: &mut Kcp) -> bool {
        let Some(fec) = self.fec.as_deref_mut() else { return false };
        let (packets, bytes) = fec.take_parity_sent();
        kcp.on_parity_sent(packets, bytes);
        let closed = fec.take_closed().filter(|group| group.conv == kcp.conv());
        if let Some(group) = &closed {
            kcp.on_fec_group_closed(now, group);
        }
        closed.is_some()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, KcpConfig};
    use crate::core::connection::Seed;
    use crate::fec::FecConfig;

    #[test]
    fn group_is_not_closed_while_the_batch_is_full() {
        let path = Path::to(SocketAddr::from(([127, 0, 0, 1], 1)));
        let start = Instant::now();
        let mut kcp = Kcp::new(1, &KcpConfig::default(), start, Seed::default()).unwrap();
        let (mut tx, mut codec) = (SendBatch::default(), PacketCodec::new(&Config::new(), [0; 32]));
        let mut fec = FecSender::learned(FecConfig::new(5, 2).unwrap());
        for _ in 0..4 {
            fec.seal(start, &kcp.flow_timing(), &mut [0; 1_000]);
        }
        let now = start + Duration::from_millis(30);
        while !tx.is_full() {
            tx.push_sealed(path, &[0; 1_400]);
        }
        let mut full = PacketWriter { tx: &mut tx, codec: &mut codec, fec: Some(&mut fec) };
        assert_eq!(full.close_group(now, &mut kcp, path), 0);
        let mut tx = SendBatch::default();
        let mut next = PacketWriter { tx: &mut tx, codec: &mut codec, fec: Some(&mut fec) };
        assert_eq!(next.close_group(now, &mut kcp, path), 2, "a filler and a parity packet");
    }
}
