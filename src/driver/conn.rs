//! One conversation as its driver sees it: the state machine, the queues it shares with the
//! handles, and its life from the first datagram to the last acknowledgement.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Scratch;
use crate::buffer::TxBatch;
use crate::codec::Codec;
use crate::config::{AckPolicy, Config, Setting, core_mtu};
use crate::core::seq::Sn;
use crate::core::{InputError, Kcp, Origin};
use crate::demux::{Key, Tombstone};
use crate::error::ConnectionError;
use crate::fec::{FecEncoder, FecStats};
use crate::mailbox::ConnId;
use crate::shared::{CHUNK_CHARGE, Shared};
use crate::sync::{Arc, Ordering};
use crate::trace;

/// Rest after which memory that only a busy conversation needs is given back.
const REST: Duration = Duration::from_secs(1);
/// Sizes that a path is assumed to carry: what is tried after a datagram was refused.
const FALLBACK_MTU: u16 = 1_200;
const SMALLEST_MTU: u16 = 508;

/// Why a conversation could not send all that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// The turn is over or the socket takes no more; it is first in the next turn.
    Full,
    /// It had its share; the others come first.
    Quota,
}

/// Where a conversation's datagrams go.
#[derive(Debug)]
pub(super) struct Outlet<'a> {
    pub(super) tx: &'a mut TxBatch,
    pub(super) codec: &'a mut Codec,
    /// Of the address.
    pub(super) fec: Option<&'a mut FecEncoder>,
}

#[derive(Debug)]
pub(super) struct Conn {
    kcp: Kcp,
    shared: Arc<Shared>,
    /// Hash of the payload that opened it, if a peer did.
    opening: Option<u64>,
    /// On the driver's ready list.
    ready: bool,
    immediate_acks: bool,
    copies: u8,
    mtu: u16,
    linger: Duration,
    /// The application will write no more.
    write_closed: bool,
    /// Nobody holds a handle any more.
    detached: bool,
    aborted: bool,
    /// A message that was taken from the shared queue and does not fit yet.
    waiting: Option<Bytes>,
    /// The last datagram out was out of band while the stream may have had one too: it is next.
    stream_is_next: bool,
    /// When the rate limit lets an out-of-band datagram leave.
    held_until: Option<Instant>,
    /// Out-of-band datagrams sent and received so far.
    out_of_band: (u64, u64),
    /// Something still waits in front of the state machine.
    more: bool,
    /// Oldest unacknowledged number, and when it last moved.
    progress: (Sn, Instant),
    heard: Instant,
    told_established: bool,
    told_drained: bool,
    rest_at: Option<Instant>,
    lingering: bool,
}

impl Conn {
    pub(super) fn new(
        kcp: Kcp,
        shared: Arc<Shared>,
        opening: Option<u64>,
        config: &Config,
        now: Instant,
    ) -> Self {
        Self {
            progress: (kcp.una(), now),
            kcp,
            shared,
            opening,
            ready: false,
            immediate_acks: config.kcp.ack_policy == AckPolicy::Immediate,
            copies: config.duplicates,
            mtu: config.kcp.mtu,
            linger: config.linger,
            write_closed: false,
            detached: false,
            aborted: false,
            waiting: None,
            stream_is_next: false,
            held_until: None,
            out_of_band: (0, 0),
            more: false,
            heard: now,
            told_established: false,
            told_drained: false,
            rest_at: None,
            lingering: false,
        }
    }

    pub(super) fn id(&self) -> ConnId {
        self.shared.id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    pub(super) fn key(&self) -> Key {
        (self.shared.peer, self.shared.conv)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns whether it was not on the ready list yet.
    pub(super) fn mark_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.ready, true)
    }

    pub(super) fn unmark_ready(&mut self) {
        self.ready = false;
    }

    pub(super) fn apply(&mut self, setting: Setting) {
        match setting {
            Setting::AckPolicy(policy) => self.immediate_acks = policy == AckPolicy::Immediate,
            Setting::Duplicates(copies) => self.copies = copies,
            // The path may have lowered it meanwhile; it never rises.
            Setting::Mtu(mtu) if mtu >= self.mtu => return,
            Setting::Mtu(mtu) => {
                self.mtu = mtu;
                return self.kcp.apply(Setting::Mtu(core_mtu(mtu, self.shared.overhead)));
            }
            _ => {}
        }
        self.kcp.apply(setting);
    }

    /// A datagram of `size` bytes was refused for its size.
    pub(super) fn lower_mtu(&mut self, size: usize) {
        // One that is larger than what is sent now was made before; it says nothing new.
        let Some(size) = u16::try_from(size).ok().filter(|size| *size <= self.mtu) else { return };
        let lower = if size > FALLBACK_MTU { FALLBACK_MTU } else { size / 4 * 3 };
        let mtu = lower.max(SMALLEST_MTU);
        if mtu < self.mtu {
            self.apply(Setting::Mtu(mtu));
            self.shared.mtu.fetch_min(usize::from(mtu), Ordering::Relaxed);
        }
    }

