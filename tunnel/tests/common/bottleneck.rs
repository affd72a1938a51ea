//! A path of 10 Mbit/s and 20 ms each way, with a queue.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Bytes per second.
const RATE: f64 = 1_250_000.0;
const DELAY: Duration = Duration::from_millis(20);
/// Longest wait in the queue of the bottleneck: 200 full packets.
const LONGEST_WAIT: Duration = Duration::from_millis(224);
/// UDP and IPv4 headers, in bytes.
const IP_UDP: usize = 28;

/// A bottleneck between one client and a server. Ends on drop.
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
