//! Late ACKs: send times of recently acknowledged segments, for RTT samples and spurious
//! retransmission detection (Eifel, RFC 3522).
//!
//! A cumulative `una` removes segments from [`SentSegments`](super::sent_segments::SentSegments)
//! before their own ACKs arrive. Such an ACK still gives an RTT sample, and its echoed `ts` shows
//! which transmission arrived. kcp-go ignores it (`parse_ack` returns below `snd_una`).

use std::collections::VecDeque;

use crate::core::clock::{Clock, Micros};
use crate::core::recovery::sent_segments::SentSegment;
use crate::core::seq::Ts;
use crate::util::queue;

/// Segments kept.
const CAPACITY: usize = 64;
/// Segments still kept after [`AckedHistory::release_memory`].
const CAPACITY_IDLE: usize = 8;

/// Transmission times of an acknowledged segment.
#[derive(Clone, Copy, Debug)]
struct SentTimes {
    first_ts: Ts,
    last_ts: Ts,
    /// Time of the last transmission, microseconds modulo 2^32.
    last_sent: u32,
    /// [`SentSegment::xmit_seq`] modulo 2^32.
    xmit_seq: u32,
    /// An ACK of its own was received.
    acked: bool,
    /// Retransmitted, and removed by `una` without an ACK of its own: the next late ACK shows that
    /// the retransmission was spurious. False after that ACK.
    unjudged_retransmit: bool,
    /// The retransmission left in several copies: only an ACK of the original shows that.
    copied: bool,
    /// `una` came too early for the retransmission.
    judged: bool,
}

/// What a late ACK acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateAck {
    /// The segment was evicted from the history.
    Stale,
    /// The segment was never sent, or not with this timestamp.
    Invalid,
    /// Acknowledges the last transmission. `rtt` in microseconds, `None` for a duplicate ACK;
    /// `xmit_seq` modulo 2^32.
    /// `spurious`: the segment was retransmitted, and `una` covered it before an ACK of its own
    /// arrived.
    LastTransmission { rtt: Option<u64>, xmit_seq: u32, spurious: bool },
    /// Acknowledges an earlier transmission. `spurious`: the retransmission after it was not
    /// needed (RFC 3522 3.2). It left `apart` milliseconds before the last. `judged`: that was known
    /// when `una` covered it.
    EarlierTransmission { spurious: bool, apart: u64, judged: bool },
}

/// The latest [`CAPACITY`] segments that a cumulative acknowledgement removed, oldest first.
#[derive(Debug, Default)]
pub(crate) struct AckedHistory {
    times: VecDeque<SentTimes>,
    /// At least one segment was dropped from `times`. Then an ACK of an unknown segment is stale
    /// instead of invalid.
    evicted: bool,
}

impl AckedHistory {
    /// Adds a segment that `una` removes. `copied`: its retransmission left in several copies, so
    /// an ACK of an earlier transmission may be one of these. `judged`: it is known to be spurious.
    pub(crate) fn remember(
        &mut self,
        clock: &Clock,
        segment: &SentSegment,
        (copied, judged): (bool, bool),
    ) {
        if self.times.len() == CAPACITY {
            self.times.pop_front();
            self.evicted = true;
        }
        let times = SentTimes {
            first_ts: segment.first_ts,
            last_ts: clock.timestamp(segment.last_sent),
            last_sent: low_half(segment.last_sent),
            xmit_seq: segment.xmit_seq_low(),
            acked: segment.acked,
            unjudged_retransmit: segment.retransmitted && !segment.acked,
            copied,
            judged,
        };
        queue::push(&mut self.times, times);
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.times.capacity() > CAPACITY_IDLE
    }

    /// Forgets all but the latest [`CAPACITY_IDLE`] segments, for an idle connection. Later ACKs
    /// of the forgotten ones are stale, not invalid.
    pub(crate) fn release_memory(&mut self) {
        let surplus = self.times.len().saturating_sub(CAPACITY_IDLE);
        self.evicted |= surplus > 0;
        self.times.drain(..surplus);
        self.times.shrink_to_fit();
    }

    fn index(&self, age: u32) -> Option<usize> {
        self.times.len().checked_sub(usize::try_from(age).ok()?)
    }

    /// First and last `ts` of the segment `age` numbers before `una`.
    pub(crate) fn timestamps(&self, age: u32) -> Option<(Ts, Ts)> {
        self.times.get(self.index(age)?).map(|times| (times.first_ts, times.last_ts))
    }

    /// Judges an ACK with timestamp `ts` of the segment `age` numbers before `una`.
    pub(crate) fn on_ack(&mut self, now: Micros, age: u32, ts: Ts) -> LateAck {
        let unknown = if self.evicted { LateAck::Stale } else { LateAck::Invalid };
        let index = self.index(age);
        let Some(times) = index.and_then(|index| self.times.get_mut(index)) else { return unknown };
        if ts.since(times.first_ts) < 0 || ts.since(times.last_ts) > 0 {
            return LateAck::Invalid;
        }
        let judges = !times.copied || (ts == times.first_ts && ts != times.last_ts);
        let spurious = judges && std::mem::take(&mut times.unjudged_retransmit);
        if ts != times.last_ts {
            let apart = u64::from(times.last_ts.since(ts).unsigned_abs());
            return LateAck::EarlierTransmission { spurious, apart, judged: times.judged };
        }
        // A path may duplicate an ACK much later, so only the first one is an RTT sample.
        let is_first = !std::mem::replace(&mut times.acked, true);
        let rtt = is_first.then(|| u64::from(low_half(now).wrapping_sub(times.last_sent)));
        LateAck::LastTransmission { rtt, xmit_seq: times.xmit_seq, spurious }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "differences of up to an hour are exact")]
fn low_half(time: Micros) -> u32 {
    time.0 as u32
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a clock needs an instant to start from")]
mod tests {
    use super::*;
    use crate::core::recovery::sent_segments::SentSegments;
    use crate::core::send::send_buffer::BufferRange;
    use crate::core::seq::Sn;

    #[test]
    fn late_ack_after_release_memory_is_stale_not_invalid() {
        let clock = Clock::new(std::time::Instant::now(), 0);
        let (mut sent, mut history) = (SentSegments::new(Sn(0)), AckedHistory::default());
        for ms in 0..20 {
            let now = Micros(ms * 1_000);
            sent.push(now, clock.timestamp(now), BufferRange::default(), 0);
            history.remember(&clock, &sent.pop_acked().unwrap(), (false, false));
        }
        assert!(history.has_reclaimable_memory());
        let now = Micros(50_000);
        assert_eq!(
            history.on_ack(now, 21, Ts(0)),
            LateAck::Invalid,
            "no such segment was ever sent"
        );
        history.release_memory();
        assert!(!history.has_reclaimable_memory());
        assert_eq!(history.on_ack(now, 9, Ts(11)), LateAck::Stale);
        let rtt = Some(38_000);
        assert_eq!(
            history.on_ack(now, 8, Ts(12)),
            LateAck::LastTransmission { rtt, xmit_seq: 13, spurious: false }
        );
        assert_eq!(
            history.on_ack(now, 1, Ts(18)),
            LateAck::Invalid,
            "not a timestamp of its transmissions"
        );
    }
}
