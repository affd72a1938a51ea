//! The receiving half of a turn: opens datagrams, routes them and delivers them to connections.
//!
//! Datagrams of a GRO batch are opened one after the other, and one call of a connection takes a run of them.
//! Each datagram is counted, authenticated and checked for replay and reflection by itself, in the order of
//! arrival; one that fails is dropped alone.

use std::cell::Cell;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::core::connection::PacketType;
use crate::core::open::InitialSegment;
use crate::core::segment::{self, Header};
use crate::driver::Driver;
use crate::driver::admission::replay::ReplayFilter;
use crate::driver::admission::retry::Answer;
use crate::driver::connection::Conn;
use crate::driver::output::{OpenFailure, Opened, PacketCodec};
use crate::driver::routing::{DataShards, Demux, PREFETCH_BATCH, Route, Routing, conn_mut};
use crate::fec::{FecFlag, datagram_of, fec_flag, oob};
use crate::shared::notifier::ConnId;
use crate::stats::EndpointStats;
use crate::sys::{RecvFault, RxBatch, Socket, classify_recv, count};
use crate::trace;
use crate::util::path::Path;

/// Receive calls per turn; each fills several buffers of 64 KiB (GRO batches).
pub(super) const RECV_CALLS: usize = 2;
/// Most times that a turn receives after a long pause, see `Input::catches_up`.
const CATCH_UP: usize = 256;

thread_local! {
    /// Receive buffers, one set per thread: the set is large, and a turn never yields while it uses the set.
    /// A process with thousands of sockets has one set per thread.
    static RX: Cell<Option<Box<RxBatch>>> = const { Cell::new(None) };
}

/// The rest of a GRO batch: datagrams of one size back to back; the last may be shorter.
struct GroBatch<'b> {
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

