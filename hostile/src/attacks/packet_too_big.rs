//! ICMP messages that report a small path MTU, forged, which quote the addresses and ports of a connection.
//!
//! It has a network namespace of its own with a loopback of Ethernet's MTU: there the system's counters belong
//! to this attack alone, and the system forgets it all at its end.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kcpx::KcpStream;
use socket2::{Domain, Protocol, Socket, Type};

use super::Setup;
use super::report::Row;
use crate::server::{Process, Profile, Service};

/// The path MTU that is reported over each IP version, bytes: the least that Linux takes.
const FORGED: [(IpAddr, u16); 2] =
    [(IpAddr::V4(Ipv4Addr::LOCALHOST), 552), (IpAddr::V6(Ipv6Addr::LOCALHOST), 1_280)];
/// Bytes read before a figure is taken.
const WARM_UP: usize = 8_000_000;

/// Runs [`measure`] in a namespace, or says why there is none.
pub(super) async fn forged(setup: Setup) -> anyhow::Result<Row> {
    let row = Row::new(
        "forged path MTU of 552 (IPv4) and 1,280 (IPv6)",
        "forged_packet_too_big_costs_neither_fragments_nor_gso",
    );
    let seconds = setup.time.as_secs_f64().to_string();
    let output = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe()?)
        .args(["packet-too-big", "--seconds", &seconds])
        .output();
    let output = match output {
        Ok(output) if output.status.code() == Some(0) => output,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
            ensure!(reason.contains("unshare"), "in the namespace: {reason}");
            return Ok(row.skipped(&reason));
        }
        Err(error) => return Ok(row.skipped(&format!("unshare: {error}"))),
    };
    let text = String::from_utf8(output.stdout)?;
    text.lines().try_fold(row, |row, line| {
        let mut words = line.split(' ');
        let name = words.next().context("no name")?;
        let mut next = || anyhow::Ok(words.next().context("no figure")?.parse::<f64>()?);
        let row = row.at_most(&format!("{name}: fragments of a thousand sends"), next()?, 0.0);
        // Over IPv6 the datagrams are smaller afterwards.
        let row = row.at_most(&format!("{name}: sends, % of normal"), next()?, 200.0);
        // Other work of the machine would break a bound of 110.
        Ok(row.at_most(&format!("{name}: CPU, % of normal"), next()?, 300.0))
    })
}

/// The cost of sending, for each byte that arrived.
#[derive(Clone, Copy, Debug)]
struct Cost {
    sends: f64,
    fragments: f64,
    cpu: f64,
}

/// Prints for each IP version the fragments, and the sends and the CPU time beside those before the forged
/// message. Called in the namespace.
pub(crate) async fn measure(seconds: f64) -> anyhow::Result<()> {
    let time = Duration::from_secs_f64(seconds.clamp(0.1, 600.0) / 4.0);
    loopback(1_500)?;
    for (ip, reported) in FORGED {
        let server = Process::start(Profile { ip, ..Profile::new(Service::Pour) })?;
        let mut stream = KcpStream::connect(server.addr).await?;
        warm_up(&mut stream).await?;
        let before = cost(&mut stream, &server, time).await?;
        packet_too_big(server.addr, SocketAddr::new(ip, stream.local_addr()?.port()), reported)?;
        warm_up(&mut stream).await?;
        let after = cost(&mut stream, &server, time).await?;
        let name = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let percent = |after: f64, before: f64| after / before * 100.0;
        let (sends, cpu) = (percent(after.sends, before.sends), percent(after.cpu, before.cpu));
        println!("{name} {} {sends} {cpu}", after.fragments / after.sends * 1_000.0);
        stream.abort();
    }
    // True ones.
    loopback(1_280)?;
    for (ip, _) in FORGED {
        let server = Process::start(Profile { ip, ..Profile::new(Service::Pour) })?;
        warm_up(&mut KcpStream::connect(server.addr).await?).await?;
    }
    Ok(())
}

