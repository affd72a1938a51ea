//! Whether the peer goes on at seqids far from those before: it restarted, or much was lost.
//!
//! A forged shard must not end the recovery of what comes meanwhile. So far shards have to outnumber
//! those near the shards before by many, and more than one is needed when none of these has arrived
//! for a while.

use std::time::{Duration, Instant};

/// By how many far shards outnumber near ones where the peer goes on there.
const MAJORITY: u32 = 16;
/// The same when none has arrived for [`PAUSE`].
const AFTER_PAUSE: u32 = 2;
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two far shards.
const MAX_GAP: Duration = Duration::from_secs(1);

/// Evidence for a jump of the seqid.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JumpDetector {
    /// When a shard arrived last that is near those before.
    near: Option<Instant>,
    /// The latest far shard, its arrival, and by how many far ones outnumber near ones.
    far: Option<(u32, Instant, u32)>,
}

impl JumpDetector {
    /// A shard near those before arrived.
    pub(super) fn on_near(&mut self, now: Instant) {
        self.near = Some(now);
        self.far = self.far.and_then(|(seqid, at, count)| {
            let left = count.checked_sub(1).filter(|left| *left > 0)?;
            Some((seqid, at, left))
        });
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
        let jumps = count >= if paused { AFTER_PAUSE } else { MAJORITY };
        if jumps {
            (self.near, self.far) = (Some(now), None);
        } else {
            self.far = Some((seqid, now, count));
        }
        jumps
    }
}
