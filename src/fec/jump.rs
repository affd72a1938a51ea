//! Whether the peer goes on at seqids far from those before: it restarted, or much was lost.
//!
//! A forged shard must not end the recovery of what comes meanwhile. So while shards near those
//! before arrive, many far ones in a row are needed, and more than one when none has arrived for a
//! while.

use std::time::{Duration, Instant};

/// Shards in a row, near each other, that outweigh shards that arrived lately.
const IN_A_ROW: u32 = 16;
/// The same when none has arrived for [`PAUSE`].
const AFTER_PAUSE: u32 = 2;
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two shards in a row.
const MAX_GAP: Duration = Duration::from_secs(1);

/// Evidence for a jump of the seqid.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JumpDetector {
    /// When a shard arrived last that is near those before.
    near: Option<Instant>,
    /// The latest far shard, its arrival, and how many have come in a row.
    far: Option<(u32, Instant, u32)>,
}

impl JumpDetector {
    /// A shard near those before arrived.
    pub(super) fn on_near(&mut self, now: Instant) {
        (self.near, self.far) = (Some(now), None);
    }

    /// A shard far from those before arrived; `is_close` says whether it is near an earlier far one
    /// with this seqid. Returns whether the peer goes on here.
    pub(super) fn on_far(
        &mut self,
        now: Instant,
        seqid: u32,
        is_close: impl FnOnce(u32) -> bool,
    ) -> bool {
        let passed = |since: Instant| now.saturating_duration_since(since);
        let before = self.far.filter(|(other, at, _)| passed(*at) <= MAX_GAP && is_close(*other));
        let count = match before {
            // The same one again is no more evidence.
            Some((other, _, count)) => count + u32::from(other != seqid),
            None => 1,
        };
        let paused = self.near.is_none_or(|at| passed(at) >= PAUSE);
        let jumps = count >= if paused { AFTER_PAUSE } else { IN_A_ROW };
        if jumps {
            self.on_near(now);
        } else {
            self.far = Some((seqid, now, count));
        }
        jumps
    }
}
