//! The whole crate in one command: a server and a client talk over a bad link.
//!
//! Both run in this process, on real UDP sockets; in between a relay loses 5 % of the datagrams of
//! each direction, delays the others so that a round trip takes 40 ms, and lets some overtake each
//! other. First the client uploads bulk data, which is verified by SHA-256. Then it sends small
//! requests at a steady rate on two connections, one plain and one with `Redundancy::Auto`, over the
//! same losses, and measures how long the replies of each take.
//!
//! ```sh
//! cargo run --release --example demo
//! cargo run --release --example demo -- --loss 20 --rtt 150
//! ```

#[path = "common/chart.rs"]
mod chart;
#[path = "common/log.rs"]
mod log;
#[path = "common/progress.rs"]
mod progress;
#[path = "common/relay.rs"]
mod relay;

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, value_parser};
use hdrhistogram::Histogram;
use kcpx::{AutoRedundancy, Config, KcpListener, KcpStream, Redundancy, Timing};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

use self::chart::Series;
use self::progress::Progress;
use self::relay::{Link, Relay};

/// Bytes of a request and of its reply, and the time between two requests.
const MESSAGE: usize = 256;
const GAP: Duration = Duration::from_millis(10);
/// Requests before those that are measured: five seconds, in which the loss is learned.
const WARM_UP: u32 = 500;
/// Bytes written at once in the upload.
const BLOCK: usize = 64 * 1024;

/// Runs a server and a client over a simulated bad link and shows how they fare.
///
/// Needs no arguments; it takes about 30 seconds.
#[derive(Parser)]
struct Args {
    /// Datagrams that the link loses, each way, in percent
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(..=50))]
    loss: u64,
    /// Round-trip time of the link in milliseconds
    #[arg(long, default_value_t = 40, value_parser = value_parser!(u64).range(..=2_000))]
    rtt: u64,
    /// Size of the upload in MB
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(1..=4_096))]
    megabytes: u64,
    /// Number of requests that are measured, 100 per second
    #[arg(long, default_value_t = 1_500, value_parser = value_parser!(u32).range(1..=100_000))]
    messages: u32,
    /// What the losses are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let args = Args::parse();
    let link = Link {
        loss: args.loss,
        delay: Duration::from_millis(args.rtt) / 2,
        detours: 3,
        detour: Duration::from_millis(5),
    };
    println!(
        "link       {} ms round trip, {} % loss each way, {} % of the datagrams reordered",
        args.rtt, link.loss, link.detours,
    );

    let bulk = Pair::start(Config::new(), link, args.seed).await?;
    let mut stream = bulk.connect().await?;
    let upload = upload(&mut stream, &args).await.context("the upload failed")?;
    let retransmitted = stream.stats().retransmit_percent();
    let counts = &bulk.relay.counts;
    let (datagrams, lost) = (counts.datagrams.load(Relaxed), counts.lost.load(Relaxed));
    bulk.end(stream).await?;

    // Of so small messages the headers alone take a fifth.
    let auto = Redundancy::Auto(AutoRedundancy::new().max_overhead(2.0));
    let pairs = [
        Pair::start(Config::new(), link, args.seed).await?,
        Pair::start(Config::new().redundancy(auto), link, args.seed).await?,
    ];
    let mut streams = [pairs[0].connect().await?, pairs[1].connect().await?];
    let [plain, protected] = &mut streams;
    let mut progress = Progress::new("messages", u64::from(WARM_UP + args.messages));
    let latencies = tokio::try_join!(
        exchange(plain, &args, |_, _| ()),
        exchange(protected, &args, |number, latency| {
            progress.show(number, || format!("{:.1} ms", millis(latency)));
        }),
    );
    progress.finish();
    let latencies = <[_; 2]>::from(latencies.context("the messages failed")?);
    let bytes = [0, 1].map(|i: usize| pairs[i].relay.counts.bytes.load(Relaxed));
    for (pair, stream) in pairs.into_iter().zip(streams) {
        pair.end(stream).await?;
    }

    let seconds = upload.time.as_secs_f64();
    println!();
    println!(
        "upload     {} MB in {seconds:.1} s: goodput {:.1} MB/s",
        args.megabytes,
        args.megabytes as f64 / seconds
    );
    println!("           sha256 verified: {}", upload.sha256);
    println!("           {retransmitted:.1} % of the segments were retransmitted; the link lost");
    println!("           {:.1} % of {datagrams} datagrams", lost as f64 * 100.0 / datagrams as f64);
    println!(
        "messages   {} requests of {MESSAGE} bytes, 100 per second, all replies exact; round trips:",
        args.messages
    );
    for (i, name) in NAMES.into_iter().enumerate() {
        let at = |quantile| millis(at(&latencies[i], quantile));
        let useful = 2 * MESSAGE as u64 * u64::from(WARM_UP + args.messages);
        let ratio = bytes[i] as f64 / useful as f64;
        println!(
            "           {name:<22} p50 {:>5.1} ms, p99 {:>5.1}, p99.9 {:>5.1}; {ratio:.2} bytes sent for one",
            at(0.5),
            at(0.99),
            at(0.999),
        );
    }
    println!(
        "           ({} ms are the link; plain, a lost datagram costs its retransmission)",
        args.rtt
    );
    println!("picture    {}", save_picture(&args, &latencies)?.display());
    Ok(())
}

