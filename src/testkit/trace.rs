//! Recorded networks: packet opportunities and delays.
//!
//! A [`Trace`] has mahimahi's format and meaning, a [`DelayTrace`] one delay per 10 ms. Both repeat. Time
//! is an argument in microseconds, as in [`link`](super::link); `models` generates traces without a
//! recording.

mod models;

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

pub use models::Satellite;

/// Bytes per opportunity: a full-sized packet.
pub const OPPORTUNITY: u64 = 1_500;
/// Milliseconds per line of a [`DelayTrace`].
pub const DELAY_STEP_MS: u64 = 10;
/// A longer recording is a mistake, and times stay far from overflow.
const LONGEST_MS: u32 = 86_400_000;
/// Beyond this delay a packet would rather be lost.
const LONGEST_DELAY_MS: u32 = 10_000;
const MICROS: u64 = 1_000;

/// Why a text is not a trace. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TraceError {
    #[error("the file is empty: write at least one line with a number of milliseconds")]
    Empty,
    #[error("line {line} is '{text}': write one whole number of milliseconds, from 0 to {most}")]
    NoNumber { line: usize, text: String, most: u32 },
    #[error("line {line}: {ms} ms comes after {before} ms: sort the lines by number")]
    Unsorted { line: usize, ms: u32, before: u32 },
    #[error("line {line}: the trace ends at 0 ms: end it with its length, 1 ms or more")]
    NoLength { line: usize },
    #[error("line {line}: {ms} ms is too large: write at most {most} ms")]
    TooLarge { line: usize, ms: u64, most: u32 },
}

/// A mahimahi trace: each line is a millisecond at which up to 1,500 bytes may leave the queue. Equal
/// lines are several opportunities, and the trace repeats after its last line.
///
/// Clones are cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace {
    /// Opportunities in ms, sorted; the last one is the period, which is above 0.
    times: Arc<[u32]>,
    /// Position of time 0 in the trace, in ms, below the period.
    offset: u32,
}

impl Trace {
    /// Reads the text of a trace.
    ///
    /// # Errors
    ///
    /// The first invalid line, with its correction.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let times = numbers(text, LONGEST_MS)?;
        let unsorted = times.windows(2).position(|pair| pair[1] < pair[0]);
        if let Some(place) = unsorted {
            let (before, ms) = (times[place], times[place + 1]);
            return Err(TraceError::Unsorted { line: place + 2, ms, before });
        }
        match times.last() {
            None | Some(0) => Err(TraceError::NoLength { line: times.len() }),
            Some(_) => Ok(Self { times: times.into(), offset: 0 }),
        }
    }

    /// The same trace, started at this offset in milliseconds.
    #[must_use]
    pub fn with_offset(self, ms: u64) -> Self {
        let offset = (ms % u64::from(self.period())) as u32;
        Self { offset, ..self }
    }

    /// Mean rate in bytes per second.
    #[must_use]
    pub fn mean_rate(&self) -> u64 {
        self.times.len() as u64 * OPPORTUNITY * 1_000 / u64::from(self.period())
    }

    /// Longest time in µs until this number of bytes has left, for any start.
    #[must_use]
    pub fn longest(&self, bytes: u64) -> u64 {
        let len = self.times.len();
        let count = bytes.div_ceil(OPPORTUNITY) as usize;
        let at = |place: usize| {
            u64::from(self.times[place % len]) + (place / len) as u64 * u64::from(self.period())
        };
        // The worst start is just after an opportunity.
        let longest = (0..len).map(|place| at(place + count) - at(place)).max();
        longest.unwrap_or_default() * MICROS
    }

    /// Length of the trace in milliseconds.
    #[must_use]
    pub fn period(&self) -> u32 {
        self.times[self.times.len() - 1]
    }
}

/// Leaves out the opportunities: there may be a million.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, period, offset) = (self.times.len(), self.period(), self.offset);
        write!(f, "Trace({count} in {period} ms from {offset} ms)")
    }
}

/// When a packet's first and last byte leave, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    pub begins: u64,
    pub ends: u64,
}

/// The used part of a trace. Packets leave in order of arrival.
#[derive(Clone, Debug)]
pub struct Cursor {
    trace: Trace,
    /// The first opportunity not used up: its place, and the start of its lap in ms.
    place: usize,
    lap: u64,
    /// Bytes left in it, at least 1.
    left: u64,
}

