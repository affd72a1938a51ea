//! Ends of carried connections, with a local TCP connection and a paused clock.

use std::pin::Pin;
use std::task::{Context, Poll};

use kcpx::ConnectionStats;
use tokio::io::{AsyncReadExt, DuplexStream, Sink, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::net::Endless;

const RULES: Rules = Rules {
    close_wait: Duration::ZERO,
    half_close_timeout: Duration::from_secs(300),
    holds_fin: true,
    peer_half_closes: false,
};

/// A user, and the accepted connection.
async fn connected() -> (TcpStream, LocalStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (user, local) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (user.unwrap(), LocalStream::Tcp(local.unwrap().0))
}

async fn is_reset(mut user: TcpStream) -> bool {
    let error = user.read_to_end(&mut Vec::new()).await;
    error.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

/// Behaviour of the peer.
enum Peer {
    Ends,
    SendsForEver,
    IsSilent,
}

impl ReadChunk for Peer {
    async fn read_chunk(&mut self) -> io::Result<Bytes> {
        match self {
            Self::Ends => Ok(Bytes::new()),
            Self::SendsForEver => Ok(Bytes::from_static(&[0; 4_096])),
            Self::IsSilent => std::future::pending().await,
        }
    }
}

/// Bytes per read of a writer.
const BUFFER: usize = 4_096;

/// Reads into a buffer and writes the bytes.
async fn read_and_write(
    reader: &mut (impl AsyncRead + Unpin + Send),
    writer: &mut (impl AsyncWrite + Unpin + Send),
) -> io::Result<usize> {
    let mut buffer = Vec::with_capacity(BUFFER);
    let count = reader.read_buf(&mut buffer).await?;
    writer.write_all(&buffer).await.map(|()| count)
}

macro_rules! impl_write_from {
    ($($type:ty),+) => {$(
        impl WriteFrom for $type {
            async fn write_from(
                &mut self,
                reader: &mut (impl AsyncRead + Unpin + Send),
            ) -> io::Result<usize> {
                read_and_write(reader, self).await
            }

            fn abort(self) {}

            fn peer_reads_on(&self) -> Option<bool> {
                None
            }
        }
    )+};
}

impl_write_from!(DuplexStream, Sink);

impl WriteFrom for &mut Recorder {
    async fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + Send),
    ) -> io::Result<usize> {
        self.reads += 1;
        read_and_write(reader, self).await
    }

    fn abort(self) {
        self.calls.push("abort");
    }

    fn peer_reads_on(&self) -> Option<bool> {
        None
    }
}

/// Records calls. A flush takes two polls.
#[derive(Default)]
struct Recorder {
    calls: Vec<&'static str>,
    /// Calls of `write_from`.
    reads: usize,
    flushing: bool,
}

