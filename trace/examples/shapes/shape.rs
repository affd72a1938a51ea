//! The connections: how their path and their ends are, and the capture of each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use kcpx::crypto::{Key, PacketCipher as _};
use kcpx::proto::{Kcp, PacketType, Seed};
use kcpx::testkit::link::{BurstDurations, Damage, Link, LinkConfig};
use kcpx::{Algorithm, Cipher, Config, CongestionControl};
use kcpx_trace::pcap::{ip_packet, write_header, write_record};

/// When the captures begin: 2026-01-01, in nanoseconds since 1970.
const BEGINS: u64 = 1_767_225_600_000_000_000;
const CONV: u32 = 0x0001_e240;
/// Of the datagrams that are lost.
const SEED: u64 = 1;
/// When an application gives up an attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a second of a link with 8 Mbit/s.
const RATE: u64 = 1_000_000;
/// The sender.
const A: usize = 0;

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Nothing
    Clean,
    /// One datagram in twenty is lost, each for itself
    Loss,
    /// The path is down for moments
    Bursts,
    /// A sender without congestion control fills a long queue
    Bufferbloat,
    /// The receiver's window is smaller than the path
    Window,
    /// The receiver has another key
    WrongKey,
    /// The receiver disappears
    Gone,
}

impl Shape {
    /// The pcap file: of A, with the datagrams of B where they arrive.
    pub fn capture(self) -> Result<Vec<u8>> {
        let mut simulation = Simulation::new(self)?;
        simulation.run()?;
        Ok(simulation.file)
    }

    /// How long A sends.
    fn sends_for(self) -> Duration {
        Duration::from_secs(3)
    }

    /// From A to B, and back.
    fn links(self) -> [LinkConfig; 2] {
        // 25 ms, 8 Mbit/s, and a queue that lasts for 0.4 s.
        let good = LinkConfig { rate: Some(RATE), queue: 400_000, ..LinkConfig::delay(25_000) };
        let to_b = match self {
            Self::Clean | Self::WrongKey => good,
            Self::Loss => LinkConfig { loss: 50_000, ..good },
            Self::Bursts => {
                let burst_by_time = Some(BurstDurations { good: 600_000, bad: 60_000 });
                LinkConfig { burst_by_time, ..good }
            }
            // 1.6 s: longer than the sender's window.
            Self::Bufferbloat => LinkConfig { queue: 1_600_000, ..good },
            Self::Window => LinkConfig { delay: 50_000, ..good },
            Self::Gone => LinkConfig { partitions: vec![(1_500_000, u64::MAX)], ..good },
        };
        let to_a = LinkConfig { rate: None, ..LinkConfig::delay(to_b.delay) };
        [to_b, to_a]
    }

    fn configs(self) -> [Config; 2] {
        let config = Config::new().dead_peer_timeout(Some(Duration::from_secs(10)));
        match self {
            Self::Bufferbloat => {
                let careless = config.clone().congestion_control(CongestionControl::Off);
                [careless.windows(1_024, 1_024), config]
            }
            Self::Window => [config.clone(), config.windows(1_024, 32)],
            _ => [config.clone(), config],
        }
    }

    /// The passphrase of each side. Without one there is no cipher.
    fn passphrases(self) -> Option<[&'static str; 2]> {
        (self == Self::WrongKey).then_some(["secret", "secrte"])
    }
}

struct Simulation {
    shape: Shape,
    start: Instant,
    now: Instant,
    ends: [Kcp; 2],
    ciphers: Option<[Cipher; 2]>,
    links: [Link; 2],
    /// By arrival and number: to whom, and the datagram.
    under_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
    file: Vec<u8>,
}

impl Simulation {
    fn new(shape: Shape) -> Result<Self> {
        let start = Instant::now();
        let [a, b] = shape.configs();
        let mut ends = [
            Kcp::new(CONV, &a, start, Seed::new(0, SEED))?,
            Kcp::new(CONV, &b, start, Seed::new(0, !SEED))?,
        ];
        ends[A].open(start);
        let cipher = |passphrase: &str| {
            Cipher::from_name(
                Algorithm::Aes128Gcm.name(),
                &Key::derive(passphrase, Key::KCPTUN_SALT),
            )
        };
        let ciphers = match shape.passphrases() {
            Some([a, b]) => Some([cipher(a)?, cipher(b)?]),
            None => None,
        };
        let [to_b, to_a] = shape.links();
        let mut file = Vec::new();
        write_header(&mut file)?;
        Ok(Self {
            shape,
            start,
            now: start,
            ends,
            ciphers,
            links: [Link::new(to_b, SEED), Link::new(to_a, !SEED)],
            under_way: BTreeMap::new(),
            sent: 0,
            file,
        })
    }

