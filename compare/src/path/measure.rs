//! Makes a path for each measurement, starts the two processes at its ends and puts together what
//! they and the relay report.

use std::fs::File;
use std::io::Write as _;

use anyhow::{Context as _, bail, ensure};
use kcpx_relay::{Conditions, Counts, KernelCounts, Path};
use tokio::task::JoinSet;

use super::pair::{Pair, goodput};
use super::{Message, PathFigures, PathSample, Replays, conditions};
use crate::args::{Args, Case, Load, Peer, TIMEOUT, Wire, Workload, name};
use crate::programs::Programs;
use crate::protocol::{Outcome, Snapshot};
use crate::workload::schedule;

/// One measurement that is to be made.
#[derive(Clone)]
struct Run {
    case: Case,
    /// The peer of a transfer that shares the path.
    beside: Option<Peer>,
    conditions: Conditions,
    traces: Replays,
    seed: u64,
    load: Load,
}

/// The peers of a group take turns within each row of each seed.
pub(crate) async fn all(
    args: &Args,
    groups: &[Vec<Case>],
    programs: &Programs,
    mut json: Option<&File>,
) -> anyhow::Result<Vec<PathSample>> {
    let runs = runs(args, groups)?;
    let mut waiting = runs.iter().cloned().enumerate();
    let (mut running, mut samples) = (JoinSet::new(), Vec::with_capacity(runs.len()));
    loop {
        while running.len() < args.path.parallel
            && let Some((place, run)) = waiting.next()
        {
            let programs = programs.clone();
            running.spawn_local(async move { (place, one(&programs, &run).await) });
        }
        let Some(ended) = running.join_next().await else { break };
        let (place, sample) = ended?;
        let run = &runs[place];
        let title = format!(
            "[{}/{}] seed {} {} {} % {} {}",
            samples.len() + 1,
            runs.len(),
            run.seed,
            name(run.case.workload),
            run.conditions.loss,
            name(run.case.wire),
            name(run.case.peer),
        );
        eprintln!("{title:<58} {}", summary(&sample));
        if let Some(file) = &mut json {
            writeln!(file, "{}", serde_json::to_string(&sample)?)?;
        }
        samples.push((place, sample));
    }
    samples.sort_by_key(|(place, _)| *place);
    Ok(samples.into_iter().map(|(_, sample)| sample).collect())
}

fn runs(args: &Args, groups: &[Vec<Case>]) -> anyhow::Result<Vec<Run>> {
    let replays = Replays::read(&args.path)?;
    let mut runs = Vec::new();
    for (turn, &seed) in args.path.seed.iter().enumerate() {
        for group in groups {
            for &loss in &args.path.loss {
                // The order of the peers changes from seed to seed.
                let cases = (0..group.len()).map(|place| group[(place + turn) % group.len()]);
                let (conditions, load) = (conditions(&args.path, loss), args.load);
                let (beside, traces) = (args.path.beside, replays.of_seed(seed));
                runs.extend(cases.map(|case| {
                    let traces = traces.clone();
                    Run { case, beside, conditions, traces, seed, load }
                }));
            }
        }
    }
    Ok(runs)
}

fn summary(sample: &PathSample) -> String {
    if let Some(error) = &sample.error {
        return error.clone();
    }
    let Some(figures) = &sample.figures else { return String::new() };
    let (late, of) = figures.late();
    let what = match (figures.goodput_mbit_per_s, figures.messages) {
        (Some(goodput), _) => format!("{goodput:.2} Mbit/s"),
        (None, Some(messages)) => {
            let latency = messages.rest.or(messages.first_5s).unwrap_or_default();
            format!("p50 {:.1} p99 {:.1} ms", latency.p50_us / 1e3, latency.p99_us / 1e3)
        }
        (None, None) => String::new(),
    };
    let beside = figures
        .beside_mbit_per_s
        .map_or_else(String::new, |beside| format!(" + {beside:.2} Mbit/s"));
    let wait = figures.client_to_server.queue_delay.map_or_else(String::new, |wait| {
        let [p50, p95, p99] = [wait.p50, wait.p95, wait.p99].map(|time| time.as_secs_f64() * 1e3);
        format!(", waits {p50:.1}/{p95:.1}/{p99:.1} ms")
    });
    format!("{what}{beside} at {:.3}{wait}, {late} of {of} packets late", figures.wire_ratio)
}

