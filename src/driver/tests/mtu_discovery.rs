//! PMTU black holes (RFC 8899 4.3) below whole endpoints.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::runtime::Builder;

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, pattern, read_pattern};
use super::sim_world::addr;
use crate::config::{Config, Redundancy};
use crate::core::segment::{Command, Segments};
use crate::crypto::{Algorithm, Cipher, Key};
use crate::fec::FecConfig;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

/// The largest overhead of the ciphers here, with FEC: 36 bytes.
fn with_stages() -> Config {
    let key = Key::derive("a passphrase", "a salt");
    let cipher = Cipher::from_name(Algorithm::Aes256Gcm.name(), &key).unwrap();
    Config::new().cipher(cipher).redundancy(Redundancy::Fec(FecConfig::new(10, 3).unwrap()))
}

async fn send(from: &mut KcpStream, to: &mut KcpStream, len: usize) {
    let data = pattern(len);
    tokio::join!(from.write_all(&data), read_pattern(to, len)).0.unwrap();
}

#[test]
fn plpmtu_after_a_black_hole_is_reduced_and_oversized_segments_pass_in_ip_fragments() {
    for config in [Config::new(), with_stages()] {
        let Pair { mut world, mut client, mut server, .. } = Pair::new(&config, &config);
        let healthy = LinkConfig::delay(20_000);
        world.set_path(healthy.clone());
        let len = 1_000_000;
        world.finish(MINUTE, send(&mut client, &mut server, len));
        let before = client.stats();
        assert_eq!(before.probes.mtu, 0);
        world.set_path(LinkConfig { mtu: 1_250, fragments: true, ..healthy });
        world.finish(MINUTE, send(&mut client, &mut server, len));
        let stats = client.stats();
        assert_eq!((stats.probes.mtu, stats.path.current_mtu), (4, 1_160), "{stats:?}");
        assert_eq!(
            server.stats().path.current_mtu,
            before.path.current_mtu,
            "no segment of the server was lost"
        );
        world.log();
        world.finish(MINUTE, send(&mut client, &mut server, len));
        let sent = world.log();
        let sizes = sent.iter().filter(|sent| sent.from == addr(CLIENT));
        let sizes: Vec<_> = sizes.map(|sent| sent.datagram.len()).collect();
        let large: Vec<_> = sizes.iter().enumerate().filter(|(_, size)| **size > 1_200).collect();
        // FEC parity is as long as the longest shard of its group, which began earlier.
        let parity = if config.kcp.redundancy.fec().is_some() { 3 } else { 0 };
        assert!(large.len() <= parity && large.iter().all(|(at, _)| *at < 13), "{large:?}");
        assert!(!world.may_fragment(CLIENT) && !world.may_fragment(SERVER));
    }
}

#[test]
fn socket_that_replaces_another_permits_ip_fragments_too_and_its_address_is_told_at_once() {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let _context = runtime.enter();
    let Pair { mut world, endpoint, mut client, mut server, .. } = Pair::plain();
    let healthy = LinkConfig::delay(20_000);
    world.set_path(healthy.clone());
    let len = 1_000_000;
    world.finish(MINUTE, send(&mut client, &mut server, len));
    world.set_path(LinkConfig { mtu: 1_250, fragments: true, ..healthy });
    world.spawn(async move {
        client.write_all(&pattern(len)).await.unwrap();
        read_pattern(&mut client, 1).await;
    });
    while !world.may_fragment(CLIENT) {
        assert!(world.advance(), "no segment becomes too large");
        world.run_ready();
    }
    world.log();
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    world.finish(SECOND, endpoint.rebind(local)).unwrap();
    assert!(world.may_fragment(CLIENT), "segments in flight are too large for the path");
    let sent = world.log();
    let mut segments = sent.iter().flat_map(|sent| Segments::new(&sent.datagram));
    assert!(segments.any(|(header, _)| (header.command, header.len) == (Command::Push, 0)));
}

/// First transmissions are eight bytes longer than retransmissions and MTU probes. A path that carries only
/// the shorter ones is a black hole too.
/// Rule: W-161.
#[test]
fn path_that_carries_no_fec_header_beside_a_full_segment_is_a_black_hole() {
    for mtu in [1_399, 1_396, 1_392] {
        let config = Config::new().redundancy(Redundancy::Fec(FecConfig::new(10, 3).unwrap()));
        let Pair { mut world, mut client, mut server, .. } = Pair::new(&config, &config);
        world.set_path(LinkConfig { mtu, ..LinkConfig::delay(20_000) });
        let len = 1_000_000;
        let mut transfer = || {
            let before = client.stats().retransmits();
            world.finish(MINUTE, send(&mut client, &mut server, len));
            (client.stats().path.current_mtu, client.stats().retransmits() - before)
        };
        // The search ends within a few seconds, with a size that the path carries.
        let searched = (0..10).map(|_| transfer()).find(|(_, again)| *again < 5);
        let found = searched.map(|(found, _)| found as usize);
        assert!(found.is_some_and(|found| found <= mtu), "{found:?} for a path of {mtu} bytes");
        assert!(transfer().1 < 5, "a path of {mtu} bytes");
    }
}
