//! Makes a path for each measurement, starts the two processes at its ends and puts together what
//! they and the relay report.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use kcpx_relay::{Conditions, Counts, End, KernelCounts, Path};
use tokio::runtime::Handle;

use super::{Message, PathFigures, PathSample, conditions};
use crate::args::{Args, Case, Load, PROMPT, TIMEOUT, Workload, name};
use crate::measure::role_arguments;
use crate::process::{CLIENT_CPU, Process, SERVER_CPU, stop_both};
use crate::programs::Programs;
use crate::protocol::{Listening, Outcome, Snapshot};
use crate::workload::schedule;

/// One measurement that is to be made.
#[derive(Clone, Copy)]
struct Run {
    case: Case,
    conditions: Conditions,
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
    let runs = runs(args, groups);
    let mut samples = Vec::with_capacity(runs.len());
    for run in &runs {
        let sample = one(programs, run).await;
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
        samples.push(sample);
    }
    Ok(samples)
}

fn runs(args: &Args, groups: &[Vec<Case>]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (turn, &seed) in args.path.seed.iter().enumerate() {
        for group in groups {
            for &loss in &args.path.loss {
                // The order of the peers changes from seed to seed.
                let cases = (0..group.len()).map(|place| group[(place + turn) % group.len()]);
                let conditions = conditions(&args.path, loss);
                runs.extend(cases.map(|case| Run { case, conditions, seed, load: args.load }));
            }
        }
    }
    runs
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
    format!("{what} at {:.3}, {late} of {of} packets late", figures.wire_ratio)
}

async fn one(programs: &Programs, run: &Run) -> PathSample {
    let Run { case, conditions, seed, load } = *run;
    let time = load.time(case.workload);
    let message = (case.workload == Workload::Msg).then(|| Message {
        every_ms: load.every.as_secs_f64() * 1e3,
        size: load.size,
        scheduled: schedule::count(time, load.every),
    });
    let mut pinned = false;
    let figures = match programs.program(case.peer) {
        Ok(program) => figures(run, &program, &mut pinned).await,
        Err(error) => Err(error),
    };
    let (figures, error) = match figures {
        Ok(figures) => {
            let wrong = verdict(run, message, &figures);
            (Some(figures), wrong.err().map(|error| format!("{error:#}")))
        }
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    PathSample { case, conditions, seed, seconds: time.as_secs(), message, pinned, figures, error }
}

/// Whether these figures are those of the whole load on the path that was asked for.
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

async fn figures(run: &Run, program: &OsStr, pinned: &mut bool) -> anyhow::Result<PathFigures> {
    let path = Path::new(run.conditions, run.seed)?;
    let address = path.server().address();
    let listen = ["--listen".into(), format!("{address}:0")];
    let arguments = path_arguments("server", run, listen);
    let mut server = start(path.server(), SERVER_CPU, program, arguments)?;
    let mut client = None;
    let figures = async {
        let listening: Listening =
            server.receive(PROMPT).await.context("the server did not start")?;
        let (before, sent) = (server.ask().await?, path.client_to_server()?.bytes);
        let connect = ["--connect".into(), listening.addr.to_string()];
        let arguments = path_arguments("client", run, connect);
        let client = client.insert(start(path.client(), CLIENT_CPU, program, arguments)?);
        *pinned = server.pinned && client.pinned;
        // Its own limit, the time to connect, and that to start and to answer.
        let limit = run.load.time(run.case.workload) + TIMEOUT + 2 * PROMPT;
        let outcome: Outcome = client.receive(limit).await.context("the client")?;
        let (up, down) = (path.client_to_server()?, path.server_to_client()?);
        let after = server.ask().await?;
        let kernel = [path.server().kernel()?, path.client().kernel()?];
        let wire_bytes = up.bytes - sent;
        joined(outcome, listening.note, [before, after], wire_bytes, [up, down], kernel)
    };
    let figures = figures.await;
    stop_both(server, client).await;
    figures
}

/// The reports of the two processes and of the relay, put together.
fn joined(
    outcome: Outcome,
    note: Option<String>,
    [before, after]: [Snapshot; 2],
    wire_bytes: u64,
    [client_to_server, server_to_client]: [Counts; 2],
    [server_kernel, client_kernel]: [KernelCounts; 2],
) -> anyhow::Result<PathFigures> {
    let read_bytes = after.bytes - before.bytes;
    ensure!(read_bytes > 0, "the server has read nothing");
    if outcome.complete == Some(true) {
        let bytes = outcome.bytes;
        ensure!(read_bytes == bytes, "the client counts {bytes} bytes, the server {read_bytes}");
    }
    let within = after.within.filter(|within| within.seconds > 0.0);
    Ok(PathFigures {
        outcome,
        note,
        server_cpu_s: after.cpu_s - before.cpu_s,
        read_bytes,
        messages: after.messages,
        goodput_mbit_per_s: within.map(|it| it.bytes as f64 * 8.0 / 1e6 / it.seconds),
        wire_ratio: wire_bytes as f64 / read_bytes as f64,
        client_to_server,
        server_to_client,
        server_kernel,
        client_kernel,
    })
}

/// Starts a process at an end of the path, from a thread there.
fn start(
    end: &End,
    cpu: usize,
    program: &OsStr,
    arguments: Vec<String>,
) -> anyhow::Result<Process> {
    let (runtime, program) = (Handle::current(), program.to_owned());
    let thread = end.start(move || {
        let _entered = runtime.enter();
        Process::start(cpu, &program, &arguments)
    })?;
    thread.join().map_err(|_| anyhow!("the thread that starts a process panicked"))?
}

fn path_arguments(role: &str, run: &Run, address: [String; 2]) -> Vec<String> {
    let mut arguments = role_arguments(role, run.case);
    arguments.extend(address);
    let seconds = run.load.time(run.case.workload).as_secs();
    arguments.extend(["--seconds".into(), seconds.to_string()]);
    if run.case.workload == Workload::Msg {
        let every = format!("{}us", micros(run.load.every));
        arguments.extend(["--every".into(), every, "--size".into(), run.load.size.to_string()]);
    }
    arguments
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