async fn one(programs: &Programs, run: &Run) -> PathSample {
    let Run { case, conditions, seed, load, .. } = *run;
    let traces = run.traces.clone();
    let time = load.time(case.workload);
    let message = (case.workload == Workload::Msg).then(|| Message {
        every_ms: load.every.as_secs_f64() * 1e3,
        size: load.size,
        scheduled: schedule::count(time, load.every),
    });
    let mut pinned = false;
    let (figures, error) = match figures(run, programs, &mut pinned).await {
        Ok(figures) => {
            let wrong = verdict(run, message, &figures);
            (Some(figures), wrong.err().map(|error| format!("{error:#}")))
        }
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let seconds = time.as_secs();
    PathSample { case, conditions, traces, seed, seconds, message, pinned, figures, error }
}

/// Checks that the whole load crossed the path under its conditions.
fn verdict(run: &Run, message: Option<Message>, figures: &PathFigures) -> anyhow::Result<()> {
    let drops = figures.relay_drops();
    ensure!(drops == 0, "the relay itself lost {drops} packets: this run does not count");
    if let Some(Message { scheduled, .. }) = message {
        let Some(messages) = figures.messages else {
            bail!(
                "its server reports no messages: it lacks this workload (--help has the protocol)"
            )
        };
        let received = messages.received;
        ensure!(
            received == scheduled,
            "{received} of {scheduled} messages arrived within {} s",
            (run.load.time(run.case.workload) + TIMEOUT).as_secs()
        );
    } else {
        ensure!(
            figures.goodput_mbit_per_s.is_some(),
            "its server reports no bytes within the time: it lacks this workload, or got nothing \
             (--help has the protocol)"
        );
    }
    Ok(())
}

async fn figures(run: &Run, programs: &Programs, pinned: &mut bool) -> anyhow::Result<PathFigures> {
    let path = Path::new(run.traces.directions(run.conditions), run.seed)?;
    let start = |case| Pair::serve(&path, programs, case, run.load);
    let mut pair = start(run.case).await?;
    let mut beside = match run.beside {
        Some(peer) => {
            let case = Case::new(Workload::Bulk, Wire::Plain, peer);
            let case = Case { tcp_congestion: run.case.tcp_congestion, ..case };
            Some(start(case).await.context("the transfer beside")?)
        }
        None => None,
    };
    let sent = path.client_to_server()?.bytes;
    if let Some(beside) = &mut beside {
        beside.connect(&path).context("the transfer beside")?;
    }
    pair.connect(&path)?;
    *pinned = pair.is_pinned();
    let outcome = pair.outcome().await?;
    let after = pair.snapshot().await?;
    let beside = match beside {
        Some(beside) => Some(beside.end().await.context("the transfer beside")?),
        None => None,
    };
    let counts = [path.client_to_server()?, path.server_to_client()?];
    let kernel = [path.server().kernel()?, path.client().kernel()?];
    let note = pair.note.take();
    let figures = joined(outcome, note, [pair.before, after], (counts, sent), kernel, beside);
    pair.stop().await;
    figures
}

/// The reports of the two processes and of the relay, put together. `sent`: bytes from client to
/// server before the client was started; `beside`: payload and goodput of the transfer beside.
fn joined(
    outcome: Outcome,
    note: Option<String>,
    [before, after]: [Snapshot; 2],
    ([client_to_server, server_to_client], sent): ([Counts; 2], u64),
    [server_kernel, client_kernel]: [KernelCounts; 2],
    beside: Option<(u64, f64)>,
) -> anyhow::Result<PathFigures> {
    let read_bytes = after.bytes - before.bytes;
    ensure!(read_bytes > 0, "the server has read nothing");
    if outcome.complete == Some(true) {
        let bytes = outcome.bytes;
        ensure!(read_bytes == bytes, "the client counts {bytes} bytes, the server {read_bytes}");
    }
    let payload = read_bytes + beside.map_or(0, |(bytes, _)| bytes);
    Ok(PathFigures {
        outcome,
        note,
        server_cpu_s: after.cpu_s - before.cpu_s,
        read_bytes,
        messages: after.messages,
        goodput_mbit_per_s: after.within.and_then(goodput),
        within: after.within,
        beside_mbit_per_s: beside.map(|(_, goodput)| goodput),
        wire_ratio: (client_to_server.bytes - sent) as f64 / payload as f64,
        client_to_server,
        server_to_client,
        server_kernel,
        client_kernel,
    })
}