/// What the two connections are called.
const NAMES: [&str; 2] = ["plain", "Redundancy::Auto"];

/// A server, and the bad link in front of it.
struct Pair {
    config: Config,
    relay: Relay,
    server: JoinHandle<Result<()>>,
}

impl Pair {
    async fn start(config: Config, link: Link, seed: u64) -> Result<Self> {
        let config = config.timing(Timing::FAST3).socket_buffers(Some(4 << 20), Some(4 << 20));
        let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await?;
        let relay = Relay::start(listener.local_addr()?, link, seed).await?;
        Ok(Self { config, relay, server: tokio::spawn(serve(listener)) })
    }

    async fn connect(&self) -> Result<KcpStream> {
        Ok(KcpStream::connect_with(self.relay.addr, self.config.clone()).await?)
    }

    /// Ends the connection, and waits for both sides.
    async fn end(self, mut stream: KcpStream) -> Result<()> {
        let endpoint = stream.endpoint();
        stream.shutdown().await?;
        drop(stream);
        endpoint.wait_idle().await;
        self.server.await?.context("the server failed")
    }
}

/// What the upload showed.
struct Upload {
    time: Duration,
    sha256: String,
}

/// Sends bulk data, and compares the server's hash of it with our own.
async fn upload(stream: &mut KcpStream, args: &Args) -> Result<Upload> {
    let start = Instant::now();
    let total = args.megabytes * 1_000_000;
    stream.write_u64(total).await?;

    let mut progress = Progress::new("upload", total);
    let mut hasher = Sha256::new();
    let (mut block, mut sent) = (vec![0; BLOCK], 0);
    while sent < total {
        let count = (total - sent).min(BLOCK as u64);
        let block = &mut block[..count as usize];
        fill(block, sent);
        hasher.update(&*block);
        stream.write_all(block).await?;
        sent += count;
        progress.show(sent, || {
            let speed = sent as f64 / start.elapsed().as_secs_f64() / 1e6;
            format!("{speed:.1} MB/s, {:.1} % retransmitted", stream.stats().retransmit_percent())
        });
    }
    let mut theirs = [0; 32];
    stream.read_exact(&mut theirs).await?;
    progress.finish();

    let ours: [u8; 32] = hasher.finalize().into();
    let hex = |hash: [u8; 32]| hash.iter().map(|b| format!("{b:02x}")).collect::<String>();
    ensure!(ours == theirs, "sent sha256 {}, the server got {}", hex(ours), hex(theirs));
    Ok(Upload { time: start.elapsed(), sha256: hex(ours) })
}

