//! Captures: pcap and pcapng as a stream, down to the UDP datagrams in them.
//!
//! Memory is bounded whatever the file says: one buffer for the file, and a fixed number of IP packets in
//! fragments.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{Read, stdin};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use etherparse::defrag::IpDefragPool;
use etherparse::err::packet::SliceError;
use etherparse::{
    EtherType, IpNumber, LaxNetSlice, LaxSlicedPacket, SlicedPacket, TransportSlice, UdpSlice,
};
use pcap_parser::pcapng::{Block, InterfaceDescriptionBlock};
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};

/// Of the file. A frame of a capture has at most 262,144 bytes.
const BUFFER: usize = 1 << 20;
/// IP packets whose fragments are being collected: 64 KiB each.
const MAX_FRAGMENTED: u64 = 256;
/// Datagrams that are remembered, since another interface may have them too.
const MAX_REMEMBERED: usize = 65_536;
const NANOS: u64 = 1_000_000_000;

/// A UDP datagram.
#[derive(Debug)]
pub(crate) struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub(crate) at: u64,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) payload: &'a [u8],
    /// The capture has a part of the datagram only.
    pub(crate) is_cut: bool,
}

/// Counters of a whole capture.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Frames {
    pub(crate) frames: u64,
    /// Not UDP, or with a header that is no header.
    pub(crate) others: u64,
    /// Datagrams that another interface of the same capture had before. They are skipped.
    pub(crate) repeated: u64,
    /// Parts of IP packets, whole or not in the end.
    pub(crate) fragments: u64,
    /// The file ends within a frame.
    pub(crate) is_truncated: bool,
}

/// Calls `each` with every UDP datagram of the file at `path`, `-` for the standard input.
pub(crate) fn read(path: &Path, each: impl FnMut(Packet<'_>) -> Result<()>) -> Result<Frames> {
    let input: Box<dyn Read + Send> = if path == Path::new("-") {
        Box::new(stdin())
    } else {
        let file = File::open(path);
        Box::new(file.with_context(|| format!("cannot open the capture {}", path.display()))?)
    };
    read_from(input, each).with_context(|| format!("in the capture {}", path.display()))
}

/// As [`read`], from any reader.
pub(crate) fn read_from(
    input: impl Read + Send + 'static,
    mut each: impl FnMut(Packet<'_>) -> Result<()>,
) -> Result<Frames> {
    let mut reader = create_reader(BUFFER, input).map_err(|_| {
        anyhow::anyhow!(
            "it is neither pcap nor pcapng: write captures with tcpdump -w, dumpcap or Wireshark"
        )
    })?;
    let (mut links, mut counters) = (Links::default(), Frames::default());
    let (mut fragments, mut repeats) = (Fragments::default(), Repeats::default());
    loop {
        match reader.next() {
            Ok((len, block)) => {
                if let Some(frame) = links.frame(&block) {
                    counters.frames += 1;
                    fragments.datagram(frame, &mut counters, &mut |packet| match repeats
                        .has(frame.place(), &packet)
                    {
                        true => Ok(()),
                        false => each(packet),
                    })?;
                }
                drop(block);
                reader.consume(len);
            }
            Err(PcapError::Eof) => break,
            Err(PcapError::Incomplete(_)) => {
                // Refills nothing once the file has ended: the next call says so.
                if reader.refill().is_err() {
                    counters.is_truncated = true;
                    break;
                }
            }
            Err(PcapError::UnexpectedEof) => {
                counters.is_truncated = true;
                break;
            }
            Err(_) if counters.frames > 0 => {
                // What follows a damaged block cannot be found.
                counters.is_truncated = true;
                break;
            }
            Err(error) => bail!("the capture is damaged before its first frame: {error:?}"),
        }
    }
    counters.repeated = repeats.count;
    Ok(counters)
}

/// What a file has said about its interfaces.
#[derive(Debug, Default)]
struct Links {
    /// Of a pcap file: its link type, and ticks a second.
    only: Option<(Linktype, u64)>,
    /// Of a section of a pcapng file: link type, ticks a second, offset in seconds.
    interfaces: Vec<(Linktype, u64, i64)>,
}

/// An interface.
type Place = (u32, [u8; 4]);

/// A frame of a capture.
#[derive(Clone, Copy, Debug)]
struct Frame<'a> {
    at: u64,
    link: Linktype,
    /// Its number in the section of a pcapng file.
    interface: u32,
    bytes: &'a [u8],
}

impl Frame<'_> {
    /// What tells the interfaces of the system apart that had the frame. Linux "any" is one interface of a file:
    /// version 2 has the number of the interface, version 1 the direction at least.
    fn place(&self) -> Place {
        let cooked = match self.link {
            Linktype::LINUX_SLL => self.bytes.get(..2).map(|type_| [type_[0], type_[1], 0, 0]),
            Linktype::LINUX_SLL2 => self.bytes.get(4..8).and_then(|index| index.try_into().ok()),
            _ => None,
        };
        (self.interface, cooked.unwrap_or_default())
    }
}

