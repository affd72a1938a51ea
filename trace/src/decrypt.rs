//! A capture without cipher: the datagrams of another one, opened, as pcap of IP packets.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use etherparse::PacketBuilder;

use crate::capture;
use crate::layers::{Keys, Kind, Layers};

/// pcap with nanoseconds, version 2.4, link type RAW: a packet begins with its IP header.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINK_RAW: u32 = 101;
const SNAPLEN: u32 = 262_144;
const NANOS: u64 = 1_000_000_000;
/// Hops of a packet that never was on a network.
const TTL: u8 = 64;

pub(crate) fn write(input: &Path, keys: &Keys, output: &Path) -> Result<()> {
    let mut layers = Layers::new(keys)?;
    let file =
        File::create(output).with_context(|| format!("cannot create {}", output.display()))?;
    let written = || format!("cannot write {}", output.display());
    let mut out = BufWriter::new(file);
    write_header(&mut out).with_context(written)?;
    capture::read(input, |packet| {
        layers.open(&packet, |datagram| {
            // No packet had what FEC recovered.
            if datagram.kind == Kind::Recovered {
                return Ok(());
            }
            let packet = ip_packet(datagram.from, datagram.to, datagram.opened)?;
            write_record(&mut out, datagram.at, &packet).with_context(written)
        })
    })?;
    out.flush().with_context(written)?;
    let counters = layers.counters;
    println!("{} datagrams, {} not decoded", counters.datagrams, counters.undecoded);
    ensure!(
        counters.datagrams == 0 || counters.undecoded < counters.datagrams,
        "no datagram could be decoded: name the cipher with --crypt and its key with --key"
    );
    Ok(())
}

/// The head of a file.
pub(crate) fn write_header(out: &mut impl Write) -> std::io::Result<()> {
    out.write_all(&MAGIC.to_le_bytes())?;
    out.write_all(&2_u16.to_le_bytes())?;
    out.write_all(&4_u16.to_le_bytes())?;
    out.write_all(&[0; 8])?;
    out.write_all(&SNAPLEN.to_le_bytes())?;
    out.write_all(&LINK_RAW.to_le_bytes())
}

/// An IP packet at a time in nanoseconds since 1970.
pub(crate) fn write_record(out: &mut impl Write, at: u64, packet: &[u8]) -> Result<()> {
    let len = u32::try_from(packet.len())?.to_le_bytes();
    out.write_all(&u32::try_from(at / NANOS).unwrap_or(u32::MAX).to_le_bytes())?;
    out.write_all(&((at % NANOS) as u32).to_le_bytes())?;
    out.write_all(&len)?;
    out.write_all(&len)?;
    Ok(out.write_all(packet)?)
}

/// An IP packet with a UDP datagram.
pub(crate) fn ip_packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Result<Vec<u8>> {
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
