//! The machine in the place of a transport: rows that say how much of a figure is the machine's. They have
//! the processes, the CPUs and the turns of the sink.

mod memcpy;
mod udp;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::UdpSocket;

use crate::args::{Case, Load, Peer};
use crate::protocol::Outcome;
use crate::workload::Seen;

/// The server's side: binds now, and then reads for ever.
pub(crate) struct Server {
    socket: UdpSocket,
    case: Case,
}

impl Server {
    pub(crate) async fn bind(case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self { socket: udp::bind(addr).await?, case })
    }

    pub(crate) fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    pub(crate) async fn serve(self, seen: Arc<Seen>) -> anyhow::Result<()> {
        match self.case.peer {
            Peer::UdpGso => udp::receive_coalesced(&self.socket, &seen).await,
            Peer::Udp => udp::receive(&self.socket, &seen).await,
            // The client copies alone.
            _ => std::future::pending().await,
        }
    }
}

pub(crate) async fn work(case: Case, server: SocketAddr, load: Load) -> anyhow::Result<Outcome> {
    match case.peer {
        Peer::Memcpy => memcpy::run(load),
        peer => udp::run(server, load, peer == Peer::UdpGso).await,
    }
}
