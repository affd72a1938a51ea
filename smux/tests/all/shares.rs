//! Shares of the carrier for bulk streams beside many small frames; the clock is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::VERSIONS;
use crate::common::frames::{Frame, PSH, Peer, SYN};
use kcpx_smux::{Config, Session, Stream, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Payload of a whole test, in bytes.
const TOTAL: usize = 8 << 20;

/// While the carrier is slower than a stream, one frame delays the others by at most 16 KiB.
#[tokio::test(start_paused = true)]
async fn frames_are_short_while_the_carrier_is_slow() {
    for version in VERSIONS {
        let (near, mut far) = duplex(1_000);
        let config = Config::new().version(version);
        let session = Session::client(near, config).unwrap();
        send_bulk(session.open_stream().await.unwrap());
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() < 200_000 {
            let frame = read_frame(&mut far).await;
            lengths.extend((frame.cmd == PSH).then_some(frame.payload.len()));
        }
        let longest = lengths.iter().skip(3).max().unwrap();
        assert!(*longest < 16 << 10 && lengths[..3].iter().any(|len| len > longest), "{lengths:?}");
    }
}

fn send_bulk(mut stream: Stream) {
    tokio::spawn(async move { while stream.write_all(&vec![0; 100_000]).await.is_ok() {} });
}

/// Sends `len` bytes, and again whenever they have come back.
fn send_pings(mut stream: Stream, len: usize) {
    tokio::spawn(async move {
        let mut bytes = vec![0; len];
        while stream.write_all(&bytes).await.is_ok() && stream.read_exact(&mut bytes).await.is_ok()
        {
        }
    });
}

async fn read_frame(peer: &mut (impl AsyncReadExt + Unpin)) -> Frame {
    let mut header = [0; 8];
    peer.read_exact(&mut header).await.unwrap();
    let id = u32::from_le_bytes(header[4..].try_into().unwrap());
    let mut payload = vec![0; usize::from(u16::from_le_bytes([header[2], header[3]]))];
    peer.read_exact(&mut payload).await.unwrap();
    Frame::new(header[0], header[1], id, &payload)
}

/// Returns the payload on stream `bulk`, of [`TOTAL`] on all streams. Other payload is sent back.
async fn measure(peer: DuplexStream, bulk: u32) -> usize {
    let (mut read, mut write) = split(peer);
    let (answers, mut queued) = mpsc::unbounded_channel::<Frame>();
    tokio::spawn(async move {
        while let Some(frame) = queued.recv().await {
            write.write_all(&frame.encode()).await.unwrap();
        }
    });
    let (mut on_bulk, mut others) = (0, 0);
    while on_bulk + others < TOTAL {
        let frame = read_frame(&mut read).await;
        if frame.cmd == PSH && frame.id == bulk {
            on_bulk += frame.payload.len();
        } else if frame.cmd == PSH {
            others += frame.payload.len();
            answers.send(frame).unwrap();
        }
    }
    on_bulk
}

#[tokio::test(start_paused = true)]
async fn bulk_stream_beside_200_pinging_streams_has_a_quarter_of_the_carrier() {
    for (max_frame_size, ping) in [(32_768, 2_000), (32_768, 1_000), (65_535, 1_000), (65_535, 10)]
    {
        let (ours, peer) = duplex(16 << 10);
        let config = Config::new().max_frame_size(max_frame_size);
        let session = Session::client(ours, config).unwrap();
        let bulk = session.open_stream().await.unwrap();
        let id = bulk.id();
        for _ in 0..200 {
            send_pings(session.open_stream().await.unwrap(), ping);
        }
        send_bulk(bulk);
        let on_bulk = measure(peer, id).await;
        println!("max_frame_size {max_frame_size}, pings of {ping}: {on_bulk} of {TOTAL}");
        assert!(on_bulk >= TOTAL / 4, "{on_bulk} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn bulk_stream_beside_refused_streams_without_end_goes_on() {
    let (ours, peer) = duplex(16 << 10);
    let config = Config::new().max_frame_size(65_535).max_streams(1);
    let session = Session::client(ours, config).unwrap();
    let bulk = session.open_stream().await.unwrap();
    let id = bulk.id();
    send_bulk(bulk);
    let (mut read, mut write) = split(peer);
    tokio::spawn(async move {
        for first in (2..).step_by(16_384) {
            let ids = (0..8_192).map(|i| first + 2 * i);
            let syns = ids.flat_map(|id| Frame::new(1, SYN, id, b"").encode());
            if write.write_all(&syns.collect::<Vec<u8>>()).await.is_err() {
                break;
            }
        }
    });
    let (mut on_bulk, mut frames) = (0, 0);
    while on_bulk < 256 << 10 {
        let frame = read_frame(&mut read).await;
        frames += 1;
        on_bulk += if frame.id == id { frame.payload.len() } else { 0 };
        assert!(frames < 1_000_000, "{on_bulk} bytes only");
    }
    assert!(session.stats().streams_refused > 0);
}

/// Frames of two bulk streams fill a batch; the frame that did not fit begins the next.
#[tokio::test(start_paused = true)]
async fn ping_beside_99_bulk_streams_leaves_within_a_few_batches() {
    for max_frame_size in [8_192, 32_768, 65_535] {
        let (ours, mut peer) = duplex(64 << 10);
        let config = Config::new().max_frame_size(max_frame_size);
        let client = Session::client(ours, config).unwrap();
        for _ in 0..99 {
            send_bulk(client.open_stream().await.unwrap());
        }
        let ping = client.open_stream().await.unwrap();
        let id = ping.id();
        // The bulk streams have taken turns by now.
        for _ in 0..200 {
            read_frame(&mut peer).await;
        }
        send_pings(ping, 1);
        let mut bytes = 0;
        loop {
            let frame = read_frame(&mut peer).await;
            if frame.cmd == PSH && frame.id == id {
                break;
            }
            bytes += frame.payload.len();
            assert!(bytes < 512 << 10, "{max_frame_size}");
        }
    }
}

/// Forwards at most 64 KiB per millisecond of the paused clock.
fn forward(
    from: impl AsyncReadExt + Unpin + Send + 'static,
    to: impl AsyncWriteExt + Unpin + Send + 'static,
) {
    let (mut from, mut to) = (from, to);
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer).await {
            sleep(Duration::from_millis(1)).await;
            if to.write_all(&buffer[..len]).await.is_err() {
                break;
            }
        }
    });
}

