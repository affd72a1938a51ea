//! Paths between a client and a server: a bottleneck, and a NAT whose mapping changes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

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
    _tasks: JoinSet<()>,
}

impl Bottleneck {
    pub async fn new(server: SocketAddr) -> Self {
        let bind = || async { Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap()) };
        let (near, far) = (bind().await, bind().await);
        let addr = near.local_addr().unwrap();
        let (client, server) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Some(server))));
        let (up, down) = (Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(carry(near.clone(), client.clone(), far.clone(), server.clone(), up));
        tasks.spawn(carry(far, server, near, client, Arc::clone(&down)));
        Self { addr, down, _tasks: tasks }
    }
}

/// Carries one direction from `receiver` to `sender`, which sends to `to`. `source` is the last
/// sender.
async fn carry(
    receiver: Arc<UdpSocket>,
    source: Arc<Mutex<Option<SocketAddr>>>,
    sender: Arc<UdpSocket>,
    to: Arc<Mutex<Option<SocketAddr>>>,
    bytes: Arc<AtomicU64>,
) {
    let (queue, mut leaving) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let leave = async {
        while let Some((due, datagram)) = leaving.recv().await {
            sleep_until(due).await;
            bytes.fetch_add((datagram.len() + IP_UDP) as u64, Ordering::Relaxed);
            let to = *to.lock().unwrap();
            if let Some(to) = to {
                drop(sender.send_to(&datagram, to).await);
            }
        }
    };
    let enter = async {
        let (mut buf, mut free_at) = (vec![0; 65_536], Instant::now());
        loop {
            let Ok((len, from)) = receiver.recv_from(&mut buf).await else { continue };
            *source.lock().unwrap() = Some(from);
            let now = Instant::now();
            let start = free_at.max(now);
            if start - now < LONGEST_WAIT {
                free_at = start + Duration::from_secs_f64((len + IP_UDP) as f64 / RATE);
                queue.send((free_at + DELAY, buf[..len].to_vec())).unwrap();
            }
        }
    };
    tokio::join!(leave, enter);
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
