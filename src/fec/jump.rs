//! Detects that the peer continues at distant seqids: it restarted, or many packets were lost.
//!
//! A forged shard must not end the recovery of regular ones. So far shards have to outnumber near
//! ones by a majority, or by two if no near shard has arrived for a while.

use std::time::{Duration, Instant};

/// Far shards in excess of near ones that prove a jump.
const MAJORITY: u32 = 16;
/// The same if no near shard has arrived for [`PAUSE`].
const AFTER_PAUSE: u32 = 2;
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two far shards.
const MAX_GAP: Duration = Duration::from_secs(1);

/// Evidence for a jump of the seqid.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JumpDetector {
    /// When a near shard last arrived.
    near: Option<Instant>,
    /// The latest far shard, its arrival, and the excess of far shards over near ones.
    far: Option<(u32, Instant, u32)>,
}

impl JumpDetector {
    /// Notes a shard near the current seqids.
    pub(super) fn on_near(&mut self, now: Instant) {
        self.near = Some(now);
        self.far = self.far.and_then(|(seqid, at, count)| {
            let left = count.checked_sub(1).filter(|left| *left > 0)?;
            Some((seqid, at, left))
        });
    }

    /// Notes a shard far from the current seqids; `is_close` says whether an earlier far shard with
    /// this seqid is near it. Returns whether the peer continues here.
    pub(super) fn on_far(
        &mut self,
        now: Instant,
        seqid: u32,
        is_close: impl FnOnce(u32) -> bool,
    ) -> bool {
        let passed = |since: Instant| now.saturating_duration_since(since);
        let before = self.far.filter(|(other, at, _)| passed(*at) <= MAX_GAP && is_close(*other));
        let count = match before {
            // A repeated seqid is no further evidence.
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