/// Bytes that 9 streams deliver in 2 s, in total and for the slowest one, beside an unread tenth
/// stream if `is_unread`.
async fn delivered(version: Version, is_unread: bool) -> (usize, usize) {
    let (ours, left) = duplex(64 << 10);
    let (right, theirs) = duplex(64 << 10);
    let (left_read, left_write) = split(left);
    let (right_read, right_write) = split(right);
    forward(left_read, right_write);
    forward(right_read, left_write);
    let config = Config::new().version(version).max_stream_buffer(512 << 10);
    let client = Session::client(ours, config.clone()).unwrap();
    let server = Session::server(theirs, config).unwrap();
    let mut unread = None;
    if is_unread {
        send_bulk(client.open_stream().await.unwrap());
        unread = Some(server.accept_stream().await.unwrap());
    }
    let mut counts = Vec::new();
    for _ in 0..9 {
        send_bulk(client.open_stream().await.unwrap());
        let mut stream = server.accept_stream().await.unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        counts.push(Arc::clone(&count));
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                count.fetch_add(len, Ordering::Relaxed);
            }
        });
    }
    // By then the unread stream has used up its window, and in version 1 all tokens.
    sleep(Duration::from_secs(2)).await;
    let now = || counts.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = now();
    sleep(Duration::from_secs(2)).await;
    let delivered: Vec<_> = now().iter().zip(before).map(|(now, before)| now - before).collect();
    drop(unread);
    (delivered.iter().sum(), delivered.into_iter().min().unwrap())
}

#[tokio::test(start_paused = true)]
async fn unread_stream_leaves_the_others_their_throughput_in_version_2() {
    for (version, kept) in [(Version::V1, false), (Version::V2, true)] {
        let (alone, _) = delivered(version, false).await;
        let (beside, slowest) = delivered(version, true).await;
        println!("{version:?}: {alone} bytes alone, {beside} beside it, of one {slowest} or more");
        assert!(alone > 100 << 20, "the carrier has 128 MB in that time");
        if kept {
            assert!(beside >= alone / 10 * 9, "{beside} of {alone} bytes");
            assert!(slowest * 9 >= beside / 10 * 9, "{slowest} of {beside} bytes");
        } else {
            assert_eq!(beside, 0, "version 1 has no windows");
        }
    }
}