    /// Takes a datagram. Returns whether an acknowledgement is wanted before the next one.
    pub(super) fn input(
        &mut self,
        now: Instant,
        datagram: &[u8],
        origin: Origin,
    ) -> Result<bool, InputError> {
        self.kcp.input(now, datagram, origin)?;
        if origin == Origin::Wire {
            self.heard = now;
        }
        Ok(self.immediate_acks)
    }

    /// Whether a datagram is this conversation's own, sent back. Counts it.
    pub(super) fn is_reflection(&mut self, datagram: &[u8]) -> bool {
        let reflected = self.kcp.is_reflection(datagram);
        if reflected {
            self.kcp.on_reflected();
        }
        reflected
    }

    /// Takes an out-of-band datagram.
    pub(super) fn on_datagram(&mut self, now: Instant, payload: &[u8], scratch: &mut Scratch) {
        self.heard = now;
        self.kcp.on_heard_beside(now);
        self.out_of_band.1 += 1;
        let waker = self.shared.deliver_datagram(Bytes::copy_from_slice(payload));
        scratch.wakers.extend(waker);
    }

    /// Asks the peer for a proof that it is there.
    pub(super) fn ask(&mut self, now: Instant) {
        self.kcp.probe(now);
    }

    /// Whether the peer has proved that it is there, told or not.
    pub(super) fn is_proven(&self) -> bool {
        self.kcp.is_established()
    }

    /// Whether the peer has proved that it is there.
    pub(super) fn is_established(&self) -> bool {
        self.told_established
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.kcp.handle_timeout(now);
        if self.rest_at.is_some_and(|at| now >= at) {
            self.kcp.release_memory();
            self.rest_at = None;
        }
    }

    /// Moves bytes between the state machine and the handles' queues.
    pub(super) fn look(&mut self, now: Instant, scratch: &mut Scratch) {
        self.shared.begin();
        self.take_writes(now, scratch);
        self.deliver(scratch);
    }

    fn take_writes(&mut self, now: Instant, scratch: &mut Scratch) {
        self.waiting = self.waiting.take().and_then(|data| self.kcp.queue_message(now, data).err());
        let room = if self.waiting.is_some() { 0 } else { self.kcp.send_room() };
        let unit = self.kcp.send_unit();
        let intake = self.shared.take_writes(room, unit, &mut scratch.outgoing);
        for item in scratch.outgoing.drain(..) {
            if item.message {
                // Only a message that is the first to move may exceed the room, so it is alone.
                self.waiting = self.kcp.queue_message(now, item.data).err();
            } else {
                self.kcp.send(now, item.data);
            }
        }
        if intake.uncork {
            self.kcp.uncork();
        }
        self.more = intake.more || self.waiting.is_some();
        if intake.write_closed && !self.write_closed || intake.detached && !self.detached {
            self.progress.1 = now;
        }
        self.write_closed |= intake.write_closed;
        self.detached |= intake.detached;
        if self.detached {
            // There may be no later moment to send them.
            self.kcp.hasten_acks();
        }
        self.aborted |= intake.abort;
        scratch.wakers.extend(intake.waker);
    }

    fn deliver(&mut self, scratch: &mut Scratch) {
        if self.kcp.readable().is_none() {
            return;
        }
        let mut room = self.shared.room();
        while room > 0 {
            let Some(chunk) = self.kcp.recv() else { break };
            room = room.saturating_sub(chunk.len().max(CHUNK_CHARGE));
            scratch.chunks.push_back(chunk);
        }
        let held_back = self.kcp.readable().is_some();
        scratch.wakers.extend(self.shared.deliver(&mut scratch.chunks, held_back));
    }

    /// Hands over what was acknowledged and not read yet, whatever room there is: it was accounted
    /// for when it arrived, and the conversation it came with is over.
    pub(super) fn deliver_rest(&mut self, scratch: &mut Scratch) {
        while let Some(chunk) = self.kcp.recv() {
            scratch.chunks.push_back(chunk);
        }
        scratch.wakers.extend(self.shared.deliver(&mut scratch.chunks, false));
    }

    /// Appends datagrams to the batch until there are `limit`, copies and parity included, and
    /// returns how many there are. Fewer than `limit`, with room left in the batch, means that
    /// nothing more is due. Out-of-band datagrams and those of the stream take turns.
    pub(super) fn transmit(&mut self, now: Instant, out: &mut Outlet<'_>, limit: usize) -> usize {
        let mut count = 0;
        self.held_until = None;
        while count < limit && !out.tx.is_full() {
            let sent = if self.stream_is_next {
                self.transmit_stream(now, out).or_else(|| self.transmit_out_of_band(now, out))
            } else {
                self.transmit_out_of_band(now, out).or_else(|| self.transmit_stream(now, out))
            };
            let Some(sent) = sent else { break };
            count += sent;
        }
        count
    }

