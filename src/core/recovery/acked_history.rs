//! What is remembered of the latest segments that a cumulative acknowledgement released: when they
//! were sent, for acknowledgements of their own that arrive behind it.

use std::collections::VecDeque;

use crate::core::clock::{Clock, Micros};
use crate::core::recovery::sent_segments::SentSegment;
use crate::core::seq::Ts;
use crate::util::queue;

/// How many are remembered.
const CAPACITY: usize = 64;
/// And how many of them while nothing has been sent for a while.
const CAPACITY_IDLE: usize = 8;

/// When a released segment was sent.
#[derive(Clone, Copy, Debug)]
struct Times {
    first: Ts,
    last: Ts,
    /// The last time in microseconds, lower half.
    sent: u32,
    /// Its acknowledgement was seen.
    acked: bool,
    /// It was sent more than once, the last time without being acknowledged one by one.
    repeated: bool,
}

/// What an acknowledgement of a released segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateAck {
    /// Too old to tell.
    Stale,
    /// It was never sent, or not then.
    Invalid,
    /// Its last transmission arrived, after so many microseconds if this is news. `repeated`: it was
    /// a repetition that nobody needed.
    Last { rtt: Option<u64>, repeated: bool },
    /// An earlier one did. `repeated`: the repetition after it was not needed.
    EarlierTransmission { repeated: bool },
}

#[derive(Debug, Default)]
pub(crate) struct AckedHistory {
    times: VecDeque<Times>,
    /// There were more, which are not remembered.
    evicted: bool,
}

impl AckedHistory {
    pub(crate) fn remember(&mut self, clock: &Clock, segment: &SentSegment) {
        if self.times.len() == CAPACITY {
            self.times.pop_front();
            self.evicted = true;
        }
        let times = Times {
            first: segment.first_ts,
            last: clock.timestamp(segment.last_sent),
            sent: low_half(segment.last_sent),
            acked: segment.acked,
            repeated: segment.retransmitted && !segment.acked,
        };
        queue::push(&mut self.times, times);
    }

    pub(crate) fn holds_memory(&self) -> bool {
        self.times.capacity() > CAPACITY_IDLE
    }

    /// Forgets all but the latest: whatever is still under way of the others is late indeed.
    pub(crate) fn release_memory(&mut self) {
        let surplus = self.times.len().saturating_sub(CAPACITY_IDLE);
        self.evicted |= surplus > 0;
        self.times.drain(..surplus);
        self.times.shrink_to_fit();
    }

    fn place(&self, age: u32) -> Option<usize> {
        self.times.len().checked_sub(usize::try_from(age).ok()?)
    }

    /// The first and the last stamp of the segment released `age` segments ago.
    pub(crate) fn stamps(&self, age: u32) -> Option<(Ts, Ts)> {
        self.times.get(self.place(age)?).map(|times| (times.first, times.last))
    }

    /// An acknowledgement, with its stamp, of the segment released `age` segments ago.
    pub(crate) fn on_ack(&mut self, now: Micros, age: u32, ts: Ts) -> LateAck {
        let unknown = if self.evicted { LateAck::Stale } else { LateAck::Invalid };
        let place = self.place(age);
        let Some(times) = place.and_then(|place| self.times.get_mut(place)) else { return unknown };
        if ts.since(times.first) < 0 || ts.since(times.last) > 0 {
            return LateAck::Invalid;
        }
        let repeated = std::mem::take(&mut times.repeated);
        if ts != times.last {
            return LateAck::EarlierTransmission { repeated };
        }
        // A path that repeats datagrams much later says nothing about now.
        let news = !std::mem::replace(&mut times.acked, true);
        let rtt = news.then(|| u64::from(low_half(now).wrapping_sub(times.sent)));
        LateAck::Last { rtt, repeated }
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
    fn a_rest_leaves_the_latest_and_judges_nobody_by_the_others() {
        let clock = Clock::new(std::time::Instant::now(), 0);
        let (mut flight, mut released) = (SentSegments::new(Sn(0)), AckedHistory::default());
        for ms in 0..20 {
            let now = Micros(ms * 1_000);
            flight.push(now, clock.timestamp(now), BufferRange::default(), 0);
            released.remember(&clock, &flight.pop_acked().unwrap());
        }
        assert!(released.holds_memory());
        let now = Micros(50_000);
        assert_eq!(released.on_ack(now, 21, Ts(0)), LateAck::Invalid, "there was no such segment");
        released.release_memory();
        assert!(!released.holds_memory());
        assert_eq!(released.on_ack(now, 9, Ts(11)), LateAck::Stale);
        let rtt = Some(38_000);
        assert_eq!(released.on_ack(now, 8, Ts(12)), LateAck::Last { rtt, repeated: false });
        assert_eq!(released.on_ack(now, 1, Ts(18)), LateAck::Invalid, "it left at another time");
    }
}
