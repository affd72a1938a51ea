//! The transports to compare: each carries messages and their replies over a stream.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use kcpx::{Config, CongestionControl, KcpListener, KcpStream, Timing};
use kcpx_netem::Counts;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, interval_at, timeout};

use super::{Args, GAP, MESSAGE, WARM_UP, duration};

/// How long late replies are waited for after the last message.
const REST: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Tcp,
    PlainKcp,
    Kcpx,
}

impl Contender {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::PlainKcp, Self::Kcpx];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::PlainKcp => "plain KCP",
            Self::Kcpx => "kcpx",
        }
    }

    /// Short enough for all of them in the line of the progress bar.
    pub(crate) fn short_name(self) -> &'static str {
        match self {
            Self::PlainKcp => "plain",
            other => other.name(),
        }
    }

    /// Both sides have it.
    fn config(self) -> Config {
        match self {
            Self::Kcpx => Config::interactive(),
            _ => Config::new()
                .timing(Timing::KCP_DEFAULT)
                .congestion_control(CongestionControl::Reno),
        }
    }
}

/// How far a contender is, for the progress bar.
#[derive(Default)]
pub(crate) struct Board {
    pub(crate) replies: AtomicU64,
    pub(crate) latest_micros: AtomicU64,
}

/// The observations of a client, warm-up included.
#[derive(Default)]
pub(crate) struct Exchange {
    /// When each message was sent, from the first on.
    sent: Vec<Instant>,
    /// How long each reply took.
    replies: Vec<Duration>,
    /// How long each message was sent after its time.
    lateness: Vec<Duration>,
}

/// The result of a contender.
pub(crate) struct Outcome {
    pub(crate) contender: Contender,
    /// Seconds after the start, and the round trip of the message of that moment.
    pub(crate) over_time: Vec<(f64, Duration)>,
    /// The round trips in ascending order.
    pub(crate) sorted: Vec<Duration>,
    /// Messages without a reply; each counts as if it had come at the end.
    pub(crate) missing: usize,
    /// In ascending order.
    pub(crate) timer_lateness: Vec<Duration>,
    /// Bytes that crossed the link for each byte of messages and replies.
    pub(crate) bytes_ratio: f64,
    datagrams: u64,
    late_datagrams: u64,
}

impl Outcome {
    pub(crate) fn new(
        contender: Contender,
        args: Args,
        exchange: Exchange,
        counts: &Counts,
    ) -> Self {
        let Exchange { sent, mut replies, mut lateness } = exchange;
        let missing = sent.len() - replies.len();
        // They took at least until now.
        replies.extend(sent[replies.len()..].iter().map(Instant::elapsed));
        let first = sent.first().copied().unwrap_or_else(Instant::now);
        let seconds = sent.iter().map(|time| time.duration_since(first).as_secs_f64());
        let over_time: Vec<_> = seconds.zip(replies).skip(WARM_UP as usize).collect();
        let mut sorted: Vec<_> = over_time.iter().map(|(_, latency)| *latency).collect();
        sorted.sort_unstable();
        lateness.sort_unstable();
        let useful = 2 * MESSAGE as u64 * u64::from(WARM_UP + args.messages);
        Self {
            contender,
            over_time,
            sorted,
            missing,
            timer_lateness: lateness,
            bytes_ratio: counts.bytes.load(Relaxed) as f64 / useful as f64,
            datagrams: counts.packets.load(Relaxed),
            late_datagrams: counts.late.load(Relaxed),
        }
    }

    /// Packets that left the link late, in percent.
    pub(crate) fn late_packets(&self) -> f64 {
        self.late_datagrams as f64 * 100.0 / self.datagrams.max(1) as f64
    }
}

/// Accepts one connection and sends back what it receives until it ends. Calls `ready` with its address.
pub(crate) async fn serve(
    contender: Contender,
    addr: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    if contender == Contender::Tcp {
        let listener = TcpListener::bind(addr).await?;
        ready(listener.local_addr()?);
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        echo(stream).await;
    } else {
        let listener = KcpListener::bind_with(addr, contender.config()).await?;
        ready(listener.local_addr()?);
        let (stream, _) = listener.accept().await?;
        echo(stream).await;
        listener.wait_idle().await;
    }
    Ok(())
}

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut message = [0; MESSAGE];
    // A client that gave up on replies resets the connection.
    while stream.read_exact(&mut message).await.is_ok() {
        if stream.write_all(&message).await.is_err() {
            break;
        }
    }
}

/// Sends the messages and reads their replies.
pub(crate) async fn exchange(
    contender: Contender,
    server: SocketAddr,
    args: Args,
    board: &Board,
) -> Result<Exchange> {
    if contender == Contender::Tcp {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        talk(stream, args, board).await
    } else {
        let stream = KcpStream::connect_with(server, contender.config()).await?;
        talk(stream, args, board).await
    }
}

/// Sends at a steady rate, however late the replies are.
async fn talk(stream: impl AsyncRead + AsyncWrite, args: Args, board: &Board) -> Result<Exchange> {
    let (mut reader, mut writer) = split(stream);
    let count = WARM_UP + args.messages;
    // Never held across an await.
    let seen = Mutex::new(Exchange::default());
    let seen = || seen.lock().unwrap_or_else(PoisonError::into_inner);

    let requests = async {
        let start = Instant::now() + GAP;
        let mut ticks = interval_at(start, GAP);
        for number in 0..count {
            let due = ticks.tick().await;
            let now = Instant::now();
            {
                let mut seen = seen();
                seen.sent.push(now);
                seen.lateness.push(now - due);
            }
            writer.write_all(&message(number)).await?;
        }
        anyhow::Ok(())
    };
    let replies = async {
        let mut reply = [0; MESSAGE];
        for number in 0..count {
            reader.read_exact(&mut reply).await?;
            ensure!(reply == message(number), "reply {number} differs from its message");
            let mut seen = seen();
            let latency = seen.sent[number as usize].elapsed();
            seen.replies.push(latency);
            board.latest_micros.store(latency.as_micros() as u64, Relaxed);
            board.replies.fetch_add(1, Relaxed);
        }
        anyhow::Ok(())
    };
    let both = async { tokio::try_join!(requests, replies) };
    // Without all replies, those that came are shown.
    if let Ok(ended) = timeout(duration(args) + REST, both).await {
        ended?;
        writer.shutdown().await?;
    }
    drop((reader, writer));
    let exchange = std::mem::take(&mut *seen());
    Ok(exchange)
}

/// Bytes without a pattern, other ones for each message.
fn message(number: u32) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    let mut x = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in bytes.chunks_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_le_bytes());
    }
    bytes
}
