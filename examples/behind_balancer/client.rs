//! The client: connections that ask, and reconnect when their server goes.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kcpx::KcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use super::BLOCK;
use super::signals::interrupted;

/// Exponential back-off: longest delay of the first try, doubled with each further one, and of any.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Newcomers that are there at a time, at most.
const MAX_NEWCOMERS: usize = 1_000;

/// How long the ends of the connections may take when the client ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Keeps connections that send a block at intervals and check the answer; reconnects with exponential
/// back-off and full jitter.
///
/// Prints a line each second, and a last one that begins with `total`:
///
/// connected: connections that have a server; reconnects: how often one has lost it, so far;
/// longest_gap_ms: longest time from when a block was to be sent until it was answered, reconnects
/// included, of this second; servers: the ids of those that have answered so far; bad_checksums: answers
/// that were not what was sent, so far.
///
/// With --newcomers also, so far: newcomers, those that were answered; refused, how often one was
/// refused; resets, how often one failed otherwise; skipped, those that were due while 1,000 others had no
/// answer yet; longest_wait_ms, from connect to the answer.
///
/// Ends with status 1 if an answer was wrong, or if none came at all.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Address of the service, as HOST:PORT: the balancer's
    addr: String,
    /// Connections to keep, each from a socket of its own
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Milliseconds from one block of a connection to the next
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    interval: u64,
    /// Further clients that connect each second, ask once, and close
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    newcomers: u32,
    /// Seconds until the client ends
    #[arg(long = "for", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let mut found = tokio::net::lookup_host(&args.addr).await.with_context(|| {
        format!(
            "cannot find {:?}: write HOST:PORT with a known host, as in 127.0.0.1:4008",
            args.addr
        )
    })?;
    let addr = found.next().with_context(|| format!("{:?} has no address", args.addr))?;
    let client = Client { addr, totals: Arc::default() };
    let (end, ended) = watch::channel(());
    let (mut connections, between) = (JoinSet::new(), Duration::from_millis(args.interval));
    for number in 0..args.connections {
        // They do not send all at once.
        let delay = between.mul_f64(f64::from(number) / f64::from(args.connections));
        connections.spawn(client.clone().keep(delay, between, ended.clone()));
    }
    if args.newcomers > 0 {
        let apart = Duration::from_secs(1) / args.newcomers;
        connections.spawn(client.clone().send_newcomers(apart, ended));
    }
    tokio::select! {
        () = client.report(args.seconds, args.newcomers > 0) => {}
        interrupted = interrupted() => interrupted?,
    }
    end.send_replace(());
    // The server's timeouts end the rest.
    drop(timeout(CLOSE_TIMEOUT, connections.join_all()).await);
    let totals = client.totals();
    println!("total {}", totals.line(totals.longest_gap, args.newcomers > 0));
    ensure!(totals.bad_checksums == 0, "{} answers were wrong", totals.bad_checksums);
    ensure!(totals.answers > 0, "no answer from {addr}: is a server running there?");
    Ok(())
}

#[derive(Clone)]
struct Client {
    addr: SocketAddr,
    totals: Arc<Mutex<Totals>>,
}

