//! Logs of connections (`Config::qlog`): what happened on the wire is in them.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio::io::AsyncWriteExt;

use super::fixtures::{CLIENT, Pair, SECOND, SERVER, pattern, push, read_pattern};
use super::paths::{add_path, second, two_paths};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::path::set::PathId;
use crate::stats::ConnectionStats;
use crate::testkit::folder::Folder;
use crate::testkit::link::LinkConfig;

const LEN: usize = 400_000;

fn logged(folder: &Folder) -> Config {
    Config::new().qlog(folder.path())
}

/// The events of `name`.
fn events<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["name"] == name).map(|record| &record["data"]).collect()
}

/// Numbers of the data segments in these packets.
fn numbers(packets: &[&Value]) -> Vec<u64> {
    let is_data = |packet: &&&Value| {
        packet["frames"].as_array().unwrap().iter().any(|frame| frame["frame_type"] == "push")
    };
    let packets = packets.iter().filter(is_data);
    let range = |packet: &&Value| {
        let first = packet["header"]["packet_number"].as_u64().unwrap();
        first..first + packet["count"].as_u64().unwrap_or(1)
    };
    packets.flat_map(range).collect()
}

/// Numbers that the ACK frames of these packets name.
fn acked(packets: &[&Value]) -> BTreeSet<u64> {
    let frames = packets.iter().flat_map(|packet| packet["frames"].as_array().unwrap());
    let ranges = frames.filter_map(|frame| frame["acked_ranges"].as_array()).flatten();
    ranges.flat_map(|range| range[0].as_u64().unwrap()..=range[1].as_u64().unwrap()).collect()
}

fn bytes(packets: &[&Value]) -> u64 {
    packets.iter().map(|packet| packet["raw"]["length"].as_u64().unwrap()).sum()
}

/// A transfer from the client to the server, and the end of both. Returns the client's statistics.
fn transfer(folder: &Folder, link: &LinkConfig) -> ConnectionStats {
    let mut pair =
        Pair::on(World::new(1, LinkConfig::delay(10_000)), &logged(folder), &logged(folder));
    pair.world.set_path(link.clone());
    let (client, mut server) = (&mut pair.client, pair.server);
    let stats = pair.world.finish(60 * SECOND, async {
        client.write_all(&pattern(LEN)).await.unwrap();
        read_pattern(&mut server, LEN).await;
        client.shutdown().await.unwrap();
        server.shutdown().await.unwrap();
        client.stats()
    });
    drop(server);
    pair.world.run_for(SECOND);
    pair.world.exit(CLIENT);
    pair.world.exit(SERVER);
    stats
}

#[test]
fn log_of_a_lossy_transfer_has_each_packet_loss_and_acknowledgement() {
    let folder = Folder::new();
    let link = LinkConfig { loss: 20_000, ..LinkConfig::delay(10_000) };
    let stats = transfer(&folder, &link);
    let (client, server) = (folder.records("-client.sqlog"), folder.records("-server.sqlog"));
    assert_eq!(folder.names().len(), 2);
    for (log, role) in [(&client, "client"), (&server, "server")] {
        assert_eq!(log[0]["qlog_format"], "JSON-SEQ");
        assert_eq!(log[0]["trace"]["vantage_point"]["type"], role);
        let times: Vec<_> = log[1..].iter().map(|event| event["time"].as_f64().unwrap()).collect();
        assert!(times.is_sorted() && times[0] == 0.0);
        assert_eq!(log[1]["name"], "connectivity:connection_started");
        assert_eq!(events(log, "connectivity:connection_state_updated").len(), 1);
        assert_eq!(events(log, "connectivity:connection_closed").len(), 1);
        assert_eq!(events(log, "loglevel:warning").len(), 0);
    }
    let sent = events(&client, "transport:packet_sent");
    let received = events(&server, "transport:packet_received");
    // 2 bytes opened the connection.
    let segments = 1 + LEN.div_ceil(1_376) as u64;
    let all: BTreeSet<_> = numbers(&sent).into_iter().collect();
    assert_eq!(all, (0..segments).collect());
    assert_eq!(numbers(&received).into_iter().collect::<BTreeSet<_>>(), all);
    assert!(numbers(&received).len() < numbers(&sent).len(), "some are lost");
    assert!(acked(&events(&client, "transport:packet_received")).is_superset(&all));
    assert!(acked(&events(&server, "transport:packet_sent")).is_superset(&all));
    let lost = events(&client, "recovery:packet_lost");
    let retransmit = &stats.retransmit;
    let by_timeout = lost.iter().filter(|lost| lost["trigger"] == "pto_expired").count() as u64;
    assert_eq!(by_timeout, retransmit.timeout);
    assert_eq!(lost.len() as u64, retransmit.fast + retransmit.early + retransmit.timeout);
    assert!(retransmit.fast > 0);
    // The FIN and its answer follow the statistics.
    assert!(bytes(&sent) >= stats.sent.datagram_bytes);
    assert!(bytes(&sent) < stats.sent.datagram_bytes + 200);
}

