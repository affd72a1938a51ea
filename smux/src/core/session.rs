//! The state machine of a session: its streams, and its end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::frame::Parser;
use super::inbox::Mailbox;
use super::read_buffers::ReadBuffers;
use super::receive_window::{DiscardedStreams, ReceiveWindow};
use super::stream::{Class, Fin, SharedStream, StreamState};
use super::turns::{MAX_SPARSE, Refusals, Turns};
use crate::config::Config;
use crate::error::Error;
use crate::stats::Stats;

/// Least advertised window of a stream's share in the receive buffer, in bytes.
const MIN_SHARE: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Core {
    /// The carrier takes no more bytes, but is still read.
    pub(super) send_error: Option<Error>,
    /// Batches so far: the number of the current batch.
    pub(super) batches: u64,
    pub(super) abandoned: AbandonedStreams,
    /// Streams that wait for a flush of the carrier.
    pub(super) flushing: Vec<Arc<SharedStream>>,
    pub(super) config: Config,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) parser: Parser,
    pub(super) streams: HashMap<u32, Entry>,
    /// Number of `streams` that the peer opened.
    pub(super) peer_streams: usize,
    /// Number of `streams` with queued bytes.
    pub(super) queued_streams: usize,
    pub(super) buffers: ReadBuffers,
    /// Ids of `streams` that have, or had, unread payload in `buffers`.
    pub(super) sharing: HashSet<u32>,
    pub(super) discarded: DiscardedStreams,
    /// Frames that precede all data.
    pub(super) control: VecDeque<Control>,
    pub(super) refusals: Refusals,
    pub(super) turns: Turns,
    /// Streams with a FIN in the unwritten batch.
    pub(super) sent_fins: Vec<Arc<SharedStream>>,
    /// Streams with a FIN that waits for `Config::fin_delay`, by time.
    pub(super) delayed_fins: VecDeque<(Instant, Arc<SharedStream>)>,
    pub(super) keepalive: Option<Keepalive>,
    /// The handles request the end: no new streams, and FIN is not delayed.
    pub(super) closing: bool,
    /// Unread bytes stop the carrier from being read.
    pub(super) stalled: bool,
    pub(super) signals: Signals,
    pub(super) stats: Stats,
    last_header: Instant,
    /// Ids of this side that streams of the peer have released.
    released_ids: Vec<u32>,
    /// Kept for their capacity.
    changed: Vec<Arc<SharedStream>>,
    opened: Vec<Arc<SharedStream>>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stream: Arc<SharedStream>,
    pub(super) opened_by_peer: bool,
}

/// A frame sent outside a stream's turn.
#[derive(Debug)]
pub(super) enum Control {
    Syn(u32),
    Nop,
    /// For a dropped stream: its FIN was sent, and the peer's has not arrived.
    Reset(u32),
    /// Takes its values when it is written.
    Update(Arc<SharedStream>),
    /// For a dropped stream.
    LastUpdate {
        id: u32,
        consumed: u32,
        window: u32,
    },
}

/// Wakers that the caller calls without holding a lock.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) wakers: Vec<Waker>,
    /// A stream was accepted.
    pub(crate) accepted: bool,
    /// Handles may open streams again.
    pub(crate) may_open: bool,
}

impl Core {
    pub(crate) fn new(config: Config, mailbox: Arc<Mailbox>, now: Instant) -> Self {
        let keepalive =
            config.keepalive.map(|interval| Keepalive::new(interval, config.timeout, now));
        let version = mailbox.version();
        Self {
            send_error: None,
            batches: 0,
            abandoned: AbandonedStreams::default(),
            flushing: Vec::new(),
            config,
            mailbox,
            parser: Parser::new(version),
            streams: HashMap::new(),
            peer_streams: 0,
            queued_streams: 0,
            buffers: ReadBuffers::new(),
            sharing: HashSet::new(),
            discarded: DiscardedStreams::default(),
            control: VecDeque::new(),
            refusals: Refusals::default(),
            turns: Turns::default(),
            sent_fins: Vec::new(),
            delayed_fins: VecDeque::new(),
            keepalive,
            closing: false,
            stalled: false,
            signals: Signals::default(),
            stats: Stats::default(),
            last_header: now,
            released_ids: Vec::new(),
            changed: Vec::new(),
            opened: Vec::new(),
        }
    }

