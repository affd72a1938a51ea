//! Which datagrams take places in FEC groups, and when a group is closed.

use std::collections::HashSet;
use std::io::ErrorKind;

use tokio::io::AsyncWriteExt;

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, greet, pattern, read_pattern};
use super::sim_world::{World, addr};
use crate::config::{Config, Redundancy};
use crate::core::segment::{Command, Header, Segments};
use crate::fec::{self, FecConfig, FecFlag, fec_flag};
use crate::testkit::link::LinkConfig;

fn with_fec(data: usize, parity: usize) -> Config {
    Config::new().redundancy(Redundancy::Fec(FecConfig::new(data, parity).unwrap()))
}

/// Numbers of the data segments of a KCP datagram.
fn pushes(datagram: &[u8]) -> Vec<u32> {
    let segments = Segments::new(datagram);
    let pushes =
        segments.filter(|(header, payload)| header.command == Command::Push && !payload.is_empty());
    pushes.map(|(header, _)| header.sn.0).collect()
}

/// Rules: W-160, W-162.
#[test]
fn fec_covers_datagrams_with_new_data_alone() {
    let config = with_fec(10, 1);
    let Pair { mut world, mut client, mut server, .. } = Pair::new(&config, &config);
    world.set_path(LinkConfig { loss: 100_000, ..LinkConfig::delay(10_000) });
    world.log();
    let len = 600_000;
    world.finish(MINUTE, async {
        let data = pattern(len);
        tokio::join!(
            async { client.write_all(&data).await.unwrap() },
            read_pattern(&mut server, len)
        );
    });
    let recovered = server.stats().fec.recovered_shards;
    assert!(recovered > 10, "{recovered}");
    let (mut seen, mut retransmitted, mut acks) = (HashSet::new(), 0, 0);
    for sent in world.log() {
        let from_client = sent.from == addr(CLIENT);
        match fec_flag(&sent.datagram) {
            FecFlag::Data => {
                assert!(from_client, "an ACK took a place in a group");
                let sns = pushes(&sent.datagram[fec::HEADER_LEN..]);
                let new = sns.into_iter().filter(|sn| seen.insert(*sn)).count();
                assert!(new > 0, "a datagram without new data took a place in a group");
            }
            FecFlag::Plain => {
                let sns = pushes(&sent.datagram);
                assert!(sns.iter().all(|sn| seen.contains(sn)), "new data without FEC");
                retransmitted += usize::from(from_client && !sns.is_empty());
                acks += usize::from(!from_client);
            }
            FecFlag::Parity => assert!(from_client),
            FecFlag::OutOfBand => unreachable!(),
        }
    }
    assert!(retransmitted > 3 && acks > 10, "{retransmitted} retransmissions, {acks} ACKs");
}

/// Sends `count` messages of `len` bytes, one each `interval`, and reads them.
fn exchange(pair: &mut Pair, count: usize, len: usize, interval: std::time::Duration) {
    for _ in 0..count {
        let Pair { world, client, server, .. } = pair;
        client.try_write(&pattern(len)).unwrap();
        world.run_for(interval);
        while server.try_read(&mut [0; 4_096]).is_ok_and(|len| len > 0) {}
    }
}

/// The datagrams of the client.
fn sent(pair: &Pair) -> Vec<Vec<u8>> {
    let sent = pair.world.log().into_iter().filter(|sent| sent.from == addr(CLIENT));
    sent.map(|sent| sent.datagram).collect()
}

/// FEC kinds of datagrams, with their lengths.
fn kinds_of(datagrams: &[Vec<u8>]) -> Vec<(FecFlag, usize)> {
    datagrams.iter().map(|datagram| (fec_flag(datagram), datagram.len())).collect()
}

/// The same of the datagrams of the client.
fn kinds(pair: &Pair) -> Vec<(FecFlag, usize)> {
    kinds_of(&sent(pair))
}

/// The first segment in a packet with FEC header.
fn first_header(packet: &[u8]) -> Header {
    Header::parse(&packet[fec::HEADER_LEN..]).unwrap()
}

