//! The two processes of a measurement.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin, stdin};
use tokio::time::timeout;

use crate::args::{Case, Load, PROMPT, Peer, Role, TIMEOUT, Workload, name};
#[cfg(feature = "together")]
use crate::machine;
use crate::os;
use crate::peers::{self, Accept, Connect, Duplex};
use crate::protocol::{Listening, Outcome, Snapshot};
use crate::workload::{Seen, bulk, echo, many, msg, pingpong, sink};

pub(crate) async fn play(role: Role) -> anyhow::Result<()> {
    // If the limit is still too low, the workload says so.
    os::raise_file_limit()?;
    match role {
        Role::Server { case, listen, load } => server(case, listen, load).await,
        Role::Client { case, connect, load } => client(case, connect, load).await,
    }
}

async fn server(case: Case, listen: SocketAddr, load: Load) -> anyhow::Result<()> {
    match case.peer {
        #[cfg(feature = "together")]
        Peer::Kcpx | Peer::KcpxAuto | Peer::KcpxQlog => {
            serve::<peers::kcpx::Server>(case, listen, load).await
        }
        #[cfg(feature = "together")]
        Peer::TokioKcp => serve::<peers::tokio_kcp::Server>(case, listen, load).await,
        #[cfg(feature = "together")]
        Peer::KcpTokio => serve::<peers::kcp_tokio::Server>(case, listen, load).await,
        #[cfg(feature = "together")]
        Peer::KcpRs => serve::<peers::kcp_rs::Server>(case, listen, load).await,
        #[cfg(feature = "together")]
        Peer::Quinn | Peer::QuinnBbr => serve::<peers::quinn::Server>(case, listen, load).await,
        #[cfg(feature = "together")]
        Peer::Memcpy | Peer::Udp | Peer::UdpGso => serve_machine(case, listen).await,
        #[cfg(feature = "together")]
        Peer::Tcp => serve::<peers::tcp::Server>(case, listen, load).await,
        #[cfg(feature = "apart")]
        Peer::RustTokioKcp => serve::<peers::rust_tokio_kcp::Server>(case, listen, load).await,
        peer => bail!("{} is in another program", name(peer)),
    }
}

async fn client(case: Case, connect: SocketAddr, load: Load) -> anyhow::Result<()> {
    match case.peer {
        #[cfg(feature = "together")]
        Peer::Kcpx | Peer::KcpxAuto | Peer::KcpxQlog => {
            work::<peers::kcpx::Client>(case, connect, load).await
        }
        #[cfg(feature = "together")]
        Peer::TokioKcp => work::<peers::tokio_kcp::Client>(case, connect, load).await,
        #[cfg(feature = "together")]
        Peer::KcpTokio => work::<peers::kcp_tokio::Client>(case, connect, load).await,
        #[cfg(feature = "together")]
        Peer::KcpRs => work::<peers::kcp_rs::Client>(case, connect, load).await,
        #[cfg(feature = "together")]
        Peer::Quinn | Peer::QuinnBbr => work::<peers::quinn::Client>(case, connect, load).await,
        #[cfg(feature = "together")]
        Peer::Memcpy | Peer::Udp | Peer::UdpGso => {
            finish(case, load, async { Ok((machine::work(case, connect, load).await?, ())) }).await
        }
        #[cfg(feature = "together")]
        Peer::Tcp => work::<peers::tcp::Client>(case, connect, load).await,
        #[cfg(feature = "apart")]
        Peer::RustTokioKcp => work::<peers::rust_tokio_kcp::Client>(case, connect, load).await,
        peer => bail!("{} is in another program", name(peer)),
    }
}

fn report(what: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(io::stdout().flush()?)
}

fn requests() -> Lines<BufReader<Stdin>> {
    BufReader::new(stdin()).lines()
}

/// Ends the process as it is: how a connection ends is not what is measured.
fn end() -> ! {
    std::process::exit(0)
}

/// Starts a thread that ends the process when its standard input ends, with a failure unless
/// `done`.
///
/// The program that started this process holds the other end of the input, and may be killed at any
/// time; the system then closes that end. A thread waits for it, so that the task which is measured
/// polls nothing more.
fn end_with_input(done: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("input".into()).spawn(move || {
        // An error of the input is its end as well.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        if done.load(Ordering::Acquire) {
            end();
        }
        // Fails if the reader of this is gone.
        let _ = writeln!(io::stderr(), "client: the input has ended before there was a result");
        std::process::exit(1);
    })
}

