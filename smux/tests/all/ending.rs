//! Ends of sessions over carriers that fail, wait or continue forever, and with peers that read
//! nothing; the clock is paused.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::frames::{FIN, Frame, PSH, Peer, SYN};
use crate::common::{VERSIONS, idle, number};
use kcpx_smux::{Config, Error, Session, Version};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::time::{Instant, Sleep, sleep};

/// A carrier with faults.
struct Faulty {
    io: DuplexStream,
    /// How often it was read.
    reads: Arc<AtomicUsize>,
    write_fails: bool,
    /// Its shutdown takes this time and fails.
    shutdown: Option<Pin<Box<Sleep>>>,
    /// Its flush is ready after this time.
    flush: Option<Pin<Box<Sleep>>>,
}

impl Faulty {
    fn new(io: DuplexStream) -> Self {
        Self { io, reads: Arc::default(), write_fails: false, shutdown: None, flush: None }
    }
}

impl AsyncRead for Faulty {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Faulty {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.write_fails {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.flush {
            Some(sleep) => sleep.as_mut().poll(cx).map(Ok),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.shutdown {
            Some(sleep) => sleep.as_mut().poll(cx).map(|()| Err(ErrorKind::ConnectionReset.into())),
            None => Pin::new(&mut self.io).poll_shutdown(cx),
        }
    }
}

/// A carrier that takes everything and delivers NOP frames without end.
struct Flood;

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while buf.remaining() >= 8 {
            buf.put_slice(&[1, 3, 0, 0, 0, 0, 0, 0]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
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

/// A server over a carrier that holds `buffer` bytes.
fn server(buffer: usize, config: Config, version: u8) -> (Session, Peer) {
    let (ours, io) = duplex(buffer);
    (Session::server(ours, config).unwrap(), Peer { io, version })
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_fin_in_the_batch_returns_the_error_of_the_session() {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let (session, mut peer) = server(64, config, number(version));
        peer.send(SYN, 3, b"").await;
        peer.send(FIN, 3, b"").await;
        let mut stream = session.accept_stream().await.unwrap();
        idle().await;
        let shutdown = tokio::spawn(async move {
            stream.write_all(&[1; 100]).await.unwrap();
            stream.shutdown().await
        });
        idle().await;
        assert!(!shutdown.is_finished(), "the peer reads nothing");
        assert!(matches!(session.closed().await, Error::Timeout));
        let result = tokio::time::timeout(Duration::from_secs(1), shutdown).await;
        let error = result.expect("shutdown ends").unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}

#[tokio::test(start_paused = true)]
async fn write_error_of_the_carrier_leaves_what_arrived_to_be_read() {
    for version in VERSIONS {
        let (ours, mut peer) = duplex(1 << 20);
        let mut input = Frame::new(number(version), SYN, 3, b"").encode();
        for _ in 0..25 {
            input.extend(Frame::new(number(version), PSH, 3, &[7; 10_000]).encode());
        }
        peer.write_all(&input).await.unwrap();
        let mut carrier = Faulty::new(ours);
        carrier.write_fails = true;
        let config = Config::new().version(version).max_receive_buffer(65_536).keepalive(None);
        let session = Session::server(carrier, config).unwrap();
        let mut stream = session.accept_stream().await.unwrap();
        // In version 2 the window update has already failed.
        let _ = stream.write_all(b"x").await;
        idle().await;
        let error = stream.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(session.is_closed());
        assert!(matches!(session.open_stream().await, Err(Error::Io(..))));
        assert_eq!(stream.shutdown().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let mut received = vec![0; 250_000];
        stream.read_exact(&mut received).await.unwrap();
        // Later streams as well.
        let mut input = Frame::new(number(version), SYN, 5, b"").encode();
        input.extend(Frame::new(number(version), PSH, 5, b"late").encode());
        input.extend(Frame::new(number(version), FIN, 5, b"").encode());
        peer.write_all(&input).await.unwrap();
        let mut second = session.accept_stream().await.unwrap();
        let mut received = Vec::new();
        second.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"late");
        assert!(second.write(b"x").await.is_err());
        peer.shutdown().await.unwrap();
        assert_eq!(session.closed().await.kind(), ErrorKind::ConnectionReset);
        assert_eq!(stream.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test(start_paused = true)]
async fn write_error_of_a_carrier_that_stays_silent_ends_the_session_after_the_timeout() {
    let (ours, _peer) = duplex(1 << 20);
    let mut carrier = Faulty::new(ours);
    carrier.write_fails = true;
    let session = Session::client(carrier, Config::new().keepalive(None)).unwrap();
    let _stream = session.open_stream().await.unwrap();
    let start = Instant::now();
    assert_eq!(session.closed().await.kind(), ErrorKind::ConnectionReset);
    assert!((30..31).contains(&start.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_shutdown_of_the_carrier_and_returns_its_error() {
    let (ours, _peer) = duplex(1 << 20);
    let mut carrier = Faulty::new(ours);
    carrier.shutdown = Some(Box::pin(sleep(Duration::from_secs(5))));
    let session = Session::client(carrier, Config::new()).unwrap();
    let start = Instant::now();
    let clone = session.clone();
    let first = tokio::spawn(async move { clone.close().await });
    idle().await;
    let second = session.close().await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::ConnectionReset);
    assert!(start.elapsed() >= Duration::from_secs(5));
    assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
    // A carrier that never ends.
    let (ours, _peer) = duplex(1 << 20);
    let mut carrier = Faulty::new(ours);
    carrier.shutdown = Some(Box::pin(sleep(Duration::from_secs(10_000))));
    let session = Session::client(carrier, Config::new()).unwrap();
    assert!(matches!(session.close().await, Err(Error::Timeout)));
}

#[tokio::test(start_paused = true)]
async fn close_is_an_error_when_the_peer_ends_the_carrier_before_all_is_sent() {
    let (ours, mut peer) = duplex(64);
    let session = Session::client(ours, Config::new()).unwrap();
    let mut stream = session.open_stream().await.unwrap();
    stream.write_all(&vec![1; 50_000]).await.unwrap();
    let clone = session.clone();
    let close = tokio::spawn(async move { clone.close().await });
    idle().await;
    peer.shutdown().await.unwrap();
    assert_eq!(close.await.unwrap().unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[tokio::test(start_paused = true)]
async fn close_behind_the_peers_end_of_the_carrier_is_an_error_only_if_data_or_fin_is_unsent() {
    for version in VERSIONS {
        let config = Config::new().version(version).fin_delay(Duration::from_secs(1));
        for (ends, is_unsent) in [(None, false), (Some(false), false), (Some(true), true)] {
            let (session, mut peer) = server(1 << 10, config.clone(), number(version));
            let mut stream = None;
            if let Some(ends) = ends {
                peer.send(SYN, 3, b"").await;
                peer.send(FIN, 3, b"").await;
                let accepted = stream.insert(session.accept_stream().await.unwrap());
                accepted.write_all(b"sent").await.unwrap();
                idle().await;
                if ends {
                    // FIN is delayed.
                    drop(stream.take());
                }
            }
            idle().await;
            assert_closes(&session, &mut peer, is_unsent).await;
        }
    }
    // Nothing leaves before the peer's first frame.
    for (data, ends) in [(&b""[..], false), (b"unsent", false), (b"", true)] {
        let (session, mut peer) = server(1 << 10, Config::new().version(Version::Any), 1);
        let mut stream = Some(session.open_stream().await.unwrap());
        stream.as_mut().unwrap().write_all(data).await.unwrap();
        if ends {
            stream = None;
        }
        idle().await;
        assert_closes(&session, &mut peer, ends || !data.is_empty()).await;
        drop(stream);
    }
}

/// The peer ends the carrier.
async fn assert_closes(session: &Session, peer: &mut Peer, is_unsent: bool) {
    peer.io.shutdown().await.unwrap();
    assert!(matches!(session.closed().await, Error::Closed));
    match session.close().await {
        Ok(()) => assert!(!is_unsent),
        Err(error) => {
            assert!(is_unsent, "{error}");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_ends_while_the_peer_sends_without_end() {
    let session = Session::client(Flood, Config::new()).unwrap();
    crate::common::within(20, session.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn flush_waits_for_the_flush_of_the_carrier_beside_a_stream_that_writes_on() {
    let (ours, mut peer) = duplex(1 << 20);
    let mut carrier = Faulty::new(ours);
    carrier.flush = Some(Box::pin(sleep(Duration::from_secs(5))));
    let session = Session::client(carrier, Config::new().keepalive(None)).unwrap();
    let mut stream = session.open_stream().await.unwrap();
    let start = Instant::now();
    stream.flush().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "nothing was written");
    let mut bulk = session.open_stream().await.unwrap();
    tokio::spawn(async move { while bulk.write_all(&[0; 10_000]).await.is_ok() {} });
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 100_000];
        while peer.read(&mut buffer).await.unwrap() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    });
    idle().await;
    stream.write_all(b"flushed").await.unwrap();
    stream.flush().await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(5));
    assert!(!reader.is_finished());
}

#[tokio::test(start_paused = true)]
async fn flush_of_what_the_carrier_does_not_take_returns_the_error_of_the_session() {
    let (ours, _peer) = duplex(64);
    let session = Session::client(ours, Config::new()).unwrap();
    let mut stream = session.open_stream().await.unwrap();
    // In the batch, and queued.
    for len in [100, 60_000] {
        stream.write_all(&vec![0; len]).await.unwrap();
        let flush = tokio::time::timeout(Duration::from_secs(1), stream.flush()).await;
        assert!(flush.is_err(), "the peer reads nothing");
    }
    assert_eq!(stream.flush().await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(stream.flush().await.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn dropped_stream_without_window_ends_after_the_timeout() {
    let config = Config::new().version(Version::V2).keepalive(None);
    let (session, mut peer) = server(1 << 20, config, 2);
    for i in 0..100 {
        let id = 3 + 2 * i;
        peer.send(SYN, id, b"").await;
        peer.send_update(id, 0, 0).await;
        peer.send(FIN, id, b"").await;
        let mut stream = session.accept_stream().await.unwrap();
        idle().await;
        stream.write_all(&vec![0; 65_536]).await.unwrap();
    }
    idle().await;
    assert_eq!(session.num_streams(), 100);
    sleep(Duration::from_secs(31)).await;
    assert_eq!(session.num_streams(), 0);
}

#[tokio::test(start_paused = true)]
async fn carrier_is_read_to_its_end_after_a_malformed_frame_with_bytes_behind_it() {
    // Or with the malformed frame at the end of the read buffer.
    for nops in [0, 8_190] {
        let (ours, mut peer) = duplex(64 << 10);
        let carrier = Faulty::new(ours);
        let reads = Arc::clone(&carrier.reads);
        let (_session, driver) = Session::server_with_driver(carrier, Config::new()).unwrap();
        let driver = tokio::spawn(driver);
        let mut input = [1, 3, 0, 0, 0, 0, 0, 0].repeat(nops);
        input.extend([1, 9, 0, 0, 0, 0, 0, 0]);
        // After the malformed frame in the same read, and in further ones.
        input.resize(300_000, 0);
        let written = tokio::time::timeout(Duration::from_secs(1), peer.write_all(&input)).await;
        written.expect("the carrier is read").unwrap();
        drop(peer);
        assert!(matches!(driver.await.unwrap(), Error::Protocol(_)));
        let reads = reads.load(Ordering::Relaxed);
        assert!(reads < 20, "{reads} reads");
    }
}

#[tokio::test(start_paused = true)]
async fn driver_ends_when_the_carrier_is_read_to_its_end_at_most_2_s_after_its_shutdown() {
    for (ends, expected) in [(true, 0), (false, 2)] {
        let (ours, mut peer) = duplex(1 << 10);
        let (session, driver) = Session::client_with_driver(ours, Config::new()).unwrap();
        let driver = tokio::spawn(driver);
        session.close().await.unwrap();
        let start = Instant::now();
        if ends {
            peer.shutdown().await.unwrap();
        }
        assert!(matches!(driver.await.unwrap(), Error::Closed));
        assert_eq!(start.elapsed().as_millis() / 10, expected * 100);
    }
}

/// The shutdown of the carrier may take 2 s, and its end 2 s more.
#[tokio::test(start_paused = true)]
async fn driver_ends_within_4_s_of_a_malformed_frame_though_the_carrier_never_ends() {
    let (ours, mut peer) = duplex(1 << 10);
    let mut carrier = Faulty::new(ours);
    carrier.shutdown = Some(Box::pin(sleep(Duration::from_secs(10_000))));
    let (_session, driver) = Session::server_with_driver(carrier, Config::new()).unwrap();
    let driver = tokio::spawn(driver);
    let start = Instant::now();
    peer.write_all(&[1, 9, 0, 0, 0, 0, 0, 0]).await.unwrap();
    assert!(matches!(driver.await.unwrap(), Error::Protocol(_)));
    assert_eq!(start.elapsed().as_millis() / 10, 400);
}
