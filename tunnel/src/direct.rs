//! A KCP connection that carries one TCP connection, without smux.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use kcpx::KcpStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::warn;

use crate::carrier::LinkedStream;
use crate::connection::{Policy, carry};
use crate::detect::smux_of_client;
use crate::net::LocalStream;
use crate::relay::{End, ReadChunk, WriteFrom};
use crate::stats::{Registration, TunnelStats};

/// A KCP connection. If dropped before both directions have ended, it resets the peer's connection.
pub(crate) struct DirectConnection {
    stream: LinkedStream,
    is_closed: bool,
    _registration: Registration,
}

impl DirectConnection {
    pub(crate) fn new(stream: KcpStream, stats: &Arc<TunnelStats>) -> Self {
        let stream = LinkedStream::new(stream);
        let registration = stats.register(Some(stream.link()), None);
        Self { stream, is_closed: false, _registration: registration }
    }

    pub(crate) fn conv(&self) -> u32 {
        self.stream.lock().conv()
    }

    /// Carries `local`; a reset on one side is passed on to the other.
    pub(crate) async fn carry(
        &mut self,
        name: String,
        local: &mut LocalStream,
        policy: Policy,
        stats: &TunnelStats,
    ) {
        let reader = Reader { stream: &self.stream, unchecked: Some(name.clone()) };
        let writer = Writer(&self.stream);
        let end = carry(name, local, reader, writer, None, policy, stats).await;
        self.is_closed = matches!(end, End::Closed);
    }
}

impl Drop for DirectConnection {
    fn drop(&mut self) {
        if !self.is_closed {
            // An error means that the connection has already ended.
            drop(self.stream.lock().set_zero_linger());
        }
    }
}

/// The direction from the peer. Borrowed halves of the stream would block reads of its statistics.
struct Reader<'a> {
    stream: &'a LinkedStream,
    /// The connection's name, until its first bytes are checked.
    unchecked: Option<String>,
}

impl ReadChunk for Reader<'_> {
    async fn read_chunk(&mut self) -> io::Result<Bytes> {
        // The stream keeps the state of a read, so each poll may use a new future.
        let chunk = poll_fn(|cx| {
            let mut stream = self.stream.lock();
            pin!(stream.read_chunk()).poll(cx)
        })
        .await?;
        if let (Some(name), Some(what)) = (self.unchecked.take(), smux_of_client(&chunk)) {
            let hint = "--mux none on this side alone?";
            warn!("{name}: the first bytes are {what}, and are passed on ({hint})");
        }
        Ok(chunk)
    }
}

/// The direction to the peer.
struct Writer<'a>(&'a LinkedStream);

impl WriteFrom for Writer<'_> {
    async fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + Send),
    ) -> io::Result<usize> {
        // As in `read_chunk`.
        poll_fn(|cx| {
            let mut stream = self.0.lock();
            pin!(stream.write_from(reader)).poll(cx)
        })
        .await
    }

    /// The connection resets the peer when it is dropped.
    fn abort(self) {}

    fn peer_reads_on(&self) -> Option<bool> {
        None
    }
}

impl AsyncWrite for Writer<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(cx)
    }
}
