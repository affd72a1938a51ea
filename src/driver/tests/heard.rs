//! The error of a timeout names the datagrams that came from the peer's address.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, answer, cause, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::crypto::{Algorithm, Cipher};
use crate::error::{ConnectionError, TimeoutCause};
use crate::testkit::link::LinkConfig;

const PEER: u8 = 9;

fn sealed(key: u8) -> Config {
    Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &[key; 16]).unwrap())
}

/// The text of `connect` to a peer that sends `datagram` each second.
fn connect(config: &Config, datagram: Option<&[u8]>) -> (ConnectionError, String) {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(PEER);
    let endpoint = world.waiting_endpoint(CLIENT, config);
    let (sender, mut result) = tokio::sync::oneshot::channel();
    world.spawn(async move { drop(sender.send(endpoint.connect(addr(PEER)).await)) });
    for _ in 0..12 {
        if let Some(datagram) = datagram {
            world.inject(addr(PEER), CLIENT, datagram);
            world.inject(addr(PEER + 1), CLIENT, datagram);
        }
        world.run_for(SECOND);
    }
    let error = result.try_recv().unwrap().unwrap_err();
    (cause(&error).unwrap(), error.to_string())
}

#[test]
fn connect_timeout_says_what_came_from_the_address() {
    let foreign = push(5, 7, b"of another connection");
    for (config, datagram, heard, text) in [
        (Config::new(), None, TimeoutCause::Nothing, "nothing came"),
        (sealed(1), None, TimeoutCause::Nothing, "another key or cipher?"),
        (sealed(1), Some(&foreign[..]), TimeoutCause::Unreadable(10), "address: 10 (another key"),
        (Config::new(), Some(&[7; 100]), TimeoutCause::Unreadable(10), "another key or cipher?"),
        (
            Config::new(),
            Some(&foreign[..]),
            TimeoutCause::OtherConnections(10),
            "other connections",
        ),
    ] {
        let (error, message) = connect(&config, datagram);
        assert_eq!(error, ConnectionError::ConnectTimeout(heard));
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn connect_timeout_names_a_refusal_where_the_socket_has_one_peer() {
    for (others, heard) in [(0, TimeoutCause::Refusal), (1, TimeoutCause::Nothing)] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        world.port(PEER);
        world.port(PEER + 1);
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new().connect_timeout(3 * SECOND));
        for _ in 0..others {
            let endpoint = endpoint.clone();
            world.spawn(async move { drop(endpoint.connect(addr(PEER + 1)).await) });
        }
        world.run_for(SECOND);
        world.fail_sends(CLIENT, [std::io::ErrorKind::ConnectionRefused]);
        let error = world.finish(MINUTE, endpoint.connect(addr(PEER))).unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::ConnectTimeout(heard)));
    }
}

#[test]
fn dead_peer_beside_another_connection_with_its_address_says_so() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(PEER);
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let first = world.finish(SECOND, endpoint.connect(addr(PEER))).unwrap();
    let second = world.finish(SECOND, endpoint.connect(addr(PEER))).unwrap();
    first.try_write(b"first").unwrap();
    second.try_write(b"second").unwrap();
    for _ in 0..650 {
        world.run_for(SECOND / 10);
        for datagram in world.arrived(PEER) {
            if datagram.starts_with(&first.conv().to_le_bytes()) {
                world.inject(addr(PEER), CLIENT, &answer(&datagram, 1));
            }
        }
    }
    let error = ConnectionError::DeadPeer(TimeoutCause::SharedAddress);
    assert_eq!((first.error(), second.error()), (None, Some(error)));
    assert!(error.to_string().contains("another connection with that address"), "{error}");
}

#[test]
fn every_call_reports_the_same_error_of_a_timeout() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    // A server with another key.
    let listener = world.listener(SERVER, &sealed(2));
    let endpoint = world.endpoint(CLIENT, &sealed(1));
    let mut client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    client.try_write(b"hello").unwrap();
    world.run_for(MINUTE - SECOND);
    world.inject(addr(SERVER), CLIENT, &[7; 100]);
    let error = world.finish(MINUTE, client.established()).unwrap_err();
    let expected = ConnectionError::DeadPeer(TimeoutCause::Unreadable(1));
    assert_eq!((cause(&error), client.error()), (Some(expected), Some(expected)));
    let text = error.to_string();
    assert!(text.contains("unreadable datagrams from its address: 1 "), "{text}");
    world.finish(SECOND, async {
        assert_eq!(client.read(&mut [0; 1]).await.unwrap_err().to_string(), text);
        assert_eq!(client.write(b"x").await.unwrap_err().to_string(), text);
        assert_eq!(client.take_error().unwrap().unwrap().to_string(), text);
    });
    assert!(listener.stats().dropped.checksum > 0);
}
