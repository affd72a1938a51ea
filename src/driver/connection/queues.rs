//! Bytes on their way through a connection: between the queues of its handles and the state machine, and from
//! the state machine into the send batch. `core/path/amplification.rs` limits how much an unvalidated peer is
//! sent.

use std::time::Instant;

use bytes::Bytes;

use crate::driver::connection::Conn;
use crate::driver::connection::lifecycle::Lifecycle;
use crate::driver::output::{Copies, PacketWriter};
use crate::driver::scratch::Scratch;
use crate::error::ConnectionError;
use crate::shared::memory_use::CHUNK_CHARGE;
use crate::shared::send_queue::Backlog;

impl Conn {
    /// Takes writes from the send queue and delivers received data to the receive queue, within their
    /// windows. Returns whether that wakes a reader of data.
    pub(in super::super) fn exchange_queues(
        &mut self,
        now: Instant,
        scratch: &mut Scratch,
    ) -> bool {
        self.shared.notifier.begin_exchange();
        self.report_datagram_support();
        if self.has_routes() {
            self.open_wanted_paths(now);
        }
        self.take_writes(now, scratch);
        self.deliver(scratch)
    }

    /// Whether the ACK of data that has just woken a reader waits until the next turn, so that it can leave
    /// with an answer (RFC 9293 3.8.6.3). The reader usually runs before that turn (`driver/task.rs`).
    pub(in super::super) fn delays_ack(&mut self, now: Instant, wakes_reader: bool) -> bool {
        // An ACK waits for one turn, even if more datagrams arrive.
        let was_delayed = self.kcp.end_ack_delay();
        wakes_reader
            && !was_delayed
            && self.reported.established
            && self.lifecycle == Lifecycle::Open
            && !self.shared.datagrams.has_outgoing()
            && self.kcp.delay_acks(now)
    }

    fn take_writes(&mut self, now: Instant, scratch: &mut Scratch) {
        let blocked = self.blocked_message.take();
        self.blocked_message = blocked.and_then(|data| self.kcp.queue_message(now, data).err());
        let unit = self.kcp.send_unit();
        let quota = self.quota.saturating_sub(self.kcp.send_memory()).div_ceil(unit);
        let capacity = self.kcp.window_capacity().min(quota.saturating_mul(unit));
        let capacity = if self.blocked_message.is_some() { 0 } else { capacity };
        let backlog = self.send_backlog();
        let taken = self.shared.take_writes(capacity, unit, backlog, &mut scratch.outgoing);
        for item in scratch.outgoing.drain(..) {
            if item.message {
                // Only the first message taken may exceed the capacity, so at most one is blocked.
                self.blocked_message = self.kcp.queue_message(now, item.data).err();
            } else {
                self.kcp.queue(now, item.data);
            }
        }
        if taken.flush {
            self.kcp.flush();
        }
        self.has_unsent_writes = taken.more || self.blocked_message.is_some();
        self.kcp.set_writer_waits(taken.writer_waits || self.has_unsent_writes);
        if taken.write_closed {
            self.lifecycle.on_shutdown(now);
            self.kcp.expedite_open(now);
        }
        if taken.detached {
            if self.lifecycle.connect_deadline().is_some() {
                self.kcp.abandon_open();
            }
            self.lifecycle.on_detached(now);
            // The connection may be removed before delayed ACKs are due.
            self.kcp.flush_acks();
            self.kcp.shutdown_read();
        }
        if taken.reset || (taken.detached && self.shared.linger().is_zero()) {
            self.end_early(ConnectionError::Aborted);
        }
        // An abort discards writes, and a truncated stream must not end in a FIN.
        let complete = !self.has_unsent_writes && self.end_cause.is_none();
        if self.lifecycle.is_closing() {
            // A live peer that does not read then answers before `linger` is over.
            self.kcp.limit_probe_interval(now, self.shared.linger() / 3);
            if complete {
                self.kcp.close(now);
            }
        }
        scratch.wakers.extend(taken.writers);
    }

    /// Bytes that were taken from the send queue and wait to be sent.
    fn send_backlog(&self) -> Backlog {
        let (limit, unsent) = self.kcp.send_backlog();
        let blocked = self.blocked_message.as_ref().map_or(0, Bytes::len);
        Backlog { limit, unsent: unsent + blocked }
    }

    /// Datagrams have left, which lets writers go on.
    pub(in super::super) fn admit_writers(&self, scratch: &mut Scratch) {
        scratch.wakers.extend(self.shared.send.set_backlog(self.send_backlog()));
    }

    fn deliver(&mut self, scratch: &mut Scratch) -> bool {
        let before = scratch.wakers.len();
        if self.kcp.readable().is_some() {
            self.deliver_readable(scratch);
        }
        let wakes_reader = scratch.wakers.len() > before;
        self.report_eof(scratch);
        wakes_reader
    }

