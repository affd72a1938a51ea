//! A server in its own process, so that a test can kill it: this test's executable, with commands on its
//! standard input and answers on its standard output. It ends with its input.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kcpx::{KcpListener, KcpStream, Shutdown};
use nix::sys::signal::{Signal, raise};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::common::host::Host;
use crate::common::one_thread;
use crate::crowd::{BLOCK, is_intact, with_server};
use crate::network::{Network, SERVERS, address};
use crate::{GUARD, config};

/// Number, address, and whether the server permits migration.
const VARIABLE: &str = "KCPX_BALANCER_SERVER";

/// Marks lines for the parent, since the test harness prints too.
const PREFIX: &str = "@server ";

/// Kills a stopped server, its parent, when their common input ends.
const KILLER: &str = r#"cat >/dev/null
    read -r pid name state parent rest </proc/$$/stat
    if [ "$parent" = $PPID ]; then kill -9 $PPID; fi"#;

/// The process of a server.
pub(crate) struct Server {
    child: Child,
    commands: Option<ChildStdin>,
    answers: Receiver<String>,
}

/// Counters of a server.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) open_connections: usize,
    pub(crate) migrations: u64,
    pub(crate) stateless_resets: u64,
    /// Arrival time of the first datagram from each address.
    pub(crate) first_datagrams: HashMap<SocketAddr, SystemTime>,
}

impl Server {
    /// Starts a server on its host, and waits until it listens.
    pub(crate) fn start(host: &Host, number: usize, migrates: bool) -> Self {
        let server = Self::start_at(host, number, address(number), migrates);
        server.answer("ready");
        server
    }

    /// Starts one server on each host.
    pub(crate) fn start_all(hosts: &[Host], migrates: bool) -> Vec<Self> {
        let start = |(number, host)| Self::start(host, number, migrates);
        (0..SERVERS).zip(hosts).map(start).collect()
    }

    fn start_at(host: &Host, number: usize, addr: SocketAddr, migrates: bool) -> Self {
        let start = move || {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "server::server_process_ends_with_its_input", "--nocapture"])
                .env(VARIABLE, format!("{number} {addr} {migrates}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut child = host.start(start).recv().unwrap();
        let (sender, answers) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(PREFIX) {
                    // Fails once the parent no longer reads.
                    drop(sender.send(line.to_owned()));
                }
            }
        });
        let commands = child.stdin.take();
        Self { child, commands, answers }
    }

    fn command(&self, command: &str) {
        writeln!(self.commands.as_ref().unwrap(), "{command}").unwrap();
    }

    /// Returns the next line, which must begin with `word`, without it.
    #[track_caller]
    fn answer(&self, word: &str) -> String {
        let line = self.answers.recv_timeout(GUARD).unwrap_or_else(|_| panic!("not {word}"));
        line.strip_prefix(word).unwrap_or_else(|| panic!("{line}, not {word}")).to_owned()
    }

    pub(crate) fn report(&self) -> Report {
        self.command("report");
        let line = self.answer("report");
        let mut words = line.split_whitespace();
        let mut count = || words.next().unwrap().parse::<u64>().unwrap();
        let (open, migrations, stateless_resets) = (count(), count(), count());
        let first = |word: &str| {
            let (addr, nanos) = word.split_once('=').unwrap();
            let since = Duration::from_nanos(nanos.parse().unwrap());
            (addr.parse().unwrap(), UNIX_EPOCH + since)
        };
        Report {
            open_connections: usize::try_from(open).unwrap(),
            migrations,
            stateless_resets,
            first_datagrams: words.map(first).collect(),
        }
    }

    /// Starts to drain.
    pub(crate) fn drain(&self) {
        self.command("drain");
        self.answer("draining");
    }

    /// Waits until everything is drained and the process has ended.
    pub(crate) fn drained(mut self) -> ExitStatus {
        self.answer("drained");
        self.child.wait().unwrap()
    }

    /// Kills the process: its peers get no message.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the process with SIGSTOP, so it is as silent as a lost host.
    pub(crate) fn stop(&self) {
        self.command("stop");
        self.answer("stopping");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the process has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs the server if [`VARIABLE`] is set, otherwise tests one.
#[test]
fn server_process_ends_with_its_input() {
    if let Ok(of_parent) = std::env::var(VARIABLE) {
        let words: Vec<_> = of_parent.split(' ').collect();
        let migrates = words[2] == "true";
        let status = one_thread().block_on(serve(
            words[0].parse().unwrap(),
            words[1].parse().unwrap(),
            migrates,
        ));
        std::process::exit(status);
    }
    let Some(network) = Network::new(|_| Ok(())) else { return };
    let mut server = Server::start_at(&network.servers[0], 3, address(0), false);
    server.answer("ready");
    assert_eq!(server.report().first_datagrams.len(), 0);
    server.commands = None;
    assert_eq!(server.child.wait().unwrap().code(), Some(3));
}

fn say(line: &str) {
    // The harness may have begun a line.
    println!("\n{PREFIX}{line}");
}

/// Serves until the input ends or everything is drained. Returns the exit status.
async fn serve(number: u8, addr: SocketAddr, migrates: bool) -> i32 {
    let first = Arc::new(Mutex::new(HashMap::new()));
    let seen = first.clone();
    let config = config(migrates).packet_filter(move |from, _| {
        seen.lock().unwrap().entry(from).or_insert_with(SystemTime::now);
        false
    });
    let listener = Arc::new(KcpListener::bind_with(addr, config).await.unwrap());
    say("ready");
    let accepting = listener.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = accepting.accept().await {
            tokio::spawn(echo(stream, number));
        }
    });
    let mut commands = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(command)) = commands.next_line().await {
        match &*command {
            "report" => say(&report(&listener, &first.lock().unwrap())),
            "drain" => {
                let mut drain = std::pin::pin!(listener.shutdown(Shutdown::Drain));
                // One poll closes the accept queue.
                tokio::select! { biased; _ = &mut drain => {}, () = std::future::ready(()) => {} }
                say("draining");
                drain.await;
                say("drained");
                return 0;
            }
            "stop" => {
                let mut shell = Command::new("sh");
                let mut killer = shell.args(["-c", KILLER]).stdout(Stdio::null()).spawn().unwrap();
                say("stopping");
                raise(Signal::SIGSTOP).unwrap();
                // Returns only if another process continues this one.
                killer.wait().unwrap();
            }
            other => panic!("command {other}"),
        }
    }
    3
}

fn report(listener: &KcpListener, first: &HashMap<SocketAddr, SystemTime>) -> String {
    let (stats, open) = (listener.stats(), listener.endpoint().open_connections());
    let mut line =
        format!("report {open} {} {}", stats.connections.migrations, stats.stateless_resets_sent);
    for (addr, at) in first {
        let nanos = at.duration_since(UNIX_EPOCH).unwrap().as_nanos();
        line += &format!(" {addr}={nanos}");
    }
    line
}

/// Answers each block with the block and the number of this server, until the client ends.
async fn echo(mut stream: KcpStream, number: u8) {
    let mut block = [0; BLOCK];
    while stream.read_exact(&mut block).await.is_ok() {
        assert!(is_intact(&block));
        if stream.write_all(&with_server(block, number)).await.is_err() {
            return;
        }
    }
    // Fails if the client is gone. The client counts that.
    drop(stream.shutdown().await);
}
