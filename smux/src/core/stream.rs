//! A stream as shared by its handles and the driver: two halves behind one leaf lock.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use bytes::{Buf, Bytes, BytesMut};

use super::batch::Batch;
use super::frame::INITIAL_WINDOW;
use super::read_buffers::{ReadBuffers, ReceiveQueue};
use super::receive_window::ReceiveWindow;
use crate::error::{Error, ProtocolError};
use crate::sync::{Mutex, MutexGuard};

#[derive(Debug)]
pub(crate) struct SharedStream {
    pub(crate) id: u32,
    state: Mutex<StreamState>,
}

impl SharedStream {
    pub(crate) fn new(id: u32) -> Arc<Self> {
        Arc::new(Self { id, state: Mutex::new(StreamState::new()) })
    }

    /// A leaf lock: no other lock is taken and no waker is called under it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Class of a stream that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// At most [`MAX_SPARSE`](super::turns::MAX_SPARSE) bytes were queued.
    Sparse,
    /// The writer has shut the stream down or dropped it.
    Finishing,
    Bulk,
}

#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) receive: ReceiveHalf,
    pub(crate) send: SendHalf,
    /// Set by the end of the session, or of this stream by a protocol error.
    pub(crate) error: Option<Error>,
    /// The stream is in the inbox, or a handle is about to put it there.
    pub(crate) in_inbox: bool,
    /// The class of the stream while it waits for its turn to send a frame.
    pub(crate) turn: Option<Class>,
    /// Order among streams with a finished writer; 0 before.
    pub(crate) finish_number: u64,
    /// The stream was dropped and waits for window.
    pub(crate) in_abandoned: bool,
    /// An UPD of the stream is queued; it takes its values when written.
    pub(crate) update_queued: bool,
    /// The stream has unread payload in read buffers.
    pub(crate) in_sharing: bool,
    /// The stream is counted as having queued bytes.
    pub(crate) is_counted: bool,
    /// Written bytes were discarded before FIN, by `abort` or for lack of window: a reset precedes
    /// FIN.
    pub(crate) aborted: bool,
    /// A window update arrived after the peer's FIN.
    pub(crate) updated_after_fin: bool,
}

impl StreamState {
    fn new() -> Self {
        Self {
            receive: ReceiveHalf::new(),
            send: SendHalf::new(),
            error: None,
            in_inbox: false,
            turn: None,
            finish_number: 0,
            in_abandoned: false,
            update_queued: false,
            in_sharing: false,
            is_counted: false,
            aborted: false,
            updated_after_fin: false,
        }
    }

    /// Returns whether the caller must put the stream into the inbox.
    #[must_use]
    pub(crate) fn enter_inbox(&mut self) -> bool {
        !mem::replace(&mut self.in_inbox, true)
    }

    /// Ends the stream with `error`. Received bytes stay readable, queued bytes are discarded.
    pub(crate) fn fail(&mut self, error: &Error) -> [Option<Waker>; 2] {
        if self.error.is_none() {
            self.error = Some(error.clone());
        }
        [self.receive.waker.take(), self.fail_sending(error)]
    }

    /// Ends sending. The stream still receives.
    pub(crate) fn fail_sending(&mut self, error: &Error) -> Option<Waker> {
        self.send.error.get_or_insert_with(|| error.clone());
        if self.send.queue.len() > 0 {
            self.send.batch = u64::MAX;
            self.send.queue.clear();
        }
        self.send.waker.take()
    }

    /// Whether the stream was dropped and its queued bytes wait for window.
    pub(crate) fn has_no_reader_or_window(&self, version: u8) -> bool {
        let waits = self.send.queue.len() > 0 && self.send.credit(version) == 0;
        self.receive.discards && self.send.fin == Fin::Queued && waits
    }

    /// Whether no further frame of the stream will be sent, and none of the peer's has an effect.
    pub(crate) fn is_over(&self) -> bool {
        let receives = !self.receive.fin && !self.receive.discards && self.error.is_none();
        let sends = self.send.fin < Fin::Taken && !self.send.is_broken;
        !sends && !receives
    }
}

#[derive(Debug)]
pub(crate) struct ReceiveHalf {
    pub(crate) queue: ReceiveQueue,
    pub(crate) window: ReceiveWindow,
    /// The peer's FIN has arrived.
    pub(crate) fin: bool,
    /// The handle was dropped: received bytes are discarded.
    pub(crate) discards: bool,
    pub(crate) waker: Option<Waker>,
}

