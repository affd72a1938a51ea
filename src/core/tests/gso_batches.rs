//! GSO batches: `poll_transmit_more` writes the same datagrams as `poll_transmit` one by one.

use proptest::prelude::*;

use super::scripted_peer::{ScriptedPeer, config, header};
use super::sim_plan::MILLIS;
use crate::config::{CongestionControl, KcpConfig, Mode, Timing, WritePolicy};
use crate::core::segment::{Command, Segments};
use crate::core::seq::Sn;
use crate::util::Framing;

/// Framing of the datagrams that `poll_transmit_more` writes.
const FRAMING: Framing = Framing { header_len: 20, trailer_len: 16 };

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Wait(u64),
    /// The peer acknowledges one of the sent segments; `true`: with `una`, also all before it.
    Ack(u32, bool),
    /// A PUSH of the peer, this many numbers before its latest.
    Push(u32),
    Window(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1_usize..200_000).prop_map(Step::Write),
        2 => (0_u64..400 * MILLIS).prop_map(Step::Wait),
        4 => (any::<u32>(), any::<bool>()).prop_map(|(pick, all)| Step::Ack(pick, all)),
        2 => (0_u32..4).prop_map(Step::Push),
        1 => (0_u16..300).prop_map(Step::Window),
    ]
}

fn setup() -> impl Strategy<Value = KcpConfig> {
    let rate = prop_oneof![Just(None), (10_000_u64..50_000_000).prop_map(Some)];
    (1_u16..300, any::<bool>(), any::<bool>(), any::<bool>(), rate).prop_map(
        |(window, delayed, messages, with_congestion, rate)| {
            let mut config = config();
            config.send_window = window;
            (config.timing, config.congestion_control) = if with_congestion {
                (Timing::KCP_DEFAULT, CongestionControl::Reno)
            } else {
                (Timing::FAST3, CongestionControl::Bbr)
            };
            config.write_policy =
                if delayed { WritePolicy::Delayed } else { WritePolicy::Immediate };
            config.mode = if messages { Mode::Message } else { Mode::Stream };
            config.rate_limit = rate.and_then(std::num::NonZeroU64::new);
            config
        },
    )
}

/// All due datagrams, and how many of them `poll_transmit_more` wrote.
fn transmit(script: &mut ScriptedPeer, in_batches: bool) -> (Vec<Vec<u8>>, usize) {
    script.expire();
    let now = script.instant();
    let (mut all, mut followers) = (Vec::new(), 0);
    let mut bytes = Vec::new();
    while let Some(sent) = script.kcp.poll_transmit(now, &mut bytes) {
        assert_eq!(sent.len, bytes.len());
        all.push(std::mem::take(&mut bytes));
        if !in_batches || !sent.gso_follows {
            continue;
        }
        for max in [1, 3, usize::MAX] {
            let (mtu, framing) = (script.kcp.current_mtu(), FRAMING);
            let count = script.kcp.poll_transmit_more(max, framing, &mut bytes);
            assert!(count <= max && bytes.len() == count * framing.around(mtu));
            for datagram in bytes.chunks(framing.around(mtu)) {
                let (head, rest) = datagram.split_at(framing.header_len);
                let (datagram, tail) = rest.split_at(mtu);
                assert!(head.iter().chain(tail).all(|byte| *byte == 0));
                all.push(datagram.to_vec());
            }
            bytes.clear();
            followers += count;
            if count < max {
                break;
            }
        }
    }
    script.kcp.check_invariants();
    (all, followers)
}

proptest! {
    #[test]
    fn gso_batches_equal_single_datagrams(
        config in setup(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut pair = [ScriptedPeer::new(&config), ScriptedPeer::new(&config)];
        let mut pushed = 0_u32;
        // Timestamp of the last transmission of each segment.
        let mut timestamps = Vec::new();
        for step in steps {
            for script in &mut pair {
                match step {
                    Step::Write(len) if config.mode == Mode::Stream => script.write(vec![7; len]),
                    Step::Write(len) => {
                        // An error where the send window is full, in both.
                        let message = vec![7; len % 20_000];
                        let _ = script.kcp.send_message(script.instant(), message.into());
                    }
                    Step::Wait(time) => script.now += time,
                    Step::Ack(pick, all) => {
                        // One of the latest 40.
                        let back = (pick % 40) as usize % timestamps.len().max(1);
                        let sn = timestamps.len().saturating_sub(1 + back);
                        let Some(ts) = timestamps.get(sn) else { continue };
                        if all {
                            script.una = Sn(script.una.0.max(sn as u32));
                        }
                        script.give(header(Command::Ack, sn as u32, *ts), b"");
                    }
                    Step::Push(behind) => script.push(pushed.saturating_sub(behind), b"peer"),
                    Step::Window(window) => script.wnd = window,
                }
            }
            if let Step::Push(_) = step {
                pushed += 1;
            }
            let [(singly, _), (in_batches, _)] = [(0, false), (1, true)]
                .map(|(i, in_batches)| transmit(&mut pair[i], in_batches));
            prop_assert_eq!(&singly, &in_batches);
            for datagram in &singly {
                for (header, _) in Segments::new(datagram) {
                    // Pings have numbers far behind all others.
                    if header.command == Command::Push && header.sn.since(pair[0].una) >= 0 {
                        let sn = header.sn.0 as usize;
                        timestamps.resize(timestamps.len().max(sn + 1), 0);
                        timestamps[sn] = header.ts.0;
                    }
                }
            }
            prop_assert_eq!(pair[0].timeout(), pair[1].timeout());
            let [singly, in_batches] = [0, 1].map(|i| format!("{:?}", pair[i].kcp.stats()));
            prop_assert_eq!(singly, in_batches);
        }
    }
}

#[test]
fn gso_batch_with_nothing_else_due_is_the_whole_window() {
    let mut script = ScriptedPeer::new(&config());
    script.write(vec![7; 1_000_000]);
    // 32: the window assumed before the peer advertised one.
    let (all, followers) = transmit(&mut script, true);
    assert_eq!((all.len(), followers), (32, 31));
}
