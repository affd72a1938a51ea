//! Dropped streams whose bytes wait for the peer's window (version 2); the clock is paused.

use std::time::Duration;

use crate::common::frames::{FIN, NOP, PSH, SYN};
use crate::common::{accepted, commands, idle, quiet, raw_server};
use kcpx_smux::Version;
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn dropped_stream_that_is_granted_window_within_each_timeout_sends_everything() {
    let (session, mut peer, mut stream) = accepted(Version::V2, quiet()).await;
    peer.send_update(3, 0, 0).await;
    idle().await;
    stream.write_all(&[7; 10_000]).await.unwrap();
    drop(stream);
    let mut sent = Vec::new();
    for granted in 1..=10 {
        sleep(TIMEOUT - Duration::from_secs(1)).await;
        assert_eq!(session.num_streams(), 1);
        peer.send_update(3, 0, 1_000 * granted).await;
        sent.extend(peer.frames_without_updates().await);
    }
    let mut expected = vec![(PSH, 3, 1_000); 10];
    // The reset after FIN: data that the peer still sends is not read.
    expected.extend([(FIN, 3, 0), (NOP, 3, 0)]);
    assert_eq!(commands(&sent), expected);
    assert_eq!(session.num_streams(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_stream_that_is_granted_no_more_window_is_reset_a_timeout_later() {
    let (session, mut peer, mut stream) = accepted(Version::V2, quiet()).await;
    peer.send_update(3, 0, 0).await;
    idle().await;
    stream.write_all(&[7; 10_000]).await.unwrap();
    drop(stream);
    sleep(TIMEOUT - Duration::from_secs(1)).await;
    peer.send_update(3, 0, 1_000).await;
    assert_eq!(commands(&peer.frames_without_updates().await), [(PSH, 3, 1_000)]);
    // The grant began another timeout at the end of the first.
    sleep(TIMEOUT).await;
    assert_eq!(session.num_streams(), 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(commands(&peer.frames_without_updates().await), [(NOP, 3, 0), (FIN, 3, 0)]);
    assert_eq!(session.num_streams(), 0);
}

/// The oldest are reset at once, not when their time is over.
#[tokio::test(start_paused = true)]
async fn dropped_streams_without_window_hold_at_most_16_mib() {
    const EACH: usize = 64 << 10;
    const KEPT: u32 = (16 << 20) / EACH as u32;
    const STREAMS: u32 = KEPT + 50;
    let (session, mut peer) = raw_server(Version::V2, quiet());
    for i in 0..STREAMS {
        let id = 3 + 2 * i;
        peer.send(SYN, id, b"").await;
        peer.send_update(id, 0, 0).await;
        let mut stream = session.accept_stream().await.unwrap();
        idle().await;
        stream.write_all(&vec![0; EACH]).await.unwrap();
        drop(stream);
    }
    let ended = peer.frames_without_updates().await;
    let expected = (0..STREAMS - KEPT).flat_map(|i| [(NOP, 3 + 2 * i, 0), (FIN, 3 + 2 * i, 0)]);
    assert_eq!(commands(&ended), expected.collect::<Vec<_>>());
    assert_eq!(session.num_streams(), KEPT as usize);
    sleep(TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(session.num_streams(), 0);
}