    /// 0 while undecided.
    pub(super) fn version(&self) -> u8 {
        self.parser.version().unwrap_or(0)
    }

    /// Parity of the ids that this side assigns.
    pub(crate) fn parity(&self) -> u32 {
        self.config.first_id.map_or(0, |first| first % 2)
    }

    pub(crate) fn is_between_frames(&self) -> bool {
        self.parser.is_between_frames()
    }

    pub(crate) fn take_signals(&mut self) -> Signals {
        mem::take(&mut self.signals)
    }

    /// Returns the counters, and when the last header arrived.
    pub(crate) fn stats(&self) -> (Stats, Instant) {
        (self.stats, self.last_header)
    }

    /// Number of live streams.
    pub(crate) fn num_streams(&self) -> usize {
        self.streams.len()
    }

    /// Takes the changes of handles; further changes wake `waker`. Returns whether there were any.
    pub(crate) fn exchange(&mut self, waker: &Waker, now: Instant) -> bool {
        let mut inbox = self.mailbox.lock();
        let replaced = inbox.set_driver(waker);
        inbox.release_ids(&mut self.released_ids);
        inbox.take(&mut self.changed, &mut self.opened);
        let closing = inbox.closing;
        drop(inbox);
        drop(replaced);
        self.on_exchanged(closing, now)
    }

    /// The same in the middle of a turn, for a peer that opens this side's `id`: from here on it is
    /// not assigned. Returns true unless it was assigned or reserved before.
    pub(super) fn exchange_and_reserve(&mut self, id: u32, now: Instant) -> bool {
        let mut inbox = self.mailbox.lock();
        // Before the same ids are reserved again.
        inbox.release_ids(&mut self.released_ids);
        inbox.take(&mut self.changed, &mut self.opened);
        // Under the same lock: streams opened before are known, and none is opened in between.
        let is_reserved = inbox.reserve_id(id);
        let closing = inbox.closing;
        drop(inbox);
        self.on_exchanged(closing, now);
        // A stream of that id may just have been forgotten: keep the reservation.
        let released = self.released_ids.len();
        self.released_ids.retain(|released| *released != id);
        is_reserved || self.released_ids.len() < released
    }

    /// Releases a reserved id, which the peer does not use.
    pub(super) fn release_id(&mut self, id: u32) {
        self.released_ids.push(id);
    }

    fn on_exchanged(&mut self, closing: bool, now: Instant) -> bool {
        let was_closing = mem::replace(&mut self.closing, closing);
        let mut progress = was_closing != closing;
        if progress {
            self.send_delayed_fins(None);
        }
        // Streams are registered before their SYN is queued, so that an answer finds them.
        let mut opened = mem::take(&mut self.opened);
        for stream in opened.drain(..) {
            progress = true;
            self.stats.streams_opened += 1;
            self.control.push_back(Control::Syn(stream.id));
            self.register(stream, false);
        }
        self.opened = opened;
        let mut changed = mem::take(&mut self.changed);
        for stream in changed.drain(..) {
            progress = true;
            self.inspect(&stream, now);
        }
        self.changed = changed;
        // The dropped ones among them may hold too much.
        self.end_abandoned(now);
        progress
    }

    pub(super) fn register(&mut self, stream: Arc<SharedStream>, opened_by_peer: bool) {
        self.peer_streams += usize::from(opened_by_peer);
        let id = stream.id;
        let shares_count =
            (self.streams.len() + 1).saturating_mul(MIN_SHARE * 4) > self.config.max_receive_buffer;
        if self.version() == 2 && shares_count {
            // Before any read: the sum of the initial windows exceeds the receive buffer.
            let mut state = stream.lock();
            state.receive.window.update_owed = true;
            state.update_queued = true;
            drop(state);
            self.control.push_back(Control::Update(Arc::clone(&stream)));
        }
        if let Some(error) = &self.send_error {
            let mut state = stream.lock();
            state.send.is_broken = true;
            self.signals.wakers.extend(state.fail_sending(error));
        }
        self.streams.insert(id, Entry { stream, opened_by_peer });
    }

