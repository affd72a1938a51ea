//! The whole receive path of an endpoint.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Choices;
use super::wire::{Wire, addr};
use crate::config::{Config, Limits, Mode, Redundancy};
use crate::core::connection::fec::FlowTiming;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::{Sn, Ts};
use crate::crypto::{Algorithm, Cipher};
use crate::driver::Driver;
use crate::driver::fec::FecSender;
use crate::driver::output::send_batch::{Flushed, SendBatch};
use crate::driver::output::{PacketCodec, SendExtras, Written};
use crate::endpoint::Endpoint;
use crate::fec::FecConfig;
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::util::path::Path;

/// Datagrams per input, and the endpoint's limit of connections.
const DATAGRAMS: usize = 500;
const CONNECTIONS: usize = 8;
/// Number of source addresses, and of conversation ids that datagrams name.
const PEERS: u8 = 3;
const CONVS: u8 = 3;

/// Every datagram is processed or counted, and opens no more connections than allowed.
///
/// # Panics
///
/// If a datagram violates that.
#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
pub fn datagram(data: &[u8]) {
    let mut choices = Choices(data);
    let mut now = Instant::now();
    let config = config(&mut choices);
    let queue = AcceptQueue::new();
    let requests = RequestQueue::new();
    let driver = Driver::new(
        Wire::default(),
        config.clone(),
        requests.clone(),
        Some(queue.clone()),
        [1; 32],
        now,
    );
    let mut driver = driver.expect("a valid configuration");
    let listener = KcpListener::new(AcceptHandle::new(queue), Endpoint::attach(requests));
    let mut peers: Vec<Peer> = (1..=PEERS).map(|host| Peer::new(host, &config)).collect();
    let mut streams = VecDeque::new();
    let mut sent = 0;
    while sent < DATAGRAMS && !choices.0.is_empty() {
        let peer = &mut peers[usize::from(choices.byte() % PEERS)];
        peer.send(&mut choices, now);
        for (_, datagram) in peer.wire.sent.drain(..) {
            // Empty datagrams are ignored.
            sent += usize::from(!datagram.is_empty());
            driver.socket_mut().inbox.push_back((Path::to(peer.addr), datagram));
        }
        now += Duration::from_millis(choices.pick(&[0, 0, 1, 50, 1_000, 70_000]));
        if choices.byte() & 3 == 0 {
            while driver.turn(now).runs_again() {}
            driver.socket_mut().sent.clear();
            use_streams(&listener, &mut streams, choices.byte());
        }
        assert!(listener.stats().connections.current <= CONNECTIONS as u64);
    }
    while driver.turn(now).runs_again() {}
    assert_eq!(listener.stats().received.datagrams, sent as u64);
}

fn config(choices: &mut Choices<'_>) -> Config {
    let algorithm = choices.pick(Algorithm::ALL);
    let key = [7; 32];
    let mut config = Config::new()
        .cipher(Cipher::new(algorithm, &key[..algorithm.key_len()]).expect("the right key"))
        .mode(choices.pick(&[Mode::Stream, Mode::Message]));
    let shapes = [None, Some((2, 2)), Some((3, 1)), Some((10, 3))];
    let fec = choices.pick(&shapes).and_then(|(data, parity)| FecConfig::new(data, parity).ok());
    config.kcp.redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
    config.replay_window = choices.pick(&[0, 0, 16]);
    config.duplicates = choices.pick(&[0, 0, 2]);
    config.limits = Limits {
        max_connections: CONNECTIONS,
        max_per_source: Some(CONNECTIONS),
        backlog: 4,
        ..Limits::default()
    };
    config.limits.max_unvalidated = choices.pick(&[2, 4_096]);
    config
}

/// A peer that has the key, and may break the rules.
struct Peer {
    addr: SocketAddr,
    codec: PacketCodec,
    fec: FecSender,
    tx: SendBatch,
    wire: Wire,
    last: Vec<u8>,
}

