//! A relay between a client and a server on loopback that loses and delays datagrams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::link::Rng;

/// Forwards datagrams between one client, at [`Relay::addr`], and one server. It ends with its
/// value.
#[derive(Debug)]
pub struct Relay {
    /// The address that the client sends to.
    pub addr: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// Starts a relay to `server` that loses `percent` of the datagrams each way, decided by
    /// `seed`.
    ///
    /// # Errors
    ///
    /// When a socket cannot be bound.
    pub async fn start(server: SocketAddr, percent: u8, seed: u64) -> std::io::Result<Self> {
        Self::with_delay(server, percent, seed, Duration::ZERO).await
    }

    /// As [`Relay::start`], and each datagram waits for `delay`.
    ///
    /// # Errors
    ///
    /// When a socket cannot be bound.
    pub async fn with_delay(
        server: SocketAddr,
        percent: u8,
        seed: u64,
        delay: Duration,
    ) -> std::io::Result<Self> {
        let outside = Arc::new(wide_socket().await?);
        let inside = Arc::new(wide_socket().await?);
        let addr = outside.local_addr()?;
        let client = Arc::new(std::sync::Mutex::new(None));
        let mut tasks = JoinSet::new();
        let (there, back) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        tasks.spawn(send(inside.clone(), there.1));
        tasks.spawn(send(outside.clone(), back.1));
        let known = client.clone();
        tasks.spawn(receive(outside, there.0, (percent, seed), delay, move |source| {
            *known.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(source);
            Some(server)
        }));
        tasks.spawn(receive(inside, back.0, (percent, !seed), delay, move |_| {
            *client.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }));
        Ok(Self { addr, _tasks: tasks })
    }
}

/// A socket that holds a burst: what is lost is to be lost by decision.
async fn wide_socket() -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    let wide = socket2::SockRef::from(&socket);
    wide.set_recv_buffer_size(4 << 20)?;
    wide.set_send_buffer_size(4 << 20)?;
    Ok(socket)
}

/// A datagram on its way: when it arrives, and where.
type InFlight = (Instant, SocketAddr, Vec<u8>);

async fn receive(
    from: Arc<UdpSocket>,
    to: mpsc::UnboundedSender<InFlight>,
    (percent, seed): (u8, u64),
    delay: Duration,
    destination: impl Fn(SocketAddr) -> Option<SocketAddr>,
) {
    let mut rng = Rng::new(seed);
    let mut buffer = vec![0; 65_536];
    loop {
        // A peer that is gone shows as an error of the next receive; the relay goes on.
        let Ok((len, source)) = from.recv_from(&mut buffer).await else { continue };
        let lost = rng.chance(u32::from(percent) * 10_000);
        if let Some(destination) = destination(source).filter(|_| !lost) {
            drop(to.send((Instant::now() + delay, destination, buffer[..len].to_vec())));
        }
    }
}

async fn send(socket: Arc<UdpSocket>, mut datagrams: mpsc::UnboundedReceiver<InFlight>) {
    while let Some((arrival, destination, datagram)) = datagrams.recv().await {
        if arrival > Instant::now() {
            tokio::time::sleep_until(arrival).await;
        }
        drop(socket.send_to(&datagram, destination).await);
    }
}
