//! Packets that arrive before the initial segment of their connection, which is late or lost.
//!
//! They are held for a moment, since a client sends a whole window at once, and all of it would have
//! to be retransmitted (RFC 9000 5.7 has servers buffer packets of connections that they may accept
//! soon). With FEC their parity may recover the initial segment. All memory is part of that of
//! unvalidated peers. FEC state belongs to an address, and so does what is held.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::core::open::InitialSegment;
use crate::core::segment::{self, Command, Header, Segments, conv_of};
use crate::core::seq::Sn;
use crate::driver::expiring_map::ExpiringMap;
use crate::driver::memory_budget::{Holder, MemoryBudget};
use crate::fec::{self, FecConfig, FecDecoder, FecFlag, fec_flag};

/// How long packets are held: a client retransmits its initial segment after 0.2 to 0.4 s.
const LIFETIME: Duration = Duration::from_secs(1);
/// Packets of one address: the first flight of the C library, which sends 128 segments before an
/// answer, and the parity of that.
const MAX_PACKETS: usize = 256;
/// Numbers that can be early; kcp-go and this crate send 32 segments before an answer.
const MAX_EARLY_SN: u32 = 128;
/// Milliseconds between the timestamps of an early segment and its initial segment, at most. Those of
/// an earlier connection with the same address and conversation id have another origin.
const MAX_TS_DISTANCE: u32 = 2_000;
/// Reconstructions of one address. More come from parity that recovers no initial segment.
const MAX_ATTEMPTS: u8 = 4;
/// Bytes that an address and a packet take beside the bytes of the packet.
const PEER_COST: usize = 256;
const PACKET_COST: usize = 64;

/// What is held of one address.
#[derive(Debug, Default)]
struct EarlyPeer {
    /// Bytes of the memory of unvalidated peers.
    held: usize,
    attempts: u8,
    /// Bodies of UDP datagrams, with the FEC header where they have one.
    packets: Vec<Box<[u8]>>,
}

/// What is held of all addresses.
#[derive(Debug, Default)]
pub(crate) struct EarlyArrivals {
    peers: ExpiringMap<SocketAddr, EarlyPeer>,
}

impl EarlyArrivals {
    /// Holds a packet with valid segments of an unknown connection, if it may be early. Returns
    /// whether it is held.
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        from: SocketAddr,
        packet: &[u8],
        budget: &mut MemoryBudget,
    ) -> bool {
        is_early(datagram_of(packet)) && self.store(now, from, packet, budget)
    }

    /// Takes a parity packet of an address from which early packets came. Returns the initial
    /// datagram, if the parity recovers one that belongs to them.
    pub(crate) fn recover(
        &mut self,
        now: Instant,
        from: SocketAddr,
        parity: &[u8],
        layout: FecConfig,
        budget: &mut MemoryBudget,
    ) -> Option<Vec<u8>> {
        let attempts = self.peers.get(&from)?.attempts;
        if attempts >= MAX_ATTEMPTS || !self.store(now, from, parity, budget) {
            return None;
        }
        let peer = self.peers.get_mut(&from)?;
        let members = || peer.packets.iter().filter(|p| is_first_group(p, layout));
        let enough = members().count() >= layout.data_shards();
        if !enough || !confirms(members(), layout) {
            return None;
        }
        let mut found = None;
        let mut decoder = FecDecoder::new(Some(layout));
        for packet in members() {
            decoder.input(now, packet, |datagram| {
                let conv = conv_of(datagram);
                let is_known = || peer.packets.iter().any(|p| conv_of(datagram_of(p)) == conv);
                let is_initial = conv.is_some_and(|conv| segment::validate(datagram, conv).is_ok())
                    && matches!(InitialSegment::parse(datagram), Some(InitialSegment::Data(_)))
                    && is_known();
                if is_initial {
                    found = Some(datagram.to_vec());
                }
                is_initial
            });
        }
        peer.attempts += 1;
        found
    }

    /// Takes the packets of the connection that `initial` has opened, in the order in which they
    /// arrived, and the parity from their address.
    pub(crate) fn take(
        &mut self,
        from: SocketAddr,
        initial: &[u8],
        budget: &mut MemoryBudget,
    ) -> Vec<Box<[u8]>> {
        let Some(peer) = self.peers.get_mut(&from) else { return Vec::new() };
        let Ok(opened) = Header::parse(initial) else { return Vec::new() };
        // The timestamp of an initial segment without data is a random number.
        if opened.command != Command::Push {
            return Vec::new();
        }
        let belongs = |packet: &[u8]| {
            let header = Header::parse(datagram_of(packet)).ok();
            fec_flag(packet) != FecFlag::Parity
                && header.is_some_and(|header| {
                    header.conv == opened.conv
                        && header.ts.since(opened.ts).unsigned_abs() <= MAX_TS_DISTANCE
                })
        };
        let (mut taken, mut rest) = (Vec::new(), Vec::new());
        for packet in std::mem::take(&mut peer.packets) {
            if belongs(&packet) { taken.push(packet) } else { rest.push(packet) }
        }
        // Packets of other connections of the address may still be early.
        if rest.iter().any(|packet| fec_flag(packet) != FecFlag::Parity) {
            let held = PEER_COST + rest.iter().map(|packet| cost_of(packet)).sum::<usize>();
            budget.update(Holder::Other, std::mem::replace(&mut peer.held, held), held);
            peer.packets = rest;
        } else {
            budget.update(Holder::Other, peer.held, 0);
            self.peers.remove(&from);
        }
        taken
    }

    /// When the next packets are dropped.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.peers.deadline()
    }

    /// Drops what is too old.
    pub(crate) fn expire(&mut self, now: Instant, budget: &mut MemoryBudget) {
        while let Some((_, _, peer)) = self.peers.pop_expired(now) {
            budget.update(Holder::Other, peer.held, 0);
        }
    }

    #[cfg(feature = "_testkit")]
    pub(crate) fn check_invariants(&self) {
        assert!(self.peers.values().all(|peer| peer.packets.len() <= MAX_PACKETS));
    }

    fn store(
        &mut self,
        now: Instant,
        from: SocketAddr,
        packet: &[u8],
        budget: &mut MemoryBudget,
    ) -> bool {
        let held = self.peers.get(&from).map_or(0, |peer| peer.held);
        let cost = cost_of(packet) + if held == 0 { PEER_COST } else { 0 };
        if budget.allowance(Holder::Other, held) < cost {
            return false;
        }
        if held == 0 {
            self.peers.insert(now + LIFETIME, from, EarlyPeer::default());
        }
        let Some(peer) = self.peers.get_mut(&from) else { return false };
        if peer.packets.len() >= MAX_PACKETS {
            return false;
        }
        peer.packets.push(packet.into());
        peer.held += cost;
        budget.update(Holder::Other, held, peer.held);
        true
    }
}

