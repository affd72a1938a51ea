//! Moves a file between two processes, or two machines.
//!
//! The sender writes the length of the file in 8 bytes, the file, and its SHA-256 in 32 bytes; the
//! receiver answers with one byte: whether it has stored a file of that hash. The length comes first for
//! the progress bar, and because other implementations of KCP do not signal the end of a stream. Files
//! are read, written and hashed on threads of their own; the queues in between are short, so memory does
//! not grow with the file.

#[path = "log.rs"]
mod log;
#[path = "options.rs"]
mod options;
#[path = "progress.rs"]
mod progress;

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kcpx::{Config, KcpListener, KcpStream, Timing};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use self::options::{Options, refuse};
use self::progress::Progress;

type Hash = [u8; 32];

/// The answers of the receiver.
const STORED: u8 = 1;
const REFUSED: u8 = 0;

/// Bytes of a piece read from the file, and the pieces that wait for the network at most.
const PIECE: usize = 256 * 1024;
const PIECES: usize = 8;
/// Received chunks, of up to 64 KiB each, that wait for the disk at most.
const CHUNKS: usize = 128;

const HELP: &str = "\
Moves a file over KCP, verified by SHA-256. Start `receive` first; it takes one file and ends. Both sides
print how long it took.

usage: file_transfer receive HOST:PORT FILE [options]
       file_transfer send HOST:PORT FILE [options]

  HOST:PORT          where the receiver listens; with port 0 it picks a free one
  FILE               the file; the receiver's must not exist yet

  --mode MODE        timing preset, by kcptun's names: normal, fast, fast2, fast3 [default: fast2]
  --window SEGMENTS  datagrams in flight, 1 to 65535; the receiver's counts if it is smaller [default: 1024]
  --mtu BYTES        largest datagram, 25 to 65507 [default: 1400]

In two terminals, or on two machines:

  cargo run --release --example file_transfer -- receive 127.0.0.1:4000 copy.bin
  cargo run --release --example file_transfer -- send 127.0.0.1:4000 original.bin

RUST_LOG=kcpx=debug logs what the library does.
";

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let mut options = Options::new(HELP);
    let mode = options.value("--mode").unwrap_or_else(|| "fast2".into());
    let timing = match mode.as_str() {
        "normal" => Timing::NORMAL,
        "fast" => Timing::FAST,
        "fast2" => Timing::FAST2,
        "fast3" => Timing::FAST3,
        _ => refuse(&format!("--mode must be normal, fast, fast2 or fast3, got {mode:?}")),
    };
    let window = options.number("--window", 1_024, 1..=u16::MAX);
    let mtu = options.number("--mtu", 1_400, 25..=65_507);
    let role = options.required("`receive` or `send`");
    let addr = options.required("HOST:PORT");
    let file = PathBuf::from(options.required("FILE"));
    options.end();
    let config = Config::new()
        .timing(timing)
        .windows(window, window)
        .mtu(mtu)
        .socket_buffers(Some(4 << 20), Some(4 << 20));
    match role.as_str() {
        "receive" => receive(&addr, &file, config).await,
        "send" => send(&addr, &file, config).await,
        _ => refuse(&format!("the first argument must be `receive` or `send`, got {role:?}")),
    }
}

async fn send(addr: &str, path: &Path, config: Config) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    ensure!(file.metadata()?.is_file(), "{} is not a file", path.display());
    let length = file.metadata()?.len();
    let mut stream = KcpStream::connect_with(addr, config).await.with_context(|| {
        format!("cannot connect to {addr:?}: start the receiver there, or correct HOST:PORT")
    })?;

    println!("connecting to {}", stream.peer_addr()?);
    stream.write_all(&length.to_be_bytes()).await?;
    stream.established().await.with_context(|| format!("no receiver answers at {addr}"))?;

    let start = Instant::now();
    let mut progress = Progress::new("sending", length);
    let (pieces, mut queue) = mpsc::channel(PIECES);
    let mut sent = 0;
    let reader = spawn_blocking(move || read_and_hash(file, length, &pieces));
    while let Some(piece) = queue.recv().await {
        stream.write_all(&piece).await?;
        sent += piece.len() as u64;
        progress.show(sent, || speed(sent, start));
    }
    let hash = reader.await?.with_context(|| format!("cannot read {}", path.display()))?;
    stream.write_all(&hash).await?;
    let answer = stream.read_u8().await.context("the receiver did not confirm the transfer")?;
    progress.finish();

    let retransmitted = format!("{:.2} % retransmitted", stream.stats().retransmit_percent());
    println!("sent {}", summary(length, start, &retransmitted, &hash));
    let endpoint = stream.endpoint();
    stream.shutdown().await?;
    drop(stream);
    endpoint.wait_idle().await;
    ensure!(answer == STORED, "the receiver refused the file: its own output says why");
    Ok(())
}

