//! A stream as its handle and the driver share it: two halves behind one leaf lock.

use std::sync::{Arc, PoisonError};
use std::task::Waker;

use bytes::BytesMut;

use super::frame::INITIAL_WINDOW;
use super::read_buffers::ReadBuffers;
use super::receive_queue::ReceiveQueue;
use super::receive_window::ReceiveWindow;
use super::send_queue::SendQueue;
use super::turns::Class;
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

#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) receive: ReceiveHalf,
    pub(crate) send: SendHalf,
    /// From the end of the session, or of this stream alone by a protocol error.
    pub(crate) error: Option<Error>,
    /// True from when a handle puts the stream into the inbox until the driver takes it out.
    pub(crate) in_inbox: bool,
    /// Among which streams it waits for its turn to send a frame.
    pub(crate) turn: Option<Class>,
    /// Its place among streams whose writer has finished; 0 before.
    pub(crate) finish_number: u64,
    /// True while the stream is among those that were dropped and wait for window.
    pub(crate) in_abandoned: bool,
    /// True while an UPD of the stream is queued, which takes its values when it is written.
    pub(crate) update_queued: bool,
    /// True while the stream is among those with unread payload in read buffers.
    pub(crate) in_sharing: bool,
    /// True while the stream is counted as one with queued bytes.
    pub(crate) is_counted: bool,
    /// True once written bytes are discarded before FIN is taken, by `abort` or without window: a reset comes
    /// before FIN.
    pub(crate) aborted: bool,
    /// True from a window update that comes after the peer's FIN.
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

    /// True if the caller has to put the stream into the inbox.
    #[must_use]
    pub(crate) fn enter_inbox(&mut self) -> bool {
        !std::mem::replace(&mut self.in_inbox, true)
    }

    /// Ends the stream with `error`. What was received stays readable, what was queued is discarded.
    pub(crate) fn fail(&mut self, error: &Error) -> [Option<Waker>; 2] {
        if self.error.is_none() {
            self.error = Some(error.clone());
        }
        [self.receive.waker.take(), self.fail_sending(error)]
    }

    /// Nothing more is sent. The stream still receives.
    pub(crate) fn fail_sending(&mut self, error: &Error) -> Option<Waker> {
        self.send.error.get_or_insert_with(|| error.clone());
        if self.send.queue.len() > 0 {
            self.send.batch = u64::MAX;
            self.send.queue.clear();
        }
        self.send.waker.take()
    }

    /// True for a dropped stream whose queued bytes wait for window.
    pub(crate) fn has_no_reader_or_window(&self, version: u8) -> bool {
        let waits = self.send.queue.len() > 0 && self.send.credit(version) == 0;
        self.receive.discards && self.send.fin == Fin::Queued && waits
    }

    /// True when no frame of the stream will leave any more, and none of the peer's has an effect.
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
    /// From when the peer's FIN has arrived.
    pub(crate) fin: bool,
    /// From when the handle was dropped: what arrives is discarded.
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

    /// Queues the first `len` bytes of `input`, the one of `buffers` that is read into, if the window
    /// allows them. True if they stay in that buffer.
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

    /// The handle is gone. Returns how many unread bytes were discarded.
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

/// The way of FIN to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fin {
    /// The application writes. Left on shutdown or drop.
    None,
    /// Comes after what is queued. Left when that has left.
    Queued,
    /// Everything has left; waits for `Config::fin_delay`.
    Delayed,
    /// The delay is over. Left with the stream's next turn.
    Due,
    /// In the batch. Left when that was written.
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
    /// Bytes that the peer's application has read, by its last update, modulo 2^32.
    consumed: u32,
    /// Of the peer's last update, bytes.
    window: u32,
    /// Of the session, or of this stream alone.
    pub(crate) error: Option<Error>,
    /// True from when the carrier takes no more bytes.
    pub(crate) is_broken: bool,
    /// Number of the last batch with a frame of the stream; `u64::MAX` when bytes were discarded.
    pub(crate) batch: u64,
    /// True from when a flush asks the driver until the driver has seen that.
    pub(crate) flush_wanted: bool,
    /// True while the stream is among those that wait for a flush of the carrier.
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

    /// Bytes that the peer's window allows to be sent now. In version 1 there is none.
    pub(crate) fn credit(&self, version: u8) -> usize {
        if version == 1 {
            return usize::MAX;
        }
        self.window.saturating_sub(self.sent.wrapping_sub(self.consumed)) as usize
    }

    /// True if all that was queued was written, and the carrier flushed up to batch `flushed`.
    pub(crate) fn is_flushed(&self, flushed: u64) -> bool {
        self.queue.len() == 0 && self.batch <= flushed
    }

    /// True if data or FIN have not left.
    pub(crate) fn is_unsent(&self) -> bool {
        self.queue.len() > 0 || matches!(self.fin, Fin::Queued | Fin::Delayed | Fin::Due)
    }

    /// True if the stream has a frame to send.
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

    /// A window update of the peer.
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
        // xtaci/smux takes such a window for a negative one, and waits for the next update too.
        self.window = if window < 1 << 31 { window } else { 0 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_update_older_than_the_last_one_is_ignored_across_the_wrap() {
        let mut send = SendHalf::new();
        send.sent = 1_000;
        send.consumed = u32::MAX - 499;
        send.on_update(500, 10_000).unwrap();
        assert_eq!(send.credit(2), 9_500);
        send.on_update(u32::MAX - 100, 1).unwrap();
        assert_eq!(send.credit(2), 9_500);
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
}
