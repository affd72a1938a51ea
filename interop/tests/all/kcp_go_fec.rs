//! How a kcp-go receiver learns another FEC layout: what it needs between the groups of two layouts, and after
//! it. Packets are made here, so that every number of them can be tried.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kcpx::FecConfig;
use kcpx::fec::{DATA, FecEncoder, FecFlag, HEADER_LEN, fec_flag};
use kcpx::proto::segment::{Command, Header, Segments};
use kcpx::proto::seq::{Sn, Ts};
use kcpx_interop::kcp_go::{KcpGo, versions};
use kcpx_interop::link::Rng;
use tokio::net::UdpSocket;

const CONV: u32 = 0x0A0B_0C0D;
/// For an ACK; a recovered segment is acknowledged at once.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// For all ACKs of a group.
const DEADLINE: Duration = Duration::from_secs(60);
/// Seqid of a connection that has sent for a while.
const FIRST_SEQID: u32 = 1_000_000;
/// Packets in groups of the first layout, at least; autoTune remembers 258.
const PACKETS_BEFORE: usize = 400;
/// Groups that lack a packet, and have to be recovered, once the receiver is to know the layout.
const PROBES: usize = 5;
/// Probes that may fail: the receiver's socket drops a packet of a burst when it has no CPU for a while.
const SPARE_PROBES: usize = 2;
/// The same before the change, where only the layout that it was started with counts.
const MAX_LOST_PROBES: usize = 8;
/// Packets that the receiver's socket holds in any case.
const BURST: usize = 32;

/// A sender of segments in groups of two layouts.
struct Sender {
    socket: UdpSocket,
    encoder: FecEncoder,
    sn: u32,
    una: u32,
    groups: usize,
    rng: Rng,
    /// Parts in a million of the packets that are lost.
    loss: u32,
    /// Packets that arrived since the change.
    arrived: usize,
}

impl Sender {
    async fn connect(server: SocketAddr, layout: FecConfig) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(server).await.unwrap();
        let encoder = FecEncoder::starting_at(layout, FIRST_SEQID);
        Self { socket, encoder, sn: 0, una: 0, groups: 0, rng: Rng::new(1), loss: 0, arrived: 0 }
    }

    fn segment(sn: u32) -> Vec<u8> {
        let (command, ts, una) = (Command::Push, Ts(1), Sn(0));
        let mut out = Vec::new();
        Header { conv: CONV, command, frg: 0, wnd: 128, ts, sn: Sn(sn), una, len: 100 }
            .emit(&mut out);
        out.extend_from_slice(&[sn as u8; 100]);
        out
    }

    async fn send(&mut self, packet: &[u8]) {
        if !self.rng.chance(self.loss) {
            self.socket.send(packet).await.unwrap();
            self.arrived += 1;
            if self.arrived.is_multiple_of(BURST) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// The next segment as a data packet, and the parity that is due after it. The packet is lost if it is
    /// the `missing` one.
    async fn send_data(&mut self, is_missing: bool) {
        let mut packet = vec![0; HEADER_LEN];
        packet.extend(Self::segment(self.sn));
        self.sn += 1;
        let parities = self.encoder.seal(Instant::now(), &mut packet);
        if !is_missing {
            self.send(&packet).await;
        }
        for index in 0..parities {
            let mut parity = Vec::new();
            self.encoder.emit_parity(index, &mut parity);
            self.send(&parity).await;
        }
    }

    /// Sends a group. Its second packet is lost if it `probes`.
    async fn send_group(&mut self, probes: bool) {
        self.groups += 1;
        for i in 0..self.encoder.config().data_shards() {
            self.send_data(probes && i == 1).await;
        }
    }

    /// Changes the layout: at least `unprotected` data packets without parity from `seqid` on, up to where a
    /// group begins.
    async fn change(&mut self, layout: FecConfig, unprotected: u32, seqid: u32) {
        let sum = u32::try_from(layout.data_shards() + layout.parity_shards()).unwrap();
        let mut next = seqid;
        while next < seqid + unprotected || !next.is_multiple_of(sum) {
            let segment = Self::segment(self.sn);
            self.sn += 1;
            let size = u16::try_from(segment.len() + 2).unwrap();
            let mut packet = next.to_le_bytes().to_vec();
            packet.extend(DATA.to_le_bytes());
            packet.extend(size.to_le_bytes());
            packet.extend(segment);
            self.send(&packet).await;
            next += 1;
            if next.is_multiple_of(64) {
                // No more than the window of the receiver.
                self.retransmit_until_acked().await;
            }
        }
        self.encoder = FecEncoder::starting_at(layout, next);
    }

    /// Whether all segments have arrived, or are recovered, in a short time.
    async fn is_acked(&mut self) -> bool {
        let mut buffer = [0; 2_048];
        while self.una < self.sn {
            let received = tokio::time::timeout(ACK_TIMEOUT, self.socket.recv(&mut buffer)).await;
            let Ok(len) = received else { return false };
            let packet = &buffer[..len.unwrap()];
            let datagram = match fec_flag(packet) {
                FecFlag::Data => &packet[HEADER_LEN..],
                FecFlag::Plain => packet,
                _ => continue,
            };
            for (header, _) in Segments::new(datagram) {
                self.una = self.una.max(header.una.0);
            }
        }
        true
    }

    /// Retransmits what is not acknowledged, without FEC, so that the receiver's autoTune does not see it.
    async fn retransmit_until_acked(&mut self) {
        let result = tokio::time::timeout(DEADLINE, async {
            loop {
                for sn in self.una..self.sn {
                    self.socket.send(&Self::segment(sn)).await.unwrap();
                }
                if self.is_acked().await {
                    return;
                }
            }
        });
        result.await.expect("the peer acknowledges");
    }

    /// The number of groups with a packet that the receiver recovers: all, or until more than `failures`
    /// were not recovered, as by a receiver that had no CPU for a while.
    async fn probe(&mut self, groups: usize, failures: usize) -> usize {
        self.loss = 0;
        let (mut recovered, mut failed) = (0, 0);
        while recovered < groups && failed <= failures {
            self.send_group(true).await;
            if self.is_acked().await {
                recovered += 1;
            } else {
                failed += 1;
                self.retransmit_until_acked().await;
            }
        }
        recovered
    }
}

/// The reaction of a receiver to groups of another layout.
#[derive(Debug)]
struct Outcome {
    /// Whether it recovers packets of the new layout.
    learned: bool,
    /// Packets that it computed out of groups of both layouts; counted where nothing else is lost.
    wrong: u64,
    /// Packets that arrived after the last group of the old layout and before the probes.
    arrived: usize,
}

/// `unprotected` packets without parity, then `groups` whole groups of the new layout, then probes,
/// of which at most `failures` may fail.
async fn change_of_layout(
    version: KcpGo,
    (before, after): (FecConfig, FecConfig),
    (unprotected, groups): (u32, usize),
    loss: u32,
    failures: usize,
) -> Outcome {
    let fec = format!("{}/{}", before.data_shards(), before.parity_shards());
    let (program, server) = version.serve(["--fec", &fec, "--sink"]).await.unwrap();
    let mut sender = Sender::connect(server, before).await;
    let sum = before.data_shards() + before.parity_shards();
    let groups_before = PACKETS_BEFORE.div_ceil(sum);
    for _ in 0..groups_before {
        sender.send_group(false).await;
        sender.retransmit_until_acked().await;
    }
    let known = sender.probe(2, MAX_LOST_PROBES).await;
    assert_eq!(known, 2, "{version} does not recover its own layout");
    (sender.loss, sender.arrived) = (loss, 0);
    let (sum, groups_sent) = (u32::try_from(sum).unwrap(), u32::try_from(sender.groups).unwrap());
    let seqid = FIRST_SEQID.next_multiple_of(sum) + groups_sent * sum;
    sender.change(after, unprotected, seqid).await;
    for _ in 0..groups {
        sender.send_group(false).await;
        sender.retransmit_until_acked().await;
    }
    let arrived = sender.arrived;
    let recovered = sender.probe(PROBES, failures).await;
    let report = program.finish().await.unwrap();
    let computed = report["snmp"]["FECRecovered"].as_u64().unwrap();
    let wrong = if loss == 0 { computed.saturating_sub((known + recovered) as u64) } else { 0 };
    Outcome { learned: recovered == PROBES, wrong, arrived }
}

fn layout(data: usize, parity: usize) -> FecConfig {
    FecConfig::new(data, parity).unwrap()
}

/// As `FecEncoder::set_config` does it: 516 packets without parity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcp_go_learns_another_fec_layout_after_516_packets_without_parity() {
    let layouts = (layout(10, 3), layout(5, 2));
    for version in versions() {
        for loss in [0, 100_000] {
            let outcome = change_of_layout(version, layouts, (516, 40), loss, SPARE_PROBES).await;
            println!("{version}, {} % lost: {outcome:?}", loss / 10_000);
            assert!(outcome.learned && outcome.wrong == 0, "{version}, {loss}: {outcome:?}");
        }
    }
}

