//! Chunks written without a copy, and buffers that `write_from` reads into.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::{VERSIONS, pair, quiet, streams};
use bytes::Bytes;
use kcpx_smux::Session;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

#[tokio::test(start_paused = true)]
async fn chunk_beyond_the_send_buffer_waits_and_follows_what_was_written_before() {
    for version in VERSIONS {
        let (client, server) = pair(version);
        let (mut stream, mut reader) = streams(&client, &server).await;
        stream.write_all(b"before ").await.unwrap();
        let chunk = Bytes::from((0..100_000).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        let mut rest = chunk.clone();
        let mut writing = Box::pin(stream.write_chunk(&mut rest));
        // The send buffer is 64 KiB; the driver has not taken any.
        let waits = poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx).is_pending())).await;
        assert!(waits);
        // Cancelled: `rest` holds the unqueued bytes.
        drop(writing);
        assert_eq!(rest.len(), 100_000 + b"before ".len() - (64 << 10));
        stream.write_chunk(&mut rest).await.unwrap();
        assert!(rest.is_empty());
        // Small ones are copied.
        for piece in [&b" after"[..], b"", b" that"] {
            stream.write_chunk(&mut Bytes::from_static(piece)).await.unwrap();
        }
        stream.write_all(b".").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        assert!(received == [&b"before "[..], &chunk, b" after that."].concat());
        for mut chunk in [chunk, Bytes::new()] {
            let error = stream.write_chunk(&mut chunk).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        }
    }
}

/// Returns `bytes`, at most `piece` per read, and then an error. Records the space offered.
struct Source<'a> {
    bytes: &'a [u8],
    piece: usize,
    spaces: Vec<usize>,
}

impl AsyncRead for Source<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.spaces.push(buf.remaining());
        if self.bytes.is_empty() {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        let len = self.bytes.len().min(self.piece).min(buf.remaining());
        let (now, later) = self.bytes.split_at(len);
        buf.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn write_from_waits_for_capacity_before_it_reads() {
    let bytes = (0..200_000).map(|i| (i % 251) as u8).collect::<Vec<_>>();
    for version in VERSIONS {
        let (client, server) = pair(version);
        let (mut stream, mut reader) = streams(&client, &server).await;
        stream.write_all(b"before ").await.unwrap();
        let mut source = &bytes[..];
        let mut written = b"before ".len();
        // The send buffer is 64 KiB; the driver has not taken any.
        loop {
            let mut writing = pin!(stream.write_from(&mut source));
            match poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx))).await {
                Poll::Ready(count) => written += count.unwrap(),
                Poll::Pending => break,
            }
        }
        assert_eq!(written, 64 << 10);
        assert_eq!(source.len(), bytes.len() + b"before ".len() - written);
        let read = async {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).await.unwrap();
            received
        };
        let write = async {
            while stream.write_from(&mut source).await.unwrap() > 0 {}
            stream.write_all(b" after").await.unwrap();
            stream.shutdown().await.unwrap();
            let error = stream.write_from(&mut &b"late"[..]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        };
        let (received, ()) = tokio::join!(read, write);
        assert!(received == [&b"before "[..], &bytes, b" after"].concat());
    }
}

#[tokio::test(start_paused = true)]
async fn buffer_of_write_from_grows_while_reads_fill_it() {
    let (client, server) = pair(VERSIONS[1]);
    let (mut stream, mut reader) = streams(&client, &server).await;
    let bytes = vec![7; 300_000];
    // All at once; then a little at a time, which is copied, until the reader fails.
    let mut source = Source { bytes: &bytes, piece: usize::MAX, spaces: Vec::new() };
    let mut received = vec![0; bytes.len()];
    loop {
        let count = match stream.write_from(&mut source).await {
            Ok(count) => count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                break;
            }
        };
        reader.read_exact(&mut received[..count]).await.unwrap();
        source.piece = match source.bytes.len() {
            0..20_000 => 1_000,
            20_000..65_536 => 2_000,
            _ => usize::MAX,
        };
    }
    let kib = |kib: usize| kib << 10;
    let [grown, shrunk] = [[4, 8, 16, 32], [64, 32, 16, 8]].map(|sizes| sizes.map(kib));
    assert_eq!(source.spaces[..4], grown);
    let full = source.spaces.iter().filter(|space| **space == kib(64)).count();
    assert!(full >= 3, "{:?}", source.spaces);
    let last = &source.spaces[4 + full - 1..];
    assert_eq!(last[..4], shrunk, "{:?}", source.spaces);
    // It shrinks no further.
    assert!(last[4..].iter().all(|space| *space == kib(4)), "{:?}", source.spaces);
    // The stream continues after an error of the reader.
    stream.write_all(b"more").await.unwrap();
    reader.read_exact(&mut received[..4]).await.unwrap();
    assert_eq!(received[..4], *b"more");
}

#[tokio::test(start_paused = true)]
async fn chunk_that_waits_fails_when_the_session_ends() {
    for version in VERSIONS {
        let (client, server) = pair(version);
        let (stream, reader) = streams(&client, &server).await;
        let (_read, mut write) = stream.into_split();
        // More than send buffer, carrier and receive buffer hold.
        let mut chunk = Bytes::from(vec![7; 8 << 20]);
        let mut writing = pin!(write.write_chunk(&mut chunk));
        tokio::select! {
            result = writing.as_mut() => panic!("not read yet: {result:?}"),
            () = tokio::time::sleep(Duration::from_secs(1)) => drop(server),
        }
        drop(reader);
        assert!(writing.await.is_err());
    }
}

/// Returns a byte, and does something before.
struct ActsFirst<F>(Option<F>);

impl<F: FnOnce() + Unpin> AsyncRead for ActsFirst<F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.take().into_iter().for_each(|act| act());
        buf.put_slice(b"x");
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn write_from_fails_if_the_session_ends_while_it_reads() {
    let (io, _peer) = tokio::io::duplex(1_000);
    let (session, driver) = Session::client_with_driver(io, quiet()).unwrap();
    let mut stream = session.open_stream().await.unwrap();
    let mut source = ActsFirst(Some(|| drop(driver)));
    let error = stream.write_from(&mut source).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}
