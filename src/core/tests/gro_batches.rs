//! GRO batches: `input_more` leaves the same state as `input` of each datagram.

use bytes::Bytes;
use proptest::prelude::*;

use super::scripted_peer::{ScriptedPeer, config, datagram, header};
use super::sim_plan::MILLIS;
use crate::config::{AckPolicy, KcpConfig, Mode};
use crate::core::connection::PacketType;
use crate::core::segment::{Command, ControlType, HEADER_LEN, Header, Segments};
use crate::core::seq::Sn;

/// Bytes of a datagram of a batch; the last one may be shorter.
const SIZE: usize = 96;

/// A datagram of the peer.
#[derive(Clone, Copy, Debug)]
enum Datagram {
    /// The next segment in order.
    Data,
    /// A shorter segment: the last of its batch.
    Short,
    /// A skipped number.
    Lost,
    /// A recent number again.
    Again(u32),
    /// Two segments of data.
    Two,
    /// An ACK of the latest segment of ours, before data.
    Ack,
    /// A window probe before data.
    WindowProbe,
    /// Data with another window or another, perhaps older, `una` from here on.
    Window(u16),
    Una(u32),
    /// Data with an invalid header.
    Malformed(usize),
    /// Data with the number and the timestamp of a segment of ours.
    Reflected,
    /// A FIN this number of segments ahead, before data.
    Fin(u32),
}

#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<Datagram>),
    Write(usize),
    Wait(u64),
    Read,
    Transmit,
    ShutdownRead,
}

fn any_datagram() -> impl Strategy<Value = Datagram> {
    prop_oneof![
        40 => Just(Datagram::Data),
        1 => Just(Datagram::Short),
        1 => Just(Datagram::Lost),
        2 => (1_u32..6).prop_map(Datagram::Again),
        1 => Just(Datagram::Two),
        1 => Just(Datagram::Ack),
        1 => Just(Datagram::WindowProbe),
        1 => (0_u16..300).prop_map(Datagram::Window),
        1 => any::<u32>().prop_map(Datagram::Una),
        1 => (0_usize..HEADER_LEN).prop_map(Datagram::Malformed),
        1 => Just(Datagram::Reflected),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let batch = || prop::collection::vec(any_datagram(), 1..40);
    prop_oneof![
        8 => batch().prop_map(Step::Batch),
        1 => (batch(), 0_u32..20).prop_map(|(mut batch, ahead)| {
            batch.insert(batch.len() / 2, Datagram::Fin(ahead));
            Step::Batch(batch)
        }),
        3 => (1_usize..4_000).prop_map(Step::Write),
        3 => (0_u64..100 * MILLIS).prop_map(Step::Wait),
        4 => Just(Step::Read),
        4 => Just(Step::Transmit),
        1 => Just(Step::ShutdownRead),
    ]
}

fn setup() -> impl Strategy<Value = KcpConfig> {
    let window = prop_oneof![Just(None), (1_u16..300).prop_map(Some)];
    let policy = prop::sample::select(vec![AckPolicy::PerBatch, AckPolicy::Interval]);
    (window, policy, prop::bool::weighted(0.1)).prop_map(|(window, ack_policy, messages)| {
        let mut config = config();
        config.recv_window = window.unwrap_or(config.recv_window);
        config.auto_windows = window.is_none();
        config.mode = if messages { Mode::Message } else { Mode::Stream };
        KcpConfig { ack_policy, ..config }
    })
}

/// Bytes of a segment after which the memory of the window holds fewer segments than the window.
fn large_segment() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![Just(None), (1_540_usize..60_000).prop_map(Some)]
}

/// The peer: next numbers to send, and received segments.
struct Peer {
    sn: u32,
    una: u32,
    wnd: u16,
    /// Timestamps of the segments received.
    timestamps: Vec<u32>,
}

impl Peer {
    fn segment(&self, command: Command, sn: u32, ts: u32) -> Header {
        let (una, wnd) = (Sn(self.una), self.wnd);
        Header { una, wnd, ..header(command, sn, ts) }
    }

    fn push(&mut self, ts: u32) -> Header {
        self.sn += 1;
        self.segment(Command::Push, self.sn - 1, ts)
    }

