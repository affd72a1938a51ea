//! Many streams, random drops, and futures cancelled at every point.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::{Rng, VERSIONS, echo, pair, streams, within};
use kcpx_smux::{Config, Session, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_speaks_first_is_heard_10_000_times() {
    for version in VERSIONS {
        let (client, server) = pair(version);
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok(mut stream) = accepting.accept_stream().await {
                stream.write_all(b"220 ready").await.unwrap();
                // Dropped: FIN.
            }
        });
        within(120, async {
            for _ in 0..10_000 {
                let mut stream = client.open_stream().await.unwrap();
                let mut greeting = Vec::new();
                stream.read_to_end(&mut greeting).await.unwrap();
                assert_eq!(greeting, b"220 ready");
            }
        })
        .await;
        within(10, until_empty(&client)).await;
        within(10, until_empty(&server)).await;
    }
}

async fn until_empty(session: &Session) {
    while session.num_streams() > 0 || session.stats().unread > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_streams_at_once_are_echoed_and_forgotten() {
    for version in VERSIONS {
        let config = Config::new().version(version).accept_backlog(10_000);
        let (client, server) = crate::common::pair_with(256 << 10, config.clone(), config);
        tokio::spawn(echo(server.clone()));
        within(120, async {
            let mut opened = Vec::new();
            for i in 0..10_000_u32 {
                let mut stream = client.open_stream().await.unwrap();
                stream.write_all(&i.to_le_bytes()).await.unwrap();
                opened.push(stream);
            }
            for (i, stream) in opened.iter_mut().enumerate() {
                let mut bytes = [0; 4];
                stream.read_exact(&mut bytes).await.unwrap();
                assert_eq!(u32::from_le_bytes(bytes), i as u32);
            }
            assert_eq!(client.num_streams(), 10_000);
            drop(opened);
            until_empty(&client).await;
            until_empty(&server).await;
        })
        .await;
        assert_eq!(server.stats().streams_refused, 0);
    }
}

/// Polls `future` up to `polls` times, with other tasks between, and drops it.
async fn poll_times<F: Future>(future: F, polls: u64) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = std::future::poll_fn(|cx: &mut Context<'_>| {
            Poll::Ready(match future.as_mut().poll(cx) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
        });
        if let Some(output) = polled.await {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Every call is dropped after 0 to 3 polls and repeated; the bytes are the same.
#[tokio::test]
async fn calls_cancelled_at_every_await_lose_nothing() {
    for version in VERSIONS {
        for seed in 0..20 {
            within(60, cancelled_calls(version, seed)).await;
        }
    }
}

async fn cancelled_calls(version: Version, seed: u64) {
    let mut rng = Rng::new(seed);
    let config = Config::new().version(version).send_buffer(5_000).max_stream_buffer(4_000);
    let (client, server) = crate::common::pair_with(3_000, config.clone(), config);
    for _ in 0..5 {
        let opened = loop {
            if let Some(stream) = poll_times(client.open_stream(), rng.below(3)).await {
                break stream.unwrap();
            }
        };
        let mut accepted = loop {
            if let Some(stream) = poll_times(server.accept_stream(), rng.below(4)).await {
                break stream.unwrap();
            }
        };
        assert_eq!(opened.id(), accepted.id());
        let data = rng.bytes(300_000);
        let expected = data.clone();
        let mut rng_of_writer = Rng::new(seed + 1_000);
        let writer = tokio::spawn(async move {
            let (mut stream, mut rest) = (opened, &data[..]);
            while !rest.is_empty() {
                let len = rest.len().min(1 + rng_of_writer.below(9_000) as usize);
                let write = poll_times(stream.write(&rest[..len]), rng_of_writer.below(4));
                rest = &rest[write.await.map_or(0, Result::unwrap)..];
                tokio::task::yield_now().await;
            }
            while poll_times(stream.shutdown(), rng_of_writer.below(4)).await.is_none() {}
            stream
        });
        let mut received = Vec::new();
        loop {
            let mut buffer = vec![0; 1 + rng.below(9_000) as usize];
            match poll_times(accepted.read(&mut buffer), rng.below(4)).await {
                Some(read) => match read.unwrap() {
                    0 => break,
                    len => received.extend_from_slice(&buffer[..len]),
                },
                None => tokio::task::yield_now().await,
            }
        }
        assert!(received == expected);
        drop(writer.await.unwrap());
    }
    assert_eq!(client.stats().streams_opened, 5);
    assert_eq!(server.stats().streams_accepted, 5);
}

/// Streams of both sides are written, read, split and dropped at random; in the end nothing is
/// left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_dropped_at_random_leave_nothing_behind() {
    for version in VERSIONS {
        let seed = 7;
        let (client, server) = pair(version);
        let mut tasks = Vec::new();
        for i in 0..400 {
            let (ours, theirs) = streams(&client, &server).await;
            for (side, stream) in [ours, theirs].into_iter().enumerate() {
                let mut rng = Rng::new(seed + 2 * i + side as u64);
                tasks.push(tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    let sent = rng.bytes(10_000);
                    let writer = tokio::spawn(async move {
                        for _ in 0..rng.below(40) {
                            let len = rng.below(10_000) as usize;
                            // The peer may be gone and grant no window.
                            let write = write.write_all(&sent[..len]);
                            let _ = tokio::time::timeout(Duration::from_millis(200), write).await;
                        }
                    });
                    let mut rng = Rng::new(seed);
                    for _ in 0..rng.below(40) {
                        let mut buffer = vec![0; 1 + rng.below(20_000) as usize];
                        let read = read.read(&mut buffer);
                        let _ = tokio::time::timeout(Duration::from_millis(200), read).await;
                    }
                    drop(read);
                    writer.await.unwrap();
                }));
            }
        }
        within(120, async {
            for task in tasks {
                task.await.unwrap();
            }
            until_empty(&client).await;
            until_empty(&server).await;
        })
        .await;
    }
}

/// Several tasks accept at once; some are cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_accepted_by_any_of_several_tasks() {
    let (client, server) = pair(Version::V2);
    let mut tasks = Vec::new();
    for i in 0..8 {
        let server = server.clone();
        tasks.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            let mut rng = Rng::new(i);
            while !server.is_closed() {
                let wait = Duration::from_micros(rng.below(300));
                if let Ok(Ok(stream)) = tokio::time::timeout(wait, server.accept_stream()).await {
                    ids.push(stream.id());
                }
            }
            ids
        }));
    }
    for _ in 0..500 {
        client.open_stream().await.unwrap();
    }
    within(20, async {
        while server.stats().streams_accepted < 500 || server.num_streams() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    server.close().await.unwrap();
    let mut ids = Vec::new();
    for task in tasks {
        ids.extend(task.await.unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..500).map(|i| 3 + 2 * i).collect::<Vec<_>>());
}
