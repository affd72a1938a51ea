//! Workloads across a path with delay and loss between two network namespaces: what is measured
//! on which path, and what came out.

pub(crate) mod measure;
mod pair;
pub(crate) mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kcpx_relay::{
    Bottleneck, Burst, Conditions, Counts, DelayReplay, Directions, KernelCounts, Path, RateReplay,
    Replay, Schedule,
};
use serde::Serialize;

use crate::args::{Args, BurstLength, Case, PathOptions};
use crate::protocol::{Messages, Outcome, Within};

/// How much later in a trace each seed begins.
const SEED_STEP: Duration = Duration::from_secs(7);

/// Recorded networks in place of the rate or the delay of both directions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Replays {
    client_to_server: Replay,
    server_to_client: Replay,
}

impl Replays {
    /// Reads the traces of the command line. They begin where the first seed has them.
    fn read(options: &PathOptions) -> anyhow::Result<Self> {
        let (offset, queue) = (options.trace_offset, options.queue.unwrap_or(RateReplay::QUEUE));
        let rate = |option: &'static str, file: &Option<PathBuf>| {
            let rate = file.as_ref().map(|file| RateReplay::read(file, offset, queue));
            rate.transpose().context(option)
        };
        let delay = options.trace_delay.as_ref().map(|file| DelayReplay::read(file, offset));
        let delay = delay.transpose().context("--trace-delay")?;
        let up = rate("--trace-up", &options.trace_up)?;
        let down = rate("--trace-down", &options.trace_down)?;
        Ok(Self {
            client_to_server: Replay { rate: up, delay: delay.clone() },
            server_to_client: Replay { rate: down, delay },
        })
    }

    /// The same, begun where this seed has them.
    fn of_seed(&self, seed: u64) -> Self {
        let later = Duration::from_secs(seed.saturating_sub(1).saturating_mul(SEED_STEP.as_secs()));
        let mut replays = self.clone();
        for replay in [&mut replays.client_to_server, &mut replays.server_to_client] {
            if let Some(rate) = &mut replay.rate {
                rate.offset = rate.offset.saturating_add(later);
            }
            if let Some(delay) = &mut replay.delay {
                delay.offset = delay.offset.saturating_add(later);
            }
        }
        replays
    }

    /// Both directions of a path with these conditions.
    fn directions(&self, conditions: Conditions) -> Directions {
        let schedule =
            |replay: &Replay| Schedule { replay: replay.clone(), ..Schedule::from(conditions) };
        Directions { up: schedule(&self.client_to_server), down: schedule(&self.server_to_client) }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The path of one row, from the command line.
fn conditions(options: &PathOptions, loss: f64) -> Conditions {
    let bottleneck = options.rate.zip(options.queue);
    // A row without loss beside rows with it has no bursts.
    let burst = options.burst.filter(|_| loss > 0.0);
    Conditions {
        delay: options.rtt / 2,
        jitter: options.jitter,
        ordered: options.ordered,
        loss,
        burst: burst.map(|length| match length {
            BurstLength::Packets(mean) => Burst::Packets(mean),
            BurstLength::Time(mean) => Burst::Time(mean),
        }),
        reorder: options.reorder,
        bottleneck: bottleneck.map(|(rate_mbit, queue)| Bottleneck { rate_mbit, queue }),
        ..Conditions::default()
    }
}

/// Checks the path of each row, and makes one: without the right to, every cell would be empty.
pub(crate) fn check(args: &Args) -> anyhow::Result<()> {
    let replays = Replays::read(&args.path)?;
    let directions = |loss: &f64| replays.directions(conditions(&args.path, *loss));
    args.path
        .loss
        .iter()
        .try_for_each(|loss| directions(loss).validate())
        .context("the path of --rtt, --jitter, --loss, --burst, --rate and --queue")?;
    let first = args.path.loss.first().map(directions).unwrap_or_default();
    Path::new(first, 0).context("msg and bulk need a path").map(drop)
}

/// One measurement across a path.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathSample {
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) conditions: Conditions,
    /// The traces, where there are any, and where they begin.
    #[serde(skip_serializing_if = "Replays::is_empty")]
    pub(crate) traces: Replays,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    /// For `msg` alone.
    #[serde(flatten)]
    pub(crate) message: Option<Message>,
    pub(crate) pinned: bool,
    #[serde(flatten)]
    pub(crate) figures: Option<PathFigures>,
    /// Why this measurement does not count.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Message {
    pub(crate) every_ms: f64,
    pub(crate) size: usize,
    /// How many there are to send.
    pub(crate) scheduled: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathFigures {
    /// The client's.
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    pub(crate) note: Option<String>,
    pub(crate) server_cpu_s: f64,
    /// Payload that the server has read.
    pub(crate) read_bytes: u64,
    pub(crate) messages: Option<Messages>,
    pub(crate) goodput_mbit_per_s: Option<f64>,
    /// The source of the goodput.
    pub(crate) within: Option<Within>,
    /// Goodput of the transfer beside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside_mbit_per_s: Option<f64>,
    /// Bytes of IP packets from client to server for each byte of payload that the servers have read, the
    /// transfer beside included.
    pub(crate) wire_ratio: f64,
    pub(crate) client_to_server: Counts,
    pub(crate) server_to_client: Counts,
    pub(crate) server_kernel: KernelCounts,
    pub(crate) client_kernel: KernelCounts,
}

