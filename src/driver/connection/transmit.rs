//! What a conversation sends, and how much of it may leave.

use std::time::Instant;

use crate::driver::connection::Conn;
use crate::driver::packet_codec::SendExtras;
use crate::driver::packet_writer::PacketWriter;

/// What may be sent to a peer that has proved nothing: three times what came from there, or a
/// first datagram. Whoever gives someone else's address makes us send no more than that to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AmplificationBudget {
    received: usize,
    sent: usize,
    initial_allowance: usize,
}

impl AmplificationBudget {
    pub(super) fn new(floor: usize) -> Self {
        Self { received: 0, sent: 0, initial_allowance: floor }
    }

    pub(super) fn on_received(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes);
    }

    fn left(&self) -> usize {
        self.received.saturating_mul(3).max(self.initial_allowance).saturating_sub(self.sent)
    }
}

impl Conn {
    /// Appends datagrams to the batch until there are `limit`, copies and parity included, and
    /// returns how many there are. Fewer than `limit`, with room left in the batch, means that
    /// nothing more is due. Out-of-band datagrams and those of the stream take turns.
    pub(in super::super) fn transmit(
        &mut self,
        now: Instant,
        out: &mut PacketWriter<'_>,
        limit: usize,
    ) -> usize {
        let mut count = 0;
        self.held_until = None;
        while count < limit && !out.tx.is_full() {
            let sent = if self.prefer_stream {
                match self.transmit_stream(now, out, limit - count) {
                    0 => self.transmit_out_of_band(now, out),
                    sent => sent,
                }
            } else {
                match self.transmit_out_of_band(now, out) {
                    0 => self.transmit_stream(now, out, limit - count),
                    sent => sent,
                }
            };
            if sent == 0 {
                break;
            }
            count += sent;
        }
        count
    }

    fn credit_left(&self) -> Option<usize> {
        self.validation.as_ref().map(|validation| validation.credit.left())
    }

    /// Full segments that leave for the first time come in runs, up to `most` datagrams; everything
    /// else comes one datagram at a time.
    fn transmit_stream(&mut self, now: Instant, out: &mut PacketWriter<'_>, most: usize) -> usize {
        let overhead = self.shared.overhead;
        let limit = self.credit_left().map_or(usize::MAX, |left| left.saturating_sub(overhead));
        let (kcp, peer) = (&mut self.kcp, self.peer);
        let (mut count, mut follows) = (0, false);
        loop {
            let before = out.tx.bytes();
            let mut len = 0;
            let write = |tail: &mut Vec<u8>| {
                if follows {
                    len = kcp.poll_transmit_more(tail).unwrap_or(0);
                } else if let Some(sent) = kcp.poll_transmit_within(now, tail, limit) {
                    (len, follows) = (sent.len, sent.gso_follows);
                }
                len > 0
            };
            let may_repeat = self.validation.is_none();
            let extra =
                SendExtras { fec: out.fec.as_deref_mut(), copies: self.duplicates, may_repeat };
            let datagrams = out.codec.encode(now, out.tx, peer, extra, write);
            if datagrams == 0 {
                break;
            }
            count += datagrams;
            let bytes = out.tx.bytes() - before;
            kcp.on_out_of_band_sent(now, bytes - len);
            if let Some(validation) = &mut self.validation {
                validation.credit.sent += bytes;
            }
            self.prefer_stream = false;
            if !follows || count >= most || out.tx.is_full() || self.shared.has_datagrams() {
                break;
            }
        }
        count
    }

    /// Not before the stream has begun: to some peers it would be the beginning.
    fn transmit_out_of_band(&mut self, now: Instant, out: &mut PacketWriter<'_>) -> usize {
        if !self.shared.has_datagrams() || !self.kcp.has_started() || self.validation.is_some() {
            return 0;
        }
        self.held_until = self.kcp.rate_limited_until(now);
        if self.held_until.is_some() {
            return 0;
        }
        let Some(payload) = self.shared.next_datagram() else { return 0 };
        let before = out.tx.bytes();
        out.codec.encode_out_of_band(out.tx, self.peer, self.shared.conv, &payload);
        self.kcp.on_out_of_band_sent(now, out.tx.bytes() - before);
        self.out_of_band.0 += 1;
        self.prefer_stream = true;
        1
    }
}
