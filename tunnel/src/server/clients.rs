//! How many connections each client has: one alone does not get the descriptors of all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bits of an IPv6 address that say which network it is of.
const NETWORK: u128 = !0 << 64;

/// Counts the connections of each client, which is an IPv4 address or the /64 prefix of an IPv6 address.
pub(super) struct Clients {
    max_connections: usize,
    connections: Mutex<HashMap<IpAddr, usize>>,
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    /// `max_connections`: of each client.
    pub(super) fn new(max_connections: usize) -> Arc<Self> {
        Arc::new(Self { max_connections, connections: Mutex::default() })
    }

    /// Most connections of a client.
    pub(super) fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Takes a place for a connection; `None` if the client has no more.
    pub(super) fn enter(self: &Arc<Self>, peer: SocketAddr) -> Option<Place> {
        let client = client_of(peer);
        let mut connections = self.connections();
        let count = connections.entry(client).or_default();
        // A count of 0 does not stay: `max_connections` is at least 1.
        (*count < self.max_connections).then(|| {
            *count += 1;
            Place { clients: self.clone(), client }
        })
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut connections = self.clients.connections();
        if let Some(count) = connections.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.client);
            }
        }
    }
}

fn client_of(peer: SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_places_of_its_own_until_they_are_dropped() {
        let clients = Clients::new(2);
        let enter = |peer: &str| clients.enter(peer.parse().unwrap());
        let places = [enter("192.0.2.1:1"), enter("[::ffff:192.0.2.1]:2")];
        assert!(places.iter().all(Option::is_some) && enter("192.0.2.1:3").is_none());
        let network = [enter("[2001:db8::1]:1"), enter("[2001:db8::2]:1")];
        assert!(network.iter().all(Option::is_some) && enter("[2001:db8::3]:1").is_none());
        assert!(enter("[2001:db8:0:1::1]:1").is_some() && enter("192.0.2.2:1").is_some());
        drop(places);
        assert!(enter("192.0.2.1:3").is_some());
        drop(network);
        assert!(clients.connections().is_empty());
    }
}