/// Opens received datagrams.
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
    /// Opens a datagram, unless the packet filter takes it or it is forged, reflected or replayed.
    #[inline]
    fn open<'b>(&mut self, datagram: &'b mut [u8]) -> Option<Opened<'b>> {
        self.stats.received.datagrams += 1;
        self.stats.received.bytes += datagram.len() as u64;
        let filter = self.config.packet_filter.as_ref();
        if filter.is_some_and(|filter| filter.takes(*self.from, datagram)) {
            self.stats.raw.filtered += 1;
            return None;
        }
        let opened = match self.codec.open(datagram) {
            Ok(opened) => opened,
            Err(OpenFailure::Forged) => {
                self.stats.dropped.checksum += 1;
                self.unreadable += 1;
                return None;
            }
            Err(OpenFailure::Reflected) => {
                self.stats.dropped.reflected += 1;
                return None;
            }
        };
        if !self.replay_filter.insert(self.now, opened.nonce) {
            self.stats.dropped.replayed += 1;
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

/// Datagrams of a GRO batch that may continue `previous`, up to the first of another kind. To ask for the
/// next one says that the one before was taken.
struct Run<'d, 'b> {
    opener: Opener<'d>,
    batch: &'d mut GroBatch<'b>,
    /// The decoder for data shards whose datagrams are taken; `None` for datagrams without FEC.
    shards: Option<DataShards<'d>>,
    flag: FecFlag,
    /// The last datagram that was taken.
    previous: Opened<'b>,
    /// The datagram that was asked for last, unless it is known to be taken.
    current: Option<Opened<'b>>,
    /// Opened, and not asked for.
    next: Option<Opened<'b>>,
    /// Bytes that were taken, without the cipher.
    bytes: usize,
}

impl<'b> Run<'_, 'b> {
    #[inline]
    fn take_current(&mut self) {
        let Some(taken) = self.current.take() else { return };
        if let Some(shards) = &mut self.shards {
            shards.input(self.opener.now, taken.body);
        }
        self.bytes += taken.body.len();
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

/// From the socket to the datagram.
impl<S: Socket> Driver<S> {
    /// Receives in a turn that comes `pause` after the last one. After a long pause it receives everything
    /// that waits: the timers that ran out in the pause must not find peers silent that were not. Returns and
    /// fails as [`Self::receive`].
    pub(super) fn receive_after(&mut self, pause: Duration, now: Instant) -> io::Result<bool> {
        if !self.input.catches_up(pause) {
            return self.receive(now);
        }
        self.socket.bypass_readiness();
        for _ in 0..CATCH_UP {
            if !self.receive(now)? {
                return Ok(false);
            }
        }
        self.input.has_caught_up = true;
        Ok(true)
    }

    /// Receives until the socket is empty or the turn has made [`RECV_CALLS`] calls. Returns whether more may
    /// be waiting. An error means that the socket has failed for good.
    pub(super) fn receive(&mut self, now: Instant) -> io::Result<bool> {
        if !self.input.backoff.may_receive(now) {
            return Ok(false);
        }
        // `RX` is empty in here, where a destructor may drive another endpoint.
        let mut batch = RX.take().unwrap_or_else(|| Box::new(RxBatch::new()));
        let result = self.receive_into(now, &mut batch);
        RX.set(Some(batch));
        result
    }

    fn receive_into(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<bool> {
        for _ in 0..RECV_CALLS {
            batch.clear();
            match self.socket.recv(batch) {
                Ok(()) => self.input.backoff.on_received(),
                Err(error) => match classify_recv(&error) {
                    RecvFault::Empty => return Ok(false),
                    RecvFault::Fatal => return Err(error),
                    RecvFault::Interrupted | RecvFault::Ignore => {
                        count(&mut self.stats.recv_errors, &error);
                        self.notifier.set_error(error);
                        if self.input.backoff.on_error(now) {
                            return Ok(false);
                        }
                        continue;
                    }
                },
            }
            for (path, segment_size, gro_batch) in batch.gro_batches() {
                (self.input.local_ip, self.input.from) = (path.local, Some(path.peer));
                self.on_gro_batch(now, &path.peer, gro_batch, segment_size.max(1));
            }
            if !batch.is_full() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn on_gro_batch(
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
            // An encrypted datagram does not show its connection.
            if self.output.codec.is_plain() && batch.rest.len() <= unprefetched {
                let datagrams = batch.rest.chunks(segment_size).take(PREFETCH_BATCH);
                self.routing.prefetch_receivers(from, datagrams);
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
            self.input.len = self.output.codec.sealed_len(next.body.len());
            self.on_opened(now, from, &next);
            // Parity is not part of the stream.
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
        let Self { config, output, input, stats, .. } = self;
        let (codec, replay_filter) = (&output.codec, &mut input.replay_filter);
        let mut opener = Opener { now, from, config, codec, replay_filter, stats, unreadable: 0 };
        let opened = opener.open_next(batch);
        let unreadable = opener.unreadable;
        self.on_all_unreadable(now, *from, unreadable);
        opened
    }

    /// Takes `next` and the datagrams after it in the same batch that continue `previous`, with one call of
    /// their connection: only data in order, and only where no packet filter sees each datagram. `previous`
    /// came before `next`; its connection may have dropped it. Returns the first datagram that is not taken,
    /// and leaves the last one that was in `previous`.
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
            || (flag == FecFlag::Plain && self.output.codec.is_plain())
        {
            return Some(next);
        }
        let id = conv.and_then(|conv| self.routing.demux.find(&(*from, conv)));
        let Some(id) = id else { return Some(next) };
        let Self { config, output, input, stats, routing, memory, .. } = self;
        let Routing { conns, peers, .. } = routing;
        // Asked before the decoder, which would go through all its shards.
        let conn = conn_mut(conns, id).filter(|conn| conn.may_input_more(input.local_ip, datagram));
        let Some(conn) = conn else { return Some(next) };
        let shards = match flag {
            FecFlag::Plain => None,
            FecFlag::Data => match peers.data_shards(*from) {
                Some(shards) => Some(shards),
                None => return Some(next),
            },
            FecFlag::Parity | FecFlag::OutOfBand => return Some(next),
        };
        let (codec, replay_filter) = (&output.codec, &mut input.replay_filter);
        let opener = Opener { now, from, config, codec, replay_filter, stats, unreadable: 0 };
        let (next, current) = (Some(next), None);
        let mut run =
            Run { opener, batch, shards, flag, previous: *previous, current, next, bytes: 0 };
        conn.account_memory(memory);
        let taken = conn.input_more(now, datagram, &mut run);
        conn.account_memory(memory);
        *previous = run.previous;
        conn.count_received(taken, run.bytes + taken * output.codec.sealed_len(0));
        // The rest was asked for and not taken, or not asked for.
        let (next, unreadable) = (run.current.or(run.next), run.opener.unreadable);
        if taken > 0 {
            #[cfg(test)]
            {
                self.counts.taken_together[usize::from(flag == FecFlag::Data)] += taken;
            }
            self.routing.schedule(id);
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
        if !self.output.codec.is_plain() || self.config.packet_filter.is_some() {
            return;
        }
        let conv = segment::conv_of(previous.body);
        let conv = conv.filter(|conv| segment::conv_of(batch.rest) == Some(*conv));
        let id = conv.and_then(|conv| self.routing.demux.find(&(*from, conv)));
        let Some(id) = id else { return };
        let (local_ip, memory) = (self.input.local_ip, &mut self.memory);
        let conn = self.routing.get_mut(id);
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
        self.stats.received.datagrams += taken as u64;
        self.stats.received.bytes += bytes as u64;
        #[cfg(test)]
        {
            self.counts.taken_together[0] += taken;
        }
        self.routing.schedule(id);
    }
}

/// From the datagram to its connection.
impl<S: Socket> Driver<S> {
    /// Handles the content of a received datagram.
    fn on_opened(&mut self, now: Instant, from: &SocketAddr, opened: &Opened<'_>) {
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
                    self.stats.dropped.no_connection += 1;
                }
            }
            FecFlag::OutOfBand => self.on_out_of_band(now, *from, body),
        }
    }

    /// Routes the KCP datagram of a packet, which may have a FEC header. `nonce`: of the UDP datagram around
    /// it. Returns whether a connection accepted the datagram.
    fn on_packet(&mut self, now: Instant, from: &SocketAddr, packet: &[u8], nonce: &[u8]) -> bool {
        let datagram = datagram_of(packet);
        if self.config.assign_conv
            && datagram.starts_with(&[0; 4])
            // Not in a connection that this side has opened with id 0.
            && self.routing.demux.find(&(*from, 0)).is_none()
            && let Some(assigned) = Demux::assign_conv(*from, datagram)
        {
            // The assigned id is not 0, so this recursion is one level deep.
            return self.on_packet(now, from, &assigned, nonce);
        }
        match self.routing.demux.route(now, from, datagram) {
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
                    Route::Unknown => self.on_unknown(now, *from, datagram),
                    Route::Reply(header) => self.reply_in_time_wait(now, *from, header),
                    _ => self.stats.dropped.time_wait += 1,
                }
            }
            Route::Malformed => {
                self.stats.dropped.malformed += 1;
                self.on_unreadable(now, *from);
            }
            Route::Truncated => {
                self.stats.dropped.truncated += 1;
                self.on_unreadable(now, *from);
            }
        }
        false
    }

    /// Feeds a FEC shard to the decoder of its address. A reconstructed datagram is delivered only if its
    /// segments are valid and its connection exists at this address. Returns whether the address has a
    /// connection.
    fn on_shard(&mut self, now: Instant, from: SocketAddr, shard: &[u8]) -> bool {
        let Routing { demux, peers, .. } = &mut self.routing;
        let recovered = &mut self.scratch.recovered;
        let known = peers.decode(now, from, shard, &mut self.memory, |datagram| {
            let conv = segment::conv_of(datagram).unwrap_or(0);
            let Some(id) = demux.find(&(from, conv)) else { return false };
            if segment::validate(datagram, conv).is_err() {
                return false;
            }
            recovered.push((id, datagram.to_vec()));
            true
        });
        let mut recovered = mem::take(&mut self.scratch.recovered);
        for (id, datagram) in recovered.drain(..) {
            self.deliver(now, id, &datagram, PacketType::Fec);
        }
        self.scratch.recovered = recovered;
        known
    }

    /// Delivers an out-of-band datagram (kcp-go `SendOOB`) to its connection. It opens no connection: without
    /// one it is dropped.
    fn on_out_of_band(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) {
        let Some((conv, payload)) = oob::parse(packet) else {
            self.stats.dropped.truncated += 1;
            return;
        };
        let id = self.routing.demux.find(&(from, conv));
        let conn = id.and_then(|id| self.routing.get_mut(id));
        let Some(conn) = conn else {
            self.stats.dropped.no_connection += 1;
            return;
        };
        if conn.is_unvalidated() {
            // The peer may not exist, so its datagrams take no memory.
            self.stats.dropped.unvalidated += 1;
            return;
        }
        self.stats.out_of_band_received += 1;
        if conn.has_routes() {
            conn.set_arrival(Path { peer: from, local: self.input.local_ip });
            conn.count_received(1, self.input.len);
        }
        conn.account_memory(&mut self.memory);
        conn.on_datagram(now, payload, &mut self.scratch);
        conn.account_memory(&mut self.memory);
        let id = conn.id();
        self.routing.schedule(id);
    }

    /// Feeds a KCP datagram to a connection. Returns whether the connection accepted the datagram.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        id: ConnId,
        datagram: &[u8],
        packet_type: PacketType,
    ) -> bool {
        // Without a tagged nonce only its segments show that a datagram was reflected.
        let untagged = !self.output.codec.detects_reflection();
        let Some(conn) = self.routing.get_mut(id) else { return false };
        // An ACK of a reflected Retry, echoed after the end of the connection, would answer the Retry.
        let retry = &self.admission.retry;
        let is_retry =
            |conn: &Conn| conn.is_unvalidated() && retry.is_reflection(now, conn.key(), datagram);
        if untagged && (conn.is_reflection(datagram) || is_retry(conn)) {
            self.stats.dropped.reflected += 1;
            return false;
        }
        let (is_regular, local_ip) = (packet_type == PacketType::Regular, self.input.local_ip);
        let migration = is_regular.then(|| conn.apparent_migration(local_ip, datagram)).flatten();
        let awaited = conn.awaits_first_data();
        if let Some(peer) = self.input.from.filter(|_| conn.has_routes()) {
            conn.set_arrival(Path { peer, local: local_ip });
            if is_regular {
                conn.count_received(1, self.input.len);
            }
        }
        conn.account_memory(&mut self.memory);
        let input = conn.input(now, datagram, packet_type);
        conn.account_memory(&mut self.memory);
        let Ok(outcome) = input else {
            self.stats.dropped.malformed += 1;
            return false;
        };
        // This datagram brought the first data, in any of its segments.
        if awaited
            && !conn.awaits_first_data()
            && let Some(first) = Demux::first_data_hash(datagram)
        {
            conn.on_first_data(first);
        }
        if let Some(response) = migration {
            self.on_apparent_migration(now, id, response, datagram);
        }
        if outcome.validated {
            self.on_validated(id);
        }
        if outcome.simultaneous_passive_open {
            self.on_simultaneous_passive_open(now, id);
        } else if outcome.immediate_ack {
            self.answer(now, id);
        }
        self.routing.schedule(id);
        true
    }

    /// Transmits one datagram of a connection at once: `AckPolicy::Immediate` (kcp-go SetACKNoDelay) wants an
    /// ACK for each received datagram, and an endpoint that ends leaves none unsent.
    fn answer(&mut self, now: Instant, id: ConnId) {
        if !self.output.may_answer() {
            return;
        }
        let Routing { conns, peers, .. } = &mut self.routing;
        if let Some(conn) = conns.get_mut(id.slot as usize) {
            let is_first = conn.is_on_first_path();
            let fec = is_first.then(|| peers.fec_sender(conn.peer(), &mut self.memory)).flatten();
            let sent = conn.transmit(now, &mut self.output.writer(fec), 1);
            self.output.spend(sent);
        }
    }
}

