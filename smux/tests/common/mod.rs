//! Helpers of the integration tests.

#![allow(dead_code, reason = "each test uses some")]

pub mod frames;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use kcpx_smux::{Config, Session, Stream, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use self::frames::{Frame, Peer, SYN};

pub const VERSIONS: [Version; 2] = [Version::V1, Version::V2];

/// A carrier of any kind.
pub trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Carrier for T {}

/// Fails a test that does not end.
pub async fn within<F: Future>(seconds: u64, future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(seconds), future).await.expect("took too long")
}

pub fn pair_with(buffer: usize, client: Config, server: Config) -> (Session, Session) {
    let (ours, theirs) = tokio::io::duplex(buffer);
    (Session::client(ours, client).unwrap(), Session::server(theirs, server).unwrap())
}

pub fn pair(version: Version) -> (Session, Session) {
    let config = Config::new().version(version);
    pair_with(256 << 10, config.clone(), config)
}

/// A server, and a client of handwritten frames.
pub fn raw_server(version: Version, config: Config) -> (Session, Peer) {
    let (ours, io) = tokio::io::duplex(8 << 20);
    let session = Session::server(ours, config.version(version)).unwrap();
    (session, Peer { io, version: number(version) })
}

/// A client, and a server of handwritten frames.
pub fn raw_client(version: Version, config: Config) -> (Session, Peer) {
    let (ours, io) = tokio::io::duplex(8 << 20);
    let session = Session::client(ours, config.version(version)).unwrap();
    (session, Peer { io, version: number(version) })
}

pub fn number(version: Version) -> u8 {
    if version == Version::V1 { 1 } else { 2 }
}

/// Without keepalive, and so without a timeout.
pub fn quiet() -> Config {
    Config::new().keepalive(None)
}

/// Lets all tasks do what they can, under a paused clock.
pub async fn idle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Command, stream and payload bytes of each frame.
pub fn commands(frames: &[Frame]) -> Vec<(u8, u32, usize)> {
    frames.iter().map(|frame| (frame.cmd, frame.id, frame.payload.len())).collect()
}

/// A server that has accepted stream 3.
pub async fn accepted(version: Version, config: Config) -> (Session, Peer, Stream) {
    let (session, mut peer) = raw_server(version, config);
    peer.send(SYN, 3, b"").await;
    let stream = session.accept_stream().await.unwrap();
    (session, peer, stream)
}

pub async fn streams(client: &Session, server: &Session) -> (Stream, Stream) {
    let opened = client.open_stream().await.unwrap();
    (opened, server.accept_stream().await.unwrap())
}

/// A linear congruential generator (Knuth's MMIX); its upper half is used.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// Returns all bytes to their sender.
pub async fn echo(server: Session) {
    while let Ok(stream) = server.accept_stream().await {
        tokio::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
            write.shutdown().await.unwrap();
        });
    }
}

/// Sends `data` in pieces and expects it back.
pub async fn check_echo(stream: Stream, data: Vec<u8>, seed: u64) {
    let mut rng = Rng::new(seed);
    let (mut read, mut write) = stream.into_split();
    let expected = data.clone();
    let writer = tokio::spawn(async move {
        let mut rest = &data[..];
        while !rest.is_empty() {
            let len = (1 + rng.below(30_000) as usize).min(rest.len());
            match rng.below(2) {
                0 => write.write_all(&rest[..len]).await.unwrap(),
                _ => write.write_chunk(&mut Bytes::copy_from_slice(&rest[..len])).await.unwrap(),
            }
            rest = &rest[len..];
        }
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap();
    assert_eq!(received.len(), expected.len());
    assert!(received == expected, "other bytes");
}

/// Opens `streams` streams of random sizes at once; each is echoed.
pub async fn check_many(client: &Session, streams: u64, max_len: u64, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut tasks = Vec::new();
    for i in 0..streams {
        let stream = client.open_stream().await.unwrap();
        let data = {
            let len = rng.below(max_len) as usize;
            rng.bytes(len)
        };
        tasks.push(tokio::spawn(check_echo(stream, data, seed + i)));
    }
    for task in tasks {
        task.await.unwrap();
    }
}