/// A pair whose client has sent the groups from which a peer learns the layout.
fn learned(data: usize, parity: usize) -> Pair {
    let config = with_fec(data, parity);
    let mut pair = Pair::new(&config, &config);
    exchange(&mut pair, 120, 1_000, SECOND / 500);
    // Completes the open group.
    pair.world.run_for(SECOND);
    pair.world.log();
    pair
}

/// Rules: W-165, P-56.
#[test]
fn idle_group_is_closed_by_fillers_and_parity() {
    let mut pair = learned(6, 3);
    let before = pair.client.stats();
    // Fills the open group, which may hold a few earlier packets.
    loop {
        exchange(&mut pair, 1, 1_000, SECOND / 1_000);
        if kinds(&pair).iter().any(|(kind, _)| *kind == FecFlag::Parity) {
            break;
        }
    }
    assert_eq!(pair.client.stats().redundancy.fec_fillers_sent, before.redundancy.fec_fillers_sent);
    exchange(&mut pair, 4, 1_000, SECOND / 1_000);
    let data = sent(&pair);
    assert!(kinds_of(&data).iter().all(|(kind, len)| *kind == FecFlag::Data && *len > 1_000));
    pair.world.run_for(SECOND / 50);
    let sent = sent(&pair);
    let Header { una, wnd, .. } = first_header(data.last().unwrap());
    for filler in sent[..2].iter().map(|packet| first_header(packet)) {
        assert_eq!((filler.command, filler.una, filler.wnd), (Command::WindowUpdate, una, wnd));
    }
    let closing = kinds_of(&sent);
    let filler = (FecFlag::Data, 32);
    // Half of four packets is allowed: two fillers, and one parity packet of the longest.
    assert_eq!(closing[..2], [filler; 2], "{closing:?}");
    assert_eq!(closing.len(), 3, "{closing:?}");
    assert_eq!(closing[2].0, FecFlag::Parity);
    pair.world.run_for(SECOND);
    assert_eq!(kinds(&pair), [], "a group is closed once");
    assert_eq!(
        pair.client.stats().redundancy.fec_fillers_sent,
        before.redundancy.fec_fillers_sent + 2
    );
    let stats = pair.server.stats();
    assert_eq!((stats.fec.mismatched_shards, stats.fec.misplaced_shards), (0, 0));
}

/// Rule: W-168.
#[test]
fn slow_flow_is_sent_no_parity() {
    let mut pair = learned(5, 2);
    exchange(&mut pair, 10, 1_000, SECOND / 10);
    kinds(&pair);
    exchange(&mut pair, 50, 1_000, SECOND / 10);
    let sent = kinds(&pair);
    assert!(sent.iter().all(|(kind, _)| *kind != FecFlag::Parity), "{sent:?}");
    assert_eq!(sent.iter().filter(|(kind, _)| *kind == FecFlag::Data).count(), 50);
}