    /// Inspects a stream that a handle has changed.
    fn inspect(&mut self, stream: &Arc<SharedStream>, now: Instant) {
        let mut state = stream.lock();
        state.in_inbox = false;
        self.inspect_sending(stream, &mut state);
        self.count_queued(&mut state);
        if state.is_over() {
            self.forget(stream, &mut state);
            return;
        }
        self.queue_update(stream, &mut state);
        self.queue_turn(stream, &mut state);
        self.watch_abandoned(stream, &mut state, now);
    }

    pub(super) fn queue_update(&mut self, stream: &Arc<SharedStream>, state: &mut StreamState) {
        if state.receive.window.update_owed && !state.update_queued && self.version() != 1 {
            state.update_queued = true;
            self.control.push_back(Control::Update(Arc::clone(stream)));
        }
    }

    pub(super) fn queue_turn(&mut self, stream: &Arc<SharedStream>, state: &mut StreamState) {
        let has_finished = state.send.fin != Fin::None;
        if has_finished && state.finish_number == 0 {
            state.finish_number = self.turns.next_number();
        }
        if !state.send.is_ready(self.version()) {
            return;
        }
        let queued = state.send.queue.len();
        let class = if has_finished && queued > 0 {
            Class::Finishing
        } else if queued <= MAX_SPARSE {
            // Also FIN alone: the peer has nothing to buffer.
            Class::Sparse
        } else {
            Class::Bulk
        };
        if state.turn.is_none() || (has_finished && state.turn != Some(class)) {
            state.turn = Some(class);
            self.turns.push(Arc::clone(stream), class, state.finish_number);
        }
    }

    /// Ends the stream: its id may be reused. Unread bytes stay readable.
    pub(super) fn forget(&mut self, stream: &Arc<SharedStream>, state: &mut StreamState) {
        let id = stream.id;
        // Handles may change a forgotten stream while another stream has its id.
        if !self.streams.get(&id).is_some_and(|entry| Arc::ptr_eq(&entry.stream, stream)) {
            return;
        }
        let Some(entry) = self.streams.remove(&id) else { return };
        if entry.opened_by_peer {
            self.peer_streams -= 1;
            if id % 2 == self.parity() {
                self.released_ids.push(id);
            }
        }
        if mem::take(&mut state.in_sharing) {
            // Nothing else would copy it later.
            state.receive.queue.detach();
            self.sharing.remove(&id);
        }
        let is_unread = state.receive.discards && !state.receive.fin;
        if is_unread && !state.aborted {
            self.control.push_back(Control::Reset(id));
        }
        if is_unread && self.version() == 2 {
            let mut window = mem::replace(&mut state.receive.window, ReceiveWindow::new());
            if window.update_owed {
                let (consumed, window) = window.update(self.window_share());
                self.control.push_back(Control::LastUpdate { id, consumed, window });
            }
            self.discarded.insert(id, window);
        }
    }

    /// Returns the window to advertise: each stream's share of the receive buffer.
    #[expect(clippy::cast_possible_truncation, reason = "settings are below 2^31")]
    pub(super) fn window_share(&self) -> u32 {
        let share = self.config.max_receive_buffer / self.streams.len().max(1);
        self.config.max_stream_buffer.min(share.max(MIN_SHARE)) as u32
    }

    /// Returns false while unread bytes stop the carrier from being read.
    pub(crate) fn may_read(&mut self, now: Instant) -> bool {
        let stalled = self.mailbox.tokens.are_used_up();
        if stalled != self.stalled {
            self.stalled = stalled;
            self.stats.stalls += u64::from(stalled);
            if let Some(keepalive) = &mut self.keepalive {
                keepalive.set_paused(stalled, now);
            }
        }
        !stalled
    }

