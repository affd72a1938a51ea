//! What systemd does for a service with a `.socket` unit, as far as a restart needs it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use anyhow::{Context, Result, ensure};
use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// The first descriptor of LISTEN_FDS.
const FIRST_FD: i32 = 3;

/// Holds the sockets, and runs one server after the other on them: SIGHUP ends it with SIGHUP and starts
/// the next; SIGTERM and Ctrl-C end it with SIGTERM.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen, as HOST:PORT; port 0 picks a free one
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
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let sockets = bind(args.listen, args.sockets)
        .with_context(|| format!("cannot listen on {}: expected a free IP:PORT", args.listen))?;
    let addr = sockets[0].local_addr()?.as_socket().context("a socket without an address")?;
    println!("listening on {addr}");
    let mut child = start(&sockets, &args.server)?;
    let status = loop {
        let end = tokio::select! {
            _ = hang_up.recv() => Signal::SIGHUP,
            _ = terminate.recv() => Signal::SIGTERM,
            _ = interrupt.recv() => Signal::SIGTERM,
            ended = child.wait() => break ended?,
        };
        let asked = Instant::now();
        // One reader at a time: the next process starts when this one has ended.
        let status = end_with(&mut child, end).await?;
        if end == Signal::SIGTERM {
            break status;
        }
        ensure!(status.success(), "the server has ended with {status} instead of a handover");
        child = start(&sockets, &args.server)?;
        println!("the next server runs, {:.3} s after SIGHUP", asked.elapsed().as_secs_f64());
    };
    ensure!(status.success(), "the server has ended with {status}");
    Ok(())
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

/// LISTEN_PID is missing, since a process has to be there before its id is known; `listenfd` takes that for
/// its own.
fn start(sockets: &[Socket], options: &[String]) -> Result<Child> {
    let mut passed = Vec::new();
    for (child_fd, socket) in (FIRST_FD..).zip(sockets) {
        passed.push(FdMapping { parent_fd: OwnedFd::from(socket.try_clone()?), child_fd });
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("server").args(options).env("LISTEN_FDS", sockets.len().to_string());
    // In a process group of its own: Ctrl-C is for this process, which passes it on once.
    let child = command.fd_mappings(passed)?.process_group(0).kill_on_drop(true).spawn();
    child.context("cannot start the server")
}

async fn end_with(child: &mut Child, signal: Signal) -> Result<ExitStatus> {
    if let Some(id) = child.id() {
        // An error: it has ended by itself.
        let _ = kill(Pid::from_raw(i32::try_from(id)?), signal);
    }
    Ok(child.wait().await?)
}
