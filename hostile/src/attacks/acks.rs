//! Peers that validate their address and answer pings, but acknowledge no data, or all of it.

use std::net::SocketAddr;
use std::time::Duration;

use kcpx::proto::{Command, Header, Segments, Sn};
use tokio::net::UdpSocket;

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forge;
use crate::server::{Process, Profile, Service};

const PEERS: u32 = 50;
/// The window that each of them advertises, segments: no less than the server's send window.
const WINDOW: u16 = 1_024;
/// The longest datagram.
const MTU: u64 = 1_400;
/// Bytes that may be sent to all of them beyond their windows.
const BESIDE: u64 = 6_000_000;

/// To a server that sends as fast as it can.
pub(super) async fn none(setup: Setup) -> anyhow::Result<Row> {
    let mut server = Process::start(Profile::new(Service::Pour))?;
    let mut observer = Observer::start(&server, true)?;
    let mut peers = Vec::new();
    for conv in 1..=PEERS {
        peers.push(tokio::spawn(draw(server.addr, conv, setup.time)));
    }
    observer.watch(&mut server, setup.time).await?;
    let mut drawn = 0;
    for peer in peers {
        drawn += peer.await??;
    }
    let bound = u64::from(PEERS) * u64::from(WINDOW) * MTU + BESIDE;
    let row = Row::new(
        "50 peers that answer pings and acknowledge nothing",
        "peers_that_answer_pings_and_acknowledge_nothing_draw_their_windows",
    )
    .at_most("MB drawn", drawn as f64 / 1e6, (bound as f64 / 1e6).round());
    // The window and the send buffer of each connection, and of the honest clients.
    observer.finish(&server, row, 160).await
}

/// The most bytes that leave after a timeout: 32 segments.
const INITIAL_WINDOW: f64 = 32.0 * 1_400.0;
/// Between two datagrams of that peer.
const UNA_INTERVAL: Duration = Duration::from_millis(1);

/// A peer that acknowledges everything by `una` and nothing by an ACK, a thousand times a second.
pub(super) async fn una_alone(setup: Setup) -> anyhow::Result<Row> {
    let mut server = Process::start(Profile::new(Service::Pour))?;
    let mut observer = Observer::start(&server, true)?;
    let peer = tokio::spawn(acknowledge_all(server.addr, setup.time));
    observer.watch(&mut server, setup.time).await?;
    let drawn = peer.await??;
    // The timeout is at least 30 ms, and doubles up to 250 ms.
    let timeouts = 4.0 + setup.time.as_secs_f64() / 0.25;
    let bound = f64::from(WINDOW) * MTU as f64 + timeouts * INITIAL_WINDOW;
    let row = Row::new(
        "a peer that acknowledges by una alone, 24 kB a second",
        "una_alone_draws_an_initial_window_per_timeout",
    )
    .at_most("kB drawn", drawn as f64 / 1e3, (bound / 1e3).round());
    observer.finish(&server, row, 16).await
}

/// Returns how many bytes the server sent.
async fn acknowledge_all(server: SocketAddr, time: Duration) -> anyhow::Result<u64> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    let conv = 1;
    socket.send_to(&forge::initial(conv, b"hello"), server).await?;
    let end = tokio::time::Instant::now() + time;
    let mut interval = tokio::time::interval(UNA_INTERVAL);
    let (mut drawn, mut una, mut buffer) = (0, Sn(0), vec![0; 2_048]);
    while tokio::time::Instant::now() < end {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                let (len, _) = received?;
                drawn += len as u64;
                for (header, _) in Segments::new(&buffer[..len]) {
                    if header.command == Command::Push && header.len == 0 {
                        let pong = Header { command: Command::Ack, wnd: WINDOW, una, ..header };
                        socket.send_to(&forge::segment(pong, &[]), server).await?;
                    } else if header.command == Command::Push && header.sn.since(una) >= 0 {
                        una = header.sn.advance(1);
                    }
                }
            }
            _ = interval.tick() => {
                let header = forge::header(Command::WindowUpdate, conv, 0, 0);
                let header = Header { wnd: WINDOW, una, ..header };
                socket.send_to(&forge::segment(header, &[]), server).await?;
            }
        }
    }
    Ok(drawn)
}

/// Returns how many bytes the server sent to one peer.
async fn draw(server: SocketAddr, conv: u32, time: Duration) -> std::io::Result<u64> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.send_to(&forge::initial(conv, b"hello"), server).await?;
    let end = tokio::time::Instant::now() + time;
    let (mut drawn, mut buffer) = (0, vec![0; 2_048]);
    while let Ok(received) = tokio::time::timeout_at(end, socket.recv_from(&mut buffer)).await {
        let (len, _) = received?;
        drawn += len as u64;
        for (header, _) in Segments::new(&buffer[..len]) {
            if header.command == Command::Push && header.len == 0 {
                let pong = Header { command: Command::Ack, wnd: WINDOW, una: Sn(0), ..header };
                socket.send_to(&forge::segment(pong, &[]), server).await?;
            }
        }
    }
    Ok(drawn)
}
