//! Starts the two processes of each measurement and collects what they report.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::time::sleep;

use crate::args::{Args, Case, PROMPT, Peer, TIMEOUT, Workload, name};
use crate::os;
use crate::process::{CLIENT_CPU, Process, SERVER_CPU, stop_both};
use crate::programs::Programs;
use crate::protocol::{Figures, Listening, Outcome, Sample, Snapshot};

/// After the work of `many`, until its last packets have passed too.
const DRAIN: Duration = Duration::from_secs(1);
const GIB: f64 = (1_u64 << 30) as f64;

/// Measures groups of workloads over loopback.
pub(crate) async fn all(
    args: &Args,
    groups: &[Vec<Case>],
    programs: &Programs,
    mut json: Option<&File>,
) -> anyhow::Result<Vec<Sample>> {
    let count = args.runs as usize * groups.iter().map(Vec::len).sum::<usize>();
    let mut samples = Vec::with_capacity(count);
    for run in 0..args.runs {
        for group in groups {
            for turn in 0..group.len() {
                // The order of the peers changes from run to run.
                let case = group[(turn + run as usize) % group.len()];
                let sample = one(args, programs, case, run).await;
                let title = format!(
                    "[{}/{count}] run {} {} {} {}",
                    samples.len() + 1,
                    run + 1,
                    name(case.workload),
                    name(case.wire),
                    name(case.peer),
                );
                eprintln!("{title:<58} {}", summary(&sample));
                if let Some(file) = &mut json {
                    writeln!(file, "{}", serde_json::to_string(&sample)?)?;
                }
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

fn summary(sample: &Sample) -> String {
    let Some(figures) = &sample.figures else {
        return sample.error.clone().unwrap_or_default();
    };
    let outcome = &figures.outcome;
    match sample.case.workload {
        Workload::Sink | Workload::Echo => {
            format!("{:.1} MB/s", figures.mb_per_s.unwrap_or_default())
        }
        Workload::Pingpong => format!("p50 {:.1} us", outcome.p50_us.unwrap_or_default()),
        Workload::Many => {
            format!("{} in {:.2} s", outcome.finished.unwrap_or_default(), outcome.wall_s)
        }
        // They have a summary of their own.
        Workload::Msg | Workload::Bulk => String::new(),
    }
}

async fn one(args: &Args, programs: &Programs, case: Case, run: u32) -> Sample {
    let mut pinned = false;
    let figures = match programs.program(case.peer) {
        Ok(program) => figures(args, &program, case, &mut pinned).await,
        Err(error) => Err(error),
    };
    let (figures, error) = match figures {
        Ok(figures) => (Some(figures), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    Sample { case, run, pinned, figures, error }
}

async fn figures(
    args: &Args,
    program: &OsStr,
    case: Case,
    pinned: &mut bool,
) -> anyhow::Result<Figures> {
    let mut arguments = role_arguments("server", case);
    arguments.extend(["--listen".into(), "127.0.0.1:0".into()]);
    let mut server = Process::start(SERVER_CPU, program, &arguments)?;
    let mut client = None;
    let figures = async {
        let listening: Listening =
            server.receive(PROMPT).await.context("the server did not start")?;
        let arguments = client_arguments(args, case, &listening);
        let (before, drops) = (server.ask().await?, os::udp_drops());
        let client = client.insert(Process::start(CLIENT_CPU, program, &arguments)?);
        *pinned = server.pinned && client.pinned;
        let limit = args.load.time(case.workload) + TIMEOUT + PROMPT;
        let outcome = client.receive(limit).await.context("the client")?;
        let after = server.ask().await?;
        let udp_drops = os::udp_drops().zip(drops).map(|(after, before)| after - before);
        let rest = match case.workload {
            Workload::Many => Some(rest(args, &mut server).await?),
            _ => None,
        };
        Ok(Figures {
            udp_drops,
            note: listening.note,
            ..joined(case, outcome, before, after, rest)?
        })
    };
    let figures = figures.await;
    stop_both(server, client).await;
    figures
}

/// The reports of the two processes, put together.
fn joined(
    case: Case,
    outcome: Outcome,
    before: Snapshot,
    after: Snapshot,
    rest: Option<(Snapshot, f64)>,
) -> anyhow::Result<Figures> {
    let read = after.bytes - before.bytes;
    let bytes = outcome.bytes;
    // The server sees nothing of a copy in memory.
    let counted = case.peer != Peer::Memcpy;
    ensure!(!counted || read >= bytes, "the client counts {bytes} bytes, the server {read}");
    let server_cpu_s = after.cpu_s - before.cpu_s;
    let bulk = matches!(case.workload, Workload::Sink | Workload::Echo) && bytes > 0;
    let bytes = bytes as f64;
    let grown = |rest: &Snapshot| rest.rss_kib.saturating_sub(before.rss_kib) as f64;
    Ok(Figures {
        mb_per_s: bulk.then_some(bytes / 1e6 / outcome.wall_s),
        cpu_s_per_gib: bulk.then_some((outcome.cpu_s + server_cpu_s) * GIB / bytes),
        server_cpu_s,
        server_kib_per_connection: rest
            .map(|(rest, _)| grown(&rest) / rest.connections.max(1) as f64),
        server_idle_ms_per_s: rest.map(|(_, ms_per_s)| ms_per_s),
        udp_drops: None,
        note: None,
        outcome,
    })
}

/// The server after the work, and its CPU time per second while nothing happens.
async fn rest(args: &Args, server: &mut Process) -> anyhow::Result<(Snapshot, f64)> {
    sleep(DRAIN).await;
    let start = server.ask().await?;
    sleep(Duration::from_secs(args.rest)).await;
    let end = server.ask().await?;
    Ok((end, (end.cpu_s - start.cpu_s) * 1e3 / args.rest as f64))
}

fn client_arguments(args: &Args, case: Case, listening: &Listening) -> Vec<String> {
    let mut arguments = role_arguments("client", case);
    let load = args.load;
    let mut option = |option: &str, value: String| arguments.extend([option.into(), value]);
    option("--connect", listening.addr.to_string());
    option("--seconds", load.time(case.workload).as_secs().to_string());
    option("--limit", load.limit.to_string());
    option("--round-trips", load.round_trips.to_string());
    option("--connections", load.connections.to_string());
    arguments
}

/// The arguments of both roles of all workloads.
pub(crate) fn role_arguments(role: &str, case: Case) -> Vec<String> {
    let mut arguments = vec![role.to_owned()];
    let mut option = |option: &str, value| arguments.extend([option.to_owned(), value]);
    option("--workload", name(case.workload));
    option("--wire", name(case.wire));
    option("--peer", name(case.peer));
    if let Some(server) = case.server {
        option("--server", name(server));
    }
    if let Some(limit) = case.max_overhead.filter(|_| case.peer == Peer::KcpxAuto) {
        option("--max-overhead", (f64::from(limit) / 1e3).to_string());
    }
    if let Some(congestion) = case.tcp_congestion.filter(|_| case.peer == Peer::Tcp) {
        option("--tcp-congestion", name(congestion));
    }
    arguments
}