    fn deliver_readable(&mut self, scratch: &mut Scratch) {
        let mut capacity = self.shared.recv.available(self.quota);
        while capacity > 0 {
            let Some(chunk) = self.kcp.recv() else { break };
            capacity = capacity.saturating_sub(chunk.len().max(CHUNK_CHARGE));
            scratch.chunks.push_back(chunk);
        }
        let held_back = self.kcp.readable().is_some();
        scratch.wakers.extend(self.shared.recv.deliver(&mut scratch.chunks, held_back));
    }

    /// Delivers all acknowledged data at the end of the connection. The receive window has bounded it, so the
    /// capacity of the receive queue need not.
    pub(in super::super) fn deliver_rest(&mut self, scratch: &mut Scratch) {
        while let Some(chunk) = self.kcp.recv() {
            scratch.chunks.push_back(chunk);
        }
        scratch.wakers.extend(self.shared.recv.deliver(&mut scratch.chunks, false));
        self.report_eof(scratch);
    }

    /// Reports the peer's FIN to the reader once everything before it is in the receive queue.
    fn report_eof(&mut self, scratch: &mut Scratch) {
        if !self.reported.eof && self.kcp.peer_has_closed() {
            self.reported.eof = true;
            scratch.wakers.extend(self.shared.recv.set_eof());
        }
    }

    pub(in super::super) fn on_datagram(
        &mut self,
        now: Instant,
        payload: &[u8],
        scratch: &mut Scratch,
    ) {
        self.last_received = now;
        self.kcp.on_out_of_band_received(now);
        self.out_of_band.1 += 1;
        let received = self.kcp.recv_memory() + self.shared.recv.charged();
        let quota = self.quota.saturating_sub(received);
        let datagram = Bytes::copy_from_slice(payload);
        scratch.wakers.extend(self.shared.datagrams.deliver(datagram, quota));
    }

    /// Lets out-of-band datagrams leave, or discards them, once the peer has shown whether it takes them.
    pub(super) fn report_datagram_support(&mut self) {
        let accepts = self.kcp.peer_accepts_datagrams();
        if let Some(accepts) = accepts.filter(|_| accepts != self.reported.datagrams) {
            self.reported.datagrams = Some(accepts);
            self.shared.datagrams.set_supported(accepts || self.shared.framed);
        }
    }

    /// Appends datagrams to the batch until there are `limit` or more, duplicates and parity included, and
    /// returns their number. Fewer than `limit`, with space left in the batch, means that nothing more may
    /// leave now. Out-of-band datagrams and datagrams of the stream alternate.
    pub(in super::super) fn transmit(
        &mut self,
        now: Instant,
        out: &mut PacketWriter<'_>,
        limit: usize,
    ) -> usize {
        let before = out.tx.datagrams();
        let count = self.transmit_all(now, out, limit);
        if self.has_routes() {
            self.count_sent(out.tx, before);
            #[cfg(feature = "tracing")]
            self.report_paths();
        }
        count
    }

    fn transmit_all(&mut self, now: Instant, out: &mut PacketWriter<'_>, limit: usize) -> usize {
        self.rate_limited_until = None;
        let mut count = 0;
        let mut stream_is_done = false;
        if self.has_routes() && limit > 0 {
            count += self.transmit_on_paths(now, out);
        }
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
            // Data may have gone on to another path, without the ACKs that were to leave with it.
            if self.has_routes() {
                count += self.transmit_on_paths(now, out);
            }
            let path = self.active_path();
            count += out.close_group(now, &mut self.kcp, path);
        }
        count
    }

    /// Appends datagrams of the stream: a GSO batch of full new segments, up to `limit` datagrams, or one
    /// datagram of another kind. Returns their number, and whether the stream has nothing else.
    fn transmit_stream(
        &mut self,
        now: Instant,
        out: &mut PacketWriter<'_>,
        limit: usize,
    ) -> (usize, bool) {
        let (mut count, mut in_gso_batch) = (0, false);
        let mut is_done;
        loop {
            self.choose_copy_paths();
            let (path, max) = (self.active_path(), limit - count);
            let on_paths = self.routes.as_deref_mut().map(|routes| &mut routes.copies);
            let copies = Copies { duplicates: self.duplicates, on_paths };
            let appended = out.transmit(now, &mut self.kcp, path, copies, in_gso_batch, max);
            let sent_nothing = appended.datagrams == 0;
            // After the end of a GSO batch another kind of datagram may be due.
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

    /// Appends one out-of-band datagram, but none before a segment of this connection has left: other
    /// implementations would take the out-of-band datagram for the initial segment.
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
        out.codec.encode_out_of_band(out.tx, self.active_path(), self.shared.conv, &payload);
        self.kcp.on_out_of_band_sent(now, out.tx.bytes() - before);
        self.out_of_band.0 += 1;
        self.prefer_stream = true;
        1
    }
}
