//! Examples as processes of their own, which end with the value that stands for them.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Against processes that hang; no test depends on how long anything takes.
const GUARD: Duration = Duration::from_secs(120);

/// A running example. It is killed when this is dropped.
pub(crate) struct Example {
    name: String,
    child: Child,
    /// Its output, line by line; disconnected when it has ended.
    lines: Receiver<String>,
}

impl Example {
    pub(crate) fn start(name: &str, args: &[&str]) -> Self {
        Self::start_with_log(name, args, "")
    }

    /// `log`: the value of `RUST_LOG`.
    pub(crate) fn start_with_log(name: &str, args: &[&str], log: &str) -> Self {
        let mut child = Command::new(binary(name))
            .args(args)
            .env("RUST_LOG", log)
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("an example that starts");
        let (sender, lines) = channel();
        // Errors beside the output, so that a failing test shows both. Each thread ends with its
        // pipe.
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("its output")),
            Box::new(child.stderr.take().expect("its errors")),
        ];
        for stream in streams {
            let (sender, name) = (sender.clone(), name.to_owned());
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    println!("{name}: {line}");
                    // The receiver may be gone; the pipe is drained nevertheless.
                    drop(sender.send(line));
                }
            });
        }
        Self { name: name.to_owned(), child, lines }
    }

    /// Starts one that serves, and waits until it says where it listens.
    pub(crate) fn serve(name: &str, args: &[&str]) -> (Self, SocketAddr) {
        let example = Self::start(name, args);
        let line = example.line();
        // The partner of the example takes the address with it.
        let scheme = if matches!(name, "http" | "grpc") { "http://" } else { "" };
        let addr = line.strip_prefix("listening on ").and_then(|addr| addr.strip_prefix(scheme));
        let addr = addr
            .and_then(|addr| addr.parse().ok())
            .unwrap_or_else(|| panic!("{name} began with {line:?}"));
        (example, addr)
    }

    /// The next line it prints.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(GUARD) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("{} printed nothing more", self.name),
            Err(RecvTimeoutError::Disconnected) => panic!("{} has ended", self.name),
        }
    }

    /// The next line that begins so, without that beginning.
    pub(crate) fn line_after(&self, beginning: &str) -> String {
        loop {
            if let Some(rest) = self.line().strip_prefix(beginning) {
                return rest.to_owned();
            }
        }
    }

    /// Waits until lines have come that begin so, each at least once and in any order.
    pub(crate) fn lines_after(&self, beginnings: &[&str]) {
        let mut missing = beginnings.to_vec();
        while !missing.is_empty() {
            let line = self.line();
            missing.retain(|beginning| !line.starts_with(beginning));
        }
    }

    /// Types a line into it.
    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("its input");
        writeln!(stdin, "{line}").expect("an example that reads");
    }

    /// Ends its input.
    pub(crate) fn hang_up(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Presses Ctrl-C.
    #[cfg(target_os = "linux")]
    pub(crate) fn interrupt(&self) {
        self.signal(nix::sys::signal::Signal::SIGINT);
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        use nix::sys::signal::kill;
        use nix::unistd::Pid;

        let id = i32::try_from(self.child.id()).expect("the id of a process");
        kill(Pid::from_raw(id), signal).expect("a process that is there");
    }

    /// Waits until it ends by itself. Returns whether it succeeded, and what it printed.
    pub(crate) fn end(self) -> (bool, Vec<String>) {
        let (code, lines) = self.code();
        (code == Some(0), lines)
    }

    /// Waits until it ends by itself. Returns its exit status, and what it printed.
    pub(crate) fn code(mut self) -> (Option<i32>, Vec<String>) {
        self.hang_up();
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(GUARD) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{} does not end", self.name),
            }
        }
        let status = self.child.wait().expect("the status of a child");
        (status.code(), lines)
    }

    /// Waits until it ends by itself, with success.
    #[track_caller]
    pub(crate) fn succeed(self) -> Vec<String> {
        let name = self.name.clone();
        let (success, lines) = self.end();
        assert!(success, "{name} failed: {lines:#?}");
        lines
    }

    /// Waits until it ends by itself, with an error that contains this.
    #[track_caller]
    pub(crate) fn fail_with(self, text: &str) {
        let name = self.name.clone();
        let (success, lines) = self.end();
        assert!(!success, "{name} succeeded: {lines:#?}");
        assert!(lines.iter().any(|line| line.contains(text)), "no {text:?} in {lines:#?}");
    }
}

impl Example {
    /// Waits until it ends by itself because of a wrong argument: with status 2 and one line, which contains
    /// this and leads to the help.
    #[track_caller]
    pub(crate) fn reject_with(self, text: &str) {
        let name = self.name.clone();
        let (code, lines) = self.code();
        assert_eq!(code, Some(2), "{name}: {lines:#?}");
        let [line] = &lines[..] else { panic!("{name}: {lines:#?}") };
        assert!(line.starts_with("error: ") && line.contains("--help"), "{line}");
        assert!(line.contains(text), "no {text:?} in {line}");
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Beside the directory of this test.
fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let build = test.parent().and_then(|deps| deps.parent()).expect("a build directory");
    let path = build.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is missing; `cargo test` builds the examples, and for a test alone \
         `cargo build --profile test --examples` does",
        path.display()
    );
    path
}
