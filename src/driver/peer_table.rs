//! Peer table: the connections and the FEC state of each remote address.
//!
//! Parity carries no conversation id, so FEC belongs to the address, as in kcp-go: the state is
//! created with the first connection of an address and dropped with the last.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::time::Instant;

use crate::config::Config;
use crate::driver::fec::FecSender;
use crate::driver::memory::{Holder, Memory};
use crate::fec::{FecConfig, FecDecoder, FecFlag, FecStats, fec_flag};

/// Largest datagram of kcp-go in bytes (mtuLimit).
const KCP_GO_MTU_LIMIT: usize = 1_500;

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Peer {
    /// Slot of the newest connection with this address; the others are linked in
    /// `PeerTable::links`.
    first: u32,
    /// Slot of the connection whose path the next one shares; [`NONE`] without one.
    sharer: u32,
    /// True once a ping to the address was answered (RFC 9000 8.1).
    validated: bool,
    /// Bytes of the endpoint's memory that the decoder holds.
    held: usize,
    /// Those that the encoder holds at most: the parity of a group.
    encoder: usize,
    fec: Option<Box<FecSender>>,
    decoder: Option<Box<FecDecoder>>,
}

impl Peer {
    fn of(slot: u32) -> Self {
        let (sharer, validated, held, encoder) = (NONE, false, 0, 0);
        Self { first: slot, sharer, validated, held, encoder, fec: None, decoder: None }
    }

    /// The encoder has this layout from now on.
    fn count_encoder(&mut self, config: FecConfig, max_len: usize, memory: &mut Memory) {
        let encoder = config.parity_shards() * max_len;
        memory.update(self.holder(), self.encoder, encoder);
        self.encoder = encoder;
    }

    fn holder(&self) -> Holder {
        if self.validated { Holder::Validated } else { Holder::Unvalidated }
    }
}

/// Neighbours of a connection in the doubly linked list of its address.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

#[derive(Debug)]
pub(crate) struct PeerTable {
    /// By slot: one doubly linked list per address, so that the cost of an operation does not
    /// depend on the connections of other addresses.
    links: Vec<Link>,
    map: HashMap<SocketAddr, Peer>,
    fec: Option<FecConfig>,
    fec_decode: bool,
    /// Longest shard in bytes that is decoded: the larger of `KcpConfig::mtu` and kcp-go's limit.
    max_shard_len: usize,
    /// Number of addresses with a decoder; if it is 0, `stats_of` skips the lookup.
    decoders: usize,
    /// Sum of the statistics of all decoders.
    stats: FecStats,
}

impl PeerTable {
    pub(crate) fn new(config: &Config) -> Self {
        let (fec, fec_decode) = (config.kcp.redundancy.fec(), config.fec_decode);
        let max_shard_len = usize::from(config.kcp.mtu).max(KCP_GO_MTU_LIMIT);
        let (links, map, stats) = (Vec::new(), HashMap::new(), FecStats::default());
        Self { links, map, fec, fec_decode, max_shard_len, decoders: 0, stats }
    }

