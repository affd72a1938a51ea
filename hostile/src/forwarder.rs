//! A UDP forwarder between one client and one server, which delays, loses and records what passes and
//! can inject datagrams that come, as either end sees it, from the address of the other.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kcpx::fec::{FecFlag, fec_flag};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::rng::Rng;

/// Datagrams forwarded in a row in one direction.
const BATCH: usize = 64;

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// A datagram that has passed.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) direction: Direction,
    pub(crate) datagram: Arc<[u8]>,
}

/// How a forwarder treats what passes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions {
    /// Datagrams lost of 1,000, at random.
    pub(crate) loss_permille: usize,
    /// The first datagrams to the server, which are lost in any case.
    pub(crate) lose_first: u64,
    /// Datagrams that are remembered, the latest ones.
    pub(crate) recording: usize,
    /// Delay of each direction.
    pub(crate) delay: Duration,
}

impl Conditions {
    /// Nothing is lost or delayed, and everything is remembered, up to a bound.
    pub(crate) fn recording() -> Self {
        Self { recording: 8_192, ..Self::default() }
    }
}

/// Forwards until it is dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    server: Mutex<SocketAddr>,
    client: Mutex<Option<SocketAddr>>,
    client_side: UdpSocket,
    server_side: UdpSocket,
    conditions: Conditions,
    recording: Mutex<VecDeque<Recorded>>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    to_server: AtomicU64,
    to_client: AtomicU64,
    lost_data_shards: AtomicU64,
}

impl Forwarder {
    pub(crate) async fn start(server: SocketAddr, conditions: Conditions) -> io::Result<Self> {
        Self::new(server, None, conditions).await
    }

    /// Between two servers, each of which sees the other one as a client.
    pub(crate) async fn between(
        server: SocketAddr,
        other: SocketAddr,
        conditions: Conditions,
    ) -> io::Result<Self> {
        Self::new(server, Some(other), conditions).await
    }

