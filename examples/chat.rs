//! Chat: lines travel in the stream, presence beside it.
//!
//! A line must arrive, and in order. Each guest says every second that it is still there; a lost one does
//! not matter, so these are datagrams, which are neither retransmitted nor kept back behind lost lines.

#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/usage.rs"]
mod usage;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use kcpx::{Config, Datagrams, KcpListener, KcpStream, OwnedReadHalf, OwnedWriteHalf, Timing};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, stdin};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

/// Longest line in bytes, so that a client takes no more memory than that; longest name.
const LINE: usize = 4_096;
const NAME: usize = 32;
/// Lines and presence datagrams that wait for one client at most.
const QUEUE: usize = 256;
/// How often a client says that it is there, and after what time without it counts as away.
const BEAT: Duration = Duration::from_secs(1);
const AWAY: Duration = Duration::from_secs(5);

/// Chat with lines in the stream and presence datagrams beside it; without a command, a lobby with two guests
/// in this process.
#[derive(Parser)]
#[command(after_help = "\
Both sides in one process:
  cargo run --release -p kcpx-examples --example chat
In several terminals:
  cargo run --release -p kcpx-examples --example chat -- server --listen 127.0.0.1:4005
  cargo run --release -p kcpx-examples --example chat -- client 127.0.0.1:4005 --name alice

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// The lobby: passes on what each client sends, until Ctrl-C
    Server {
        /// Address to listen on, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:4005")]
        listen: String,
    },
    /// Joins the lobby: sends the lines of its input, prints what others send, until its input ends
    Client {
        /// Address of the server, as HOST:PORT
        addr: String,
        /// The name for others, at most 32 bytes
        #[arg(long, default_value = "guest")]
        name: String,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    match Args::parse().role {
        Some(Role::Server { listen }) => {
            let interrupted = signals::interrupted();
            let listener = bind(&listen).await?;
            println!("listening on {}", listener.local_addr()?);
            tokio::select! {
                served = serve(&listener) => served?,
                interrupted = interrupted => interrupted?,
            }
            listener.wait_idle().await;
            Ok(())
        }
        Some(Role::Client { addr, name }) => talk(&addr, &usage::checked(valid(name))).await,
        None => demo().await,
    }
}

fn config() -> Config {
    Config::new().timing(Timing::FAST3)
}

async fn bind(addr: &str) -> Result<KcpListener> {
    KcpListener::bind_with(addr, config()).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4005")
    })
}

/// A message between the sides.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Post {
    /// With its newline.
    Line(String),
    /// From a client: it is there. To a client: the name of a guest who is there.
    Presence(Bytes),
}

/// The messages of the other side, from the stream and from datagrams.
struct Inbox {
    reader: OwnedReadHalf,
    datagrams: Datagrams,
    partial: Vec<u8>,
}

impl Inbox {
    fn new(reader: OwnedReadHalf) -> Self {
        Self { datagrams: reader.datagrams(), reader, partial: Vec::new() }
    }

