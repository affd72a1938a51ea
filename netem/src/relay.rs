//! A UDP relay over two links, where namespaces are not needed.

use std::io::Result;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::link::Link;
use crate::lossy::{Conditions, Counts, LossyLink};

/// Enough for a burst of a whole window: only the links lose datagrams.
const SOCKET_BUFFER: usize = 4 << 20;
/// IPv4 and UDP.
const HEADERS: u64 = 28;

/// Carries datagrams between one client and a server on this machine. The server takes the relay's address
/// for the client's. Ends on drop.
#[derive(Debug)]
pub struct Relay {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay to `server` under these conditions.
    ///
    /// # Errors
    ///
    /// When a socket cannot be bound.
    pub async fn start(server: SocketAddr, conditions: Conditions, seed: u64) -> Result<Self> {
        Self::start_counting(server, conditions, seed, &Arc::default()).await
    }

    /// Starts a relay to `server` under these conditions, with counters of the caller.
    ///
    /// # Errors
    ///
    /// When a socket cannot be bound.
    pub async fn start_counting(
        server: SocketAddr,
        conditions: Conditions,
        seed: u64,
        counts: &Arc<Counts>,
    ) -> Result<Self> {
        let links = LossyLink::pair(conditions, seed, counts);
        Self::over(server, links.map(|link| link.with_headers(HEADERS))).await
    }

    /// Starts a relay to `server` over these links: towards the server, and back.
    ///
    /// # Errors
    ///
    /// When a socket cannot be bound.
    pub async fn over<L: Link>(server: SocketAddr, links: [L; 2]) -> Result<Self> {
        let any = (Ipv4Addr::LOCALHOST, 0);
        let (to_client, to_server) = (UdpSocket::bind(any).await?, UdpSocket::bind(any).await?);
        to_server.connect(server).await?;
        for socket in [&to_client, &to_server] {
            SockRef::from(socket).set_recv_buffer_size(SOCKET_BUFFER)?;
        }
        let addr = to_client.local_addr()?;
        let task = tokio::spawn(async move {
            // Without its sockets it ends, and the client sees a path that loses everything.
            let _ = run(to_client, to_server, links).await;
        });
        Ok(Self { addr, task })
    }

    /// The address that the client sends to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run<L: Link>(to_client: UdpSocket, to_server: UdpSocket, links: [L; 2]) -> Result<()> {
    let [mut up, mut down] = links;
    let origin = Instant::now();
    let mut client = None;
    let mut buf = vec![0; 65_536];
    loop {
        let next = [up.next_due(), down.next_due()].into_iter().flatten().min();
        tokio::select! {
            ready = to_client.readable() => ready?,
            ready = to_server.readable() => ready?,
            () = sleep_until(origin + next.unwrap_or_default()), if next.is_some() => {}
        }
        // Errors of sockets are loss: the other end may not be there yet, or no longer.
        let now = origin.elapsed();
        while let Ok((len, from)) = to_client.try_recv_from(&mut buf) {
            client = Some(from);
            up.push(now, &buf[..len]);
        }
        while let Ok(len) = to_server.try_recv(&mut buf) {
            down.push(now, &buf[..len]);
        }
        while let Some(datagram) = up.pop_due_within(now, Duration::ZERO) {
            if to_server.try_send(&datagram).is_err() {
                up.refused(datagram.len());
            }
        }
        while let Some(datagram) = down.pop_due_within(now, Duration::ZERO) {
            let sent = client.map(|client| to_client.try_send_to(&datagram, client));
            if sent.is_none_or(|sent| sent.is_err()) {
                down.refused(datagram.len());
            }
        }
    }
}