/// Sends requests at a steady rate, however late the replies are; returns their round-trip times in
/// nanoseconds, without those of the first seconds, and calls `show` with the number of each reply and its time.
async fn exchange(
    stream: &mut KcpStream,
    args: &Args,
    mut show: impl FnMut(u64, Duration),
) -> Result<Histogram<u64>> {
    stream.write_u64(0).await?;
    let (mut reader, mut writer) = stream.split();
    let (sent, mut send_times) = mpsc::unbounded_channel();
    let count = WARM_UP + args.messages;

    let requests = async move {
        let mut ticks = interval(GAP);
        for number in 0..count {
            ticks.tick().await;
            sent.send(Instant::now())?;
            writer.write_all(&message(number)).await?;
        }
        anyhow::Ok(())
    };
    let replies = async move {
        let mut latencies = Histogram::new(3)?;
        let mut reply = [0; MESSAGE];
        for number in 0..count {
            reader.read_exact(&mut reply).await?;
            let sent = send_times.recv().await.context("a reply without a request")?;
            let latency = sent.elapsed();
            ensure!(reply == message(number), "reply {number} differs from its request");
            if number >= WARM_UP {
                latencies.record(u64::try_from(latency.as_nanos())?)?;
            }
            show(u64::from(number), latency);
        }
        Ok(latencies)
    };
    tokio::try_join!(requests, replies).map(|((), latencies)| latencies)
}

/// The other side: hashes an upload, or sends each request back if its size is 0.
async fn serve(listener: KcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept().await?;
    let mut left = stream.read_u64().await?;
    if left > 0 {
        let mut hasher = Sha256::new();
        while left > 0 {
            let chunk = stream.read_chunk().await?;
            ensure!(!chunk.is_empty(), "the upload ended {left} bytes early");
            hasher.update(&chunk);
            left = left.saturating_sub(chunk.len() as u64);
        }
        stream.write_all(&hasher.finalize()).await?;
    } else {
        let mut message = [0; MESSAGE];
        while stream.read_exact(&mut message).await.is_ok() {
            stream.write_all(&message).await?;
        }
    }
    stream.shutdown().await?;
    drop(stream);
    listener.wait_idle().await;
    Ok(())
}

/// Bytes without a pattern, a function of their place in the upload.
fn fill(block: &mut [u8], place: u64) {
    let mut x = place.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in block.chunks_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_le_bytes()[..word.len()]);
    }
}

fn message(number: u32) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    fill(&mut bytes, number.into());
    bytes
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn at(latencies: &Histogram<u64>, quantile: f64) -> Duration {
    Duration::from_nanos(latencies.value_at_quantile(quantile))
}

/// Draws the latencies into the build directory, or into the temporary one without it.
fn save_picture(args: &Args, latencies: &[Histogram<u64>; 2]) -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let build = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    let path = build.map_or_else(std::env::temp_dir, PathBuf::from).join("kcpx-demo.svg");
    let title = format!("Round trips of {} messages over a bad link", args.messages);
    let note = format!(
        "{MESSAGE} bytes, 100 per second; the link: {} ms round trip, {} % loss each way",
        args.rtt, args.loss,
    );
    let [plain, protected] = latencies;
    let labels = [
        ("link", Duration::from_millis(args.rtt)),
        ("p99 protected", at(protected, 0.99)),
        ("p99 plain", at(plain, 0.99)),
    ];
    let longest = Duration::from_nanos(plain.max().max(protected.max()));
    let series = [(NAMES[0], plain), (NAMES[1], protected)];
    let series = series.map(|(name, durations)| Series { name, durations });
    let picture = chart::distribution((&title, &note, "messages"), &series, longest, &labels);
    std::fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
