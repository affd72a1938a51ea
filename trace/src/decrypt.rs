//! A capture without cipher: the datagrams of another one, opened, as pcap of IP packets.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::capture::{self, Packet};
use crate::layers::{Keys, Kind, Layers};
use crate::pcap::{ip_packet, write_header, write_record};

pub(crate) fn write(input: &Path, keys: &Keys, output: &Path) -> Result<()> {
    let mut layers = Layers::new(keys)?;
    let file =
        File::create(output).with_context(|| format!("cannot create {}", output.display()))?;
    let written = || format!("cannot write {}", output.display());
    let mut out = BufWriter::new(file);
    write_header(&mut out).with_context(written)?;
    capture::read(input, |packet| {
        write_opened(&mut layers, &packet, &mut out).with_context(written)
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

/// Writes the datagrams of a packet.
pub(crate) fn write_opened(
    layers: &mut Layers,
    packet: &Packet<'_>,
    out: &mut impl Write,
) -> Result<()> {
    layers.open(packet, |datagram| {
        // No packet had what FEC recovered.
        if datagram.kind == Kind::Recovered {
            return Ok(());
        }
        let packet = ip_packet(datagram.from, datagram.to, datagram.opened)?;
        write_record(out, datagram.at, &packet)
    })
}
