//! Effects of the carrier's writing side on streams: flushes, and write errors while reading
//! continues.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::keepalive::Keepalive;
use super::session::Core;
use super::stream::{SharedStream, StreamState};
use crate::error::Error;
use crate::sync::Ordering;

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
        let written = batch.fins.drain(..).chain(self.flushing.drain(..));
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
