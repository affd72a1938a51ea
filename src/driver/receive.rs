//! The receiving half of a turn.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Driver, RECV_CALLS, RX, TURN_ANSWERS, TURN_PACKETS};
use crate::core::connection::PacketType;
use crate::core::segment::{self, Header};
use crate::driver::demux::Route;
use crate::driver::packet_codec::{OpenFailure, Opened, SendExtras};
use crate::driver::packet_writer::PacketWriter;
use crate::fec::{self, FecFlag, oob};
use crate::shared::notifier::ConnId;
use crate::sys::{RecvFault, RxBatch, Socket, classify_recv, count};

/// Receive errors in a row after which the socket is left alone for a while, and how long at
/// most.
const PATIENCE: u32 = 64;
const LONGEST_REST: Duration = Duration::from_millis(50);

impl<S: Socket> Driver<S> {
    /// Receives until nothing is there or the turn's share is used up. Returns whether more is
    /// waiting; an error means that the socket cannot be used any more.
    pub(super) fn receive(&mut self, now: Instant) -> io::Result<bool> {
        if self.recv_backoff_until.is_some_and(|until| now < until) {
            return Ok(false);
        }
        self.recv_backoff_until = None;
        // Taken out for the time of use: the thread's buffers are not borrowed while wakers or
        // destructors of others might run.
        let mut batch = RX.take().unwrap_or_else(RxBatch::new);
        let result = self.receive_into(now, &mut batch);
        RX.set(Some(batch));
        result
    }

