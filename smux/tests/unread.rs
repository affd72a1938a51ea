//! Heap memory held by unread bytes, counted by the allocator.

mod common;

use std::alloc::System;
use std::time::Duration;

use cap::Cap;
use common::frames::{FIN, Frame, NOP, PSH, SYN};
use common::{VERSIONS, number, within};
use kcpx_smux::{Config, Session, Stream, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes that a session may hold in addition to twice its receive buffer: a few read buffers.
const SLACK: usize = 512 << 10;

const RECEIVE_BUFFER: usize = 4 << 20;

/// Sends frames without payload, which fill up the rest of a read buffer.
async fn send_padding(peer: &mut DuplexStream, version: u8, bytes: usize) {
    let padding = Frame::new(version, NOP, 0, b"").encode().repeat(bytes / 8);
    peer.write_all(&padding).await.unwrap();
}

/// Opens streams with `len` bytes each, far apart in the input, and closes them if `closes`.
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
    received(session, count as usize * len).await;
    streams
}

/// A server, and the heap in use before anything arrives.
fn server(version: Version) -> (Session, DuplexStream, usize) {
    let (ours, peer) = duplex(64 << 10);
    let config = Config::new().version(version).keepalive(None);
    let session = Session::server(ours, config.max_receive_buffer(RECEIVE_BUFFER)).unwrap();
    (session, peer, ALLOCATOR.allocated())
}

/// Waits until the session has taken `len` bytes of payload.
async fn received(session: &Session, len: usize) {
    while session.stats().payload_received < len as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn read(stream: &mut Stream, len: usize) {
    let mut received = vec![0; len];
    within(10, stream.read_exact(&mut received)).await.unwrap();
    assert!(received.iter().all(|byte| *byte == 7));
}

async fn check_pieces_far_from_each_other(version: Version, closes: bool) {
    let (session, mut peer, before) = server(version);
    // Everything the peer sends is read, so that only the session holds memory.
    let sizes = (1_000, 4_096, closes);
    let streams = within(120, streams_with_unread(&session, &mut peer, number(version), sizes));
    let streams = streams.await;
    let held = ALLOCATOR.allocated() - before;
    println!("{version:?}, closed {closes}: {} unread hold {held}", session.stats().unread);
    assert_eq!(session.stats().unread, 4_096_000);
    assert!(held <= 2 * RECEIVE_BUFFER + SLACK, "{held} bytes");
    for mut stream in streams {
        read(&mut stream, 4_096).await;
    }
}

/// Copied payload between uncopied payload.
async fn check_small_payload_between_large(version: Version) {
    let (session, mut peer, before) = server(version);
    let (count, pairs) = (16, 60);
    let mut streams = Vec::new();
    for id in (3..).step_by(2).take(count) {
        let mut input = Frame::new(number(version), SYN, id, b"").encode();
        for _ in 0..pairs {
            input.extend(Frame::new(number(version), PSH, id, &[7; 4_096]).encode());
            input.extend(Frame::new(number(version), PSH, id, &[7; 1]).encode());
        }
        peer.write_all(&input).await.unwrap();
        streams.push(session.accept_stream().await.unwrap());
    }
    let unread = count * pairs * 4_097;
    within(10, received(&session, unread)).await;
    let held = ALLOCATOR.allocated() - before;
    println!("{version:?}, small between large: {} unread hold {held}", session.stats().unread);
    assert_eq!(session.stats().unread, unread);
    assert!(held <= 2 * unread + SLACK, "{held} bytes");
    for mut stream in streams {
        read(&mut stream, pairs * 4_097).await;
    }
}

/// All but one byte is read before anything else arrives.
async fn check_partly_read(version: Version) {
    let (session, mut peer, before) = server(version);
    let mut streams = Vec::new();
    for id in (3..2_003).step_by(2) {
        let mut input = Frame::new(number(version), SYN, id, b"").encode();
        input.extend(Frame::new(number(version), PSH, id, &[7; 10_000]).encode());
        peer.write_all(&input).await.unwrap();
        let mut stream = session.accept_stream().await.unwrap();
        read(&mut stream, 9_999).await;
        streams.push(stream);
        send_padding(&mut peer, number(version), 50_000).await;
    }
    let held = ALLOCATOR.allocated() - before;
    println!("{version:?}, partly read: {} unread hold {held}", session.stats().unread);
    assert!(held <= RECEIVE_BUFFER, "{held} bytes");
}

/// All but one byte is read once the stream is over and its bytes were copied.
async fn check_partly_read_at_the_end(version: Version) {
    let (session, mut peer, before) = server(version);
    let mut streams = Vec::new();
    for id in (3..203).step_by(2) {
        peer.write_all(&Frame::new(number(version), SYN, id, b"").encode()).await.unwrap();
        let mut stream = session.accept_stream().await.unwrap();
        stream.shutdown().await.unwrap();
        let mut input = Frame::new(number(version), PSH, id, &vec![7; 60_000]).encode();
        input.extend(Frame::new(number(version), FIN, id, b"").encode());
        peer.write_all(&input).await.unwrap();
        let is_over = async {
            while session.num_streams() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(10, is_over).await;
        read(&mut stream, 59_999).await;
        streams.push(stream);
    }
    let held = ALLOCATOR.allocated() - before;
    println!("{version:?}, partly read at the end: {} unread hold {held}", session.stats().unread);
    assert_eq!(session.stats().unread, streams.len());
    assert!(held <= streams.len() * (8 << 10) + SLACK, "{held} bytes");
    for mut stream in streams {
        read(&mut stream, 1).await;
    }
}

/// Runs `check` in its own runtime, which takes the sessions' tasks and memory with it.
fn run(check: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(check);
}

/// One test, since all allocations of the program are counted.
#[test]
fn unread_bytes_hold_at_most_twice_their_number() {
    for version in VERSIONS {
        run(check_pieces_far_from_each_other(version, false));
        run(check_pieces_far_from_each_other(version, true));
        run(check_small_payload_between_large(version));
        run(check_partly_read(version));
        run(check_partly_read_at_the_end(version));
    }
}