    fn run(&mut self) -> Result<()> {
        while self.is_going_on() {
            self.applications();
            self.transmit()?;
            let arrival = self.under_way.first_key_value().map(|((at, _), _)| *at);
            let timers = self.ends.iter().filter_map(Kcp::poll_timeout);
            let next = arrival.into_iter().chain(timers).min();
            self.now = next.context("nothing left to wait for")?.max(self.now);
            self.arrivals()?;
            let now = self.now;
            self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
        }
        Ok(())
    }

    fn is_going_on(&self) -> bool {
        let end = &self.ends[A];
        let is_connecting = self.now - self.start < CONNECT_TIMEOUT;
        let has_closed = end.is_closed() && self.under_way.is_empty();
        end.close_reason().is_none() && (end.is_established() || is_connecting) && !has_closed
    }

    /// A writes all that it can, and closes. B reads, and closes too.
    fn applications(&mut self) {
        let now = self.now;
        let [a, b] = &mut self.ends;
        if now - self.start < self.shape.sends_for() {
            while a.is_established() && a.send_capacity() > 0 {
                a.send(now, Bytes::from(vec![7; a.send_capacity()]));
            }
        } else {
            a.close(now);
        }
        while b.recv().is_some() {}
        if b.peer_has_closed() {
            b.close(now);
        }
    }

    fn transmit(&mut self) -> Result<()> {
        for from in 0..2 {
            let mut datagram = Vec::new();
            while self.ends[from].poll_transmit(self.now, &mut datagram).is_some() {
                let sealed = self.sealed(from, &std::mem::take(&mut datagram));
                if from == A {
                    self.record(A, &sealed)?;
                }
                self.sent += 1;
                let (start, sent) = (self.start, self.sent);
                let now = (self.now - start).as_micros() as u64;
                let Self { links, under_way, .. } = self;
                links[from].send(now, sealed.len(), |at, damage| {
                    if damage == Damage::None {
                        let at = start + Duration::from_micros(at);
                        under_way.insert((at, sent), (1 - from, sealed.clone()));
                    }
                });
            }
        }
        Ok(())
    }

    fn arrivals(&mut self) -> Result<()> {
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, mut datagram) = entry.remove();
            if to == A {
                self.record(1 - A, &datagram)?;
            }
            if let Some(ciphers) = &self.ciphers {
                let cipher = &ciphers[to];
                if cipher.open(&mut datagram).is_err() {
                    continue;
                }
                let overhead = cipher.overhead();
                datagram.truncate(datagram.len() - overhead.trailer_len);
                datagram.drain(..overhead.header_len);
            }
            self.ends[to].input(self.now, &datagram, PacketType::Regular)?;
        }
        Ok(())
    }

    fn sealed(&self, from: usize, datagram: &[u8]) -> Vec<u8> {
        let Some(ciphers) = &self.ciphers else { return datagram.to_vec() };
        let overhead = ciphers[from].overhead();
        let mut packet = vec![0; overhead.header_len];
        // The number of a datagram is used once.
        let nonce = self.sent.to_le_bytes();
        packet[..nonce.len()].copy_from_slice(&nonce);
        packet.extend_from_slice(datagram);
        packet.resize(packet.len() + overhead.trailer_len, 0);
        ciphers[from].seal(&mut [&mut packet]);
        packet
    }

    fn record(&mut self, from: usize, datagram: &[u8]) -> Result<()> {
        let hosts = [([192, 0, 2, 1], 50_000), ([198, 51, 100, 2], 4_000)].map(SocketAddr::from);
        let packet = ip_packet(hosts[from], hosts[1 - from], datagram)?;
        let at = BEGINS + (self.now - self.start).as_nanos() as u64;
        write_record(&mut self.file, at, &packet)
    }
}
