//! The server: echoes, and says who it is.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kcpx::{Config, KcpListener, KcpStream, Shutdown};
use listenfd::ListenFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::BLOCK;
use super::http::Http;
use super::signals::interrupted;
use super::usage::checked;

/// Longest id: one byte has its length.
const MAX_ID: usize = 255;

/// How long streams that are still open after `--drain-timeout` have to end in order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Echoes, with its id in each answer. SIGTERM or Ctrl-C: accepts no more clients, and ends once the last
/// one has gone; a second time: ends at once. SIGHUP: ends for the next process on the same sockets.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Its name in each answer and in the metrics; 1 to 255 bytes
    #[arg(long, default_value = "server")]
    id: String,
    /// Address to listen on, as HOST:PORT; port 0 picks a free one. Not used with sockets in LISTEN_FDS, as
    /// systemd and `supervise` pass them; several must have one address (ReusePort=)
    #[arg(long, default_value = "127.0.0.1:4008")]
    listen: String,
    /// TCP address for HTTP: /healthz (200, or 503 while it drains) and /metrics
    #[arg(long, default_value = "127.0.0.1:9470")]
    health: String,
    /// Seconds after SIGTERM in which clients may finish; then their streams are ended. A service manager
    /// has to wait longer (TimeoutStopSec=)
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    drain_timeout: u64,
    /// Milliseconds after SIGHUP in which clients may end in order, while newcomers wait
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    handover_timeout: u64,
    /// The process that has to outlive this one
    #[cfg(target_os = "linux")]
    #[arg(long, hide = true)]
    supervisor: Option<u32>,
}

/// The sockets that this process was started with. They stay open when it ends: the process that passed
/// them on has them too.
pub(crate) fn inherited() -> Result<Vec<UdpSocket>> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..passed.len() {
        sockets.extend(passed.take_udp_socket(index).context("a socket of LISTEN_FDS")?);
    }
    Ok(sockets)
}

fn valid(id: &str) -> Result<()> {
    ensure!(
        (1..=MAX_ID).contains(&id.len()),
        "--id must have 1 to {MAX_ID} bytes, got {}",
        id.len()
    );
    Ok(())
}

pub(crate) async fn run(args: Args, inherited: Vec<UdpSocket>) -> Result<()> {
    checked(valid(&args.id));
    #[cfg(target_os = "linux")]
    if let Some(id) = args.supervisor {
        super::supervise::end_with_supervisor(id)?;
    }
    let outlives = !inherited.is_empty();
    // The signals are caught before anybody can know that this process is there.
    let (hang_up, interrupt) = (HangUp::new()?, interrupted());
    let http = Http::bind(&args.health).await?;
    let listener = Arc::new(listen(&args.listen, inherited).await?);
    println!("listening on {}", listener.local_addr()?);
    println!("health at http://{}/healthz", http.tcp.local_addr()?);
    let draining = http.serve(&args.id, listener.endpoint().clone());
    tokio::spawn(accept(listener.clone(), args.id));
    tokio::select! {
        interrupted = interrupt => {
            interrupted?;
            draining.store(true, Ordering::Relaxed);
            drain(&listener, Duration::from_secs(args.drain_timeout)).await;
        }
        () = hang_up.received(outlives) => {
            hand_over(&listener, Duration::from_millis(args.handover_timeout)).await;
        }
    }
    Ok(())
}

async fn listen(addr: &str, mut inherited: Vec<UdpSocket>) -> Result<KcpListener> {
    let config = Config::new();
    let listener = match (inherited.pop(), inherited.len()) {
        (None, _) => KcpListener::bind_with(addr, config).await.with_context(|| {
            format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4008")
        })?,
        (Some(socket), 0) => KcpListener::from_std_with(socket, config)?,
        (Some(last), _) => {
            inherited.push(last);
            KcpListener::from_std_group(inherited, config)?
        }
    };
    Ok(listener)
}

async fn accept(listener: Arc<KcpListener>, id: String) {
    let id: Arc<str> = id.into();
    // An error: it drains.
    while let Ok((stream, peer)) = listener.accept().await {
        let id = id.clone();
        tokio::spawn(async move {
            if let Err(error) = echo(stream, &id).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// Answers each block with the length of the id, the id, the block, and the CRC of these three.
async fn echo(mut stream: KcpStream, id: &str) -> std::io::Result<()> {
    let mut answer = vec![u8::try_from(id.len()).unwrap_or(u8::MAX)];
    answer.extend(id.as_bytes());
    let begin = answer.len();
    loop {
        answer.resize(begin + BLOCK, 0);
        match stream.read_exact(&mut answer[begin..]).await {
            // Dropping the stream ends the other direction.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let crc = crc32fast::hash(&answer);
        answer.extend(crc.to_le_bytes());
        match stream.write_all(&answer).await {
            // This process ends, and the client asks the next one.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
}

async fn drain(listener: &KcpListener, limit: Duration) {
    let (begin, open) = (Instant::now(), listener.endpoint().open_connections());
    println!("draining: {open} connections are open");
    if timeout(limit, listener.shutdown(Shutdown::Drain)).await.is_err() {
        let left = listener.endpoint().open_connections();
        println!("still open after {limit:?}, and ended now: {left} connections");
        listener.shutdown(Shutdown::Close { timeout: CLOSE_TIMEOUT }).await;
    }
    println!("drained in {:.3} s", begin.elapsed().as_secs_f64());
}

async fn hand_over(listener: &KcpListener, limit: Duration) {
    let (begin, open) = (Instant::now(), listener.endpoint().open_connections());
    println!("handing over: {open} connections are open");
    let in_order = listener.shutdown(Shutdown::HandOver { timeout: limit }).await;
    let how = if in_order { "in order" } else { "some by a reset" };
    println!("handed over in {:.3} s, {how}", begin.elapsed().as_secs_f64());
}

/// SIGHUP, where there is one.
struct HangUp {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl HangUp {
    fn new() -> Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
        })
    }

    /// Waits for one, while another process has the sockets too.
    #[cfg(unix)]
    async fn received(mut self, outlives: bool) {
        while self.signal.recv().await.is_some() {
            if outlives {
                return;
            }
            println!(
                "SIGHUP ignored: no other process has these sockets; start this one by `supervise` or systemd"
            );
        }
        std::future::pending().await
    }

    #[cfg(not(unix))]
    async fn received(self, _: bool) {
        std::future::pending().await
    }
}
