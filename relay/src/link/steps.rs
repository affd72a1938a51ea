//! Conditions that change at given times.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::as_seconds;
use super::conditions::{Bottleneck, Conditions};
use super::replay::Replay;

/// The conditions of one direction, in the order of time.
///
/// A packet meets the conditions of the moment when it is sent into the path, but for the rate of the
/// bottleneck: a step that changes it does so for the packets in the queue as well, in the middle of
/// a packet if need be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Schedule {
    /// The first conditions.
    #[serde(flatten)]
    pub initial: Conditions,
    /// Changes, each later than the previous one.
    pub steps: Vec<Step>,
    /// A recorded network in place of their rate or delay, at all times.
    #[serde(skip_serializing_if = "Replay::is_empty")]
    pub replay: Replay,
}

/// A change of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// When: counted from the first packet of either direction of a path, or for a
    /// [`Link`](crate::Link) alone from its start, which is 0 unless it was set. A packet sent at
    /// this very moment meets the new conditions.
    #[serde(rename = "at_s", serialize_with = "as_seconds")]
    pub at: Duration,
    /// All conditions from then on.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// The conditions of both directions. `Directions::from(conditions)` has the same for both.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Directions {
    /// Client to server.
    pub up: Schedule,
    /// Server to client.
    pub down: Schedule,
}

impl From<Conditions> for Schedule {
    fn from(initial: Conditions) -> Self {
        Self { initial, ..Self::default() }
    }
}

impl From<Conditions> for Directions {
    fn from(conditions: Conditions) -> Self {
        Schedule::from(conditions).into()
    }
}

impl From<Schedule> for Directions {
    fn from(schedule: Schedule) -> Self {
        Self { up: schedule.clone(), down: schedule }
    }
}

impl Schedule {
    /// Checks all conditions and the order of the steps.
    ///
    /// # Errors
    ///
    /// The first field that is outside its range, with the time of its step.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.replay.validate()?;
        self.validate_conditions(&self.initial)?;
        for step in &self.steps {
            let at = || format!("the step at {:?}", step.at);
            self.validate_conditions(&step.conditions).with_context(at)?;
        }
        for pair in self.steps.windows(2) {
            ensure!(
                pair[0].at < pair[1].at,
                "a step after one at {:?} must be later, got {:?}",
                pair[0].at,
                pair[1].at
            );
        }
        Ok(())
    }

    fn validate_conditions(&self, conditions: &Conditions) -> anyhow::Result<()> {
        ensure!(
            self.replay.rate.is_none() || conditions.bottleneck.is_none(),
            "a trace and a rate exclude each other: give one of them"
        );
        conditions.validate()
    }
}

impl Directions {
    /// Checks both directions.
    ///
    /// # Errors
    ///
    /// The first field that is outside its range, with its direction.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.up.validate().context("conditions from client to server")?;
        self.down.validate().context("conditions from server to client")
    }
}

/// A schedule at work: which conditions hold.
#[derive(Debug)]
pub(super) struct Phases {
    schedule: Schedule,
    /// The time that steps count from.
    start: Duration,
    /// How many steps were taken.
    taken: usize,
    losses: LossPhase,
}

/// The inputs of a process of losses in time, with the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LossPhase {
    /// How many steps were taken when these losses began.
    pub(super) index: usize,
    /// When that was.
    pub(super) since: Duration,
}

impl Phases {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self { schedule, start: Duration::ZERO, taken: 0, losses: LossPhase::default() }
    }

    pub(super) fn set_start(&mut self, start: Duration) {
        self.start = start;
        self.losses.since = start;
    }

    /// Takes the steps that have come by `now`.
    pub(super) fn advance(&mut self, now: Duration) {
        while let Some(end) = self.end_of(self.taken).filter(|end| *end <= now) {
            let Conditions { loss, burst, .. } = *self.conditions();
            self.taken += 1;
            let after = self.conditions();
            if (after.loss, after.burst) != (loss, burst) {
                self.losses = LossPhase { index: self.taken, since: end };
            }
        }
    }

    pub(super) fn conditions(&self) -> &Conditions {
        self.conditions_after(self.taken)
    }

    /// The time that steps and recordings count from.
    pub(super) fn start(&self) -> Duration {
        self.start
    }

    /// Since when losses are as they are now.
    pub(super) fn losses(&self) -> LossPhase {
        self.losses
    }

    /// The bottleneck that there is at `time`, which is not in the past, with its end, then those
    /// of later steps.
    pub(super) fn bottlenecks_from(
        &self,
        time: Duration,
    ) -> impl Iterator<Item = (Option<Bottleneck>, Option<Duration>)> {
        (self.taken..=self.schedule.steps.len())
            .map(|taken| (self.conditions_after(taken).bottleneck, self.end_of(taken)))
            .skip_while(move |(_, end)| end.is_some_and(|end| end <= time))
    }

    /// The conditions after that number of steps.
    fn conditions_after(&self, steps: usize) -> &Conditions {
        let last = steps.checked_sub(1).and_then(|last| self.schedule.steps.get(last));
        last.map_or(&self.schedule.initial, |step| &step.conditions)
    }

    /// When the conditions after that number of steps end.
    fn end_of(&self, steps: usize) -> Option<Duration> {
        self.schedule.steps.get(steps).map(|step| self.start.saturating_add(step.at))
    }
}

