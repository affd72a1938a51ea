//! A bad link in one process: a UDP relay in front of a server that loses, delays and reorders
//! datagrams. The same seed draws the same fate for the n-th datagram.

use std::collections::BTreeMap;
use std::io::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use chacha20::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

/// Enough for a burst of a whole window: losses are to be those of the link alone.
const SOCKET_BUFFER: usize = 4 << 20;

/// What happens to the datagrams of each direction.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// Datagrams that never arrive, in percent.
    pub(crate) loss: u64,
    /// Time from one end to the other.
    pub(crate) delay: Duration,
    /// Datagrams that take a detour, in percent, and how much longer than others they are under
    /// way at most: later ones overtake them.
    pub(crate) detours: u64,
    pub(crate) detour: Duration,
}

/// What has happened, both directions together.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) datagrams: AtomicU64,
    pub(crate) lost: AtomicU64,
    /// Bytes of the datagrams, with 28 each for the headers of IP and UDP.
    pub(crate) bytes: AtomicU64,
}

/// A relay for one client, which takes its address for that of the server.
pub(crate) struct Relay {
    pub(crate) addr: SocketAddr,
    pub(crate) counts: Arc<Counts>,
}

impl Relay {
    /// Starts a task that relays between the client, which sends to [`Relay::addr`], and `server`.
    pub(crate) async fn start(server: SocketAddr, link: Link, seed: u64) -> Result<Self> {
        let to_client = UdpSocket::bind("127.0.0.1:0").await?;
        let to_server = UdpSocket::bind("127.0.0.1:0").await?;
        to_server.connect(server).await?;
        for socket in [&to_client, &to_server] {
            SockRef::from(socket).set_recv_buffer_size(SOCKET_BUFFER)?;
        }
        let relay = Self { addr: to_client.local_addr()?, counts: Arc::default() };
        let air = Air {
            link,
            random: ChaCha8Rng::seed_from_u64(seed),
            under_way: BTreeMap::new(),
            counts: relay.counts.clone(),
        };
        tokio::spawn(run(to_client, to_server, air));
        Ok(relay)
    }
}

/// The datagrams between the two sockets.
struct Air {
    link: Link,
    random: ChaCha8Rng,
    /// By time of arrival; the number keeps equal times apart.
    under_way: BTreeMap<(Instant, u64), (Towards, Vec<u8>)>,
    counts: Arc<Counts>,
}

#[derive(Clone, Copy)]
enum Towards {
    Server,
    Client,
}

async fn run(to_client: UdpSocket, to_server: UdpSocket, mut air: Air) -> Result<()> {
    let mut client = None;
    let mut buf = [0; 2048];
    loop {
        let next = air.under_way.first_key_value().map(|((at, _), _)| *at);
        tokio::select! {
            ready = to_client.readable() => ready?,
            ready = to_server.readable() => ready?,
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
        // Errors of sockets count as loss: the other end may not be there yet, or any more.
        let now = Instant::now();
        while let Ok((len, from)) = to_client.try_recv_from(&mut buf) {
            client = Some(from);
            air.take(now, Towards::Server, &buf[..len]);
        }
        while let Ok(len) = to_server.try_recv(&mut buf) {
            air.take(now, Towards::Client, &buf[..len]);
        }
        while let Some((towards, datagram)) = air.arrived(now) {
            let _ = match (towards, client) {
                (Towards::Server, _) => to_server.try_send(&datagram),
                (Towards::Client, Some(client)) => to_client.try_send_to(&datagram, client),
                (Towards::Client, None) => continue,
            };
        }
    }
}

impl Air {
    fn take(&mut self, now: Instant, towards: Towards, datagram: &[u8]) {
        let number = self.counts.datagrams.fetch_add(1, Relaxed);
        self.counts.bytes.fetch_add(28 + datagram.len() as u64, Relaxed);
        if self.draw(100) < self.link.loss {
            self.counts.lost.fetch_add(1, Relaxed);
            return;
        }
        let mut at = now + self.link.delay;
        if self.draw(100) < self.link.detours {
            at += self.link.detour * u32::try_from(self.draw(100)).unwrap_or(0) / 100;
        }
        self.under_way.insert((at, number), (towards, datagram.to_vec()));
    }

    fn arrived(&mut self, now: Instant) -> Option<(Towards, Vec<u8>)> {
        let first = self.under_way.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }
}
