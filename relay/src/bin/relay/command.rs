//! A command at one end: how it starts, what it prints, how it ends.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kcpx_relay::End;
use serde_json::Value;

/// Lines that the report keeps of each command, the last ones.
const LINES: usize = 1_000;
/// Bytes of a line; a longer one is cut into several.
const LINE: u64 = 64 * 1024;
/// How long a server has to end by itself.
const GRACE: Duration = Duration::from_secs(1);
/// Between two polls of a child.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A command that is killed when this goes, however that happens.
#[derive(Debug)]
pub(crate) struct Running {
    name: String,
    child: Child,
    /// Until it is ready; afterwards nothing reads them, and nothing is kept.
    lines: Option<Receiver<String>>,
    reader: Option<JoinHandle<VecDeque<String>>>,
}

impl Running {
    /// Starts `command` at `end`, through this program, which ties it to the relay.
    pub(crate) fn start(
        name: String,
        command: &str,
        input: Stdio,
        end: &End,
    ) -> anyhow::Result<Self> {
        let words = shlex::split(command).with_context(|| format!("{command}: open quotes"))?;
        let (Some(program), true) = (words.first(), words.iter().all(|word| !word.contains('\0')))
        else {
            bail!("the {name}'s command is empty, or has a byte 0");
        };
        let mut tied = Command::new("/proc/self/exe");
        tied.arg("tied").arg("--").args(&words).stdin(input).stdout(Stdio::piped());
        let mut child =
            end.spawn(tied).with_context(|| format!("the {name} {program} did not start"))?;
        let output = child.stdout.take().context("its output")?;
        let (lines_out, lines) = channel();
        let reader = thread::spawn({
            let name = name.clone();
            move || read(&name, output, &lines_out)
        });
        Ok(Self { name, child, lines: Some(lines), reader: Some(reader) })
    }

    /// Waits for a line that contains `text`.
    pub(crate) fn ready(&mut self, text: &str, deadline: Instant) -> anyhow::Result<()> {
        let lines = self.lines.take().context("it was ready before")?;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(rest) {
                Ok(line) if line.contains(text) => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("the {} was not ready in time", self.name),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the {} ended before it was ready", self.name)
                }
            }
        }
    }

    /// Whether it ended by now. Its lines are dropped, so `ready` comes before.
    fn has_ended(&mut self) -> anyhow::Result<bool> {
        self.lines = None;
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills it, unless it has ended.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill()?)
    }

    /// Closes its input, and kills it when that does not end it. How it ended, and what it
    /// printed.
    pub(crate) fn end(mut self) -> anyhow::Result<(ExitStatus, Vec<Value>)> {
        drop(self.child.stdin.take());
        if wait(std::slice::from_mut(&mut self), Instant::now() + GRACE)?.contains(&None) {
            self.kill()?;
        }
        let status = self.child.wait()?;
        let lines = self.reader.take().and_then(|reader| {
            // A grandchild that lives on may hold the output open: it is not waited for.
            let deadline = Instant::now() + GRACE;
            while !reader.is_finished() && Instant::now() < deadline {
                thread::sleep(POLL_INTERVAL);
            }
            if reader.is_finished() { reader.join().ok() } else { None }
        });
        Ok((status, lines.into_iter().flatten().map(value).collect()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Neither matters for one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until all have ended, at most until `deadline`; when each did, where it did.
pub(crate) fn wait(
    commands: &mut [Running],
    deadline: Instant,
) -> anyhow::Result<Vec<Option<Instant>>> {
    let mut ends = vec![None; commands.len()];
    loop {
        for (command, end) in commands.iter_mut().zip(&mut ends) {
            if end.is_none() && command.has_ended()? {
                *end = Some(Instant::now());
            }
        }
        if ends.iter().all(Option::is_some) || Instant::now() >= deadline {
            return Ok(ends);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Passes lines on, to people and to a waiter for one, and keeps the last ones.
fn read(name: &str, output: ChildStdout, lines_out: &Sender<String>) -> VecDeque<String> {
    let mut output = BufReader::new(output);
    let mut kept = VecDeque::new();
    loop {
        let mut line = Vec::new();
        match output.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return kept,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        eprintln!("{name}: {line}");
        if kept.len() == LINES {
            kept.pop_front();
        }
        kept.push_back(line.clone());
        // It fails once the receiver is gone.
        let _ = lines_out.send(line);
    }
}

/// A line that is a JSON object becomes part of the report, any other a string in it.
fn value(line: String) -> Value {
    let object = serde_json::from_str(&line).ok().filter(Value::is_object);
    object.unwrap_or(Value::String(line))
}

/// Makes this process `command`, which ends with the thread that started it.
pub(crate) fn become_tied(command: &[OsString]) -> anyhow::Error {
    if let Err(error) = kcpx_relay::die_with_parent() {
        return error;
    }
    let Some((program, arguments)) = command.split_first() else {
        return anyhow::anyhow!("no command");
    };
    let error = Command::new(program).args(arguments).exec();
    anyhow::Error::from(error).context(format!("{} did not start", program.to_string_lossy()))
}
