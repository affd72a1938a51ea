//! A NAT between one client socket and a server; its mapping can change.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::bound_udp;

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
