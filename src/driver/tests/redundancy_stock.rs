//! Automatic redundancy towards peers of other implementations: the configured FEC layout, and the datagrams
//! that they get.

use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::fixtures::{CLIENT, MINUTE, Pair, SERVER, pattern};
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, AutoRedundancy, Config, Redundancy};
use crate::core::segment::{Command, Segments};
use crate::driver::tests::sim_network::Sent;
use crate::fec::{self, FecConfig, FecFlag, fec_flag};
use crate::testkit::link::LinkConfig;

fn auto(stock: Option<FecConfig>) -> Config {
    let mut auto = AutoRedundancy::new();
    auto.stock = stock;
    Config::new().redundancy(Redundancy::Auto(auto))
}

fn with_layout(data: usize, parity: usize) -> Config {
    auto(Some(FecConfig::new(data, parity).unwrap()))
}

/// A peer without CONTROL, like kcp-go with ACKs without delay.
fn stock() -> Config {
    Config::new().close_notify(false).ack_policy(AckPolicy::Immediate)
}

/// A path of 50 ms from the beginning, since a growing delay would show a queue.
fn pair(client: &Config, server: &Config) -> Pair {
    Pair::on(World::new(1, LinkConfig::delay(25_000)), client, server)
}

/// Sends `count` messages of 1 KiB, one each 10 ms, over a path of 50 ms; returns all datagrams.
fn transfer(pair: &mut Pair, loss: u32, count: usize) -> Vec<Sent> {
    let Pair { world, client, server, .. } = pair;
    world.set_path(LinkConfig { loss, ..LinkConfig::delay(25_000) });
    world.log();
    let data = pattern(1_024 * count);
    let (mut received, mut buffer) = (Vec::new(), vec![0; 65_536]);
    for message in data.chunks(1_024) {
        client.try_write(message).unwrap();
        world.run_for(Duration::from_millis(10));
        while let Ok(len @ 1..) = server.try_read(&mut buffer) {
            received.extend_from_slice(&buffer[..len]);
        }
    }
    let mut rest = vec![0; data.len() - received.len()];
    world.finish(MINUTE, server.read_exact(&mut rest)).unwrap();
    received.append(&mut rest);
    assert!(received == data, "other bytes than were sent");
    world.log()
}

/// Data shards, parity, and datagrams without FEC header that the client sent.
fn kinds(log: &[Sent]) -> [usize; 3] {
    let count = |kind| {
        let ours = log.iter().filter(|sent| sent.from == addr(CLIENT));
        ours.filter(|sent| fec_flag(&sent.datagram) == kind).count()
    };
    [FecFlag::Data, FecFlag::Parity, FecFlag::Plain].map(count)
}

/// The client's datagrams caused no error, and no answer but ACKs, at most one for each segment.
fn check_view(pair: &mut Pair, log: &[Sent]) {
    let (mut pushes, mut acks) = (0, 0);
    for sent in log {
        let skip = if fec_flag(&sent.datagram) == FecFlag::Data { fec::HEADER_LEN } else { 0 };
        if fec_flag(&sent.datagram) == FecFlag::Parity {
            continue;
        }
        for (header, _) in Segments::new(&sent.datagram[skip..]) {
            if sent.from == addr(CLIENT) {
                let filler = header.command == Command::WindowUpdate && skip > 0;
                assert!(header.command == Command::Push || filler, "{header:?}");
                pushes += usize::from(header.command == Command::Push);
            } else {
                assert_eq!(header.command, Command::Ack, "{header:?}");
                acks += 1;
            }
        }
    }
    // The receiver of the tests sends the ACK of a segment behind a gap twice.
    assert!(acks <= 2 * pushes, "{acks} ACKs of {pushes} segments");
    let stats = pair.server.stats();
    assert_eq!(stats.fec.mismatched_shards, 0, "{stats:?}");
    let driver = pair.world.driver_of(SERVER).stats;
    let errors = [driver.dropped.malformed, driver.dropped.truncated, driver.dropped.no_connection];
    assert_eq!(errors, [0; 3]);
    assert_eq!(pair.client.stats().anomalies.invalid_acks, 0);
}

#[test]
fn auto_redundancy_sends_the_stock_layout_to_a_peer_without_repair_symbols() {
    for (loss, limit) in [(0, 1.50), (10_000, 1.55), (50_000, 1.60)] {
        let mut pair = pair(&with_layout(5, 2), &stock());
        check_view_of(&mut pair, loss, 300);
        let log = check_view_of(&mut pair, loss, 2_000);
        let [data, parity, plain] = kinds(&log);
        let bytes = log.iter().filter(|sent| sent.from == addr(CLIENT));
        let bytes: usize = bytes.map(|sent| sent.datagram.len() + 28).sum();
        let wire = bytes as f64 / (2_000.0 * 1_024.0);
        let recovered = pair.server.stats().fec.recovered_shards;
        println!("{loss}: {data} data, {parity} parity, {plain} plain, {wire:.3}, {recovered}");
        assert!((1_990..=2_010).contains(&(data - fillers(&log))), "{data} with new data");
        assert!(wire < limit && recovered >= u64::from(loss) * 2_000 / 1_000_000 / 2, "{wire}");
    }
}

fn check_view_of(pair: &mut Pair, loss: u32, count: usize) -> Vec<Sent> {
    let log = transfer(pair, loss, count);
    check_view(pair, &log);
    log
}

fn fillers(log: &[Sent]) -> usize {
    let ours = log.iter().filter(|sent| sent.from == addr(CLIENT));
    let data = ours.filter(|sent| fec_flag(&sent.datagram) == FecFlag::Data);
    data.filter(|sent| sent.datagram.len() == fec::HEADER_LEN + 24).count()
}

#[test]
fn auto_redundancy_sends_no_fec_without_a_layout() {
    let mut pair = pair(&auto(None), &stock());
    let log = check_view_of(&mut pair, 100_000, 1_000);
    let [data, parity, _] = kinds(&log);
    assert_eq!((data, parity), (0, 0));
}

#[test]
fn auto_redundancy_takes_repair_symbols_and_no_fec_towards_kcpx() {
    let config = with_layout(10, 3);
    let mut pair = pair(&config, &config);
    transfer(&mut pair, 50_000, 300);
    let log = transfer(&mut pair, 50_000, 1_000);
    let [data, parity, _] = kinds(&log);
    assert_eq!((data, parity), (0, 0));
    let (_, conn) = pair.world.driver_of(CLIENT).routing.conns.iter().next().unwrap();
    assert!(conn.redundancy_stats().recovered_by_peer_segments > 20);
}