    fn receive_into(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<bool> {
        for _ in 0..RECV_CALLS {
            batch.clear();
            match self.socket.recv(batch) {
                Ok(()) => self.recv_failures = 0,
                Err(error) => match classify_recv(&error) {
                    RecvFault::Empty => return Ok(false),
                    RecvFault::Fatal => return Err(error),
                    RecvFault::Interrupted | RecvFault::Ignore => {
                        self.stats.recv_errors += 1;
                        count(&mut self.stats.recv_errors_by_class, &error);
                        self.mailbox.set_fault(error);
                        if self.must_rest(now) {
                            return Ok(false);
                        }
                        continue;
                    }
                },
            }
            for (from, stride, train) in batch.trains() {
                for datagram in train.chunks_mut(stride.max(1)) {
                    self.on_datagram(now, &from, datagram);
                }
            }
            if !batch.is_full() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts a receive error. Errors that come without a datagram between them are not about
    /// datagrams; asking on would only keep a processor busy.
    fn must_rest(&mut self, now: Instant) -> bool {
        self.recv_failures = self.recv_failures.saturating_add(1);
        let Some(beyond) = self.recv_failures.checked_sub(PATIENCE).filter(|more| *more > 0) else {
            return false;
        };
        let rest = Duration::from_millis(1 << beyond.min(6)).min(LONGEST_REST);
        self.recv_backoff_until = Some(now + rest);
        true
    }

    fn on_datagram(&mut self, now: Instant, from: &SocketAddr, datagram: &mut [u8]) {
        self.stats.received_datagrams += 1;
        self.stats.received_bytes += datagram.len() as u64;
        if self.config.packet_filter.as_ref().is_some_and(|filter| filter.takes(*from, datagram)) {
            self.stats.packet_filter_datagrams += 1;
            return;
        }
        let opened = match self.codec.open(datagram) {
            Ok(opened) => opened,
            Err(OpenFailure::Forged) => {
                self.stats.dropped_checksum += 1;
                return;
            }
            Err(OpenFailure::Reflected) => {
                self.stats.dropped_reflected += 1;
                return;
            }
        };
        if !self.replay_filter.insert(now, opened.nonce) {
            self.stats.dropped_replayed += 1;
            return;
        }
        let Opened { body, nonce } = opened;
        match fec::fec_flag(body) {
            FecFlag::Plain => {
                self.on_packet(now, from, body, nonce);
            }
            FecFlag::Data => {
                let datagram = body.get(fec::HEADER_LEN..).unwrap_or_default();
                // What a conversation refuses is not to be believed about others either.
                if self.on_packet(now, from, datagram, nonce) {
                    self.on_shard(now, *from, body);
                }
            }
            FecFlag::Parity => {
                if !self.on_shard(now, *from, body) {
                    self.stats.dropped_no_connection += 1;
                }
            }
            FecFlag::OutOfBand => self.on_out_of_band(now, *from, body),
        }
    }

    /// Takes a KCP datagram, with the nonce of what brought it. Returns whether a conversation did.
    fn on_packet(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        if self.config.assign_conv
            && datagram.starts_with(&[0; 4])
            && let Some(assigned) = self.demux.assign(*from, datagram)
        {
            // Its first id is not 0, so this ends here.
            return self.on_packet(now, from, &assigned, nonce);
        }
        match self.demux.route(now, from, datagram) {
            Route::Existing(id) if self.is_restart(now, id, datagram, nonce) => {}
            Route::Existing(id) => return self.deliver(now, id, datagram, PacketType::Regular),
            // Of a peer that moved before its first data was acknowledged.
            Route::Open(opening) if self.is_initial_of_migrated(datagram, opening) => {
                self.on_possible_migration(now, *from, datagram);
            }
            Route::Open(opening) => {
                return self.on_initial(now, *from, opening, datagram, nonce);
            }
            Route::Answer(header) => {
                self.stats.dropped_time_wait += 1;
                self.answer_for_ended(now, *from, &header);
            }
            Route::Closed => self.stats.dropped_time_wait += 1,
            Route::Unknown => {
                if !self.on_possible_migration(now, *from, datagram) {
                    self.stats.dropped_no_connection += 1;
                }
            }
            Route::Malformed => self.stats.dropped_malformed += 1,
            Route::Short => self.stats.dropped_truncated += 1,
        }
        false
    }

    /// Takes a shard for what it says of others. What it recovers counts only if it is whole and of
    /// a conversation that lives at this address; it never opens one.
    fn on_shard(&mut self, now: Instant, from: SocketAddr, shard: &[u8]) -> bool {
        let (demux, recovered) = (&self.demux, &mut self.recovered);
        let taken = self.peers.decode(now, from, shard, |datagram| {
            let conv = datagram.first_chunk().map_or(0, |conv| u32::from_le_bytes(*conv));
            let Some(id) = demux.find(&(from, conv)) else { return false };
            if segment::validate(datagram, conv).is_err() {
                return false;
            }
            recovered.push((id, datagram.to_vec()));
            true
        });
        let mut recovered = std::mem::take(&mut self.recovered);
        for (id, datagram) in recovered.drain(..) {
            self.deliver(now, id, &datagram, PacketType::Fec);
        }
        self.recovered = recovered;
        taken
    }

    /// Takes an out-of-band datagram, for a conversation that exists.
    fn on_out_of_band(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) {
        let Some((conv, payload)) = oob::parse(packet) else {
            self.stats.dropped_truncated += 1;
            return;
        };
        let conn = self.demux.find(&(from, conv)).and_then(|id| {
            let conn = self.conns.get_mut(id.slot as usize)?;
            (conn.id() == id).then_some(conn)
        });
        let Some(conn) = conn else {
            self.stats.dropped_no_connection += 1;
            return;
        };
        self.stats.out_of_band_received += 1;
        conn.on_datagram(now, payload, &mut self.scratch);
        let id = conn.id();
        self.schedule(id);
    }

    /// Returns whether the conversation took it.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        id: ConnId,
        datagram: &[u8],
        origin: PacketType,
    ) -> bool {
        // Without a nonce of our own in it, a datagram that comes back is known by its segments.
        let unmarked = !self.codec.detects_reflection() && origin == PacketType::Regular;
        let Some(conn) = self.get_mut(id) else { return false };
        if unmarked && conn.is_reflection(datagram) {
            self.stats.dropped_reflected += 1;
            return false;
        }
        let awaited = conn.awaits_first();
        let Ok(taken) = conn.input(now, datagram, origin) else {
            self.stats.dropped_malformed += 1;
            return false;
        };
        // However it came: behind something else in a datagram, or recovered.
        if awaited && !conn.awaits_first() {
            let first = self.demux.first_data(datagram);
            if let (Some(first), Some(conn)) = (first, self.get_mut(id)) {
                conn.add_opening(first);
            }
        }
        if taken.proves {
            self.on_proof(id);
        }
        if taken.wants_answer {
            self.answer(now, id);
        }
        self.schedule(id);
        true
    }

    /// The policy asks for an answer to each datagram; it joins the batch.
    fn answer(&mut self, now: Instant, id: ConnId) {
        let may = self.may_answer();
        if let Some(conn) = self.conns.get_mut(id.slot as usize).filter(|_| may) {
            let fec = self.peers.encoder(conn.peer());
            let mut out = PacketWriter { tx: &mut self.tx, codec: &mut self.codec, fec };
            let sent = conn.transmit(now, &mut out, 1);
            self.budget = self.budget.saturating_sub(sent);
        }
    }

    /// Whether the turn has room for an answer that waits for nobody's turn.
    pub(super) fn may_answer(&self) -> bool {
        !self.blocked && !self.tx.is_full() && self.budget > TURN_PACKETS - TURN_ANSWERS
    }

    /// Answers on behalf of a conversation that ended.
    fn answer_for_ended(&mut self, now: Instant, to: SocketAddr, header: &Header) {
        if !self.may_answer() {
            return;
        }
        let extra = SendExtras { fec: self.peers.encoder(to), copies: 0, may_repeat: true };
        let write = |tail: &mut Vec<u8>| {
            header.emit(tail);
            true
        };
        let sent = self.codec.encode(now, &mut self.tx, to, extra, write);
        self.budget = self.budget.saturating_sub(sent);
    }
}
