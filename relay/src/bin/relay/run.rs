//! One run: path, server, client, report.

use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kcpx_relay::{Counts, Directions, KernelCounts, Path};
use serde::Serialize;
use serde_json::Value;

use crate::command::Running;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) directions: Directions,
    pub(crate) seed: u64,
    pub(crate) limit: Duration,
    pub(crate) ready: Option<String>,
    pub(crate) server: String,
    pub(crate) client: String,
}

#[derive(Debug, Serialize)]
struct Report {
    conditions: Directions,
    seed: u64,
    /// From the start of the client to its end.
    seconds: f64,
    /// The client did not end by itself within its time.
    given_up: bool,
    client_to_server: Counts,
    server_to_client: Counts,
    kept_up: bool,
    server: Side,
    client: Side,
}

#[derive(Debug, Serialize)]
struct Side {
    command: String,
    status: String,
    #[serde(flatten)]
    kernel: KernelCounts,
    output: Vec<Value>,
}

pub(crate) fn run(run: &Run) -> anyhow::Result<ExitCode> {
    kcpx_relay::allow()?;
    let path = Path::new(run.directions.clone(), run.seed)?;
    let address = path.server().address().to_string();
    let [server_command, client_command] =
        [&run.server, &run.client].map(|command| command.replace("{server}", &address));
    let deadline = Instant::now() + run.limit;

    let mut server = Running::start("server", &server_command, Stdio::piped(), path.server())?;
    server.ready(run.ready.as_deref().unwrap_or_default(), deadline)?;
    let began = Instant::now();
    let mut client = Running::start("client", &client_command, Stdio::null(), path.client())?;
    let given_up = client.wait(deadline)?.is_none();
    let seconds = began.elapsed().as_secs_f64();
    let (client_status, client_output) = client.end()?;
    let (server_status, server_output) = server.end()?;

    let (at_server, at_client) = (path.server().kernel()?, path.client().kernel()?);
    let side = |command, status: ExitStatus, kernel, output| Side {
        command,
        status: status.to_string(),
        kernel,
        output,
    };
    let (client_to_server, server_to_client) = (path.client_to_server()?, path.server_to_client()?);
    let own_losses = client_to_server.relay_drops
        + server_to_client.relay_drops
        + at_server.device_drops
        + at_client.device_drops;
    let report = Report {
        conditions: run.directions.clone(),
        seed: run.seed,
        seconds,
        given_up,
        client_to_server,
        server_to_client,
        kept_up: own_losses == 0,
        server: side(server_command, server_status, at_server, server_output),
        client: side(client_command, client_status, at_client, client_output),
    };
    let text = serde_json::to_string_pretty(&report).context("the report")?;
    println!("{text}");
    if own_losses > 0 {
        eprintln!(
            "relay: {own_losses} packets were lost for want of memory: this run does not count"
        );
    }
    if given_up {
        eprintln!("relay: the client did not end within {:?}", run.limit);
    }
    Ok(if client_status.success() && !given_up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
