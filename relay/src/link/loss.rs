//! Which packets are lost: alone, or in bursts by packet or by time.

use std::time::Duration;

use kcpx::testkit::link::{BurstDurations, BurstSchedule};
use kcpx::testkit::rng::Rng;

use super::conditions::{Burst, Conditions};
use super::micros_since;
use super::steps::LossPhase;

/// The longest mean of a good period in microseconds, 30 years.
const LONGEST_GOOD: f64 = 1e15;

/// The loss processes of one direction.
#[derive(Debug)]
pub(super) struct Loss {
    by_packet: Option<ByPacket>,
    by_time: Option<ByTime>,
    seed: u64,
}

/// Gilbert-Elliott by packet, after a packet.
#[derive(Debug)]
struct ByPacket {
    loss: f64,
    mean: f64,
    /// Whether that packet was lost.
    bad: bool,
}

/// Gilbert-Elliott by time.
#[derive(Debug)]
struct ByTime {
    phase: LossPhase,
    durations: BurstDurations,
    /// Counts from the beginning of the phase.
    schedule: BurstSchedule,
}

impl Loss {
    pub(super) fn new(seed: u64) -> Self {
        Self { by_packet: None, by_time: None, seed }
    }

    /// Whether the next packet is lost, as far as that depends on its number. `drawn` is the one
    /// random number that a packet has for this, from 0 to below 1.
    pub(super) fn next_packet(&mut self, drawn: f64, conditions: &Conditions) -> bool {
        let loss = conditions.loss / 100.0;
        let Some(Burst::Packets(mean)) = conditions.burst else {
            self.by_packet = None;
            return conditions.burst.is_none() && drawn < loss;
        };
        let same = |before: &ByPacket| before.loss == loss && before.mean == mean;
        let probability = match self.by_packet.take().filter(same) {
            // The process begins in its stationary distribution.
            None => loss,
            Some(ByPacket { bad: true, .. }) => 1.0 - 1.0 / mean,
            // As many bursts begin as end.
            Some(ByPacket { bad: false, .. }) => loss / (1.0 - loss) / mean,
        };
        let bad = drawn < probability;
        self.by_packet = Some(ByPacket { loss, mean, bad });
        bad
    }

    /// Whether a packet that leaves at `time`, which never decreases, is lost, as far as that
    /// depends on the time. The process is a function of the seed and of the phase, whatever packets
    /// there are.
    pub(super) fn at(&mut self, time: Duration, conditions: &Conditions, phase: LossPhase) -> bool {
        let Some(Burst::Time(mean)) = conditions.burst else {
            return false;
        };
        let process = match self.by_time.take().filter(|before| before.phase == phase) {
            Some(process) => process,
            None => ByTime::new(conditions.loss / 100.0, mean, self.seed, phase),
        };
        let ByTime { durations, schedule, .. } = self.by_time.insert(process);
        schedule.is_bad(*durations, micros_since(phase.since, time))
    }
}

impl ByTime {
    fn new(loss: f64, mean: Duration, seed: u64, phase: LossPhase) -> Self {
        let bad = mean.as_micros() as f64;
        let good = (bad * (1.0 - loss) / loss).round().clamp(1.0, LONGEST_GOOD);
        let durations = BurstDurations { good: good as u64, bad: bad as u64 };
        // Not the generator of the packets: the number of periods changes nothing about what they draw.
        let rng = Rng::keyed(seed, phase.index as u64);
        Self { phase, durations, schedule: BurstSchedule::stationary(rng, durations) }
    }
}

#[cfg(test)]
mod tests {
    use crate::link::tests::{MS, pass, seed};
    use crate::link::{Bottleneck, Link, Schedule, Step};

    use super::*;

    const PACKETS: u32 = 200_000;

    fn bursts(loss: f64, burst: Burst) -> Conditions {
        Conditions { loss, burst: Some(burst), ..Conditions::default() }
    }

    /// Which of `count` packets are lost.
    fn losses(conditions: Conditions, seed: u64, count: u32, gap: Duration) -> Vec<bool> {
        let mut lost = vec![true; count as usize];
        for (_, number) in pass(&mut Link::new(conditions, seed), count, gap) {
            lost[number as usize] = false;
        }
        lost
    }

    /// Compares losses with a Markov chain that is bad for a part `share` of the time, and ends its
    /// bad state with the probability `end` at each packet: within five standard deviations.
    fn check(lost: &[bool], share: f64, end: f64) {
        let count = lost.len() as f64;
        let measured = lost.iter().filter(|lost| **lost).count() as f64;
        // Neighbours are correlated, so there are fewer independent packets than packets.
        let correlation = 1.0 - end / (1.0 - share);
        let spread = share * (1.0 - share) * (1.0 + correlation) / (1.0 - correlation);
        let bound = 5.0 * (spread / count).sqrt();
        let difference = measured / count - share;
        assert!(difference.abs() <= bound, "{difference} from {share}, allowed is {bound}");

        let lengths: Vec<_> = lost
            .chunk_by(|before, after| before == after)
            .filter(|burst| burst[0])
            .map(|burst| burst.len() as f64)
            .collect();
        let number = lengths.len() as f64;
        let difference = lengths.iter().sum::<f64>() / number - 1.0 / end;
        // Lengths have a geometric distribution.
        let bound = 5.0 * ((1.0 - end) / (end * end) / number).sqrt() + 1e-9;
        assert!(difference.abs() <= bound, "{difference} from {}, allowed is {bound}", 1.0 / end);
    }

