//! Roaming: connections that this side opened are told when their datagrams leave from another address than
//! before, or can leave again (feature `netlink`). The peer migrates once a datagram comes from the new address
//! (RFC 9000 9.2).

use std::net::SocketAddr;
use std::time::Instant;

use crate::driver::Driver;
use crate::shared::requests::RequestQueue;
use crate::sys::{NetworkWatcher, Socket, WATCHES_NETWORK};

/// Most peers whose source address is known. A connection to another peer is told of each change.
pub(super) const MAX_SOURCES: usize = 64;

impl NetworkWatcher for RequestQueue {
    fn on_network_changed(&self) {
        self.push_routes_changed();
    }
}

impl<S: Socket> Driver<S> {
    /// This side has opened a connection to `peer`: records the source address, to be compared after the next
    /// change.
    pub(super) fn record_source(&mut self, peer: SocketAddr) {
        if !WATCHES_NETWORK || self.sources.contains_key(&peer) {
            return;
        }
        if self.sources.len() >= MAX_SOURCES {
            let peers = &self.routing.peers;
            self.sources.retain(|peer, _| peers.contains(*peer));
        }
        if self.sources.len() < MAX_SOURCES {
            self.sources.insert(peer, self.socket.source_for(peer));
        }
    }

    /// Addresses or routes of the host may have changed. A connection without a route is told once it has one
    /// again.
    pub(super) fn on_routes_changed(&mut self, now: Instant) {
        if self.sources.is_empty() {
            // This side has opened no connection.
            return;
        }
        let mut ids = Vec::new();
        let before = std::mem::take(&mut self.sources);
        for (_, conn) in &mut self.routing.conns {
            if conn.is_opened_by_peer() {
                continue;
            }
            let peer = conn.peer();
            if !self.sources.contains_key(&peer) && self.sources.len() < MAX_SOURCES {
                self.sources.insert(peer, self.socket.source_for(peer));
            }
            let is_same = self
                .sources
                .get(&peer)
                .is_some_and(|source| source.is_none() || before.get(&peer) == Some(source));
            if !is_same {
                conn.on_network_changed(now);
                ids.push(conn.id());
            }
        }
        for id in ids {
            self.routing.share_path(id);
            self.routing.schedule(id);
        }
    }
}
