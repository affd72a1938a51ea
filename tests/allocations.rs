//! An established connection allocates nothing per datagram.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use common::{Pair, assert_same, bytes, guarded, one_thread, pair};
use kcpx::{Config, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes of one write and of one read.
const BLOCK: usize = 64 * 1024;
/// Blocks until every queue and table has its final capacity, then blocks to measure.
const WARM_UP: u64 = 128;
const BLOCKS: u64 = 512;
/// Allocations allowed for the whole measurement, in addition to the ones for each block.
const FEW: u64 = 64;

/// Counts the allocations of each thread and their bytes.
struct Counting;

thread_local! {
    static ASKED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

#[expect(unsafe_code, reason = "an allocator cannot be made without")]
// SAFETY: each call goes to the system's allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (times, bytes) = ASKED.get();
        ASKED.set((times + 1, bytes + layout.size() as u64));
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations while [`BLOCKS`] blocks moved, and the datagrams sent.
struct Asked {
    times: u64,
    bytes: u64,
    datagrams: u64,
}

impl Asked {
    /// Allows `most` allocations per block. One holds the reference count of a taken write, one a segment
    /// that spans two writes. Buffers are reused.
    fn check(&self, most: u64) {
        assert!(self.times <= BLOCKS * most + FEW, "more than for each block");
        assert!(self.times * 10 < self.datagrams, "as for each datagram");
        assert!(self.bytes < BLOCKS * BLOCK as u64 / 10, "buffers are not used again");
    }
}

/// Has `work` move blocks, with both ends and their drivers on this thread. Runs one measurement at a time,
/// since the whole process shares the buffer pool.
fn measure(work: impl AsyncFn(&mut Pair, &[u8], u64)) -> Asked {
    measure_with(Config::new(), work)
}

fn measure_with(config: Config, work: impl AsyncFn(&mut Pair, &[u8], u64)) -> Asked {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    one_thread().block_on(guarded(async {
        // A loss would allocate: these windows fit into the socket buffers of any system.
        let mut pair = pair(config.windows(128, 128)).await;
        let block = bytes(1, BLOCK);
        work(&mut pair, &block, WARM_UP).await;
        let before = (ASKED.get(), sent(&pair));
        work(&mut pair, &block, BLOCKS).await;
        let ((times, bytes), datagrams) = (ASKED.get(), sent(&pair) - before.1);
        let (times, bytes) = (times - before.0.0, bytes - before.0.1);
        println!("{times} allocations of {bytes} bytes for {datagrams} datagrams");
        assert!(datagrams > BLOCKS * BLOCK as u64 / 1_400, "they did not cross the network");
        Asked { times, bytes, datagrams }
    }))
}

fn sent(pair: &Pair) -> u64 {
    pair.client.endpoint().stats().sent.datagrams + pair.listener.stats().sent.datagrams
}

async fn write(stream: &mut KcpStream, block: &[u8], blocks: u64) {
    for _ in 0..blocks {
        stream.write_all(block).await.unwrap();
    }
}

async fn sink(pair: &mut Pair, block: &[u8], blocks: u64) {
    let mut got = vec![0; block.len()];
    let sink = async {
        for _ in 0..blocks {
            pair.server.read_exact(&mut got).await.unwrap();
            assert_same(&got, block);
        }
    };
    tokio::join!(write(&mut pair.client, block, blocks), sink);
}

#[test]
fn sink_allocates_nothing_per_datagram() {
    // A full queue splits a block into two writes.
    measure(sink).check(3);
}

/// The queue of the logs grows to its final size during the measurement.
#[cfg(feature = "qlog")]
#[test]
fn logged_sink_allocates_nothing_per_datagram() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("allocations");
    std::fs::create_dir_all(&folder).unwrap();
    let asked = measure_with(Config::new().qlog(&folder), sink);
    std::fs::remove_dir_all(folder).unwrap();
    assert!(asked.times <= BLOCKS * 3 + FEW, "more than for each block");
    assert!(asked.times * 10 < asked.datagrams, "as for each datagram");
}

#[test]
fn echo_allocates_nothing_per_datagram() {
    // Nothing else is in flight, so no segment spans two blocks.
    let asked = measure(async |pair, block, blocks| {
        let mut heard = vec![0; block.len()];
        let echo = async {
            for _ in 0..blocks {
                pair.server.read_exact(&mut heard).await.unwrap();
                pair.server.write_all(&heard).await.unwrap();
            }
        };
        let mut got = vec![0; block.len()];
        let ask = async {
            for _ in 0..blocks {
                pair.client.write_all(block).await.unwrap();
                pair.client.read_exact(&mut got).await.unwrap();
                assert_same(&got, block);
            }
        };
        tokio::join!(echo, ask);
    });
    asked.check(2);
}

#[test]
fn dropped_chunks_return_their_buffers() {
    // One more than a sink: the return of a chunk.
    let asked = measure(async |pair, block, blocks| {
        let sink = async {
            let mut left = blocks as usize * block.len();
            while left > 0 {
                left -= pair.server.read_chunk().await.unwrap().len();
            }
        };
        tokio::join!(write(&mut pair.client, block, blocks), sink);
    });
    asked.check(4);
}

#[test]
fn small_reads_reuse_buffers() {
    for piece in [3_000, 5_500, 11_000, 27_000, 55_000] {
        let asked = measure(async |pair, block, blocks| {
            let mut got = vec![0; piece];
            for _ in 0..blocks * BLOCK as u64 / piece as u64 + 1 {
                pair.client.write_all(&block[..piece]).await.unwrap();
                pair.server.read_exact(&mut got).await.unwrap();
                assert_same(&got, &block[..piece]);
            }
        });
        // Writes below 16 KiB are copied into newly allocated memory.
        let written = if piece < 16 * 1024 { BLOCKS * BLOCK as u64 } else { 0 };
        assert!(asked.bytes < written + BLOCKS * BLOCK as u64 / 10, "{piece}");
    }
}