impl Client {
    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints a line a second.
    async fn report(&self, seconds: u64, has_newcomers: bool) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.tick().await;
        for second in 1..=seconds {
            ticks.tick().await;
            let mut totals = self.totals();
            let gap = std::mem::take(&mut totals.gap);
            println!("t={second} {}", totals.line(gap, has_newcomers));
        }
    }

    /// One connection, from `delay` on until the client ends.
    async fn keep(self, delay: Duration, between: Duration, mut ended: watch::Receiver<()>) {
        let mut stream = None;
        tokio::select! {
            _ = ended.changed() => {}
            () = self.ask_again_and_again(&mut stream, delay, between) => {}
        }
        if let Some(stream) = stream {
            let endpoint = stream.endpoint();
            drop(stream);
            endpoint.wait_idle().await;
        }
    }

    async fn ask_again_and_again(
        &self,
        stream: &mut Option<KcpStream>,
        delay: Duration,
        between: Duration,
    ) {
        let mut due = Instant::now() + delay;
        loop {
            let mut failures = 0;
            let lost = self.rest(stream, due).await;
            let began = Instant::now();
            if lost {
                back_off(&mut failures).await;
            }
            while self.ask(stream).await.is_err() {
                self.lose(stream);
                back_off(&mut failures).await;
            }
            self.answered(began.elapsed());
            due = Instant::now() + between;
        }
    }

    fn answered(&self, gap: Duration) {
        let mut totals = self.totals();
        totals.answers += 1;
        totals.gap = totals.gap.max(gap);
        totals.longest_gap = totals.longest_gap.max(gap);
    }

    /// Waits until `due`, or for the end of the stream. Returns whether that came first.
    async fn rest(&self, stream: &mut Option<KcpStream>, due: Instant) -> bool {
        let Some(open) = stream else {
            sleep_until(due).await;
            return false;
        };
        let mut more = [0; 1];
        tokio::select! {
            () = sleep_until(due) => return false,
            // An answer without a question is wrong.
            read = open.read(&mut more) => self.totals().bad_checksums += read.unwrap_or(0) as u64,
        }
        self.lose(stream);
        true
    }

    /// One block and its answer. Without a connection, one is opened.
    async fn ask(&self, stream: &mut Option<KcpStream>) -> io::Result<()> {
        let open = match stream {
            Some(open) => open,
            None => {
                let connected = KcpStream::connect(self.addr).await?;
                self.totals().connected += 1;
                stream.insert(connected)
            }
        };
        self.exchange(open).await
    }

    fn lose(&self, stream: &mut Option<KcpStream>) {
        if stream.take().is_some() {
            let mut totals = self.totals();
            totals.connected -= 1;
            totals.reconnects += 1;
        }
    }

    /// Clients that come and go, each `apart` from the one before.
    async fn send_newcomers(self, apart: Duration, mut ended: watch::Receiver<()>) {
        let (mut ticks, mut newcomers) = (interval(apart), JoinSet::new());
        loop {
            tokio::select! {
                _ = ended.changed() => return,
                _ = ticks.tick() => if newcomers.len() < MAX_NEWCOMERS {
                    newcomers.spawn(self.clone().come_and_go());
                } else {
                    self.totals().skipped += 1;
                },
            }
            while newcomers.try_join_next().is_some() {}
        }
    }

    async fn come_and_go(self) {
        let (began, mut failures) = (Instant::now(), 0);
        let mut stream = loop {
            match self.open_and_ask().await {
                Ok(stream) => break stream,
                Err(error) => {
                    self.failed_newcomer(&error);
                    back_off(&mut failures).await;
                }
            }
        };
        self.served_newcomer(began.elapsed());
        // Fails if the server is gone by now.
        drop(stream.shutdown().await);
    }

    fn failed_newcomer(&self, error: &io::Error) {
        let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
        let mut totals = self.totals();
        totals.refused += u64::from(is_refused);
        totals.resets += u64::from(!is_refused);
    }

    fn served_newcomer(&self, wait: Duration) {
        let mut totals = self.totals();
        totals.answers += 1;
        totals.newcomers += 1;
        totals.longest_wait = totals.longest_wait.max(wait);
    }

    async fn open_and_ask(&self) -> io::Result<KcpStream> {
        let mut stream = KcpStream::connect(self.addr).await?;
        self.exchange(&mut stream).await?;
        Ok(stream)
    }

    /// Sends a block and checks its answer, see `server::echo`.
    async fn exchange(&self, stream: &mut KcpStream) -> io::Result<()> {
        let mut block = [0; BLOCK];
        getrandom::fill(&mut block).map_err(io::Error::other)?;
        stream.write_all(&block).await?;
        let mut answer = vec![stream.read_u8().await?];
        let id_end = 1 + usize::from(answer[0]);
        answer.resize(id_end + BLOCK, 0);
        stream.read_exact(&mut answer[1..]).await?;
        let crc = stream.read_u32_le().await?;
        if crc != crc32fast::hash(&answer) || answer[id_end..] != block {
            self.totals().bad_checksums += 1;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a wrong answer"));
        }
        let id = String::from_utf8_lossy(&answer[1..id_end]);
        let mut totals = self.totals();
        if !totals.servers.contains(id.as_ref()) {
            totals.servers.insert(id.into_owned());
        }
        Ok(())
    }
}

/// Exponential back-off with full jitter: a whole delay is drawn, so that clients that have lost one server
/// do not come to the next one together.
async fn back_off(failures: &mut u32) {
    let longest = FIRST_DELAY.saturating_mul(1 << (*failures).min(16)).min(MAX_DELAY);
    *failures += 1;
    let drawn = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    sleep(longest.mul_f64(drawn)).await;
}

#[derive(Default)]
struct Totals {
    connected: u32,
    reconnects: u64,
    answers: u64,
    bad_checksums: u64,
    servers: BTreeSet<String>,
    /// Since the last line.
    gap: Duration,
    longest_gap: Duration,
    newcomers: u64,
    refused: u64,
    resets: u64,
    skipped: u64,
    longest_wait: Duration,
}

impl Totals {
    fn line(&self, gap: Duration, has_newcomers: bool) -> String {
        let servers = self.servers.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let mut line = format!(
            "connected={} reconnects={} longest_gap_ms={} servers={servers} bad_checksums={}",
            self.connected,
            self.reconnects,
            gap.as_millis(),
            self.bad_checksums,
        );
        if has_newcomers {
            let wait = self.longest_wait.as_millis();
            line += &format!(
                " newcomers={} refused={} resets={} skipped={} longest_wait_ms={wait}",
                self.newcomers, self.refused, self.resets, self.skipped,
            );
        }
        line
    }
}