    fn transmit_stream(&mut self, now: Instant, out: &mut Outlet<'_>) -> Option<usize> {
        let (kcp, fec) = (&mut self.kcp, out.fec.as_deref_mut());
        let before = out.tx.bytes();
        let write = |tail: &mut Vec<u8>| kcp.poll_transmit(now, tail);
        let peer = self.shared.peer;
        let (sent, datagrams) = out.codec.encode(now, out.tx, peer, fec, self.copies, write)?;
        kcp.on_sent_beside(now, out.tx.bytes() - before - sent.len);
        self.stream_is_next = false;
        Some(datagrams)
    }

    /// Not before the stream has begun: to some peers it would be the beginning.
    fn transmit_out_of_band(&mut self, now: Instant, out: &mut Outlet<'_>) -> Option<usize> {
        if !self.shared.has_datagrams() || !self.kcp.has_started() {
            return None;
        }
        self.held_until = self.kcp.held_until(now);
        if self.held_until.is_some() {
            return None;
        }
        let payload = self.shared.next_datagram()?;
        let before = out.tx.bytes();
        out.codec.encode_out_of_band(out.tx, self.shared.peer, self.shared.conv, &payload);
        self.kcp.on_sent_beside(now, out.tx.bytes() - before);
        self.out_of_band.0 += 1;
        self.stream_is_next = true;
        Some(1)
    }

    /// Tells the handles what changed. Returns what to remember of the conversation if it is over.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        fec: FecStats,
        scratch: &mut Scratch,
    ) -> Option<Tombstone> {
        if !self.told_established && self.kcp.is_established() {
            self.told_established = true;
            scratch.wakers.extend(self.shared.set_established());
        }
        let una = self.kcp.una();
        if una != self.progress.0 {
            self.progress = (una, now);
        }
        let drained = self.kcp.is_drained() && !self.more;
        if drained && self.write_closed && !self.told_drained {
            self.told_drained = true;
            scratch.wakers.extend(self.shared.set_drained());
        }
        self.shared.max_message.store(self.kcp.max_message_size(), Ordering::Relaxed);
        let mut stats = self.kcp.stats();
        (stats.out_of_band_sent, stats.out_of_band_received) = self.out_of_band;
        stats.fec = fec;
        self.shared.publish(&stats);
        self.plan_rest(now);
        let end = self.end(now, drained)?;
        self.deliver_rest(scratch);
        trace::ended(self.shared.peer, self.shared.conv, end);
        scratch.wakers.extend(self.shared.end(end).into_iter().flatten());
        Some(Tombstone { opening: self.opening, nxt: self.kcp.rcv_nxt() })
    }

    /// Why the conversation is over, if it is.
    fn end(&self, now: Instant, drained: bool) -> Option<ConnectionError> {
        if self.aborted || (self.detached && (drained || self.linger.is_zero())) {
            return Some(ConnectionError::Aborted);
        }
        if self.linger_until().is_some_and(|until| now >= until) && !drained {
            return Some(ConnectionError::LingerExpired);
        }
        self.kcp.ended()
    }

    /// When closing is given up: `linger` after the last acknowledgement of something new. While
    /// somebody waits for the shutdown, any sign of life counts, since a peer may be slow to read.
    fn linger_until(&self) -> Option<Instant> {
        if self.detached {
            Some(self.progress.1 + self.linger)
        } else if self.write_closed && !self.told_drained {
            Some(self.progress.1.max(self.heard) + self.linger)
        } else {
            None
        }
    }

    fn plan_rest(&mut self, now: Instant) {
        let resting = self.kcp.is_drained() && self.kcp.readable().is_none();
        self.rest_at = (resting && self.kcp.holds_memory()).then(|| now + REST);
    }

    /// Counts whether it still delivers what a dropped handle or a shutdown left behind, unless it
    /// is `over`.
    pub(super) fn count_lingering(&mut self, over: bool, count: &mut usize) {
        let lingers = self.detached || (self.write_closed && !self.told_drained);
        match (std::mem::replace(&mut self.lingering, lingers && !over), lingers && !over) {
            (false, true) => *count += 1,
            (true, false) => *count -= 1,
            _ => {}
        }
    }

    /// When [`Self::on_timeout`] should be called next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.kcp.poll_timeout(), self.linger_until(), self.rest_at, self.held_until]
            .into_iter()
            .flatten()
            .min()
    }
}