    pub(super) fn on_header(&mut self, now: Instant) {
        self.last_header = now;
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.on_header(now);
        }
    }

    pub(super) fn on_frame_sent(&mut self, now: Instant) {
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.on_sent(now);
        }
    }

    /// The latest time for the next [`Core::on_timer`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let keepalive = self.keepalive.as_ref().and_then(Keepalive::deadline);
        let fin = self.delayed_fins.front().map(|(at, _)| *at);
        [keepalive, fin, self.abandoned.deadline()].into_iter().flatten().min()
    }

    pub(crate) fn on_timer(&mut self, now: Instant) -> Result<(), Error> {
        self.send_delayed_fins(Some(now));
        self.end_abandoned(now);
        self.buffers.release();
        match self.keepalive.as_ref().map(|keepalive| keepalive.on_timer(now)) {
            Some(Due::Timeout) => return Err(Error::Timeout),
            Some(Due::Nop) if self.version() != 0 => {
                if !self.control.iter().any(|control| matches!(control, Control::Nop)) {
                    self.control.push_back(Control::Nop);
                }
                // So that the next NOP is due an interval later, however fast the carrier is.
                self.on_frame_sent(now);
            }
            Some(Due::Nop) => self.on_frame_sent(now),
            Some(Due::Nothing) | None => {}
        }
        Ok(())
    }

    /// Sends the FINs that are due at `now`, or all if `now` is `None`.
    fn send_delayed_fins(&mut self, now: Option<Instant>) {
        while let Some((at, _)) = self.delayed_fins.front() {
            if now.is_some_and(|now| *at > now) {
                break;
            }
            let Some((_, stream)) = self.delayed_fins.pop_front() else { break };
            let mut state = stream.lock();
            if state.send.fin == Fin::Delayed {
                state.send.fin = Fin::Due;
                self.queue_turn(&stream, &mut state);
            }
        }
    }

    /// Whether the handles have requested the end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Ends the session: all streams, also if a handle is opening them or their last frame is
    /// in the unwritten batch.
    pub(crate) fn fail(&mut self, error: &Error) {
        let mut inbox = self.mailbox.lock();
        inbox.end.get_or_insert_with(|| error.clone());
        inbox.take(&mut self.changed, &mut self.opened);
        drop(inbox);
        self.control.clear();
        self.refusals.clear();
        self.turns.clear();
        self.delayed_fins.clear();
        self.abandoned.clear();
        self.peer_streams = 0;
        self.queued_streams = 0;
        let live = self.streams.drain().map(|(_, entry)| entry.stream);
        let changed = self.opened.drain(..).chain(self.changed.drain(..));
        let sending = self.sent_fins.drain(..).chain(self.flushing.drain(..));
        for stream in live.chain(changed).chain(sending) {
            let wakers = stream.lock().fail(error);
            self.signals.wakers.extend(wakers.into_iter().flatten());
        }
        self.signals.wakers.extend(self.mailbox.accept_queue().waker.take());
        self.signals.accepted = true;
        self.signals.may_open = true;
    }

    /// Asserts the invariants.
    #[cfg(feature = "_testkit")]
    pub(crate) fn check_invariants(&self) {
        let by_peer = self.streams.values().filter(|entry| entry.opened_by_peer).count();
        assert_eq!(by_peer, self.peer_streams);
        assert!(by_peer <= self.config.max_streams);
        assert!(self.mailbox.accept_queue().streams.len() <= self.config.accept_backlog);
        assert!(self.discarded.len() <= 4_096);
        let states = || self.streams.values().map(|entry| entry.stream.lock());
        assert_eq!(states().filter(|state| state.is_counted).count(), self.queued_streams);
        let is_right = |state: &StreamState| state.is_counted == (state.send.queue.len() > 0);
        assert!(states().all(|state| state.in_inbox || is_right(&state)));
    }
}

/// Limit of the queued bytes of these streams; beyond it the oldest are discarded.
const MAX_HELD: usize = 16 << 20;

