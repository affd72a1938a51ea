//! Buffers that the carrier is read into. Unread payload may be a piece of a buffer and keeps all
//! of it in memory. Both are counted, so that few unread bytes do not hold many buffers.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a buffer.
pub(crate) const READ_BUFFER: usize = 64 << 10;

/// Largest piece of unread bytes in memory of its own, so that a short rest does not hold much
/// memory.
const MAX_OWNED: usize = 8 << 10;

/// With less free space than this, the next read uses a new buffer.
const MIN_READ: usize = 16 << 10;

/// Buffers that may exist regardless of the pieces they hold: the current buffer, and a few with
/// pieces about to be read.
const SPARE_BUFFERS: usize = 4;

/// Buffers kept for reuse while the session is busy.
const MAX_RETIRED: usize = 4;

#[derive(Debug)]
pub(crate) struct ReadBuffers {
    usage: Arc<Usage>,
    /// The buffer that is read into.
    current: Arc<Buffer>,
    /// Earlier buffers. Some still have pieces.
    retired: VecDeque<BytesMut>,
}

#[derive(Debug, Default)]
struct Usage {
    /// Buffers in memory.
    buffers: AtomicUsize,
    /// Unread bytes that are pieces of buffers.
    unread: AtomicUsize,
}

/// Lives while a buffer is read into, or has an unread piece.
#[derive(Debug)]
struct Buffer(Arc<Usage>);

impl Buffer {
    fn new(usage: &Arc<Usage>) -> Arc<Self> {
        usage.buffers.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self(Arc::clone(usage)))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadBuffers {
    pub(crate) fn new() -> Self {
        let usage = Arc::default();
        Self { current: Buffer::new(&usage), usage, retired: VecDeque::new() }
    }

    /// Gives `input`, which is empty, a capacity of at least [`MIN_READ`] bytes. Returns whether
    /// that took another buffer.
    pub(crate) fn prepare(&mut self, input: &mut BytesMut) -> bool {
        debug_assert!(input.is_empty());
        // Reuses the whole buffer if it has no piece left.
        if input.capacity() >= MIN_READ || input.try_reclaim(READ_BUFFER) {
            return false;
        }
        let free = self.retired.iter_mut().position(|buffer| buffer.try_reclaim(READ_BUFFER));
        let next = free.and_then(|i| self.retired.remove(i));
        // Memory that is freed and allocated again would often be mapped again.
        let next = next.unwrap_or_else(|| BytesMut::with_capacity(READ_BUFFER));
        if self.retired.len() == MAX_RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(mem::replace(input, next));
        self.current = Buffer::new(&self.usage);
        true
    }

    /// Frees the buffers kept for reuse.
    pub(crate) fn release(&mut self) {
        self.retired = VecDeque::new();
    }

    /// Whether less than half of the buffers' memory is unread.
    pub(crate) fn are_sparse(&self) -> bool {
        let buffers = self.usage.buffers.load(Ordering::Relaxed).saturating_sub(SPARE_BUFFERS);
        buffers.saturating_mul(READ_BUFFER) / 2 > self.usage.unread.load(Ordering::Relaxed)
    }

    /// Counts `bytes` as a piece of the current buffer.
    pub(crate) fn piece(&self, bytes: Bytes) -> Piece {
        self.usage.unread.fetch_add(bytes.len(), Ordering::Relaxed);
        Piece { bytes, buffer: Some(Arc::clone(&self.current)) }
    }
}

/// Unread bytes: a piece of a read buffer, or in memory of their own.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    buffer: Option<Arc<Buffer>>,
}

