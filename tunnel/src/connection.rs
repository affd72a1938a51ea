//! Carried connections: log lines, counters, and end; a KCP connection per TCP connection (without smux).

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use kcpx::KcpStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::carrier::{Link, LinkedStream};
use crate::detect::smux_of_client;
use crate::net::LocalStream;
use crate::relay::{End, Outcome, ReadChunk, Rules, WriteFrom, relay};
use crate::settings::Common;
use crate::stats::{Registration, TunnelStats};

impl ReadChunk for kcpx_smux::OwnedReadHalf {
    async fn read_chunk(&mut self) -> io::Result<Bytes> {
        Self::read_chunk(self).await
    }
}

impl WriteFrom for kcpx_smux::OwnedWriteHalf {
    async fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + Send),
    ) -> io::Result<usize> {
        Self::write_from(self, reader).await
    }

    fn abort(self) {
        Self::abort(self);
    }

    fn peer_reads_on(&self) -> Option<bool> {
        Self::peer_reads_on(self)
    }
}

/// How connections of a tunnel end, and whether they are logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) rules: Rules,
    pub(crate) quiet: bool,
}

impl Policy {
    /// `peer_is_kcpx`: the peer is known to run this program.
    pub(crate) fn new(common: &Common, peer_is_kcpx: bool) -> Self {
        let rules = Rules {
            close_wait: common.close_wait.unwrap_or(Duration::ZERO),
            half_close_timeout: common.half_close_timeout,
            holds_fin: common.close_wait.is_none() && !peer_is_kcpx,
            peer_half_closes: common.close_wait.is_some(),
        };
        Self { rules, quiet: common.quiet }
    }
}

/// Carries a connection until it has ended, and logs it as `name`. If dropped before, it resets the
/// connection. `link` belongs to the session, if there is one.
pub(crate) async fn carry(
    name: impl fmt::Display,
    local: &mut LocalStream,
    reader: impl ReadChunk,
    writer: impl WriteFrom,
    link: Option<&Link>,
    policy: Policy,
    stats: &TunnelStats,
) -> End {
    let started = Instant::now();
    TunnelStats::count(&stats.connections);
    let _current = TunnelStats::gauge(&stats.current_connections);
    if !policy.quiet {
        info!("{name} opened");
    }
    let Outcome { sent, received, end } =
        relay(local, reader, writer, link, policy.rules, stats).await;
    if !matches!(end, End::Closed) {
        TunnelStats::count(&stats.reset_connections);
    }
    if !policy.quiet {
        let seconds = started.elapsed().as_secs_f64();
        info!("{name} {end}: {sent} bytes sent, {received} received, {seconds:.3} s");
    }
    end
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Local(error) => write!(f, "ended by the local connection ({error})"),
            Self::Tunnel(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                write!(f, "reset by the other side ({error})")
            }
            Self::Tunnel(error) => write!(f, "reset, since the tunnel failed ({error})"),
            Self::Refused(error) => {
                write!(f, "ended, since the other side takes no more ({error})")
            }
            Self::Left => f.write_str("reset, since the other side has ended it and reads no more"),
            Self::HalfCloseTimeout => f.write_str("reset after the half-close timeout"),
        }
    }
}

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