    async fn new(
        server: SocketAddr,
        client: Option<SocketAddr>,
        conditions: Conditions,
    ) -> io::Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            client: Mutex::new(client),
            client_side: UdpSocket::bind(any).await?,
            server_side: UdpSocket::bind(any).await?,
            conditions,
            recording: Mutex::default(),
            counts: Counts::default(),
        });
        let task = tokio::spawn(Shared::forward(shared.clone()));
        Ok(Self { shared, task })
    }

    /// The address that a client connects to.
    pub(crate) fn addr(&self) -> io::Result<SocketAddr> {
        self.shared.client_side.local_addr()
    }

    /// Forwards to another address from now on, and takes answers from there alone.
    pub(crate) fn retarget(&self, server: SocketAddr) {
        *lock(&self.shared.server) = server;
    }

    /// For threads that inject.
    pub(crate) fn injector(&self) -> Injector {
        Injector(self.shared.clone())
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Injects datagrams into the traffic of a [`Forwarder`], and has its recording.
#[derive(Clone, Debug)]
pub(crate) struct Injector(Arc<Shared>);

impl Injector {
    /// Sends a datagram that comes from the address of the other end. Returns whether it left.
    pub(crate) fn inject(&self, direction: Direction, datagram: &[u8]) -> bool {
        self.0.send(direction, datagram)
    }

    /// Datagrams that came from the client and from the server so far.
    pub(crate) fn passed(&self) -> (u64, u64) {
        let counts = &self.0.counts;
        (counts.to_server.load(Ordering::Relaxed), counts.to_client.load(Ordering::Relaxed))
    }

    /// Data packets of FEC to the server that were lost so far.
    pub(crate) fn lost_data_shards(&self) -> u64 {
        self.0.counts.lost_data_shards.load(Ordering::Relaxed)
    }

    /// Everything that is remembered, in order.
    pub(crate) fn recording(&self) -> Vec<Recorded> {
        lock(&self.0.recording).iter().cloned().collect()
    }

    /// One of the datagrams that are remembered, at random.
    pub(crate) fn recorded(&self, rng: &mut Rng) -> Option<Recorded> {
        let recording = lock(&self.0.recording);
        if recording.is_empty() { None } else { recording.get(rng.below(recording.len())).cloned() }
    }

    /// The latest datagram in this direction of those that are `wanted`.
    pub(crate) fn latest(
        &self,
        direction: Direction,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Option<Recorded> {
        let recording = lock(&self.0.recording);
        let mut latest = recording.iter().rev();
        latest
            .find(|recorded| recorded.direction == direction && wanted(&recorded.datagram))
            .cloned()
    }
}

/// Datagrams that are under way.
type UnderWay = VecDeque<(Instant, Direction, Vec<u8>)>;

impl Shared {
    async fn forward(self: Arc<Self>) {
        let mut rng = Rng::new(1);
        let mut buffer = vec![0; 65_536];
        let mut under_way = UnderWay::new();
        loop {
            let due = under_way.front().map(|(due, _, _)| *due);
            let direction = tokio::select! {
                ready = self.client_side.readable() => {
                    if ready.is_err() { return }
                    Direction::ToServer
                }
                ready = self.server_side.readable() => {
                    if ready.is_err() { return }
                    Direction::ToClient
                }
                () = sleep_until(due) => {
                    self.deliver(&mut under_way);
                    continue;
                }
            };
            self.receive_batch(direction, &mut buffer, &mut rng, &mut under_way);
            self.deliver(&mut under_way);
        }
    }

    fn receive_batch(
        &self,
        direction: Direction,
        buffer: &mut [u8],
        rng: &mut Rng,
        under_way: &mut UnderWay,
    ) {
        let server = *lock(&self.server);
        for _ in 0..BATCH {
            let socket = match direction {
                Direction::ToServer => &self.client_side,
                Direction::ToClient => &self.server_side,
            };
            // An error of one datagram, such as ICMP's, is reported once and is no end.
            let (len, from) = match socket.try_recv_from(buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => continue,
            };
            match direction {
                Direction::ToServer => *lock(&self.client) = Some(from),
                Direction::ToClient if from != server => continue,
                Direction::ToClient => {}
            }
            let datagram = &buffer[..len];
            self.record(direction, datagram);
            if self.is_lost(direction, rng) {
                let is_data = fec_flag(datagram) == FecFlag::Data;
                if is_data && direction == Direction::ToServer {
                    self.counts.lost_data_shards.fetch_add(1, Ordering::Relaxed);
                }
            } else if self.conditions.delay.is_zero() {
                self.send(direction, datagram);
            } else {
                let due = Instant::now() + self.conditions.delay;
                under_way.push_back((due, direction, datagram.to_vec()));
            }
        }
    }

    /// Whether the latest datagram of a direction is lost.
    fn is_lost(&self, direction: Direction, rng: &mut Rng) -> bool {
        let is_first = direction == Direction::ToServer
            && self.counts.to_server.load(Ordering::Relaxed) <= self.conditions.lose_first;
        is_first || rng.below(1_000) < self.conditions.loss_permille
    }

    fn deliver(&self, under_way: &mut UnderWay) {
        let now = Instant::now();
        while let Some((due, direction, datagram)) = under_way.pop_front() {
            if due > now {
                under_way.push_front((due, direction, datagram));
                return;
            }
            self.send(direction, &datagram);
        }
    }

    fn record(&self, direction: Direction, datagram: &[u8]) {
        let count = match direction {
            Direction::ToServer => &self.counts.to_server,
            Direction::ToClient => &self.counts.to_client,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if self.conditions.recording == 0 {
            return;
        }
        let mut recording = lock(&self.recording);
        if recording.len() == self.conditions.recording {
            recording.pop_front();
        }
        recording.push_back(Recorded { direction, datagram: datagram.into() });
    }

    fn send(&self, direction: Direction, datagram: &[u8]) -> bool {
        match direction {
            Direction::ToServer => {
                self.server_side.try_send_to(datagram, *lock(&self.server)).is_ok()
            }
            Direction::ToClient => {
                let client = *lock(&self.client);
                client.is_some_and(|to| self.client_side.try_send_to(datagram, to).is_ok())
            }
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
