//! Peers whose addresses are their own: they validate them, and then take what they can.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use kcpx::proto::{Command, Header, Segments, Sn};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forge;
use crate::honest::{Tally, connect};
use crate::rng::Rng;
use crate::server::{Process, Profile, Service};

/// `Limits::max_connections` of the server that one source tries to fill.
const PLACES: u32 = 1_000;
/// Clients of another address that connect when it has.
const NEWCOMERS: u64 = 10;
/// `Limits::memory` of the servers that peers fill, and a tenth more.
const MEMORY: usize = 32 << 20;
const MOST_MIB: f64 = 35.2;
/// Peers that fill it.
const FILLERS: u32 = 200;
/// Memory beside the connections: tables, socket buffers, honest clients.
const BESIDE_MIB: u64 = 16;
/// A connect of an honest client counts as served within this time.
const SERVED_WITHIN: Duration = Duration::from_secs(3);

/// Answers the pings of a received datagram, with a window of `wnd`.
async fn answer_pings(
    socket: &UdpSocket,
    server: SocketAddr,
    datagram: &[u8],
    wnd: u16,
) -> std::io::Result<()> {
    for (header, _) in Segments::new(datagram) {
        if header.command == Command::Push && header.len == 0 {
            let pong = Header { command: Command::Ack, frg: 0, wnd, una: Sn(0), ..header };
            socket.send_to(&forge::segment(pong, &[]), server).await?;
        }
    }
    Ok(())
}

/// One socket opens twice the connections that the server has places for, and answers their pings.
pub(super) async fn places(setup: Setup) -> anyhow::Result<Row> {
    let profile = Profile { max_connections: PLACES as usize, ..Profile::new(Service::Echo) };
    let mut server = Process::start(profile)?;
    let mut observer = Observer::start(&server, false)?;
    let (addr, mut attack) = (server.addr, JoinSet::new());
    attack.spawn(async move {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 10, 0, 1), 0)).await?;
        let (mut buffer, mut conv) = (vec![0; 2_048], 0);
        let mut opens = interval(Duration::from_millis(1));
        loop {
            tokio::select! {
                received = socket.recv(&mut buffer) => {
                    answer_pings(&socket, addr, &buffer[..received?], 128).await?;
                }
                _ = opens.tick(), if conv < 2 * PLACES => {
                    for _ in 0..20 {
                        conv += 1;
                        socket.send_to(&forge::initial(conv, b"!"), addr).await?;
                    }
                }
            }
        }
        #[expect(unreachable_code, reason = "it names the type")]
        std::io::Result::Ok(())
    });
    observer.watch(&mut server, setup.time.max(Duration::from_secs(1))).await?;
    let taken = server.counters()?.current_connections;
    let mut served = 0;
    let config = server.profile.config()?;
    for _ in 0..NEWCOMERS {
        let tally = Tally::new();
        let connected = timeout(SERVED_WITHIN, connect(addr, config.clone(), &tally)).await;
        served += u64::from(connected.is_ok_and(|connected| connected.is_ok()));
    }
    attack.shutdown().await;
    let test = "source_that_takes_all_it_can_leaves_places_for_others";
    let row = Row::new("one source opens 2,000 connections where 1,000 have places", test)
        .exactly("newcomers served", served, NEWCOMERS)
        .at_most("places taken", taken as f64, f64::from(PLACES / 2));
    observer.finish(&server, row, BESIDE_MIB).await
}

/// Opens a connection with a window of `wnd`, answers pings, and sends its data behind a gap, if it
/// has any.
async fn fill(
    server: SocketAddr,
    (conv, wnd): (u32, u16),
    data: Option<Vec<u8>>,
    setup: Setup,
) -> std::io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    sleep(Duration::from_millis(u64::from(conv) * 2)).await;
    socket.send_to(&forge::initial(conv, b"hello"), server).await?;
    let end = Instant::now() + setup.time;
    let (mut buffer, mut sn) = (vec![0; 2_048], 2);
    // All of them together keep to the rate.
    let mut sends = interval(Duration::from_secs(FILLERS.into()) / setup.rate.max(1) as u32);
    while Instant::now() < end {
        tokio::select! {
            received = timeout_at(end, socket.recv(&mut buffer)) => {
                let Ok(received) = received else { break };
                answer_pings(&socket, server, &buffer[..received?], wnd).await?;
            }
            _ = sends.tick(), if data.is_some() => {
                let header = forge::header(Command::Push, conv, sn, 0);
                let datagram = forge::segment(header, data.as_deref().unwrap_or_default());
                socket.send_to(&datagram, server).await?;
                sn = 2 + (sn - 1) % 1_000;
            }
        }
    }
    Ok(())
}

async fn fillers(
    setup: Setup,
    service: Service,
    (wnd, data): (u16, Option<Vec<u8>>),
    (name, test): (&str, &'static str),
) -> anyhow::Result<Row> {
    let mut server = Process::start(Profile { memory: MEMORY, ..Profile::new(service) })?;
    let mut observer = Observer::start(&server, true)?;
    let mut peers = JoinSet::new();
    for conv in 1..=FILLERS {
        peers.spawn(fill(server.addr, (conv, wnd), data.clone(), setup));
    }
    observer.watch(&mut server, setup.time).await?;
    while let Some(peer) = peers.join_next().await {
        peer??;
    }
    let held = observer.peak_memory as f64 / f64::from(1 << 20);
    let row = Row::new(name, test).at_most("MiB counted", held.ceil(), MOST_MIB);
    observer.finish(&server, row, MOST_MIB as u64 + BESIDE_MIB).await
}

/// Validated peers fill their windows behind a gap.
pub(super) async fn windows(setup: Setup) -> anyhow::Result<Row> {
    let name = "200 validated peers fill their windows behind a gap, 32 MiB";
    let test = "validated_peers_that_fill_their_windows_share_one_memory_limit";
    let data = Some(Rng::new(11).bytes(1_376));
    fillers(setup, Service::Echo, (128, data), (name, test)).await
}

/// Validated peers with a closed window, to a server that sends as fast as it can.
pub(super) async fn closed_windows(setup: Setup) -> anyhow::Result<Row> {
    let name = "200 validated peers with a closed window, server sends, 32 MiB";
    let test = "peers_with_a_closed_window_make_a_server_hold_no_more_than_the_limit";
    fillers(setup, Service::Pour, (0, None), (name, test)).await
}
