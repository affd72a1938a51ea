//! A host for tests: a thread in its own network namespace. The namespace ends with the thread, its child
//! processes and their sockets. Needs privileges.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};

type Job = Box<dyn FnOnce() + Send>;

/// A thread in its own network namespace.
pub(crate) struct Host(Sender<Job>);

impl Host {
    /// Checks that the system permits what a test needs: makes a host, connects it to another at `end` and
    /// runs `commands` there. Tests make other hosts, whose failures panic.
    pub(crate) fn probe(commands: &[&str]) -> Result<Self, String> {
        let (host, other) = (Self::new()?, Self::new()?);
        host.run(&format!("ip link add end type veth peer name end netns {}", other.id()?))?;
        for command in [&["ip link set end up"], commands].concat() {
            host.run(command)?;
        }
        Ok(host)
    }

    pub(crate) fn new() -> Result<Self, String> {
        let ((jobs, queue), (result, made)) = (channel::<Job>(), channel());
        thread::spawn(move || {
            let entered = unshare(CloneFlags::CLONE_NEWNET);
            result.send(entered.map_err(|error| format!("a network namespace: {error}"))).unwrap();
            queue.into_iter().for_each(|job| job());
        });
        made.recv().unwrap()?;
        Ok(Self(jobs))
    }

    /// Starts a job on this host.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (result, done) = channel();
        self.0.send(Box::new(move || drop(result.send(job())))).unwrap();
        done
    }

    /// Runs a program, with arguments without spaces, on this host and returns its output.
    pub(crate) fn run(&self, command: &str) -> Result<String, String> {
        let command = command.to_owned();
        let ran = self.start(move || run(&command)).recv().unwrap();
        ran.map_err(|error| error.to_string())
    }

    /// The number of the thread, which names its namespace.
    pub(crate) fn id(&self) -> Result<String, String> {
        let link = self.start(|| fs::read_link("/proc/thread-self")).recv().unwrap();
        let link = link.map_err(|error| format!("/proc/thread-self: {error}"))?;
        Ok(link.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// Runs a program in this thread's namespace and returns its output.
pub(crate) fn run(command: &str) -> io::Result<String> {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap_or_default()).args(words).output();
    let output =
        output.map_err(|error| io::Error::new(error.kind(), format!("{command}: {error}")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(io::Error::other(format!("{command}: {}", text(&output.stderr))))
}
