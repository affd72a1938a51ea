//! One run: path, server, clients, report.

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kcpx_relay::{Counts, Directions, KernelCounts, Path};
use serde::Serialize;
use serde_json::Value;

use crate::command::{self, Running};

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) directions: Directions,
    pub(crate) seed: u64,
    pub(crate) limit: Duration,
    pub(crate) ready: Option<String>,
    pub(crate) server: String,
    pub(crate) clients: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    conditions: Directions,
    seed: u64,
    /// From the start of the first client to the end of the last.
    seconds: f64,
    /// A client did not end by itself within its time.
    given_up: bool,
    client_to_server: Counts,
    server_to_client: Counts,
    kept_up: bool,
    kernel: Kernel,
    server: Side,
    clients: Vec<Client>,
}

#[derive(Debug, Serialize)]
struct Kernel {
    server: KernelCounts,
    client: KernelCounts,
}

#[derive(Debug, Serialize)]
struct Side {
    command: String,
    status: String,
    output: Vec<Value>,
}

#[derive(Debug, Serialize)]
struct Client {
    /// From the start of the first client to the end of this one.
    seconds: f64,
    /// It did not end by itself within its time.
    given_up: bool,
    #[serde(skip)]
    succeeded: bool,
    #[serde(flatten)]
    side: Side,
}

pub(crate) fn run(run: &Run) -> anyhow::Result<ExitCode> {
    kcpx_relay::allow()?;
    let path = Path::new(run.directions.clone(), run.seed)?;
    let address = path.server().address().to_string();
    let deadline = Instant::now() + run.limit;

    let command = run.server.replace("{server}", &address);
    let mut server = Running::start("server".into(), &command, Stdio::piped(), path.server())?;
    server.ready(run.ready.as_deref().unwrap_or_default(), deadline)?;
    let began = Instant::now();
    let clients = run_clients(run, &path, &address, deadline)?;
    let seconds = began.elapsed().as_secs_f64();
    let server = side(command, server)?.0;

    let kernel = Kernel { server: path.server().kernel()?, client: path.client().kernel()? };
    let (client_to_server, server_to_client) = (path.client_to_server()?, path.server_to_client()?);
    let own_losses = client_to_server.relay_drops
        + server_to_client.relay_drops
        + kernel.server.device_drops
        + kernel.client.device_drops;
    let report = Report {
        conditions: run.directions.clone(),
        seed: run.seed,
        seconds,
        given_up: clients.iter().any(|client| client.given_up),
        client_to_server,
        server_to_client,
        kept_up: own_losses == 0,
        kernel,
        server,
        clients,
    };
    let text = serde_json::to_string_pretty(&report).context("the report")?;
    println!("{text}");
    summarize(&report, own_losses, run.limit);
    let succeeded = report.clients.iter().all(|client| client.succeeded && !client.given_up);
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all clients at the same time.
fn run_clients(
    run: &Run,
    path: &Path,
    address: &str,
    deadline: Instant,
) -> anyhow::Result<Vec<Client>> {
    let began = Instant::now();
    let mut commands = Vec::new();
    let mut running = Vec::new();
    for (index, command) in run.clients.iter().enumerate() {
        let command = command.replace("{server}", address);
        let name = client_name(index, run.clients.len());
        running.push(Running::start(name, &command, Stdio::null(), path.client())?);
        commands.push(command);
    }
    let ends = command::wait(&mut running, deadline)?;
    let gave_up = Instant::now();
    // None of them goes on while another one is waited for.
    for (client, _) in running.iter_mut().zip(&ends).filter(|(_, end)| end.is_none()) {
        client.kill()?;
    }
    let mut clients = Vec::new();
    for ((command, running), end) in commands.into_iter().zip(running).zip(ends) {
        let (side, succeeded) = side(command, running)?;
        let seconds = (end.unwrap_or(gave_up) - began).as_secs_f64();
        clients.push(Client { seconds, given_up: end.is_none(), succeeded, side });
    }
    Ok(clients)
}

/// One client alone needs no number.
fn client_name(index: usize, count: usize) -> String {
    if count == 1 { "client".into() } else { format!("client {}", index + 1) }
}

/// Ends a command; the part of the report about it, and whether it ended with 0.
fn side(command: String, running: Running) -> anyhow::Result<(Side, bool)> {
    let (status, output) = running.end()?;
    Ok((Side { command, status: status.to_string(), output }, status.success()))
}

/// The report in a few lines for people.
fn summarize(report: &Report, own_losses: u64, limit: Duration) {
    for (name, counts) in [
        ("client to server", &report.client_to_server),
        ("server to client", &report.server_to_client),
    ] {
        eprintln!("relay: {name}: {}", summary(counts));
    }
    for (index, client) in report.clients.iter().enumerate() {
        let name = client_name(index, report.clients.len());
        if client.given_up {
            eprintln!("relay: {name} did not end within {limit:?}");
        } else {
            eprintln!("relay: {name}: {} after {:.3} s", client.side.status, client.seconds);
        }
    }
    if own_losses > 0 {
        eprintln!(
            "relay: {own_losses} packets were lost for want of memory: this run does not count"
        );
    }
}

fn summary(counts: &Counts) -> String {
    let Counts { packets, lost, queue_dropped, .. } = counts;
    let mut text = format!("{packets} packets, {lost} lost");
    if let Some(delay) = &counts.queue_delay {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        text += &format!(
            ", {queue_dropped} dropped by the queue; the others waited there {:.1} ms (median), \
             {:.1} ms (95 %), {:.1} ms (99 %), {:.1} ms (maximum)",
            millis(delay.p50),
            millis(delay.p95),
            millis(delay.p99),
            millis(delay.max)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use kcpx_relay::QueueDelay;

    use super::*;

    #[test]
    fn summary_has_the_queue_delay_where_there_is_a_queue() {
        let mut counts = Counts { packets: 100, lost: 5, ..Counts::default() };
        assert_eq!(summary(&counts), "100 packets, 5 lost");
        let [p50, p95, p99, max] = [1_000, 12_340, 19_040, 20_100].map(Duration::from_micros);
        counts.queue_delay = Some(QueueDelay { p50, p95, p99, max });
        counts.queue_dropped = 7;
        assert_eq!(
            summary(&counts),
            "100 packets, 5 lost, 7 dropped by the queue; the others waited there 1.0 ms (median), \
             12.3 ms (95 %), 19.0 ms (99 %), 20.1 ms (maximum)"
        );
    }
}