#[cfg(test)]
mod tests {
    use crate::link::tests::{MS, numbered, pass};
    use crate::link::{Burst, Link};

    use super::*;

    fn schedule(initial: Conditions, steps: &[(Duration, Conditions)]) -> Schedule {
        let steps = steps.iter().map(|&(at, conditions)| Step { at, conditions }).collect();
        Schedule { initial, steps, ..Schedule::default() }
    }

    fn lossy(loss: f64) -> Conditions {
        Conditions { loss, ..Conditions::default() }
    }

    /// 100 bytes take so long to send, and no time to arrive.
    fn sending_in(time: Duration) -> Conditions {
        let bottleneck = Some(Bottleneck { rate_mbit: 8e-4 / time.as_secs_f64(), queue: 100 });
        Conditions { delay: Duration::ZERO, bottleneck, ..Conditions::default() }
    }

    fn times(schedule: Schedule, count: u32) -> Vec<Duration> {
        let mut link = Link::new(schedule, 1);
        pass(&mut link, count, Duration::ZERO).into_iter().map(|(due, _)| due).collect()
    }

    #[test]
    fn steps_take_effect_exactly_at_their_time() {
        let all = schedule(lossy(0.0), &[(500 * MS, lossy(100.0)), (700 * MS, lossy(0.0))]);
        let mut link = Link::new(all.clone(), 1);
        let arrived: Vec<_> = pass(&mut link, 1_000, MS).iter().map(|(_, n)| *n).collect();
        assert_eq!(arrived, (0..500).chain(700..1_000).collect::<Vec<_>>());

        let mut link = Link::new(all, 1);
        for (now, lost) in [(499_999_999, 0), (500_000_000, 1), (699_999_999, 2), (700_000_000, 2)]
        {
            link.push(Duration::from_nanos(now), &numbered(0));
            assert_eq!(link.counts().lost, lost, "at {now} ns");
        }
    }

    #[test]
    fn steps_count_from_the_start() {
        let mut link = Link::new(schedule(lossy(0.0), &[(500 * MS, lossy(100.0))]), 1);
        link.set_start(30 * MS);
        let arrived: Vec<_> = pass(&mut link, 1_000, MS).iter().map(|(_, n)| *n).collect();
        assert_eq!(arrived, (0..530).collect::<Vec<_>>());
    }

    #[test]
    fn steps_that_pass_between_two_packets_all_count() {
        let steps = [(10 * MS, lossy(100.0)), (20 * MS, lossy(0.0)), (30 * MS, lossy(100.0))];
        let mut link = Link::new(schedule(lossy(0.0), &steps), 1);
        link.push(Duration::ZERO, &numbered(0));
        link.push(25 * MS, &numbered(1));
        link.push(100 * MS, &numbered(2));
        assert_eq!((link.counts().delivered, link.counts().lost), (0, 1));
        assert_eq!(link.next_due(), Some(25 * MS));
    }

    #[test]
    fn delay_of_a_step_is_that_of_packets_sent_from_then_on() {
        let longer = Conditions { delay: 40 * MS, ..Conditions::default() };
        let mut link = Link::new(schedule(Conditions::default(), &[(2 * MS, longer)]), 1);
        let arrived: Vec<_> = pass(&mut link, 4, MS).into_iter().map(|(due, _)| due).collect();
        assert_eq!(arrived, [25 * MS, 26 * MS, 42 * MS, 43 * MS]);
    }