#[test]
fn log_shows_round_trip_and_phases_of_the_congestion_control() {
    let folder = Folder::new();
    let link = LinkConfig { rate: Some(1_000_000), ..LinkConfig::delay(10_000) };
    transfer(&folder, &link);
    let client = folder.records("-client.sqlog");
    let phases = events(&client, "recovery:congestion_state_updated");
    let phases: Vec<_> = phases.iter().map(|change| change["new"].as_str().unwrap()).collect();
    assert_eq!(phases[..3], ["unmodelled", "startup", "drain"], "{phases:?}");
    let metrics = events(&client, "recovery:metrics_updated");
    let values = |name: &str| -> Vec<f64> {
        metrics.iter().filter_map(|event| event.get(name)).map(|it| it.as_f64().unwrap()).collect()
    };
    assert!(values("min_rtt").iter().all(|rtt| (20.0..22.0).contains(rtt)));
    let rates = values("delivery_rate");
    assert!(rates.iter().any(|rate| (7e6..9e6).contains(rate)), "8 Mbit/s: {rates:?}");
    for name in
        ["smoothed_rtt", "congestion_window", "bytes_in_flight", "pacing_rate", "inflight_hi"]
    {
        assert!(!values(name).is_empty(), "{name}");
    }
}

/// Only the wall-clock time of the start differs.
#[test]
fn logs_of_two_equal_runs_are_equal() {
    let link = LinkConfig { loss: 20_000, ..LinkConfig::delay(10_000) };
    let run = || {
        let folder = Folder::new();
        transfer(&folder, &link);
        ["-client.sqlog", "-server.sqlog"].map(|end| folder.records(end)[1..].to_vec())
    };
    assert_eq!(run(), run());
}

#[test]
fn batch_of_full_segments_is_one_event_with_a_count() {
    let folder = Folder::new();
    // 0.25 ms: no model paces the segments.
    transfer(&folder, &LinkConfig::delay(250));
    let (client, server) = (folder.records("-client.sqlog"), folder.records("-server.sqlog"));
    let (sent, received) =
        (events(&client, "transport:packet_sent"), events(&server, "transport:packet_received"));
    let all: Vec<_> = (0..1 + LEN.div_ceil(1_376) as u64).collect();
    assert_eq!((numbers(&sent), numbers(&received)), (all.clone(), all));
    let runs: Vec<_> = sent.iter().filter(|packet| packet.get("count").is_some()).collect();
    assert!(!runs.is_empty());
    for run in runs {
        let count = run["count"].as_u64().unwrap();
        assert!(count >= 32);
        assert_eq!(run["raw"]["length"], count * 1_400);
    }
}

#[test]
fn peer_gets_a_log_only_once_it_is_validated() {
    let folder = Folder::new();
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &logged(&folder));
    for port in 1..100 {
        world.inject(([10, 0, 1, 1], port).into(), SERVER, &push(port.into(), 0, b"forged"));
    }
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.unvalidated, 99);
    world.exit(SERVER);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn migration_is_in_the_log() {
    use crate::crypto::{Cipher, Key};
    let folder = Folder::new();
    let key = Key::derive("a passphrase", "a salt");
    let cipher = Cipher::from_name("aes-256-gcm", &key).unwrap();
    let config = logged(&folder).cipher(cipher);
    let mut pair = Pair::new(&config, &config);
    let moved = addr(9);
    pair.world.move_to(CLIENT, moved);
    let (client, server) = (&mut pair.client, &mut pair.server);
    pair.world.finish(10 * SECOND, async {
        client.write_all(&pattern(10_000)).await.unwrap();
        read_pattern(server, 10_000).await;
    });
    pair.world.run_for(SECOND);
    assert_eq!(pair.server.peer_addr().unwrap(), moved);
    pair.world.exit(SERVER);
    let server = folder.records("-server.sqlog");
    let paths = events(&server, "connectivity:path_assigned");
    assert_eq!(paths.len(), 1);
    assert_eq!(paths[0]["path_remote"]["ip_v4"], moved.ip().to_string());
    assert_eq!(paths[0]["path_remote"]["port_v4"], moved.port());
}

/// The better path goes silent, and data leaves on the other one.
#[test]
fn change_to_another_path_is_in_the_log() {
    let folder = Folder::new();
    let config = super::migration::aead().qlog(folder.path());
    let mut pair = two_paths(1, [20, 60], &config);
    assert_eq!(add_path(&mut pair, second()).unwrap(), PathId(1));
    pair.world.run_for(2 * SECOND);
    let silent = LinkConfig { loss: 1_000_000, ..LinkConfig::delay(10_000) };
    for (from, to) in [(addr(CLIENT), addr(SERVER)), (addr(SERVER), addr(CLIENT))] {
        pair.world.set_link(from, to, silent.clone());
    }
    let (client, server) = (&mut pair.client, &mut pair.server);
    pair.world.finish(10 * SECOND, async {
        server.write_all(&pattern(10_000)).await.unwrap();
        read_pattern(client, 10_000).await;
    });
    pair.world.exit(SERVER);
    let server = folder.records("-server.sqlog");
    let paths = events(&server, "connectivity:path_assigned");
    assert_eq!(paths.len(), 1);
    assert_eq!(paths[0]["path_id"], "1");
    assert_eq!(paths[0]["path_remote"]["ip_v4"], second().ip().to_string());
}

/// A stranger that sends from forged addresses fills logs that wait for validation.
#[test]
fn memory_of_a_log_counts_towards_the_limit() {
    let held = |config: &Config| {
        let mut world = World::new(1, LinkConfig::delay(1_000));
        let listener = world.listener(SERVER, config);
        for round in 0..20 {
            for port in 1..50 {
                let peer = ([10, 0, 1, 1], port).into();
                world.inject(peer, SERVER, &push(port.into(), round, &[0; 10]));
            }
            world.run_for(SECOND / 100);
        }
        listener.stats().memory.unvalidated_bytes
    };
    let folder = Folder::new();
    let (without, with) = (held(&Config::new()), held(&logged(&folder)));
    // Each log has more than an event for each of 20 datagrams.
    assert!(with >= without + 49 * 20 * 100, "{without} bytes, {with} with a log");
}
