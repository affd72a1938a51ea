//! Data that arrives before the initial segment of its connection, which is late or lost.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, pattern, push, read_pattern};
use super::sim_network::Fate;
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, Config, Timing};
use crate::core::segment::{Command, Header, Segments};
use crate::core::seq::Ts;
use crate::crypto::{Cipher, Key};
use crate::fec::FecConfig;
use crate::testkit::link::LinkConfig;

const PEER: u8 = 9;
const RTT: u64 = 50_000;
/// The first time-out of a client that has measured no round trip, and its interval.
const RTO: u64 = 200_000 + 100_000;

/// Microseconds from the connect until 256 KiB have arrived, and the datagrams that came early.
fn transfer(client: &Config, server: &Config, fate: Option<Fate>) -> (u64, u64) {
    let mut world = World::new(1, LinkConfig::delay(RTT / 2));
    let listener = world.listener(SERVER, server);
    let endpoint = world.endpoint(CLIENT, client);
    world.set_fates(CLIENT, fate);
    world.finish(MINUTE, async {
        let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
        let write = async { client.write_all(&pattern(256 << 10)).await.unwrap() };
        let read = async {
            let (mut server, _) = listener.accept().await.unwrap();
            read_pattern(&mut server, 256 << 10).await;
        };
        tokio::join!(write, read);
    });
    let time = world.elapsed();
    world.run_for(2 * SECOND);
    assert!(world.driver_of(SERVER).early.deadline().is_none());
    assert_eq!((listener.stats().passive_opens, listener.stats().unvalidated_bytes), (1, 0));
    (time, listener.stats().early_datagrams)
}

/// Clients, the last one with the timing and the ACKs of kcp-go.
fn clients() -> [Config; 3] {
    let cipher = Cipher::from_name("aes-128-gcm", &Key::derive("a passphrase", "salt")).unwrap();
    let mut stock = Config::new().timing(Timing::NORMAL).ack_policy(AckPolicy::Interval);
    stock.kcp.close_notify = false;
    [Config::new(), Config::new().cipher(cipher), stock]
}

#[test]
fn initial_segment_that_is_late_or_lost_costs_no_retransmission_of_the_rest() {
    for client in clients() {
        let server = Config::new().cipher(client.cipher.clone());
        let (clean, early) = transfer(&client, &server, None);
        assert_eq!(early, 0);
        let (late, early_late) = transfer(&client, &server, Some(Fate::Late(20_000)));
        let (lost, early_lost) = transfer(&client, &server, Some(Fate::Lost));
        println!("clean {clean} us, late {late} us, lost {lost} us");
        assert!(late <= clean * 12 / 10 + RTT, "{late} for {clean}");
        assert!(lost <= RTO + clean + RTT, "{lost} for {clean}");
        assert!(early_late >= 31 && early_lost >= 31, "{early_late} and {early_lost}");
    }
}

#[test]
fn initial_segment_that_is_lost_is_recovered_by_fec() {
    let fec = FecConfig::new(10, 3).unwrap();
    for client in clients() {
        let (client, server) = (client.clone().fec(fec), Config::new().cipher(client.cipher));
        let server = server.fec(fec);
        let (clean, _) = transfer(&client, &server, None);
        let (late, _) = transfer(&client, &server, Some(Fate::Late(20_000)));
        let (lost, early) = transfer(&client, &server, Some(Fate::Lost));
        println!("clean {clean} us, late {late} us, lost {lost} us, {early} early");
        assert!(late <= clean * 12 / 10 + RTT, "{late} for {clean}");
        assert!(lost <= clean * 12 / 10 + RTT, "{lost} for {clean}");
        assert!(early >= 9, "{early}");
    }
}

#[test]
fn initial_segment_is_recovered_only_with_the_number_of_data_packets_that_the_client_has() {
    let server = Config::new().fec(FecConfig::new(10, 3).unwrap());
    for (data, parity, recovers) in [(10, 1, true), (10, 7, true), (5, 5, false), (20, 6, false)] {
        let client = Config::new().fec(FecConfig::new(data, parity).unwrap());
        let (clean, _) = transfer(&client, &server, None);
        let (lost, _) = transfer(&client, &server, Some(Fate::Lost));
        assert_eq!(lost <= clean * 12 / 10 + RTT, recovers, "{data} + {parity}: {lost}");
    }
}

#[test]
fn first_window_of_any_order_is_delivered_once_its_initial_segment_is_there() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &Config::new());
    world.port(PEER);
    let data = pattern(128 * 1_000);
    for sn in (0..128).rev() {
        let at = sn as usize * 1_000;
        world.inject(addr(PEER), SERVER, &push(7, sn, &data[at..at + 1_000]));
    }
    let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.finish(SECOND / 10, read_pattern(&mut stream, data.len()));
    world.run_for(SECOND / 10);
    let una = world.arrived(PEER).iter().flat_map(|d| Segments::new(d)).map(|(h, _)| h.una.0).max();
    assert_eq!((una, listener.stats().early_datagrams), (Some(128), 127));
}

