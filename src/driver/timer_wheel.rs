//! Timer wheel of the connections of one socket: a hashed hierarchical timing wheel (Varghese and Lauck,
//! 1987) with two levels.
//!
//! The first level has a bucket for each of the next 1,024 milliseconds, the second for each of the next 64
//! seconds. Later deadlines are in one list, which is sorted into the levels every 64 seconds. A bucket is a
//! doubly linked list through the entries, and each entry keeps its exact deadline: buckets never round. An
//! ordered map is the reference in the tests.
//!
//! A wheel of up to [`FEW`] slots compares deadlines one by one, without buckets, which take 8.5 KiB.
//!
//! The wheel has no clock: [`TimerWheel::expire`] gets the time. It skips empty buckets 64 at a time, so an
//! idle hour or a jump of days costs nothing.

use std::time::{Duration, Instant};

use crate::util::earliest;

#[cfg(test)]
mod tests;

/// Nanoseconds of a bucket in the first level. Times are nanoseconds since the wheel's origin.
const TICK: u64 = 1_000_000;
/// Nanoseconds of a bucket in the second level.
const SECOND: u64 = 1_000 * TICK;

/// Nanoseconds between the instants that coalesced deadlines are moved to (as Linux timer slack).
const COALESCE_INTERVAL: u64 = 100 * TICK;
/// Shortest wait in nanoseconds that is coalesced: coalescing then adds at most a twentieth to it.
const MIN_COALESCED_WAIT: u64 = 2 * SECOND;

/// Buckets of the first level. More than 1,000, so that the entries of one bucket of the second level always
/// fit into the first.
const TICKS: u64 = 1_024;
/// Buckets of the second level, and seconds between two sorts of the list beyond both levels.
const SECONDS: u64 = 64;

/// Index of the first bucket of the second level.
const FIRST_SECOND: u16 = 1_024;
/// Index of the list of deadlines beyond both levels.
const BEYOND: u16 = FIRST_SECOND + 64;
/// The `bucket` of an entry that is not armed.
const IDLE: u16 = u16::MAX;

/// Slots that need no buckets. An endpoint of `KcpStream::connect` has one connection.
const FEW: usize = 16;
/// The `bucket` of an armed entry while there are no buckets.
const NO_BUCKET: u16 = BEYOND + 1;

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    deadline: u64,
    prev: u32,
    next: u32,
    /// Index of the bucket that lists the entry, or `IDLE`.
    bucket: u16,
}

impl Entry {
    const IDLE: Self = Self { deadline: 0, prev: NONE, next: NONE, bucket: IDLE };
}

/// The wheel. One entry per slot of the connection table, 24 bytes each.
#[derive(Debug)]
pub(super) struct TimerWheel {
    origin: Instant,
    /// The millisecond of the latest [`Self::expire`] with buckets. Invariant: no entry is in a bucket of an
    /// earlier one.
    tick: u64,
    entries: Vec<Entry>,
    /// First entry of each bucket's list. Empty until a slot beyond [`FEW`] is armed, as is `earliest`.
    heads: Vec<u32>,
    /// Per bucket of the levels, nanoseconds from its start to its earliest deadline, or less: an entry that
    /// leaves does not raise it.
    earliest: Vec<u32>,
    /// Nanoseconds from the origin to the earliest deadline of the list beyond both levels, or less.
    earliest_beyond: u64,
    /// Bitmap of the buckets of the first level that have entries.
    ticks: [u64; 16],
    /// Bitmap of the buckets of the second level that have entries.
    seconds: u64,
}

impl TimerWheel {
    /// An empty wheel that stands at `origin`.
    pub(super) fn new(origin: Instant) -> Self {
        Self {
            origin,
            tick: 0,
            entries: Vec::new(),
            heads: Vec::new(),
            earliest: Vec::new(),
            earliest_beyond: u64::MAX,
            ticks: [0; 16],
            seconds: 0,
        }
    }

    /// Sets the deadline of `slot`; `None` disarms its timer.
    ///
    /// A deadline that has passed is due at once. Memory grows to the largest slot ever armed.
    pub(super) fn set(&mut self, slot: usize, deadline: Option<Instant>) {
        let Ok(index) = u32::try_from(slot) else {
            debug_assert!(false, "slot {slot} is beyond any connection table");
            return;
        };
        if slot >= self.entries.len() {
            if deadline.is_none() {
                return;
            }
            self.entries.resize(slot + 1, Entry::IDLE);
            if slot >= FEW && !self.has_buckets() {
                self.add_buckets();
            }
        }
        let Some(deadline) = deadline else {
            self.unlink(index);
            return;
        };
        let deadline = self.nanos(deadline);
        // Most turns leave the deadline of a connection as it is.
        if self.entries[slot].deadline != deadline || self.entries[slot].bucket == IDLE {
            self.unlink(index);
            self.link(index, deadline);
        }
    }

