//! The kcp-go programs of `interop/kcp-go`, one for each version, in the folder that
//! `KCPX_KCP_GO_DIR` names.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use kcpx_skip::programs_in;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// The environment variable that names the folder of the programs.
pub const FOLDER_VARIABLE: &str = "KCPX_KCP_GO_DIR";

/// The environment variable that, set to anything, runs all cells instead of a sample.
pub const MATRIX_VARIABLE: &str = "KCPX_KCP_GO_MATRIX";

/// Versions of kcp-go that have a program.
const VERSIONS: [&str; 2] = ["5.6.72", "5.7.5"];

/// The program of one version.
#[derive(Clone, Copy, Debug)]
pub struct KcpGo(&'static str);

impl fmt::Display for KcpGo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kcp-go {}", self.0)
    }
}

/// Every version; none, reported as skipped, if the programs have not been built.
#[must_use]
pub fn versions() -> Vec<KcpGo> {
    let programs = programs_in(FOLDER_VARIABLE);
    programs.map_or_else(Vec::new, |_| VERSIONS.map(KcpGo).to_vec())
}

/// Whether all cells run.
#[must_use]
pub fn runs_matrix() -> bool {
    std::env::var_os(MATRIX_VARIABLE).is_some()
}

fn folder() -> Option<OsString> {
    std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty())
}

impl KcpGo {
    /// Starts the program, which is killed when its value is dropped.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start<'a>(
        self,
        command: &str,
        addr: SocketAddr,
        options: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Program> {
        let folder = PathBuf::from(folder().context(FOLDER_VARIABLE)?);
        let program = folder.join(format!("kcp-go-{}", self.0));
        let mut child = Command::new(&program)
            .args([command, "--addr", &addr.to_string()])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} does not start", program.display()))?;
        let output = child.stdout.take().context("its output")?;
        Ok(Program { child, lines: BufReader::new(output).lines() })
    }

    /// Starts a server on a port of the system's choice, and returns its address.
    ///
    /// # Errors
    ///
    /// When it does not listen.
    pub async fn serve<'a>(
        self,
        options: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<(Program, SocketAddr)> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = self.start("server", any, options)?;
        let line = server.lines.next_line().await?.context("the server ended")?;
        let addr = line.strip_prefix("listening ").context("it does not listen")?;
        Ok((server, addr.parse()?))
    }
}

/// A running program.
#[derive(Debug)]
pub struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Ends a server, waits for a client, and returns what it reports.
    ///
    /// # Errors
    ///
    /// When it reports an error; the message has all of the report.
    pub async fn finish(self) -> anyhow::Result<Value> {
        let report = self.report().await?;
        ensure!(report["ok"] == true, "{report}");
        Ok(report)
    }

    /// As [`Program::finish`], whether or not all went well.
    ///
    /// # Errors
    ///
    /// When it ends without a report.
    pub async fn report(mut self) -> anyhow::Result<Value> {
        drop(self.child.stdin.take());
        let line = self.lines.next_line().await?.context("it ended without a report")?;
        self.child.wait().await?;
        Ok(serde_json::from_str(&line)?)
    }
}
