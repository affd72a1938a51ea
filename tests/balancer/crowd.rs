//! Clients that exchange blocks over a connection, and reconnect when it ends.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use kcpx::{Config, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::time::sleep;

use crate::common::bytes;
use crate::common::host::Host;
use crate::network::BALANCER;
use crate::wait;

/// Bytes of a block: client, number of the block, server, random bytes, checksum.
pub(crate) const BLOCK: usize = 64;
const SERVER: usize = 8;
const CHECKSUM: usize = BLOCK - 4;

/// Time between an answer and the next block.
const PAUSE: Duration = Duration::from_millis(100);

/// True if the checksum matches the bytes.
pub(crate) fn is_intact(block: &[u8; BLOCK]) -> bool {
    crc32fast::hash(&block[..CHECKSUM]).to_le_bytes() == block[CHECKSUM..]
}

/// Sets the number of the answering server and the checksum.
pub(crate) fn with_server(mut block: [u8; BLOCK], server: u8) -> [u8; BLOCK] {
    block[SERVER] = server;
    let checksum = crc32fast::hash(&block[..CHECKSUM]);
    block[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    block
}

fn block(client: usize, number: usize) -> [u8; BLOCK] {
    let [client, number] = [client, number].map(|value| value as u32);
    let mut block = [0; BLOCK];
    block[..4].copy_from_slice(&client.to_le_bytes());
    block[4..SERVER].copy_from_slice(&number.to_le_bytes());
    let seed = u64::from(client) << 32 | u64::from(number);
    block[SERVER + 1..CHECKSUM].copy_from_slice(&bytes(seed, CHECKSUM - SERVER - 1));
    with_server(block, u8::MAX)
}

/// Time and cause of the end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) at: SystemTime,
    /// `None` if the client ended the connection.
    pub(crate) error: Option<ErrorKind>,
}

/// A connection of a client, from its first answer.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) port: u16,
    pub(crate) server: usize,
    pub(crate) served: SystemTime,
    pub(crate) answers: usize,
    /// The longest wait for an answer.
    pub(crate) slowest: Duration,
    pub(crate) end: Option<End>,
}

/// A client and its successive connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    pub(crate) connections: Vec<Connection>,
    /// Attempts to connect that ended before an answer.
    pub(crate) failed: usize,
    /// Wrong blocks, and answers from a different server than the first answer of the connection.
    pub(crate) corrupt: usize,
    is_over: bool,
}

impl Client {
    /// Returns the open connection.
    pub(crate) fn open(&self) -> Option<&Connection> {
        self.connections.last().filter(|connection| connection.end.is_none())
    }

    fn answers(&self) -> usize {
        self.connections.iter().map(|connection| connection.answers).sum()
    }
}

/// Failures that a client may see. Most cases expect none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Connections that ended with an error.
    pub(crate) broken: usize,
    /// See [`Client::failed`].
    pub(crate) failed: usize,
    /// See [`Client::corrupt`].
    pub(crate) corrupt: usize,
}

#[derive(Default)]
struct Shared {
    clients: Mutex<Vec<Client>>,
    /// While true, no client sends a block.
    rests: AtomicBool,
}

/// The clients of a host.
pub(crate) struct Crowd {
    runtime: Runtime,
    shared: Arc<Shared>,
    config: Config,
}