    /// The next line or presence; `None` when the other side has ended its stream. Cancel safe.
    async fn next(&mut self) -> Result<Option<Post>> {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line = self.partial.drain(..=end).collect();
                return Ok(Some(Post::Line(
                    String::from_utf8(line).context("a line not in UTF-8")?,
                )));
            }
            ensure!(self.partial.len() <= LINE, "a line of more than {LINE} bytes");
            tokio::select! {
                // Its error says that the connection has ended; how, the stream says below,
                // after its last lines.
                presence = self.datagrams.recv() => if let Ok(presence) = presence {
                    return Ok(Some(Post::Presence(presence)));
                },
                ready = self.reader.readable() => ready?,
            }
            let mut block = [0; 1_024];
            match self.reader.try_read(&mut block) {
                Ok(0) => return Ok(None),
                Ok(count) => self.partial.extend_from_slice(&block[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn line(&mut self) -> Result<String> {
        loop {
            match self.next().await?.context("the stream has ended")? {
                Post::Line(line) => return Ok(line),
                Post::Presence(_) => {}
            }
        }
    }
}

/// Everyone in the lobby, by number.
#[derive(Default)]
struct Lobby {
    guests: Mutex<HashMap<u64, mpsc::Sender<Post>>>,
}

impl Lobby {
    fn with<T>(&self, action: impl FnOnce(&mut HashMap<u64, mpsc::Sender<Post>>) -> T) -> T {
        action(&mut self.guests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// To everyone but `from`. A guest whose queue is full misses a presence, but no line: rather
    /// than that it has to leave, which the end of its queue shows.
    fn post(&self, from: u64, post: &Post) {
        self.with(|guests| Self::post_to(guests, from, post));
    }

    /// Adds a guest and posts it to the others in one step: when two join at once, exactly one sees the
    /// other join.
    fn join(&self, number: u64, queue: mpsc::Sender<Post>, post: &Post) {
        self.with(|guests| {
            guests.insert(number, queue);
            Self::post_to(guests, number, post);
        });
    }

    fn post_to(guests: &mut HashMap<u64, mpsc::Sender<Post>>, from: u64, post: &Post) {
        guests.retain(|number, queue| {
            let full = *number != from && queue.try_send(post.clone()).is_err();
            !full || matches!(post, Post::Presence(_))
        });
    }
}

async fn serve(listener: &KcpListener) -> Result<()> {
    let lobby = Arc::new(Lobby::default());
    let mut guests = JoinSet::new();
    for number in 0.. {
        let (stream, peer) = listener.accept().await?;
        while guests.try_join_next().is_some() {}
        let lobby = lobby.clone();
        guests.spawn(async move {
            let left = host(stream, number, &lobby).await;
            lobby.with(|guests| guests.remove(&number));
            println!("{peer}: {}", left.map_or_else(|error| error.to_string(), |()| "left".into()));
        });
    }
    Ok(())
}

/// One guest, from its name to its end.
async fn host(stream: KcpStream, number: u64, lobby: &Lobby) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut inbox = Inbox::new(reader);
    let name = inbox.line().await?.trim().to_owned();
    ensure!((1..=NAME).contains(&name.len()), "a name of {} bytes", name.len());
    let (queue, mut posts) = mpsc::channel(QUEUE);
    lobby.join(number, queue, &Post::Line(format!("* {name} joined\n")));
    let here = Post::Presence(Bytes::from(name.clone()));
    loop {
        tokio::select! {
            post = posts.recv() => match post {
                Some(post) => deliver(&mut writer, &post).await?,
                None => bail!("read too slowly"),
            },
            received = inbox.next() => match received? {
                Some(Post::Line(line)) => {
                    lobby.post(number, &Post::Line(format!("{name}: {line}")));
                }
                Some(Post::Presence(_)) => lobby.post(number, &here),
                None => break,
            },
        }
    }
    lobby.post(number, &Post::Line(format!("* {name} left\n")));
    writer.shutdown().await?;
    Ok(())
}

async fn deliver(writer: &mut OwnedWriteHalf, post: &Post) -> std::io::Result<()> {
    match post {
        Post::Line(line) => writer.write_all(line.as_bytes()).await,
        Post::Presence(presence) => writer.datagrams().send(presence),
    }
}

fn valid(name: String) -> Result<String> {
    ensure!(
        (1..=NAME).contains(&name.len()) && !name.contains('\n'),
        "--name must have 1 to {NAME} bytes in one line, got {}",
        name.len()
    );
    Ok(name)
}

/// Joins the lobby at `addr`.
async fn join(addr: &str, name: &str) -> Result<(Inbox, OwnedWriteHalf)> {
    let mut stream = KcpStream::connect_with(addr, config()).await.with_context(|| {
        format!("cannot connect to {addr:?}: start the server there, or correct HOST:PORT")
    })?;
    stream.write_all(format!("{name}\n").as_bytes()).await?;
    stream.established().await.with_context(|| format!("no peer answers at {addr}"))?;
    let (reader, writer) = stream.into_split();
    Ok((Inbox::new(reader), writer))
}

async fn talk(addr: &str, name: &str) -> Result<()> {
    let (mut inbox, mut writer) = join(addr, name).await?;
    println!("joined as {name}");
    let mut input = BufReader::new(stdin()).lines();
    let mut beat = interval(BEAT);
    let mut seen = HashMap::new();
    loop {
        tokio::select! {
            line = input.next_line() => match line? {
                Some(line) => writer.write_all(format!("{line}\n").as_bytes()).await?,
                None => break,
            },
            received = inbox.next() => match received? {
                Some(Post::Line(line)) => print!("{line}"),
                Some(Post::Presence(name)) => {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    if seen.insert(name.clone(), Instant::now()).is_none() {
                        println!("* {name} is here");
                    }
                }
                None => bail!("the server has ended"),
            },
            _ = beat.tick() => {
                writer.datagrams().send(b"here")?;
                for (name, _) in seen.extract_if(|_, last: &mut Instant| last.elapsed() > AWAY) {
                    println!("* {name} is away");
                }
            }
        }
    }
    // The lobby has every line once this is done.
    writer.shutdown().await?;
    Ok(())
}

/// A lobby with two guests: a line of one reaches the other, and so does a presence.
async fn demo() -> Result<()> {
    let listener = bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?.to_string();
    let served = serve(&listener);
    let guests = async {
        let (mut alice, mut to_alice) = join(&addr, "alice").await?;
        let (mut bob, mut to_bob) = join(&addr, "bob").await?;
        // Both join at once, and the one who is in first sees the other join.
        let joined = tokio::select! {
            joined = alice.line() => joined?,
            joined = bob.line() => joined?,
        };
        let names = ["* bob joined\n", "* alice joined\n"];
        ensure!(names.contains(&joined.as_str()), "a guest read {joined:?}");
        println!("a lobby at {addr}, with alice and bob");

        to_bob.write_all(b"hello, alice\n").await?;
        let line = alice.line().await?;
        ensure!(line == "bob: hello, alice\n", "alice read {line:?}");
        println!("through the stream: {}", line.trim_end());

        // A datagram may be lost, so bob says it again until alice has heard it.
        let mut beat = interval(Duration::from_millis(20));
        let presence = loop {
            tokio::select! {
                received = alice.next() => break received?.context("the stream has ended")?,
                _ = beat.tick() => to_bob.datagrams().send(b"here")?,
            }
        };
        ensure!(presence == Post::Presence(Bytes::from_static(b"bob")), "alice got {presence:?}");
        println!("beside it:          bob is here");

        to_bob.shutdown().await?;
        ensure!(bob.next().await?.is_none(), "bob got something after its end");
        let left = alice.line().await?;
        ensure!(left == "* bob left\n", "alice read {left:?}");
        println!("the end of a stream: bob left");
        to_alice.shutdown().await?;
        anyhow::Ok(())
    };
    tokio::select! {
        served = served => served.context("the server"),
        done = guests => done,
    }?;
    listener.wait_idle().await;
    Ok(())
}
