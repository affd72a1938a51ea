//! Sockets at many loopback addresses, from which forged datagrams leave.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::Context;
use socket2::{Domain, Socket, Type};

/// Sockets of an attacker, which are used in turn.
#[derive(Debug)]
pub(crate) struct Sources {
    sockets: Vec<UdpSocket>,
    next: usize,
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
        Ok(Self { sockets: sockets.context("binding loopback addresses")?, next: 0 })
    }

    /// Sends from the next socket in turn. Returns whether it left: a send buffer may be full.
    pub(crate) fn send(&mut self, datagram: &[u8], to: SocketAddr) -> bool {
        self.next = (self.next + 1) % self.sockets.len();
        self.sockets[self.next].send_to(datagram, to).is_ok()
    }
}

/// With a small receive buffer, since nobody reads what is sent back.
fn bind(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(4_096)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}