/// Bytes that a packet takes.
fn cost_of(packet: &[u8]) -> usize {
    PACKET_COST + packet.len()
}

/// Whether all segments of a valid datagram are data of a peer that has heard nothing of this side
/// and sends its first window.
fn is_early(datagram: &[u8]) -> bool {
    Segments::new(datagram).all(|(header, payload)| {
        header.command == Command::Push
            && !payload.is_empty()
            && header.una == Sn(0)
            && (1..MAX_EARLY_SN).contains(&header.sn.0)
    })
}

/// The KCP datagram within a packet that is no parity.
pub(crate) fn datagram_of(packet: &[u8]) -> &[u8] {
    match fec_flag(packet) {
        FecFlag::Data => packet.get(fec::HEADER_LEN..).unwrap_or_default(),
        _ => packet,
    }
}

/// The number of a packet with FEC header.
fn seqid_of(packet: &[u8]) -> Option<usize> {
    let has_header = matches!(fec_flag(packet), FecFlag::Data | FecFlag::Parity);
    let seqid = packet.first_chunk().filter(|_| has_header)?;
    usize::try_from(u32::from_le_bytes(*seqid)).ok()
}

/// Whether a packet is in the first FEC group of its address, the only one of which it is certain where
/// it starts.
fn is_first_group(packet: &[u8], layout: FecConfig) -> bool {
    seqid_of(packet).is_some_and(|seqid| seqid < layout.shards())
}

/// Whether the packets of the first group show that it has as many data packets as the layout, which
/// is that of this side: its last data packet and its first parity packet are there. The number of
/// parity packets does not matter, since no row of the code depends on it. With another number of data
/// packets parity would yield well-formed packets of wrong bytes.
fn confirms<'a>(packets: impl Iterator<Item = &'a Box<[u8]>>, layout: FecConfig) -> bool {
    let data = layout.data_shards();
    let (mut last_data, mut first_parity) = (false, false);
    for packet in packets {
        let (seqid, is_parity) = (seqid_of(packet), fec_flag(packet) == FecFlag::Parity);
        if seqid.is_some_and(|seqid| (seqid >= data) != is_parity) {
            return false;
        }
        last_data |= seqid.is_some_and(|seqid| seqid + 1 == data);
        first_parity |= seqid == Some(data);
    }
    last_data && first_parity
}