impl Peer {
    fn new(host: u8, config: &Config) -> Self {
        let fec = config.kcp.redundancy.fec().or_else(|| FecConfig::new(3, 2).ok());
        Self {
            addr: addr(host),
            codec: PacketCodec::new(config, [host; 32]),
            fec: FecSender::new(fec.expect("a shape")),
            tx: SendBatch::default(),
            wire: Wire::default(),
            last: Vec::new(),
        }
    }

    fn send(&mut self, choices: &mut Choices<'_>, now: Instant) {
        match choices.byte() % 8 {
            // Arbitrary bytes, unsealed.
            0 => self.send_raw(choices.bytes()),
            // Arbitrary bytes, sealed.
            1 => self.seal(now, false, choices.bytes()),
            2 => self.seal(now, true, choices.bytes()),
            // The last datagram again, possibly damaged.
            3 => {
                let mut again = self.last.clone();
                let (at, bits) = (usize::from(choices.byte()), choices.byte());
                if let Some(byte) = again.get_mut(at) {
                    *byte ^= bits;
                }
                self.send_raw(again);
            }
            4 => {
                let (conv, payload) = (u32::from(choices.byte() % CONVS), choices.bytes());
                self.codec.encode_out_of_band(&mut self.tx, Path::to(addr(0)), conv, &payload);
                self.flush();
            }
            kind => {
                let segment = segment(choices);
                self.seal(now, kind & 1 == 0, segment);
            }
        }
        if let Some((_, last)) = self.wire.sent.last() {
            self.last.clone_from(last);
        }
    }

    fn send_raw(&mut self, datagram: Vec<u8>) {
        self.wire.sent.push((Path::to(addr(0)), datagram));
    }

    fn seal(&mut self, now: Instant, shard: bool, mut bytes: Vec<u8>) {
        // Empty datagrams are not sent.
        bytes.resize(bytes.len().max(1), 0);
        let flow = FlowTiming::default();
        let fec = shard.then_some((&mut self.fec, &flow));
        let write = |tail: &mut Vec<u8>| {
            tail.extend_from_slice(&bytes);
            Written::NewData
        };
        let extra = SendExtras { fec, duplicates: 0, may_send_extras: true };
        self.codec.encode(now, &mut self.tx, Path::to(addr(0)), extra, write);
        self.flush();
    }

    fn flush(&mut self) {
        self.codec.seal(&mut self.tx);
        let flushed = self.tx.flush(&mut self.wire, &mut EndpointStats::default());
        assert!(matches!(flushed, Flushed::All));
    }
}

/// A segment that may belong to a connection.
fn segment(choices: &mut Choices<'_>) -> Vec<u8> {
    let payload = choices.bytes();
    let commands =
        [Command::Push, Command::Push, Command::Ack, Command::WindowProbe, Command::Control];
    let header = Header {
        conv: u32::from(choices.byte() % CONVS),
        command: choices.pick(&commands),
        frg: choices.pick(&[0, 0, 1, 2, 3, 4, CONTROL_CAPABLE, 255]),
        wnd: choices.pick(&[0, 1, 128, u16::MAX]),
        ts: Ts(choices.word()),
        sn: Sn(choices.pick(&[0, 0, 1, 2, 3, 1_000, u32::MAX])),
        una: Sn(choices.pick(&[0, 0, 0, 1, 2, u32::MAX])),
        len: u32::try_from(payload.len()).expect("a short payload"),
    };
    let mut out = Vec::new();
    header.emit(&mut out);
    out.extend_from_slice(&payload);
    out
}

/// The application: accepts, reads, writes, drops.
fn use_streams(listener: &KcpListener, streams: &mut VecDeque<KcpStream>, choice: u8) {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    while let Poll::Ready(Ok((stream, _))) = listener.poll_accept(&mut cx) {
        streams.push_back(stream);
    }
    for stream in streams.iter() {
        let mut buffer = [0; 512];
        while stream.try_read(&mut buffer).is_ok_and(|len| len > 0) {}
        while stream.datagrams().try_recv().is_ok() {}
        if choice & 1 == 0 {
            drop(stream.try_write(b"an answer"));
            drop(stream.datagrams().send(b"another"));
        }
    }
    if choice & 6 == 0 {
        streams.pop_front();
    }
}
