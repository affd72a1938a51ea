//! Fixtures of the scenario tests: a client and a server with one connection, and the datagrams of a
//! simulated peer.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{Command, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::endpoint::Endpoint;
use crate::error::ConnectionError;
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

/// Writes until a write fails. Returns the error.
pub(super) fn write_until_error(
    world: &mut World,
    mut stream: KcpStream,
) -> oneshot::Receiver<io::Error> {
    let (sender, error) = oneshot::channel();
    world.spawn(async move {
        let error = loop {
            if let Err(error) = stream.write_all(&[7; 10_000]).await {
                break error;
            }
        };
        drop(sender.send(error));
    });
    error
}

/// Tolerance of timeouts: a few round trips.
pub(super) const SLACK: Duration = Duration::from_millis(100);

/// Hosts of every pair.
pub(super) const SERVER: u8 = 1;
pub(super) const CLIENT: u8 = 2;

/// An established connection over a path with 10 ms delay.
pub(super) struct Pair {
    pub(super) world: World,
    pub(super) listener: KcpListener,
    pub(super) endpoint: Endpoint,
    pub(super) client: KcpStream,
    pub(super) server: KcpStream,
}

impl Pair {
    pub(super) fn plain() -> Self {
        Self::new(&Config::new(), &Config::new())
    }

    pub(super) fn new(client: &Config, server: &Config) -> Self {
        Self::seeded(1, client, server)
    }

    /// Over a path with 0.25 ms delay, where a whole window leaves at one instant.
    pub(super) fn near(client: &Config, server: &Config) -> Self {
        Self::on(World::new(1, LinkConfig::delay(250)), client, server)
    }

    pub(super) fn seeded(seed: u64, client: &Config, server: &Config) -> Self {
        Self::on(World::new(seed, LinkConfig::delay(10_000)), client, server)
    }

    pub(super) fn on(mut world: World, client: &Config, server: &Config) -> Self {
        world.log();
        let listener = world.listener(SERVER, server);
        let endpoint = world.endpoint(CLIENT, client);
        let (client, server) = world.finish(SECOND, greet(&endpoint, &listener));
        world.run_for(SECOND / 10);
        Self { world, listener, endpoint, client, server }
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

/// Whether `elapsed` microseconds are `promised`, up to [`SLACK`] more.
pub(super) fn is_about(elapsed: u64, promised: Duration) -> bool {
    (micros(promised)..micros(promised + SLACK)).contains(&elapsed)
}

/// Opens a connection from `endpoint`: returns the client's stream and the server's.
pub(super) async fn greet(endpoint: &Endpoint, listener: &KcpListener) -> (KcpStream, KcpStream) {
    let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
    client.write_all(b"hi").await.unwrap();
    let (mut server, peer) = listener.accept().await.unwrap();
    assert_eq!((peer, server.conv()), (endpoint.local_addr().unwrap(), client.conv()));
    let mut hi = [0; 2];
    server.read_exact(&mut hi).await.unwrap();
    (client, server)
}

/// Reads `len` bytes and compares them to [`pattern`].
pub(super) async fn read_pattern(stream: &mut KcpStream, len: usize) {
    let mut got = vec![0; len];
    stream.read_exact(&mut got).await.unwrap();
    assert!(got == pattern(len), "other bytes than were sent");
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i ^ (i >> 7)) as u8).collect()
}

/// The connection error within an I/O error.
pub(super) fn cause(error: &io::Error) -> Option<ConnectionError> {
    error.get_ref().and_then(|cause| cause.downcast_ref()).copied()
}

/// A data segment (PUSH).
pub(super) fn push(conv: u32, sn: u32, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    Header {
        conv,
        command: Command::Push,
        frg: 0,
        wnd: 128,
        ts: Ts(77),
        sn: Sn(sn),
        una: Sn(0),
        len: payload.len() as u32,
    }
    .emit(&mut datagram);
    datagram.extend_from_slice(payload);
    datagram
}

/// The answers of a peer that received `datagram` and expects `una` next.
pub(super) fn answer(datagram: &[u8], una: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for (header, _) in Segments::new(datagram) {
        let command = match header.command {
            Command::Push => Command::Ack,
            Command::WindowProbe => Command::WindowUpdate,
            Command::Ack | Command::WindowUpdate | Command::Control | Command::Repair => continue,
        };
        Header { command, frg: 0, wnd: 128, una: Sn(una), len: 0, ..header }.emit(&mut out);
    }
    out
}
