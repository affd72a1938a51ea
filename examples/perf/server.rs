//! The server: serves any number of runs, of any workload, until it is interrupted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kcpx::{Endpoint, KcpListener, KcpStream, Limits};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::args::ServerArgs;
use super::hash::pseudo_random;
use super::runs::{Member, Runs};
use super::system;
use super::usage::checked;
use super::wire::{self, Answer, Ask, Header, Offer, Role, Sample};

/// How long a stream may take to say what it is.
const HELLO: Duration = Duration::from_secs(10);
/// How long a run's streams may take to end once the client says that it has ended them.
const ENDING: Duration = Duration::from_secs(5);
/// Bytes that a source writes at once, and the longest time that it sends for.
const BLOCK: usize = 64 * 1024;
const LONGEST: f64 = 86_400.0;
/// How long a client may be silent on the control stream.
const LONGEST_RUN: Duration = Duration::from_secs(100_000);

pub(crate) async fn run(args: ServerArgs) -> Result<()> {
    // Many clients may start at once, and from one address: that is what is measured.
    let limits = Limits::new()
        .backlog(1 << 16)
        .max_unvalidated(1 << 20)
        .memory(1 << 36)
        .max_connections(1 << 20);
    let interrupted = crate::signals::interrupted();
    let config = checked(args.link.config()).limits(limits);
    let listener = KcpListener::bind_with(&args.listen, config).await.with_context(|| {
        format!("cannot listen on {:?}: expected a free HOST:PORT, as in 0.0.0.0:4010", args.listen)
    })?;
    println!("listening on {}", listener.local_addr()?);
    tokio::select! {
        ended = accept(&listener) => ended,
        interrupted = interrupted => Ok(interrupted?),
    }
}

async fn accept(listener: &KcpListener) -> Result<()> {
    let server = Arc::new(Server {
        endpoint: listener.endpoint().clone(),
        runs: Runs::default(),
        block: pseudo_random(1, BLOCK),
    });
    loop {
        let (stream, peer) = listener.accept().await.context("the endpoint has ended")?;
        tokio::spawn(serve(server.clone(), stream, peer));
    }
}

struct Server {
    endpoint: Endpoint,
    runs: Runs,
    block: Vec<u8>,
}

/// Serves one stream. The client reports its failures.
async fn serve(server: Arc<Server>, mut stream: KcpStream, peer: SocketAddr) {
    let Ok(Ok(header)) = timeout(HELLO, Header::read(&mut stream)).await else {
        return stream.abort();
    };
    // Boxed, except what the many idle connections do, so that those cost no more than they need.
    if header.role == Role::Control {
        if let Err(error) = Box::pin(server.control(stream, header.run, peer)).await {
            println!("{peer}: {error}");
        }
        return;
    }
    let Some(member) = server.runs.join(header.run) else { return stream.abort() };
    let served = match header.role {
        Role::Sink => Box::pin(sink(&mut stream, &member)).await,
        Role::Source => Box::pin(source(&mut stream, &member, &server.block)).await,
        Role::Control | Role::Echo => echo(&mut stream, &member).await,
    };
    member.ended(&stream.stats());
    if served.is_err() {
        stream.abort();
    }
}

async fn sink(stream: &mut KcpStream, member: &Member) -> std::io::Result<()> {
    let mut count = 0_u64;
    loop {
        let chunk = stream.read_chunk().await?;
        if chunk.is_empty() {
            break;
        }
        count += chunk.len() as u64;
        member.received(chunk.len());
    }
    stream.write_u64(count).await?;
    stream.shutdown().await
}

async fn source(stream: &mut KcpStream, member: &Member, block: &[u8]) -> std::io::Result<()> {
    let offer = member.offer();
    // Neither number is the client's to make anything here wait or grow for ever.
    let seconds = offer.seconds.filter(|seconds| (0.0..=LONGEST).contains(seconds));
    let end = Instant::now() + Duration::from_secs_f64(seconds.unwrap_or(LONGEST));
    let mut left = offer.bytes.unwrap_or(u64::MAX);
    while left > 0 && Instant::now() < end {
        let len = usize::try_from(left).unwrap_or(BLOCK).min(block.len());
        stream.write_all(&block[..len]).await?;
        member.sent(len);
        left -= len as u64;
    }
    stream.shutdown().await
}

/// Without a buffer of its own: an idle connection costs what the library keeps.
async fn echo(stream: &mut KcpStream, member: &Member) -> std::io::Result<()> {
    loop {
        let chunk = stream.read_chunk().await?;
        if chunk.is_empty() {
            return stream.shutdown().await;
        }
        member.received(chunk.len());
        stream.write_all(&chunk).await?;
        member.sent(chunk.len());
    }
}

impl Server {
    /// A run, from its offer to the end of the control stream.
    async fn control(&self, mut stream: KcpStream, id: u64, peer: SocketAddr) -> Result<()> {
        let hello = timeout(HELLO, wire::receive(&mut stream)).await;
        let offer: Offer = hello.context("no offer in time")??.context("no offer")?;
        let workload: String =
            offer.workload.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        let run = match self.runs.begin(id, offer) {
            Ok(run) => run,
            Err(reason) => {
                wire::send(&mut stream, &Answer::Refused(reason)).await?;
                return Ok(stream.shutdown().await?);
            }
        };
        let begin = Instant::now();
        println!("{peer}: {workload} begins");
        wire::send(&mut stream, &Answer::Sample(self.sample(run.totals()))).await?;
        // A client that vanishes ends this by the idle timeout, unless those are off.
        while let Some(ask) = timeout(LONGEST_RUN, wire::receive(&mut stream)).await?? {
            match ask {
                Ask::Sample => {}
                Ask::Finish => drop(timeout(ENDING, run.emptied()).await),
            }
            wire::send(&mut stream, &Answer::Sample(self.sample(run.totals()))).await?;
        }
        let totals = run.totals();
        println!(
            "{peer}: {workload} over after {:.1} s: {} bytes in, {} out, {} of {} segments resent",
            begin.elapsed().as_secs_f64(),
            totals.bytes_in,
            totals.bytes_out,
            totals.retransmits,
            totals.sent_segments + totals.retransmits,
        );
        // The client has everything, and may have left.
        drop(stream.shutdown().await);
        Ok(())
    }

    /// Adds to what a run has counted what endpoint and system have.
    fn sample(&self, totals: Sample) -> Sample {
        let stats = self.endpoint.stats();
        Sample {
            cpu_s: system::cpu().map(|cpu| cpu.as_secs_f64()),
            rss_kib: system::rss_kib(),
            drops: system::drops(),
            discarded: system::discarded(&stats),
            wire_bytes_out: stats.sent.bytes,
            ..totals
        }
    }
}
