//! Starts the program for tests, and provides services for it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_kcpx-tunnel");
/// For conditions that come true within milliseconds on an idle machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Variables that would change the program's behaviour.
const VARIABLES: [&str; 8] = [
    "KCPTUN_KEY",
    "NOTIFY_SOCKET",
    "SS_REMOTE_HOST",
    "SS_REMOTE_PORT",
    "SS_LOCAL_HOST",
    "SS_LOCAL_PORT",
    "SS_PLUGIN_OPTIONS",
    "TOKIO_WORKER_THREADS",
];

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null());
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// Runs the program until it ends.
pub fn output(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// A running program, killed on drop.
pub struct Running {
    pub child: Child,
    pub log: PathBuf,
}

impl Running {
    /// Starts the program with a log in `log`.
    pub fn start(log: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = command(args);
        command.arg("-log").arg(log).envs(variables.iter().copied());
        Self { child: command.spawn().unwrap(), log: log.to_owned() }
    }

    /// Waits for the text in the log, and returns the log.
    pub fn wait_for(&mut self, text: &str) -> String {
        wait_until(&format!("{text:?} in {}", self.log.display()), || {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(log.contains(text), "ended with {status} without {text:?}:\n{log}");
            }
            log.contains(text).then_some(log)
        })
    }

    /// Waits for the address that follows `text` in the log.
    pub fn address(&mut self, text: &str) -> SocketAddr {
        let log = self.wait_for(text);
        let rest = &log[log.find(text).unwrap() + text.len()..];
        let end = rest.find([' ', '/', '\n']).unwrap();
        rest[..end].trim_end_matches(':').parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait_until("the end of the program", || child.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "no {what} within {DEADLINE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A TCP server that sends `greeting` and then echoes.
pub fn echo(greeting: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                stream.write_all(greeting.as_bytes())?;
                std::io::copy(&mut stream.try_clone()?, &mut stream)
            });
        }
    });
    address
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends `text` and expects it after the greeting.
pub fn exchange(stream: &mut TcpStream, text: &str, greeting: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = vec![0; greeting.len() + text.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), format!("{greeting}{text}"));
}