impl ReceiveHalf {
    fn new() -> Self {
        Self {
            queue: ReceiveQueue::default(),
            window: ReceiveWindow::new(),
            fin: false,
            discards: false,
            waker: None,
        }
    }

    /// Queues the first `len` bytes of `input`, the current buffer of `buffers`, if the window
    /// allows. Returns whether they stay in that buffer.
    pub(crate) fn push(
        &mut self,
        input: &mut BytesMut,
        len: usize,
        buffers: &ReadBuffers,
        enforces_window: bool,
    ) -> Result<bool, ProtocolError> {
        let unread = self.queue.len() as u64 + len as u64;
        let allowed = self.window.max_unread();
        if enforces_window && unread > allowed {
            return Err(ProtocolError::Window { unread, allowed });
        }
        Ok(self.queue.push(input, len, buffers))
    }

    /// Notes that the handle was dropped. Returns the number of unread bytes discarded.
    pub(crate) fn discard(&mut self, window: u32) -> usize {
        let unread = self.queue.clear();
        self.discards = true;
        self.waker = None;
        if !self.fin {
            self.window.discard_from(unread, window);
        }
        unread
    }
}

/// State of FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fin {
    /// The application writes. Left on shutdown or drop.
    None,
    /// Waits for the queued bytes. Left when they are sent.
    Queued,
    /// Everything is sent; waits for `Config::fin_delay`.
    Delayed,
    /// The delay is over. Left with the stream's next turn.
    Due,
    /// In the batch. Left when the batch is written.
    Taken,
    /// The carrier has it.
    Sent,
}

#[derive(Debug)]
pub(crate) struct SendHalf {
    pub(crate) queue: SendQueue,
    pub(crate) fin: Fin,
    /// Bytes sent, modulo 2^32.
    sent: u32,
    /// Bytes read by the peer's application according to its last update, modulo 2^32.
    consumed: u32,
    /// Window of the peer's last update, in bytes.
    window: u32,
    /// Error of the session, or of this stream alone.
    pub(crate) error: Option<Error>,
    /// The carrier takes no more bytes.
    pub(crate) is_broken: bool,
    /// Number of the last batch with a frame of the stream; `u64::MAX` if bytes were discarded.
    pub(crate) batch: u64,
    /// A flush has asked the driver, which has not seen it yet.
    pub(crate) flush_wanted: bool,
    /// The stream is among those that wait for a flush of the carrier.
    pub(crate) in_flushing: bool,
    pub(crate) waker: Option<Waker>,
}

impl SendHalf {
    fn new() -> Self {
        Self {
            queue: SendQueue::default(),
            fin: Fin::None,
            sent: 0,
            consumed: 0,
            window: INITIAL_WINDOW,
            error: None,
            is_broken: false,
            batch: 0,
            flush_wanted: false,
            in_flushing: false,
            waker: None,
        }
    }

    /// Bytes that the peer's window allows to send now; unlimited in version 1.
    pub(crate) fn credit(&self, version: u8) -> usize {
        if version == 1 {
            return usize::MAX;
        }
        self.window.saturating_sub(self.sent.wrapping_sub(self.consumed)) as usize
    }

    /// Whether everything queued was written and the carrier flushed, given the last flushed batch.
    pub(crate) fn is_flushed(&self, flushed: u64) -> bool {
        self.queue.len() == 0 && self.batch <= flushed
    }

    /// Whether data or FIN is unsent.
    pub(crate) fn is_unsent(&self) -> bool {
        self.queue.len() > 0 || matches!(self.fin, Fin::Queued | Fin::Delayed | Fin::Due)
    }

