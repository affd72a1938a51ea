//! The receiving half of a turn: routes datagrams and delivers them to connections.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::config::Config;
use crate::core::connection::PacketType;
use crate::core::open::InitialSegment;
use crate::core::segment::{self, Header};
use crate::driver::admission::replay::ReplayFilter;
use crate::driver::admission::retry::Answer;
use crate::driver::connection::Conn;
use crate::driver::output::{OpenFailure, Opened, PacketCodec, PacketWriter};
use crate::driver::routing::{DataShards, Demux, Key, Route};
use crate::driver::{Driver, TURN_PACKETS};
use crate::fec::{FecFlag, datagram_of, fec_flag, oob};
use crate::shared::conn_id::ConnId;
use crate::stats::EndpointStats;
use crate::sys::{RecvFault, RxBatch, Socket, classify_recv, count};
use crate::trace;
use crate::util::path::Path;

/// Receive calls per turn; each fills several buffers of 64 KiB (GRO batches).
pub(super) const RECV_CALLS: usize = 2;
/// Time between two turns after which datagrams may wait of which the runtime does not know yet: the process
/// was stopped, or its threads were busy.
const READINESS_LAG: Duration = Duration::from_millis(100);
/// Times that a turn receives after such a time, at most.
const CATCH_UP: usize = 256;
/// Datagrams per turn that answer a received one at once, before the ready connections are served:
/// three GSO batches, half of what a turn may send.
const TURN_ANSWERS: usize = 138;

/// Datagrams of a GRO batch whose connections are prefetched together.
pub(super) const PREFETCH_BATCH: usize = 8;

thread_local! {
    /// Receive buffers, one set per thread: the set is large, and a turn never yields while it uses
    /// the set. A process with thousands of sockets has as many sets as threads.
    static RX: Cell<Option<Box<RxBatch>>> = const { Cell::new(None) };
}

impl<S: Socket> Driver<S> {
    /// Receives what a turn may, which comes `pause` after the last one. After a long one everything that
    /// waits: peers that were not silent in that time must not meet the timers that have run out in it.
    /// Not in the turn behind one in which that did not end, which may have taken as long. Returns and fails as
    /// [`Self::receive`].
    pub(super) fn receive_after(&mut self, pause: Duration, now: Instant) -> io::Result<bool> {
        let catches_up = pause >= READINESS_LAG && !self.has_caught_up;
        self.has_caught_up = false;
        if !catches_up {
            return self.receive(now);
        }
        self.socket.bypass_readiness();
        for _ in 0..CATCH_UP {
            if !self.receive(now)? {
                return Ok(false);
            }
        }
        self.has_caught_up = true;
        Ok(true)
    }

    /// Receives until the socket is empty or the turn has made [`RECV_CALLS`] calls. Returns
    /// whether more may be waiting. An error means that the socket has failed for good.
    pub(super) fn receive(&mut self, now: Instant) -> io::Result<bool> {
        if !self.recv_backoff.may_receive(now) {
            return Ok(false);
        }
        // `RX` is empty meanwhile: a destructor that runs in here may drive another endpoint.
        let mut batch = RX.take().unwrap_or_else(|| Box::new(RxBatch::new()));
        let result = self.receive_into(now, &mut batch);
        RX.set(Some(batch));
        result
    }

