//! Recorded networks in place of a rate and a delay.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kcpx::testkit::trace::{Cursor, DelayTrace, Trace};
use serde::Serialize;

use super::as_seconds;

/// A recorded network in one direction. Its time counts from the same moment as the time of a
/// [`Step`](crate::Step). Steps do not change it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replay {
    /// Takes the place of [`Conditions::bottleneck`](crate::Conditions::bottleneck), which must be
    /// `None` at all times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateReplay>,
    /// Takes the place of [`Conditions::delay`](crate::Conditions::delay).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayReplay>,
}

/// A recorded bottleneck with a queue that drops at its tail.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateReplay {
    /// Its file, for reports.
    pub file: String,
    /// When packets may leave. Whole IP packets count.
    #[serde(skip)]
    pub trace: Trace,
    /// How much of the trace is over at the start.
    #[serde(rename = "offset_s", serialize_with = "as_seconds")]
    pub offset: Duration,
    /// Packets that it holds at most, with the one being sent; at least 1.
    pub queue: usize,
}

/// A recorded one-way delay. A packet meets the delay of the moment when it leaves the bottleneck,
/// and does not overtake those before it when the delay falls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DelayReplay {
    /// Its file, for reports.
    pub file: String,
    /// One delay for each 10 ms.
    #[serde(skip)]
    pub delays: DelayTrace,
    /// How much of the trace is over at the start.
    #[serde(rename = "offset_s", serialize_with = "as_seconds")]
    pub offset: Duration,
}

impl RateReplay {
    /// Packets that the queue of a recorded bottleneck holds where nothing else is asked for.
    pub const QUEUE: usize = 300;

    /// Reads a trace in mahimahi's format: each line is a millisecond, from 0 on and sorted, at which
    /// 1,500 bytes may leave; the trace begins again after its last line.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line of it is wrong.
    pub fn read(file: &Path, offset: Duration, queue: usize) -> anyhow::Result<Self> {
        let trace = Trace::parse(&text(file)?).with_context(|| file.display().to_string())?;
        Ok(Self { file: file.display().to_string(), trace, offset, queue })
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor::new(self.trace.clone().with_offset(millis(self.offset)))
    }
}

impl DelayReplay {
    /// Reads a trace of one-way delays: each line is a delay in milliseconds, for 10 ms; the trace
    /// begins again after its last line.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line of it is wrong.
    pub fn read(file: &Path, offset: Duration) -> anyhow::Result<Self> {
        let delays = DelayTrace::parse(&text(file)?).with_context(|| file.display().to_string())?;
        Ok(Self { file: file.display().to_string(), delays, offset })
    }

    pub(super) fn delays(&self) -> DelayTrace {
        self.delays.clone().with_offset(millis(self.offset))
    }
}

impl Replay {
    pub(super) fn is_empty(&self) -> bool {
        self.rate.is_none() && self.delay.is_none()
    }

    pub(super) fn validate(&self) -> anyhow::Result<()> {
        ensure!(
            self.rate.as_ref().is_none_or(|rate| rate.queue > 0),
            "queue must be at least 1 packet, got 0"
        );
        Ok(())
    }
}

