//! A bad link: it loses, delays and reorders datagrams. [`Relay`] puts one in front of a server of this
//! process; `kcpx_netem::Path` takes an [`Air`] for each direction.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::collections::BTreeMap;
use std::io::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use chacha20::ChaCha8Rng;
use kcpx_netem::Link as _;
use rand_core::{Rng as _, SeedableRng as _};
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

/// Enough for a burst of a whole window: only the link loses datagrams.
const SOCKET_BUFFER: usize = 4 << 20;
/// A datagram that leaves the link this much after it was due is late.
const LATE: Duration = Duration::from_millis(2);

/// The conditions of each direction.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// Lost datagrams, in percent.
    pub(crate) loss: u64,
    /// Time from one end to the other.
    pub(crate) delay: Duration,
    /// Datagrams that take a detour, in percent, and its largest extra delay: later datagrams overtake
    /// them.
    pub(crate) detours: u64,
    pub(crate) detour: Duration,
}

/// Counters of both directions together.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) datagrams: AtomicU64,
    pub(crate) lost: AtomicU64,
    /// Datagrams that came out late: this machine was too slow.
    pub(crate) late: AtomicU64,
    /// Bytes of the datagrams, with the headers of IP and UDP.
    pub(crate) bytes: AtomicU64,
}

/// One direction. The same seed draws the same fate for the n-th datagram.
pub(crate) struct Air {
    link: Link,
    /// Bytes of each datagram that [`push`](kcpx_netem::Link::push) does not see.
    headers: u64,
    random: ChaCha8Rng,
    /// By time of arrival; the number keeps equal times apart.
    under_way: BTreeMap<(Duration, u64), Vec<u8>>,
    pushed: u64,
    counts: Arc<Counts>,
}

impl Air {
    /// Both directions: towards the server, and back.
    pub(crate) fn pair(link: Link, seed: u64, counts: &Arc<Counts>) -> [Self; 2] {
        // Directions must not lose the same datagrams.
        [seed, !seed].map(|seed| Self {
            link,
            headers: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
            under_way: BTreeMap::new(),
            pushed: 0,
            counts: counts.clone(),
        })
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }
}

impl kcpx_netem::Link for Air {
    type Counts = ();

    fn push(&mut self, now: Duration, packet: &[u8]) {
        self.pushed += 1;
        self.counts.datagrams.fetch_add(1, Relaxed);
        self.counts.bytes.fetch_add(self.headers + packet.len() as u64, Relaxed);
        if self.draw(100) < self.link.loss {
            self.counts.lost.fetch_add(1, Relaxed);
            return;
        }
        let mut at = now + self.link.delay;
        if self.draw(100) < self.link.detours {
            at += self.link.detour * u32::try_from(self.draw(100)).unwrap_or(0) / 100;
        }
        self.under_way.insert((at, self.pushed), packet.to_vec());
    }

    fn next_due(&self) -> Option<Duration> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        let first = self.under_way.first_entry().filter(|entry| entry.key().0 <= now + grain)?;
        if now.saturating_sub(first.key().0) > LATE {
            self.counts.late.fetch_add(1, Relaxed);
        }
        Some(first.remove())
    }

    fn refused(&mut self, _: usize) {
        self.counts.lost.fetch_add(1, Relaxed);
    }

    fn counts(&self) {}
}

/// A relay for one client, which takes its address for the server's.
pub(crate) struct Relay {
    pub(crate) addr: SocketAddr,
    pub(crate) counts: Arc<Counts>,
}

impl Relay {
    /// Starts a task that relays between the client, which sends to [`Relay::addr`], and `server`.
    pub(crate) async fn start(server: SocketAddr, link: Link, seed: u64) -> Result<Self> {
        Self::start_counting(server, link, seed, Arc::default()).await
    }

    /// The same, with counters that the caller has.
    pub(crate) async fn start_counting(
        server: SocketAddr,
        link: Link,
        seed: u64,
        counts: Arc<Counts>,
    ) -> Result<Self> {
        let to_client = UdpSocket::bind("127.0.0.1:0").await?;
        let to_server = UdpSocket::bind("127.0.0.1:0").await?;
        to_server.connect(server).await?;
        for socket in [&to_client, &to_server] {
            SockRef::from(socket).set_recv_buffer_size(SOCKET_BUFFER)?;
        }
        let relay = Self { addr: to_client.local_addr()?, counts };
        // IPv4 and UDP.
        let [up, down] = Air::pair(link, seed, &relay.counts).map(|air| Air { headers: 28, ..air });
        tokio::spawn(run(to_client, to_server, up, down));
        Ok(relay)
    }
}

async fn run(to_client: UdpSocket, to_server: UdpSocket, mut up: Air, mut down: Air) -> Result<()> {
    let origin = Instant::now();
    let mut client = None;
    let mut buf = [0; 2048];
    loop {
        let next = [up.next_due(), down.next_due()].into_iter().flatten().min();
        tokio::select! {
            ready = to_client.readable() => ready?,
            ready = to_server.readable() => ready?,
            () = sleep_until(origin + next.unwrap_or_default()), if next.is_some() => {}
        }
        // Errors of sockets count as loss: the other end may not be there yet, or no longer.
        let now = origin.elapsed();
        while let Ok((len, from)) = to_client.try_recv_from(&mut buf) {
            client = Some(from);
            up.push(now, &buf[..len]);
        }
        while let Ok(len) = to_server.try_recv(&mut buf) {
            down.push(now, &buf[..len]);
        }
        while let Some(datagram) = up.pop_due_within(now, Duration::ZERO) {
            drop(to_server.try_send(&datagram));
        }
        while let Some(datagram) = down.pop_due_within(now, Duration::ZERO) {
            if let Some(client) = client {
                drop(to_client.try_send_to(&datagram, client));
            }
        }
    }
}
