//! The draws of one seed: settings, links, conversations, and the time of each fault. Each kind draws from its
//! own generator, so a run without one kind keeps the others.

use std::net::SocketAddr;
use std::time::Duration;

use super::kinds::{Kind, Kinds};
use crate::config::{Config, Mode, PathMode, Redundancy};
use crate::crypto::{Algorithm, Cipher, Key};
use crate::driver::tests::fixtures::SERVER;
use crate::driver::tests::lossy_network;
use crate::driver::tests::sim_time::RIGHT;
use crate::driver::tests::sim_world::addr;
use crate::fec::FecConfig;
use crate::testkit::link::{GilbertElliott, LinkConfig};
use crate::testkit::rng::Rng;

const MILLISECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000;
/// The first client; each has its host.
pub(super) const FIRST: u8 = 2;
/// Every timeout of a connection.
pub(super) const TIMEOUT: u64 = 60 * SECOND;
/// Outages that are together no longer end no connection: several times shorter than [`TIMEOUT`].
pub(super) const HARMLESS_OUTAGE: u64 = 5 * SECOND;

/// The second address of a client.
pub(super) fn second(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, host], addr(host).port()))
}

/// A class of socket error.
#[derive(Clone, Copy, Debug)]
pub(super) enum SocketError {
    TooLarge,
    NoBuffers,
    WouldBlock,
    Refused,
    Denied,
    Unreachable,
    Other,
}

const SOCKET_ERRORS: &[SocketError] = &[
    SocketError::TooLarge,
    SocketError::NoBuffers,
    SocketError::WouldBlock,
    SocketError::Refused,
    SocketError::Denied,
    SocketError::Unreachable,
    SocketError::Other,
];

/// A change of the world.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Cuts the way from an address of a client to the server, the way back, or both, for a time.
    Cut {
        host: u8,
        is_second: bool,
        up: bool,
        down: bool,
        time: u64,
    },
    Mend {
        host: u8,
    },
    Suspend {
        host: u8,
        stops: bool,
        time: u64,
    },
    Resume {
        host: u8,
    },
    ClockRate {
        host: u8,
        rate: u64,
    },
    Crash {
        host: u8,
    },
    Exit {
        host: u8,
    },
    Start {
        host: u8,
    },
    /// The client has another address, and perhaps notices it.
    Move {
        host: u8,
        to: u8,
        is_announced: bool,
    },
    FailSends {
        host: u8,
        error: SocketError,
        count: usize,
    },
    FailRecvs {
        host: u8,
        error: SocketError,
        count: usize,
    },
    Block {
        host: u8,
        time: u64,
    },
    LimitSends {
        host: u8,
        limit: usize,
    },
    Drain,
    /// The listener hands its port over to another process, which starts a while later.
    HandOver,
    Forge {
        count: usize,
    },
}

/// One connection of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conversation {
    pub(super) host: u8,
    /// Microseconds after the start of the run.
    pub(super) at: u64,
    /// Bytes to the server.
    pub(super) up: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) kinds: Kinds,
    pub(super) server: Config,
    pub(super) client: Config,
    pub(super) path: LinkConfig,
    /// Another link from the server to the clients, or from the clients, at their first addresses.
    pub(super) one_way: Option<(bool, LinkConfig)>,
    pub(super) clients: u8,
    pub(super) conversations: Vec<Conversation>,
    pub(super) events: Vec<(u64, Event)>,
    /// When every fault is over.
    pub(super) healed_at: u64,
}

impl Plan {
    pub(super) fn new(seed: u64, kinds: Kinds) -> Self {
        let mut rng = Rng::keyed(seed, 1);
        let mut path = LinkConfig::delay(rng.spread(50, 100_000));
        let (server, client) = (config(&mut rng), config(&mut rng));
        let clients = rng.pick(&[1, 1, 2, 3]);
        let healed_at = rng.spread(SECOND, 60 * SECOND);
        let count = rng.range(u64::from(clients), 6);
        let conversations = (0..count).map(|index| Conversation {
            host: FIRST + (index % u64::from(clients)) as u8,
            at: rng.below(healed_at),
            up: rng.spread(1, 200_000),
        });
        let conversations = conversations.collect();
        impair(&mut path, seed, kinds);
        let events = Vec::new();
        let mut plan = Self {
            seed,
            kinds,
            server,
            client,
            path,
            one_way: None,
            clients,
            conversations,
            events,
            healed_at,
        };
        for kind in kinds.iter() {
            let mut rng = Rng::keyed(seed, 100 + kind as u64);
            plan.configure(kind, &mut rng);
            for _ in 0..rng.range(1, 3) {
                let at = rng.below(healed_at);
                plan.happen(kind, at, &mut rng);
            }
        }
        // Stable: what happens at the same time keeps its order.
        plan.events.sort_by_key(|(at, _)| *at);
        plan
    }