fn loopback(mtu: u16) -> anyhow::Result<()> {
    let mtu = mtu.to_string();
    let status = Command::new("ip").args(["link", "set", "lo", "mtu", &mtu, "up"]).status();
    ensure!(status.context("ip")?.success(), "ip cannot set the MTU of the loopback");
    Ok(())
}

async fn warm_up(stream: &mut KcpStream) -> anyhow::Result<()> {
    let mut read = 0;
    while read < WARM_UP {
        read += next(stream).await?;
    }
    Ok(())
}

async fn next(stream: &mut KcpStream) -> anyhow::Result<usize> {
    let chunk = tokio::time::timeout(Duration::from_secs(30), stream.read_chunk()).await??;
    ensure!(!chunk.is_empty(), "the server has ended");
    Ok(chunk.len())
}

async fn cost(stream: &mut KcpStream, server: &Process, time: Duration) -> anyhow::Result<Cost> {
    let (counted, cpu) = (counters()?, server.cpu_time());
    let (end, mut read) = (Instant::now() + time, 0);
    while Instant::now() < end {
        read += next(stream).await?;
    }
    let (now, cpu) = (counters()?, server.cpu_time().saturating_sub(cpu));
    let of_a_byte = |figure: f64| figure / read.max(1) as f64;
    Ok(Cost {
        sends: of_a_byte((now.0 - counted.0) as f64),
        fragments: of_a_byte((now.1 - counted.1) as f64),
        cpu: of_a_byte(cpu.as_secs_f64()),
    })
}

/// UDP sends of this namespace, a GSO batch as one, and IP fragments.
fn counters() -> anyhow::Result<(u64, u64)> {
    let v4 = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let v6 = fs::read_to_string("/proc/thread-self/net/snmp6")?;
    let of_v4 = |table: &str, column: &str| -> Option<u64> {
        let mut lines = v4.lines().filter(|line| line.starts_with(table));
        let place = lines.next()?.split_whitespace().position(|name| name == column)?;
        lines.next()?.split_whitespace().nth(place)?.parse().ok()
    };
    let of_v6 = |name: &str| -> Option<u64> {
        let line = v6.lines().find(|line| line.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let sum = |v4: Option<u64>, v6: Option<u64>| Some(v4? + v6?);
    let sends = sum(of_v4("Udp:", "OutDatagrams"), of_v6("Udp6OutDatagrams"));
    let fragments = sum(of_v4("Ip:", "FragCreates"), of_v6("Ip6FragCreates"));
    sends.zip(fragments).context("the system has no such counters")
}

/// Says to the socket at `from` that what it has sent to `to` exceeds `mtu` bytes (RFC 1191, RFC 8201).
fn packet_too_big(from: SocketAddr, to: SocketAddr, mtu: u16) -> anyhow::Result<()> {
    let (is_v4, len) = (from.is_ipv4(), 1_408_u16);
    let mut packet = if is_v4 { vec![3, 4, 0, 0, 0, 0] } else { vec![2, 0, 0, 0, 0, 0] };
    packet.extend(mtu.to_be_bytes());
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x45, 0]);
            packet.extend((20 + len).to_be_bytes());
            packet.extend([0, 1, 0x40, 0, 60, 17, 0, 0]);
            packet.extend(from.octets().into_iter().chain(to.octets()));
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([17, 60]);
            packet.extend(from.octets().into_iter().chain(to.octets()));
        }
        _ => anyhow::bail!("two IP versions"),
    }
    for word in [from.port(), to.port(), len, 0] {
        packet.extend(word.to_be_bytes());
    }
    if is_v4 {
        let words = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
        packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    // The system writes the checksum of the other.
    let (domain, protocol) =
        if is_v4 { (Domain::IPV4, Protocol::ICMPV4) } else { (Domain::IPV6, Protocol::ICMPV6) };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.send_to(&packet, &SocketAddr::new(from.ip(), 0).into())?;
    Ok(())
}
