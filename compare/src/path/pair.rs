//! The server and the client of one transfer, at the two ends of a path.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kcpx_relay::{End, Path};
use tokio::runtime::Handle;

use crate::args::{Case, Load, PROMPT, TIMEOUT, Workload};
use crate::measure::role_arguments;
use crate::process::{CLIENT_CPU, Process, SERVER_CPU, stop_both};
use crate::programs::Programs;
use crate::protocol::{Listening, Outcome, Snapshot, Within};

/// A server, and its client once it was started.
pub(super) struct Pair {
    case: Case,
    load: Load,
    server: Process,
    addr: std::net::SocketAddr,
    pub(super) note: Option<String>,
    /// The server's, before there was a client.
    pub(super) before: Snapshot,
    client_program: OsString,
    client: Option<Process>,
}

impl Pair {
    /// Starts the server.
    pub(super) async fn serve(
        path: &Path,
        programs: &Programs,
        case: Case,
        load: Load,
    ) -> anyhow::Result<Self> {
        let client_program = programs.program(case.peer)?;
        let case_of_server = Case { peer: case.server.unwrap_or(case.peer), server: None, ..case };
        let program = programs.program(case_of_server.peer)?;
        let listen = ["--listen".into(), format!("{}:0", path.server().address())];
        let arguments = arguments("server", case_of_server, load, listen);
        let mut server = start(path.server(), SERVER_CPU, &program, arguments)?;
        let Listening { addr, note } =
            server.receive(PROMPT).await.context("the server did not start")?;
        let before = server.ask().await?;
        Ok(Self { case, load, server, addr, note, before, client_program, client: None })
    }

    /// Starts the client.
    pub(super) fn connect(&mut self, path: &Path) -> anyhow::Result<()> {
        let connect = ["--connect".into(), self.addr.to_string()];
        let arguments = arguments("client", self.case, self.load, connect);
        self.client = Some(start(path.client(), CLIENT_CPU, &self.client_program, arguments)?);
        Ok(())
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.server.pinned && self.client.as_ref().is_some_and(|client| client.pinned)
    }

    /// Waits for the client to be done.
    pub(super) async fn outcome(&mut self) -> anyhow::Result<Outcome> {
        // Its own limit, the time to connect, and that to start and to answer.
        let limit = self.load.time(self.case.workload) + TIMEOUT + 2 * PROMPT;
        let client = self.client.as_mut().context("no client was started")?;
        client.receive(limit).await.context("the client")
    }

    /// The server's counters so far.
    pub(super) async fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        self.server.ask().await
    }

    pub(super) async fn stop(self) {
        stop_both(self.server, self.client).await;
    }

    /// Waits for the client, stops both, and returns the payload that the server has read and its
    /// goodput in Mbit/s.
    pub(super) async fn end(mut self) -> anyhow::Result<(u64, f64)> {
        self.outcome().await?;
        let after = self.snapshot().await?;
        let bytes = after.bytes - self.before.bytes;
        self.stop().await;
        let goodput = after.within.and_then(goodput);
        Ok((bytes, goodput.context("its server reports no bytes within the time")?))
    }
}

/// 10^6 bits per second.
pub(super) fn goodput(within: Within) -> Option<f64> {
    (within.seconds > 0.0).then(|| within.bytes as f64 * 8.0 / 1e6 / within.seconds)
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

fn arguments(role: &str, case: Case, load: Load, address: [String; 2]) -> Vec<String> {
    let mut arguments = role_arguments(role, case);
    arguments.extend(address);
    let seconds = load.time(case.workload).as_secs();
    arguments.extend(["--seconds".into(), seconds.to_string()]);
    if load.streams > 1 && case.workload == Workload::Bulk {
        arguments.extend(["--streams".into(), load.streams.to_string()]);
    }
    if case.workload == Workload::Msg {
        let every = format!("{}us", micros(load.every));
        arguments.extend(["--every".into(), every, "--size".into(), load.size.to_string()]);
    }
    arguments
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
