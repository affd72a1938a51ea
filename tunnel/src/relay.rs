//! Copies both ways between a local connection and a stream of the tunnel, and decides how each ends.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::sleep;

use crate::carrier::Link;
use crate::net::{LocalReadHalf, LocalStream, LocalWriteHalf, poll_once};
use crate::stats::TunnelStats;

/// Chunks, and bytes, that are written to a local connection at once.
const MAX_CHUNKS: usize = 16;
const MAX_BATCH: usize = 64 * 1024;

/// Time that a connection has to deliver what has arrived, after its session has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// The reading half of a stream of the tunnel.
pub(crate) trait ReadChunk {
    /// Waits for bytes; none at the end of the stream. Cancel safe.
    fn read_chunk(&mut self) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// The writing half of a stream of the tunnel.
pub(crate) trait WriteFrom: AsyncWrite + Unpin {
    /// Waits for capacity, reads once from `reader`, and writes that. Returns the number of bytes, 0 at the
    /// end of `reader`, and an error of `reader` as it is. Cancel safe, and without a buffer while it waits.
    fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + Send),
    ) -> impl Future<Output = io::Result<usize>> + Send;
}

/// When a direction ends after the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Time between the end of one direction and passing it on.
    pub(crate) close_wait: Duration,
    /// Time without a byte after which one direction ends once the other one has.
    pub(crate) half_close_timeout: Duration,
    /// Whether an end that comes after the peer's is passed on only once the peer has acknowledged
    /// every byte of the session: smux 1.5.54 to 1.5.57 discards what is unread once both sides have
    /// sent FIN. The session holds FIN a little longer.
    pub(crate) holds_fin: bool,
}

/// What was carried, and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Bytes from the local connection to the tunnel.
    pub(crate) sent: u64,
    /// Bytes from the tunnel to the local connection.
    pub(crate) received: u64,
    pub(crate) end: End,
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Both directions ended, and each end was passed on.
    Closed,
    /// The local connection failed; for the tunnel that is an end.
    Local(io::Error),
    /// The stream of the tunnel failed; the local connection is reset.
    Tunnel(io::Error),
    /// One direction ended, and no byte came in the other one for the half-close timeout; the local
    /// connection is reset.
    HalfCloseTimeout,
}

/// Copies until both directions have ended. Dropped before that, or when bytes were lost, it resets
/// the local connection.
pub(crate) async fn relay(
    local: &mut LocalStream,
    mut reader: impl ReadChunk,
    writer: impl WriteFrom,
    link: Option<&Link>,
    rules: Rules,
    stats: &TunnelStats,
) -> Outcome {
    local.reset_on_drop(true);
    let progress = Progress::new(stats);
    let end = {
        let (local_read, local_write) = local.split();
        let send = pin!(send(local_read, writer, link, &progress, rules));
        let receive = pin!(receive(&mut reader, local_write, &progress, rules));
        tokio::select! {
            biased;
            ended = both(send, receive, &progress, rules) => ended.map_or_else(|end| end, |()| End::Closed),
            end = abandoned(link) => end,
        }
    };
    if matches!(end, End::Closed | End::Local(_)) {
        local.reset_on_drop(false);
    }
    Outcome { sent: progress.sent.into_inner(), received: progress.received.into_inner(), end }
}

/// Returns once the session has ended and the time is up in which a local connection takes its last bytes.
async fn abandoned(link: Option<&Link>) -> End {
    let Some(link) = link else { return std::future::pending().await };
    link.ended().await;
    sleep(FLUSH_TIMEOUT).await;
    End::Tunnel(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the session ended, and its last bytes were not taken within {FLUSH_TIMEOUT:?}"),
    ))
}

/// Waits for both directions, for the second one as long as it has bytes.
async fn both(
    mut send: Pin<&mut impl Future<Output = Result<(), End>>>,
    mut receive: Pin<&mut impl Future<Output = Result<(), End>>>,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<(), End> {
    let sent_first = tokio::select! {
        ended = &mut send => { ended?; true }
        ended = &mut receive => { ended?; false }
    };
    let idle = progress.idle(rules.half_close_timeout);
    if sent_first {
        tokio::select! { ended = receive => ended, () = idle => Err(End::HalfCloseTimeout) }
    } else {
        tokio::select! { ended = send => ended, () = idle => Err(End::HalfCloseTimeout) }
    }
}

/// Bytes carried so far.
struct Progress<'a> {
    sent: AtomicU64,
    received: AtomicU64,
    /// True once the stream of the tunnel has ended.
    peer_ended: AtomicBool,
    /// Bytes of all connections.
    stats: &'a TunnelStats,
}

impl<'a> Progress<'a> {
    fn new(stats: &'a TunnelStats) -> Self {
        Self {
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            peer_ended: AtomicBool::new(false),
            stats,
        }
    }

    fn on_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.stats.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn on_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.stats.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn has_peer_ended(&self) -> bool {
        self.peer_ended.load(Ordering::Relaxed)
    }

