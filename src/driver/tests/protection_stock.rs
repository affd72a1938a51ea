//! Automatic protection towards peers of other implementations: FEC to those that are known to decode
//! it, and what they see of it.

use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::fixtures::{CLIENT, MINUTE, Pair, SERVER, pattern};
use super::sim_world::addr;
use crate::config::{AckPolicy, AutoProtection, Config, Protection};
use crate::core::segment::{Command, Segments};
use crate::driver::tests::sim_network::Sent;
use crate::fec::{self, FecConfig, FecFlag, fec_flag};
use crate::testkit::link::LinkConfig;

fn auto(decode: bool) -> Config {
    let auto = AutoProtection::new().peers_decode_fec(decode);
    Config::new().protection(Protection::Auto(auto))
}

/// A peer without CONTROL, as kcp-go is with ACKs without delay.
fn stock() -> Config {
    Config::new().close_notify(false).ack_policy(AckPolicy::Immediate)
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

/// What the client sent caused no error, and no answer but ACKs, at most one for each segment.
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
    let probes = pair.client.stats().protection.fec_probes_answered as usize;
    // The receiver of the tests sends the ACK of a segment behind a gap twice.
    assert!(acks <= 2 * (pushes + probes), "{acks} ACKs of {pushes} segments");
    let stats = pair.server.stats();
    assert_eq!(stats.fec.mismatched_shards, 0, "{stats:?}");
    let driver = pair.world.driver_of(SERVER).stats;
    let errors = [driver.dropped_malformed, driver.dropped_truncated, driver.dropped_no_connection];
    assert_eq!(errors, [0; 3]);
    assert_eq!(pair.client.stats().invalid_acks, 0);
}

#[test]
fn auto_protection_sends_fec_to_a_peer_that_is_configured_to_decode_it() {
    for (loss, limit) in [(10_000, 1.35), (50_000, 1.52), (100_000, 1.52)] {
        let mut pair = Pair::new(&auto(true), &stock());
        let learning = transfer(&mut pair, loss, 1_000);
        assert_eq!(kinds(&learning[..50])[0], 0, "FEC before the loss is known");
        check_view(&mut pair, &learning);
        let log = transfer(&mut pair, loss, 2_000);
        check_view(&mut pair, &log);
        let [data, parity, plain] = kinds(&log);
        let bytes = log.iter().filter(|sent| sent.from == addr(CLIENT));
        let bytes: usize = bytes.map(|sent| sent.datagram.len() + 28).sum();
        let wire = bytes as f64 / (2_000.0 * 1_024.0);
        let recovered = pair.server.stats().fec.recovered_shards;
        println!("{loss}: {data} data, {parity} parity, {plain} plain, {wire:.3}, {recovered}");
        assert!((3_990..=4_010).contains(&(data - fillers(&log))), "halves: {data}");
        assert!(wire < limit && recovered > u64::from(loss) * 3_000 / 1_000_000 / 2);
        assert!(pair.client.stats().protection.fec_probes_answered > 0);
    }
}

fn fillers(log: &[Sent]) -> usize {
    let ours = log.iter().filter(|sent| sent.from == addr(CLIENT));
    let data = ours.filter(|sent| fec_flag(&sent.datagram) == FecFlag::Data);
    data.filter(|sent| sent.datagram.len() == fec::HEADER_LEN + 24).count()
}

#[test]
fn auto_protection_sends_no_fec_to_a_peer_that_is_not_known_to_decode_it() {
    let mut pair = Pair::new(&auto(false), &stock());
    let log = transfer(&mut pair, 100_000, 1_000);
    check_view(&mut pair, &log);
    let [data, parity, _] = kinds(&log);
    assert_eq!((data, parity), (0, 0));
}

#[test]
fn auto_protection_sends_fec_to_a_peer_that_sends_it() {
    let peer = stock().fec(FecConfig::new(10, 3).unwrap());
    let mut pair = Pair::new(&auto(false), &peer);
    // Anything that the peer writes has a FEC header.
    pair.server.try_write(b"hello").unwrap();
    let log = transfer(&mut pair, 50_000, 1_500);
    let [data, parity, _] = kinds(&log);
    println!("{data} {parity}");
    assert!(data > 2_000 && parity > 500, "{data} and {parity}");
    assert!(pair.server.stats().fec.recovered_shards > 50);
}

#[test]
fn auto_protection_ends_fec_and_halves_towards_a_peer_that_decodes_none() {
    let mut peer = stock();
    peer.fec_decode = false;
    let mut pair = Pair::new(&auto(true), &peer);
    transfer(&mut pair, 10_000, 2_000);
    assert_eq!(pair.client.stats().protection.fec_disabled, 1);
    let log = transfer(&mut pair, 10_000, 500);
    let [data, parity, plain] = kinds(&log);
    assert!((data, parity) == (0, 0) && plain < 600, "{data} {parity} {plain}");
}

#[test]
fn auto_protection_takes_repair_symbols_and_no_fec_towards_kcpx() {
    let config = auto(true).fec(FecConfig::new(10, 3).unwrap());
    let mut pair = Pair::new(&config, &config);
    transfer(&mut pair, 50_000, 300);
    let log = transfer(&mut pair, 50_000, 1_000);
    let [data, parity, _] = kinds(&log);
    assert_eq!((data, parity), (0, 0));
    let (_, conn) = pair.world.driver_of(CLIENT).conns.iter().next().unwrap();
    assert!(conn.protection_stats().recovered_by_peer_segments > 20);
}

#[test]
fn auto_protection_with_a_configured_layout_sends_a_part_of_its_parity() {
    let mut pair = Pair::new(&auto(true).fec(FecConfig::new(10, 5).unwrap()), &stock());
    transfer(&mut pair, 0, 500);
    let [data, parity, _] = kinds(&transfer(&mut pair, 0, 500));
    assert!(data > 490 && parity <= 10, "{data} {parity}");
    transfer(&mut pair, 50_000, 1_000);
    let [data, parity, _] = kinds(&transfer(&mut pair, 50_000, 1_000));
    let percent = parity * 100 / data;
    assert!((28..=42).contains(&percent), "{data} {parity}");
}
