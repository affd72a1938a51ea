//! One writer, many readers: a server that pushes ticks to everyone who subscribed.
//!
//! The source of the ticks never waits. Each subscriber has a task of its own and a bounded
//! queue; one that reads too slowly loses the oldest ticks and gets their number, while the others
//! go on. A client only connects, and the server speaks first.

#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use kcpx::{Config, KcpListener, KcpStream, Timing};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::interval;

/// Ticks that wait for one subscriber before the oldest are lost to it.
const QUEUE: usize = 256;
/// Characters after the number of a tick, so that a subscriber can fall behind soon.
const PADDING: usize = 1_000;

/// One writer, many readers; without a command, a server and its clients in this process.
#[derive(Parser)]
#[command(after_help = "\
Both sides in one process:
  cargo run --release -p kcpx-examples --example push_server
In several terminals:
  cargo run --release -p kcpx-examples --example push_server -- server --listen 127.0.0.1:4004
  cargo run --release -p kcpx-examples --example push_server -- client 127.0.0.1:4004

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Pushes ticks until Ctrl-C
    Server {
        /// Address to listen on, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:4004")]
        listen: String,
        /// Ticks per second
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        rate: u32,
    },
    /// Subscribes and prints what comes
    Client {
        /// Address of the server, as HOST:PORT
        addr: String,
        /// Ticks to print
        #[arg(long, default_value_t = 10)]
        ticks: u64,
    },
}

fn config() -> Config {
    // A stream that is not read keeps 64 KiB at each end: then the queue of ticks decides.
    let config = Config::new().timing(Timing::FAST3).windows(64, 64);
    config.send_buffer(64 * 1024).recv_buffer(64 * 1024)
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    match Args::parse().role {
        Some(Role::Server { listen, rate }) => {
            let interrupted = signals::interrupted();
            let listener = bind(&listen).await?;
            println!("listening on {}", listener.local_addr()?);
            let (ticks, _) = broadcast::channel(QUEUE);
            let source = async {
                let mut clock = interval(Duration::from_secs(1) / rate);
                for number in 0_u64.. {
                    clock.tick().await;
                    // An error says that there is no subscriber now.
                    drop(ticks.send(number));
                }
            };
            tokio::select! {
                () = source => {}
                served = serve(&listener, &ticks) => served?,
                interrupted = interrupted => interrupted?,
            }
            listener.wait_idle().await;
            Ok(())
        }
        Some(Role::Client { addr, ticks }) => {
            let mut subscription = Subscription::new(&addr).await?;
            for _ in 0..ticks {
                match subscription.next().await? {
                    Event::Tick(number) => println!("tick {number}"),
                    Event::Missed(count) => println!("missed {count}"),
                }
            }
            subscription.close().await
        }
        None => demo().await,
    }
}

async fn bind(addr: &str) -> Result<KcpListener> {
    KcpListener::bind_with(addr, config()).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4004")
    })
}

async fn serve(listener: &KcpListener, ticks: &broadcast::Sender<u64>) -> Result<()> {
    let mut subscribers = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await?;
        while subscribers.try_join_next().is_some() {}
        let ticks = ticks.subscribe();
        subscribers.spawn(async move {
            if let Err(error) = push(stream, ticks).await {
                println!("{peer}: {error}");
            }
        });
    }
}

/// Sends every tick to one subscriber until it closes its side.
async fn push(mut stream: KcpStream, mut ticks: broadcast::Receiver<u64>) -> Result<()> {
    let (mut reader, mut writer) = stream.split();
    let lines = async {
        loop {
            let line = match ticks.recv().await {
                Ok(number) => format!("tick {number} {:.<PADDING$}\n", ""),
                Err(RecvError::Lagged(count)) => format!("missed {count}\n"),
                Err(RecvError::Closed) => return Ok(()),
            };
            writer.write_all(line.as_bytes()).await?;
        }
    };
    tokio::select! {
        written = lines => written,
        // It sends nothing, so what is read is its end.
        read = reader.read_u8() => match read {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(error.into()),
            Ok(byte) => bail!("a subscriber has nothing to say, but sent {byte}"),
        },
    }
}

enum Event {
    Tick(u64),
    Missed(u64),
}

struct Subscription {
    stream: KcpStream,
    line: String,
}

impl Subscription {
    async fn new(addr: &str) -> Result<Self> {
        let stream = KcpStream::connect_with(addr, config()).await.with_context(|| {
            format!("cannot connect to {addr:?}: start the server there, or correct HOST:PORT")
        })?;
        Ok(Self { stream, line: String::new() })
    }

    async fn next(&mut self) -> Result<Event> {
        self.line.clear();
        self.stream.split().0.read_line(&mut self.line).await?;
        let mut words = self.line.split_whitespace();
        let (kind, number) = (words.next(), words.next().context("the server has ended")?);
        match kind {
            Some("tick") => Ok(Event::Tick(number.parse()?)),
            Some("missed") => Ok(Event::Missed(number.parse()?)),
            _ => bail!("unexpected line {:?}", self.line),
        }
    }

    /// Says that it wants no more, and waits until the server has ended its side too.
    async fn close(mut self) -> Result<()> {
        let endpoint = self.stream.endpoint();
        self.stream.shutdown().await?;
        copy(&mut self.stream, &mut sink()).await?;
        drop(self);
        endpoint.wait_idle().await;
        Ok(())
    }
}

/// Two subscribers that read at once and one that does not: the two miss nothing.
async fn demo() -> Result<()> {
    const TICKS: u64 = 2_000;

    let listener = bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?.to_string();
    let (ticks, _) = broadcast::channel(QUEUE);
    let served = serve(&listener, &ticks);
    let clients = async {
        let (mut slow, mut fast) = (Subscription::new(&addr).await?, Vec::new());
        for _ in 0..2 {
            fast.push(Subscription::new(&addr).await?);
        }
        while ticks.receiver_count() < 3 {
            tokio::task::yield_now().await;
        }
        println!("3 subscribers at {addr}; one of them does not read");
        for number in 0..TICKS {
            ticks.send(number)?;
            for subscription in &mut fast {
                match subscription.next().await? {
                    Event::Tick(got) => ensure!(got == number, "tick {got} instead of {number}"),
                    Event::Missed(count) => bail!("a fast reader missed {count} ticks"),
                }
            }
        }
        println!("the two that read got all of {TICKS} ticks, in order");

        // Now it does: first what was under way, then how many it missed, then the latest.
        let (mut seen, mut missed, mut next) = (0, 0, 0);
        while next < TICKS {
            match slow.next().await? {
                Event::Tick(number) => {
                    ensure!(number == next, "tick {number} instead of {next}");
                    (seen, next) = (seen + 1, number + 1);
                }
                Event::Missed(count) => (missed, next) = (missed + count, next + count),
            }
        }
        ensure!(missed > 0, "the slow reader missed nothing");
        println!("the slow one got {seen} and missed {missed}, as reported");
        for subscription in fast.into_iter().chain([slow]) {
            subscription.close().await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        served = served => served.context("the server"),
        done = clients => done,
    }?;
    listener.wait_idle().await;
    Ok(())
}
