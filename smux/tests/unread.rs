//! Heap memory that unread bytes hold, counted by the allocator.

mod common;

use std::alloc::System;
use std::time::Duration;

use cap::Cap;
use common::frames::{FIN, Frame, NOP, PSH, SYN};
use common::{VERSIONS, number, within};
use kcpx_smux::{Config, Session, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes that a session may hold beside twice its receive buffer: a few read buffers.
const SLACK: usize = 512 << 10;

const RECEIVE_BUFFER: usize = 4 << 20;

/// Frames without payload, which take up the rest of a read buffer.
async fn send_padding(peer: &mut DuplexStream, version: u8, bytes: usize) {
    let padding = Frame::new(version, NOP, 0, b"").encode().repeat(bytes / 8);
    peer.write_all(&padding).await.unwrap();
}

/// Streams with `len` bytes each, far from each other in the input, and closed if `closes`.
async fn streams_with_unread(
    session: &Session,
    peer: &mut DuplexStream,
    version: u8,
    (count, len, closes): (u32, usize, bool),
) -> Vec<Stream> {
    let mut streams = Vec::new();
    for id in (3..).step_by(2).take(count as usize) {
        let mut input = Frame::new(version, SYN, id, b"").encode();
        input.extend(Frame::new(version, PSH, id, &vec![7; len]).encode());
        if closes {
            input.extend(Frame::new(version, FIN, id, b"").encode());
        }
        peer.write_all(&input).await.unwrap();
        let mut stream = session.accept_stream().await.unwrap();
        if closes {
            stream.shutdown().await.unwrap();
        }
        streams.push(stream);
        send_padding(peer, version, 60_000).await;
    }
    while session.stats().payload_received < u64::from(count) * len as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    streams
}

/// A server, and the heap in use before anything arrives.
fn server(version: kcpx_smux::Version) -> (Session, DuplexStream, usize) {
    let (ours, peer) = duplex(64 << 10);
    let config = Config::new().version(version).keepalive(None);
    let session = Session::server(ours, config.max_receive_buffer(RECEIVE_BUFFER)).unwrap();
    (session, peer, ALLOCATOR.allocated())
}

/// One test, since all allocations of the program are counted.
#[tokio::test]
async fn unread_bytes_hold_at_most_twice_their_number() {
    for version in VERSIONS {
        for (what, closes) in [("open", false), ("closed", true)] {
            let (session, mut peer, before) = server(version);
            // What the peer sends is read to its end, so that only the session holds anything.
            let sizes = (1_000, 4_096, closes);
            let streams = streams_with_unread(&session, &mut peer, number(version), sizes);
            let streams = within(120, streams).await;
            let held = ALLOCATOR.allocated() - before;
            println!("{version:?}, {what}: {} unread hold {held}", session.stats().unread);
            assert_eq!(session.stats().unread, 4_096_000);
            assert!(held <= 2 * RECEIVE_BUFFER + SLACK, "{held} bytes");
            for mut stream in streams {
                let mut received = vec![0; 4_096];
                stream.read_exact(&mut received).await.unwrap();
                assert_eq!(received, [7; 4_096]);
            }
        }
        // All but one byte is read before anything else arrives.
        let (session, mut peer, before) = server(version);
        let mut streams = Vec::new();
        for id in (3..2_003).step_by(2) {
            let mut input = Frame::new(number(version), SYN, id, b"").encode();
            input.extend(Frame::new(number(version), PSH, id, &[7; 10_000]).encode());
            peer.write_all(&input).await.unwrap();
            let mut stream = session.accept_stream().await.unwrap();
            let mut received = vec![0; 9_999];
            within(10, stream.read_exact(&mut received)).await.unwrap();
            streams.push(stream);
            send_padding(&mut peer, number(version), 50_000).await;
        }
        let held = ALLOCATOR.allocated() - before;
        println!("{version:?}, partly read: {} unread hold {held}", session.stats().unread);
        assert!(held <= RECEIVE_BUFFER, "{held} bytes");
    }
}