    fn receive_into(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<bool> {
        for _ in 0..RECV_CALLS {
            batch.clear();
            match self.socket.recv(batch) {
                Ok(()) => self.recv_backoff.on_received(),
                Err(error) => match classify_recv(&error) {
                    RecvFault::Empty => return Ok(false),
                    RecvFault::Fatal => return Err(error),
                    RecvFault::Interrupted | RecvFault::Ignore => {
                        self.stats.recv_errors += 1;
                        count(&mut self.stats.recv_errors_by_class, &error);
                        self.notifier.set_error(error);
                        if self.recv_backoff.on_error(now) {
                            return Ok(false);
                        }
                        continue;
                    }
                },
            }
            for (path, segment_size, gro_batch) in batch.gro_batches() {
                self.local_ip = path.local;
                self.on_gro_batch(now, &path.peer, gro_batch, segment_size.max(1));
            }
            if !batch.is_full() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Prefetches the connections that up to [`PREFETCH_BATCH`] datagrams go to, if there are several.
    pub(super) fn prefetch_receivers<'a>(
        &self,
        from: &SocketAddr,
        datagrams: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let mut convs = datagrams.map(|datagram| segment::conv_of(datagram_of(datagram)));
        let Some(first) = convs.next() else { return };
        if convs.clone().all(|conv| conv == first) {
            return;
        }
        let mut slots = [None; PREFETCH_BATCH];
        for (slot, conv) in slots.iter_mut().zip([first].into_iter().chain(convs)) {
            let id = conv.and_then(|conv| self.demux.find(&(*from, conv)));
            *slot = id.map(|id| id.slot as usize);
        }
        self.prefetch(slots.into_iter().flatten());
    }

    /// Handles what a received datagram contained.
    pub(super) fn on_opened(&mut self, now: Instant, from: &SocketAddr, opened: &Opened<'_>) {
        let Opened { body, nonce } = *opened;
        match fec_flag(body) {
            FecFlag::Plain => {
                self.on_packet(now, from, body, nonce);
            }
            FecFlag::Data => {
                // A data shard that its connection rejects must not take part in a reconstruction.
                if self.on_packet(now, from, body, nonce) {
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

    /// Routes the KCP datagram of a packet, which may have a FEC header. `nonce`: that of the UDP
    /// datagram around it. Returns whether a connection accepted the datagram.
    fn on_packet(&mut self, now: Instant, from: &SocketAddr, packet: &[u8], nonce: &[u8]) -> bool {
        let datagram = datagram_of(packet);
        if self.config.assign_conv
            && datagram.starts_with(&[0; 4])
            // Not in a connection that this side has opened with id 0.
            && self.demux.find(&(*from, 0)).is_none()
            && let Some(assigned) = Demux::assign_conv(*from, datagram)
        {
            // The assigned id is not 0, so this recursion is one level deep.
            return self.on_packet(now, from, &assigned, nonce);
        }
        match self.demux.route(now, from, datagram) {
            Route::Existing(id) if self.on_possible_restart(now, id, datagram, nonce) => {}
            Route::Existing(id) => return self.deliver(now, id, datagram, PacketType::Regular),
            // A retransmission of the initial segment, from the new address of a migrated peer.
            Route::Open(initial) if self.is_initial_of_migrated(datagram, initial) => {
                self.on_possible_migration(now, *from, datagram);
            }
            Route::Open(initial) => {
                return self.on_initial(now, *from, initial, datagram, nonce);
            }
            route @ (Route::Reply(_) | Route::TimeWait | Route::Unknown) => {
                if let Some(accepted) = self.on_retry_answer(now, from, datagram, nonce) {
                    return accepted;
                }
                match route {
                    Route::Unknown => self.on_unknown(now, *from, packet),
                    Route::Reply(header) => self.reply_in_time_wait(now, *from, header),
                    _ => self.stats.dropped_time_wait += 1,
                }
            }
            Route::Malformed => {
                self.stats.dropped_malformed += 1;
                self.on_unreadable(now, *from);
            }
            Route::Truncated => {
                self.stats.dropped_truncated += 1;
                self.on_unreadable(now, *from);
            }
        }
        false
    }

    /// Feeds a FEC shard to the decoder of its address. A reconstructed datagram is delivered only
    /// if its segments are valid and its connection exists at this address. Returns whether the
    /// address has a connection.
    pub(super) fn on_shard(&mut self, now: Instant, from: SocketAddr, shard: &[u8]) -> bool {
        let (demux, recovered) = (&self.demux, &mut self.scratch.recovered);
        let memory = &mut self.memory;
        let known = self.peers.decode(now, from, shard, memory, |datagram| {
            let conv = segment::conv_of(datagram).unwrap_or(0);
            let Some(id) = demux.find(&(from, conv)) else { return false };
            if segment::validate(datagram, conv).is_err() {
                return false;
            }
            recovered.push((id, datagram.to_vec()));
            true
        });
        let mut recovered = std::mem::take(&mut self.scratch.recovered);
        for (id, datagram) in recovered.drain(..) {
            self.deliver(now, id, &datagram, PacketType::Fec);
        }
        self.scratch.recovered = recovered;
        known
    }

    /// Delivers an out-of-band datagram (kcp-go `SendOOB`) to its connection. An out-of-band
    /// datagram opens no connection: without one it is dropped.
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
        if conn.is_unvalidated() {
            // The peer may not exist: its datagrams take no memory.
            self.stats.dropped_unvalidated += 1;
            return;
        }
        self.stats.out_of_band_received += 1;
        conn.account_memory(&mut self.memory);
        conn.on_datagram(now, payload, &mut self.scratch);
        conn.account_memory(&mut self.memory);
        let id = conn.id();
        self.schedule(id);
    }

    /// Feeds a KCP datagram to a connection. Returns whether the connection accepted the datagram.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        id: ConnId,
        datagram: &[u8],
        packet_type: PacketType,
    ) -> bool {
        // Without a tagged nonce a reflected datagram can only be recognised by its segments.
        let untagged = !self.codec.detects_reflection();
        let Some(conn) = self.conns.get_mut(id.slot as usize).filter(|conn| conn.id() == id) else {
            return false;
        };
        // Its ACK, echoed once the connection has ended, would answer the Retry.
        let is_retry = |conn: &Conn| {
            conn.is_unvalidated() && self.retry.is_reflection(now, conn.key(), datagram)
        };
        if untagged && (conn.is_reflection(datagram) || is_retry(conn)) {
            self.stats.dropped_reflected += 1;
            return false;
        }
        let is_regular = packet_type == PacketType::Regular;
        let other_ip = is_regular.then(|| conn.judge_local_ip(self.local_ip, datagram)).flatten();
        let awaited = conn.awaits_first_data();
        conn.account_memory(&mut self.memory);
        let input = conn.input(now, datagram, packet_type);
        conn.account_memory(&mut self.memory);
        let Ok(outcome) = input else {
            self.stats.dropped_malformed += 1;
            return false;
        };
        // This datagram brought the first data, in any of its segments.
        if awaited && !conn.awaits_first_data() {
            let first = Demux::first_data_hash(datagram);
            if let (Some(first), Some(conn)) = (first, self.get_mut(id)) {
                conn.on_first_data(first);
            }
        }
        if let Some(other_ip) = other_ip {
            self.on_other_local_ip(now, id, other_ip, datagram);
        }
        if outcome.validated {
            self.on_validated(id);
        }
        if outcome.opened_by_nobody {
            self.on_opened_by_nobody(now, id);
        } else if outcome.immediate_ack {
            self.answer(now, id);
        }
        self.schedule(id);
        true
    }

    /// Transmits one datagram of a connection at once: `AckPolicy::Immediate` (kcp-go
    /// SetACKNoDelay) wants an ACK for each received datagram, and an endpoint that ends leaves none unsent.
    pub(super) fn answer(&mut self, now: Instant, id: ConnId) {
        let may = self.may_answer();
        if let Some(conn) = self.conns.get_mut(id.slot as usize).filter(|_| may) {
            let fec = self.peers.fec_sender(conn.peer(), &mut self.memory);
            let mut out = PacketWriter { tx: &mut self.tx, codec: &mut self.codec, fec };
            let sent = conn.transmit(now, &mut out, 1);
            self.budget = self.budget.saturating_sub(sent);
        }
    }

    /// Whether another answer may leave at once in this turn.
    pub(super) fn may_answer(&self) -> bool {
        !self.blocked && !self.tx.is_full() && self.budget > TURN_PACKETS - TURN_ANSWERS
    }

    /// Sends `header`, the ACK, FIN-ACK, RST or RST-ACK that a connection in TIME-WAIT replies
    /// with.
    pub(super) fn reply_in_time_wait(&mut self, now: Instant, to: SocketAddr, header: Header) {
        self.stats.dropped_time_wait += 1;
        self.send_at_once(now, to, |_| Some(header));
    }

    /// Sends the segment without data that `segment` returns, if this turn may answer the datagram
    /// that is being handled: in a datagram of its own, from the address that it came to, without
    /// parity and copies.
    pub(super) fn send_at_once(
        &mut self,
        now: Instant,
        to: SocketAddr,
        segment: impl FnOnce(&mut Self) -> Option<Header>,
    ) {
        if !self.may_answer() {
            return;
        }
        let Some(header) = segment(self) else { return };
        let path = Path { peer: to, local: self.local_ip };
        let sent = self.codec.encode_segment(now, &mut self.tx, path, &header);
        self.budget = self.budget.saturating_sub(sent);
    }
}

// The datagrams of a GRO batch: opened one after the other, and those that continue the one before
// taken by one call of their connection.
//
// Each is counted, authenticated and checked for replay and reflection by itself, in the order of
// arrival; one that fails is dropped alone.

/// What is left of a GRO batch: datagrams of one size back to back, the last of which may be shorter.
pub(super) struct GroBatch<'b> {
    rest: &'b mut [u8],
    segment_size: usize,
}

impl<'b> GroBatch<'b> {
    #[inline]
    fn next(&mut self) -> Option<&'b mut [u8]> {
        let len = self.rest.len().min(self.segment_size);
        let (datagram, rest) = mem::take(&mut self.rest).split_at_mut(len);
        self.rest = rest;
        (len > 0).then_some(datagram)
    }
}

/// What opens received datagrams.
struct Opener<'d> {
    now: Instant,
    from: &'d SocketAddr,
    config: &'d Config,
    codec: &'d PacketCodec,
    replay_filter: &'d mut ReplayFilter,
    stats: &'d mut EndpointStats,
    /// Datagrams that could not be read.
    unreadable: usize,
}

impl Opener<'_> {
    /// Opens a datagram, unless it is the packet filter's, forged, reflected or replayed.
    #[inline]
    fn open<'b>(&mut self, datagram: &'b mut [u8]) -> Option<Opened<'b>> {
        self.stats.received_datagrams += 1;
        self.stats.received_bytes += datagram.len() as u64;
        let filter = self.config.packet_filter.as_ref();
        if filter.is_some_and(|filter| filter.takes(*self.from, datagram)) {
            self.stats.packet_filter_datagrams += 1;
            return None;
        }
        let opened = match self.codec.open(datagram) {
            Ok(opened) => opened,
            Err(OpenFailure::Forged) => {
                self.stats.dropped_checksum += 1;
                self.unreadable += 1;
                return None;
            }
            Err(OpenFailure::Reflected) => {
                self.stats.dropped_reflected += 1;
                return None;
            }
        };
        if !self.replay_filter.insert(self.now, opened.nonce) {
            self.stats.dropped_replayed += 1;
            return None;
        }
        Some(opened)
    }

    /// Opens the next datagram of the batch that is not dropped.
    #[inline]
    fn open_next<'b>(&mut self, batch: &mut GroBatch<'b>) -> Option<Opened<'b>> {
        while let Some(datagram) = batch.next() {
            if let Some(opened) = self.open(datagram) {
                return Some(opened);
            }
        }
        None
    }
}