    fn host(&self, rng: &mut Rng) -> u8 {
        if rng.chance(500_000) { SERVER } else { self.client_host(rng) }
    }

    fn client_host(&self, rng: &mut Rng) -> u8 {
        FIRST + rng.below(self.clients.into()) as u8
    }

    /// Sets the part of a kind that holds for the whole run.
    fn configure(&mut self, kind: Kind, rng: &mut Rng) {
        let both = [&mut self.server, &mut self.client];
        match kind {
            Kind::OneWayLoss => {
                let loss = rng.pick(&[10_000, 100_000, 300_000]);
                self.one_way =
                    Some((rng.chance(500_000), LinkConfig { loss, ..self.path.clone() }));
            }
            Kind::MemoryLimit => {
                self.server.limits.memory = rng.pick(&[256 << 10, 1 << 20, 4 << 20])
            }
            Kind::ConnectionLimits => {
                let limits = &mut self.server.limits;
                limits.max_connections = rng.size(1, 4);
                limits.max_per_source = rng.pick(&[None, Some(1), Some(2)]);
                limits.backlog = rng.size(1, 3);
                limits.max_unvalidated = rng.size(1, 4);
                limits.require_validation = rng.chance(500_000);
            }
            // Several paths need an AEAD, and so do peers that follow a client to another address.
            Kind::Cipher | Kind::TwoPaths | Kind::Move => {
                let key = Key::derive("a passphrase", "a salt");
                let aeads = [Algorithm::Aes128Gcm, Algorithm::ChaCha20Poly1305];
                let mut algorithm = rng.pick(&aeads);
                if kind == Kind::Cipher && rng.chance(400_000) {
                    algorithm = rng.pick(&[Algorithm::Aes128, Algorithm::Salsa20]);
                }
                let cipher = Cipher::from_name(algorithm.name(), &key).unwrap();
                let mode = rng.pick(&[PathMode::Standby, PathMode::Duplicate, PathMode::Aggregate]);
                both.into_iter().for_each(|config| {
                    (config.cipher, config.path_mode) = (cipher.clone(), mode);
                });
            }
            Kind::Shards => self.server.socket.shards = rng.size(2, 4),
            Kind::Fec => both.into_iter().for_each(|config| {
                let (data, parity) = rng.pick(&[(10, 3), (3, 1), (1, 1), (2, 4), (30, 15)]);
                let fec = FecConfig::new(data, parity).unwrap();
                config.kcp.redundancy = Redundancy::Fec(fec);
            }),
            Kind::Redundancy if !self.kinds.has(Kind::Fec) => both.into_iter().for_each(|config| {
                config.kcp.redundancy = Redundancy::Auto(crate::config::AutoRedundancy::new());
            }),
            Kind::Protocol => {
                let mode = rng.pick(&[Mode::Stream, Mode::Message]);
                both.into_iter().for_each(|config| {
                    config.kcp.mode = mode;
                    config.assign_conv = rng.chance(500_000);
                    config.early_data = rng.chance(500_000);
                });
                self.server.limits.require_validation |= rng.chance(500_000);
            }
            _ => {}
        }
    }

