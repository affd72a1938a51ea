//! Copies between a local connection and a tunnel stream in both directions, and decides how each
//! ends.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy, sink};
use tokio::time::{sleep, timeout};

use crate::carrier::Link;
use crate::net::{LocalReadHalf, LocalStream, LocalWriteHalf, poll_once};
use crate::stats::TunnelStats;

/// Chunks, and bytes, per write to a local connection.
const MAX_CHUNKS: usize = 16;
const MAX_BATCH: usize = 64 * 1024;

/// Limit for delivering received bytes after the session or stream has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of checks whether a peer has left, see [`left`].
const LEFT_INTERVAL: Duration = Duration::from_millis(250);
/// Intervals with bytes sent to a peer of smux 1 after its end: 2 s.
const MAX_INTERVALS: u32 = 8;
/// Consecutive intervals without a window from a peer of smux 2 after its end: 30 s. A stalled
/// stream costs the path nothing, and a slow user needs the time: kcptun sends one update per half
/// of `streambuf`, by default 1 MiB.
const STALLED_INTERVALS: u32 = 120;

/// The reading half of a tunnel stream.
pub(crate) trait ReadChunk {
    /// Waits for bytes; none at the end of the stream. Cancel safe.
    fn read_chunk(&mut self) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// The writing half of a tunnel stream.
pub(crate) trait WriteFrom: AsyncWrite + Unpin {
    /// Waits for capacity, reads once from `reader`, and writes the bytes. Returns their number, 0
    /// at the end of `reader`; returns errors of `reader` unchanged. Cancel safe, and holds no
    /// buffer while waiting.
    fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + Send),
    ) -> impl Future<Output = io::Result<usize>> + Send;

    /// Resets the stream for the peer, if dropping it would be an orderly end.
    fn abort(self);

    /// Whether the peer has shown that it reads on after its end; `None` if it cannot show that.
    fn peer_reads_on(&self) -> Option<bool>;
}

/// When a direction ends after the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Delay between the end of one direction and passing it on.
    pub(crate) close_wait: Duration,
    /// Idle time after which one direction ends once the other has.
    pub(crate) half_close_timeout: Duration,
    /// Whether an end that follows the peer's is passed on only once the peer has acknowledged every
    /// byte of the session: smux 1.5.54 to 1.5.57 discards unread bytes once both sides have sent
    /// FIN. The session then delays FIN a little longer. False towards peers that run this program.
    pub(crate) holds_fin: bool,
    /// Whether a kcptun on the other side passes on the end of one direction alone, as it does
    /// since 2026: a peer that has ended its direction then never counts as gone.
    pub(crate) peer_half_closes: bool,
}

/// Bytes carried, and the end.
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
    /// The local connection failed; the tunnel stream is reset.
    Local(io::Error),
    /// The tunnel stream failed; the local connection is reset.
    Tunnel(io::Error),
    /// The peer takes no more bytes, and its own bytes were delivered to their end.
    Refused(io::Error),
    /// The peer, a kcptun, has ended its direction and shows no sign of reading; the local
    /// connection is reset.
    Left,
    /// One direction ended, and the other carried no byte for the half-close timeout; the local
    /// connection is reset.
    HalfCloseTimeout,
}

/// Copies until both directions have ended. If dropped before that, or if bytes were lost, resets
/// the local connection. Unless both have ended, also resets the tunnel stream.
pub(crate) async fn relay(
    local: &mut LocalStream,
    mut reader: impl ReadChunk,
    mut writer: impl WriteFrom,
    link: Option<&Link>,
    rules: Rules,
    stats: &TunnelStats,
) -> Outcome {
    local.reset_on_drop(true);
    let progress = Progress::new(stats);
    let end = {
        let (local_read, local_write) = local.split();
        let send = pin!(send(local_read, &mut writer, link, &progress, rules));
        let receive = pin!(receive(&mut reader, local_write, &progress, rules));
        tokio::select! {
            biased;
            ended = both(send, receive, link, &progress, rules) => ended.map_or_else(|end| end, |()| End::Closed),
            end = abandoned(link) => end,
        }
    };
    if !matches!(end, End::Closed) {
        writer.abort();
    }
    if matches!(end, End::Closed | End::Local(_) | End::Refused(_)) {
        local.reset_on_drop(false);
    }
    if matches!(end, End::Refused(_)) {
        drop(reader);
        // With bytes unread, the system would reset the connection and lose bytes that the user has
        // not read.
        let (mut unread, _) = local.split();
        let _ = timeout(FLUSH_TIMEOUT, copy(&mut unread, &mut sink())).await;
    }
    Outcome { sent: progress.sent.into_inner(), received: progress.received.into_inner(), end }
}

