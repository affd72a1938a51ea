//! Datagrams of one connection into the send batch: the stream, out-of-band datagrams, and what FEC
//! and the cipher add. How much an unvalidated peer is sent is decided in
//! `core/path/amplification.rs`.

use std::time::Instant;

use crate::driver::connection::Conn;
use crate::driver::packet_writer::PacketWriter;

impl Conn {
    /// Appends datagrams to the batch until there are `limit` or more, duplicates and parity
    /// included, and returns how many there are. Fewer than `limit`, with space left in the batch,
    /// means that nothing more may leave now. Out-of-band datagrams and those of the stream
    /// alternate.
    pub(in super::super) fn transmit(
        &mut self,
        now: Instant,
        out: &mut PacketWriter<'_>,
        limit: usize,
    ) -> usize {
        self.rate_limited_until = None;
        let mut count = 0;
        let mut stream_is_done = false;
        while count < limit && !out.tx.is_full() {
            let mut sent = if self.prefer_stream { 0 } else { self.transmit_out_of_band(now, out) };
            if sent == 0 && !stream_is_done {
                (sent, stream_is_done) = self.transmit_stream(now, out, limit - count);
            }
            if sent == 0 && self.prefer_stream {
                sent = self.transmit_out_of_band(now, out);
            }
            if sent == 0 {
                break;
            }
            count += sent;
        }
        if count < limit {
            count += out.close_group(now, &mut self.kcp, self.path);
        }
        count
    }

    /// Appends datagrams of the stream: a GSO batch of full new segments, up to `limit` datagrams,
    /// or one datagram of anything else. Returns their number, and whether there is nothing else.
    fn transmit_stream(
        &mut self,
        now: Instant,
        out: &mut PacketWriter<'_>,
        limit: usize,
    ) -> (usize, bool) {
        let to = (self.path, self.duplicates);
        let (mut count, mut in_gso_batch) = (0, false);
        let mut is_done;
        loop {
            let gso = (in_gso_batch, limit - count);
            let appended = out.transmit(now, &mut self.kcp, to, gso);
            let sent_nothing = appended.datagrams == 0;
            // Behind a GSO batch that has ended, something else may be due.
            is_done = appended.is_last || (sent_nothing && !appended.in_gso_batch);
            if sent_nothing {
                break;
            }
            count += appended.datagrams;
            in_gso_batch = appended.in_gso_batch;
            self.prefer_stream = false;
            if !in_gso_batch
                || count >= limit
                || out.tx.is_full()
                || self.shared.datagrams.has_outgoing()
            {
                break;
            }
        }
        (count, is_done)
    }

    /// Appends one out-of-band datagram, but none before a segment of this connection has left:
    /// other implementations would take the out-of-band datagram for the initial segment.
    fn transmit_out_of_band(&mut self, now: Instant, out: &mut PacketWriter<'_>) -> usize {
        let may_send = self.kcp.has_started() && self.kcp.send_budget().may_send_extras();
        if !self.shared.datagrams.has_outgoing() || !may_send {
            return 0;
        }
        self.rate_limited_until = self.kcp.rate_limited_until(now);
        if self.rate_limited_until.is_some() {
            return 0;
        }
        let Some(payload) = self.shared.datagrams.next_outgoing() else { return 0 };
        let before = out.tx.bytes();
        out.codec.encode_out_of_band(out.tx, self.path, self.shared.conv, &payload);
        self.kcp.on_out_of_band_sent(now, out.tx.bytes() - before);
        self.out_of_band.0 += 1;
        self.prefer_stream = true;
        1
    }
}