    /// Moves a far deadline that need not be exact to the next of ten common instants a second (timer
    /// coalescing). Thousands of idle connections then wake their driver at most ten times a second, and
    /// their pings leave in few batches (tests/scalability.rs).
    pub(super) fn coalesced_deadline(&self, now: Instant, at: Instant) -> Instant {
        let nanos = self.nanos(at);
        if nanos.saturating_sub(self.nanos(now)) < MIN_COALESCED_WAIT {
            return at;
        }
        let coalesced = nanos.checked_next_multiple_of(COALESCE_INTERVAL).unwrap_or(nanos);
        at.checked_add(Duration::from_nanos(coalesced - nanos)).unwrap_or(at)
    }

    /// When to call [`Self::expire`] next; `None` when nothing is armed.
    ///
    /// Never later than the earliest deadline, except for a deadline that had passed when it was set: then it
    /// is the instant of the last `expire`, truncated to milliseconds. After an entry was disarmed it may be
    /// earlier once; that call expires nothing.
    pub(super) fn next(&self) -> Option<Instant> {
        if !self.has_buckets() {
            let armed = self.entries.iter().filter(|entry| entry.bucket != IDLE);
            let nanos = armed.map(|entry| entry.deadline).min()?;
            return self.origin.checked_add(Duration::from_nanos(nanos));
        }
        let tick = self
            .first_tick()
            .map(|tick| tick * TICK + u64::from(self.earliest[usize::from(tick_bucket(tick))]));
        let second = self.first_second(self.tick / 1_000).map(|second| {
            second * SECOND + u64::from(self.earliest[usize::from(second_bucket(second))])
        });
        let beyond = (self.heads[usize::from(BEYOND)] != NONE).then_some(self.earliest_beyond);
        let nanos = earliest([tick, second, beyond])?;
        self.origin.checked_add(Duration::from_nanos(nanos))
    }

    /// Disarms every entry whose deadline is not after `now`, and appends its slot to `expired`, in no
    /// particular order. `now` may be earlier than in the last call.
    pub(super) fn expire(&mut self, now: Instant, expired: &mut Vec<usize>) {
        let now = self.nanos(now);
        if !self.has_buckets() {
            for (slot, entry) in self.entries.iter_mut().enumerate() {
                if entry.bucket != IDLE && entry.deadline <= now {
                    entry.bucket = IDLE;
                    expired.push(slot);
                }
            }
            return;
        }
        if now / TICK > self.tick {
            self.advance(now, expired);
        }
        // Entries of the current millisecond that are due.
        let current = tick_bucket(self.tick);
        let earliest = u64::from(self.earliest[usize::from(current)]);
        let elapsed = now.saturating_sub(self.tick * TICK);
        if self.heads[usize::from(current)] != NONE && earliest <= elapsed {
            self.sort(current, now, expired);
        }
    }

    fn has_buckets(&self) -> bool {
        !self.heads.is_empty()
    }

    /// Adds the buckets, and puts armed entries into them.
    fn add_buckets(&mut self) {
        self.heads = vec![NONE; usize::from(BEYOND) + 1];
        self.earliest = vec![0; usize::from(BEYOND)];
        for index in 0..self.entries.len() {
            let Entry { deadline, bucket, .. } = self.entries[index];
            // The slots fit, see `set`.
            if let Some(index) = u32::try_from(index).ok().filter(|_| bucket != IDLE) {
                self.link(index, deadline);
            }
        }
    }

    /// Moves the wheel to the millisecond of `now`, which is later than the current one.
    fn advance(&mut self, now: u64, expired: &mut Vec<usize>) {
        let (tick, second, last_second) = (now / TICK, now / SECOND, self.tick / 1_000);
        // Past milliseconds: all of their entries are due.
        while let Some(over) = self.first_tick().filter(|over| *over < tick) {
            self.tick = over;
            self.sort(tick_bucket(over), now, expired);
        }
        self.tick = tick;
        // Past seconds and the current second.
        while let Some(begun) = self.first_second(last_second).filter(|begun| *begun <= second) {
            self.sort(second_bucket(begun), now, expired);
        }
        // A deadline beyond was at least 65 seconds away when it was set, so a sort every 64 seconds is in
        // time.
        if second / SECONDS != last_second / SECONDS {
            self.earliest_beyond = u64::MAX;
            self.sort(BEYOND, now, expired);
        }
    }

