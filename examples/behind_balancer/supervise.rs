//! The part of systemd that a restart needs: it holds the sockets of a service with a `.socket` unit.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The first descriptor of LISTEN_FDS.
const FIRST_FD: i32 = 3;

/// Begins the line that a server prints once it has its sockets and handles its signals.
const LISTENS: &str = "listening on ";

/// Holds the sockets, and runs one server after the other on them: SIGHUP ends it with SIGHUP and starts
/// the next; SIGTERM and Ctrl-C end it with SIGTERM, and are passed on to a server that drains.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address to listen on, as HOST:PORT; port 0 picks a free one
    #[arg(long, default_value = "127.0.0.1:4008")]
    listen: SocketAddr,
    /// Sockets on that address, which share its clients
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    sockets: u8,
    /// Options of the server
    #[arg(last = true)]
    server: Vec<String>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let mut signals = Signals::new()?;
    let sockets = bind(args.listen, args.sockets)
        .with_context(|| format!("cannot listen on {}: expected a free IP:PORT", args.listen))?;
    let addr = sockets[0].local_addr()?.as_socket().context("a socket without an address")?;
    println!("{LISTENS}{addr}");
    let mut server = Server::start(&sockets, &args.server)?;
    let status = loop {
        let end = tokio::select! {
            signal = signals.next() => signal,
            ended = server.wait() => break ended?,
        };
        let asked = Instant::now();
        // One reader at a time: the next process starts when this one has ended.
        let (status, end) = server.end_with(end, &mut signals).await?;
        if end == Signal::SIGTERM {
            break status;
        }
        if !status.success() {
            println!("the server has ended with {status} instead of a handover");
        }
        server = Server::start(&sockets, &args.server)?;
        println!("the next server runs, {:.3} s after SIGHUP", asked.elapsed().as_secs_f64());
    };
    ensure!(status.success(), "the server has ended with {status}");
    Ok(())
}

/// Those that a supervisor obeys.
struct Signals {
    hang_up: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one, as it is for the server.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hang_up.recv() => Signal::SIGHUP,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.interrupt.recv() => Signal::SIGTERM,
        }
    }
}

fn bind(addr: SocketAddr, count: u8) -> Result<Vec<Socket>> {
    let (mut sockets, mut addr) = (Vec::new(), addr.into());
    for _ in 0..count {
        let socket = Socket::new(Domain::for_address(addr_of(&addr)?), Type::DGRAM, None)?;
        socket.set_reuse_port(count > 1)?;
        socket.bind(&addr)?;
        addr = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok(sockets)
}

fn addr_of(addr: &socket2::SockAddr) -> Result<SocketAddr> {
    addr.as_socket().context("no address of IP")
}

/// A process that reads the sockets.
struct Server {
    child: Child,
    /// Has a value once it listens; none comes if it ends before.
    listens: oneshot::Receiver<()>,
    /// Prints what it prints.
    prints: JoinHandle<()>,
}

impl Server {
    /// LISTEN_PID is missing, since a process has to be there before its id is known; `listenfd` takes that
    /// for its own.
    fn start(sockets: &[Socket], options: &[String]) -> Result<Self> {
        let mut passed = Vec::new();
        for (child_fd, socket) in (FIRST_FD..).zip(sockets) {
            passed.push(FdMapping { parent_fd: OwnedFd::from(socket.try_clone()?), child_fd });
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["server", "--supervisor", &std::process::id().to_string()]).args(options);
        command.env("LISTEN_FDS", sockets.len().to_string()).stdout(Stdio::piped());
        // In a process group of its own: Ctrl-C is for this process, which passes it on once.
        let child = command.fd_mappings(passed)?.process_group(0).kill_on_drop(true).spawn();
        let mut child = child.context("cannot start the server")?;
        let output = child.stdout.take().context("a server without output")?;
        let (listening, listens) = oneshot::channel();
        Ok(Self { child, listens, prints: tokio::spawn(print(output, listening)) })
    }

    /// Waits until it has ended, and all that it has printed is printed.
    async fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().await?;
        (&mut self.prints).await?;
        Ok(status)
    }

    /// Ends it with `signal`, and with further SIGTERMs while it has not ended. Returns the last one too. A
    /// SIGHUP is late then: another server is started anyway, or none.
    async fn end_with(
        &mut self,
        signal: Signal,
        signals: &mut Signals,
    ) -> Result<(ExitStatus, Signal)> {
        // A signal before it has handlers would kill it. An error: it has ended by itself.
        let _ = (&mut self.listens).await;
        self.send(signal)?;
        let mut last = signal;
        loop {
            tokio::select! {
                status = self.wait() => return Ok((status?, last)),
                next = signals.next() => if next == Signal::SIGTERM {
                    self.send(next)?;
                    last = next;
                },
            }
        }
    }

    fn send(&self, signal: Signal) -> Result<()> {
        if let Some(id) = self.child.id() {
            // An error: it has ended by itself.
            let _ = kill(Pid::from_raw(i32::try_from(id)?), signal);
        }
        Ok(())
    }
}

async fn print(output: ChildStdout, listening: oneshot::Sender<()>) {
    let (mut lines, mut listening) = (BufReader::new(output).lines(), Some(listening));
    // An error: it prints something that is no text.
    while let Ok(Some(line)) = lines.next_line().await {
        println!("{line}");
        if let Some(listening) = listening.take_if(|_| line.starts_with(LISTENS)) {
            // The supervisor may be ending.
            let _ = listening.send(());
        }
    }
}

/// Called by a server: the system kills it when its supervisor is gone, so that it does not keep the sockets
/// from the next supervisor. The system reacts to the end of the thread that started the server, which is one
/// of the runtime's.
pub(super) fn end_with_supervisor(id: u32) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    ensure!(getppid().as_raw().try_into() == Ok(id), "the supervisor, process {id}, has ended");
    Ok(())
}
