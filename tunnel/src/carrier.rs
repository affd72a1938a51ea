//! What a session runs over: a KCP connection, with Snappy framing or without.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use kcpx::{ConnectionStats, KcpStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::snappy::SnappyStream;

/// Least time between two snapshots of a connection's statistics.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of a connection without its stream, which the session has.
#[derive(Debug, Default)]
pub(crate) struct Link {
    stats: Mutex<ConnectionStats>,
    /// True from the first byte of the peer on.
    heard: AtomicBool,
}

impl Link {
    /// The statistics as they were when something was last sent, at most a second before the last
    /// byte, and at the end.
    pub(crate) fn stats(&self) -> ConnectionStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the peer has sent a byte.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    fn publish(&self, stream: &KcpStream) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stream.stats();
    }
}

/// A KCP connection that publishes its statistics.
pub(crate) struct LinkedStream {
    stream: KcpStream,
    link: Arc<Link>,
    next_publish: Instant,
}

impl LinkedStream {
    pub(crate) fn new(stream: KcpStream) -> Self {
        Self { stream, link: Arc::default(), next_publish: Instant::now() }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn stream(&self) -> &KcpStream {
        &self.stream
    }

    /// The stream by itself; nothing is published any more.
    pub(crate) fn stream_mut(&mut self) -> &mut KcpStream {
        &mut self.stream
    }
}

impl Drop for LinkedStream {
    fn drop(&mut self) {
        self.link.publish(&self.stream);
    }
}

impl AsyncRead for LinkedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before && !this.link.has_heard() {
            this.link.heard.store(true, Ordering::Relaxed);
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
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let now = Instant::now();
        if now >= this.next_publish {
            this.next_publish = now + PUBLISH_INTERVAL;
            this.link.publish(&this.stream);
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl fmt::Debug for LinkedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
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

/// Calls a method of the carrier that there is.
macro_rules! forward {
    ($self:ident, $method:ident $(, $argument:expr)*) => {
        match $self.get_mut() {
            Self::Plain(carrier) => Pin::new(carrier).$method($($argument),*),
            Self::Snappy(carrier) => Pin::new(&mut **carrier).$method($($argument),*),
        }
    };
}

impl AsyncRead for Carrier {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        forward!(self, poll_read, cx, buf)
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_write, cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_write_vectored, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_shutdown, cx)
    }
}
