//! A relay between a client and a server on loopback that loses datagrams.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use crate::link::Rng;

/// Forwards datagrams between one client, at [`Relay::addr`], and one server. It ends with its
/// value.
#[derive(Debug)]
pub struct Relay {
    /// Where the client sends to.
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
        let outside = Arc::new(wide_socket().await?);
        let inside = Arc::new(wide_socket().await?);
        let addr = outside.local_addr()?;
        let client = Arc::new(std::sync::Mutex::new(None));
        let mut tasks = JoinSet::new();
        let (from, to, known) = (outside.clone(), inside.clone(), client.clone());
        tasks.spawn(pass(from, to, percent, seed, move |source| {
            *known.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(source);
            Some(server)
        }));
        tasks.spawn(pass(inside, outside, percent, !seed, move |_| {
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

async fn pass(
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    percent: u8,
    seed: u64,
    destination: impl Fn(SocketAddr) -> Option<SocketAddr>,
) {
    let mut rng = Rng::new(seed);
    let mut buffer = vec![0; 65_536];
    loop {
        // A peer that is gone shows as an error of the next receive; the relay goes on.
        let Ok((len, source)) = from.recv_from(&mut buffer).await else { continue };
        let lost = rng.chance(u32::from(percent) * 10_000);
        if let Some(destination) = destination(source).filter(|_| !lost) {
            drop(to.send_to(&buffer[..len], destination).await);
        }
    }
}
