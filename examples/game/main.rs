//! A game: a server sends the positions of its bots 60 times a second, and clients send commands that
//! must arrive.
//!
//! A snapshot that is lost is worth nothing once the next one is there, so snapshots are datagrams: a
//! loss costs one of them, and none waits behind it. A command must arrive, once and in order, so
//! commands are messages of the stream beside them. Both share one connection; see [`serve_client`]
//! and [`play`], which wait for both in one `select!`.
//!
//! Without a command a server and three clients run in this process, each behind a simulated link, and
//! get the same snapshots in three ways. It prints how many were on time, and draws the error of the
//! positions that each client predicts.
//!
//! ```sh
//! cargo run --release -p kcpx-examples --example game
//! cargo run --release -p kcpx-examples --example game -- --loss 10 --rtt 150
//! ```
//!
//! or in two terminals:
//!
//! ```sh
//! cargo run --release -p kcpx-examples --example game -- server --listen 127.0.0.1:4007
//! cargo run --release -p kcpx-examples --example game -- client 127.0.0.1:4007 --loss 5 --rtt 80
//! ```

#[path = "../common/chart.rs"]
mod chart;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/signals.rs"]
mod signals;
mod world;

use std::num::NonZeroU8;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum, value_parser};
use kcpx::{Config, KcpListener, KcpStream, Mode, Timing};
use kcpx_netem::{Conditions, Counts, Relay};
use tokio::io::AsyncWriteExt;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until, timeout};

use self::chart::Panel;
use self::world::{BOTS, Snapshot, TICK, View, distance, position};

/// Time between two commands of a client.
const COMMAND: Duration = Duration::from_millis(250);
/// Frames are drawn this long behind the latest news, between two snapshots.
const DRAWN_BEHIND: Duration = Duration::from_millis(100);
/// How long a client waits for what is still under way at its end.
const REST: Duration = Duration::from_secs(10);

/// A game server and its clients: 60 snapshots a second as datagrams, beside reliable commands.
///
/// Without a command all run in this process over a simulated link, once with the snapshots as
/// datagrams, once in the stream, and once in a stream that recovers losses like TCP; it takes 20
/// seconds. "On time" is a snapshot that arrives within --deadline ms. "Error" is how far the position
/// that a client predicts from its latest snapshot is from the true one, in a world where bots run
/// 4 m a second. A frame without two snapshots around it cannot be drawn by interpolation.
#[derive(Parser)]
#[command(after_help = "\
The stream that recovers like TCP is no TCP: the kernel's TCP does not cross this simulated link. It is a KCP
stream with what makes TCP late: one ordered sequence, and a retransmission after three later acknowledgements
or after an RTO. It is kinder than TCP: the RTO is 100 ms at least (Linux: 200) and does not double, losses do
not reduce its rate (as with BBR; with Reno half of the snapshots are on time), and retransmissions that are
likely to be lost leave twice. The KCP stream has the preset Config::interactive, which repairs most losses
without a retransmission, for more bytes; see the column kB/s.

Try --loss 0, where all three are the same; --loss 20; and --rtt 20, where a retransmission is cheap.")]
struct Args {
    #[command(flatten)]
    link: LinkArgs,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(clap::Args, Clone, Copy)]
struct LinkArgs {
    /// Datagrams that the simulated link loses, each way, in percent
    #[arg(long, global = true, default_value_t = 5, value_parser = value_parser!(u64).range(..=50))]
    loss: u64,
    /// Round-trip time of the simulated link in milliseconds
    #[arg(long, global = true, default_value_t = 80, value_parser = value_parser!(u64).range(..=2_000))]
    rtt: u64,
    /// Milliseconds within which a snapshot is on time
    #[arg(long, global = true, default_value_t = 60, value_parser = value_parser!(u64).range(1..))]
    deadline: u64,
    /// Snapshots that are counted
    #[arg(long, global = true, default_value_t = 1_000, value_parser = value_parser!(u32).range(60..=100_000))]
    snapshots: u32,
    /// Seed of the losses
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum Role {
    /// Runs the world until Ctrl-C
    Server {
        /// Address to listen on, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:4007")]
        listen: String,
    },
    /// Joins a server, through a simulated link of its own, and reports what it saw
    Client {
        /// Address of the server, as HOST:PORT
        addr: String,
        /// How the snapshots come
        #[arg(long, value_enum, default_value_t = Way::Datagrams)]
        way: Way,
    },
}

/// How snapshots reach a client.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// In a stream that recovers losses like TCP
    TcpLike,
    /// In a KCP stream
    Stream,
    /// As datagrams beside the stream
    Datagrams,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::TcpLike => "TCP-like stream",
            Self::Stream => "KCP stream",
            Self::Datagrams => "datagrams",
        }
    }

    /// Both sides have the same timing, which concerns what a side sends.
    fn config(self) -> Result<Config> {
        let config = Config::interactive().mode(Mode::Message);
        if self != Self::TcpLike {
            return Ok(config);
        }
        let gap = Duration::from_millis(10);
        let timing = Timing::new(false, gap, NonZeroU8::new(3))?;
        Ok(Config::new().mode(Mode::Message).timing(timing))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let Args { link, role } = Args::parse();
    match role {
        Some(Role::Server { listen }) => {
            let interrupted = signals::interrupted();
            let listener = KcpListener::bind_with(&listen, Way::Datagrams.config()?);
            let listener = listener.await.with_context(|| {
                format!(
                    "cannot listen on {listen}: expected a free HOST:PORT, as in 127.0.0.1:4007"
                )
            })?;
            println!("listening on {}", listener.local_addr()?);
            tokio::select! {
                served = serve(listener) => served,
                interrupted = interrupted => Ok(interrupted?),
            }
        }
        Some(Role::Client { addr, way }) => {
            println!("{}", describe(link));
            report(link, &[(way, join(&addr, way, link).await?)])
        }
        None => demo(link).await,
    }
}