    /// Adds the connection in `slot` to the list of `addr`.
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
            // Slots are allocated in order, so that this adds one link as a rule.
            None => self.links.resize(slot as usize + 1, link),
        }
        if let Some(neighbour) = self.links.get_mut(next as usize) {
            neighbour.previous = slot;
        }
    }

    /// Removes the connection in `slot` from the list of `addr`.
    pub(crate) fn leave(&mut self, addr: SocketAddr, slot: u32, memory: &mut Memory) {
        let Some(Link { previous, next }) = self.links.get(slot as usize).copied() else { return };
        let neighbour = if next == NONE { previous } else { next };
        if let Some(peer) = self.map.get_mut(&addr).filter(|peer| peer.sharer == slot) {
            peer.sharer = neighbour;
        }
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
            let peer = peer.remove();
            memory.update(peer.holder(), peer.held + peer.encoder, 0);
        } else {
            peer.get_mut().first = next;
        }
    }

    /// The slots of the connections with `addr`.
    pub(crate) fn slots(&self, addr: SocketAddr) -> impl Iterator<Item = usize> {
        let mut next = self.map.get(&addr).map_or(NONE, |peer| peer.first);
        std::iter::from_fn(move || {
            let slot = next as usize;
            next = self.links.get(slot)?.next;
            Some(slot)
        })
    }

    /// Whether there is a connection with `addr`.
    pub(crate) fn contains(&self, addr: SocketAddr) -> bool {
        self.map.contains_key(&addr)
    }

    /// The address that all connections are with, if it is one.
    pub(crate) fn only(&self) -> Option<SocketAddr> {
        let mut addrs = self.map.keys();
        addrs.next().copied().filter(|_| addrs.next().is_none())
    }

    /// Whether there are several connections with `addr`.
    pub(crate) fn has_several(&self, addr: SocketAddr) -> bool {
        self.slots(addr).nth(1).is_some()
    }

    /// Records that `addr` is validated (RFC 9000 8.1): a ping was answered from there.
    pub(crate) fn validate(&mut self, addr: SocketAddr, memory: &mut Memory) {
        if let Some(peer) = self.map.get_mut(&addr).filter(|peer| !peer.validated) {
            peer.validated = true;
            memory.on_validated(peer.held + peer.encoder);
        }
    }

    /// Returns the slot of a connection with `addr` whose path the one in `slot` may share. The next call
    /// returns `slot`.
    pub(crate) fn sharer(&mut self, addr: SocketAddr, slot: u32) -> Option<usize> {
        let peer = self.map.get_mut(&addr)?;
        let sharer = std::mem::replace(&mut peer.sharer, slot);
        (sharer != NONE && sharer != slot).then_some(sharer as usize)
    }

    /// FEC towards `addr`; `None` without FEC.
    pub(crate) fn fec_sender(
        &mut self,
        addr: SocketAddr,
        memory: &mut Memory,
    ) -> Option<&mut FecSender> {
        let config = self.fec?;
        let peer = self.map.get_mut(&addr)?;
        if peer.fec.is_none() {
            peer.count_encoder(config, self.max_shard_len, memory);
        }
        Some(peer.fec.get_or_insert_with(|| Box::new(FecSender::new(config))))
    }

    /// When the connection `conv` closes the FEC group towards `addr`, if that does not fill before.
    pub(crate) fn fec_deadline(&self, addr: SocketAddr, conv: u32) -> Option<Instant> {
        self.fec?;
        self.map.get(&addr)?.fec.as_ref()?.deadline(conv)
    }

    /// Changes the FEC ratio towards `addr`, if FEC is on and the peer is known to decode any
    /// layout or may learn this one.
    pub(crate) fn set_fec(
        &mut self,
        addr: SocketAddr,
        config: FecConfig,
        decodes_any: bool,
        memory: &mut Memory,
    ) {
        let Some(sender) = self.fec_sender(addr, memory) else { return };
        let max = if decodes_any { FecConfig::MAX_SHARDS } else { sender.max_shards() };
        sender.set_config(config, max);
        let config = sender.encoder().config();
        if let Some(peer) = self.map.get_mut(&addr) {
            peer.count_encoder(config, self.max_shard_len, memory);
        }
    }

    /// Most shards of the groups towards `addr`, unless its decoder learns any; `None` without FEC.
    pub(crate) fn max_fec_shards(&self, addr: SocketAddr) -> Option<usize> {
        self.fec?;
        let sender = self.map.get(&addr).and_then(|peer| peer.fec.as_ref());
        Some(sender.map_or(FecConfig::MAX_SHARDS, |sender| sender.max_shards()))
    }

    /// Feeds a shard of `addr` to its decoder and passes each reconstructed datagram to
    /// `recovered`, which returns whether the datagram is plausible. Returns whether the address
    /// is known.
    ///
    /// Without configured FEC a decoder is created by the first parity from a validated address. One that
    /// exceeds its quota of `memory` is dropped, and a new one begins with the next shard.
    pub(crate) fn decode(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        shard: &[u8],
        memory: &mut Memory,
        recovered: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let Some(peer) = self.map.get_mut(&addr) else { return false };
        if shard.len() > self.max_shard_len {
            return true;
        }
        // A shard is stored once, and the parity that is solved for has a row of as many bytes.
        let holder = peer.holder();
        if peer.held + 2 * shard.len() > memory.quota(holder) {
            // What it holds would keep memory short, and itself without new shards.
            self.decoders -= usize::from(peer.decoder.take().is_some());
            memory.update(holder, std::mem::take(&mut peer.held), 0);
            return true;
        }
        if peer.decoder.is_none() {
            if !self.fec_decode {
                return true;
            }
            if self.fec.is_none() && !(peer.validated && fec_flag(shard) == FecFlag::Parity) {
                return true;
            }
            self.decoders += 1;
        }
        let fec = self.fec;
        let decoder = peer.decoder.get_or_insert_with(|| {
            // Both sides usually have the same configuration.
            Box::new(fec.map_or_else(|| FecDecoder::new(None), FecDecoder::with_expected_layout))
        });
        feed(decoder, &mut self.stats, now, shard, recovered);
        let (shards, cache) = decoder.memory();
        memory.update(holder, peer.held, shards + cache);
        peer.held = shards + cache;
        true
    }

    /// Where data shards of `addr` go in a row, whose datagrams are taken together; `None` where one of
    /// them may do more than add to a group: make others recoverable, or begin a decoder.
    pub(crate) fn data_shards(&mut self, addr: SocketAddr) -> Option<DataShards<'_>> {
        let peer = self.map.get_mut(&addr).filter(|peer| peer.validated)?;
        let begins = peer.decoder.is_none() && self.fec_decode && self.fec.is_some();
        if begins || peer.decoder.as_ref().is_some_and(|decoder| decoder.holds_parity()) {
            return None;
        }
        let decoder = peer.decoder.as_deref_mut();
        Some(DataShards { decoder, max_len: self.max_shard_len, stats: &mut self.stats })
    }

    /// Statistics of the decoder of `addr`, if there is one.
    pub(crate) fn stats_of(&self, addr: SocketAddr) -> Option<FecStats> {
        if self.decoders == 0 {
            return None;
        }
        Some(self.map.get(&addr)?.decoder.as_ref()?.stats())
    }

    /// Bytes that the FEC of all addresses holds.
    #[cfg(feature = "_testkit")]
    pub(crate) fn memory(&self) -> usize {
        self.map.values().map(|peer| peer.held + peer.encoder).sum()
    }

    /// Addresses that have a connection.
    #[cfg(feature = "_testkit")]
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Statistics of all decoders, including those already dropped.
    pub(crate) fn stats(&self) -> FecStats {
        self.stats
    }
}