#[test]
fn larger_fec_groups_are_refused_to_peers_that_are_not_known_to_learn_them() {
    let fec = |data, parity| FecConfig::new(data, parity).unwrap();
    let other = Config::new().close_notify(false);
    let Pair { mut world, client, .. } = Pair::new(&with_fec(10, 3), &other);
    world.run_for(SECOND);
    let error = client.set_fec(fec(10, 4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let text = "FEC groups of 14 shards: a peer that is not known to be kcpx cannot change to \
                more than 13";
    assert_eq!(error.to_string(), text);
    client.set_fec(fec(5, 2)).unwrap();
    world.run_for(SECOND);
    assert!(client.set_fec(fec(5, 3)).unwrap_err().to_string().ends_with("more than 7"));
    client.set_fec(fec(4, 3)).unwrap();

    let Pair { mut world, client, .. } = Pair::new(&with_fec(10, 3), &Config::new());
    world.run_for(SECOND);
    client.set_fec(fec(3, 1)).unwrap();
    client.set_fec(fec(200, 56)).unwrap();
}

/// Layout and limit belong to the address.
#[test]
fn fec_groups_do_not_grow_by_another_connection_of_the_address() {
    let fec = |data, parity| FecConfig::new(data, parity).unwrap();
    let other = Config::new().close_notify(false);
    let mut pair = Pair::new(&with_fec(10, 3), &other);
    let Pair { world, endpoint, listener, client, .. } = &mut pair;
    let (second, _second) = world.finish(SECOND, greet(endpoint, listener));
    world.run_for(SECOND);
    client.set_fec(fec(5, 2)).unwrap();
    world.run_for(SECOND);
    assert!(second.set_fec(fec(10, 3)).unwrap_err().to_string().ends_with("more than 7"));
    let (third, _third) = world.finish(SECOND, greet(endpoint, listener));
    assert!(third.set_fec(fec(10, 3)).unwrap_err().to_string().ends_with("more than 7"));
    // The driver decides at once.
    client.set_fec(fec(3, 1)).unwrap();
    second.set_fec(fec(5, 2)).unwrap();
    world.run_for(SECOND);
    assert!(third.set_fec(fec(5, 1)).unwrap_err().to_string().ends_with("more than 4"));
}

#[test]
fn fec_groups_may_grow_before_anything_was_sent() {
    let fec = |data, parity| FecConfig::new(data, parity).unwrap();
    let other = Config::new().close_notify(false);
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let (_listener, endpoint) =
        (world.listener(SERVER, &other), world.endpoint(CLIENT, &with_fec(5, 2)));
    let client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    client.set_fec(fec(20, 5)).unwrap();
    client.try_write(b"hi").unwrap();
    world.run_for(SECOND);
    assert!(client.set_fec(fec(20, 6)).unwrap_err().to_string().ends_with("more than 25"));
}

/// A decoder that expects no layout, or another one, learns from whole groups.
#[test]
fn peer_without_the_same_configuration_learns_the_layout() {
    for (peer, interval) in [
        (Config::new(), SECOND / 500),
        (with_fec(10, 3), SECOND / 500),
        (with_fec(10, 3), SECOND / 10),
    ] {
        let mut pair = Pair::new(&with_fec(5, 2), &peer);
        exchange(&mut pair, 100, 1_000, interval);
        pair.world.set_path(LinkConfig { loss: 50_000, ..LinkConfig::delay(10_000) });
        exchange(&mut pair, 400, 1_000, SECOND / 500);
        let stats = pair.server.stats().fec;
        assert!(stats.recovered_shards > 5, "{interval:?}: {stats:?}");
        assert_eq!(stats.mismatched_shards, 0);
    }
}

#[test]
fn shard_whose_datagram_no_connection_takes_joins_no_group() {
    const KCP: usize = fec::HEADER_LEN;
    let mut pair = learned(6, 3);
    exchange(&mut pair, 1, 1_000, SECOND / 100);
    let Pair { world, listener, .. } = &mut pair;
    let sent = world.log().into_iter().filter(|sent| sent.from == addr(CLIENT));
    let mut shards = sent.map(|sent| sent.datagram).filter(|d| fec_flag(d) == FecFlag::Data);
    let shard = shards.next().unwrap();
    let altered = |alter: fn(&mut Vec<u8>)| {
        let mut shard = shard.clone();
        alter(&mut shard);
        shard
    };
    let refused = [
        altered(|shard| shard[KCP] ^= 1),
        altered(|shard| shard[KCP + 4] = 7),
        altered(|shard| {
            shard[KCP] ^= 1;
            shard[KCP + 4] = 7;
        }),
        altered(|shard| shard.truncate(KCP + 10)),
    ];
    let before = listener.stats();
    for shard in &refused {
        world.inject(addr(CLIENT), SERVER, shard);
        world.run_for(SECOND / 50);
        assert_eq!(listener.stats().fec, before.fec);
    }
    let (dropped, after) = (before.dropped, listener.stats().dropped);
    assert_eq!(after.no_connection - dropped.no_connection, 1);
    assert_eq!(after.malformed - dropped.malformed, 2);
    assert_eq!(after.truncated - dropped.truncated, 1);
    // The shard itself is a duplicate.
    world.inject(addr(CLIENT), SERVER, &shard);
    world.run_for(SECOND / 50);
    let duplicates = before.fec.duplicate_shards + before.fec.late_shards + 1;
    let fec = listener.stats().fec;
    assert_eq!(fec.duplicate_shards + fec.late_shards, duplicates);
}