    fn total(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed)
    }

    /// Returns once no byte came for `limit` at least, and less than twice as long.
    async fn idle(&self, limit: Duration) {
        // The totals are compared when time is up, so that bytes cost no read of the clock.
        let mut before = self.total();
        loop {
            sleep(limit).await;
            let total = self.total();
            if total == before {
                return;
            }
            before = total;
        }
    }
}

/// From the local connection to the tunnel.
async fn send(
    mut local: LocalReadHalf<'_>,
    mut tunnel: impl WriteFrom,
    link: Option<&Link>,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<(), End> {
    loop {
        // Here and not in `write_from`, so that a connection that waits needs neither buffer nor timer.
        local.readable().await.map_err(End::Local)?;
        match write_from(&mut local, &mut tunnel, progress, rules).await? {
            Some(0) => break,
            Some(count) => progress.on_sent(count),
            // After a read that filled the buffer, `readable` does not wait for more.
            None => {}
        }
    }
    sleep(rules.close_wait).await;
    let end = async {
        if let Some(link) = link.filter(|_| rules.holds_fin && progress.has_peer_ended()) {
            // KCP is to have all of it: `acknowledged` does not see what smux and Snappy still queue.
            tunnel.flush().await?;
            link.acknowledged().await;
        }
        tunnel.shutdown().await
    };
    tokio::select! {
        biased;
        ended = end => ended.map_err(End::Tunnel),
        // The peer does not read, so that FIN cannot leave.
        () = progress.idle(rules.half_close_timeout) => Err(End::HalfCloseTimeout),
    }
}

/// Writes what one read of the local connection returns; `None` if it has nothing. Its end cannot be read
/// while the tunnel takes no more, which is for ever if the peer does not read: that is given up once no
/// byte was carried for the half-close timeout.
async fn write_from(
    local: &mut LocalReadHalf<'_>,
    tunnel: &mut impl WriteFrom,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<Option<usize>, End> {
    loop {
        let mut source = Source { local, has_failed: false };
        tokio::select! {
            biased;
            written = tunnel.write_from(&mut source) => return match written {
                Ok(count) => Ok(Some(count)),
                Err(error) if !source.has_failed => Err(End::Tunnel(error)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(End::Local(error)),
            },
            () = progress.idle(rules.half_close_timeout) => {}
        }
        if local.is_ended().await {
            return Err(End::HalfCloseTimeout);
        }
    }
}

/// The local connection, of which it is known whether an error is its own. A read does not wait: it fails
/// with `WouldBlock`.
struct Source<'a, 'b> {
    local: &'a mut LocalReadHalf<'b>,
    has_failed: bool,
}

impl AsyncRead for Source<'_, '_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = match Pin::new(&mut *self.local).poll_read(cx, buf) {
            Poll::Ready(result) => result,
            // Or the task's budget is used up: `select!` then yields before the next read.
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        };
        self.has_failed = result.is_err();
        Poll::Ready(result)
    }
}

/// From the tunnel to the local connection.
async fn receive(
    tunnel: &mut impl ReadChunk,
    mut local: LocalWriteHalf<'_>,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<(), End> {
    let mut chunks = Vec::new();
    loop {
        let first = tunnel.read_chunk().await.map_err(End::Tunnel)?;
        if first.is_empty() {
            break;
        }
        let mut len = first.len();
        chunks.push(first);
        // What else is there already, so that many small frames cost one system call.
        let mut tail = None;
        while chunks.len() < MAX_CHUNKS && len < MAX_BATCH && tail.is_none() {
            match poll_once(tunnel.read_chunk()).await {
                Some(Ok(chunk)) if !chunk.is_empty() => {
                    len += chunk.len();
                    chunks.push(chunk);
                }
                Some(Ok(_)) => tail = Some(Ok(())),
                Some(Err(error)) => tail = Some(Err(error)),
                None => break,
            }
        }
        write_chunks(&mut local, &mut chunks).await.map_err(End::Local)?;
        progress.on_received(len);
        match tail {
            None => {}
            Some(Ok(())) => break,
            Some(Err(error)) => return Err(End::Tunnel(error)),
        }
    }
    progress.peer_ended.store(true, Ordering::Relaxed);
    sleep(rules.close_wait).await;
    local.shutdown().await.map_err(End::Local)
}

/// Writes all chunks, and leaves none.
async fn write_chunks(local: &mut LocalWriteHalf<'_>, chunks: &mut Vec<Bytes>) -> io::Result<()> {
    let mut first = 0;
    while first < chunks.len() {
        let mut slices = [IoSlice::new(&[]); MAX_CHUNKS];
        for (slice, chunk) in slices.iter_mut().zip(&chunks[first..]) {
            *slice = IoSlice::new(chunk);
        }
        let count = chunks.len() - first;
        let mut written = local.write_vectored(&slices[..count.min(MAX_CHUNKS)]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while written > 0 {
            let taken = written.min(chunks[first].len());
            chunks[first].advance(taken);
            written -= taken;
            if chunks[first].is_empty() {
                first += 1;
            }
        }
    }
    chunks.clear();
    Ok(())
}

#[cfg(test)]
mod tests;