    /// Whether the stream has a frame to send.
    pub(crate) fn is_ready(&self, version: u8) -> bool {
        match self.queue.len() {
            0 => matches!(self.fin, Fin::Queued | Fin::Due),
            _ => self.credit(version) > 0,
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a payload has at most 65,535 bytes")]
    pub(crate) fn on_sent(&mut self, len: usize) {
        self.sent = self.sent.wrapping_add(len as u32);
    }

    /// Handles a window update of the peer.
    pub(crate) fn on_update(&mut self, consumed: u32, window: u32) -> Result<(), ProtocolError> {
        let newly_consumed = consumed.wrapping_sub(self.consumed);
        if newly_consumed > self.sent.wrapping_sub(self.consumed) {
            if newly_consumed >= 1 << 31 {
                // Older than the last one.
                return Ok(());
            }
            return Err(ProtocolError::Consumed { consumed, sent: self.sent });
        }
        self.consumed = consumed;
        // xtaci/smux treats such a window as negative, and also waits for the next update.
        self.window = if window < 1 << 31 { window } else { 0 };
        Ok(())
    }
}

/// Smallest buffer allocated for writes, in bytes.
const MIN_CAPACITY: usize = 64;

/// Limit of a growing buffer that small writes append to, in bytes.
const MAX_GROWTH: usize = 16_384;

/// Unsent bytes written to a stream.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    chunks: VecDeque<Bytes>,
    /// After the chunks; small writes append to it.
    tail: BytesMut,
    len: usize,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends a copy of `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.tail.capacity() - self.tail.len()));
        self.tail.extend_from_slice(head);
        if !rest.is_empty() {
            self.end_tail();
            let capacity = self.len.clamp(MIN_CAPACITY, MAX_GROWTH).max(rest.len());
            self.tail = BytesMut::with_capacity(capacity);
            self.tail.extend_from_slice(rest);
        }
        self.len += bytes.len();
    }

    /// Appends `chunk` itself.
    pub(crate) fn push_chunk(&mut self, chunk: Bytes) {
        self.end_tail();
        self.len += chunk.len();
        self.chunks.push_back(chunk);
    }

    /// Ends the tail: later writes go behind it.
    fn end_tail(&mut self) {
        if self.tail.is_empty() {
            return;
        }
        if self.tail.len() < self.tail.capacity() / 2 {
            // A queue of short tails would hold their capacity.
            self.chunks.push_back(Bytes::copy_from_slice(&self.tail));
            self.tail.clear();
        } else {
            self.chunks.push_back(mem::take(&mut self.tail).freeze());
        }
    }

    /// Moves the first `len` bytes into `batch`; at least `len` are queued.
    pub(crate) fn take_into(&mut self, mut len: usize, batch: &mut Batch) {
        self.len -= len;
        while len > 0 {
            let Some(front) = self.chunks.front_mut() else {
                take_tail(&mut self.tail, len, batch);
                break;
            };
            let taken = len.min(front.len());
            len -= taken;
            if batch.copies(taken) {
                batch.copy(&front[..taken]);
                front.advance(taken);
            } else {
                batch.share(front.split_to(taken));
            }
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
        if self.len == 0 {
            // An idle stream keeps no buffer.
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn take_tail(tail: &mut BytesMut, len: usize, batch: &mut Batch) {
    if batch.copies(len) {
        batch.copy(&tail[..len]);
        tail.advance(len);
    } else {
        batch.share(tail.split_to(len).freeze());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_flight_use_up_the_window_across_the_wrap() {
        let mut send = SendHalf::new();
        (send.sent, send.consumed) = (u32::MAX - 499, u32::MAX - 499);
        send.on_sent(1_500);
        assert_eq!(send.sent, 1_000);
        assert_eq!(send.credit(2), INITIAL_WINDOW as usize - 1_500);
    }

    #[test]
    fn window_update_older_than_the_last_one_is_ignored_across_the_wrap() {
        let mut send = SendHalf::new();
        send.sent = 1_000;
        send.consumed = u32::MAX - 499;
        send.on_update(500, 10_000).unwrap();
        assert_eq!(send.credit(2), 9_500);
        for older in [u32::MAX - 100, 499] {
            send.on_update(older, 1).unwrap();
            assert_eq!(send.credit(2), 9_500);
        }
        send.on_update(1_000, 70).unwrap();
        assert_eq!(send.credit(2), 70);
        let error = ProtocolError::Consumed { consumed: 1_001, sent: 1_000 };
        assert_eq!(send.on_update(1_001, 70), Err(error));
        for window in [0, 1 << 31, u32::MAX] {
            send.on_update(1_000, window).unwrap();
            assert_eq!(send.credit(2), 0);
        }
        assert_eq!(send.credit(1), usize::MAX);
    }

    /// So that a queue of short buffers does not hold more than twice its bytes.
    #[test]
    fn buffer_of_small_writes_is_copied_before_a_chunk_only_if_less_than_half_is_used() {
        for (len, is_copied) in [(31, true), (32, false)] {
            let mut queue = SendQueue::default();
            queue.push(&vec![7; len]);
            assert_eq!(queue.tail.capacity(), MIN_CAPACITY);
            let address = queue.tail.as_ptr();
            queue.push_chunk(Bytes::from_static(b"chunk"));
            assert_eq!(queue.chunks[0], vec![7; len]);
            assert_eq!(queue.chunks[0].as_ptr() != address, is_copied);
        }
    }
}
