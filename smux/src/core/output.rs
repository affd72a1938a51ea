//! Order of sent frames: first control frames, then data in turns. Effects of the carrier's writing
//! side on streams: flushes, and write errors while reading continues.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use super::batch::{Batch, WAITING_BATCH};
use super::frame::{Command, HEADER_LEN, Header, UPD_LEN};
use super::session::{Control, Core, Keepalive};
use super::stream::{Class, Fin, SharedStream, StreamState};
use super::turns::MAX_SPARSE;
use crate::error::Error;
use crate::sync::Ordering;

/// Shortest payload of a frame that is cut to fit the rest of a batch, in bytes. If the rest is
/// smaller, a stream with more to send begins the next batch.
const MIN_CUT: usize = 4 << 10;

/// While streams wait, answers to refused SYNs take at most this share of a batch, in bytes.
const REFUSAL_SHARE: usize = 8 << 10;

impl Core {
    /// Adds frames to `batch` until it is full or none is left.
    pub(crate) fn fill(&mut self, batch: &mut Batch, now: Instant) {
        if self.version() == 0 {
            return;
        }
        debug_assert!(batch.is_empty(), "a deferred frame may not fit");
        self.batches += 1;
        // The frame that did not fit into the last batch goes first, so that neither control frames
        // nor sparse streams can starve a bulk stream.
        if let Some((stream, class)) = self.turns.take_deferred() {
            self.take_turn(&stream, class, batch, now);
            self.turns.on_sent(class, batch.len());
        }
        let (mut refusal_bytes, mut sparse_bytes) = (0, 0);
        while batch.len() < batch.limit() {
            let has_control = !self.control.is_empty();
            let may_refuse = refusal_bytes < REFUSAL_SHARE || self.turns.is_empty();
            if !has_control
                && may_refuse
                && let Some(id) = self.refusals.pop()
            {
                refusal_bytes += HEADER_LEN;
                if id % 2 == self.parity() {
                    // Reserved until here: an earlier SYN of this side would overtake the answer.
                    self.release_id(id);
                }
                self.stats.frames_sent.fin += 1;
                self.write_header(Command::Fin, 0, id, batch);
            } else if let Some(control) = self.control.pop_front() {
                self.write_control(control, batch);
            } else if let Some((stream, class)) = self.turns.pop(sparse_bytes, batch.limit()) {
                let before = batch.len();
                if !self.take_turn(&stream, class, batch, now) {
                    self.turns.defer(stream, class);
                    break;
                }
                let sent = batch.len() - before;
                self.turns.on_sent(class, sent);
                if class == Class::Sparse {
                    sparse_bytes += sent;
                }
            } else {
                break;
            }
        }
        if !batch.is_empty() {
            self.stats.bytes_sent += batch.len() as u64;
            self.on_frame_sent(now);
        }
    }

    /// Notes that the carrier has taken the whole batch.
    pub(crate) fn on_written(&mut self, batch: &mut Batch) {
        for stream in self.sent_fins.drain(..) {
            let mut state = stream.lock();
            state.send.fin = Fin::Sent;
            self.signals.wakers.extend(state.send.waker.take());
        }
        batch.has_data = false;
        if batch.syns > 0 {
            self.signals.may_open |= self.mailbox.lock().on_syns_sent(batch.syns);
            batch.syns = 0;
        }
    }

    fn write_control(&mut self, control: Control, batch: &mut Batch) {
        match control {
            Control::Syn(id) => {
                batch.syns += 1;
                self.stats.frames_sent.syn += 1;
                self.write_header(Command::Syn, 0, id, batch);
            }
            Control::Nop => {
                self.stats.frames_sent.nop += 1;
                self.write_header(Command::Nop, 0, 0, batch);
            }
            Control::Reset(id) => {
                self.stats.frames_sent.nop += 1;
                self.write_header(Command::Nop, 0, id, batch);
            }
            Control::Update(stream) => {
                let mut state = stream.lock();
                state.update_queued = false;
                if state.receive.window.update_owed {
                    let (consumed, window) = state.receive.window.update(self.window_share());
                    drop(state);
                    self.write_update(stream.id, consumed, window, batch);
                }
            }
            Control::LastUpdate { id, consumed, window } => {
                self.write_update(id, consumed, window, batch);
            }
        }
    }

