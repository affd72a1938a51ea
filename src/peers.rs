//! What is known of each address that has a conversation: its FEC state.
//!
//! Parity carries no conversation id, so FEC belongs to the address. It begins with the address's
//! first conversation and goes with the last.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use crate::config::Config;
use crate::fec::{FecConfig, FecDecoder, FecEncoder, FecStats, Kind, kind};

/// Largest datagram of a kcp-go peer.
const STOCK_DATAGRAM: usize = 1_500;

#[derive(Debug, Default)]
struct Peer {
    convs: u32,
    /// It has answered something that we sent.
    validated: bool,
    encoder: Option<Box<FecEncoder>>,
    decoder: Option<Box<FecDecoder>>,
}

#[derive(Debug)]
pub(crate) struct Peers {
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

impl Peers {
    pub(crate) fn new(config: &Config) -> Self {
        let (fec, decode) = (config.fec, config.fec_decode);
        let longest = usize::from(config.kcp.mtu).max(STOCK_DATAGRAM);
        Self { map: HashMap::new(), fec, decode, longest, decoders: 0, stats: FecStats::default() }
    }

    /// A conversation with `addr` begins.
    pub(crate) fn join(&mut self, addr: SocketAddr) {
        self.map.entry(addr).or_default().convs += 1;
    }

    /// A conversation with `addr` has ended.
    pub(crate) fn leave(&mut self, addr: SocketAddr) {
        if let Some(peer) = self.map.get_mut(&addr) {
            peer.convs -= 1;
            if peer.convs == 0 {
                self.decoders -= usize::from(peer.decoder.is_some());
                self.map.remove(&addr);
            }
        }
    }

    /// Whether a conversation with `addr` lives.
    pub(crate) fn knows(&self, addr: SocketAddr) -> bool {
        self.map.contains_key(&addr)
    }

    /// Whether more than one does.
    pub(crate) fn has_several(&self, addr: SocketAddr) -> bool {
        self.map.get(&addr).is_some_and(|peer| peer.convs > 1)
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
            if self.fec.is_none() && !(peer.validated && kind(shard) == Kind::Parity) {
                return true;
            }
            self.decoders += 1;
        }
        let fec = self.fec;
        let decoder = peer.decoder.get_or_insert_with(|| {
            // Most peers are configured alike.
            Box::new(fec.map_or_else(|| FecDecoder::new(None), FecDecoder::assuming))
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
