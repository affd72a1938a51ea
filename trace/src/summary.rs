//! What connections did, as text.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::Read;
use crate::capture::Frames;
use crate::flow::{Connection, End, Sent, Side};
use crate::inside::{Smux, Stream};
use crate::layers::Opened;

#[derive(Serialize)]
struct Summary<'a> {
    capture: Frames,
    datagrams: Opened,
    connections: &'a [Connection],
}

pub(crate) fn json(out: &mut impl Write, read: &Read) -> Result<()> {
    let connections = &read.connections.all;
    serde_json::to_writer_pretty(
        &mut *out,
        &Summary { capture: read.frames, datagrams: read.opened, connections },
    )?;
    Ok(writeln!(out)?)
}

pub(crate) fn print(out: &mut impl Write, read: &Read, most: usize) -> Result<()> {
    let Read { frames, opened, connections } = read;
    writeln!(
        out,
        "{} frames: {} UDP datagrams, {} other frames",
        frames.frames, opened.datagrams, frames.others
    )?;
    let notes = [
        (opened.undecoded, "datagrams are no KCP, or sealed: --crypt and --key open them"),
        (
            opened.cut,
            "datagrams are cut: capture with a larger snapshot length, such as tcpdump -s 0",
        ),
        (opened.batched, "datagrams were in batches of the system, and are counted one by one"),
        (opened.recovered, "datagrams are not in the capture, and FEC recovered them"),
        (
            frames.repeated,
            "datagrams passed several interfaces of the capture, and are counted once",
        ),
        (
            frames.fragments,
            "frames are IP fragments: the datagrams are larger than the MTU of the path",
        ),
        (connections.not_told_apart, "datagrams belong to connections beyond the first 65,536"),
        (
            connections.forgotten,
            "segments were not followed: more than 1,048,576 wait for their ACKs",
        ),
    ];
    for (count, note) in notes.iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "note: {count} {note}")?;
    }
    if frames.is_truncated {
        writeln!(out, "note: the capture ends within a frame, or is damaged there")?;
    }
    let mut sorted: Vec<&Connection> = connections.all.iter().collect();
    sorted.sort_by_key(|connection| std::cmp::Reverse(connection.payload()));
    let began = sorted.iter().map(|connection| connection.began_ns).min().unwrap_or_default();
    for connection in sorted.iter().take(most) {
        print_connection(out, connection, began)?;
        print_smux(out, connection, began, most)?;
    }
    if sorted.len() > most {
        writeln!(
            out,
            "\n{} more connections: --most {} prints them",
            sorted.len() - most,
            sorted.len()
        )?;
    }
    Ok(())
}