    #[test]
    fn burst_by_packet_has_its_share_and_its_mean_length() {
        let seed = seed();
        for (loss, mean) in [(5.0, 3.0), (1.0, 10.0), (20.0, 1.5), (30.0, 1.0), (75.0, 3.0)] {
            println!("{loss} % in bursts of {mean}");
            let conditions = bursts(loss, Burst::Packets(mean));
            conditions.validate().expect("in range");
            check(&losses(conditions, seed, PACKETS, Duration::ZERO), loss / 100.0, 1.0 / mean);
        }
    }

    /// Packets at a fixed distance see a process in continuous time as a Markov chain.
    #[test]
    fn burst_by_time_has_its_share_and_its_mean_length() {
        let seed = seed();
        let gap = MS;
        for (loss, mean) in [(5.0, 20 * MS), (20.0, 50 * MS), (50.0, 5 * MS), (90.0, 9 * MS)] {
            println!("{loss} % in periods of {mean:?}");
            let conditions = bursts(loss, Burst::Time(mean));
            conditions.validate().expect("in range");
            let share = loss / 100.0;
            let bad_to_good = gap.as_secs_f64() / mean.as_secs_f64();
            let good_to_bad = bad_to_good * share / (1.0 - share);
            let end = (1.0 - share) * (1.0 - (-bad_to_good - good_to_bad).exp());
            check(&losses(conditions, seed, PACKETS, gap), share, end);
        }
    }

    #[test]
    fn losses_without_burst_are_independent() {
        let conditions = Conditions { loss: 20.0, ..Conditions::default() };
        check(&losses(conditions, seed(), PACKETS, Duration::ZERO), 0.2, 0.8);
    }

    /// Neither other conditions nor the speed nor a full queue change which packets are lost.
    #[test]
    fn burst_by_packet_depends_on_the_rank_alone() {
        let plain = bursts(10.0, Burst::Packets(4.0));
        let more = Conditions { jitter: 20 * MS, reorder: 50.0, ordered: true, ..plain };
        let expected = losses(plain, 11, 2_000, Duration::ZERO);
        assert_eq!(losses(plain, 11, 2_000, 3 * MS), expected);
        assert_eq!(losses(more, 11, 2_000, MS / 10), expected);

        let bottleneck = Some(Bottleneck { rate_mbit: 0.8, queue: 10 });
        let dropping = losses(Conditions { bottleneck, ..plain }, 11, 2_000, MS / 2);
        let with_drops = dropping.iter().filter(|lost| **lost).count();
        assert!(with_drops > expected.iter().filter(|lost| **lost).count() + 500);
        assert!(expected.iter().zip(&dropping).all(|(lost, missing)| *missing || !lost));
    }

    /// The same times are bad for any packets.
    #[test]
    fn burst_by_time_depends_on_the_time_alone() {
        let plain = bursts(20.0, Burst::Time(20 * MS));
        let dense = losses(plain, 11, 20_000, MS);
        let sparse = losses(plain, 11, 2_000, 10 * MS);
        let every_tenth: Vec<_> = dense.iter().copied().step_by(10).collect();
        assert_eq!(sparse, every_tenth);
        assert!(dense.contains(&true) && dense.contains(&false));
        assert_ne!(losses(plain, 12, 20_000, MS), dense);
    }

    /// Each step that changes losses begins other periods, and one that does not goes on with them.
    #[test]
    fn burst_by_time_of_a_step_depends_on_the_time_alone() {
        let lossy = bursts(50.0, Burst::Time(5 * MS));
        let longer = Conditions { delay: 30 * MS, ..lossy };
        let none = Conditions::default();
        let step = |millis, conditions| Step { at: MS * millis, conditions };
        let steps = vec![step(400, longer), step(1_000, none), step(2_000, lossy)];
        let all = Schedule { initial: lossy, steps, ..Schedule::default() };
        let run = |packets: &[u32]| -> Vec<_> {
            let mut link = Link::new(all.clone(), 11);
            let is_lost = |millis: &u32| {
                let before = link.counts().lost;
                link.push(MS * *millis, &[0]);
                link.counts().lost > before
            };
            packets.iter().map(is_lost).collect()
        };
        let dense = run(&(0..3_000).collect::<Vec<_>>());
        assert_eq!(dense[..1_000], losses(lossy, 11, 1_000, MS));
        assert!(!dense[1_000..2_000].contains(&true));
        assert_ne!(dense[..1_000], dense[2_000..]);
        // No packet at all before 500 ms, and none in the second phase.
        let some: Vec<u32> = (500..1_000).chain(2_000..3_000).step_by(7).collect();
        let expected: Vec<_> = some.iter().map(|millis| dense[*millis as usize]).collect();
        assert_eq!(run(&some), expected);
    }

    /// The time that counts is when a packet leaves the bottleneck.
    #[test]
    fn burst_by_time_hits_packets_as_they_leave_the_bottleneck() {
        let plain = bursts(20.0, Burst::Time(20 * MS));
        // Packets of 100 bytes leave after 1, 2, 3, ... ms.
        let bottleneck = Some(Bottleneck { rate_mbit: 0.8, queue: 2_000 });
        let queued = losses(Conditions { bottleneck, ..plain }, 11, 2_000, Duration::ZERO);
        let paced = losses(plain, 11, 2_001, MS);
        assert_eq!(queued, paced[1..]);
    }

    /// Bursts by time draw from a generator of their own.
    #[test]
    fn burst_by_time_changes_nothing_about_delays() {
        let jittery = Conditions { jitter: 20 * MS, ..Conditions::default() };
        let run = |conditions| pass(&mut Link::new(conditions, 11), 2_000, MS);
        let burst = Some(Burst::Time(20 * MS));
        let lossy = run(Conditions { loss: 20.0, burst, ..jittery });
        let expected = run(jittery);
        assert!(lossy.len() < expected.len());
        assert!(lossy.iter().all(|arrival| expected.contains(arrival)));
    }
}
