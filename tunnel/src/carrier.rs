//! Carrier of a session: a KCP connection, with or without Snappy framing.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use kcpx::{ConnectionStats, KcpStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::macros::{impl_async_read, impl_async_write};
use crate::snappy::SnappyStream;

/// Interval of checks whether everything was acknowledged.
const ACK_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// State of a connection that outlives its stream, which the session owns.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// The stream, while the session has it.
    stream: Weak<Mutex<KcpStream>>,
    /// Statistics of a stream that is gone.
    last: Mutex<ConnectionStats>,
    /// The peer has sent a byte.
    heard: AtomicBool,
    /// This side closes the session in order.
    closing: AtomicBool,
    /// The stream is gone; `end_changed` is notified then.
    ended: AtomicBool,
    end_changed: Notify,
}

impl Link {
    /// Returns the current statistics, or the last ones of a stream that has ended.
    pub(crate) fn stats(&self) -> ConnectionStats {
        match self.stream.upgrade() {
            Some(stream) => lock(&stream).stats(),
            None => *lock(&self.last),
        }
    }

    /// Sets the statistics of a stream that is gone.
    #[cfg(test)]
    pub(crate) fn set_stats(&self, stats: ConnectionStats) {
        *lock(&self.last) = stats;
    }

    /// Notes the end of the stream: keeps its statistics, and wakes [`ended`](Self::ended).
    pub(crate) fn end(&self, stats: ConnectionStats) {
        *lock(&self.last) = stats;
        self.ended.store(true, Ordering::Release);
        self.end_changed.notify_waiters();
    }

    /// Waits until the stream has ended. Cancel safe.
    pub(crate) async fn ended(&self) {
        let mut changed = pin!(self.end_changed.notified());
        changed.as_mut().enable();
        if !self.ended.load(Ordering::Acquire) {
            changed.await;
        }
    }

    /// Notes that this side closes the session.
    pub(crate) fn set_closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Whether the peer has sent a byte.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Whether the peer runs this program, which resets a stream when its user has left.
    pub(crate) fn peer_is_kcpx(&self) -> bool {
        self.stats().peer_supports_control
    }

    /// Waits until the peer has acknowledged everything given to KCP so far, or the stream is gone.
    /// Bytes queued in smux or Snappy are not included: flush first.
    pub(crate) async fn acknowledged(&self) {
        let stats = self.stats();
        let bytes = stats.sent.payload_bytes + stats.unsent_bytes;
        let mut segments = None;
        while self.stream.strong_count() > 0 {
            let stats = self.stats();
            if stats.sent.payload_bytes >= bytes {
                // Everything is sent, so its segments are among the segments sent so far.
                let last = *segments.get_or_insert(stats.sent.segments);
                if stats.sent.segments - u64::from(stats.path.in_flight_segments) >= last {
                    return;
                }
            }
            sleep(ACK_CHECK_INTERVAL).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A KCP connection, with statistics that a [`Link`] reads.
pub(crate) struct LinkedStream {
    /// Locked for one poll at a time, by the session and by readers of statistics.
    stream: Arc<Mutex<KcpStream>>,
    link: Arc<Link>,
}

impl LinkedStream {
    pub(crate) fn new(stream: KcpStream) -> Self {
        let stream = Arc::new(Mutex::new(stream));
        let link = Link { stream: Arc::downgrade(&stream), ..Link::default() };
        Self { stream, link: Arc::new(link) }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Locks the stream for one poll.
    pub(crate) fn lock(&self) -> MutexGuard<'_, KcpStream> {
        lock(&self.stream)
    }

    /// Waits for a byte and returns it without taking it; `None` at the end.
    pub(crate) async fn peek_byte(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let mut buf = ReadBuf::new(&mut first);
        let len = poll_fn(|cx| lock(&self.stream).poll_peek(cx, &mut buf)).await?;
        Ok((len > 0).then_some(first[0]))
    }
}

impl Drop for LinkedStream {
    fn drop(&mut self) {
        let stats = lock(&self.stream).stats();
        self.link.end(stats);
    }
}

impl AsyncRead for LinkedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut *lock(&self.stream)).poll_read(cx, buf))?;
        if buf.filled().len() > before && !self.link.has_heard() {
            self.link.heard.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LinkedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.stream)).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.stream)).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_shutdown(cx)
    }
}

impl fmt::Debug for LinkedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lock(&self.stream).fmt(f)
    }
}

/// A carrier of smux frames.
#[derive(Debug)]
pub(crate) enum Carrier {
    Plain(LinkedStream),
    Snappy(Box<SnappyStream<LinkedStream>>),
}

impl Carrier {
    pub(crate) fn new(stream: LinkedStream, compression: bool) -> Self {
        if compression {
            Self::Snappy(Box::new(SnappyStream::new(stream)))
        } else {
            Self::Plain(stream)
        }
    }
}

impl_async_read!(Carrier: Plain, Snappy);
impl_async_write!(Carrier: Plain, Snappy);