impl Cursor {
    #[must_use]
    pub fn new(trace: Trace) -> Self {
        let place = trace.times.partition_point(|time| *time < trace.offset);
        Self { trace, place, lap: 0, left: OPPORTUNITY }
    }

    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// When a packet that arrives at `now` leaves (µs, never decreasing). As in mahimahi, an opportunity
    /// at the same moment is lost, as are unused ones.
    pub fn send(&mut self, now: u64, len: usize) -> Departure {
        self.skip(now);
        let begins = self.at();
        let mut rest = len as u64;
        while rest > self.left {
            rest -= self.left;
            self.advance();
        }
        let ends = self.at();
        self.left -= rest;
        if self.left == 0 {
            self.advance();
        }
        Departure { begins, ends }
    }

    /// Time of the current opportunity in µs.
    fn at(&self) -> u64 {
        (self.lap + u64::from(self.trace.times[self.place]) - u64::from(self.trace.offset)) * MICROS
    }

    fn advance(&mut self) {
        self.left = OPPORTUNITY;
        self.place += 1;
        if self.place == self.trace.times.len() {
            self.place = 0;
            self.lap += u64::from(self.trace.period());
        }
    }

    /// Drops the opportunities up to `now`.
    fn skip(&mut self, now: u64) {
        // Mostly there are few; after a pause a search is faster.
        for _ in 0..8 {
            if self.at() > now {
                return;
            }
            self.advance();
        }
        if self.at() <= now {
            let (now, period) =
                (now / MICROS + u64::from(self.trace.offset), u64::from(self.trace.period()));
            let in_lap = now % period;
            self.place = self.trace.times.partition_point(|time| u64::from(*time) <= in_lap);
            self.lap = now - in_lap;
            self.left = OPPORTUNITY;
        }
    }
}

/// One-way delays in whole milliseconds, one line per 10 ms, repeated at the end. Clones are cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct DelayTrace {
    delays: Arc<[u32]>,
    /// Position of time 0 in the trace, in ms.
    offset: u64,
}

impl DelayTrace {
    /// Reads the text of a trace.
    ///
    /// # Errors
    ///
    /// The first invalid line, with its correction.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        Ok(Self { delays: numbers(text, LONGEST_DELAY_MS)?.into(), offset: 0 })
    }

    /// The same trace, started at this offset in milliseconds.
    #[must_use]
    pub fn with_offset(self, ms: u64) -> Self {
        let offset = ms % (self.delays.len() as u64 * DELAY_STEP_MS);
        Self { offset, ..self }
    }

    /// The delay at `now`, both in µs.
    #[must_use]
    pub fn at(&self, now: u64) -> u64 {
        let step = (now / MICROS + self.offset) / DELAY_STEP_MS;
        u64::from(self.delays[(step % self.delays.len() as u64) as usize]) * MICROS
    }

    /// The longest delay in µs.
    #[must_use]
    pub fn longest(&self) -> u64 {
        u64::from(self.delays.iter().copied().max().unwrap_or_default()) * MICROS
    }
}

impl fmt::Debug for DelayTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, offset) = (self.delays.len() as u64, self.offset);
        write!(f, "DelayTrace({} ms from {offset} ms)", count * DELAY_STEP_MS)
    }
}

/// Parses one number per line, at least one.
fn numbers(text: &str, most: u32) -> Result<Vec<u32>, TraceError> {
    let number = |(line, text): (usize, &str)| {
        let (line, text) = (line + 1, text.trim());
        let ms: u64 = text.parse().map_err(|_| {
            // Invalid files may have long lines.
            let text = text.chars().take(20).collect();
            TraceError::NoNumber { line, text, most }
        })?;
        let small = u32::try_from(ms).ok().filter(|ms| *ms <= most);
        small.ok_or(TraceError::TooLarge { line, ms, most })
    };
    let numbers = text.lines().enumerate().map(number).collect::<Result<Vec<_>, _>>()?;
    if numbers.is_empty() { Err(TraceError::Empty) } else { Ok(numbers) }
}

#[cfg(test)]
mod tests;