impl PathFigures {
    /// Packets that came out of the relay more than a millisecond late, of all that came out.
    pub(crate) fn late(&self) -> (u64, u64) {
        let [up, down] = [self.client_to_server, self.server_to_client];
        (up.late + down.late, up.delivered + down.delivered)
    }

    /// Packets lost that the conditions did not ask to lose.
    pub(crate) fn relay_drops(&self) -> u64 {
        self.client_to_server.relay_drops
            + self.server_to_client.relay_drops
            + self.server_kernel.device_drops
            + self.client_kernel.device_drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_those_of_the_options() {
        let mut options = PathOptions {
            rtt: Duration::from_millis(50),
            loss: vec![0.0, 5.0],
            rate: None,
            queue: None,
            trace_up: None,
            trace_down: None,
            trace_delay: None,
            trace_offset: Duration::ZERO,
            jitter: Duration::from_millis(3),
            ordered: true,
            reorder: 2.0,
            burst: Some(BurstLength::Packets(3.0)),
            beside: None,
            server: None,
            max_overhead: None,
            seed: vec![1],
            parallel: 1,
        };
        let made = conditions(&options, 5.0);
        assert_eq!((made.delay, made.jitter), (Duration::from_millis(25), options.jitter));
        assert_eq!((made.loss, made.bottleneck), (5.0, None));
        assert_eq!((made.ordered, made.reorder), (true, 2.0));
        assert_eq!(made.burst, Some(Burst::Packets(3.0)));
        assert_eq!(conditions(&options, 0.0).burst, None);
        options.burst = Some(BurstLength::Time(Duration::from_millis(25)));
        let burst = conditions(&options, 1.0).burst;
        assert_eq!(burst, Some(Burst::Time(Duration::from_millis(25))));
        (options.rate, options.queue) = (Some(20.0), Some(50));
        let bottleneck = conditions(&options, 0.0).bottleneck;
        assert_eq!(bottleneck, Some(Bottleneck { rate_mbit: 20.0, queue: 50 }));
    }

    #[test]
    fn each_seed_begins_elsewhere_in_the_traces() {
        let directory = std::env::temp_dir().join(format!("kcpx-compare-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (up, bad) = (directory.join("up"), directory.join("bad"));
        std::fs::write(&up, "1\n5\n").unwrap();
        std::fs::write(&bad, "5\n1\n").unwrap();
        let line = |file: &std::path::Path| {
            let file = file.display();
            let line = format!("compare --workload msg --trace-up {file} --trace-delay {file}");
            let line = format!("{line} --trace-offset 3s --loss 0");
            Args::from_arguments(line.split(' ')).unwrap()
        };
        let replays = Replays::read(&line(&up).path).unwrap();
        for (seed, offset) in [(0, 3), (1, 3), (2, 10), (5, 31)] {
            let directions = replays.of_seed(seed).directions(Conditions::default());
            let offset = Duration::from_secs(offset);
            let rate = directions.up.replay.rate.unwrap();
            assert_eq!((rate.offset, rate.queue), (offset, 300));
            assert_eq!(directions.up.replay.delay.map(|delay| delay.offset), Some(offset));
            assert_eq!(directions.down.replay.rate, None);
            assert_eq!(directions.down.replay.delay.map(|delay| delay.offset), Some(offset));
        }
        let error = format!("{:#}", check(&line(&bad)).unwrap_err());
        let expected = format!("{}: line 2: 1 ms comes after 5 ms: sort", bad.display());
        assert!(error.contains(&expected), "{error}");
    }

    #[test]
    fn impossible_paths_are_refused_before_the_first_measurement() {
        let cases = [
            ("--rtt 30s", "delay and jitter must be at most 10s"),
            ("--rate 0 --queue 5", "rate must be"),
            ("--rate 20 --queue 0", "queue must"),
            ("--loss 60 --burst 1", "loss"),
        ];
        for (options, expected) in cases {
            let line = format!("compare --workload msg {options}");
            let args = Args::from_arguments(line.split(' ')).unwrap();
            let error = format!("{:#}", check(&args).expect_err(options));
            assert!(error.contains(expected) && error.contains("--rtt"), "{options}: {error}");
        }
    }
}
