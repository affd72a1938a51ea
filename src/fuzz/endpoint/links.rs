//! The network between the server and the addresses of the client: it cuts links, one way, and has a NAT.

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::fuzz::wire::{CLIENT, OUTSIDE, addr, further_of};
use crate::util::path::{LocalIp, Path};

/// The state of the network between the server and the addresses of the client.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Pairs of addresses between which everything is lost, one way.
    cut: HashSet<(SocketAddr, SocketAddr)>,
    /// Further addresses behind a NAT, which gives them another one.
    pub(super) outside: HashSet<u8>,
}

impl Links {
    /// The address from which the client sends, if the path has a local one.
    pub(super) fn source(&self, path: Path) -> Option<SocketAddr> {
        let own = path.local_addr(addr(CLIENT).port())?;
        let further = further_of(own).filter(|(host, _)| self.outside.contains(host));
        Some(further.map_or(own, |(host, _)| addr(host + OUTSIDE)))
    }

    /// The local address at which a datagram arrives; `None` if it is lost.
    pub(super) fn passes(&self, from: SocketAddr, to: SocketAddr) -> Option<LocalIp> {
        if self.cut.contains(&(from, to)) {
            return None;
        }
        let Some((host, is_own)) = further_of(to) else { return Some(LocalIp::ANY) };
        let is_reachable = is_own != self.outside.contains(&host);
        is_reachable.then(|| LocalIp::of_destination(addr(host).ip()))
    }

    /// Cuts one way, or mends it.
    pub(super) fn toggle(&mut self, from: SocketAddr, to: SocketAddr) {
        if !self.cut.remove(&(from, to)) {
            self.cut.insert((from, to));
        }
    }
}