/// Datagrams of a GRO batch that may continue `previous`, up to the first of another kind. Each that is
/// asked for says that the one before it was taken.
struct Run<'d, 'b> {
    opener: Opener<'d>,
    batch: &'d mut GroBatch<'b>,
    /// Where data shards go once their datagrams are taken; `None` for datagrams without FEC.
    shards: Option<DataShards<'d>>,
    flag: FecFlag,
    /// The last one that was taken.
    previous: Opened<'b>,
    /// The one that was asked for last, unless it is known to be taken.
    current: Option<Opened<'b>>,
    /// Opened, and not asked for.
    next: Option<Opened<'b>>,
}

impl<'b> Run<'_, 'b> {
    #[inline]
    fn take_current(&mut self) {
        let Some(taken) = self.current.take() else { return };
        if let Some(shards) = &mut self.shards {
            shards.input(self.opener.now, taken.body);
        }
        self.previous = taken;
    }
}

impl<'b> Iterator for Run<'_, 'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        self.take_current();
        let next = self.next.take().or_else(|| self.opener.open_next(self.batch))?;
        if fec_flag(next.body) != self.flag {
            self.next = Some(next);
            return None;
        }
        self.current = Some(next);
        Some(datagram_of(next.body))
    }
}

impl<S: Socket> Driver<S> {
    pub(super) fn on_gro_batch(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        gro_batch: &mut [u8],
        segment_size: usize,
    ) {
        let mut unprefetched = gro_batch.len();
        let mut batch = GroBatch { rest: gro_batch, segment_size };
        let mut previous = None;
        loop {
            // What is encrypted does not say where it goes.
            if self.codec.is_plain() && batch.rest.len() <= unprefetched {
                let datagrams = batch.rest.chunks(segment_size).take(PREFETCH_BATCH);
                self.prefetch_receivers(from, datagrams);
                unprefetched = batch.rest.len().saturating_sub(PREFETCH_BATCH * segment_size);
            }
            if let Some(previous) = &mut previous {
                self.on_plain_continuation(now, from, previous, &mut batch);
            }
            let Some(next) = self.open_next(now, from, &mut batch) else { break };
            let next = match &mut previous {
                Some(previous) => self.on_continuation(now, from, previous, next, &mut batch),
                None => Some(next),
            };
            let Some(next) = next else { break };
            self.on_opened(now, from, &next);
            // Parity is no part of the stream of data.
            if fec_flag(next.body) != FecFlag::Parity {
                previous = Some(next);
            }
        }
    }

