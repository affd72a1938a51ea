//! Two simulated cables on loopback: a relay that knows the cable by the client's address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::network::Cut;

/// The client's address on the second cable.
pub(crate) const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Starts the relay, which ends with the runtime. Returns the address that stands for the server's.
pub(crate) async fn start(
    server: SocketAddr,
    delays: [Duration; 2],
    first_cut: Cut,
) -> Result<SocketAddr> {
    let front = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    let addr = front.local_addr()?;
    tokio::spawn(async move {
        let mut clients = HashMap::new();
        let mut buf = vec![0; 65_536];
        loop {
            // Errors of sockets are loss.
            let Ok((len, from)) = front.recv_from(&mut buf).await else { continue };
            let up = match clients.entry(from) {
                Entry::Occupied(up) => up.into_mut(),
                Entry::Vacant(place) => {
                    let cable = if from.ip() == IpAddr::V4(SECOND) {
                        Cable { delay: delays[1], cut: Cut::default() }
                    } else {
                        Cable { delay: delays[0], cut: first_cut.clone() }
                    };
                    let Ok(up) = cable.connect(front.clone(), from, server).await else { continue };
                    place.insert(up)
                }
            };
            drop(up.send((Instant::now(), buf[..len].to_vec())));
        }
    });
    Ok(addr)
}

/// Datagrams with the time at which they were sent into a cable.
type Way = UnboundedSender<(Instant, Vec<u8>)>;

struct Cable {
    delay: Duration,
    cut: Cut,
}

impl Cable {
    /// Carries the datagrams of an address of the client, from a socket of their own. Returns the way to the
    /// server.
    async fn connect(
        &self,
        front: Arc<UdpSocket>,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Result<Way> {
        let back = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
        back.connect(server).await?;
        let down = self.carry(front, client);
        let from_server = back.clone();
        tokio::spawn(async move {
            let mut buf = vec![0; 65_536];
            loop {
                let Ok(len) = from_server.recv(&mut buf).await else { continue };
                drop(down.send((Instant::now(), buf[..len].to_vec())));
            }
        });
        Ok(self.carry(back, server))
    }

    fn carry(&self, socket: Arc<UdpSocket>, to: SocketAddr) -> Way {
        let (way, mut under_way) = unbounded_channel::<(Instant, Vec<u8>)>();
        let (delay, cut) = (self.delay, self.cut.clone());
        tokio::spawn(async move {
            while let Some((sent, datagram)) = under_way.recv().await {
                sleep_until(sent + delay).await;
                // A cut also loses what is in flight.
                if !cut.load(Relaxed) {
                    drop(socket.send_to(&datagram, to).await);
                }
            }
        });
        way
    }
}
