//! The options for recorded networks.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kcpx_relay::{DelayReplay, RateReplay, Replay};

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Recorded networks")]
pub(crate) struct TraceArgs {
    /// When packets may leave from client to server, instead of --rate-mbit: a mahimahi trace.
    /// Each line is a millisecond, sorted, at which 1500 bytes of the queue may leave; equal lines
    /// are several such moments, and the trace begins again after its last line. --queue holds
    /// 300 packets unless given
    #[arg(long, value_name = "FILE")]
    trace_up: Option<PathBuf>,
    /// The same from server to client
    #[arg(long, value_name = "FILE")]
    trace_down: Option<PathBuf>,
    /// Delay of each packet each way, instead of --delay-ms: each line is a delay in whole
    /// milliseconds, for 10 ms; the trace begins again after its last line. Packets keep their order
    /// when the delay falls
    #[arg(long, value_name = "FILE")]
    trace_delay: Option<PathBuf>,
    /// Beginning within the traces [default: 0]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    trace_offset: Option<f64>,
}

/// The settings of one direction beside a trace.
pub(crate) struct Beside {
    pub(crate) queue: Option<usize>,
    pub(crate) delay: bool,
    /// A step sets another queue.
    pub(crate) queue_changes: bool,
}

impl TraceArgs {
    /// Whether a direction has a recorded bottleneck.
    pub(crate) fn has_rate(&self) -> bool {
        self.trace_up.is_some() || self.trace_down.is_some()
    }

    /// The recordings of both directions: client to server, server to client.
    pub(crate) fn replays(&self, beside: [Beside; 2]) -> anyhow::Result<[Replay; 2]> {
        ensure!(
            self.trace_offset.is_none() || self.has_rate() || self.trace_delay.is_some(),
            "--trace-offset needs a trace: give --trace-up, --trace-down or --trace-delay"
        );
        let seconds = self.trace_offset.unwrap_or_default();
        let offset = Duration::try_from_secs_f64(seconds).ok();
        let offset = offset.with_context(|| {
            format!("--trace-offset must be at least 0 seconds, as in 7.5, got {seconds}")
        })?;
        let delay = self.trace_delay.as_ref();
        let delay = delay.map(|file| DelayReplay::read(file, offset)).transpose();
        let delay = delay.context("--trace-delay")?;
        let files = [("--trace-up", &self.trace_up), ("--trace-down", &self.trace_down)];
        let mut replays = [Replay::default(), Replay::default()];
        for ((replay, (option, file)), beside) in replays.iter_mut().zip(files).zip(beside) {
            ensure!(
                delay.is_none() || !beside.delay,
                "--trace-delay and a delay-ms exclude each other: give one of them"
            );
            replay.delay.clone_from(&delay);
            let Some(file) = file else { continue };
            ensure!(
                !beside.queue_changes,
                "{option} requires one --queue at all times: remove queue= from the step"
            );
            let queue = beside.queue.unwrap_or(RateReplay::QUEUE);
            replay.rate = Some(RateReplay::read(file, offset, queue).context(option)?);
        }
        Ok(replays)
    }
}
