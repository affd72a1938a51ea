//! Sockets at many loopback addresses, from which forged datagrams leave.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::Context;
use socket2::{Domain, Socket, Type};

/// Receive buffer of each socket, for what arrives between two sends.
const RECV_BUFFER: usize = 64 * 1024;

/// The traffic of an attacker, both ways.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
}

/// Sockets of an attacker, which are used in turn.
#[derive(Debug)]
pub(crate) struct Sources {
    sockets: Vec<UdpSocket>,
    next: usize,
    traffic: Traffic,
}

impl Sources {
    /// One socket at each of `count` addresses in 127.`net`/16.
    pub(crate) fn at_addresses(net: u8, count: u32) -> anyhow::Result<Self> {
        let address = |source: u32| {
            let [_, _, high, low] = (source + 1).to_be_bytes();
            Ipv4Addr::new(127, net, high, low)
        };
        Self::bind((0..count).map(address))
    }

    /// `count` ports of one address.
    pub(crate) fn at_ports(address: Ipv4Addr, count: u32) -> anyhow::Result<Self> {
        Self::bind((0..count).map(|_| address))
    }

    fn bind(addresses: impl Iterator<Item = Ipv4Addr>) -> anyhow::Result<Self> {
        let sockets = addresses.map(|address| bind((address, 0).into())).collect::<Result<_, _>>();
        Ok(Self {
            sockets: sockets.context("binding loopback addresses")?,
            next: 0,
            traffic: Traffic::default(),
        })
    }

    /// Sends from the next socket in turn, after what has arrived there was counted. Returns whether
    /// it left: a send buffer may be full.
    pub(crate) fn send(&mut self, datagram: &[u8], to: SocketAddr) -> bool {
        self.next = (self.next + 1) % self.sockets.len();
        drain(&self.sockets[self.next], &mut self.traffic);
        let left = self.sockets[self.next].send_to(datagram, to).is_ok();
        if left {
            self.traffic.sent += 1;
            self.traffic.sent_bytes += datagram.len() as u64;
        }
        left
    }

    /// Reads all sockets. Returns what was sent and received so far.
    pub(crate) fn traffic(&mut self) -> Traffic {
        for socket in &self.sockets {
            drain(socket, &mut self.traffic);
        }
        self.traffic
    }
}

fn drain(socket: &UdpSocket, traffic: &mut Traffic) {
    let mut buffer = [0; 2_048];
    while let Ok(len) = socket.recv(&mut buffer) {
        traffic.received += 1;
        traffic.received_bytes += len as u64;
    }
}

fn bind(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(RECV_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}