impl AsyncWrite for &mut Recorder {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.calls.push("write");
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushing = !self.flushing;
        if self.flushing {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.calls.push("flushed");
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.calls.push("shutdown");
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn fin_after_the_peers_waits_for_the_flush() {
    let (mut user, mut local) = connected().await;
    let (link, mut recorder, stats) =
        (Link::default(), Recorder::default(), TunnelStats::default());
    // The user answers once it has seen the peer's end.
    let answering = async {
        user.read_to_end(&mut Vec::new()).await.unwrap();
        user.write_all(b"answer").await.unwrap();
        user.shutdown().await.unwrap();
    };
    let relaying = relay(&mut local, Peer::Ends, &mut recorder, Some(&link), RULES, &stats);
    let (outcome, ()) = tokio::join!(relaying, answering);
    assert!(matches!(outcome.end, End::Closed), "{outcome:?}");
    assert_eq!(outcome.sent, 6);
    assert_eq!(recorder.calls, ["write", "flushed", "shutdown"]);
}

#[tokio::test(start_paused = true)]
async fn close_wait_delays_both_ends_and_holds_no_fin() {
    let (mut user, mut local) = connected().await;
    let (link, mut recorder, stats) =
        (Link::default(), Recorder::default(), TunnelStats::default());
    let close_wait = Duration::from_secs(30);
    let rules = Rules { close_wait, holds_fin: false, ..RULES };
    let start = tokio::time::Instant::now();
    user.shutdown().await.unwrap();
    let reading = async {
        user.read_to_end(&mut Vec::new()).await.unwrap();
        start.elapsed()
    };
    let relaying = relay(&mut local, Peer::Ends, &mut recorder, Some(&link), rules, &stats);
    let (outcome, passed_on) = tokio::join!(relaying, reading);
    assert!(matches!(outcome.end, End::Closed), "{outcome:?}");
    assert!(passed_on >= close_wait && start.elapsed() >= close_wait, "{passed_on:?}");
    // FIN is sent without a flush: it does not wait for acknowledgements.
    assert_eq!(recorder.calls, ["shutdown"]);
}

#[tokio::test(start_paused = true)]
async fn user_that_does_not_read_is_reset_after_the_session_ended() {
    let (user, mut local) = connected().await;
    let (link, stats) = (Link::default(), TunnelStats::default());
    let relaying = relay(&mut local, Peer::SendsForEver, sink(), Some(&link), RULES, &stats);
    let mut relaying = Box::pin(relaying);
    let day = Duration::from_secs(86_400);
    assert!(timeout(day, &mut relaying).await.is_err(), "while there is a session");
    link.end(ConnectionStats::default());
    let outcome = timeout(FLUSH_TIMEOUT * 2, relaying).await.unwrap();
    assert!(matches!(outcome.end, End::Tunnel(_)), "{outcome:?}");
    drop(local);
    assert!(is_reset(user).await);
}

#[tokio::test(start_paused = true)]
async fn half_close_timeout_resets_the_local_connection() {
    let (mut user, mut local) = connected().await;
    let stats = TunnelStats::default();
    user.shutdown().await.unwrap();
    let outcome = relay(&mut local, Peer::IsSilent, sink(), None, RULES, &stats).await;
    assert!(matches!(outcome.end, End::HalfCloseTimeout), "{outcome:?}");
    drop(local);
    assert!(is_reset(user).await);
}

#[tokio::test(start_paused = true)]
async fn user_that_leaves_while_the_peer_does_not_read_is_noticed() {
    let (mut user, mut local) = connected().await;
    let stats = TunnelStats::default();
    let (tunnel, _peer): (DuplexStream, _) = duplex(16);
    user.write_all(&[0; 100]).await.unwrap();
    let relaying = relay(&mut local, Peer::IsSilent, tunnel, None, RULES, &stats);
    let mut relaying = Box::pin(relaying);
    let day = Duration::from_secs(86_400);
    assert!(timeout(day, &mut relaying).await.is_err(), "while the user is there");
    drop(user);
    let outcome = timeout(3 * RULES.half_close_timeout, relaying).await.unwrap();
    assert!(matches!(outcome.end, End::HalfCloseTimeout), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn user_that_is_idle_after_a_read_that_filled_the_buffer_is_not_read_again() {
    let (mut user, mut local) = connected().await;
    let (mut recorder, stats) = (Recorder::default(), TunnelStats::default());
    user.write_all(&[0; BUFFER]).await.unwrap();
    let relaying = relay(&mut local, Peer::IsSilent, &mut recorder, None, RULES, &stats);
    let mut relaying = Box::pin(relaying);
    let day = Duration::from_secs(86_400);
    assert!(timeout(day, &mut relaying).await.is_err(), "while the user is there");
    user.shutdown().await.unwrap();
    let outcome = timeout(3 * RULES.half_close_timeout, relaying).await.unwrap();
    assert!(matches!(outcome.end, End::HalfCloseTimeout), "{outcome:?}");
    assert_eq!(outcome.sent, BUFFER as u64);
    // The bytes, nothing, and the end; a timer would have read at each half-close timeout of the
    // day.
    assert!(recorder.reads < 10, "{} reads", recorder.reads);
}

#[tokio::test(start_paused = true)]
async fn end_that_the_peer_does_not_take_is_given_up() {
    let (mut user, mut local) = connected().await;
    let stats = TunnelStats::default();
    let (mut tunnel, _peer): (DuplexStream, _) = duplex(16);
    tunnel.write_all(&[0; 16]).await.unwrap();
    user.write_all(b"request").await.unwrap();
    user.shutdown().await.unwrap();
    let relaying = relay(&mut local, Peer::IsSilent, tunnel, None, RULES, &stats);
    let outcome = timeout(3 * RULES.half_close_timeout, relaying).await.unwrap();
    assert!(matches!(outcome.end, End::HalfCloseTimeout), "{outcome:?}");
}

/// Bytes of an answer: more than the buffers of a connection hold.
const ANSWER: usize = 16 << 20;

/// A peer that sends an answer.
struct Answer {
    left: usize,
    /// Whether a reset replaces the end.
    is_aborted: bool,
}

impl ReadChunk for Answer {
    async fn read_chunk(&mut self) -> io::Result<Bytes> {
        if self.left == 0 && self.is_aborted {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let len = self.left.min(65_536);
        self.left -= len;
        Ok(vec![7; len].into())
    }
}

/// A peer that has reset the stream.
struct ToReset;

impl AsyncWrite for ToReset {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl WriteFrom for ToReset {
    async fn write_from(&mut self, _: &mut (impl AsyncRead + Unpin + Send)) -> io::Result<usize> {
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn abort(self) {}

    fn peer_reads_on(&self) -> Option<bool> {
        None
    }
}

/// Relays an answer to a user after the peer has refused the upload. Returns the user's read and the
/// end.
async fn upload_refused(answer: Answer) -> (io::Result<usize>, End) {
    let (mut user, mut local) = connected().await;
    // Unread by the relay: the system would reset the connection because of them.
    user.write_all(&[0; 1_000]).await.unwrap();
    let stats = TunnelStats::default();
    let relaying = async {
        let outcome = relay(&mut local, answer, ToReset, None, RULES, &stats).await;
        drop(local);
        outcome.end
    };
    let reading = async move {
        let mut received = Vec::new();
        user.read_to_end(&mut received).await.map(|_| received.len())
    };
    let (end, read) = tokio::join!(relaying, reading);
    (read, end)
}

#[tokio::test]
async fn answer_that_came_before_a_reset_behind_fin_is_delivered() {
    let (read, end) = upload_refused(Answer { left: ANSWER, is_aborted: false }).await;
    assert!(matches!(end, End::Refused(_)), "{end:?}");
    assert_eq!(read.unwrap(), ANSWER);
}

#[tokio::test]
async fn answer_that_is_aborted_is_reset_for_the_user() {
    let (read, end) = upload_refused(Answer { left: ANSWER, is_aborted: true }).await;
    assert!(matches!(end, End::Tunnel(_)), "{end:?}");
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn rest_of_an_answer_that_the_user_does_not_read_is_given_up() {
    let (mut user, mut local) = connected().await;
    user.write_all(&[0; 1_000]).await.unwrap();
    let stats = TunnelStats::default();
    let answer = Answer { left: ANSWER, is_aborted: false };
    let relaying = relay(&mut local, answer, ToReset, None, RULES, &stats);
    let outcome = timeout(3 * RULES.half_close_timeout, relaying).await.unwrap();
    assert!(matches!(outcome.end, End::Tunnel(_)), "{outcome:?}");
    drop(local);
    assert!(is_reset(user).await);
}

/// The direction to a kcptun: 4,096 bytes each 10 ms.
struct ToKcptun {
    /// Bytes that it still takes.
    window: usize,
    reads_on: Option<bool>,
    /// When a window update arrives, once `window` is used up.
    update_after: Option<Duration>,
}

impl AsyncWrite for ToKcptun {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl WriteFrom for ToKcptun {
    async fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + Send),
    ) -> io::Result<usize> {
        if self.window == 0 {
            let Some(after) = self.update_after.take() else { return std::future::pending().await };
            sleep(after).await;
            (self.window, self.reads_on) = (BUFFER, Some(true));
        }
        sleep(Duration::from_millis(10)).await;
        let mut buffer = vec![0; BUFFER.min(self.window)];
        let count = reader.read(&mut buffer).await?;
        self.window -= count;
        Ok(count)
    }

    fn abort(self) {}

    fn peer_reads_on(&self) -> Option<bool> {
        self.reads_on
    }
}

/// Sends a download to a peer that has ended its direction, for at most 100 s. Returns how and when
/// it ended. Without a socket: the paused clock would advance while the system carries its bytes.
async fn download(
    mut writer: ToKcptun,
    rules: Rules,
    peer_supports_control: bool,
) -> Option<(End, Duration)> {
    let (link, stats) = (Link::default(), TunnelStats::default());
    let mut connection = ConnectionStats::default();
    connection.peer_supports_control = peer_supports_control;
    link.set_stats(connection);
    let progress = Progress::new(&stats);
    let start = tokio::time::Instant::now();
    let local = LocalReadHalf::Endless(Endless);
    let send = pin!(send(local, &mut writer, Some(&link), &progress, rules));
    let received = pin!(async { Ok(()) });
    let relaying = both(send, received, Some(&link), &progress, rules);
    let ended = timeout(Duration::from_secs(100), relaying).await.ok()?;
    Some((ended.unwrap_err(), start.elapsed()))
}

#[tokio::test(start_paused = true)]
async fn download_goes_on_for_two_seconds_after_the_end_of_a_smux_1_kcptun() {
    let kcptun = || ToKcptun { window: usize::MAX, reads_on: None, update_after: None };
    let (end, after) = download(kcptun(), RULES, false).await.unwrap();
    assert!(matches!(end, End::Left), "{end:?}");
    assert_eq!(after, Duration::from_secs(2));
    // Unless half close is known to be passed on.
    assert!(download(kcptun(), RULES, true).await.is_none());
    let rules = Rules { peer_half_closes: true, holds_fin: false, ..RULES };
    assert!(download(kcptun(), rules, false).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn download_waits_30_seconds_for_a_smux_2_kcptun_that_grants_no_window() {
    let kcptun = |window, update_after| ToKcptun { window, reads_on: Some(false), update_after };
    // Used up after 5 s.
    let (end, after) = download(kcptun(500 * BUFFER, None), RULES, false).await.unwrap();
    assert!(matches!(end, End::Left), "{end:?}");
    assert!((35_000..=35_250).contains(&after.as_millis()), "{after:?}");
    let endless = kcptun(usize::MAX, None);
    assert!(download(endless, RULES, false).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn window_update_of_a_smux_2_kcptun_behind_its_end_keeps_the_download() {
    for after in [3, 29] {
        // The user reads slowly: the window is used up at once, and nothing else arrives.
        let kcptun = ToKcptun {
            window: 0,
            reads_on: Some(false),
            update_after: Some(Duration::from_secs(after)),
        };
        assert!(download(kcptun, RULES, false).await.is_none(), "after {after} s");
    }
}
