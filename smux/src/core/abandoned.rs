//! Dropped streams that wait for window (version 2). A peer that has closed the stream grants no
//! more, so its queued bytes are discarded after a time. The stream is then reset: FIN alone would
//! pass a part off as the whole.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::session::Core;
use super::stream::{Fin, SharedStream, StreamState};

/// Limit of the queued bytes of these streams; beyond it the oldest are discarded.
const MAX_HELD: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct AbandonedStreams {
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
    pub(crate) fn deadline(&self) -> Option<Instant> {
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

    pub(crate) fn clear(&mut self) {
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

    /// Resets dropped streams that were granted no window within the timeout.
    pub(crate) fn end_abandoned(&mut self, now: Instant) {
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