/// Returns once the session has ended and the local connection's time for its last bytes is up.
async fn abandoned(link: Option<&Link>) -> End {
    let Some(link) = link else { return std::future::pending().await };
    link.ended().await;
    sleep(FLUSH_TIMEOUT).await;
    End::Tunnel(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the session ended, and its last bytes were not taken within {FLUSH_TIMEOUT:?}"),
    ))
}

/// Waits for both directions; for the second one while it carries bytes.
async fn both(
    mut send: Pin<&mut impl Future<Output = Result<(), End>>>,
    mut receive: Pin<&mut impl Future<Output = Result<(), End>>>,
    link: Option<&Link>,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<(), End> {
    let sent_first = tokio::select! {
        ended = &mut send => match ended {
            Err(End::Tunnel(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(deliver_rest(receive, progress, rules, error).await);
            }
            ended => { ended?; true }
        },
        ended = &mut receive => { ended?; false }
    };
    let idle = progress.idle(rules.half_close_timeout);
    if sent_first {
        tokio::select! { ended = receive => ended, () = idle => Err(End::HalfCloseTimeout) }
    } else {
        tokio::select! {
            ended = send => ended,
            () = idle => Err(End::HalfCloseTimeout),
            () = left(link, progress, rules) => Err(End::Left),
        }
    }
}

/// Handles a reset by the peer. If its end came before the reset, the local connection first gets
/// the received bytes. Otherwise `receive` fails once they are passed on.
async fn deliver_rest(
    mut receive: Pin<&mut impl Future<Output = Result<(), End>>>,
    progress: &Progress<'_>,
    rules: Rules,
    reset: io::Error,
) -> End {
    match poll_once(receive.as_mut()).await {
        Some(Err(end)) => return end,
        Some(Ok(())) => return End::Tunnel(reset),
        // Only the local end is missing: there is no rest.
        None if progress.has_peer_ended() => return End::Tunnel(reset),
        None => {}
    }
    tokio::select! {
        ended = receive => ended.map_or_else(|end| end, |()| End::Refused(reset)),
        () = progress.idle(rules.half_close_timeout) => End::Tunnel(reset),
    }
}

/// Returns once a kcptun that has ended its direction counts as gone. Before 2026 kcptun ends both
/// directions at once: it discards further bytes without a sign.
///
/// smux 1 has no sign of reading: the peer is gone once bytes were sent in [`MAX_INTERVALS`]
/// intervals after its end. With smux 2 it is gone once its window was used up for
/// [`STALLED_INTERVALS`] intervals, with every byte acknowledged in all but the first, and without
/// a window update after its end.
async fn left(link: Option<&Link>, progress: &Progress<'_>, rules: Rules) {
    let Some(link) = link.filter(|link| !rules.peer_half_closes && !link.peer_is_kcpx()) else {
        return std::future::pending().await;
    };
    let (mut sending, mut stalled) = (0, 0);
    while sending < MAX_INTERVALS && stalled < STALLED_INTERVALS {
        let before = progress.sent.load(Ordering::Relaxed);
        sleep(LEFT_INTERVAL).await;
        let has_sent = || progress.sent.load(Ordering::Relaxed) > before;
        match progress.peer_reads_on() {
            None => sending += u32::from(has_sent()),
            Some(true) => return std::future::pending().await,
            Some(false) if has_sent() || !progress.is_blocked() => stalled = 0,
            Some(false) => {
                if stalled == 0 {
                    // A window update is not due before the peer has them.
                    link.acknowledged().await;
                }
                stalled = if has_sent() { 0 } else { stalled + 1 };
            }
        }
    }
}

/// Bytes carried so far.
struct Progress<'a> {
    sent: AtomicU64,
    received: AtomicU64,
    /// The tunnel stream has ended.
    peer_ended: AtomicBool,
    /// Bytes of the local connection wait for capacity of the tunnel.
    blocked: AtomicBool,
    /// [`WriteFrom::peer_reads_on`] when the tunnel last had capacity: whether it is known, and its
    /// value.
    shows_reading: AtomicBool,
    peer_reads_on: AtomicBool,
    /// Bytes of all connections.
    stats: &'a TunnelStats,
}

impl<'a> Progress<'a> {
    fn new(stats: &'a TunnelStats) -> Self {
        Self {
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            peer_ended: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            shows_reading: AtomicBool::new(false),
            peer_reads_on: AtomicBool::new(false),
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

    /// Notes the begin of a write; the tunnel may lack capacity for long.
    fn on_write(&self, peer_reads_on: Option<bool>) {
        self.shows_reading.store(peer_reads_on.is_some(), Ordering::Relaxed);
        self.peer_reads_on.store(peer_reads_on == Some(true), Ordering::Relaxed);
        self.blocked.store(true, Ordering::Relaxed);
    }

    fn on_written(&self) {
        self.blocked.store(false, Ordering::Relaxed);
    }

    fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    fn peer_reads_on(&self) -> Option<bool> {
        let is_known = self.shows_reading.load(Ordering::Relaxed);
        is_known.then(|| self.peer_reads_on.load(Ordering::Relaxed))
    }

    fn total(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed)
    }

    /// Returns once no byte was carried for at least `limit`, and less than twice `limit`.
    async fn idle(&self, limit: Duration) {
        // Totals are compared when the time is up, so that bytes cost no clock read.
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

/// Copies from the local connection to the tunnel.
async fn send(
    mut local: LocalReadHalf<'_>,
    tunnel: &mut impl WriteFrom,
    link: Option<&Link>,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<(), End> {
    loop {
        // Here and not in `write_from`, so that a waiting connection needs neither buffer nor
        // timer.
        local.readable().await.map_err(End::Local)?;
        progress.on_write(tunnel.peer_reads_on());
        let written = write_from(&mut local, tunnel, progress, rules).await?;
        progress.on_written();
        match written {
            Some(0) => break,
            Some(count) => progress.on_sent(count),
            // After a read that filled the buffer, `readable` does not wait for more.
            None => {}
        }
    }
    sleep(rules.close_wait).await;
    let end = async {
        if let Some(link) = link.filter(|_| rules.holds_fin && progress.has_peer_ended()) {
            // KCP must have all of it: `acknowledged` does not include bytes queued in smux and
            // Snappy.
            tunnel.flush().await?;
            link.acknowledged().await;
        }
        tunnel.shutdown().await
    };
    tokio::select! {
        biased;
        ended = end => ended.map_err(End::Tunnel),
        // The peer does not read, so FIN cannot be sent.
        () = progress.idle(rules.half_close_timeout) => Err(End::HalfCloseTimeout),
    }
}

/// Writes the bytes of one read of the local connection; `None` if it has none. The end of the
/// local connection cannot be read while the tunnel takes no more, which is forever if the peer
/// does not read. So this gives up once no byte was carried for the half-close timeout.
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

/// The local connection; tells its own errors from the tunnel's. A read does not wait: it fails
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

/// Copies from the tunnel to the local connection.
async fn receive(
    tunnel: &mut impl ReadChunk,
    mut local: LocalWriteHalf<'_>,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<(), End> {
    let mut chunks = Vec::new();
    loop {
        let first = tokio::select! {
            biased;
            first = tunnel.read_chunk() => first.map_err(End::Tunnel)?,
            error = reset_while_blocked(&local, progress) => return Err(End::Local(error)),
        };
        if first.is_empty() {
            break;
        }
        let mut len = first.len();
        chunks.push(first);
        // Collects further available chunks, so that many small frames cost one system call.
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

/// Returns once the local connection is reset while its bytes wait for capacity of the tunnel. The
/// connection is not read then, so [`send`] does not see the reset.
async fn reset_while_blocked(local: &LocalWriteHalf<'_>, progress: &Progress<'_>) -> io::Error {
    local.failed().await;
    loop {
        let before = progress.sent.load(Ordering::Relaxed);
        sleep(LEFT_INTERVAL).await;
        if progress.is_blocked() && progress.sent.load(Ordering::Relaxed) == before {
            return local.take_failure();
        }
    }
}

/// Writes all chunks and clears them.
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
