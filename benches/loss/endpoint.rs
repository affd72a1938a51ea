//! One end of a connection: the state machine and its FEC, joined as in the driver. No cipher.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU8;
use std::time::{Duration, Instant};

use kcpx::fec::{FecDecoder, FecFlag, HEADER_LEN, fec_flag};
use kcpx::proto::{Command, Kcp, PacketType, Seed, Segments};
use kcpx::testkit::transmitter::Transmitter;
use kcpx::{AckPolicy, Config, CongestionControl, FecConfig, Redundancy, Timing};

use crate::stock::StockDecoder;

enum Decoder {
    Kcpx(FecDecoder),
    Stock(StockDecoder),
}

/// How a connection uses several paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// The default: data on the better path.
    Standby,
    /// Messages on all paths.
    Duplicate,
    /// Transfers on all paths.
    Aggregate,
}

impl Mode {
    /// The modes that differ for bulk.
    pub(crate) const FOR_BULK: [Self; 2] = [Self::Standby, Self::Aggregate];

    fn apply(self, kcp: &mut Kcp) {
        match self {
            Self::Standby => {}
            Self::Duplicate => kcp.copy_on_paths(),
            Self::Aggregate => kcp.aggregate_paths(),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standby => "standby",
            Self::Duplicate => "duplicate",
            Self::Aggregate => "aggregate",
        })
    }
}

/// The next step of a connection with several paths.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Nothing,
    /// Add this many paths, once the peer has said that it takes them.
    Paths(usize),
    /// Accept the connection.
    Accept,
}

/// Bytes that a server sends before the client's address is validated: a datagram.
const ALLOWANCE: usize = 1_400;

pub(crate) struct Endpoint {
    pub(crate) kcp: Kcp,
    transmitter: Transmitter,
    decoder: Decoder,
    /// ACKs already sent: a stock receiver sends each once.
    sent_acks: HashSet<(u32, u32)>,
    pending: Pending,
}

impl Endpoint {
    /// kcp-go: without CONTROL and repair symbols, and with windows of this size. ACKs leave at once, or at each
    /// tick.
    pub(crate) fn stock(
        conv: u32,
        config: &Config,
        window: u16,
        ack_tick: Option<u64>,
        cookie_seed: u64,
        now: Instant,
    ) -> Self {
        let mut config = config
            .clone()
            .redundancy(Redundancy::Off)
            .close_notify(false)
            .windows(window, window)
            .ack_policy(AckPolicy::Immediate);
        if let Some(tick) = ack_tick {
            let timing = Timing::new(true, Duration::from_micros(tick), NonZeroU8::new(2))
                .expect("a tick of 10 or 100 ms");
            config = config
                .ack_policy(AckPolicy::Interval)
                .timing(timing)
                .congestion_control(CongestionControl::Off);
        }
        let seed = Seed::new(0, cookie_seed);
        let kcp = Kcp::new(conv, &config, now, seed).expect("the configuration is valid");
        Self::of(kcp, None, Decoder::Stock(StockDecoder::default()))
    }

    /// Both ends of a connection use the same FEC and the same rates of repair symbols and bundled copies.
    pub(crate) fn new(
        conv: u32,
        config: &Config,
        (fec, repair_rate, bundling_rate): (Option<FecConfig>, u32, u32),
        cookie_seed: u64,
        now: Instant,
    ) -> Self {
        let seed = Seed::new(0, cookie_seed);
        let mut kcp = Kcp::new(conv, config, now, seed).expect("the configuration is valid");
        let fec_header = if fec.is_some() { HEADER_LEN as u16 } else { 0 };
        kcp.set_overhead(0, fec_header).expect("the MTU leaves bytes for data");
        // A rate would replace the rate of automatic redundancy.
        if repair_rate > 0 {
            kcp.set_repair_rate(repair_rate);
        }
        if bundling_rate > 0 {
            kcp.set_bundling_rate(bundling_rate);
        }
        let decoder = fec.map_or_else(|| FecDecoder::new(None), FecDecoder::with_expected_layout);
        Self::of(kcp, fec, Decoder::Kcpx(decoder))
    }

    fn of(kcp: Kcp, fec: Option<FecConfig>, decoder: Decoder) -> Self {
        let (transmitter, pending) = (Transmitter::new(fec), Pending::Nothing);
        Self { kcp, transmitter, decoder, sent_acks: HashSet::new(), pending }
    }

    /// The same with this number of paths. `opens`: it is the client.
    pub(crate) fn with_paths(mut self, paths: usize, mode: Mode, opens: bool) -> Self {
        self.kcp.accept_paths();
        mode.apply(&mut self.kcp);
        if opens {
            self.kcp.ask_for_paths();
            self.pending = Pending::Paths(paths - 1);
        } else {
            self.pending = Pending::Accept;
        }
        self
    }

    /// Calls `send` with each datagram that leaves now, parity included, and the number of its path.
    pub(crate) fn transmit(&mut self, now: Instant, mut send: impl FnMut(u8, &[u8])) {
        let Self { kcp, transmitter, decoder, sent_acks, pending } = self;
        if let Pending::Paths(count) = *pending
            && kcp.peer_accepts_paths() == Some(true)
        {
            *pending = Pending::Nothing;
            for _ in 0..count {
                kcp.add_path(now).expect("the peer takes paths");
            }
        }
        transmitter.transmit(now, kcp, |path, datagram| match decoder {
            Decoder::Kcpx(_) => send(path, datagram),
            Decoder::Stock(_) => {
                let kept = without_second_acks(sent_acks, datagram);
                if !kept.is_empty() {
                    send(path, &kept);
                }
            }
        });
    }

    /// A datagram arrives on the path with this number.
    ///
    /// # Panics
    ///
    /// When the state machine drops it, since the link damages nothing.
    pub(crate) fn receive(&mut self, now: Instant, path: u8, datagram: &[u8]) {
        let Self { kcp, transmitter, decoder, pending, .. } = self;
        if matches!(pending, Pending::Accept) {
            *pending = Pending::Nothing;
            kcp.require_validation(now, ALLOWANCE);
        }
        let flag = fec_flag(datagram);
        if flag == FecFlag::Plain || flag == FecFlag::Data {
            let header_len = if flag == FecFlag::Data { HEADER_LEN } else { 0 };
            let result = transmitter.receive(now, kcp, path, &datagram[header_len..]);
            assert_eq!(result, Ok(()), "a datagram of the peer is dropped");
        }
        if flag != FecFlag::Plain {
            let take = |recovered: &[u8]| kcp.input(now, recovered, PacketType::Fec).is_ok();
            match decoder {
                Decoder::Kcpx(decoder) => decoder.input(now, datagram, take),
                Decoder::Stock(decoder) => decoder.input(now, datagram, take),
            }
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.kcp.poll_timeout(), self.transmitter.deadline(&self.kcp)].into_iter().flatten().min()
    }

    /// Runs the timers that are due. Returns whether there were any.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        let due = self.poll_timeout().is_some_and(|at| at <= now);
        if due {
            self.kcp.handle_timeout(now);
        }
        due
    }
}

/// A datagram without FEC, without the ACKs that were sent before.
fn without_second_acks(sent: &mut HashSet<(u32, u32)>, datagram: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(datagram.len());
    for (header, payload) in Segments::new(datagram) {
        if header.command != Command::Ack || sent.insert((header.sn.0, header.ts.0)) {
            header.emit(&mut kept);
            kept.extend_from_slice(payload);
        }
    }
    kept
}
