//! The links between clients and servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result, anyhow};
#[cfg(target_os = "linux")]
use kcpx_netem::{Conditions, LossyLink};
use kcpx_netem::{Counts, Relay};
use tokio::runtime::Builder;

use super::Args;
use super::contender::{self, Board, Contender, Outcome};

/// How the links of this process are made.
pub(crate) struct Network {
    /// Whether TCP crosses them, which is so in network namespaces, or why not.
    pub(crate) tcp: Result<(), String>,
}

impl Network {
    /// To be called before other threads exist.
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> Self {
        // Tried out, since permission alone does not make a device.
        let [up, down] = LossyLink::pair(Conditions::default(), 0, &Arc::default());
        let tried = kcpx_netem::allow().and_then(|()| kcpx_netem::Path::new(up, down));
        Self { tcp: tried.map(drop).map_err(|error| format!("{error:#}")) }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> Self {
        Self { tcp: Err("the kernel's TCP crosses the simulated link on Linux only".into()) }
    }

    /// Runs a contender to its end.
    pub(crate) fn run(
        &self,
        contender: Contender,
        args: Args,
        board: &Arc<Board>,
    ) -> Result<Outcome> {
        let counts = Arc::<Counts>::default();
        let exchange = match &self.tcp {
            #[cfg(target_os = "linux")]
            Ok(()) => in_namespaces(contender, args, board, &counts),
            _ => behind_a_relay(contender, args, board, &counts),
        };
        let exchange = exchange.with_context(|| format!("{} failed", contender.name()))?;
        Ok(Outcome::new(contender, args, exchange, &counts))
    }
}

/// Server and client each in a network namespace.
#[cfg(target_os = "linux")]
fn in_namespaces(
    contender: Contender,
    args: Args,
    board: &Arc<Board>,
    counts: &Arc<Counts>,
) -> Result<contender::Exchange> {
    let [up, down] = LossyLink::pair(args.link, args.seed, counts);
    let path = kcpx_netem::Path::new(up, down)?;
    let (ready, address) = channel();
    let ip = path.server().address().into();
    // It ends with the connection, or with the process.
    path.server().start(move || serve(contender, ip, |addr| ready.send(addr).unwrap_or(())))?;
    let server = address.recv().map_err(|_| anyhow!("the server ended, see above"))?;
    let board = board.clone();
    let client = path
        .client()
        .start(move || runtime()?.block_on(contender::exchange(contender, server, args, &board)))?;
    client.join().map_err(|_| anyhow!("the client panicked"))?
}

/// Both in this process over loopback, with a relay between them.
fn behind_a_relay(
    contender: Contender,
    args: Args,
    board: &Arc<Board>,
    counts: &Arc<Counts>,
) -> Result<contender::Exchange> {
    let (ready, address) = channel();
    let ip = Ipv4Addr::LOCALHOST.into();
    thread::spawn(move || serve(contender, ip, |addr| ready.send(addr).unwrap_or(())));
    let server = address.recv().map_err(|_| anyhow!("the server ended, see above"))?;
    runtime()?.block_on(async {
        let relay = Relay::start_counting(server, args.link, args.seed, counts).await?;
        contender::exchange(contender, relay.addr(), args, board).await
    })
}

fn serve(contender: Contender, ip: IpAddr, ready: impl FnOnce(SocketAddr)) {
    let served = runtime().map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(contender::serve(contender, SocketAddr::new(ip, 0), ready))
    });
    if let Err(error) = served {
        eprintln!("the server of {} ended: {error:#}", contender.name());
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    Builder::new_current_thread().enable_all().build()
}
