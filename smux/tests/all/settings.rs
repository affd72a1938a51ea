//! Settings and counters: the peer sees the effect of each. The clock is paused.

use std::time::Duration;

use crate::common::frames::{FIN, NOP, PSH, SYN, UPD};
use crate::common::{VERSIONS, accepted, commands, idle, quiet};
use kcpx_smux::{Config, Error, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

#[tokio::test(start_paused = true)]
async fn max_frame_size_limits_the_payload_of_each_frame() {
    for version in VERSIONS {
        for (size, expected) in [(1_000, vec![1_000, 1_000, 500]), (65_535, vec![2_500])] {
            let config = quiet().max_frame_size(size);
            let (_session, mut peer, mut stream) = accepted(version, config).await;
            stream.write_all(&[7; 2_500]).await.unwrap();
            let frames: Vec<_> = expected.into_iter().map(|len| (PSH, 3, len)).collect();
            assert_eq!(commands(&peer.frames().await), frames);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn send_buffer_limits_what_a_write_queues() {
    for size in [1, 5_000, 200_000] {
        let config = quiet().send_buffer(size);
        let (_session, mut peer, mut stream) = accepted(Version::V2, config).await;
        // Nothing leaves.
        peer.send_update(3, 0, 0).await;
        idle().await;
        assert_eq!(stream.write(&vec![7; 300_000]).await.unwrap(), size);
        assert!(timeout(Duration::from_secs(60), stream.write(b"x")).await.is_err());
        // Each byte that leaves makes place for another.
        peer.send_update(3, 0, 1).await;
        assert_eq!(stream.write(b"xx").await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_of_the_configuration_ends_a_session_without_frames() {
    for version in VERSIONS {
        for (interval, limit) in [(2, 5), (40, 90)] {
            let [interval, limit] = [interval, limit].map(Duration::from_secs);
            let config = Config::new().keepalive(Some(interval)).timeout(limit);
            let (session, mut peer, _stream) = accepted(version, config).await;
            idle().await;
            let start = Instant::now();
            assert!(matches!(session.closed().await, Error::Timeout));
            let after = start.elapsed();
            assert!(limit.abs_diff(after) < Duration::from_millis(10), "{after:?}");
            // One NOP in each interval.
            let nops = usize::try_from(limit.as_secs() / interval.as_secs()).unwrap();
            assert_eq!(commands(&peer.frames().await), vec![(NOP, 0, 0); nops]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stats_count_each_kind_of_frame_and_the_payload() {
    let config = Config::new().max_frame_size(1_000).max_stream_buffer(4_000);
    let (session, mut peer, mut stream) = accepted(Version::V2, config).await;
    let mut own = session.open_stream().await.unwrap();
    own.write_all(&[7; 2_500]).await.unwrap();
    own.shutdown().await.unwrap();
    peer.send(PSH, 3, &[7; 3_000]).await;
    stream.read_exact(&mut [0; 3_000]).await.unwrap();
    drop(stream);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let (bytes, _) = peer.read_all().await;
    let frames = crate::common::frames::parse(&bytes);
    let count = |cmd| frames.iter().filter(|frame| frame.cmd == cmd).count() as u64;
    let stats = session.stats();
    let sent = stats.frames_sent;
    assert_eq!(
        [sent.syn, sent.fin, sent.psh, sent.nop, sent.upd],
        [SYN, FIN, PSH, NOP, UPD].map(count)
    );
    // A reset of stream 3, which is dropped before the peer's FIN, and a keepalive.
    assert_eq!((sent.syn, sent.fin, sent.psh, sent.nop), (1, 2, 3, 2));
    assert!(sent.upd > 0);
    assert_eq!((stats.payload_sent, stats.payload_received), (2_500, 3_000));
    assert_eq!((stats.bytes_sent, stats.bytes_received), (bytes.len() as u64, 8 + 3_008));
}