    /// The bytes of a datagram; empty if it is lost.
    fn datagram(&mut self, kind: Datagram, now: u32) -> Vec<u8> {
        let payload = [self.sn as u8; SIZE];
        let full = &payload[HEADER_LEN..];
        let half = &payload[2 * HEADER_LEN..];
        let latest = self.timestamps.len().saturating_sub(1) as u32;
        let latest_ts = self.timestamps.last().copied().unwrap_or(0);
        match kind {
            Datagram::Window(wnd) => self.wnd = wnd,
            Datagram::Una(any) => self.una = any % (self.timestamps.len() as u32 + 1),
            _ => {}
        }
        match kind {
            Datagram::Data | Datagram::Window(_) | Datagram::Una(_) => {
                datagram(&[(self.push(now + self.sn % 3), full)])
            }
            Datagram::Short => datagram(&[(self.push(now), &full[..10])]),
            Datagram::Lost => {
                self.sn += 1;
                Vec::new()
            }
            Datagram::Again(back) => {
                let sn = self.sn.saturating_sub(back);
                datagram(&[(self.segment(Command::Push, sn, now), full)])
            }
            Datagram::Two => {
                let (first, second) = half.split_at(half.len() / 2);
                datagram(&[(self.push(now), first), (self.push(now), second)])
            }
            Datagram::Ack => {
                let ack = self.segment(Command::Ack, latest, latest_ts);
                datagram(&[(ack, b""), (self.push(now), half)])
            }
            Datagram::WindowProbe => {
                let probe = self.segment(Command::WindowProbe, 7, 0);
                datagram(&[(probe, b""), (self.push(now), half)])
            }
            Datagram::Malformed(at) => {
                let mut bytes = datagram(&[(self.segment(Command::Push, self.sn, now), full)]);
                bytes[at] ^= 0x80;
                bytes
            }
            Datagram::Reflected => {
                let ts = self.timestamps.get(self.sn as usize).copied();
                let push = self.segment(Command::Push, self.sn, ts.unwrap_or(latest_ts));
                datagram(&[(push, full)])
            }
            Datagram::Fin(ahead) => {
                let fin = self.segment(Command::Control, self.sn + ahead, now);
                let fin = Header { frg: ControlType::Fin as u8, ..fin };
                datagram(&[(fin, b""), (self.push(now), half)])
            }
        }
    }
}

/// Feeds a batch as the driver does, or one datagram after the other. Returns how many
/// `input_more` took.
fn input(script: &mut ScriptedPeer, batch: &[u8], together: bool) -> usize {
    let (now, mut rest, mut taken) = (script.instant(), batch, 0);
    while !rest.is_empty() {
        let (first, others) = rest.split_at(rest.len().min(SIZE));
        rest = others;
        if !script.kcp.is_reflection(first) {
            let _ = script.kcp.input(now, first, PacketType::Regular);
        }
        if together {
            let (mut asked, left) = (0, rest);
            let may_follow = script.kcp.may_input_more(first);
            let datagrams = left.chunks(SIZE).inspect(|_| asked += 1);
            let count = script.kcp.input_more(now, first, datagrams);
            assert!((count..=count + 1).contains(&asked));
            assert!(may_follow || count == 0, "the driver would not have asked");
            rest = &left[left.len().min(count * SIZE)..];
            taken += count;
        }
    }
    script.kcp.check_invariants();
    taken
}

fn transmit(script: &mut ScriptedPeer) -> Vec<Vec<u8>> {
    script.expire();
    let (mut all, mut bytes) = (Vec::new(), Vec::new());
    while script.kcp.poll_transmit(script.instant(), &mut bytes).is_some() {
        all.push(std::mem::take(&mut bytes));
    }
    all
}

fn step_both(pair: &mut [ScriptedPeer; 2], peer: &mut Peer, step: Step) {
    match step {
        Step::Batch(kinds) => {
            let now = (pair[0].now / MILLIS) as u32;
            let mut batch = Vec::new();
            for kind in kinds {
                batch.extend(peer.datagram(kind, now));
                if !batch.len().is_multiple_of(SIZE) {
                    break;
                }
            }
            input(&mut pair[0], &batch, false);
            input(&mut pair[1], &batch, true);
        }
        Step::Transmit => {
            let sent = transmit(&mut pair[0]);
            assert_eq!(sent, transmit(&mut pair[1]));
            for (header, _) in sent.iter().flat_map(|datagram| Segments::new(datagram)) {
                if header.command == Command::Push && header.sn.0 as usize == peer.timestamps.len()
                {
                    peer.timestamps.push(header.ts.0);
                }
            }
        }
        Step::Wait(time) => pair.iter_mut().for_each(|script| script.now += time),
        Step::Write(len) => pair.iter_mut().for_each(|script| script.write(vec![7; len])),
        Step::ShutdownRead => pair.iter_mut().for_each(|script| script.kcp.shutdown_read()),
        Step::Read => {
            let [singly, together] = pair;
            assert_eq!(singly.kcp.recv(), together.kcp.recv());
        }
    }
}

