//! Limits per client: one client cannot use up everything.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::process::descriptor_limit;

/// Network bits of an IPv6 address.
const NETWORK: u128 = !0 << 64;
/// Most sessions of a client.
const MAX_SESSIONS: usize = 1_024;
/// Most connections of a client: this share of the descriptors, within this range.
const DESCRIPTOR_SHARE: u64 = 4;
const MIN_CONNECTIONS: u64 = 16;
const MAX_CONNECTIONS: u64 = 65_536;

/// Counts sessions and connections per client, over all servers of a process. Clones share it.
///
/// A client is an IPv4 address or the /64 prefix of an IPv6 address. It may have 1,024 sessions,
/// and connections for a quarter of the process's descriptors, 16 to 65,536; further ones are
/// refused.
#[derive(Clone, Debug)]
pub struct Clients(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_sessions: usize,
    max_connections: usize,
    counts: Mutex<HashMap<(IpAddr, Kind), usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Session,
    Connection,
}

/// The place of one session or connection, until dropped.
pub(super) struct Place {
    clients: Clients,
    key: (IpAddr, Kind),
}

impl Default for Clients {
    fn default() -> Self {
        Self::of_process()
    }
}

impl Clients {
    /// Starts empty. The limit of connections follows the current descriptor limit, see
    /// [`raise_descriptor_limit`](crate::process::raise_descriptor_limit).
    #[must_use]
    pub fn of_process() -> Self {
        let share = descriptor_limit() / DESCRIPTOR_SHARE;
        Self::new(MAX_SESSIONS, share.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS) as usize)
    }

    /// Sets the limits per client, each at least 1.
    pub(super) fn new(max_sessions: usize, max_connections: usize) -> Self {
        Self(Arc::new(Shared { max_sessions, max_connections, counts: Mutex::default() }))
    }

    /// Most sessions of a client.
    pub(super) fn max_sessions(&self) -> usize {
        self.0.max_sessions
    }

    /// Most connections of a client.
    pub(super) fn max_connections(&self) -> usize {
        self.0.max_connections
    }

    /// Takes a place for a session; `None` if the client has no more.
    pub(super) fn enter_session(&self, peer: SocketAddr) -> Option<Place> {
        self.enter(peer, Kind::Session, self.max_sessions())
    }

    /// Takes a place for a connection; `None` if the client has no more.
    pub(super) fn enter_connection(&self, peer: SocketAddr) -> Option<Place> {
        self.enter(peer, Kind::Connection, self.max_connections())
    }

    fn enter(&self, peer: SocketAddr, kind: Kind, max: usize) -> Option<Place> {
        let key = (client_of(peer), kind);
        let mut counts = self.counts();
        let count = counts.entry(key).or_default();
        // No entry of 0 remains: `max` is at least 1.
        (*count < max).then(|| {
            *count += 1;
            Place { clients: self.clone(), key }
        })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<(IpAddr, Kind), usize>> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.clients.counts();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
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
        let clients = Clients::new(1, 2);
        let enter = |peer: &str| clients.enter_connection(peer.parse().unwrap());
        let places = [enter("192.0.2.1:1"), enter("[::ffff:192.0.2.1]:2")];
        assert!(places.iter().all(Option::is_some) && enter("192.0.2.1:3").is_none());
        let network = [enter("[2001:db8::1]:1"), enter("[2001:db8::2]:1")];
        assert!(network.iter().all(Option::is_some) && enter("[2001:db8::3]:1").is_none());
        assert!(enter("[2001:db8:0:1::1]:1").is_some() && enter("192.0.2.2:1").is_some());
        // Sessions are counted separately.
        let session = clients.enter_session("192.0.2.1:1".parse().unwrap());
        assert!(session.is_some());
        assert!(clients.enter_session("192.0.2.1:2".parse().unwrap()).is_none());
        drop((places, session));
        assert!(enter("192.0.2.1:3").is_some());
        drop(network);
        assert!(clients.counts().is_empty());
    }
}