async fn serve<A: Accept>(case: Case, listen: SocketAddr, load: Load) -> anyhow::Result<()> {
    let mut listener = A::bind(case, listen).await?;
    let note = (A::NOTE)(case);
    let addr = listener.addr()?;
    let seen = Arc::new(Seen::default());
    let shared = seen.clone();
    let accepting = async move {
        loop {
            let stream = listener.accept().await?;
            shared.connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(attend(case.workload, stream, shared.clone(), load));
        }
    };
    report(&Listening { addr, note })?;
    tokio::select! {
        ended = accepting => ended,
        ended = answer(&seen) => ended,
    }
    .map(|()| end())
}

#[cfg(feature = "together")]
async fn serve_machine(case: Case, listen: SocketAddr) -> anyhow::Result<()> {
    let server = machine::Server::bind(case, listen).await?;
    let seen = Arc::new(Seen::default());
    report(&Listening { addr: server.addr()?, note: None })?;
    tokio::select! {
        ended = server.serve(seen.clone()) => ended,
        ended = answer(&seen) => ended,
    }
    .map(|()| end())
}

/// Answers each line of the input with what was seen, until the input ends.
async fn answer(seen: &Seen) -> anyhow::Result<()> {
    let mut requests = requests();
    while requests.next_line().await?.is_some() {
        report(&Snapshot {
            cpu_s: os::cpu_seconds()?,
            rss_kib: os::resident_kib()?,
            bytes: seen.read(),
            connections: seen.connections.load(Ordering::Relaxed),
            messages: seen.messages(),
            within: seen.within(),
        })?;
    }
    Ok(())
}

async fn attend(workload: Workload, mut stream: impl Duplex, seen: Arc<Seen>, load: Load) {
    let done = match workload {
        Workload::Sink => sink::serve(&mut stream, &seen).await,
        Workload::Echo => echo::serve(&mut stream, &seen, false).await,
        Workload::Pingpong => echo::serve(&mut stream, &seen, true).await,
        Workload::Many => many::serve(&mut stream, &seen).await,
        Workload::Msg => msg::serve(&mut stream, &seen, load.size).await,
        Workload::Bulk => bulk::serve(&mut stream, &seen, load.time(workload)).await,
    };
    if let Err(error) = done {
        // One stands for all: there may be thousands of the same kind.
        static FIRST: Once = Once::new();
        FIRST.call_once(|| eprintln!("server: a connection failed: {error:#}"));
    }
    // The connection stays for as long as the process.
    std::future::pending::<()>().await;
}

async fn work<C: Connect>(case: Case, server: SocketAddr, load: Load) -> anyhow::Result<()> {
    let working = async {
        let client = C::new(case, server).await?;
        if case.workload == Workload::Many {
            return many::run(client, load).await;
        }
        if case.workload == Workload::Bulk && load.streams > 1 {
            return bulk::run_all(client, load).await;
        }
        let mut stream = client.connect().await?;
        let outcome = match case.workload {
            Workload::Sink => sink::run(&mut stream, load).await?,
            Workload::Echo => echo::run(&mut stream, load).await?,
            Workload::Msg => msg::run(&mut stream, load).await?,
            Workload::Bulk => bulk::run(&mut stream, load).await?,
            Workload::Pingpong | Workload::Many => pingpong::run(&mut stream, load).await?,
        };
        Ok((outcome, vec![stream]))
    };
    finish(case, load, working).await
}

/// Reports the outcome of `working`, and ends with the input; what it returns beside stays until then.
async fn finish<T>(
    case: Case,
    load: Load,
    working: impl Future<Output = anyhow::Result<(Outcome, T)>>,
) -> anyhow::Result<()> {
    let reported = Arc::new(AtomicBool::new(false));
    let ending = end_with_input(reported.clone())?;
    // Those two have that limit of their own, and say then how far they came.
    let connecting = if case.workload.is_across_path() { PROMPT } else { Duration::ZERO };
    let limit = load.time(case.workload) + TIMEOUT + connecting;
    let done = timeout(limit, working).await;
    let (outcome, _streams) =
        done.with_context(|| format!("not done after {} s", limit.as_secs()))??;
    report(&outcome)?;
    reported.store(true, Ordering::Release);
    // The connections stay until then.
    ending.join().map_err(|_| anyhow!("the thread that waits for the end of the input panicked"))
}