/// Datagrams of no connection.
impl<S: Socket> Driver<S> {
    /// Handles valid segments of no open connection if they answer a Retry, which only the peer itself can.
    /// This comes before migration and TIME-WAIT, which would take the initial segment after the answer for
    /// one of their own connection. Returns `None` if they answer none, otherwise whether a connection
    /// accepted the initial segment.
    fn on_retry_answer(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        datagram: &[u8],
        nonce: &[u8],
    ) -> Option<bool> {
        let conv = Header::parse(datagram).ok()?.conv;
        match self.admission.retry.on_datagram(now, (*from, conv), datagram) {
            Answer::None => return None,
            answer => {
                self.stats.retry.answered += 1;
                self.stats.retry.answers_evicted += u64::from(answer == Answer::Replaced);
            }
        }
        let Some(rest) = InitialSegment::find_datagram(datagram) else { return Some(false) };
        match self.routing.demux.route(now, from, rest) {
            Route::Open(initial) => {
                return Some(self.on_initial(now, *from, initial, rest, nonce));
            }
            Route::Reply(header) => self.reply_in_time_wait(now, *from, header),
            _ => {}
        }
        Some(false)
    }

    /// Sends `header`, the ACK, FIN-ACK, RST or RST-ACK of a connection in TIME-WAIT.
    fn reply_in_time_wait(&mut self, now: Instant, to: SocketAddr, header: Header) {
        self.stats.dropped.time_wait += 1;
        let path = Path { peer: to, local: self.input.local_ip };
        self.output.send_at_once(now, path, || Some(header));
    }

    /// Handles valid segments of no connection: their connection may migrate.
    fn on_unknown(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        if self.on_possible_migration(now, from, datagram) {
            return;
        }
        self.stats.dropped.no_connection += 1;
        // They may come from the peer of another connection.
        if self.routing.peers.contains(from) {
            self.input.unusable.on_unmatched(now, from);
        }
        self.reset_unknown(now, from, datagram);
    }

    /// A datagram failed the cipher, or has no segments.
    fn on_unreadable(&mut self, now: Instant, from: SocketAddr) {
        let known = self.routing.peers.contains(from);
        if self.input.unusable.on_unreadable(now, from, known) {
            trace::unreadable(self.local(), from);
        }
    }

    fn on_all_unreadable(&mut self, now: Instant, from: SocketAddr, count: usize) {
        for _ in 0..count {
            self.on_unreadable(now, from);
        }
    }
}