/// Reads `length` bytes of the file into the queue. On a thread that may block.
fn read_and_hash(file: File, length: u64, queue: &mpsc::Sender<Vec<u8>>) -> std::io::Result<Hash> {
    let (mut file, mut left) = (file.take(length), length);
    let mut hasher = Sha256::new();
    while left > 0 {
        let mut piece = Vec::with_capacity(PIECE);
        file.by_ref().take(PIECE as u64).read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Err(std::io::Error::other("it became shorter while it was read"));
        }
        left -= piece.len() as u64;
        hasher.update(&piece);
        if queue.blocking_send(piece).is_err() {
            break; // the connection has ended, which is reported over there
        }
    }
    Ok(hasher.finalize().into())
}

async fn receive(addr: &str, path: &Path, config: Config) -> Result<()> {
    ensure!(!path.exists(), "{} exists; remove it or choose another name", path.display());
    let listener = KcpListener::bind_with(addr, config).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4000")
    })?;
    // Nothing half done gets the name of the file.
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let file = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;

    println!("listening on {}", listener.local_addr()?);
    let (mut stream, peer) = listener.accept().await?;
    let result = match receive_into(file, &mut stream).await {
        Ok(summary) => std::fs::rename(&part, path)
            .with_context(|| format!("cannot rename {} to {}", part.display(), path.display()))
            .map(|()| println!("received {summary}")),
        Err(error) => Err(error).with_context(|| format!("nothing received from {peer}")),
    };

    let answer = if result.is_ok() { STORED } else { REFUSED };
    if let Err(error) = answer_with(&mut stream, answer).await {
        println!("the sender may not know: {error}");
    }
    drop(stream);
    listener.wait_idle().await;
    if result.is_err() {
        std::fs::remove_file(&part).ok();
    }
    result
}

async fn receive_into(file: File, stream: &mut KcpStream) -> Result<String> {
    let length = stream.read_u64().await?;
    let start = Instant::now();
    let mut progress = Progress::new("receiving", length);
    let (chunks, queue) = mpsc::channel(CHUNKS);
    let writer = spawn_blocking(move || write_and_hash(file, queue));

    // The bytes behind the file are its hash.
    let (mut left, mut announced) = (length, Vec::new());
    while left > 0 || announced.len() < size_of::<Hash>() {
        let mut chunk = stream.read_chunk().await?;
        ensure!(!chunk.is_empty(), "the sender ended {left} bytes early");
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        let data = chunk.split_to(count);
        announced.extend_from_slice(&chunk);
        left -= count as u64;
        progress.show(length - left, || speed(length - left, start));
        if chunks.send(data).await.is_err() {
            break; // the writer has failed, and says why below
        }
    }
    drop(chunks);
    let hash = writer.await?.context("cannot write the file")?;
    progress.finish();
    ensure!(
        announced == hash,
        "the bytes have sha256 {}, the sender announced {}",
        hex(&hash),
        hex(&announced),
    );
    let stats = stream.stats();
    let twice = stats.anomalies.duplicate_segments as f64 * 100.0
        / (stats.anomalies.duplicate_segments + stats.received.segments).max(1) as f64;
    Ok(summary(length, start, &format!("{twice:.2} % arrived twice"), &hash))
}

/// Writes the queue to the file. On a thread that may block.
fn write_and_hash(file: File, mut queue: mpsc::Receiver<Bytes>) -> std::io::Result<Hash> {
    let mut file = BufWriter::with_capacity(PIECE, file);
    let mut hasher = Sha256::new();
    let mut chunks = Vec::new();
    while queue.blocking_recv_many(&mut chunks, CHUNKS) > 0 {
        for chunk in chunks.drain(..) {
            hasher.update(&chunk);
            file.write_all(&chunk)?;
        }
    }
    file.flush()?;
    Ok(hasher.finalize().into())
}

async fn answer_with(stream: &mut KcpStream, answer: u8) -> std::io::Result<()> {
    stream.write_u8(answer).await?;
    stream.shutdown().await
}

fn summary(bytes: u64, start: Instant, retransmitted: &str, hash: &Hash) -> String {
    let seconds = start.elapsed().as_secs_f64();
    let speed = speed(bytes, start);
    format!("{bytes} bytes in {seconds:.2} s, {speed}, {retransmitted}, sha256 {}", hex(hash))
}

fn speed(bytes: u64, start: Instant) -> String {
    format!("{:.1} MB/s", bytes as f64 / start.elapsed().as_secs_f64() / 1e6)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
