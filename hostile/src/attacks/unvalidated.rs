//! Floods of peers that never validate their addresses.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use kcpx::proto::Command;

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forge;
use crate::rng::Rng;
use crate::running::Running;
use crate::server::{GREETING, Process, Profile, Service};
use crate::sources::{Sources, Traffic};

/// Addresses that forged datagrams come from.
const ADDRESSES: u32 = 512;
/// A sixteenth of `Limits::memory`.
const BUDGET: u64 = 64 << 20;
/// The budget, the first segment of each connection, and tables; docs/threat-model.md, "Unvalidated peers".
const BUDGET_MIB: u64 = 80;
/// Tables and buffers of a server that keeps nothing of what arrives.
const SMALL_MIB: u64 = 16;
/// Connections of unvalidated peers at a time: one more than half of `Limits::max_unvalidated`.
const MAX_CONNECTIONS: u64 = 2_049;
/// The amplification limit (RFC 9000 8.1).
const LIMIT: f64 = 3.0;

/// A flood against one server.
struct Flood {
    server: Process,
    observer: Observer,
    traffic: Traffic,
}

/// Sends what `next` returns at the rate of the setup, beside honest clients.
async fn flood(
    setup: Setup,
    profile: Profile,
    sources: Sources,
    mut next: impl FnMut(u64) -> Vec<u8> + Send + 'static,
) -> anyhow::Result<Flood> {
    let mut server = Process::start(profile)?;
    let mut observer = Observer::start(&server, true)?;
    let (to, mut sent) = (server.addr, 0);
    let sources = Arc::new(Mutex::new(sources));
    let sending = sources.clone();
    let running = Running::start(setup.rate, move || {
        let datagram = next(sent);
        sent += 1;
        sending.lock().unwrap_or_else(PoisonError::into_inner).send(&datagram, to);
    });
    observer.watch(&mut server, setup.time).await?;
    running.stop()?;
    let traffic = sources.lock().unwrap_or_else(PoisonError::into_inner).traffic();
    Ok(Flood { server, observer, traffic })
}

/// Unvalidated connections fill their windows behind a gap, so that nothing is read.
pub(super) async fn memory(setup: Setup) -> anyhow::Result<Row> {
    const CONNECTIONS: u64 = 2_048;
    let payload = Rng::new(5).bytes(1_376);
    let sources = Sources::at_addresses(9, ADDRESSES)?;
    let flood = flood(setup, Profile::new(Service::Echo), sources, move |sent| {
        let conv = 1 + (sent % CONNECTIONS) as u32;
        match (sent / CONNECTIONS) as u32 {
            0 => forge::initial(conv, b"!"),
            round => forge::segment(forge::header(Command::Push, conv, 1 + round, 0), &payload),
        }
    });
    let Flood { server, observer, traffic } = flood.await?;
    let test = "unvalidated_peers_share_one_memory_budget";
    let held = observer.peak_unvalidated;
    let row = Row::new("windows of unvalidated peers, filled behind a gap", test)
        .traffic(traffic, LIMIT, LIMIT)
        .at_most("MiB counted", (held as f64 / f64::from(1 << 20)).ceil(), (BUDGET >> 20) as f64);
    observer.finish(&server, row, BUDGET_MIB).await
}

pub(super) async fn initial_segments(setup: Setup) -> anyhow::Result<Row> {
    let mut rng = Rng::new(6);
    let sources = Sources::at_addresses(9, ADDRESSES)?;
    let flood = flood(setup, Profile::new(Service::Echo), sources, move |_| {
        forge::initial(rng.next_u32(), b"hello")
    });
    let Flood { server, observer, traffic } = flood.await?;
    let test = "honest_clients_connect_beside_20_000_forged_initial_segments_a_second";
    let row = Row::new("initial segments from 512 addresses", test).traffic(traffic, LIMIT, LIMIT);
    observer.finish(&server, row, BUDGET_MIB).await
}

/// To a server that has a key, which the sender has not.
pub(super) async fn garbage(setup: Setup) -> anyhow::Result<Row> {
    let mut rng = Rng::new(7);
    let sources = Sources::at_addresses(9, ADDRESSES)?;
    let flood =
        flood(setup, Profile::sealed("aes-128-gcm"), sources, move |_| forge::garbage(&mut rng));
    let Flood { server, observer, traffic } = flood.await?;
    let row = Row::new("garbage, aes-128-gcm", "malformed_datagrams_are_only_counted")
        .traffic(traffic, 0.0, 0.0);
    observer.finish(&server, row, SMALL_MIB).await
}

pub(super) async fn out_of_band(setup: Setup) -> anyhow::Result<Row> {
    const CONNECTIONS: u64 = 2_048;
    let payload = Rng::new(8).bytes(1_200);
    let sources = Sources::at_addresses(9, ADDRESSES)?;
    let profile = Profile { fec: true, ..Profile::new(Service::Echo) };
    let flood = flood(setup, profile, sources, move |sent| {
        let conv = 1 + (sent % CONNECTIONS) as u32;
        if sent < CONNECTIONS {
            forge::initial(conv, b"hello")
        } else {
            forge::out_of_band(conv, &payload)
        }
    });
    let Flood { server, observer, traffic } = flood.await?;
    let test = "out_of_band_datagrams_of_unvalidated_peers_are_dropped";
    let row =
        Row::new("out-of-band datagrams of unvalidated peers", test).traffic(traffic, LIMIT, LIMIT);
    observer.finish(&server, row, BUDGET_MIB).await
}

/// The shortest datagrams that open connections, from many ports of one address, to a server that
/// sends 64 KiB to each.
pub(super) async fn amplification(setup: Setup) -> anyhow::Result<Row> {
    let mut rng = Rng::new(9);
    let sources = Sources::at_ports(Ipv4Addr::new(127, 8, 0, 1), 500)?;
    // Few enough that each is answered.
    let setup = Setup { rate: setup.rate.min(500), ..setup };
    let flood = flood(setup, Profile::new(Service::Greeting), sources, move |_| {
        forge::initial(rng.next_u32(), b"!")
    });
    let Flood { server, observer, traffic } = flood.await?;
    let test = "amplification_limit_holds_across_ports_of_one_ip_address";
    let row = Row::new("initial segments from 500 ports of an address, server sends first", test)
        .traffic(traffic, LIMIT, LIMIT);
    // The application's writes to unvalidated peers are beyond their budget.
    let written = (MAX_CONNECTIONS * GREETING as u64) >> 20;
    observer.finish(&server, row, BUDGET_MIB + written).await
}
