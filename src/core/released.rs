//! What is remembered of the latest segments that a cumulative acknowledgement released: when they
//! were sent, for acknowledgements of their own that arrive behind it.

use std::collections::VecDeque;

use super::clock::{Clock, Time};
use super::flight::Flying;
use super::seq::Ts;

/// How many are remembered.
const REMEMBERED: usize = 64;

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
pub(super) enum Late {
    /// Too old to tell.
    Stale,
    /// It was never sent, or not then.
    Invalid,
    /// Its last transmission arrived, after so many microseconds if this is news. `repeated`: it was
    /// a repetition that nobody needed.
    Last { rtt: Option<u64>, repeated: bool },
    /// An earlier one did. `repeated`: the repetition after it was not needed.
    Earlier { repeated: bool },
}

#[derive(Debug, Default)]
pub(super) struct Released(VecDeque<Times>);

impl Released {
    pub(super) fn remember(&mut self, clock: &Clock, segment: &Flying) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Times {
            first: segment.first,
            last: clock.stamp(segment.last_sent),
            sent: low_half(segment.last_sent),
            acked: segment.acked,
            repeated: segment.repeated && !segment.acked,
        });
    }

    fn place(&self, age: u32) -> Option<usize> {
        self.0.len().checked_sub(usize::try_from(age).ok()?)
    }

    /// The first and the last stamp of the segment released `age` segments ago.
    pub(super) fn stamps(&self, age: u32) -> Option<(Ts, Ts)> {
        self.0.get(self.place(age)?).map(|times| (times.first, times.last))
    }

    /// An acknowledgement, with its stamp, of the segment released `age` segments ago.
    pub(super) fn on_ack(&mut self, now: Time, age: u32, ts: Ts) -> Late {
        // A memory that is not full holds all there ever was.
        let unknown = if self.0.len() < REMEMBERED { Late::Invalid } else { Late::Stale };
        let place = self.place(age);
        let Some(times) = place.and_then(|place| self.0.get_mut(place)) else { return unknown };
        if ts.since(times.first) < 0 || ts.since(times.last) > 0 {
            return Late::Invalid;
        }
        let repeated = std::mem::take(&mut times.repeated);
        if ts != times.last {
            return Late::Earlier { repeated };
        }
        // A path that repeats datagrams much later says nothing about now.
        let news = !std::mem::replace(&mut times.acked, true);
        let rtt = news.then(|| u64::from(low_half(now).wrapping_sub(times.sent)));
        Late::Last { rtt, repeated }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "differences of up to an hour are exact")]
fn low_half(time: Time) -> u32 {
    time.0 as u32
}