    fn write_update(&mut self, id: u32, consumed: u32, window: u32, batch: &mut Batch) {
        // Version 1 has no updates; a stream may have asked for one before the version was decided.
        if self.version() == 2 {
            self.stats.frames_sent.upd += 1;
            self.write_header(Command::Upd, UPD_LEN, id, batch);
            batch.copy(&consumed.to_le_bytes());
            batch.copy(&window.to_le_bytes());
        }
    }

    fn write_header(&self, command: Command, len: u16, stream_id: u32, batch: &mut Batch) {
        let header = Header { version: self.version(), command, len, stream_id };
        batch.copy(&header.encode());
    }

    /// Sends one frame of `stream`, and its FIN if that is next. Returns false if neither the frame
    /// nor [`MIN_CUT`] bytes of it fit, which never happens in an empty batch.
    fn take_turn(
        &mut self,
        stream: &Arc<SharedStream>,
        class: Class,
        batch: &mut Batch,
        now: Instant,
    ) -> bool {
        let mut state = stream.lock();
        if state.turn != Some(class) {
            // It finished while it waited here, and also waits among finished streams.
            return true;
        }
        let credit = state.send.credit(self.version());
        let queued = state.send.queue.len();
        let mut len = queued.min(credit).min(self.config.max_frame_size);
        let available = batch.limit().saturating_sub(batch.len() + HEADER_LEN);
        if len > available {
            if available < MIN_CUT {
                return false;
            }
            len = available;
        }
        state.turn = None;
        if len > 0 {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "max_frame_size is at most 65,535"
            )]
            self.write_header(Command::Psh, len as u16, stream.id, batch);
            state.send.queue.take_into(len, batch);
            self.count_queued(&mut state);
            state.send.on_sent(len);
            state.send.batch = self.batches;
            batch.has_data = true;
            self.stats.frames_sent.psh += 1;
            self.stats.payload_sent += len as u64;
            // Also for a shutdown: it waits for the FIN and registers again.
            self.signals.wakers.extend(state.send.waker.take());
        }
        self.write_fin(stream, &mut state, batch, now);
        self.queue_turn(stream, &mut state);
        self.watch_abandoned(stream, &mut state, now);
        true
    }

    fn write_fin(
        &mut self,
        stream: &Arc<SharedStream>,
        state: &mut StreamState,
        batch: &mut Batch,
        now: Instant,
    ) {
        if state.send.queue.len() > 0 || !matches!(state.send.fin, Fin::Queued | Fin::Due) {
            return;
        }
        let is_delayed = state.send.fin == Fin::Queued
            && state.receive.fin
            && !self.config.fin_delay.is_zero()
            && !state.aborted
            && !self.closing;
        if is_delayed {
            state.send.fin = Fin::Delayed;
            self.delayed_fins.push_back((now + self.config.fin_delay, Arc::clone(stream)));
            return;
        }
        state.send.fin = Fin::Taken;
        // Discarded bytes stay discarded.
        state.send.batch = state.send.batch.max(self.batches);
        batch.has_data = true;
        if state.aborted {
            // Before FIN, which would be an orderly end.
            self.stats.frames_sent.nop += 1;
            self.write_header(Command::Nop, 0, stream.id, batch);
        }
        self.stats.frames_sent.fin += 1;
        self.write_header(Command::Fin, 0, stream.id, batch);
        self.sent_fins.push(Arc::clone(stream));
        if state.is_over() {
            self.forget(stream, state);
        }
    }
}

const _: () = assert!(MAX_SPARSE + 2 * HEADER_LEN < WAITING_BATCH);

impl Core {
    /// Whether a stream waits for a flush of the carrier.
    pub(crate) fn wants_flush(&self) -> bool {
        !self.flushing.is_empty()
    }

