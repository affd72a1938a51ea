//! Copies both ways between a local connection and a stream of the tunnel, and decides how each ends.

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

/// Chunks, and bytes, that are written to a local connection at once.
const MAX_CHUNKS: usize = 16;
const MAX_BATCH: usize = 64 * 1024;

/// Time that a connection has to deliver what has arrived, after its session or its stream has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a peer that may have left is inspected, see [`left`].
const LEFT_INTERVAL: Duration = Duration::from_millis(250);
/// Intervals in which bytes are sent to a peer of smux 1 after its end: 2 s.
const MAX_INTERVALS: u32 = 8;
/// Intervals in a row in which a peer of smux 2 grants no window after its end: 30 s. A stalled stream costs
/// the path nothing, and a slow user needs the time: kcptun sends an update once per half of `streambuf`,
/// 1 MiB by default.
const STALLED_INTERVALS: u32 = 120;

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

    /// Resets the stream for the peer, where dropping it would be an orderly end.
    fn abort(self);

    /// Whether the peer has shown that it reads on after its end; `None` where it cannot.
    fn peer_reads_on(&self) -> Option<bool>;
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
    /// sent FIN. The session holds FIN a little longer. False towards peers that run this program.
    pub(crate) holds_fin: bool,
    /// Whether a kcptun on the other side passes on the end of one direction alone, as since 2026: a peer
    /// that has ended its direction is never taken for one that has left.
    pub(crate) peer_half_closes: bool,
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
    /// The local connection failed; the stream of the tunnel is reset.
    Local(io::Error),
    /// The stream of the tunnel failed; the local connection is reset.
    Tunnel(io::Error),
    /// The peer takes no more bytes, and its own have been passed on to their end.
    Refused(io::Error),
    /// The peer, a kcptun, has ended its direction and shows no sign of reading on; the local connection is
    /// reset.
    Left,
    /// One direction ended, and no byte came in the other one for the half-close timeout; the local
    /// connection is reset.
    HalfCloseTimeout,
}

/// Copies until both directions have ended. Dropped before that, or when bytes were lost, it resets
/// the local connection. Unless both have ended, it resets the stream of the tunnel too.
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
        // With bytes unread the system would reset the connection, and lose what the user has not read.
        let (mut unread, _) = local.split();
        let _ = timeout(FLUSH_TIMEOUT, copy(&mut unread, &mut sink())).await;
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

/// The peer has reset the stream. If its end came before the reset, the local connection first gets what has
/// arrived. Otherwise `receive` fails once that is passed on.
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

/// Returns once a kcptun that has ended its direction counts as gone. Before 2026 its end of one direction
/// is one of both: it discards what still comes, and says nothing.
///
/// smux 1 has no sign of reading: it is gone when bytes were sent in [`MAX_INTERVALS`] intervals after its
/// end. In smux 2 it is gone when its window was used up for [`STALLED_INTERVALS`] intervals, all but the first
/// of them with every byte acknowledged, and no window update has come after its end.
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
    /// True once the stream of the tunnel has ended.
    peer_ended: AtomicBool,
    /// True while bytes of the local connection wait for capacity of the tunnel.
    blocked: AtomicBool,
    /// [`WriteFrom::peer_reads_on`] as of the last time that the tunnel had capacity: whether it is known,
    /// and its value.
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

    /// A write begins, to which the tunnel may have no capacity for long.
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
    tunnel: &mut impl WriteFrom,
    link: Option<&Link>,
    progress: &Progress<'_>,
    rules: Rules,
) -> Result<(), End> {
    loop {
        // Here and not in `write_from`, so that a connection that waits needs neither buffer nor timer.
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

/// Returns once the local connection is reset while its bytes wait for capacity of the tunnel. Nothing reads the
/// connection then, so [`send`] does not see the reset.
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