/// Dropped streams that wait for window (version 2). A peer that has closed the stream grants no
/// more, so its queued bytes are discarded after a time. The stream is then reset: FIN alone would
/// pass a part off as the whole.
#[derive(Debug, Default)]
pub(super) struct AbandonedStreams {
    /// By deadline.
    order: VecDeque<Waiting>,
    /// Bytes of all entries when they were added.
    held: usize,
}

#[derive(Debug)]
struct Waiting {
    until: Instant,
    stream: Arc<SharedStream>,
    /// Bytes queued when the entry was added: fewer later mean that window was granted.
    queued: usize,
}

impl AbandonedStreams {
    fn deadline(&self) -> Option<Instant> {
        self.order.front().map(|waiting| waiting.until)
    }

    fn push(&mut self, waiting: Waiting) {
        self.held += waiting.queued;
        self.order.push_back(waiting);
    }

    fn pop_due(&mut self, now: Instant) -> Option<Waiting> {
        let is_due = self.held > MAX_HELD || self.deadline().is_some_and(|until| until <= now);
        if !is_due {
            return None;
        }
        let waiting = self.order.pop_front()?;
        self.held -= waiting.queued;
        Some(waiting)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Core {
    /// Schedules the end of a dropped stream that waits for window, after
    /// [`Config::timeout`](crate::Config::timeout).
    pub(super) fn watch_abandoned(
        &mut self,
        stream: &Arc<SharedStream>,
        state: &mut StreamState,
        now: Instant,
    ) {
        if !state.in_abandoned
            && state.has_no_reader_or_window(self.version())
            && let Some(until) = now.checked_add(self.config.timeout)
        {
            state.in_abandoned = true;
            let queued = state.send.queue.len();
            self.abandoned.push(Waiting { until, stream: Arc::clone(stream), queued });
        }
    }

    /// Resets dropped streams that were granted no window within the timeout, and the oldest while
    /// all together hold too much.
    fn end_abandoned(&mut self, now: Instant) {
        while let Some(Waiting { until, stream, queued }) = self.abandoned.pop_due(now) {
            let mut state = stream.lock();
            state.in_abandoned = false;
            if !state.has_no_reader_or_window(self.version()) {
                continue;
            }
            if state.send.queue.len() < queued && until <= now {
                self.watch_abandoned(&stream, &mut state, now);
                continue;
            }
            state.send.queue.clear();
            self.count_queued(&mut state);
            state.send.fin = Fin::Due;
            // A slow peer must not take the part for the whole.
            state.aborted = true;
            self.queue_turn(&stream, &mut state);
        }
    }
}

/// When to send NOP, and when the peer counts as gone.
#[derive(Debug)]
pub(super) struct Keepalive {
    interval: Duration,
    timeout: Duration,
    last_sent: Instant,
    last_header: Instant,
    /// The carrier is not read, so the peer cannot be heard.
    paused: bool,
}

/// The due action.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Nop,
    Timeout,
}

impl Keepalive {
    pub(super) fn new(interval: Duration, timeout: Duration, now: Instant) -> Self {
        Self { interval, timeout, last_sent: now, last_header: now, paused: false }
    }

    fn on_header(&mut self, now: Instant) {
        self.last_header = now;
    }

    fn on_sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// Sets whether reading the carrier is paused.
    pub(super) fn set_paused(&mut self, paused: bool, now: Instant) {
        if self.paused && !paused {
            self.last_header = now;
        }
        self.paused = paused;
    }

    /// `None` if the time is too far away to represent.
    fn deadline(&self) -> Option<Instant> {
        let nop = self.last_sent.checked_add(self.interval);
        let timeout = self.last_header.checked_add(self.timeout).filter(|_| !self.paused);
        [nop, timeout].into_iter().flatten().min()
    }

    fn on_timer(&self, now: Instant) -> Due {
        let since = |then: Instant| now.saturating_duration_since(then);
        if !self.paused && since(self.last_header) >= self.timeout {
            Due::Timeout
        } else if since(self.last_sent) >= self.interval {
            Due::Nop
        } else {
            Due::Nothing
        }
    }
}