    /// Draws one occurrence of a kind at `at`.
    fn happen(&mut self, kind: Kind, at: u64, rng: &mut Rng) {
        let (any, client) = (self.host(rng), self.client_host(rng));
        let time = rng.spread(10 * MILLISECOND, 100 * SECOND);
        let first = match kind {
            Kind::Partition => {
                Event::Cut { host: client, is_second: false, up: true, down: true, time }
            }
            Kind::OneWayPartition => {
                let up = rng.chance(500_000);
                Event::Cut { host: client, is_second: false, up, down: !up, time }
            }
            Kind::Suspension => Event::Suspend { host: any, stops: rng.chance(500_000), time },
            Kind::Drift => {
                let off = rng.pick(&[100, 1_000, 20_000]);
                let rate = rng.pick(&[RIGHT - off, RIGHT + off]);
                Event::ClockRate { host: any, rate }
            }
            Kind::ServerCrash => Event::Crash { host: SERVER },
            Kind::ClientCrash => Event::Crash { host: client },
            Kind::Exit => Event::Exit { host: any },
            // With several sockets at one address, peers follow no client.
            Kind::Move if !self.kinds.has(Kind::Shards) => Event::Move {
                host: client,
                to: rng.range(100, 200) as u8,
                is_announced: rng.chance(500_000),
            },
            Kind::SendErrors => {
                let (error, count) = (rng.pick(SOCKET_ERRORS), rng.size(1, 5));
                Event::FailSends { host: any, error, count }
            }
            Kind::RecvErrors => {
                let (error, count) = (rng.pick(SOCKET_ERRORS), rng.size(1, 5));
                Event::FailRecvs { host: any, error, count }
            }
            Kind::BlockedSends => {
                Event::Block { host: any, time: rng.spread(MILLISECOND, 2 * SECOND) }
            }
            Kind::SmallMtu => Event::LimitSends { host: any, limit: rng.size(700, 1_400) },
            Kind::Drain => Event::Drain,
            Kind::HandOver => Event::HandOver,
            Kind::TwoPaths => {
                let [up, down] = rng.pick(&[[true, true], [true, false], [false, true]]);
                Event::Cut { host: client, is_second: rng.chance(500_000), up, down, time }
            }
            Kind::Forgery => Event::Forge { count: rng.size(1, 50) },
            _ => return,
        };
        let end = match first {
            Event::Cut { host, .. } => Some(Event::Mend { host }),
            Event::Suspend { host, .. } => Some(Event::Resume { host }),
            Event::Crash { host } | Event::Exit { host } => Some(Event::Start { host }),
            Event::HandOver => {
                let end = (at + time).min(self.healed_at);
                self.events.push((end, Event::Exit { host: SERVER }));
                Some(Event::Start { host: SERVER })
            }
            _ => None,
        };
        self.events.push((at, first));
        self.events.extend(end.map(|end| ((at + time).min(self.healed_at), end)));
    }

    /// The link of the second address of each client.
    pub(super) fn second_link(&self) -> LinkConfig {
        let delay = Rng::keyed(self.seed, 4).spread(50, 100_000);
        LinkConfig { delay, ..self.path.clone() }
    }

    /// Whether every datagram leaves once, as the laws of datagrams assume.
    pub(super) fn sends_once(&self) -> bool {
        self.server.duplicates == 0 && self.client.duplicates == 0
    }

    /// Whether a connection may lose its peer, so that it ends by a timeout.
    pub(super) fn may_lose_peers(&self) -> bool {
        let kinds = [
            Kind::Partition,
            Kind::OneWayPartition,
            Kind::Suspension,
            Kind::ServerCrash,
            Kind::ClientCrash,
            Kind::Exit,
            Kind::Move,
            Kind::ConnectionLimits,
            Kind::Drops,
            Kind::Cancellation,
            Kind::Drain,
            Kind::HandOver,
            Kind::Forgery,
        ];
        kinds.iter().any(|kind| self.kinds.has(*kind))
    }
}

fn config(rng: &mut Rng) -> Config {
    let timeout = Duration::from_micros(TIMEOUT);
    lossy_network::config(rng).linger(timeout).connect_timeout(timeout)
}

/// Adds the faults of the kinds to a link.
fn impair(path: &mut LinkConfig, seed: u64, kinds: Kinds) {
    for kind in kinds.iter() {
        let mut rng = Rng::keyed(seed, 200 + kind as u64);
        match kind {
            Kind::Loss => path.loss = rng.pick(&[1_000, 10_000, 50_000, 150_000]),
            Kind::Bursts => {
                path.burst = Some(GilbertElliott { to_bad: 5_000, to_good: 200_000 });
            }
            Kind::Corruption => path.corrupt = rng.pick(&[1_000, 20_000]),
            Kind::Duplication => {
                path.duplicate = rng.pick(&[10_000, 100_000]);
                (path.copies, path.copy_delay) = (3, 2 * SECOND);
            }
            Kind::Reordering => {
                path.reorder = rng.pick(&[20_000, 200_000]);
                path.reorder_by = rng.spread(MILLISECOND, 100 * MILLISECOND);
            }
            Kind::Jitter => {
                path.jitter = rng.spread(10, 30_000);
                path.keep_order = rng.chance(500_000);
            }
            Kind::Bottleneck => {
                path.rate = Some(rng.pick(&[50_000, 2_000_000]));
                path.queue = rng.pick(&[10_000, 100_000]);
                path.policer = rng.chance(300_000);
            }
            Kind::SmallMtu => {
                path.mtu = rng.pick(&[700, 1_000, 1_300]);
                path.fragments = true;
            }
            _ => {}
        }
    }
}
