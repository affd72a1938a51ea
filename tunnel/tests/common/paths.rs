//! Paths between a client and a server: a bottleneck, and a NAT whose mapping changes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kcpx_netem::{InFlight, Link, Relay};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::bound_udp;

/// Bytes per second.
const RATE: f64 = 1_250_000.0;
const DELAY: Duration = Duration::from_millis(20);
/// Longest wait in the queue of the bottleneck: 200 full packets.
const LONGEST_WAIT: Duration = Duration::from_millis(224);
/// UDP and IPv4 headers, in bytes.
const IP_UDP: usize = 28;

/// A bottleneck between one client and a server: 10 Mbit/s and 20 ms each way, with a queue. Ends on drop.
pub struct Bottleneck {
    /// Address for the client.
    pub addr: SocketAddr,
    /// Bytes sent towards the client, including IP headers.
    pub down: Arc<AtomicU64>,
    _relay: Relay,
}

impl Bottleneck {
    pub async fn new(server: SocketAddr) -> Self {
        let [up, down] = [(); 2].map(|()| SlowLink::default());
        let bytes = down.bytes.clone();
        let relay = Relay::over(server, [up, down]).await.unwrap();
        Self { addr: relay.addr(), down: bytes, _relay: relay }
    }
}

/// One direction of a [`Bottleneck`].
#[derive(Default)]
struct SlowLink {
    /// Bytes sent, including IP headers.
    bytes: Arc<AtomicU64>,
    /// When the queue is empty.
    free_at: Duration,
    in_flight: InFlight,
}

impl Link for SlowLink {
    type Counts = ();

    fn push(&mut self, now: Duration, datagram: &[u8]) {
        let start = self.free_at.max(now);
        if start - now < LONGEST_WAIT {
            self.free_at = start + Duration::from_secs_f64((datagram.len() + IP_UDP) as f64 / RATE);
            self.in_flight.push(self.free_at + DELAY, datagram);
        }
    }

    fn next_due(&self) -> Option<Duration> {
        self.in_flight.next_due()
    }

    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        let (_, datagram) = self.in_flight.pop_due(now + grain)?;
        self.bytes.fetch_add((datagram.len() + IP_UDP) as u64, Ordering::Relaxed);
        Some(datagram)
    }

    fn refused(&mut self, _: usize) {}

    fn counts(&self) {}
}

/// Forwards datagrams of one client socket. Ends on drop.
pub struct Nat {
    /// Address for the client.
    pub addr: SocketAddr,
    /// The socket that the server sees.
    outside: watch::Sender<Arc<UdpSocket>>,
    _tasks: JoinSet<()>,
}

impl Nat {
    pub async fn new(server: SocketAddr) -> Self {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let inside = Arc::new(bound_udp(loopback));
        let addr = inside.local_addr().unwrap();
        let (outside, mapping) = watch::channel(Arc::new(bound_udp(loopback)));
        let client = Arc::new(Mutex::new(addr));
        let mut tasks = JoinSet::new();
        let (socket, source, mapped) = (inside.clone(), client.clone(), mapping.clone());
        tasks.spawn(async move {
            let mut buf = vec![0; 65_536];
            loop {
                let Ok((len, from)) = socket.recv_from(&mut buf).await else { continue };
                *source.lock().unwrap() = from;
                let outside = mapped.borrow().clone();
                drop(outside.send_to(&buf[..len], server).await);
            }
        });
        tasks.spawn(async move {
            let (mut buf, mut mapping) = (vec![0; 65_536], mapping);
            loop {
                let outside = mapping.borrow_and_update().clone();
                tokio::select! {
                    // Datagrams to the earlier mapping are lost.
                    changed = mapping.changed() => changed.unwrap(),
                    received = outside.recv(&mut buf) => {
                        let Ok(len) = received else { continue };
                        let client = *client.lock().unwrap();
                        drop(inside.send_to(&buf[..len], client).await);
                    }
                }
            }
        });
        Self { addr, outside, _tasks: tasks }
    }

    /// Changes the mapping: the server sees another address, and its datagrams to the old one are
    /// lost.
    pub fn rebind(&self) {
        self.outside.send_replace(Arc::new(bound_udp(([127, 0, 0, 1], 0).into())));
    }
}