impl Piece {
    /// A piece in memory of its own.
    pub(crate) fn owned(bytes: Bytes) -> Self {
        Self { bytes, buffer: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes up to `max` bytes. The reader owns them from here on, so they no longer count.
    pub(crate) fn take(&mut self, max: usize) -> Bytes {
        let bytes = self.bytes.split_to(max.min(self.bytes.len()));
        self.uncount(bytes.len());
        bytes
    }

    /// Appends the piece to `pieces`. A piece of a read buffer is copied, in parts of [`MAX_OWNED`]
    /// bytes.
    pub(crate) fn detach_into(mut self, pieces: &mut VecDeque<Self>) {
        if self.buffer.is_none() {
            pieces.push_back(self);
            return;
        }
        while !self.is_empty() {
            let bytes = self.take(MAX_OWNED);
            pieces.push_back(Self::owned(Bytes::copy_from_slice(&bytes)));
        }
    }

    fn uncount(&self, len: usize) {
        if let Some(buffer) = &self.buffer {
            buffer.0.unread.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.uncount(self.bytes.len());
    }
}

/// Payload shorter than this is copied; longer payload is split off the read buffer.
const COPY_BELOW: usize = 4_096;

/// Capacity of the buffer that collects short payloads, in bytes: at first and at most.
const TAIL_CAPACITY: (usize, usize) = (256, MAX_OWNED);

/// Received bytes of a stream that the application has not read.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    chunks: VecDeque<Piece>,
    /// Short payloads after `chunks`.
    tail: BytesMut,
    len: usize,
}

impl ReceiveQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes the first `len` bytes of `input`, the current buffer of `buffers`. Returns whether
    /// they stay in that buffer.
    pub(crate) fn push(&mut self, input: &mut BytesMut, len: usize, buffers: &ReadBuffers) -> bool {
        self.len += len;
        if len >= COPY_BELOW {
            self.freeze_tail();
            self.chunks.push_back(buffers.piece(input.split_to(len).freeze()));
            return true;
        }
        if self.tail.capacity() - self.tail.len() < len {
            self.freeze_tail();
            let (first, most) = TAIL_CAPACITY;
            // At most doubles the memory of the unread bytes.
            self.tail = BytesMut::with_capacity(self.len.clamp(first, most).max(len));
        }
        self.tail.extend_from_slice(&input[..len]);
        input.advance(len);
        false
    }

    /// Copies all pieces of read buffers.
    pub(crate) fn detach(&mut self) {
        let chunks = mem::take(&mut self.chunks);
        chunks.into_iter().for_each(|chunk| chunk.detach_into(&mut self.chunks));
    }

    /// Takes up to `max` bytes of the first piece. Empty if nothing is queued.
    pub(crate) fn take(&mut self, max: usize) -> Bytes {
        let bytes = match self.chunks.front_mut() {
            Some(chunk) => {
                let bytes = chunk.take(max);
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
                bytes
            }
            None if self.tail.len() > max => self.tail.split_to(max).freeze(),
            None => mem::take(&mut self.tail).freeze(),
        };
        self.len -= bytes.len();
        if self.len == 0 {
            // An idle stream keeps no buffer.
            self.chunks = VecDeque::new();
        }
        bytes
    }

    /// Discards everything; returns the number of bytes.
    pub(crate) fn clear(&mut self) -> usize {
        mem::take(self).len
    }

    /// Ends the collection of short payloads. If they use less than half of the buffer they are
    /// copied, so that they never hold more than twice their length.
    fn freeze_tail(&mut self) {
        if self.tail.is_empty() {
            return;
        }
        let tail = mem::take(&mut self.tail);
        let is_sparse = tail.len() * 2 < tail.capacity();
        let tail = if is_sparse { Bytes::copy_from_slice(&tail) } else { tail.freeze() };
        self.chunks.push_back(Piece::owned(tail));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Config;
    use crate::core::inbox::Mailbox;
    use crate::core::inbox::Tokens;
    use crate::core::session::Core;

    /// Fills the beginning of a new buffer.
    fn fill(buffers: &mut ReadBuffers, input: &mut BytesMut, len: usize) -> Piece {
        input.clear();
        *input = BytesMut::new();
        assert!(buffers.prepare(input));
        input.extend_from_slice(&vec![7; len]);
        buffers.piece(input.split_to(len).freeze())
    }

    #[test]
    fn read_buffers_of_which_less_than_half_is_unread_are_sparse() {
        let (mut buffers, mut input) = (ReadBuffers::new(), BytesMut::new());
        let mut pieces = Vec::new();
        for _ in 0..20 {
            pieces.push(fill(&mut buffers, &mut input, READ_BUFFER / 2));
            assert!(!buffers.are_sparse());
        }
        // 10 buffers' bytes are unread; of 20 buffers 4 are spare, and 8 are half of the rest.
        for piece in pieces.iter_mut().take(8) {
            assert!(!buffers.are_sparse());
            piece.take(READ_BUFFER / 4 + 1);
        }
        assert_eq!(pieces[0].take(usize::MAX).len(), READ_BUFFER / 4 - 1);
        assert!(buffers.are_sparse());
        let mut detached = VecDeque::new();
        pieces.into_iter().for_each(|piece| piece.detach_into(&mut detached));
        assert!(!buffers.are_sparse());
        assert_eq!(detached[0].take(usize::MAX), vec![7; MAX_OWNED]);
        let len: usize = detached.iter().map(|piece| piece.bytes.len()).sum();
        assert_eq!(len, 12 * READ_BUFFER / 2 + 7 * (READ_BUFFER / 4 - 1) - MAX_OWNED);
        drop(detached);
        assert_eq!(buffers.usage.unread.load(Ordering::Relaxed), 0);
        assert_eq!(buffers.usage.buffers.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn read_buffer_without_pieces_is_taken_again() {
        let (mut buffers, mut input) = (ReadBuffers::new(), BytesMut::new());
        let piece = fill(&mut buffers, &mut input, READ_BUFFER - 100);
        drop(piece);
        assert!(!buffers.prepare(&mut input));
        assert!(input.capacity() >= READ_BUFFER);
        let piece = fill(&mut buffers, &mut input, READ_BUFFER - 100);
        assert!(buffers.prepare(&mut input));
        drop(piece);
    }

    #[test]
    fn read_buffer_whose_last_piece_is_read_later_is_taken_again() {
        let (mut buffers, mut input) = (ReadBuffers::new(), BytesMut::new());
        let mut read = |buffers: &mut ReadBuffers| {
            assert!(buffers.prepare(&mut input));
            input.extend_from_slice(&vec![7; READ_BUFFER - 100]);
            buffers.piece(input.split_to(READ_BUFFER - 100).freeze())
        };
        let first = read(&mut buffers);
        let address = first.bytes.as_ptr();
        let second = read(&mut buffers);
        drop(first);
        let third = read(&mut buffers);
        assert_eq!(third.bytes.as_ptr(), address);
        let pieces: Vec<_> = (0..10).map(|_| read(&mut buffers)).collect();
        assert_eq!(buffers.retired.len(), MAX_RETIRED);
        buffers.release();
        drop((second, third, pieces));
        assert_eq!(buffers.usage.buffers.load(Ordering::Relaxed), 1);
    }

    /// A server, without keepalive or with an interval.
    fn core(keepalive: Option<Duration>, now: Instant) -> Core {
        let mailbox = Mailbox::new(Tokens::new(4 << 20), Some(1), 2);
        Core::new(Config::new().keepalive(keepalive), Arc::new(mailbox), now)
    }

    /// Reads 10 payloads. Each takes up a buffer.
    fn receive(core: &mut Core, input: &mut BytesMut, now: Instant) {
        input.extend_from_slice(&[1, 0, 0, 0, 3, 0, 0, 0]);
        for _ in 0..10 {
            input.extend_from_slice(&[1, 2, 0x60, 0xea, 3, 0, 0, 0]);
            input.extend_from_slice(&vec![7; 60_000]);
            core.receive(input, now).unwrap();
            core.prepare_input(input);
        }
    }

    #[test]
    fn read_buffers_are_kept_until_the_keepalive() {
        let (now, interval) = (Instant::now(), Duration::from_secs(10));
        let (mut core, mut input) = (core(Some(interval), now), BytesMut::new());
        core.prepare_input(&mut input);
        receive(&mut core, &mut input, now);
        assert_eq!(core.buffers.retired.len(), MAX_RETIRED);
        core.on_timer(now + interval).unwrap();
        assert_eq!(core.buffers.retired.len(), 0);
    }

    #[test]
    fn read_buffers_without_keepalive_are_not_kept() {
        let now = Instant::now();
        let (mut core, mut input) = (core(None, now), BytesMut::new());
        core.prepare_input(&mut input);
        receive(&mut core, &mut input, now);
        assert_eq!(core.buffers.retired.len(), 0);
    }

    #[test]
    fn receive_queue_returns_bytes_in_order_whatever_the_sizes() {
        for (piece, read) in [(1, 1), (1, 7), (100, 4_096), (4_095, 3), (5_000, 999), (70, 100_000)]
        {
            let data: Vec<u8> = (0..60_000_u32).map(|i| (i % 251) as u8).collect();
            let (mut queue, buffers) = (ReceiveQueue::default(), ReadBuffers::new());
            let mut out = Vec::new();
            for (i, piece) in data.chunks(piece).enumerate() {
                let mut input = BytesMut::from(piece);
                queue.push(&mut input, piece.len(), &buffers);
                assert!(input.is_empty());
                if i % 7 == 0 {
                    queue.detach();
                }
                if i % 3 == 0 {
                    out.extend_from_slice(&queue.take(read));
                }
            }
            while queue.len() > 0 {
                let bytes = queue.take(read);
                assert!((1..=read).contains(&bytes.len()));
                out.extend_from_slice(&bytes);
            }
            assert_eq!(out, data);
            assert!(queue.take(1).is_empty());
        }
    }

    #[test]
    fn receive_queue_of_single_bytes_shares_buffers() {
        let (mut queue, buffers) = (ReceiveQueue::default(), ReadBuffers::new());
        for _ in 0..100_000 {
            queue.push(&mut BytesMut::from(&b"x"[..]), 1, &buffers);
        }
        assert!(queue.chunks.len() < 20, "{} pieces", queue.chunks.len());
        assert_eq!(queue.clear(), 100_000);
        assert_eq!(queue.len(), 0);
    }
}