    /// Opens the next datagram of a batch that is not dropped.
    fn open_next<'b>(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        batch: &mut GroBatch<'b>,
    ) -> Option<Opened<'b>> {
        let Self { config, codec, replay_filter, stats, .. } = self;
        let mut opener = Opener { now, from, config, codec, replay_filter, stats, unreadable: 0 };
        let opened = opener.open_next(batch);
        let unreadable = opener.unreadable;
        self.on_all_unreadable(now, *from, unreadable);
        opened
    }

    /// Takes `next` and those after it in the same batch that continue `previous`, with one call of
    /// their connection. `previous` came before `next`, and may have been dropped by its connection. Nothing but data in order, and only where no packet filter sees each. Returns the
    /// first datagram that is not taken; `previous` is then the last one that was.
    fn on_continuation<'b>(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        previous: &mut Opened<'b>,
        next: Opened<'b>,
        batch: &mut GroBatch<'b>,
    ) -> Option<Opened<'b>> {
        let (flag, datagram) = (fec_flag(next.body), datagram_of(previous.body));
        let conv = segment::conv_of(datagram_of(next.body));
        // Most GRO batches of several connections end here.
        if conv != segment::conv_of(datagram)
            || flag != fec_flag(previous.body)
            || self.config.packet_filter.is_some()
            || (flag == FecFlag::Plain && self.codec.is_plain())
        {
            return Some(next);
        }
        let id = conv.and_then(|conv| self.demux.find(&(*from, conv)));
        let Some(id) = id else { return Some(next) };
        let Self { config, codec, replay_filter, stats, peers, conns, memory, .. } = self;
        let conn = conns.get_mut(id.slot as usize).filter(|conn| conn.id() == id);
        // Asked before the decoder is, which goes through all that it holds.
        let conn = conn.filter(|conn| conn.may_input_more(self.local_ip, datagram));
        let Some(conn) = conn else { return Some(next) };
        let shards = match flag {
            FecFlag::Plain => None,
            FecFlag::Data => match peers.data_shards(*from) {
                Some(shards) => Some(shards),
                None => return Some(next),
            },
            FecFlag::Parity | FecFlag::OutOfBand => return Some(next),
        };
        let opener = Opener { now, from, config, codec, replay_filter, stats, unreadable: 0 };
        let (next, current) = (Some(next), None);
        let mut run = Run { opener, batch, shards, flag, previous: *previous, current, next };
        conn.account_memory(memory);
        let taken = conn.input_more(now, datagram, &mut run);
        conn.account_memory(memory);
        *previous = run.previous;
        // What is left was asked for and not taken, or not asked for.
        let (next, unreadable) = (run.current.or(run.next), run.opener.unreadable);
        if taken > 0 {
            #[cfg(test)]
            {
                self.counts.taken_together[usize::from(flag == FecFlag::Data)] += taken;
            }
            self.schedule(id);
        }
        self.on_all_unreadable(now, *from, unreadable);
        next
    }

    /// The same without cipher and FEC, where nothing has to be opened.
    fn on_plain_continuation<'b>(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        previous: &mut Opened<'b>,
        batch: &mut GroBatch<'b>,
    ) {
        if !self.codec.is_plain() || self.config.packet_filter.is_some() {
            return;
        }
        let conv = segment::conv_of(previous.body);
        let conv = conv.filter(|conv| segment::conv_of(batch.rest) == Some(*conv));
        let Some(id) = conv.and_then(|conv| self.demux.find(&(*from, conv))) else { return };
        let local_ip = self.local_ip;
        let Self { conns, memory, .. } = self;
        let conn = conns.get_mut(id.slot as usize).filter(|conn| conn.id() == id);
        let conn = conn.filter(|conn| conn.may_input_more(local_ip, previous.body));
        let Some(conn) = conn else { return };
        conn.account_memory(memory);
        let (size, len) = (batch.segment_size, batch.rest.len());
        let taken = conn.input_more(now, previous.body, batch.rest.chunks(size));
        conn.account_memory(memory);
        if taken == 0 {
            return;
        }
        let bytes = len.min(taken * size);
        let (done, rest) = mem::take(&mut batch.rest).split_at_mut(bytes);
        batch.rest = rest;
        let last = done.get((taken - 1) * size..).unwrap_or_default();
        *previous = Opened { body: last, nonce: &[] };
        self.stats.received_datagrams += taken as u64;
        self.stats.received_bytes += bytes as u64;
        #[cfg(test)]
        {
            self.counts.taken_together[0] += taken;
        }
        self.schedule(id);
    }

    fn on_all_unreadable(&mut self, now: Instant, from: SocketAddr, count: usize) {
        for _ in 0..count {
            self.on_unreadable(now, from);
        }
    }
}