/// The server: one task for each client.
async fn serve(listener: KcpListener) -> Result<()> {
    let start = Instant::now();
    let mut clients = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await?;
        clients.spawn(async move {
            if let Err(error) = serve_client(stream, start).await {
                eprintln!("{peer}: {error:#}");
            }
        });
        while clients.try_join_next().is_some() {}
    }
}

/// Sends snapshots to a client and answers its commands, until it ends its stream.
async fn serve_client(mut stream: KcpStream, start: Instant) -> Result<()> {
    // The first command says how the client wants its snapshots.
    let in_stream = match &stream.recv_message().await?[..] {
        b"join: snapshots as datagrams" => false,
        b"join: snapshots in the stream" => true,
        other => bail!("the first command is {:?}", String::from_utf8_lossy(other)),
    };
    let datagrams = stream.datagrams();
    let mut ticks = interval(TICK);
    let mut number = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let snapshot = Snapshot::take(number, start.elapsed()).to_bytes();
                number += 1;
                if in_stream {
                    stream.send_message(&snapshot).await?;
                } else {
                    // Never waits: what does not fit into the queue takes the place of the oldest. One that
                    // cannot be sent, since the peer has not answered yet, is as good as lost.
                    drop(datagrams.send(&snapshot));
                }
            }
            command = stream.recv_message() => match command {
                // The world does what a command says; here it only confirms it.
                Ok(command) => stream.send_message(&[b"done: ", &command[..]].concat()).await?,
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error.into()),
            },
        }
    }
    Ok(stream.shutdown().await?)
}

/// The observations of a client.
struct Seen {
    view: View,
    /// Errors of the predicted position at each frame: seconds, metres.
    errors: Vec<(f64, f64)>,
    /// Frames, and those without two snapshots to draw between.
    frames: u32,
    undrawn: u32,
    /// Commands that were confirmed, and the longest time that took.
    commands: u32,
    slowest_command: Duration,
    /// Bytes that the link carried.
    bytes: u64,
}

/// Joins through a simulated link of its own.
async fn join(addr: &str, way: Way, args: LinkArgs) -> Result<Seen> {
    let server = lookup_host(addr)
        .await
        .with_context(|| format!("no address for {addr:?}: write HOST:PORT"))?
        .next();
    let server =
        server.with_context(|| format!("{addr:?} has no address: write another HOST:PORT"))?;
    let delay = Duration::from_millis(args.rtt) / 2;
    let link = Conditions { loss: args.loss, delay, ..Conditions::default() };
    let counts = Arc::<Counts>::default();
    let relay = Relay::start_counting(server, link, args.seed, &counts).await?;
    let stream = KcpStream::connect_with(relay.addr(), way.config()?).await.with_context(|| {
        format!("cannot connect to {addr:?}: start the server there, or correct HOST:PORT")
    })?;
    let mut seen = play(stream, way, args).await?;
    seen.bytes = counts.bytes.load(std::sync::atomic::Ordering::Relaxed);
    Ok(seen)
}

/// Plays until the last snapshot that counts is there, or has to be.
async fn play(mut stream: KcpStream, way: Way, args: LinkArgs) -> Result<Seen> {
    let join: &[u8] = match way {
        Way::Datagrams => b"join: snapshots as datagrams",
        Way::TcpLike | Way::Stream => b"join: snapshots in the stream",
    };
    let datagrams = stream.datagrams();
    stream.send_message(join).await?;

    let mut seen = Seen {
        view: View::new(Duration::from_millis(args.rtt) / 2),
        errors: Vec::new(),
        frames: 0,
        undrawn: 0,
        commands: 0,
        slowest_command: Duration::ZERO,
        bytes: 0,
    };
    let mut sent_commands = Vec::new();
    let (mut frames, mut commands) = (interval(TICK), interval(COMMAND));
    let end = Instant::now() + TICK * args.snapshots + Duration::from_millis(args.rtt) + COMMAND;
    loop {
        tokio::select! {
            datagram = datagrams.recv() => seen.view.take(&datagram?)?,
            message = stream.recv_message() => take_message(&message?, &mut seen, &sent_commands)?,
            _ = commands.tick() => {
                stream.send_message(format!("open door {}", sent_commands.len()).as_bytes()).await?;
                sent_commands.push(Instant::now());
            }
            _ = frames.tick() => draw(&mut seen, args),
            () = sleep_until(end) => break,
        }
    }
    stream.shutdown().await?;
    // The stream still has what was under way, and then ends.
    let rest = async {
        while let Ok(message) = stream.recv_message().await {
            take_message(&message, &mut seen, &sent_commands)?;
        }
        anyhow::Ok(())
    };
    timeout(REST, rest).await.context("the server does not end its stream")??;
    ensure!(seen.commands as usize == sent_commands.len(), "a command is not confirmed");
    Ok(seen)
}

