//! Handling of received frames.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, BytesMut};

use super::frame::Event;
use super::session::{Control, Core, Entry};
use super::stream::{Fin, SharedStream, StreamState};
use crate::error::{Error, ProtocolError};

impl Core {
    /// Prepares `input`, which is empty, for the next read from the carrier.
    pub(crate) fn prepare_input(&mut self, input: &mut BytesMut) {
        let is_other = self.buffers.prepare(input);
        if self.keepalive.is_none() {
            // No timer would free them.
            self.buffers.release();
        }
        if is_other && self.buffers.are_sparse() {
            // A buffer is full but for 16 KiB, and less than 32 KiB of it is unread: at most two
            // thirds of the bytes read since the last time are copied.
            for id in self.sharing.drain() {
                let Some(entry) = self.streams.get(&id) else { continue };
                let mut state = entry.stream.lock();
                state.in_sharing = false;
                state.receive.queue.detach();
            }
        }
    }

    /// Takes all of `input`, see [`Core::prepare_input`].
    pub(crate) fn receive(
        &mut self,
        input: &mut BytesMut,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        self.stats.bytes_received += input.len() as u64;
        let headers = self.parser.headers;
        let result = self.receive_events(input, now);
        if self.parser.headers != headers {
            self.on_header(now);
        }
        self.stats.frames_received = self.parser.frames;
        result
    }

    fn receive_events(&mut self, input: &mut BytesMut, now: Instant) -> Result<(), ProtocolError> {
        let mut version = self.parser.version();
        while let Some(event) = self.parser.next(input)? {
            if version.is_none() {
                version = self.parser.version();
                self.mailbox.set_version(self.version());
            }
            match event {
                Event::Syn(id) => self.on_syn(id, now),
                Event::Fin(id) => self.on_fin(id),
                Event::Reset(id) => self.on_reset(id),
                Event::Payload { id, len } => self.on_payload(id, input, len),
                Event::Upd { id, consumed, window } => self.on_update(id, consumed, window),
            }
        }
        if version.is_none() {
            // NOP decides the version too.
            self.mailbox.set_version(self.version());
        }
        Ok(())
    }

    fn on_syn(&mut self, id: u32, now: Instant) {
        // A handle may just have been assigned this id of this side.
        let is_reserved = id % 2 == self.parity() && self.exchange_and_reserve(id, now);
        if self.streams.contains_key(&id) {
            self.stats.frames_ignored += 1;
            return;
        }
        self.discarded.remove(id);
        let mut queue = self.mailbox.accept_queue();
        let is_full = queue.streams.len() >= self.config.accept_backlog
            || self.peer_streams >= self.config.max_streams
            || self.refusals.contains(id)
            || self.closing;
        if is_full {
            drop(queue);
            self.stats.streams_refused += 1;
            self.refusals.push(id);
            // If an answer is pending, sending it releases the id.
            if is_reserved && !self.refusals.contains(id) {
                self.release_id(id);
            }
            return;
        }
        let stream = SharedStream::new(id);
        queue.streams.push_back(Arc::clone(&stream));
        self.signals.wakers.extend(queue.waker.take());
        drop(queue);
        self.signals.accepted = true;
        self.stats.streams_accepted += 1;
        self.register(stream, true);
    }

    fn on_fin(&mut self, id: u32) {
        let Some(Entry { stream, .. }) = self.streams.get(&id) else {
            if !self.discarded.remove(id) {
                self.stats.frames_ignored += 1;
            }
            return;
        };
        let stream = Arc::clone(stream);
        let mut state = stream.lock();
        if state.receive.fin {
            self.stats.frames_ignored += 1;
            return;
        }
        if state.error.is_some() {
            // After a reset, FIN is not the end.
            return;
        }
        if state.aborted && state.send.fin >= Fin::Taken {
            // The peer answers the reset with FIN and discards its unsent bytes.
            self.fail_stream(&stream, &mut state, &Error::Reset);
            return;
        }
        state.receive.fin = true;
        self.signals.wakers.extend(state.receive.waker.take());
        if state.is_over() {
            self.forget(&stream, &mut state);
        }
    }

    /// The peer has aborted the stream, or, if its FIN came before, no longer reads.
    fn on_reset(&mut self, id: u32) {
        let Some(Entry { stream, .. }) = self.streams.get(&id) else {
            self.stats.frames_ignored += 1;
            return;
        };
        let stream = Arc::clone(stream);
        let mut state = stream.lock();
        self.stats.streams_reset += 1;
        self.fail_stream(&stream, &mut state, &Error::Reset);
    }

    fn on_payload(&mut self, id: u32, input: &mut BytesMut, len: usize) {
        self.stats.payload_received += len as u64;
        let Some(Entry { stream, .. }) = self.streams.get(&id) else {
            self.stats.payload_dropped += len as u64;
            input.advance(len);
            let window = self.window_share();
            if let Some((consumed, window)) = self.discarded.on_payload(id, len, window) {
                self.control.push_back(Control::LastUpdate { id, consumed, window });
            }
            return;
        };
        let stream = Arc::clone(stream);
        let mut state = stream.lock();
        if state.receive.discards || state.receive.fin || state.error.is_some() {
            input.advance(len);
            self.stats.payload_dropped += len as u64;
            if state.receive.discards && !state.receive.fin {
                state.receive.window.on_discarded(len);
                self.queue_update(&stream, &mut state);
            }
            return;
        }
        let enforces_window = self.version() == 2;
        match state.receive.push(input, len, &self.buffers, enforces_window) {
            Ok(shares_buffer) => {
                if shares_buffer && !mem::replace(&mut state.in_sharing, true) {
                    self.sharing.insert(id);
                }
                self.mailbox.tokens.add(len);
                self.signals.wakers.extend(state.receive.waker.take());
            }
            Err(error) => self.on_window_exceeded(&stream, &mut state, input, len, error),
        }
    }

    /// Ends one stream and drops its first `len` bytes of `input`.
    fn on_window_exceeded(
        &mut self,
        stream: &Arc<SharedStream>,
        state: &mut StreamState,
        input: &mut BytesMut,
        len: usize,
        error: ProtocolError,
    ) {
        input.advance(len);
        self.stats.payload_dropped += len as u64;
        let unread = state.receive.queue.clear();
        // The driver reads again in this turn if it waits for tokens.
        let _ = self.mailbox.tokens.release(unread);
        self.stats.streams_failed += 1;
        self.fail_stream(stream, state, &Error::Protocol(error));
    }

    fn on_update(&mut self, id: u32, consumed: u32, window: u32) {
        let Some(Entry { stream, .. }) = self.streams.get(&id) else {
            self.stats.frames_ignored += 1;
            return;
        };
        let stream = Arc::clone(stream);
        let mut state = stream.lock();
        match state.send.on_update(consumed, window) {
            Ok(()) => {
                state.updated_after_fin |= state.receive.fin;
                self.queue_turn(&stream, &mut state);
            }
            Err(error) => {
                self.stats.streams_failed += 1;
                self.fail_stream(&stream, &mut state, &Error::Protocol(error));
            }
        }
    }

    /// Ends one stream and sends its peer FIN; the others continue.
    fn fail_stream(&mut self, stream: &Arc<SharedStream>, state: &mut StreamState, error: &Error) {
        let wakers = state.fail(error);
        self.signals.wakers.extend(wakers.into_iter().flatten());
        self.count_queued(state);
        if state.send.fin < Fin::Taken {
            state.send.fin = Fin::Due;
            self.queue_turn(stream, state);
        }
        if state.is_over() {
            self.forget(stream, state);
        }
    }
}