/// A row of the table: what it is, of what one side sent.
type Row = (&'static str, fn(&Sent) -> u64);

fn print_connection(out: &mut impl Write, connection: &Connection, began: u64) -> Result<()> {
    let Connection { id, began_ns, last_ns, sides, .. } = connection;
    let seconds = |at: u64| at.saturating_sub(began) as f64 / 1e9;
    writeln!(out, "\nconversation {:#010x}, A = {}, B = {}", id.conv, id.a, id.b)?;
    writeln!(
        out,
        "  from {:.3} s to {:.3} s; {}",
        seconds(*began_ns),
        seconds(*last_ns),
        ended(connection, began)
    )?;
    writeln!(out, "  {:<44} {:>14} {:>14}", "", "A sent", "B sent")?;
    let rows: [Row; 19] = [
        ("datagrams", |sent| sent.datagrams),
        ("bytes of UDP payload", |sent| sent.bytes),
        ("segments with data", |sent| sent.segments),
        ("bytes of data", |sent| sent.payload),
        ("retransmissions", |sent| sent.retransmissions),
        ("  of segments that had arrived", |sent| sent.spurious),
        ("copies of the same transmission", |sent| sent.copies),
        ("segments acknowledged, not in the capture", |sent| sent.not_captured),
        ("FEC parity packets", |sent| sent.parity),
        ("segments that FEC recovered", |sent| sent.recovered),
        ("repair symbols", |sent| sent.repair_symbols),
        ("ACKs of segments that these recovered", |sent| sent.repaired_acks),
        ("ACKs", |sent| sent.acks),
        ("pings", |sent| sent.pings),
        ("MTU probes", |sent| sent.mtu_probes),
        ("window probes", |sent| sent.window_probes),
        ("out-of-band datagrams", |sent| sent.out_of_band),
        ("times that the window closed", |sent| sent.zero_windows),
        ("most segments in flight", |sent| sent.max_in_flight),
    ];
    for (name, value) in rows {
        let values = [value(&sides[0]), value(&sides[1])];
        if values != [0, 0] {
            writeln!(out, "  {name:<44} {:>14} {:>14}", values[0], values[1])?;
        }
    }
    let windows = sides.each_ref().map(|sent| sent.window);
    writeln!(out, "  {:<44} {:>14} {:>14}", "largest window, segments", windows[0], windows[1])?;
    let rtt = |sent: &Sent| match sent.rtt.mean_us() {
        Some(mean) => {
            let [min, mean, max] =
                [sent.rtt.min_us, mean, sent.rtt.max_us].map(|us| us as f64 / 1e3);
            format!("{min:.1}/{mean:.1}/{max:.1}")
        }
        None => "-".to_owned(),
    };
    let [a, b] = sides.each_ref().map(rtt);
    writeln!(out, "  {:<44} {a:>14} {b:>14}", "data to its ACK, ms: least/mean/most")?;
    Ok(())
}

fn print_smux(
    out: &mut impl Write,
    connection: &Connection,
    began: u64,
    most: usize,
) -> Result<()> {
    let Some(smux) = &connection.inside.smux else { return Ok(()) };
    let Smux { version, opened, bytes, keepalives, .. } = smux;
    let compressed = if smux.is_compressed { ", compressed (snappy)" } else { "" };
    writeln!(
        out,
        "  smux version {version}{compressed}: {opened} streams, {} bytes of them from A, {} from B; \
         keepalives {} and {}",
        bytes[0], bytes[1], keepalives[0], keepalives[1]
    )?;
    if smux.is_incomplete {
        writeln!(out, "  note: the rest of smux is not in the capture, or damaged")?;
    }
    let mut streams: Vec<&Stream> = smux.streams.iter().collect();
    streams.sort_by_key(|stream| std::cmp::Reverse(stream.bytes[0] + stream.bytes[1]));
    for stream in streams.iter().take(most) {
        let seconds = |at: u64| at.saturating_sub(began) as f64 / 1e9;
        writeln!(
            out,
            "    stream {}: {:.3} s to {:.3} s, opened by {}, {} bytes from A, {} from B; {}",
            stream.id,
            seconds(stream.opened_ns),
            seconds(stream.last_ns),
            name(stream.opened_by),
            stream.bytes[0],
            stream.bytes[1],
            closed(stream)
        )?;
    }
    if *opened > most as u64 {
        writeln!(out, "    {} more streams: --most {opened} prints them", opened - most as u64)?;
    }
    Ok(())
}

/// Of a side.
fn name(side: Side) -> &'static str {
    if side == 0 { "A" } else { "B" }
}

fn closed(stream: &Stream) -> String {
    match stream.closed_by {
        None => "open".to_owned(),
        Some(side) if stream.was_reset => format!("{} closed or reset it first", name(side)),
        Some(side) if stream.fins == [true; 2] => {
            format!("{} closed, and {} too", name(side), name(1 - side))
        }
        Some(side) => format!("{} closed", name(side)),
    }
}

fn ended(connection: &Connection, began: u64) -> String {
    let Some((side, at, end)) = connection.end else { return "no side closed it".to_owned() };
    let (name, other) = (name(side), name(1 - side));
    let at = at.saturating_sub(began) as f64 / 1e9;
    match end {
        End::Reset => format!("{name} reset it at {at:.3} s"),
        End::Closed if connection.fins == [true; 2] => {
            format!("{name} closed at {at:.3} s, and {other} too")
        }
        End::Closed => format!("{name} closed at {at:.3} s"),
    }
}
