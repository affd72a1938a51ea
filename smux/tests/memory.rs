//! Heap memory of idle streams, counted by the allocator.

mod common;

use std::alloc::System;

use cap::Cap;
use common::{VERSIONS, pair_with, streams, within};
use kcpx_smux::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const STREAMS: usize = 5_000;

/// Bytes that an idle stream may hold, including both ends and their shares of all tables.
const LIMIT: usize = 900;

#[tokio::test]
async fn idle_stream_is_small_and_its_memory_is_returned() {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let (client, server) = pair_with(256 << 10, config.clone(), config);
        let mut idle = Vec::with_capacity(2 * STREAMS);
        let mut before = 0;
        within(60, async {
            for i in 0..=STREAMS {
                let (mut ours, mut theirs) = streams(&client, &server).await;
                let mut byte = [0];
                ours.write_all(b"x").await.unwrap();
                theirs.read_exact(&mut byte).await.unwrap();
                theirs.write_all(b"y").await.unwrap();
                ours.read_exact(&mut byte).await.unwrap();
                // The first stream also allocates per-session memory, such as the read buffer.
                if i == 0 {
                    before = ALLOCATOR.allocated();
                } else {
                    idle.extend([ours, theirs]);
                }
            }
        })
        .await;
        let held = ALLOCATOR.allocated() - before + size_of_val(&idle[..]);
        println!("{version:?}: {} bytes", held / STREAMS);
        assert!(held / STREAMS <= LIMIT, "{} bytes", held / STREAMS);
        drop(idle);
        within(10, async {
            while client.num_streams() + server.num_streams() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // The tables keep their capacity.
        let left = ALLOCATOR.allocated().saturating_sub(before) / STREAMS;
        println!("{version:?}: {left} bytes left");
        assert!(left <= 500, "{left} bytes");
    }
}
