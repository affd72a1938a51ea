//! Honest clients of an echo server. Each byte that comes back is compared.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kcpx::{Config, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::rng::Rng;
use crate::server::{GREETING, GREETING_BYTE, Service};

/// A connection counts as lost when nothing comes back for so long.
const STALLED: Duration = Duration::from_secs(30);
/// A connect has failed after so long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two connects of one client.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// A message of the echo connection leaves each so often.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(20);

/// A client among many starts so often.
const CLIENT_INTERVAL: Duration = Duration::from_millis(50);
/// It counts as served if it has everything after so long.
const SERVED_WITHIN: Duration = Duration::from_secs(3);

/// The period of a stream's bytes: position `n` has the same byte in every stream. A prime, so that no
/// power of two shifts it onto itself.
const PATTERN_LEN: usize = 65_521;

/// The bytes of all streams.
#[derive(Debug)]
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        let once = Rng::new(77).bytes(PATTERN_LEN);
        Self([once.as_slice(), &once].concat())
    }

    /// `len` bytes from `position` on; `len` is at most [`PATTERN_LEN`].
    fn at(&self, position: u64, len: usize) -> &[u8] {
        let from = (position % PATTERN_LEN as u64) as usize;
        &self.0[from..from + len]
    }
}

/// The counters of all honest clients.
#[derive(Debug)]
pub(crate) struct Tally {
    pattern: Pattern,
    /// Connections that ended with an error or stalled.
    pub(crate) lost: AtomicU64,
    /// Reads whose bytes were not those that were sent.
    pub(crate) wrong: AtomicU64,
    /// Bytes that came back.
    pub(crate) echoed: AtomicU64,
    /// Short connections that were served.
    pub(crate) served: AtomicU64,
    /// Short connections that failed.
    pub(crate) failed: AtomicU64,
    longest_connect: AtomicU64,
    longest_echo: AtomicU64,
}

impl Tally {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            pattern: Pattern::new(),
            lost: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            echoed: AtomicU64::new(0),
            served: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            longest_connect: AtomicU64::new(0),
            longest_echo: AtomicU64::new(0),
        })
    }

    /// The longest time until a short connection had its first echo, and until a message of the echo
    /// connection came back, since the last call.
    pub(crate) fn take_longest(&self) -> (Duration, Duration) {
        let take = |longest: &AtomicU64| Duration::from_micros(longest.swap(0, Ordering::Relaxed));
        (take(&self.longest_connect), take(&self.longest_echo))
    }

    fn compare(&self, position: u64, bytes: &[u8]) {
        if bytes != self.pattern.at(position, bytes.len()) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
        self.echoed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    fn on_lost(&self, name: &str, error: &io::Error) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        println!("lost: {name}: {error}");
    }
}

/// A connection that sends at this rate and reads the echo; another one when it is lost.
pub(crate) async fn paced(
    name: &'static str,
    addr: SocketAddr,
    config: Config,
    bytes_per_second: u64,
    tally: Arc<Tally>,
) {
    loop {
        let Err(error) = paced_once(addr, config.clone(), bytes_per_second, tally.clone()).await;
        tally.on_lost(name, &error);
        sleep(Duration::from_secs(1)).await;
    }
}

enum Never {}

async fn paced_once(
    addr: SocketAddr,
    config: Config,
    bytes_per_second: u64,
    tally: Arc<Tally>,
) -> io::Result<Never> {
    let stream = KcpStream::connect_with(addr, config).await?;
    let (mut reader, mut writer) = stream.into_split();
    let source = tally.clone();
    let sender = tokio::spawn(async move {
        let (start, mut sent) = (Instant::now(), 0_u64);
        loop {
            let due =
                (start.elapsed().as_micros() as u64).saturating_mul(bytes_per_second) / 1_000_000;
            while sent < due {
                let len = (due - sent).min(32 * 1024) as usize;
                writer.write_all(source.pattern.at(sent, len)).await?;
                sent += len as u64;
            }
            sleep(Duration::from_millis(10)).await;
        }
        #[expect(unreachable_code, reason = "it names the type")]
        io::Result::Ok(())
    });
    let mut buffer = vec![0; 32 * 1024];
    let mut position = 0;
    let end = loop {
        match timeout(STALLED, reader.read(&mut buffer)).await {
            Err(_) => break io::Error::other("nothing came back for 30 s"),
            Ok(Err(error)) => break error,
            Ok(Ok(0)) => break io::ErrorKind::UnexpectedEof.into(),
            Ok(Ok(len)) => {
                tally.compare(position, &buffer[..len]);
                position += len as u64;
            }
        }
    };
    sender.abort();
    Err(end)
}

/// A connection with a message of 64 bytes each 20 ms, which is echoed before the next one leaves.
pub(crate) async fn messages(
    name: &'static str,
    addr: SocketAddr,
    config: Config,
    tally: Arc<Tally>,
) {
    loop {
        let Err(error) = messages_once(addr, config.clone(), &tally).await;
        tally.on_lost(name, &error);
        sleep(Duration::from_secs(1)).await;
    }
}