/// Prints for each number of packets without parity how many groups the receiver needs, and what it computes
/// wrongly until then: the table of docs/interop.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes"]
async fn fec_layouts_of_kcp_go_by_packets_without_parity() {
    // Six of eight places have the same kind in both layouts of the second pair: enough to mix groups.
    let pairs = [(layout(10, 3), layout(5, 2)), (layout(6, 2), layout(3, 1))];
    for version in versions() {
        for (layouts, loss) in pairs.into_iter().flat_map(|pair| [(pair, 0), (pair, 100_000)]) {
            for unprotected in [0, 128, 192, 240, 258, 290, 350, 516] {
                let (mut wrong, mut needed) = (0, None);
                for groups in [0, 1, 2, 4, 8, 16, 32, 40, 48, 64, 80] {
                    let outcome =
                        change_of_layout(version, layouts, (unprotected, groups), loss, 0).await;
                    wrong = wrong.max(outcome.wrong);
                    if outcome.learned {
                        needed = Some((groups, outcome.arrived));
                        break;
                    }
                }
                println!(
                    "{version}, {:?}, {} % lost, {unprotected} without parity: groups and packets \
                     needed {needed:?}, {wrong} wrong",
                    layouts.1,
                    loss / 10_000
                );
            }
        }
    }
}

/// Larger groups have lower numbers, which are late ones to 5.6.72 until they pass the old ones. Its autoTune takes no sum of 256.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcp_go_5_7_5_learns_groups_of_256_and_larger_groups() {
    let cases = [
        (layout(10, 3), layout(20, 4), false),
        (layout(249, 6), layout(250, 5), true),
        (layout(250, 6), layout(251, 5), false),
    ];
    for version in versions() {
        for (before, after, old_learns) in cases {
            let learns = old_learns || version.to_string() == "kcp-go 5.7.5";
            // A burst of such a group may lose packets, from which a peer learns nothing: another one may try.
            let mut learned = false;
            for _ in 0..3 {
                let layouts = (before, after);
                let outcome = change_of_layout(version, layouts, (516, 4), 0, SPARE_PROBES).await;
                println!("{version}, {before:?} to {after:?}: {outcome:?}");
                learned = outcome.learned;
                if learned || !learns {
                    break;
                }
            }
            assert_eq!(learned, learns, "{version}, {before:?} to {after:?}");
        }
    }
}
