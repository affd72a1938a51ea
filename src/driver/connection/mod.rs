//! One conversation as its driver sees it: the state machine, the queues it shares with the
//! handles, and its life from the first datagram to the last acknowledgement.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;

mod lifecycle;
mod migration;
mod transmit;

use crate::config::{AckPolicy, Config, Setting, core_mtu};
use crate::core::connection::{InputError, Kcp, PacketType};
use crate::core::seq::Sn;
use crate::driver::Scratch;
use crate::driver::connection::migration::PathChallenge;
pub(super) use crate::driver::connection::migration::PathValidation;
use crate::driver::connection::transmit::AmplificationBudget;
use crate::driver::demux::{Key, OpenedBy, Opening};
use crate::error::ConnectionError;
use crate::fec;
use crate::shared::connection::{CHUNK_CHARGE, Shared};
use crate::shared::notifier::ConnId;
use crate::stream::KcpStream;
use crate::trace::Span;
use crate::util::sync::{Arc, Ordering};

/// What became of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputOutcome {
    /// An acknowledgement is wanted before the next datagram is looked at.
    pub(super) wants_answer: bool,
    /// The peer has proved that it is there, with this one.
    pub(super) proves: bool,
}

/// Rest after which memory that only a busy conversation needs is given back.
const REST: Duration = Duration::from_secs(1);
/// How long a dropped conversation waits for acknowledgements of a peer whose own data it refuses.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Sizes that a path is assumed to carry: what is tried after a datagram was refused.
const FALLBACK_MTU: u16 = 1_200;
const SMALLEST_MTU: u16 = 508;

/// What holds for a peer that has opened a conversation and proved nothing. Short-lived, and so not
/// a part of every conversation.
#[derive(Debug)]
struct AddressValidation {
    /// Bounds what it is sent.
    credit: AmplificationBudget,
    /// Until when it may go on.
    until: Instant,
}

#[derive(Debug)]
pub(super) struct Conn {
    kcp: Kcp,
    shared: Arc<Shared>,
    span: Span,
    peer: SocketAddr,
    /// Where it may have moved to.
    candidates: Vec<PathChallenge>,
    /// What opened it, if a peer did.
    openings: OpenedBy,
    /// On the driver's ready list.
    ready: bool,
    immediate_acks: bool,
    duplicates: u8,
    mtu: u16,
    /// How long closing goes on without success, as of the last look.
    linger: Duration,
    /// While its peer has proved nothing.
    doubt: Option<Box<AddressValidation>>,
    /// To be accepted once the peer has proved that it is there.
    unaccepted: Option<Box<KcpStream>>,
    /// The application will write no more.
    write_closed: bool,
    /// Nobody holds a handle any more.
    detached: bool,
    /// Why this side ends it, if it does.
    cause: Option<ConnectionError>,
    /// A message that was taken from the shared queue and does not fit yet.
    waiting: Option<Bytes>,
    /// The last datagram out was out of band while the stream may have had one too: it is next.
    prefer_stream: bool,
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
    /// The reader knows that the peer has ended its stream.
    reported_eof: bool,
    /// Until when those who wait for everything to be over wait for the peer to know of our end.
    close_until: Option<Instant>,
    /// It is over for the handles; the peer may still have to be told.
    ended: Option<ConnectionError>,
    rest_at: Option<Instant>,
    lingering: bool,
    fragmenting: bool,
}

impl Conn {
    pub(super) fn new(
        kcp: Kcp,
        shared: Arc<Shared>,
        openings: OpenedBy,
        config: &Config,
        now: Instant,
    ) -> Self {
        Self {
            progress: (kcp.una(), now),
            kcp,
            span: Span::open(shared.peer(), shared.conv, openings.is_by_peer()),
            peer: shared.peer(),
            candidates: Vec::new(),
            shared,
            openings,
            ready: false,
            immediate_acks: config.kcp.ack_policy == AckPolicy::Immediate,
            duplicates: config.duplicates,
            mtu: config.kcp.mtu,
            linger: config.linger,
            doubt: None,
            unaccepted: None,
            write_closed: false,
            detached: false,
            cause: None,
            waiting: None,
            prefer_stream: false,
            held_until: None,
            out_of_band: (0, 0),
            more: false,
            heard: now,
            told_established: false,
            told_drained: false,
            reported_eof: false,
            close_until: None,
            ended: None,
            rest_at: None,
            lingering: false,
            fragmenting: false,
        }
    }

