//! What is known of each address that has a conversation: which those are, and its FEC state.
//!
//! Parity carries no conversation id, so FEC belongs to the address. It begins with the address's
//! first conversation and goes with the last.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::time::Instant;

use crate::config::Config;
use crate::fec::{FecConfig, FecDecoder, FecEncoder, FecFlag, FecStats, fec_flag};

/// Largest datagram of a kcp-go peer.
const STOCK_DATAGRAM: usize = 1_500;

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Peer {
    /// The slot of one of its conversations; the others follow in `PeerTable::links`.
    first: u32,
    /// It has answered something that we sent.
    validated: bool,
    encoder: Option<Box<FecEncoder>>,
    decoder: Option<Box<FecDecoder>>,
}

impl Peer {
    fn of(slot: u32) -> Self {
        Self { first: slot, validated: false, encoder: None, decoder: None }
    }
}

/// The neighbours of a conversation among those of its address.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

#[derive(Debug)]
pub(crate) struct PeerTable {
    /// By slot. One list for each address, so that whatever concerns an address looks at none of
    /// the others' conversations.
    links: Vec<Link>,
    map: HashMap<SocketAddr, Peer>,
    fec: Option<FecConfig>,
    decode: bool,
    /// Longest shard that is kept: what a stock peer sends, or what this side would.
    longest: usize,
    /// How many there are: where there is none, nobody needs to look for one.
    decoders: usize,
    /// What all decoders together have done.
    stats: FecStats,
}

impl PeerTable {
    pub(crate) fn new(config: &Config) -> Self {
        let (fec, decode) = (config.fec, config.fec_decode);
        let longest = usize::from(config.kcp.mtu).max(STOCK_DATAGRAM);
        let (links, map, stats) = (Vec::new(), HashMap::new(), FecStats::default());
        Self { links, map, fec, decode, longest, decoders: 0, stats }
    }

    /// The conversation in `slot` is one with `addr` from now on.
    pub(crate) fn join(&mut self, addr: SocketAddr, slot: u32) {
        let next = match self.map.entry(addr) {
            Entry::Occupied(mut peer) => std::mem::replace(&mut peer.get_mut().first, slot),
            Entry::Vacant(place) => {
                place.insert(Peer::of(slot));
                NONE
            }
        };
        let link = Link { previous: NONE, next };
        match self.links.get_mut(slot as usize) {
            Some(place) => *place = link,
            // Slots are given out in order, so that this adds one as a rule.
            None => self.links.resize(slot as usize + 1, link),
        }
        if let Some(neighbour) = self.links.get_mut(next as usize) {
            neighbour.previous = slot;
        }
    }

    /// The conversation in `slot`, which was one with `addr`, is so no more.
    pub(crate) fn leave(&mut self, addr: SocketAddr, slot: u32) {
        let Some(Link { previous, next }) = self.links.get(slot as usize).copied() else { return };
        if let Some(neighbour) = self.links.get_mut(next as usize) {
            neighbour.previous = previous;
        }
        if let Some(neighbour) = self.links.get_mut(previous as usize) {
            neighbour.next = next;
            return;
        }
        let Entry::Occupied(mut peer) = self.map.entry(addr) else { return };
        if next == NONE {
            self.decoders -= usize::from(peer.get().decoder.is_some());
            peer.remove();
        } else {
            peer.get_mut().first = next;
        }
    }

    /// The slots of the conversations with `addr`.
    pub(crate) fn slots(&self, addr: SocketAddr) -> impl Iterator<Item = usize> {
        let mut next = self.map.get(&addr).map_or(NONE, |peer| peer.first);
        std::iter::from_fn(move || {
            let slot = next as usize;
            next = self.links.get(slot)?.next;
            Some(slot)
        })
    }

    /// Whether a conversation with `addr` lives.
    pub(crate) fn contains(&self, addr: SocketAddr) -> bool {
        self.map.contains_key(&addr)
    }

    /// Whether more than one does.
    pub(crate) fn has_several(&self, addr: SocketAddr) -> bool {
        self.slots(addr).nth(1).is_some()
    }

    /// `addr` is whoever it says: it has answered.
    pub(crate) fn validate(&mut self, addr: SocketAddr) {
        if let Some(peer) = self.map.get_mut(&addr) {
            peer.validated = true;
        }
    }

    /// What encodes for `addr`, if FEC is on.
    pub(crate) fn encoder(&mut self, addr: SocketAddr) -> Option<&mut FecEncoder> {
        let config = self.fec?;
        let encoder = &mut self.map.get_mut(&addr)?.encoder;
        Some(encoder.get_or_insert_with(|| Box::new(FecEncoder::new(config))))
    }

    /// Changes what `addr` is sent, if FEC is on.
    pub(crate) fn set_fec(&mut self, addr: SocketAddr, config: FecConfig) {
        if let Some(encoder) = self.encoder(addr) {
            encoder.set_config(config);
        }
    }

    /// Takes a shard of `addr`, and hands what it recovers to `recovered`, which tells whether it
    /// can be.
    ///
    /// Where FEC is not configured, a decoder is made for the first parity of an address that has
    /// proved to be real. Returns whether anybody is known at that address.
    pub(crate) fn decode(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        shard: &[u8],
        recovered: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let Some(peer) = self.map.get_mut(&addr) else { return false };
        if shard.len() > self.longest {
            return true;
        }
        if peer.decoder.is_none() {
            if !self.decode {
                return true;
            }
            if self.fec.is_none() && !(peer.validated && fec_flag(shard) == FecFlag::Parity) {
                return true;
            }
            self.decoders += 1;
        }
        let fec = self.fec;
        let decoder = peer.decoder.get_or_insert_with(|| {
            // Most peers are configured alike.
            Box::new(fec.map_or_else(|| FecDecoder::new(None), FecDecoder::with_expected_layout))
        });
        let before = decoder.stats();
        decoder.input(now, shard, recovered);
        self.stats += decoder.stats() - before;
        true
    }

    /// What the decoder of `addr` has done, if there is one.
    pub(crate) fn stats_of(&self, addr: SocketAddr) -> Option<FecStats> {
        if self.decoders == 0 {
            return None;
        }
        Some(self.map.get(&addr)?.decoder.as_ref()?.stats())
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// What all decoders have done, those of addresses long gone included.
    pub(crate) fn stats(&self) -> FecStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn slots(peers: &PeerTable, port: u16) -> Vec<usize> {
        let mut slots: Vec<_> = peers.slots(addr(port)).collect();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn an_address_knows_its_own_conversations() {
        let mut peers = PeerTable::new(&Config::new());
        for slot in 0..6 {
            peers.join(addr(1 + slot % 2), u32::from(slot));
        }
        assert_eq!((slots(&peers, 1), slots(&peers, 2)), (vec![0, 2, 4], vec![1, 3, 5]));
        // One in the middle, the first, the last; then others in their slots.
        peers.leave(addr(1), 2);
        peers.leave(addr(2), 5);
        peers.leave(addr(2), 1);
        assert_eq!((slots(&peers, 1), slots(&peers, 2)), (vec![0, 4], vec![3]));
        assert!(peers.has_several(addr(1)) && !peers.has_several(addr(2)));
        peers.join(addr(3), 2);
        peers.join(addr(1), 1);
        assert_eq!((slots(&peers, 1), slots(&peers, 3)), (vec![0, 1, 4], vec![2]));
        for (port, slot) in [(1, 4), (1, 0), (1, 1), (2, 3), (3, 2)] {
            assert!(peers.contains(addr(port)));
            peers.leave(addr(port), slot);
        }
        assert!(peers.is_empty());
    }
}
