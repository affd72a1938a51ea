//! The workloads, the same for every transport.

pub(crate) mod bulk;
pub(crate) mod echo;
pub(crate) mod many;
pub(crate) mod msg;
pub(crate) mod pingpong;
pub(crate) mod schedule;
pub(crate) mod sink;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::os;
use crate::protocol::{Messages, Within};

/// Bytes of one write of sink, echo and bulk. The first eight carry its number, and in the last one
/// [`LAST`]; its last eight carry the number again.
pub(crate) const BLOCK: usize = 64 * 1024;
const LAST: u64 = 1 << 63;

/// A server's counters so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) bytes: AtomicU64,
    pub(crate) connections: AtomicU64,
    /// For `msg`, since its connection was accepted.
    latencies: Mutex<Option<msg::Latencies>>,
    /// For `bulk`, since its first byte.
    goodput: Mutex<Option<bulk::Goodput>>,
}

/// A lock whose holder panicked has ended its task alone.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    pub(crate) fn messages(&self) -> Option<Messages> {
        locked(&self.latencies).as_ref().map(msg::Latencies::report)
    }

    pub(crate) fn within(&self) -> Option<Within> {
        locked(&self.goodput).as_ref()?.report(Instant::now())
    }

    pub(crate) fn read(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Wall time and CPU time of this process since it was made.
pub(crate) struct Meter {
    start: Instant,
    cpu: f64,
}

impl Meter {
    pub(crate) fn start() -> anyhow::Result<Self> {
        Ok(Self { cpu: os::cpu_seconds()?, start: Instant::now() })
    }

    pub(crate) fn wall(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        Ok(os::cpu_seconds()? - self.cpu)
    }
}

/// The blocks that a client writes.
struct Blocks {
    block: Vec<u8>,
    number: u64,
    time: Duration,
    bytes: u64,
}

impl Blocks {
    fn new(time: Duration, bytes: u64) -> Self {
        Self { block: vec![0x5a; BLOCK], number: 0, time, bytes }
    }

    /// The next block, and whether it is the last one.
    fn next(&mut self, elapsed: Duration) -> (&[u8], bool) {
        let last = elapsed >= self.time || (self.number + 1) * BLOCK as u64 >= self.bytes;
        let stamp = if last { self.number | LAST } else { self.number }.to_le_bytes();
        self.block[..8].copy_from_slice(&stamp);
        self.block[BLOCK - 8..].copy_from_slice(&stamp);
        self.number += 1;
        (&self.block, last)
    }

    /// Writes blocks up to the last one, and returns their bytes.
    async fn write_to(
        &mut self,
        writer: &mut (impl AsyncWrite + Unpin),
        meter: &Meter,
    ) -> std::io::Result<u64> {
        loop {
            let (block, last) = self.next(meter.wall());
            writer.write_all(block).await?;
            if last {
                break;
            }
        }
        writer.flush().await?;
        Ok(self.number * BLOCK as u64)
    }
}

/// Checks that `block` is the one with this number, and returns whether it is the last.
fn check(block: &[u8], number: u64) -> anyhow::Result<bool> {
    let [first, end] = [&block[..8], &block[BLOCK - 8..]];
    let stamp = u64::from_le_bytes(first.try_into()?);
    ensure!(first == end && stamp & !LAST == number, "block {number} is stamped {stamp:#x}");
    Ok(stamp & LAST != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_until_time_or_bytes_are_used_up() {
        let mut blocks = Blocks::new(Duration::from_secs(1), 3 * BLOCK as u64);
        for (number, ends) in [(0, false), (1, false), (2, true)] {
            let (block, last) = blocks.next(Duration::ZERO);
            assert_eq!(last, ends, "block {number}");
            assert_eq!(check(block, number).unwrap(), ends);
            assert!(check(block, number + 1).is_err());
        }
        let mut late = Blocks::new(Duration::from_secs(1), u64::MAX);
        assert!(late.next(Duration::from_secs(1)).1);
    }

    #[test]
    fn torn_block_is_rejected() {
        let mut blocks = Blocks::new(Duration::from_secs(1), u64::MAX);
        let first = blocks.next(Duration::ZERO).0.to_vec();
        let mut mixed = blocks.next(Duration::ZERO).0.to_vec();
        mixed[..100].copy_from_slice(&first[..100]);
        assert!(check(&mixed, 0).is_err());
        assert!(check(&mixed, 1).is_err());
    }
}
