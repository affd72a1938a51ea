//! The datagrams of a GRO batch: opened one after the other, and those that continue the one before
//! taken by one call of their connection.
//!
//! Each is counted, authenticated and checked for replay and reflection by itself, in the order of
//! arrival; one that fails is dropped alone.

use std::mem;
use std::net::SocketAddr;
use std::time::Instant;

use super::Driver;
use super::receive::PREFETCH_BATCH;
use crate::config::Config;
use crate::core::segment;
use crate::driver::admission::replay::ReplayFilter;
use crate::driver::output::{OpenFailure, Opened, PacketCodec};
use crate::driver::routing::DataShards;
use crate::fec::{FecFlag, datagram_of, fec_flag};
use crate::stats::EndpointStats;
use crate::sys::Socket;

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