/// A connection whose peer is validated, twice.
fn validated_pair(config: &KcpConfig) -> ([ScriptedPeer; 2], Peer) {
    let origin = super::origin();
    let mut pair = [0, 1].map(|_| ScriptedPeer::starting_at(config, origin));
    let mut peer = Peer { sn: 0, una: 0, wnd: 128, timestamps: Vec::new() };
    step_both(&mut pair, &mut peer, Step::Write(10));
    step_both(&mut pair, &mut peer, Step::Transmit);
    step_both(&mut pair, &mut peer, Step::Wait(10 * MILLIS));
    step_both(&mut pair, &mut peer, Step::Batch(vec![Datagram::Ack]));
    (pair, peer)
}

proptest! {
    #[test]
    fn gro_batches_equal_single_datagrams(
        config in setup(),
        large in large_segment(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let (mut pair, mut peer) = validated_pair(&config);
        if let Some(len) = large {
            let segment = datagram(&[(peer.push(10), &vec![7; len])]);
            for script in &mut pair {
                let _ = script.kcp.input(script.instant(), &segment, PacketType::Regular);
            }
            step_both(&mut pair, &mut peer, Step::Read);
        }
        for step in steps {
            step_both(&mut pair, &mut peer, step);
            let [singly, together] = pair.each_ref().map(|script| format!("{:?}", script.kcp));
            prop_assert_eq!(singly, together);
            prop_assert_eq!(pair[0].timeout(), pair[1].timeout());
        }
    }
}

#[test]
fn gro_batch_in_order_is_taken_behind_its_first_datagram() {
    let (mut pair, mut peer) = validated_pair(&config());
    let mut batch: Vec<u8> = (0..30).flat_map(|_| peer.datagram(Datagram::Data, 10)).collect();
    batch.extend(peer.datagram(Datagram::Short, 10));
    assert_eq!(input(&mut pair[1], &batch, true), 30);
    assert_eq!(pair[1].kcp.stats().received.segments, 1 + 31);
    let acks = transmit(&mut pair[1]);
    assert_eq!(acks.len(), 1, "one ACK, of the latest");
    let (ack, _) = Segments::new(&acks[0]).next().unwrap();
    assert_eq!((ack.command, ack.sn, ack.una), (Command::Ack, Sn(31), Sn(32)));
}

#[test]
fn gro_batch_is_taken_up_to_a_gap_and_again_behind_it() {
    let (mut pair, mut peer) = validated_pair(&config());
    let all: Vec<_> = (0..30).map(|_| peer.datagram(Datagram::Data, 10)).collect();
    let mut batch = all.clone();
    let lost = batch.remove(10);
    assert_eq!(input(&mut pair[1], &batch.concat(), true), 9);
    // The datagram that fills the gap goes through `input`, and nothing is left behind it.
    assert_eq!(input(&mut pair[1], &lost, true), 0);
    let mut received = Bytes::from(pair[1].read_all());
    drop(received.split_to(SIZE - 2 * HEADER_LEN));
    let payloads = all.iter().flat_map(|datagram| datagram[HEADER_LEN..].to_vec());
    assert!(received.iter().copied().eq(payloads));
}

#[test]
fn gro_batch_holds_whole_segments_of_data_alone_in_their_datagrams() {
    const DATA: &[u8] = &[7; 10];
    type Case = (&'static str, fn(&Peer, u32) -> Vec<u8>);
    let cases: [Case; 4] = [
        ("two segments", |peer, sn| {
            let two = [sn, sn + 1].map(|sn| (peer.segment(Command::Push, sn, 10), DATA));
            datagram(&two)
        }),
        ("a cut-off segment", |peer, sn| {
            let mut cut_off = datagram(&[(peer.segment(Command::Push, sn, 10), DATA)]);
            cut_off.pop();
            cut_off
        }),
        ("a ping", |peer, sn| datagram(&[(peer.segment(Command::Push, sn, 10), b"")])),
        ("an ACK", |peer, sn| datagram(&[(peer.segment(Command::Ack, sn, 10), b"")])),
    ];
    for (name, other) in cases {
        let ([_, mut script], mut peer) = validated_pair(&config());
        let first = peer.datagram(Datagram::Data, 10);
        input(&mut script, &first, true);
        assert!(script.kcp.may_input_more(&first));
        let now = script.instant();
        let [before, next] = [peer.sn - 1, peer.sn].map(|sn| other(&peer, sn));
        assert!(!script.kcp.may_input_more(&before), "{name} begins a batch");
        for previous in [&first, &before] {
            let taken = script.kcp.input_more(now, previous, std::iter::once(&next[..]));
            assert_eq!(taken, 0, "{name} continues a batch");
        }
    }
}