/// Datagrams that several interfaces of a host had, such as a bridge and its ports: copies of a sender pass the
/// same interface.
#[derive(Debug, Default)]
struct Repeats {
    /// By addresses and payload: where and when the first one was.
    seen: HashMap<u64, (Place, u64)>,
    order: VecDeque<u64>,
    count: u64,
}

impl Repeats {
    /// Whether another interface has had this datagram in the last second.
    fn has(&mut self, place: Place, packet: &Packet<'_>) -> bool {
        let mut hasher = DefaultHasher::new();
        (packet.from, packet.to, packet.payload).hash(&mut hasher);
        let hash = hasher.finish();
        if let Some((first, at)) = self.seen.get(&hash)
            && packet.at.abs_diff(*at) < NANOS
        {
            let is_repeat = *first != place;
            self.count += u64::from(is_repeat);
            return is_repeat;
        }
        if self.seen.insert(hash, (place, packet.at)).is_none() {
            self.order.push_back(hash);
        }
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        false
    }
}

/// Interfaces of one section that are remembered.
const MAX_INTERFACES: usize = 4_096;
/// Magic numbers of pcap files with nanoseconds, as the reader gives them.
const NANOSECOND_MAGIC: [u32; 2] = [0xa1b2_3c4d, 0x4d3c_b2a1];

impl Links {
    /// The frame of a block; `None` for other blocks.
    fn frame<'a>(&mut self, block: &'a PcapBlockOwned<'a>) -> Option<Frame<'a>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let is_fine = NANOSECOND_MAGIC.contains(&header.magic_number);
                self.only = Some((header.network, if is_fine { NANOS } else { 1_000_000 }));
                None
            }
            PcapBlockOwned::Legacy(frame) => {
                let (link, ticks) = self.only?;
                let at =
                    u64::from(frame.ts_sec) * NANOS + u64::from(frame.ts_usec) * (NANOS / ticks);
                Some(Frame { at, link, interface: 0, bytes: frame.data })
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.interfaces.clear();
                None
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                self.add(interface);
                None
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(frame)) => {
                let &(link, ticks, offset) = self.interfaces.get(frame.if_id as usize)?;
                let at = u64::from(frame.ts_high) << 32 | u64::from(frame.ts_low);
                let bytes = frame.data.get(..frame.caplen as usize).unwrap_or(frame.data);
                let at = nanos(at, ticks, offset);
                Some(Frame { at, link, interface: frame.if_id, bytes })
            }
            // It has no time.
            PcapBlockOwned::NG(Block::SimplePacket(frame)) => {
                let &(link, ..) = self.interfaces.first()?;
                let bytes = frame.data.get(..frame.origlen as usize).unwrap_or(frame.data);
                Some(Frame { at: 0, link, interface: 0, bytes })
            }
            PcapBlockOwned::NG(_) => None,
        }
    }

    fn add(&mut self, interface: &InterfaceDescriptionBlock<'_>) {
        if self.interfaces.len() < MAX_INTERFACES {
            let ticks = interface.ts_resolution().unwrap_or(1_000_000);
            self.interfaces.push((interface.linktype, ticks, interface.if_tsoffset));
        }
    }
}

fn nanos(at: u64, ticks: u64, offset: i64) -> u64 {
    let nanos = u128::from(at) * u128::from(NANOS) / u128::from(ticks.max(1));
    let nanos = i128::try_from(nanos).unwrap_or(0) + i128::from(offset) * i128::from(NANOS);
    u64::try_from(nanos).unwrap_or(0)
}