/// The decoder of an address, while its data shards can recover nothing.
pub(crate) struct DataShards<'a> {
    decoder: Option<&'a mut FecDecoder>,
    max_len: usize,
    stats: &'a mut FecStats,
}

impl DataShards<'_> {
    /// Feeds a data shard: as [`PeerTable::decode`].
    pub(crate) fn input(&mut self, now: Instant, shard: &[u8]) {
        let Some(decoder) = self.decoder.as_deref_mut().filter(|_| shard.len() <= self.max_len)
        else {
            return;
        };
        feed(decoder, self.stats, now, shard, |_| false);
    }
}

/// Feeds a shard to a decoder, and adds what changes in its statistics to `stats`.
fn feed(
    decoder: &mut FecDecoder,
    stats: &mut FecStats,
    now: Instant,
    shard: &[u8],
    recovered: impl FnMut(&[u8]) -> bool,
) {
    let before = decoder.stats();
    decoder.input(now, shard, recovered);
    *stats += decoder.stats() - before;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Redundancy;
    use crate::shared::notifier::Notifier;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn slots(peers: &PeerTable, port: u16) -> Vec<usize> {
        let mut slots: Vec<_> = peers.slots(addr(port)).collect();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn slots_of_an_address_are_its_connections_only() {
        let mut peers = PeerTable::new(&Config::new());
        let mut memory = Memory::new(&Config::new(), Notifier::new().memory().clone());
        for slot in 0..6 {
            peers.join(addr(1 + slot % 2), u32::from(slot));
        }
        assert_eq!((slots(&peers, 1), slots(&peers, 2)), (vec![0, 2, 4], vec![1, 3, 5]));
        // Removes a middle, the first and the last link; then reuses their slots.
        peers.leave(addr(1), 2, &mut memory);
        peers.leave(addr(2), 5, &mut memory);
        peers.leave(addr(2), 1, &mut memory);
        assert_eq!((slots(&peers, 1), slots(&peers, 2)), (vec![0, 4], vec![3]));
        assert!(peers.has_several(addr(1)) && !peers.has_several(addr(2)));
        peers.join(addr(3), 2);
        peers.join(addr(1), 1);
        assert_eq!((slots(&peers, 1), slots(&peers, 3)), (vec![0, 1, 4], vec![2]));
        for (port, slot) in [(1, 4), (1, 0), (1, 1), (2, 3), (3, 2)] {
            assert!(peers.contains(addr(port)));
            peers.leave(addr(port), slot, &mut memory);
        }
        assert!(peers.is_empty());
    }

    #[test]
    fn parity_of_an_address_counts_from_its_first_datagram_until_its_last_connection() {
        let fec = |data, parity| FecConfig::new(data, parity).unwrap();
        let config = Config::new().redundancy(Redundancy::Fec(fec(10, 3)));
        let mut peers = PeerTable::new(&config);
        let mut memory = Memory::new(&config, Notifier::new().memory().clone());
        peers.join(addr(1), 0);
        peers.join(addr(1), 1);
        assert_eq!(memory.held(), 0, "idle");
        for _ in 0..2 {
            assert!(peers.fec_sender(addr(1), &mut memory).is_some());
            assert_eq!(memory.held(), 3 * KCP_GO_MTU_LIMIT);
        }
        peers.set_fec(addr(1), fec(10, 5), true, &mut memory);
        peers.validate(addr(1), &mut memory);
        assert_eq!((memory.held(), memory.unvalidated()), (5 * KCP_GO_MTU_LIMIT, 0));
        peers.leave(addr(1), 0, &mut memory);
        peers.leave(addr(1), 1, &mut memory);
        assert_eq!(memory.held(), 0);
    }
}
