//! Single forged and reflected datagrams of a connection whose address pair the attacker has.

use std::time::Duration;

use anyhow::Context;
use kcpx::KcpStream;
use kcpx::proto::{Command, ControlType, Header, Segments, Sn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forge;
use crate::forwarder::{Conditions, Direction, Forwarder, Injector};
use crate::honest::echo;
use crate::rng::Rng;
use crate::running::Running;
use crate::server::{Process, Profile};

/// Buffers and tables of a server with one connection and honest clients.
const SMALL_MIB: u64 = 16;
/// Datagrams that are forged or reflected per second.
const PER_SECOND: u64 = 200;
/// Bytes of data in the forged datagram, in ten segments.
const FORGED: u64 = 100;
/// A stream comes to its end within so long.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A server and its client, between whom the attacker records and injects.
struct Pair {
    server: Process,
    path: Forwarder,
    injector: Injector,
    observer: Observer,
    client: KcpStream,
}

impl Pair {
    async fn start(cipher: &str) -> anyhow::Result<Self> {
        let server = Process::start(Profile::sealed(cipher))?;
        let path = Forwarder::start(server.addr, Conditions::recording()).await?;
        let observer = Observer::start(&server, false)?;
        let client = KcpStream::connect_with(path.addr()?, server.profile.config()?).await?;
        Ok(Self { server, injector: path.injector(), path, observer, client })
    }
}

/// Datagrams a second of the side that sends more of them, over so long. Begins once the answers to the latest
/// data have passed, at the latest after half a second.
async fn rate_of_a_side(
    observer: &mut Observer,
    server: &mut Process,
    injector: &Injector,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut before = injector.passed();
    for _ in 0..10 {
        sleep(Duration::from_millis(50)).await;
        let now = injector.passed();
        if std::mem::replace(&mut before, now) == now {
            break;
        }
    }
    observer.watch(server, time).await?;
    let after = injector.passed();
    Ok((after.0 - before.0).max(after.1 - before.1) as f64 / time.as_secs_f64())
}

/// The header of the latest segment with data in this direction.
fn latest_data(injector: &Injector, direction: Direction) -> anyhow::Result<Header> {
    let is_data = |header: &Header| header.command == Command::Push && header.len > 0;
    let has_data = |datagram: &[u8]| Segments::new(datagram).any(|(header, _)| is_data(&header));
    let recorded = injector.latest(direction, has_data).context("no data has passed")?;
    let segments = Segments::new(&recorded.datagram);
    segments.map(|(header, _)| header).find(is_data).context("no data in a datagram")
}

/// One datagram to the server with data that the client never sent: no `una` of the server is
/// possible then.
pub(super) async fn storm(setup: Setup) -> anyhow::Result<Row> {
    let Pair { mut server, injector, mut observer, mut client, path: _path } =
        Pair::start("null").await?;
    echo(&mut client, 3_000).await?;
    echo(&mut client, 100).await?;
    // The peer takes it for data, and then acknowledges what was never sent.
    let latest = latest_data(&injector, Direction::ToServer)?;
    let mut forged = Vec::new();
    for ahead in 1..=10 {
        let next = Header { sn: Sn(latest.sn.0.wrapping_add(ahead)), ..latest };
        forged.extend(forge::segment(next, &[3; FORGED as usize / 10]));
    }
    injector.inject(Direction::ToServer, &forged);
    // After a second without a valid `una` a side asks the peer for its state at the next datagram.
    observer.watch(&mut server, Duration::from_millis(1_500)).await?;
    let delivered = server.counters()?.delivered;
    client.write_all(b"hello").await?;
    observer.watch(&mut server, Duration::from_millis(500)).await?;
    let rate = rate_of_a_side(&mut observer, &mut server, &injector, setup.time).await?;
    let row = Row::new(
        "one forged datagram of data between two honest endpoints",
        "forged_data_that_contradicts_both_sides_causes_no_storm",
    )
    .exactly("bytes delivered, with the forged ones", delivered, 3_100 + FORGED)
    .at_most("datagrams a second of a side", rate, 10.0);
    drop(client);
    observer.finish(&server, row, SMALL_MIB).await
}

/// A FIN far ahead of the data, before the true one.
pub(super) async fn far_fin() -> anyhow::Result<Row> {
    const BYTES: usize = 200_000;
    let Pair { mut server, injector, observer, mut client, path: _path } =
        Pair::start("null").await?;
    echo(&mut client, BYTES / 2).await?;
    let header = latest_data(&injector, Direction::ToServer)?;
    let far = Header {
        command: Command::Control,
        frg: ControlType::Fin as u8,
        sn: Sn(header.sn.0.wrapping_add(10_000)),
        ..header
    };
    injector.inject(Direction::ToServer, &forge::segment(far, &[]));
    sleep(Duration::from_millis(50)).await;
    echo(&mut client, BYTES / 2).await?;
    let closed = timeout(END_WITHIN, async {
        client.shutdown().await?;
        client.read(&mut [0; 16]).await
    });
    let ended = matches!(closed.await, Ok(Ok(0)));
    let counters = server.counters()?;
    let row = Row::new(
        "one forged FIN far ahead, before the true one",
        "fin_that_contradicts_data_or_another_fin_is_ignored",
    )
    .exactly("bytes delivered", counters.delivered, BYTES as u64)
    .exactly("ends of stream at the server", counters.ended, 1)
    .exactly("at the client", u64::from(ended), 1);
    observer.finish(&server, row, SMALL_MIB).await
}

/// FINs, RSTs, ACKs and pings from the address of either end. Under a cipher their sender has no key;
/// without one they are RSTs of the connection, and their sender does not see the value to echo.
pub(super) async fn resets(setup: Setup, cipher: &'static str) -> anyhow::Result<Row> {
    let Pair { mut server, injector, mut observer, mut client, path: _path } =
        Pair::start(cipher).await?;
    echo(&mut client, 3_000).await?;
    let (mut rng, conv, forging) = (Rng::new(14), client.conv(), injector.clone());
    let is_sealed = cipher != "null";
    let running = Running::start(PER_SECOND, move || {
        let (sn, ts) = (rng.below(8) as u32, rng.next_u32());
        let datagram = match rng.below(4) {
            0 if is_sealed => forge::control(conv, ControlType::Fin, sn, ts),
            1 if is_sealed => forge::ack(conv, sn, ts),
            2 if is_sealed => forge::ping(conv, ts),
            _ => forge::control(conv, ControlType::Reset, sn, ts),
        };
        let to_server = rng.below(2) == 0;
        let direction = if to_server { Direction::ToServer } else { Direction::ToClient };
        forging.inject(direction, &datagram);
    });
    observer.watch(&mut server, setup.time / 2).await?;
    echo(&mut client, 3_000).await?;
    let rate = rate_of_a_side(&mut observer, &mut server, &injector, setup.time / 2).await?;
    running.stop()?;
    echo(&mut client, 3_000).await?;
    let delivered = server.counters()?.delivered;
    drop(client);
    let (attack, test) = match is_sealed {
        true => ("FINs, RSTs, ACKs and pings without the key", "wrong_key_datagrams_are_dropped"),
        false => (
            "RSTs of a connection with a guessed timestamp",
            "reset_is_valid_only_with_the_time_stamp_of_a_recent_segment",
        ),
    };
    let row = Row::new(format!("{attack}, {cipher}, 200 a second"), test)
        .exactly("bytes delivered", delivered, 9_000)
        .at_most("datagrams a second of an idle side", rate, 10.0);
    observer.finish(&server, row, SMALL_MIB).await
}

/// Datagrams of either end come back to it: the latest one at once, and under a cipher any other as well.
pub(super) async fn reflection(setup: Setup, cipher: &'static str) -> anyhow::Result<Row> {
    let Pair { mut server, injector, mut observer, mut client, path: _path } =
        Pair::start(cipher).await?;
    echo(&mut client, 3_000).await?;
    let (mut rng, reflecting, is_sealed) = (Rng::new(11), injector.clone(), cipher != "null");
    let running = Running::start(PER_SECOND, move || {
        let from_client = rng.below(2) == 0;
        let (sent, back) = match from_client {
            true => (Direction::ToServer, Direction::ToClient),
            false => (Direction::ToClient, Direction::ToServer),
        };
        let recorded = match is_sealed && rng.below(2) == 0 {
            true => reflecting.recorded(&mut rng).filter(|recorded| recorded.direction == sent),
            false => reflecting.latest(sent, |_| true),
        };
        if let Some(recorded) = recorded {
            reflecting.inject(back, &recorded.datagram);
        }
    });
    let mut sent = 3_000;
    let start = std::time::Instant::now();
    while start.elapsed() < setup.time {
        echo(&mut client, 500).await?;
        sent += 500;
        observer.watch(&mut server, Duration::from_millis(20)).await?;
    }
    let rate = rate_of_a_side(&mut observer, &mut server, &injector, setup.time).await?;
    let reflected = running.stop()?;
    echo(&mut client, 500).await?;
    let delivered = server.counters()?.delivered;
    drop(client);
    let row = Row::new(
        format!("{reflected} datagrams reflected to their sender, {cipher}"),
        "reflected_segment_of_any_of_its_transmissions_is_recognised",
    )
    .exactly("bytes delivered", delivered, sent + 500)
    .at_most("datagrams a second of an idle side", rate, PER_SECOND as f64 / 2.0 + 10.0);
    observer.finish(&server, row, SMALL_MIB).await
}