// Datagrams of no connection: answers to a Retry (RFC 9000 8.1.2), and what may migrate.

impl<S: Socket> Driver<S> {
    /// Handles valid segments of no open connection if they answer a Retry, which only the peer itself
    /// can: before migration and TIME-WAIT, which would take the initial segment behind the answer for
    /// one of their own connection. Returns `None` if they do not, otherwise whether a connection
    /// accepted that initial segment.
    pub(super) fn on_retry_answer(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        datagram: &[u8],
        nonce: &[u8],
    ) -> Option<bool> {
        let conv = Header::parse(datagram).ok()?.conv;
        match self.retry.on_datagram(now, (*from, conv), datagram) {
            Answer::None => return None,
            answer => {
                self.stats.retries_answered += 1;
                self.stats.retry_answers_evicted += u64::from(answer == Answer::Replaced);
            }
        }
        let Some(rest) = InitialSegment::find_datagram(datagram) else { return Some(false) };
        match self.demux.route(now, from, rest) {
            Route::Open(initial) => {
                return Some(self.on_initial(now, *from, initial, rest, nonce));
            }
            Route::Reply(header) => self.reply_in_time_wait(now, *from, header),
            _ => {}
        }
        Some(false)
    }

    /// Handles a packet with valid segments of no connection: its connection may migrate.
    pub(super) fn on_unknown(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) {
        let datagram = datagram_of(packet);
        if !self.on_possible_migration(now, from, datagram) {
            self.stats.dropped_no_connection += 1;
            self.on_unmatched(now, from);
            self.reset_unknown(now, from, datagram);
        }
    }

    /// Answers an initial datagram without state (RFC 9000 8.1.2). The answer is no longer than the
    /// datagram was.
    pub(super) fn send_retry(&mut self, now: Instant, key: Key) {
        self.send_at_once(now, key.0, |driver| {
            driver.stats.retries_sent += 1;
            Some(driver.retry.ping(now, key))
        });
    }
    /// A datagram failed the cipher, or has no segments.
    pub(super) fn on_unreadable(&mut self, now: Instant, from: SocketAddr) {
        if self.unusable.on_unreadable(now, from, self.peers.contains(from)) {
            trace::unreadable(self.local(), from);
        }
    }

    /// Segments of no connection came, perhaps from the peer of one.
    pub(super) fn on_unmatched(&mut self, now: Instant, from: SocketAddr) {
        if self.peers.contains(from) {
            self.unusable.on_unmatched(now, from);
        }
    }
}