/// The confirmation of a command, or a snapshot in the stream.
fn take_message(message: &[u8], seen: &mut Seen, sent_commands: &[Instant]) -> Result<()> {
    let Some(command) = message.strip_prefix(b"done: ") else { return seen.view.take(message) };
    let expected = format!("open door {}", seen.commands);
    ensure!(command == expected.as_bytes(), "commands are out of order at {expected:?}");
    let sent = sent_commands.get(seen.commands as usize).context("a confirmation too many")?;
    seen.slowest_command = seen.slowest_command.max(sent.elapsed());
    seen.commands += 1;
    Ok(())
}

/// A frame: where is the first bot now, and what is drawn of it?
fn draw(seen: &mut Seen, args: LinkArgs) {
    let Some(now) = seen.view.server_time() else { return };
    let predicted = seen.view.predict(0, now);
    // The bots of this example run on rails, so that the true position is known here too.
    let error = distance(predicted, position(0, now));
    if seen.errors.len() < args.snapshots as usize {
        seen.errors.push((seen.errors.len() as f64 * TICK.as_secs_f64(), error.into()));
    }
    seen.frames += 1;
    if seen.view.interpolate(0, now.saturating_sub(DRAWN_BEHIND)).is_none() {
        seen.undrawn += 1;
    }
}

/// The three ways beside each other, each behind a link of its own with the same losses.
async fn demo(args: LinkArgs) -> Result<()> {
    println!("{}", describe(args));
    let mut servers = JoinSet::new();
    let mut clients = Vec::new();
    for way in [Way::TcpLike, Way::Stream, Way::Datagrams] {
        let listener = KcpListener::bind_with("127.0.0.1:0", way.config()?).await?;
        let addr = listener.local_addr()?.to_string();
        servers.spawn(serve(listener));
        clients.push(async move { anyhow::Ok((way, join(&addr, way, args).await?)) });
    }
    let clients: [_; 3] = clients.try_into().ok().context("three clients")?;
    let [one, two, three] = clients;
    let seen = tokio::try_join!(one, two, three)?;
    report(args, &<[_; 3]>::from(seen))
}

fn describe(args: LinkArgs) -> String {
    format!(
        "{} snapshots of {} bots, 60 a second, and a command each {} ms; {} ms round trip, {} % lost each way",
        args.snapshots,
        BOTS,
        COMMAND.as_millis(),
        args.rtt,
        args.loss
    )
}

fn report(args: LinkArgs, runs: &[(Way, Seen)]) -> Result<()> {
    println!(
        "\n{:<17}{:>15}{:>13}{:>12}{:>17}{:>19}{:>9}",
        "",
        format!("within {} ms", args.deadline),
        "error, mean",
        "99 %",
        "frames undrawn",
        "slowest command",
        "kB/s"
    );
    for (way, seen) in runs {
        let mut errors: Vec<f64> = seen.errors.iter().map(|(_, error)| *error).collect();
        errors.sort_by(f64::total_cmp);
        ensure!(!errors.is_empty(), "no snapshot has come");
        let on_time = seen.view.on_time(args.snapshots, Duration::from_millis(args.deadline));
        println!(
            "{:<17}{:>13.1} %{:>11.2} m{:>10.2} m{:>15.1} %{:>16} ms{:>9.0}",
            way.name(),
            f64::from(on_time) * 100.0 / f64::from(args.snapshots),
            errors.iter().sum::<f64>() / errors.len() as f64,
            errors[(errors.len() - 1) * 99 / 100],
            f64::from(seen.undrawn) * 100.0 / f64::from(seen.frames),
            seen.slowest_command.as_millis(),
            seen.bytes as f64 / 1e3 / (TICK * args.snapshots).as_secs_f64(),
        );
    }
    let path = picture_path()?;
    let title = "Error of the predicted position of a bot";
    let note = format!("{} ms round trip, {} % lost each way", args.rtt, args.loss);
    let labels: Vec<_> = runs.iter().map(|(way, _)| format!("{}, metres", way.name())).collect();
    let panels = runs.iter().zip(&labels);
    let panels = panels.map(|((_, seen), label)| Panel { label, points: seen.errors.clone() });
    std::fs::write(&path, chart::compared_over_time(title, &note, &panels.collect::<Vec<_>>()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("\npicture: {}", path.display());
    Ok(())
}

/// In the build directory, or in the temporary one without it.
fn picture_path() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let build = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    Ok(build.map_or_else(std::env::temp_dir, PathBuf::from).join("kcpx-game.svg"))
}