async fn messages_once(addr: SocketAddr, config: Config, tally: &Tally) -> io::Result<Never> {
    let mut stream = KcpStream::connect_with(addr, config).await?;
    let mut position = 0;
    let mut buffer = [0; 64];
    loop {
        let start = Instant::now();
        stream.write_all(tally.pattern.at(position, 64)).await?;
        let read = timeout(STALLED, stream.read_exact(&mut buffer)).await;
        read.map_err(|_| io::Error::other("no echo for 30 s"))??;
        tally.compare(position, &buffer);
        tally.longest_echo.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        position += 64;
        sleep(MESSAGE_INTERVAL.saturating_sub(start.elapsed())).await;
    }
}

/// A client that connects, has a little echoed, closes, and connects again.
pub(crate) async fn connects(addr: SocketAddr, config: Config, tally: Arc<Tally>) {
    loop {
        let connected = timeout(CONNECT_TIMEOUT, connect(addr, config.clone(), &tally)).await;
        let connected = connected.unwrap_or_else(|elapsed| Err(elapsed.into()));
        let count = if connected.is_ok() { &tally.served } else { &tally.failed };
        count.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = connected {
            println!("failed: a short connection: {error}");
        }
        sleep(CONNECT_PAUSE).await;
    }
}

/// One short connection: 200 bytes, their echo, and the end of both directions.
pub(crate) async fn connect(addr: SocketAddr, config: Config, tally: &Tally) -> io::Result<()> {
    let start = Instant::now();
    let mut stream = KcpStream::connect_with(addr, config).await?;
    stream.write_all(tally.pattern.at(0, 200)).await?;
    let mut echo = [0; 200];
    stream.read_exact(&mut echo).await?;
    tally.compare(0, &echo);
    tally.longest_connect.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
    stream.shutdown().await?;
    if stream.read(&mut echo).await? != 0 {
        tally.wrong.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Sends `len` bytes over a connection to an echo server, and compares the echo.
pub(crate) async fn echo(stream: &mut KcpStream, len: usize) -> io::Result<()> {
    let bytes = Rng::new(len as u64).bytes(len);
    let (mut reader, mut writer) = stream.split();
    let mut back = vec![0; len];
    let exchange = async {
        tokio::try_join!(writer.write_all(&bytes), reader.read_exact(&mut back)).map(|_| ())
    };
    let exchanged = timeout(STALLED, exchange).await;
    exchanged.map_err(|_| io::Error::other("no echo for 30 s"))??;
    if back == bytes { Ok(()) } else { Err(io::Error::other("another echo")) }
}

/// One short connection to a server that sends first: its greeting.
pub(crate) async fn greeted(addr: SocketAddr, config: Config, tally: &Tally) -> io::Result<()> {
    let mut stream = KcpStream::connect_with(addr, config).await?;
    stream.write_all(b"?").await?;
    let mut greeting = vec![0; GREETING];
    stream.read_exact(&mut greeting).await?;
    if greeting.iter().any(|byte| *byte != GREETING_BYTE) {
        tally.wrong.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Clients that connect one after the other, whether those before them are served or not.
#[derive(Debug)]
pub(crate) struct Clients {
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    starter: JoinHandle<Vec<JoinHandle<bool>>>,
}

impl Clients {
    /// A client each 50 ms.
    pub(crate) fn start(addr: SocketAddr, config: Config, service: Service) -> Self {
        let tally = Tally::new();
        let stop = Arc::new(AtomicBool::new(false));
        let (halt, count) = (stop.clone(), tally.clone());
        let starter = tokio::spawn(async move {
            let mut clients = Vec::new();
            while !halt.load(Ordering::Relaxed) {
                let (tally, config) = (count.clone(), config.clone());
                clients.push(tokio::spawn(async move {
                    let served = async {
                        match service {
                            Service::Echo => connect(addr, config, &tally).await,
                            Service::Greeting | Service::Pour => {
                                greeted(addr, config, &tally).await
                            }
                        }
                    };
                    timeout(SERVED_WITHIN, served).await.is_ok_and(|served| served.is_ok())
                }));
                sleep(CLIENT_INTERVAL).await;
            }
            clients
        });
        Self { tally, stop, starter }
    }

    /// Waits for those that are under way. Returns how many were served, and of how many; a wrong
    /// byte takes one away.
    pub(crate) async fn stop(self) -> anyhow::Result<(u64, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        let clients = self.starter.await?;
        let (mut served, of) = (0_u64, clients.len() as u64);
        for client in clients {
            served += u64::from(client.await?);
        }
        Ok((served.saturating_sub(self.tally.wrong.load(Ordering::Relaxed)), of))
    }
}
