//! Repair symbols between whole endpoints, with and without a cipher.

use std::time::Duration;

use super::fixtures::{CLIENT, MINUTE, Pair, SERVER, pattern, read_pattern};
use super::sim_world::{World, addr};
use crate::config::{AutoRedundancy, Config, Redundancy};
use crate::core::segment::Command;
use crate::crypto::{Algorithm, Cipher, Key};
use crate::fec::FecConfig;
use crate::stats::RedundancyStats;
use crate::testkit::link::LinkConfig;

/// Sends `count` messages of 600 bytes, one each 5 ms, over a path of 50 ms that loses 5 %. Returns the
/// counters of the sender and the receiver.
fn transfer(seed: u64, config: &Config, count: usize) -> [RedundancyStats; 2] {
    // Reading begins after the last write.
    let config = &Config { send_buffer: 600 * count, ..config.clone() };
    let pair = Pair::on(World::new(seed, LinkConfig::delay(25_000)), config, config);
    pair.world.set_path(LinkConfig { loss: 50_000, ..LinkConfig::delay(25_000) });
    let Pair { mut world, client, mut server, endpoint: _endpoint, listener: _listener } = pair;
    let data = pattern(600 * count);
    for message in data.chunks(600) {
        client.try_write(message).unwrap();
        world.run_for(Duration::from_millis(5));
    }
    world.finish(MINUTE, read_pattern(&mut server, data.len()));
    stats(&mut world)
}

fn stats(world: &mut World) -> [RedundancyStats; 2] {
    [CLIENT, SERVER].map(|host| {
        let (_, conn) = world.driver_of(host).routing.conns.iter().next().unwrap();
        conn.redundancy_stats()
    })
}

fn check(config: &Config, name: &str) {
    for seed in 1..=3 {
        let config = config.clone().redundancy(Redundancy::Auto(AutoRedundancy::new()));
        let [sender, receiver] = transfer(seed, &config, 2_000);
        println!("{name}, seed {seed}: {sender:?} {receiver:?}");
        assert!(
            sender.repair_per_mille > 0 && sender.repair_symbols_sent > 100,
            "{name}, seed {seed}: {sender:?}"
        );
        assert!(receiver.recovered_segments > 20, "{name}, seed {seed}: {receiver:?}");
        assert_eq!(receiver.invalid_repair_symbols, 0, "{name}, seed {seed}");
    }
}

#[test]
fn repair_symbols_pass_neither_fec_nor_duplicates() {
    let auto = AutoRedundancy::new().stock(FecConfig::new(10, 3).unwrap());
    let mut config = Config::new().redundancy(Redundancy::Auto(auto));
    config.duplicates = 1;
    config.send_buffer = 600 * 2_000;
    let pair = Pair::new(&config, &config);
    pair.world.set_path(LinkConfig { loss: 400_000, ..LinkConfig::delay(25_000) });
    let Pair { mut world, client, mut server, endpoint: _endpoint, listener: _listener } = pair;
    world.log();
    let data = pattern(600 * 2_000);
    for message in data.chunks(600) {
        client.try_write(message).unwrap();
        world.run_for(Duration::from_millis(5));
    }
    world.finish(MINUTE, read_pattern(&mut server, data.len()));
    let log = world.log();
    let sent = log.iter().filter(|sent| sent.from == addr(CLIENT));
    let plain = sent.filter(|sent| sent.datagram[4] == Command::Repair as u8).count();
    let [sender, receiver] = stats(&mut world);
    println!("{sender:?} {receiver:?}");
    assert!(
        sender.repair_symbols_sent > 0 && plain as u64 == sender.repair_symbols_sent,
        "{plain} of {}",
        sender.repair_symbols_sent
    );
    assert_eq!(receiver.invalid_repair_symbols, 0);
}

#[test]
fn repair_symbols_recover_segments_with_any_cipher() {
    let key = Key::derive("a passphrase", "a salt");
    check(&Config::new(), "no cipher");
    for algorithm in [Algorithm::Null, Algorithm::Salsa20, Algorithm::Aes128Gcm] {
        let cipher = Cipher::from_name(algorithm.name(), &key).unwrap();
        check(&Config::new().cipher(cipher), algorithm.name());
    }
}