    /// Notes that all batches were written and the carrier was flushed.
    pub(crate) fn on_flushed(&mut self) {
        self.mailbox.flushed.store(self.batches, Ordering::Release);
        for stream in mem::take(&mut self.flushing) {
            let mut state = stream.lock();
            state.send.in_flushing = false;
            self.signals.wakers.extend(state.send.waker.take());
        }
    }

    /// Checks whether a stream changed by a handle waits for a flush.
    pub(super) fn inspect_sending(&mut self, stream: &Arc<SharedStream>, state: &mut StreamState) {
        if let Some(error) = &self.send_error {
            state.send.is_broken = true;
            self.signals.wakers.extend(state.fail_sending(error));
        }
        if !mem::take(&mut state.send.flush_wanted) || state.send.in_flushing {
            return;
        }
        if state.send.is_flushed(self.mailbox.flushed.load(Ordering::Acquire)) {
            self.signals.wakers.extend(state.send.waker.take());
        } else {
            state.send.in_flushing = true;
            self.flushing.push(Arc::clone(stream));
        }
    }

    /// Returns why the carrier takes no more bytes.
    pub(crate) fn send_error(&self) -> Option<&Error> {
        self.send_error.as_ref()
    }

    /// Notes that the carrier takes no more bytes: streams fail to write, and read the bytes that
    /// still arrive. Even without keepalive the session ends after
    /// [`Config::timeout`](crate::Config::timeout) without a frame.
    pub(crate) fn fail_sending(&mut self, error: &Error, batch: &mut Batch, now: Instant) {
        self.send_error = Some(error.clone());
        self.mailbox.lock().send_error = Some(error.clone());
        let timeout = self.config.timeout;
        self.keepalive.get_or_insert_with(|| {
            let mut keepalive = Keepalive::new(timeout, timeout, now);
            keepalive.set_paused(self.stalled, now);
            keepalive
        });
        let live: Vec<_> = self.streams.values().map(|entry| Arc::clone(&entry.stream)).collect();
        let written = self.sent_fins.drain(..).chain(self.flushing.drain(..));
        for stream in live.into_iter().chain(written.collect::<Vec<_>>()) {
            let mut state = stream.lock();
            state.send.is_broken = true;
            self.signals.wakers.extend(state.fail_sending(error));
            self.count_queued(&mut state);
            if state.is_over() {
                self.forget(&stream, &mut state);
            }
        }
        batch.clear();
        self.signals.may_open = true;
        self.discard_output();
    }

    /// Discards frames that can no longer be sent.
    pub(crate) fn discard_output(&mut self) {
        self.control.clear();
        self.refusals.clear();
        self.turns.clear();
        self.delayed_fins.clear();
        self.abandoned.clear();
    }

    /// Counts the stream if it has queued bytes.
    pub(super) fn count_queued(&mut self, state: &mut StreamState) {
        let is_queued = state.send.queue.len() > 0;
        match (mem::replace(&mut state.is_counted, is_queued), is_queued) {
            (false, true) => self.queued_streams += 1,
            (true, false) => self.queued_streams -= 1,
            _ => {}
        }
    }

    /// Whether all queued bytes and frames have been taken.
    pub(crate) fn is_drained(&self) -> bool {
        let is_owed = !self.control.is_empty() || !self.refusals.is_empty();
        // Streams are locked last: only when the session is about to end.
        !is_owed && self.turns.is_empty() && self.queued_streams == 0 && !self.has_uninspected()
    }

    /// Whether a handle has changed a stream and the driver has not seen it. A handle about to put
    /// the stream into the inbox does not hold the stream's lock, so later writes of other handles
    /// are in the inbox no earlier. The driver is woken once the stream is there.
    fn has_uninspected(&self) -> bool {
        self.streams.values().any(|entry| {
            let state = entry.stream.lock();
            state.in_inbox || state.send.queue.len() > 0
        })
    }

    /// Whether data or FIN of a stream is unsent.
    pub(crate) fn has_unsent(&self, batch: &Batch) -> bool {
        batch.has_data || self.streams.values().any(|entry| entry.stream.lock().send.is_unsent())
    }
}