fn text(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file)
        .with_context(|| format!("cannot read {}: give a trace in plain text", file.display()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::link::tests::{MS, numbered, pass};
    use crate::link::{Bottleneck, Conditions, Link, Schedule, Step};

    use super::*;

    fn rate(text: &str, queue: usize) -> Option<RateReplay> {
        let trace = Trace::parse(text).expect("a trace");
        Some(RateReplay { file: "made".into(), trace, offset: Duration::ZERO, queue })
    }

    fn delay(text: &str) -> Option<DelayReplay> {
        let delays = DelayTrace::parse(text).expect("a trace");
        Some(DelayReplay { file: "made".into(), delays, offset: Duration::ZERO })
    }

    fn schedule(rate: Option<RateReplay>, delay: Option<DelayReplay>) -> Schedule {
        let initial = Conditions { delay: Duration::ZERO, ..Conditions::default() };
        Schedule { initial, replay: Replay { rate, delay }, ..Schedule::default() }
    }

    fn times(schedule: Schedule, count: u32, gap: Duration) -> Vec<Duration> {
        let mut link = Link::new(schedule, 1);
        pass(&mut link, count, gap).into_iter().map(|(due, _)| due).collect()
    }

    #[test]
    fn packets_leave_at_the_opportunities_of_the_trace() {
        // 15 packets of 100 bytes in each opportunity.
        let burst = times(schedule(rate("2\n2\n7", 100), None), 60, Duration::ZERO);
        let expected = [(2, 30), (7, 15), (9, 15)].map(|(ms, count)| vec![MS * ms; count]);
        assert_eq!(burst, expected.concat());
        let slow = times(schedule(rate("2\n2\n7", 100), None), 4, 2 * MS);
        assert_eq!(slow, [2, 7, 7, 7].map(|ms| MS * ms));
    }

    #[test]
    fn queue_of_a_trace_drops_its_tail_and_has_its_waits() {
        let mut link = Link::new(schedule(rate("5", 20), None), 1);
        pass(&mut link, 30, Duration::ZERO);
        let counts = link.counts();
        assert_eq!((counts.queue_dropped, counts.delivered), (10, 20));
        let delay = counts.queue_delay.expect("packets that came to the bottleneck");
        // 15 wait 5 ms, the others 10 ms.
        assert!(delay.p50 - 5 * MS < MS / 100 && delay.p95 == 10 * MS, "{delay:?}");
        link.push(5 * MS, &numbered(0));
        assert_eq!(link.counts().queue_dropped, 10, "its first packets have left");
    }

    #[test]
    fn trace_counts_from_the_start_and_its_offset() {
        let mut replay = rate("2\n7", 100);
        let mut link = Link::new(schedule(replay.clone(), None), 1);
        link.set_start(30 * MS + MS / 3);
        link.push(30 * MS + MS / 3, &numbered(0));
        assert_eq!(link.next_due(), Some(32 * MS + MS / 3));
        replay.as_mut().expect("a trace").offset = 4 * MS;
        assert_eq!(times(schedule(replay, None), 2, 3 * MS), [3 * MS, 5 * MS]);
    }

    #[test]
    fn recorded_delay_falls_without_reordering() {
        let schedule = schedule(None, delay("30\n5"));
        let expected: Vec<_> = (30..40).chain([39; 5]).map(|ms| MS * ms).collect();
        assert_eq!(times(schedule, 15, MS), expected);
    }

    #[test]
    fn what_a_trace_excludes_is_rejected() {
        let bottleneck = Some(Bottleneck { rate_mbit: 5.0, queue: 5 });
        let limited = Conditions { bottleneck, ..Conditions::default() };
        let good = schedule(rate("5", 20), delay("5"));
        good.validate().expect("a trace alone");
        let step = Step { at: MS, conditions: limited };
        for (bad, reason) in [
            (Schedule { initial: limited, ..good.clone() }, "exclude each other: give one of them"),
            (Schedule { steps: vec![step], ..good }, "the step at 1ms: a trace and a rate"),
            (schedule(rate("5", 0), None), "queue must be at least 1 packet, got 0"),
        ] {
            let error = format!("{:#}", bad.validate().expect_err("bad"));
            assert!(error.contains(reason), "{error}, not {reason}");
        }
    }

    #[test]
    fn report_has_the_files_and_offsets_of_traces() {
        let report = serde_json::to_value(schedule(rate("5", 20), None)).expect("JSON");
        assert_eq!(report["replay"]["rate"]["file"], "made");
        assert_eq!(report["replay"]["rate"]["queue"], 20);
        assert_eq!(report["replay"]["rate"]["offset_s"], 0.0);
        let plain = serde_json::to_value(Schedule::default()).expect("JSON");
        assert_eq!(plain.get("replay"), None);
    }
}