    /// The third packet is half sent when the rate changes.
    #[test]
    fn rate_of_a_step_applies_to_packets_in_the_queue() {
        let micros = |times: [u64; 5]| times.map(Duration::from_micros).to_vec();
        let at = 2_500 * MS / 1_000;
        let faster = schedule(sending_in(MS), &[(at, sending_in(MS / 2))]);
        assert_eq!(times(faster, 5), micros([1_000, 2_000, 2_750, 3_250, 3_750]));
        let slower = schedule(sending_in(MS), &[(at, sending_in(4 * MS))]);
        assert_eq!(times(slower, 5), micros([1_000, 2_000, 4_500, 8_500, 12_500]));
        let none = Conditions { bottleneck: None, ..sending_in(MS) };
        let opened = schedule(sending_in(MS), &[(at, none)]);
        assert_eq!(times(opened, 5), micros([1_000, 2_000, 2_500, 2_500, 2_500]));
        // One packet can be sent at three rates.
        let steps = [(at, sending_in(4 * MS)), (at + MS, sending_in(MS / 2))];
        let thrice = schedule(sending_in(MS), &steps);
        assert_eq!(times(thrice, 5), micros([1_000, 2_000, 3_625, 4_125, 4_625]));
    }

    #[test]
    fn bottleneck_can_begin_with_a_step() {
        let none = Conditions { bottleneck: None, ..sending_in(MS) };
        let mut link = Link::new(schedule(none, &[(5 * MS, sending_in(3 * MS))]), 1);
        let arrived: Vec<_> = pass(&mut link, 8, MS).into_iter().map(|(due, _)| due).collect();
        assert_eq!(arrived, [0, 1, 2, 3, 4, 8, 11, 14].map(|millis| MS * millis));
        // The packets of 5, 6 and 7 ms waited 0, 2 and 4 ms.
        assert_eq!(link.counts().queue_delay.map(|delay| delay.max), Some(4 * MS));
    }

    #[test]
    fn bursts_of_a_step_begin_with_their_share() {
        let seed = crate::link::tests::seed();
        let burst = |burst| Conditions { burst: Some(burst), ..lossy(20.0) };
        for bursts in [Burst::Packets(5.0), Burst::Time(5 * MS)].map(burst) {
            // The part of many links that loses the first packet after the step.
            let lost = (0..2_000).filter(|number| {
                let all = schedule(lossy(0.0), &[(MS, bursts)]);
                let mut link = Link::new(all, seed.wrapping_add(*number));
                link.push(Duration::ZERO, &numbered(0));
                link.push(MS, &numbered(1));
                link.counts().lost == 1
            });
            let lost = lost.count() as f64;
            // Five standard deviations.
            assert!((lost - 400.0).abs() <= 5.0 * 320_f64.sqrt(), "{lost} of 2000 lost");
        }
    }

    #[test]
    fn bad_steps_are_rejected_with_their_time() {
        let plain = lossy(0.0);
        assert!(schedule(plain, &[(MS, lossy(5.0)), (2 * MS, plain)]).validate().is_ok());
        for (bad, reason) in [
            (schedule(lossy(101.0), &[]), "loss must be between 0 and 100 %, got 101"),
            (schedule(plain, &[(MS, lossy(101.0))]), "the step at 1ms: loss must be between"),
            (
                schedule(plain, &[(2 * MS, plain), (MS, plain)]),
                "a step after one at 2ms must be later, got 1ms",
            ),
            (
                schedule(plain, &[(MS, plain), (MS, plain)]),
                "a step after one at 1ms must be later, got 1ms",
            ),
        ] {
            let error = format!("{:#}", bad.validate().expect_err("bad"));
            assert!(error.contains(reason), "{error}, not {reason}");
            let down = Directions { down: bad.clone(), ..Directions::default() };
            let error = format!("{:#}", down.validate().expect_err("bad"));
            assert!(error.contains("from server to client") && error.contains(reason), "{error}");
            let up = Directions { up: bad, ..Directions::default() };
            let error = format!("{:#}", up.validate().expect_err("bad"));
            assert!(error.contains("from client to server"), "{error}");
        }
    }

    #[test]
    fn report_has_steps_with_all_their_conditions() {
        let all = schedule(lossy(0.0), &[(MS * 1_500, lossy(10.0))]);
        let report = serde_json::to_value(Directions::from(all)).expect("JSON");
        for direction in ["up", "down"] {
            assert_eq!(report[direction]["loss_percent"], 0.0);
            assert_eq!(report[direction]["steps"][0]["at_s"], 1.5);
            assert_eq!(report[direction]["steps"][0]["loss_percent"], 10.0);
            assert_eq!(report[direction]["steps"][0]["delay_ms"], 25.0);
        }
    }
}
