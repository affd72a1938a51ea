//! Chunks that are written without a copy.

mod common;

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use common::{VERSIONS, pair, streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(start_paused = true)]
async fn chunk_beyond_the_send_buffer_waits_and_follows_what_was_written_before() {
    for version in VERSIONS {
        let (client, server) = pair(version);
        let (mut stream, mut reader) = streams(&client, &server).await;
        stream.write_all(b"before ").await.unwrap();
        let chunk = Bytes::from((0..100_000).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        let mut rest = chunk.clone();
        let mut writing = Box::pin(stream.write_chunk(&mut rest));
        // Of 64 KiB, before the driver has taken any.
        let waits = poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx).is_pending())).await;
        assert!(waits);
        // Cancelled: the rest is known.
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
            result = writing.as_mut() => panic!("nobody has read it: {result:?}"),
            () = tokio::time::sleep(Duration::from_secs(1)) => drop(server),
        }
        drop(reader);
        assert!(writing.await.is_err());
    }
}