/// Opens, writes and drops streams of these lengths one after the other, without waiting for the
/// reader, which reads them in the same order.
async fn read_in_order(config: Config, streams: usize, lens: [usize; 2]) {
    let config = config.accept_backlog(streams);
    let (ours, theirs) = duplex(256 << 10);
    let client = Session::client(ours, config.clone()).unwrap();
    let server = Session::server(theirs, config).unwrap();
    let writer = tokio::spawn(async move {
        let data = vec![7; lens[0].max(lens[1])];
        for i in 0..streams {
            let mut stream = client.open_stream().await.unwrap();
            stream.write_all(&data[..lens[i % 2]]).await.unwrap();
        }
        client
    });
    let mut data = Vec::new();
    for i in 0..streams {
        let mut stream = server.accept_stream().await.unwrap();
        data.clear();
        stream.read_to_end(&mut data).await.unwrap_or_else(|error| panic!("stream {i}: {error}"));
        assert_eq!(data.len(), lens[i % 2], "stream {i}");
    }
    writer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_dropped_one_after_the_other_can_be_read_in_this_order() {
    // More than the reader buffers before it stops reading the carrier (4 MiB): the first streams
    // must not wait behind the others.
    let cases = [
        (32 << 10, 64 << 10, 10_000, [10_000, 10_000]),
        (32 << 10, 64 << 10, 10_000, [10_000, 1_000]),
        (4 << 10, 64 << 10, 2_000, [60_000, 2_000]),
        (32 << 10, 1 << 20, 200, [200_000, 200_000]),
    ];
    for version in VERSIONS {
        for (frame, send_buffer, streams, lens) in cases {
            // Version 2 grants each stream a window of 64 KiB, all streams together more than the
            // receive buffer: bytes beyond their windows wait.
            if version == Version::V2 && send_buffer > 64 << 10 {
                continue;
            }
            let config = Config::new().version(version).max_frame_size(frame);
            println!("{version:?}, {streams} streams of {lens:?} bytes in frames of {frame}");
            let reader = read_in_order(config.send_buffer(send_buffer), streams, lens);
            tokio::time::timeout(Duration::from_secs(60), reader).await.expect("the streams stall");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bulk_stream_beside_streams_that_end_has_half_of_the_carrier() {
    for (version, len) in VERSIONS.into_iter().flat_map(|v| [(v, 50_000), (v, 1), (v, 0)]) {
        let config = Config::new().version(version).max_frame_size(4 << 10);
        // Windows that do not limit.
        let config = config.max_receive_buffer(128 << 20).max_stream_buffer(2 << 20);
        let (ours, theirs) = duplex(64 << 10);
        let client = Session::client(ours, config.clone()).unwrap();
        let server = Session::server(theirs, config).unwrap();
        send_bulk(client.open_stream().await.unwrap());
        // 50 downloads; each begins once the previous one is written.
        for _ in 0..50 {
            let client = client.clone();
            tokio::spawn(async move {
                while let Ok(mut stream) = client.open_stream().await {
                    drop(stream.write_all(&vec![7; len]).await);
                    // Also waits until FIN is sent.
                    drop(stream.shutdown().await);
                }
            });
        }
        let total = Arc::new(AtomicUsize::new(0));
        let mut bulk = server.accept_stream().await.unwrap();
        let others = Arc::clone(&total);
        tokio::spawn(async move {
            while let Ok(mut stream) = server.accept_stream().await {
                let others = Arc::clone(&others);
                tokio::spawn(async move {
                    while let Ok(chunk) = stream.read_chunk().await
                        && !chunk.is_empty()
                    {
                        others.fetch_add(chunk.len(), Ordering::Relaxed);
                    }
                });
            }
        });
        let mut received = 0;
        while received < TOTAL / 4 {
            received += bulk.read_chunk().await.unwrap().len();
        }
        let share = received as f64 / (received + total.load(Ordering::Relaxed)) as f64;
        println!("{version:?}, beside streams of {len} bytes: {share:.3} of the payload");
        let most = if len == 50_000 { 0.6 } else { 1.0 };
        assert!((0.4..=most).contains(&share), "{share}");
    }
}

#[tokio::test(start_paused = true)]
async fn finished_stream_that_is_granted_window_comes_before_those_that_finished_later() {
    let (ours, io) = duplex(4_096);
    let config = Config::new().version(Version::V2).send_buffer(1 << 20);
    let client = Session::client(ours, config).unwrap();
    let mut peer = Peer { io, version: 2 };
    let mut first = client.open_stream().await.unwrap();
    let id = first.id();
    first.write_all(&[7; 10_000].repeat(30)).await.unwrap();
    drop(first);
    // Everything that the first window allows.
    let frames = peer.frames().await;
    let payloads = frames.iter().filter(|frame| frame.cmd == PSH).map(|frame| frame.payload.len());
    let sent: usize = payloads.sum();
    assert_eq!(sent, 262_144);
    let mut later = Vec::new();
    for _ in 0..4 {
        let mut stream = client.open_stream().await.unwrap();
        stream.write_all(&[7; 10_000].repeat(6)).await.unwrap();
        later.push(stream.id());
    }
    sleep(Duration::from_millis(1)).await;
    peer.send_update(id, 262_144, 262_144).await;
    sleep(Duration::from_millis(1)).await;
    let frames = peer.frames().await;
    let last_of_first = frames.iter().rposition(|frame| frame.id == id).unwrap();
    let last_id = later.last().unwrap();
    let first_of_last = frames.iter().position(|f| f.id == *last_id && f.cmd == PSH).unwrap();
    assert!(last_of_first < first_of_last, "{frames:?}");
}