    /// Empties a bucket: due entries go to `expired`, the others to their current bucket.
    fn sort(&mut self, bucket: u16, now: u64, expired: &mut Vec<usize>) {
        let mut next = std::mem::replace(&mut self.heads[usize::from(bucket)], NONE);
        self.set_occupied(bucket, false);
        while next != NONE {
            let index = next;
            let entry = &mut self.entries[index as usize];
            next = entry.next;
            entry.bucket = IDLE;
            let deadline = entry.deadline;
            if deadline <= now {
                expired.push(index as usize);
            } else {
                self.link(index, deadline);
            }
        }
    }

    /// Puts an entry that is in no list to the front of the list for its deadline.
    fn link(&mut self, index: u32, deadline: u64) {
        if !self.has_buckets() {
            self.entries[index as usize] = Entry { deadline, bucket: NO_BUCKET, ..Entry::IDLE };
            return;
        }
        let (bucket, start) = self.place(deadline);
        let head = std::mem::replace(&mut self.heads[usize::from(bucket)], index);
        self.entries[index as usize] = Entry { deadline, prev: NONE, next: head, bucket };
        if head != NONE {
            self.entries[head as usize].prev = index;
        }
        if bucket == BEYOND {
            self.earliest_beyond = self.earliest_beyond.min(deadline);
            return;
        }
        // A bucket spans a second at most, so this fits.
        let offset = u32::try_from(deadline.saturating_sub(start)).unwrap_or(0);
        let earliest = &mut self.earliest[usize::from(bucket)];
        *earliest = if head == NONE { offset } else { offset.min(*earliest) };
        self.set_occupied(bucket, true);
    }

    /// Takes an entry out of its list, if it is in one.
    fn unlink(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let Entry { prev, next, bucket, .. } = *entry;
        if bucket == IDLE {
            return;
        }
        entry.bucket = IDLE;
        if bucket == NO_BUCKET {
            return;
        }
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
        if prev != NONE {
            self.entries[prev as usize].next = next;
            return;
        }
        self.heads[usize::from(bucket)] = next;
        if next == NONE {
            self.set_occupied(bucket, false);
        }
        if next == NONE && bucket == BEYOND {
            self.earliest_beyond = u64::MAX;
        }
    }

    /// The bucket for a deadline, and when it starts.
    fn place(&self, deadline: u64) -> (u16, u64) {
        let tick = self.tick.max(deadline / TICK);
        if tick - self.tick < TICKS {
            return (tick_bucket(tick), tick * TICK);
        }
        // At least one second away, and at most 64: no two seconds share a bucket.
        let second = deadline / SECOND;
        if second - self.tick / 1_000 <= SECONDS {
            return (second_bucket(second), second * SECOND);
        }
        (BEYOND, 0)
    }

    /// The first millisecond with entries, from the current one on.
    fn first_tick(&self) -> Option<u64> {
        let (word, bit) = split(tick_bucket(self.tick));
        // The first word comes twice: the bits from the current millisecond on, and last the bits before it.
        (0..=self.ticks.len()).find_map(|step| {
            let at = (word + step) % self.ticks.len();
            let wanted = match step {
                0 => u64::MAX << bit,
                16 => !(u64::MAX << bit),
                _ => u64::MAX,
            };
            let bits = self.ticks[at] & wanted;
            let skipped = (step * 64) as u64 + u64::from(bits.trailing_zeros());
            (bits != 0).then(|| self.tick + skipped - u64::from(bit))
        })
    }

    /// The first second with entries after `second`.
    fn first_second(&self, second: u64) -> Option<u64> {
        let (_, bit) = split(second_bucket(second + 1));
        let bits = self.seconds.rotate_right(bit);
        (bits != 0).then(|| second + 1 + u64::from(bits.trailing_zeros()))
    }

    fn set_occupied(&mut self, bucket: u16, occupied: bool) {
        let (word, bit) = split(bucket);
        let word = match bucket {
            BEYOND => return,
            FIRST_SECOND.. => &mut self.seconds,
            _ => &mut self.ticks[word],
        };
        *word = if occupied { *word | 1 << bit } else { *word & !(1 << bit) };
    }

    /// Nanoseconds from the origin: 584 years at most, 0 for instants before it.
    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

fn tick_bucket(tick: u64) -> u16 {
    u16::try_from(tick % TICKS).unwrap_or(0)
}

fn second_bucket(second: u64) -> u16 {
    FIRST_SECOND + u16::try_from(second % SECONDS).unwrap_or(0)
}

/// Word and bit of a bucket in the bitmap of its level.
fn split(bucket: u16) -> (usize, u32) {
    (usize::from(bucket / 64), u32::from(bucket % 64))
}