/// Where the IP header of a frame is found.
enum Network<'a> {
    Ethernet(&'a [u8]),
    EtherType(EtherType, &'a [u8]),
    Ip(&'a [u8]),
}

impl<'a> Network<'a> {
    fn of(link: Linktype, frame: &'a [u8]) -> Option<Self> {
        let ether_type =
            |at: usize| frame.get(at..at + 2).map(|type_| u16::from_be_bytes([type_[0], type_[1]]));
        match link {
            Linktype::ETHERNET => Some(Self::Ethernet(frame)),
            Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => Some(Self::Ip(frame)),
            // DLT_RAW of some systems.
            Linktype(12 | 14) => Some(Self::Ip(frame)),
            Linktype::NULL | Linktype::LOOP => Some(Self::Ip(frame.get(4..)?)),
            Linktype::LINUX_SLL => {
                Some(Self::EtherType(EtherType(ether_type(14)?), frame.get(16..)?))
            }
            Linktype::LINUX_SLL2 => {
                Some(Self::EtherType(EtherType(ether_type(0)?), frame.get(20..)?))
            }
            _ => None,
        }
    }

    fn slice(&self) -> Option<LaxSlicedPacket<'a>> {
        match *self {
            Self::Ethernet(frame) => LaxSlicedPacket::from_ethernet(frame).ok(),
            Self::EtherType(type_, frame) => Some(LaxSlicedPacket::from_ether_type(type_, frame)),
            Self::Ip(packet) => LaxSlicedPacket::from_ip(packet).ok(),
        }
    }

    /// Only of frames that the capture has whole.
    fn slice_strictly(&self) -> Result<SlicedPacket<'a>, SliceError> {
        match *self {
            Self::Ethernet(frame) => SlicedPacket::from_ethernet(frame),
            Self::EtherType(type_, frame) => SlicedPacket::from_ether_type(type_, frame),
            Self::Ip(packet) => SlicedPacket::from_ip(packet),
        }
    }
}

/// IP packets whose fragments are being collected.
#[derive(Debug, Default)]
struct Fragments {
    pool: IpDefragPool<u64, Place>,
    seen: u64,
}

impl Fragments {
    /// Calls `each` with the datagram of a frame, if it is UDP and whole.
    fn datagram(
        &mut self,
        frame: Frame<'_>,
        counters: &mut Frames,
        each: &mut impl FnMut(Packet<'_>) -> Result<()>,
    ) -> Result<()> {
        let network = Network::of(frame.link, frame.bytes);
        let sliced = network.as_ref().and_then(Network::slice);
        let net = sliced.as_ref().and_then(|sliced| sliced.net.as_ref());
        let (Some(network), Some(ends)) = (network, net.and_then(addresses)) else {
            counters.others += 1;
            return Ok(());
        };
        let payload = net.and_then(LaxNetSlice::ip_payload_ref);
        if payload.is_some_and(|payload| payload.fragmented) {
            counters.fragments += 1;
            return self.fragment(&frame, &network, ends, counters, each);
        }
        let transport = sliced.as_ref().and_then(|sliced| sliced.transport.as_ref());
        let Some(TransportSlice::Udp(udp)) = transport else {
            counters.others += 1;
            return Ok(());
        };
        each(packet(frame.at, ends, udp))
    }

    fn fragment(
        &mut self,
        frame: &Frame<'_>,
        network: &Network<'_>,
        ends: Ends,
        counters: &mut Frames,
        each: &mut impl FnMut(Packet<'_>) -> Result<()>,
    ) -> Result<()> {
        let Ok(sliced) = network.slice_strictly() else { return Ok(()) };
        self.seen += 1;
        let seen = self.seen;
        if seen.is_multiple_of(MAX_FRAGMENTED) {
            self.pool.retain(|since| seen - since < MAX_FRAGMENTED);
        }
        let Ok(Some(whole)) = self.pool.process_sliced_packet(&sliced, seen, frame.place()) else {
            return Ok(());
        };
        if whole.ip_number == IpNumber::UDP
            && let Ok(udp) = UdpSlice::from_slice_lax(&whole.payload)
        {
            each(packet(frame.at, ends, &udp))?;
        } else {
            counters.others += 1;
        }
        self.pool.return_buf(whole);
        Ok(())
    }
}

/// The addresses of an IP packet.
#[derive(Clone, Copy)]
struct Ends {
    from: IpAddr,
    to: IpAddr,
}

fn packet<'a>(at: u64, ends: Ends, udp: &UdpSlice<'a>) -> Packet<'a> {
    let payload = udp.payload();
    Packet {
        at,
        from: SocketAddr::new(ends.from, udp.source_port()),
        to: SocketAddr::new(ends.to, udp.destination_port()),
        payload,
        is_cut: usize::from(udp.length()) > payload.len() + 8,
    }
}

fn addresses(net: &LaxNetSlice<'_>) -> Option<Ends> {
    let (from, to) = match net {
        LaxNetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        LaxNetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        LaxNetSlice::Arp(_) => return None,
    };
    Some(Ends { from, to })
}
