//! Writes captures: pcap files of IP packets.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use etherparse::PacketBuilder;

/// pcap with nanoseconds, version 2.4, link type RAW: a packet begins with its IP header.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINK_RAW: u32 = 101;
const SNAPLEN: u32 = 262_144;
const NANOS: u64 = 1_000_000_000;
/// Hops of a packet that never was on a network.
const TTL: u8 = 64;

/// The head of a file.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write_header(out: &mut impl Write) -> std::io::Result<()> {
    out.write_all(&MAGIC.to_le_bytes())?;
    out.write_all(&2_u16.to_le_bytes())?;
    out.write_all(&4_u16.to_le_bytes())?;
    out.write_all(&[0; 8])?;
    out.write_all(&SNAPLEN.to_le_bytes())?;
    out.write_all(&LINK_RAW.to_le_bytes())
}

/// An IP packet at a time in nanoseconds since 1970.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write_record(out: &mut impl Write, at: u64, packet: &[u8]) -> Result<()> {
    let len = u32::try_from(packet.len())?.to_le_bytes();
    out.write_all(&u32::try_from(at / NANOS).unwrap_or(u32::MAX).to_le_bytes())?;
    out.write_all(&((at % NANOS) as u32).to_le_bytes())?;
    out.write_all(&len)?;
    out.write_all(&len)?;
    Ok(out.write_all(packet)?)
}

/// An IP packet with a UDP datagram.
///
/// # Errors
///
/// If the addresses are of two kinds, or the payload is longer than a datagram.
pub fn ip_packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Result<Vec<u8>> {
    let builder = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), TTL),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), TTL),
        _ => anyhow::bail!("a packet has addresses of two kinds"),
    };
    let builder = builder.udp(from.port(), to.port());
    let mut packet = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut packet, payload)?;
    Ok(packet)
}
