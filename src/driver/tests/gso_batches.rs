//! Full segments that pass FEC and cipher in a run become the same datagrams as single segments.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::sim_world::addr;
use crate::config::{Config, CongestionControl, KcpConfig, Redundancy, Timing};
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::segment::{Command, Header, Segments};
use crate::core::seq::Sn;
use crate::crypto::{Algorithm, Cipher};
use crate::driver::fec::FecSender;
use crate::driver::output::send_batch::SendBatch;
use crate::driver::output::{Copies, PacketCodec, PacketWriter};
use crate::fec::{FecConfig, FecFlag, HEADER_LEN, fec_flag};
use crate::testkit::rng::Rng;
use crate::util::path::Path;

const CONV: u32 = 7;

/// One side of the comparison.
struct Sender {
    kcp: Kcp,
    codec: PacketCodec,
    fec: Option<FecSender>,
    tx: SendBatch,
}

impl Sender {
    fn new(now: Instant, config: &Config, kcp: &KcpConfig) -> Self {
        let kcp = Kcp::with_config(CONV, kcp, now, Seed::default()).unwrap();
        let fec = config.kcp.redundancy.fec().map(FecSender::new);
        Self { kcp, codec: PacketCodec::new(config, [3; 32]), fec, tx: SendBatch::default() }
    }

    /// All due datagrams, and how many of them were written in a run.
    fn transmit(&mut self, now: Instant, singly: bool) -> (Vec<Vec<u8>>, usize) {
        let Self { kcp, codec, fec, tx } = self;
        let (mut all, mut in_runs, mut in_gso_batch) = (Vec::new(), 0, false);
        kcp.handle_timeout(now);
        loop {
            let mut out = PacketWriter { tx, codec, fec: fec.as_mut() };
            let sent =
                out.transmit(now, kcp, Path::to(addr(1)), Copies::default(), in_gso_batch, 100);
            if sent.datagrams == 0 && !in_gso_batch {
                break;
            }
            in_runs += if in_gso_batch { sent.datagrams } else { 0 };
            in_gso_batch = !singly && sent.in_gso_batch && sent.datagrams > 0;
            codec.seal(tx);
            tx.drain(|_, datagram| all.push(datagram.to_vec()));
        }
        let mut out = PacketWriter { tx, codec, fec: fec.as_mut() };
        out.close_group(now, kcp, Path::to(addr(1)));
        codec.seal(tx);
        tx.drain(|_, datagram| all.push(datagram.to_vec()));
        (all, in_runs)
    }

    /// Opens a datagram. Returns the segments of its KCP datagram; parity has none.
    fn headers(codec: &PacketCodec, mut datagram: Vec<u8>) -> Vec<Header> {
        let body = codec.open(&mut datagram).unwrap().body;
        let kcp = match fec_flag(body) {
            FecFlag::Data => &body[HEADER_LEN..],
            FecFlag::Plain => body,
            FecFlag::Parity | FecFlag::OutOfBand => return Vec::new(),
        };
        Segments::new(kcp).map(|(header, _)| header).collect()
    }
}

fn setup(rng: &mut Rng) -> (Config, KcpConfig) {
    let ciphers = [Algorithm::Null, Algorithm::Aes128Gcm, Algorithm::Aes128, Algorithm::None];
    let cipher = Cipher::new(rng.pick(&ciphers), &[7; 16]).unwrap();
    let config = Config::new().cipher(cipher);
    let config = match rng.pick(&[None, Some((10, 3)), Some((3, 2)), Some((1, 1))]) {
        Some((data, parity)) => {
            config.redundancy(Redundancy::Fec(FecConfig::new(data, parity).unwrap()))
        }
        None => config,
    };
    let send_window = rng.pick(&[32, 200, 1_024]);
    let (timing, congestion_control) = rng.pick(&[
        (Timing::FAST3, CongestionControl::Bbr),
        (Timing::KCP_DEFAULT, CongestionControl::Reno),
    ]);
    let rate_limit = rng.pick(&[None, None, std::num::NonZeroU64::new(5_000_000)]);
    let rest = KcpConfig::default();
    (config, KcpConfig { send_window, timing, congestion_control, rate_limit, ..rest })
}

/// Writes and acknowledges for a while. Returns how many datagrams were written in runs.
fn compare(seed: u64, start: Instant) -> usize {
    let mut rng = Rng::new(seed);
    let (config, kcp) = setup(&mut rng);
    let mut pair = [0, 1].map(|_| Sender::new(start, &config, &kcp));
    // An endpoint drops its own datagrams.
    let reader = PacketCodec::new(&config, [4; 32]);
    let (mut now, mut in_runs, mut unacked) = (start, 0, Vec::new());
    for round in 0..60 {
        let data = Bytes::from(vec![round; rng.pick(&[10, 3_000, 60_000, 200_000])]);
        pair.iter_mut().for_each(|side| side.kcp.send(now, data.clone()));
        let [(singly, _), (in_batches, count)] =
            [(0, true), (1, false)].map(|(side, singly)| pair[side].transmit(now, singly));
        assert_eq!(singly, in_batches, "seed {seed}, round {round}");
        in_runs += count;
        let sent = singly.into_iter().flat_map(|datagram| Sender::headers(&reader, datagram));
        unacked.extend(sent.filter(|header| header.command == Command::Push));
        now += Duration::from_micros(rng.pick(&[100, 3_000, 40_000]));
        // Some are lost.
        let mut acks = Vec::new();
        let loss = if seed.is_multiple_of(2) { 0 } else { 50_000 };
        let received = unacked.drain(..).filter(|_| !rng.chance(loss));
        for header in received {
            let una = if loss == 0 { header.sn.advance(1) } else { Sn(0) };
            Header { command: Command::Ack, frg: 0, wnd: 2_000, una, len: 0, ..header }
                .emit(&mut acks);
        }
        for side in &mut pair {
            let _ = side.kcp.input(now, &acks, PacketType::Regular);
        }
        let [singly, in_batches] = pair.each_ref().map(|side| format!("{:?}", side.kcp.stats()));
        assert_eq!(singly, in_batches, "seed {seed}, round {round}");
    }
    in_runs
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
fn runs_through_fec_and_cipher_equal_single_datagrams() {
    let start = Instant::now();
    let in_runs: usize = (0..100).map(|seed| compare(seed, start)).sum();
    println!("{in_runs} datagrams in runs");
    assert!(in_runs > 20_000, "{in_runs}");
}
