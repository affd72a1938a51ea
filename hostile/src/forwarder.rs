//! A UDP forwarder between one client and one server, which records what passes and can inject
//! datagrams that come, as either end sees it, from the address of the other.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

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
    /// Datagrams that are remembered, the latest ones.
    pub(crate) recording: usize,
}

/// Forwards until it is dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    client: Mutex<Option<SocketAddr>>,
    client_side: UdpSocket,
    server_side: UdpSocket,
    conditions: Conditions,
    recording: Mutex<VecDeque<Recorded>>,
    to_server: AtomicU64,
    to_client: AtomicU64,
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
            server,
            client: Mutex::new(client),
            client_side: UdpSocket::bind(any).await?,
            server_side: UdpSocket::bind(any).await?,
            conditions,
            recording: Mutex::default(),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
        });
        let task = tokio::spawn(Shared::forward(shared.clone()));
        Ok(Self { shared, task })
    }

    /// Where a client connects to.
    pub(crate) fn addr(&self) -> io::Result<SocketAddr> {
        self.shared.client_side.local_addr()
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

impl Shared {
    async fn forward(self: Arc<Self>) {
        let mut rng = Rng::new(1);
        let mut buffer = vec![0; 65_536];
        loop {
            tokio::select! {
                ready = self.client_side.readable() => {
                    if ready.is_err() { return }
                    self.forward_batch(Direction::ToServer, &mut buffer, &mut rng);
                }
                ready = self.server_side.readable() => {
                    if ready.is_err() { return }
                    self.forward_batch(Direction::ToClient, &mut buffer, &mut rng);
                }
            }
        }
    }

    fn forward_batch(&self, direction: Direction, buffer: &mut [u8], rng: &mut Rng) {
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
                Direction::ToClient if from != self.server => continue,
                Direction::ToClient => {}
            }
            self.record(direction, &buffer[..len]);
            if rng.below(1_000) >= self.conditions.loss_permille {
                self.send(direction, &buffer[..len]);
            }
        }
    }

    fn record(&self, direction: Direction, datagram: &[u8]) {
        let count = match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
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
            Direction::ToServer => self.server_side.try_send_to(datagram, self.server).is_ok(),
            Direction::ToClient => {
                let client = *lock(&self.client);
                client.is_some_and(|to| self.client_side.try_send_to(datagram, to).is_ok())
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