#[test]
fn early_arrivals_of_an_earlier_connection_or_of_long_ago_are_not_delivered() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &Config::new());
    world.port(PEER);
    let early = |conv: u32, ts: u32| {
        let mut datagram = push(conv, 1, b"early");
        let header = Header::parse(&datagram).unwrap();
        let mut stamped = Vec::new();
        Header { ts: Ts(ts), ..header }.emit(&mut stamped);
        stamped.extend(datagram.split_off(24));
        stamped
    };
    // Another origin of timestamps.
    world.inject(addr(PEER), SERVER, &early(1, 500_000));
    // Another connection.
    world.inject(addr(PEER), SERVER, &early(2, 70));
    // No data of a first window.
    world.inject(addr(PEER), SERVER, &push(1, 128, b"far"));
    world.inject(addr(PEER), SERVER, &push(1, 1, b""));
    world.run_for(SECOND / 10);
    let (mut first, _) = {
        world.inject(addr(PEER), SERVER, &push(1, 0, b"first"));
        world.finish(SECOND, listener.accept()).unwrap()
    };
    assert_eq!(world.finish(SECOND / 10, first.read_chunk()).unwrap(), "first");
    world.run_for(SECOND);
    assert!(world.driver_of(SERVER).early.deadline().is_none(), "too long ago");
    world.inject(addr(PEER), SERVER, &push(2, 0, b"second"));
    let (mut second, _) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!(world.finish(SECOND / 10, second.read_chunk()).unwrap(), "second");
    world.run_for(SECOND / 10);
    assert_eq!(listener.stats().early_datagrams, 0);
    assert_eq!((first.stats().received_segments, second.stats().received_segments), (1, 1));
}

#[test]
fn early_arrivals_of_two_connections_of_an_address_are_kept_apart() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &Config::new());
    world.port(PEER);
    for conv in [1, 2] {
        world.inject(addr(PEER), SERVER, &push(conv, 1, &[conv as u8; 3]));
    }
    for conv in [2, 1] {
        world.inject(addr(PEER), SERVER, &push(conv, 0, &[conv as u8; 3]));
        let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
        let mut data = [0; 6];
        world.finish(SECOND / 10, stream.read_exact(&mut data)).unwrap();
        assert_eq!(data, [conv as u8; 6]);
    }
    world.run_for(2 * SECOND);
    assert_eq!(listener.stats().early_datagrams, 2);
}

#[test]
fn early_arrivals_of_unvalidated_peers_stay_within_the_memory_budget() {
    let fec = FecConfig::new(3, 2).unwrap();
    for config in [Config::new(), Config::new().fec(fec)] {
        let mut config = config;
        config.limits.unvalidated_memory = 1 << 20;
        let mut world = World::new(1, LinkConfig::delay(1_000));
        let listener = world.listener(SERVER, &config);
        for host in 0..2_000_u32 {
            let from = SocketAddr::from(([172, 16, (host >> 8) as u8, host as u8], 5_000));
            for sn in 1..5 {
                // The third one is parity, of nothing.
                let segment = push(host, if sn == 3 { 77 } else { sn }, &[1; 1_000]);
                let mut packet = Vec::new();
                if config.fec.is_some() {
                    packet.extend(sn.to_le_bytes());
                    packet.extend(if sn == 3 { [0xF2, 0, 2, 4] } else { [0xF1, 0, 2, 4] });
                }
                packet.extend(segment);
                world.inject(from, SERVER, &packet);
            }
            world.run_for(SECOND / 10_000);
            let memory = world.driver_of(SERVER).unvalidated.memory();
            assert!(memory <= 1 << 18, "{memory} bytes, more than the pool");
        }
        assert!(world.driver_of(SERVER).unvalidated.memory() > 100_000);
        // Nobody is kept out by them.
        let endpoint = world.endpoint(CLIENT, &config);
        world.finish(SECOND, super::fixtures::greet(&endpoint, &listener));
        world.run_for(2 * SECOND);
        assert_eq!(listener.stats().unvalidated_bytes, 0);
        let commands = world.log().into_iter().filter(|sent| sent.from == addr(SERVER));
        let convs = commands.filter_map(|sent| Header::parse(&sent.datagram).ok());
        assert!(convs.into_iter().all(|h| h.command != Command::Ack || h.conv > 2_000));
    }
}

#[test]
fn parity_after_the_last_attempt_is_not_held() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &Config::new().fec(FecConfig::new(2, 2).unwrap()));
    let packet = |seqid: u32, flag: u8, sn: u32| {
        let mut packet = seqid.to_le_bytes().to_vec();
        packet.extend([flag, 0, 2, 4]);
        packet.extend(push(7, sn, &[1; 1_000]));
        packet
    };
    world.inject(addr(PEER), SERVER, &packet(1, 0xF1, 1));
    world.run_for(SECOND / 100);
    let mut memory = vec![world.driver_of(SERVER).unvalidated.memory()];
    for _ in 0..20 {
        // It recovers nothing that could be an initial segment.
        world.inject(addr(PEER), SERVER, &packet(2, 0xF2, 5_000));
        world.run_for(SECOND / 100);
        memory.push(world.driver_of(SERVER).unvalidated.memory());
    }
    let grown = memory.windows(2).filter(|pair| pair[1] > pair[0]).count();
    assert_eq!(grown, 4, "{memory:?}");
    assert_eq!(listener.stats().passive_opens, 0);
}
