//! A child process that plays one role of a measurement and speaks in lines of JSON.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::args::PROMPT;
use crate::os::Pin;
use crate::protocol::Snapshot;

pub(crate) const SERVER_CPU: usize = 0;
pub(crate) const CLIENT_CPU: usize = 1;
/// The time for a process to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A child, which is killed with its measurement if it does not end by itself.
pub(crate) struct Process {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    pub(crate) pinned: bool,
}

impl Process {
    /// Starts it in the network namespace and as the user of the calling thread.
    pub(crate) fn start(cpu: usize, program: &OsStr, arguments: &[String]) -> anyhow::Result<Self> {
        // A child has the CPUs of the thread that starts it, from its first instruction on.
        let pin = Pin::to(cpu);
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let answers = child.stdout.take().context("a child without output")?;
        Ok(Self {
            requests: child.stdin.take(),
            answers: BufReader::new(answers).lines(),
            child,
            pinned: pin.holds(),
        })
    }

    pub(crate) async fn receive<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> anyhow::Result<T> {
        let line = timeout(limit, self.answers.next_line()).await;
        let line = line.with_context(|| format!("not done after {} s", limit.as_secs()))??;
        let line = line.context("ended without a result")?;
        serde_json::from_str(&line).with_context(|| format!("not understood: {line}"))
    }

    pub(crate) async fn ask(&mut self) -> anyhow::Result<Snapshot> {
        let requests = self.requests.as_mut().context("asked after the end")?;
        requests.write_all(b"\n").await.context("the server")?;
        self.receive(PROMPT).await.context("the server")
    }

    /// The end of its input is the sign to end.
    async fn stop(mut self) {
        self.requests = None;
        if timeout(EXIT_TIMEOUT, self.child.wait()).await.is_err() {
            // Fails if it has ended by now.
            let _ = self.child.kill().await;
        }
    }
}

/// Ends the processes of a measurement, the server first: it need not see how its connections end.
pub(crate) async fn stop_both(server: Process, client: Option<Process>) {
    server.stop().await;
    if let Some(client) = client {
        client.stop().await;
    }
}