    pub(super) fn id(&self) -> ConnId {
        self.shared.id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn key(&self) -> Key {
        (self.peer, self.shared.conv)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns whether it was not on the ready list yet.
    pub(super) fn mark_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.ready, true)
    }

    /// Whether the peer opened it, not this side.
    pub(super) fn is_opened_by_peer(&self) -> bool {
        self.openings.is_by_peer()
    }

    /// Whether the next datagram would be the first of a conversation that this side opens.
    pub(super) fn would_begin(&self, now: Instant) -> bool {
        !self.kcp.has_started() && !self.openings.is_by_peer() && self.kcp.has_pending_transmit(now)
    }

    /// Ends it for a reason of this endpoint, at its next look.
    pub(super) fn end_early(&mut self, cause: ConnectionError) {
        self.cause.get_or_insert(cause);
    }

    pub(super) fn unmark_ready(&mut self) {
        self.ready = false;
    }

    pub(super) fn apply(&mut self, setting: Setting) {
        match setting {
            Setting::AckPolicy(policy) => self.immediate_acks = policy == AckPolicy::Immediate,
            Setting::Duplicates(copies) => self.duplicates = copies,
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

    /// Takes a datagram.
    pub(super) fn input(
        &mut self,
        now: Instant,
        datagram: &[u8],
        origin: PacketType,
    ) -> Result<InputOutcome, InputError> {
        let proven = self.is_validated();
        self.kcp.input(now, datagram, origin)?;
        if origin == PacketType::Regular {
            self.heard = now;
            let bytes = datagram.len() + self.cipher_overhead();
            if let Some(doubt) = &mut self.doubt {
                doubt.credit.on_received(bytes);
            }
        }
        let proves = !proven && self.is_validated();
        if proves {
            self.doubt = None;
        }
        Ok(InputOutcome { wants_answer: self.immediate_acks, proves })
    }

    /// Bytes that the cipher adds to a datagram, the peer's as well as ours.
    fn cipher_overhead(&self) -> usize {
        self.shared.overhead - if self.shared.framed { fec::HEADER_LEN } else { 0 }
    }

    /// A peer opened it who has proved nothing: it is asked, and until it answers there are limits.
    /// `floor`: bytes it is sent in any case.
    pub(super) fn require_validation(&mut self, now: Instant, floor: usize, until: Instant) {
        self.doubt =
            Some(Box::new(AddressValidation { credit: AmplificationBudget::new(floor), until }));
        self.kcp.start_validation(now);
    }

    /// Keeps the stream until the peer has proved that it is there.
    pub(super) fn defer_accept(&mut self, stream: KcpStream) {
        self.unaccepted = Some(Box::new(stream));
    }

    /// What was kept so.
    pub(super) fn take_held_back(&mut self) -> Option<KcpStream> {
        self.unaccepted.take().map(|stream| *stream)
    }

    /// Lets the peer know of the conversation before there is data for it.
    pub(super) fn send_open(&mut self, now: Instant) {
        self.kcp.open(now);
    }

    /// Whether this opened it.
    pub(super) fn was_opened_by(&self, opening: Opening) -> bool {
        self.openings.contains(opening)
    }

    /// Whether `opening`, which is what `datagram` begins with, would be another opening of this
    /// conversation than the one that there was.
    pub(super) fn is_other_opening(&mut self, opening: Opening, datagram: &[u8]) -> bool {
        if !self.openings.is_by_peer() || self.openings.contains(opening) {
            return false;
        }
        if self.openings.was_overtaken(opening) {
            self.openings.add(opening);
            return false;
        }
        // The first data there is belongs to the opening without it.
        let first = self.kcp.awaits_first_data() && matches!(opening, Opening::Data(_));
        (!first || self.ended.is_some()) && !self.kcp.is_reflection(datagram)
    }

    /// Someone at the peer's address opens this conversation anew: the peer is asked.
    pub(super) fn on_restart(&mut self, now: Instant) {
        if self.ended.is_some() {
            // Nobody is left who would have to hear of the old one's end.
            self.kcp.forget_abort();
        } else {
            self.kcp.suspect_restart(now);
        }
    }

    /// Whether a peer opened it without data, and has sent none yet.
    pub(super) fn awaits_first(&self) -> bool {
        self.openings.is_by_peer() && self.kcp.awaits_first_data()
    }

    /// The first data of a conversation that was opened without any. When it comes again, that is
    /// no other opening.
    pub(super) fn add_opening(&mut self, first: Opening) {
        self.openings.add(first);
    }

    /// Whether a datagram is this conversation's own, sent back. Counts it.
    pub(super) fn is_reflection(&mut self, datagram: &[u8]) -> bool {
        let reflected = self.kcp.is_reflection(datagram);
        if reflected {
            self.kcp.count_reflected();
        }
        reflected
    }

    #[cfg(feature = "_testkit")]
    pub(super) fn check_invariants(&self) {
        self.kcp.check_invariants();
    }

    /// Takes an out-of-band datagram.
    pub(super) fn on_datagram(&mut self, now: Instant, payload: &[u8], scratch: &mut Scratch) {
        self.heard = now;
        self.kcp.on_out_of_band_received(now);
        self.out_of_band.1 += 1;
        let waker = self.shared.deliver_datagram(Bytes::copy_from_slice(payload));
        scratch.wakers.extend(waker);
    }

    /// Whether the peer has proved that it is there.
    pub(super) fn is_validated(&self) -> bool {
        self.kcp.is_established()
    }

    /// Whether it was counted among those who have proved nothing, and still is.
    pub(super) fn is_distrusted(&self) -> bool {
        self.doubt.is_some()
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.kcp.handle_timeout(now);
        if self.rest_at.is_some_and(|at| now >= at) {
            self.kcp.release_memory();
            self.shared.release_memory();
            self.rest_at = None;
        }
    }

    /// Moves bytes between the state machine and the handles' queues.
    pub(super) fn exchange_queues(&mut self, now: Instant, scratch: &mut Scratch) {
        self.shared.begin();
        self.take_writes(now, scratch);
        self.deliver(scratch);
    }

    fn take_writes(&mut self, now: Instant, scratch: &mut Scratch) {
        self.waiting = self.waiting.take().and_then(|data| self.kcp.queue_message(now, data).err());
        let room = if self.waiting.is_some() { 0 } else { self.kcp.send_capacity() };
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
            self.kcp.flush();
        }
        self.more = intake.more || self.waiting.is_some();
        if intake.write_closed && !self.write_closed || intake.detached && !self.detached {
            self.progress.1 = now;
        }
        self.write_closed |= intake.write_closed;
        self.detached |= intake.detached;
        self.linger = self.shared.linger();
        if self.detached {
            // There may be no later moment to send them.
            self.kcp.flush_acks();
            self.kcp.shutdown_read();
        }
        if intake.abort || (self.detached && self.linger.is_zero()) {
            self.end_early(ConnectionError::Aborted);
        }
        // Not where something was discarded: a stream cut short must not look complete.
        let cut_short = self.cause.is_some() || self.ended.is_some();
        if (self.write_closed || self.detached) && !self.more && !cut_short {
            self.kcp.close(now);
        }
        scratch.wakers.extend(intake.waker);
    }

    fn deliver(&mut self, scratch: &mut Scratch) {
        if self.kcp.readable().is_some() {
            self.deliver_readable(scratch);
        }
        self.tell_end(scratch);
    }

    fn deliver_readable(&mut self, scratch: &mut Scratch) {
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
        self.tell_end(scratch);
    }

    /// Tells the reader once everything of a stream that has ended is in its queue.
    fn tell_end(&mut self, scratch: &mut Scratch) {
        if !self.reported_eof && self.kcp.peer_has_closed() {
            self.reported_eof = true;
            scratch.wakers.extend(self.shared.set_ended());
        }
    }
}