impl Crowd {
    /// Starts `count` clients and waits until every one is served.
    pub(crate) fn new(host: &Host, config: Config, count: usize) -> Self {
        // Threads of the runtime inherit the namespace of the thread that starts them.
        let runtime = host.start(|| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().unwrap()
        });
        let crowd = Self { runtime: runtime.recv().unwrap(), shared: Arc::default(), config };
        crowd.join(count);
        crowd
    }

    /// Starts `count` more clients, waits until every one is served, and returns their numbers.
    pub(crate) fn join(&self, count: usize) -> Range<usize> {
        let mut table = self.shared.clients.lock().unwrap();
        let numbers = table.len()..table.len() + count;
        table.resize_with(numbers.end, Client::default);
        drop(table);
        for number in numbers.clone() {
            self.runtime.spawn(converse(number, self.shared.clone(), self.config.clone()));
        }
        wait("newcomers served", || {
            self.clients()[numbers.clone()].iter().all(|one| one.open().is_some())
        });
        numbers
    }

    pub(crate) fn clients(&self) -> Vec<Client> {
        self.shared.clients.lock().unwrap().clone()
    }

    /// Counts the open connections of these clients by server.
    pub(crate) fn at_servers(&self, numbers: Range<usize>) -> [usize; crate::network::SERVERS] {
        let mut counts = [0; crate::network::SERVERS];
        for one in &self.clients()[numbers] {
            if let Some(connection) = one.open() {
                counts[connection.server] += 1;
            }
        }
        counts
    }

    /// Returns the clients with an open connection to `server`.
    pub(crate) fn of(&self, server: usize) -> Vec<usize> {
        let table = self.clients();
        let is_there = |&number: &usize| {
            table[number].open().is_some_and(|connection| connection.server == server)
        };
        (0..table.len()).filter(is_there).collect()
    }

    /// Waits until each active client has received `answers` more answers, over any connection.
    #[track_caller]
    pub(crate) fn go_on(&self, answers: usize) {
        let before = self.clients();
        wait("answers for each client", || {
            let now = self.clients();
            now.iter()
                .zip(&before)
                .all(|(now, before)| now.is_over || now.answers() >= before.answers() + answers)
        });
    }

    /// Keeps all connections idle for `time`.
    pub(crate) fn rest(&self, time: Duration) {
        self.shared.rests.store(true, Ordering::Relaxed);
        std::thread::sleep(time);
        self.shared.rests.store(false, Ordering::Relaxed);
    }

    /// Has these clients shut down their connections, and waits for the ends.
    pub(crate) fn end(&self, numbers: &[usize]) {
        for &number in numbers {
            self.shared.clients.lock().unwrap()[number].is_over = true;
        }
        wait("the end of connections", || {
            let table = self.clients();
            numbers.iter().all(|&number| table[number].open().is_none())
        });
    }

    /// Counts the connections that ended with an error.
    pub(crate) fn broken(&self) -> usize {
        let table = self.clients();
        let ends =
            table.iter().flat_map(|one| &one.connections).filter_map(|connection| connection.end);
        ends.filter(|end| end.error.is_some()).count()
    }

    /// Prints and returns the faults of a case. Prints the longest wait for an answer too.
    pub(crate) fn summary(&self, case: &str) -> Faults {
        let (broken, table) = (self.broken(), self.clients());
        let failed = table.iter().map(|one| one.failed).sum();
        let corrupt = table.iter().map(|one| one.corrupt).sum();
        let slowest = table
            .iter()
            .flat_map(|one| &one.connections)
            .map(|connection| connection.slowest)
            .max();
        let (count, slowest) = (table.len(), slowest.unwrap_or_default());
        println!(
            "{case}: {broken} of {count} broken, {failed} attempts failed, {corrupt} corrupt, \
             slowest answer {slowest:.1?}"
        );
        Faults { broken, failed, corrupt }
    }
}

/// Connects and exchanges blocks until the connection fails, then starts over.
async fn converse(number: usize, shared: Arc<Shared>, config: Config) {
    let balancer: SocketAddr = BALANCER.parse().unwrap();
    // Spreads the clients over the pause.
    sleep(PAUSE * (number as u32 % 16) / 16).await;
    while !shared.clients.lock().unwrap()[number].is_over {
        let result = match KcpStream::connect_with(balancer, config.clone()).await {
            Ok(stream) => exchange(stream, number, &shared).await,
            Err(error) => Err(error),
        };
        let was_served = {
            let client = &mut shared.clients.lock().unwrap()[number];
            let open = client.connections.last_mut().filter(|connection| connection.end.is_none());
            match open {
                Some(connection) => {
                    let error = result.err().map(|error| error.kind());
                    connection.end = Some(End { at: SystemTime::now(), error });
                    true
                }
                None => {
                    client.failed += 1;
                    false
                }
            }
        };
        if !was_served {
            sleep(PAUSE).await;
        }
    }
}

/// Exchanges blocks until the connection fails or the client is over.
async fn exchange(mut stream: KcpStream, number: usize, shared: &Shared) -> io::Result<()> {
    let port = stream.local_addr()?.port();
    for sent in 0.. {
        let (block, mut answer, began) = (block(number, sent), [0; BLOCK], Instant::now());
        stream.write_all(&block).await?;
        stream.read_exact(&mut answer).await?;
        let server = usize::from(answer[SERVER]);
        let is_over = {
            let client = &mut shared.clients.lock().unwrap()[number];
            if sent == 0 {
                let (served, slowest) = (SystemTime::now(), Duration::ZERO);
                let new = Connection { port, server, served, answers: 0, slowest, end: None };
                client.connections.push(new);
            }
            let connection = client.connections.last_mut().unwrap();
            connection.answers += 1;
            connection.slowest = connection.slowest.max(began.elapsed());
            if server != connection.server || answer != with_server(block, answer[SERVER]) {
                client.corrupt += 1;
            }
            client.is_over
        };
        if is_over {
            stream.shutdown().await?;
            let rest = stream.read(&mut [0; 1]).await?;
            assert_eq!(rest, 0);
            break;
        }
        sleep(PAUSE).await;
        while shared.rests.load(Ordering::Relaxed) {
            sleep(PAUSE).await;
        }
    }
    Ok(())
}
