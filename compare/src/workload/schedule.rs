//! When each message of a sender is due.

use std::time::Duration;

/// Message n is due at `start + n * every`, however late those before it left: a sender that was
/// held up does not drift, and the wait of its messages counts (no coordinated omission).
#[derive(Debug)]
pub(crate) struct Schedule {
    start: Duration,
    every: Duration,
    /// At least 1.
    count: u64,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) number: u64,
    pub(crate) at: Duration,
    pub(crate) last: bool,
}

/// Messages that are due before `time` is over: the first at 0.
pub(crate) fn count(time: Duration, every: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(every.as_nanos().max(1))).unwrap_or(u64::MAX).max(1)
}

impl Schedule {
    /// For as long as `time`, counted from `start` of any clock.
    pub(crate) fn new(start: Duration, every: Duration, time: Duration) -> Self {
        Self { start, every, count: count(time, every), next: 0 }
    }
}

impl Iterator for Schedule {
    type Item = Due;

    fn next(&mut self) -> Option<Due> {
        let number = self.next;
        if number == self.count {
            return None;
        }
        self.next += 1;
        let nanos = self.every.as_nanos() * u128::from(number);
        let offset = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Some(Due { number, at: self.start + offset, last: self.next == self.count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);
    const EVERY: Duration = Duration::from_millis(10);

    #[test]
    fn schedule_covers_its_time_and_ends_with_the_last() {
        let all: Vec<_> = Schedule::new(START, EVERY, Duration::from_millis(35)).collect();
        let offsets: Vec<_> = all.iter().map(|due| (due.at - START).as_millis()).collect();
        assert_eq!(offsets, [0, 10, 20, 30]);
        assert_eq!(all.iter().map(|due| due.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(all.iter().map(|due| due.last).collect::<Vec<_>>(), [false, false, false, true]);
        // A message that would be due at the very end is left out, and there is always one.
        assert_eq!(count(Duration::from_secs(60), EVERY), 6_000);
        assert_eq!(count(Duration::from_millis(1), EVERY), 1);
    }

    #[test]
    fn stalled_sender_catches_up_with_scheduled_timestamps() {
        // Sending takes no time but for message 2, which is held up for 25 ms.
        let mut now = START;
        let mut sent = Vec::new();
        for due in Schedule::new(START, EVERY, Duration::from_millis(80)) {
            now = now.max(due.at);
            sent.push(((due.at - START).as_millis(), (now - due.at).as_millis()));
            if due.number == 2 {
                now += Duration::from_millis(25);
            }
        }
        let expected = [(0, 0), (10, 0), (20, 0), (30, 15), (40, 5), (50, 0), (60, 0), (70, 0)];
        assert_eq!(sent, expected, "timestamp and lateness of each message, in milliseconds");
    }
}
