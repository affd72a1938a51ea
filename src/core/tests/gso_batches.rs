//! Full segments in runs are what they are one by one.

use proptest::prelude::*;

use super::scripted_peer::{Lone, config, header};
use super::sim_plan::MILLIS;
use crate::config::{KcpConfig, Mode, Timing, WritePolicy};
use crate::core::segment::{Command, Segments};
use crate::core::seq::Sn;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Wait(u64),
    /// The peer acknowledges this one of those that left, and everything before it or not.
    Ack(u32, bool),
    /// A segment of the peer's, so many behind what it sent last.
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
        |(window, corked, messages, with_congestion, rate)| {
            let mut config = config();
            config.send_window = window;
            config.timing = if with_congestion { Timing::KCP_DEFAULT } else { Timing::TURBO };
            config.write_policy =
                if corked { WritePolicy::Delayed } else { WritePolicy::Immediate };
            config.mode = if messages { Mode::Message } else { Mode::Stream };
            config.rate_limit = rate.and_then(std::num::NonZeroU64::new);
            config
        },
    )
}

/// All datagrams that are due, and how many of them followed another.
fn leave(lone: &mut Lone, in_runs: bool) -> (Vec<Vec<u8>>, usize) {
    lone.expire();
    let now = lone.instant();
    let (mut all, mut followers) = (Vec::new(), 0);
    let mut bytes = Vec::new();
    while let Some(sent) = lone.kcp.poll_transmit(now, &mut bytes) {
        assert_eq!(sent.len, bytes.len());
        all.push(std::mem::take(&mut bytes));
        let mut next = |bytes: &mut Vec<u8>| {
            if in_runs && sent.gso_follows { lone.kcp.poll_transmit_more(bytes) } else { None }
        };
        while let Some(len) = next(&mut bytes) {
            assert_eq!(len, bytes.len());
            all.push(std::mem::take(&mut bytes));
            followers += 1;
        }
    }
    lone.kcp.check_invariants();
    (all, followers)
}

proptest! {
    #[test]
    fn runs_are_what_single_datagrams_are(
        config in setup(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut pair = [Lone::new(&config), Lone::new(&config)];
        let mut pushed = 0_u32;
        // Of the last transmission of each segment.
        let mut stamps = Vec::new();
        for step in steps {
            for lone in &mut pair {
                match step {
                    Step::Write(len) if config.mode == Mode::Stream => lone.write(vec![7; len]),
                    Step::Write(len) => {
                        // Refused where the window is full, by both.
                        let message = vec![7; len % 20_000];
                        let _ = lone.kcp.send_message(lone.instant(), message.into());
                    }
                    Step::Wait(time) => lone.now += time,
                    Step::Ack(pick, all) => {
                        // Rather one of the last.
                        let back = (pick % 40) as usize % stamps.len().max(1);
                        let sn = stamps.len().saturating_sub(1 + back);
                        let Some(stamp) = stamps.get(sn) else { continue };
                        if all {
                            lone.una = Sn(lone.una.0.max(sn as u32));
                        }
                        lone.give(header(Command::Ack, sn as u32, *stamp), b"");
                    }
                    Step::Push(behind) => lone.push(pushed.saturating_sub(behind), b"peer"),
                    Step::Window(window) => lone.wnd = window,
                }
            }
            if let Step::Push(_) = step {
                pushed += 1;
            }
            let [(singly, _), (in_runs, _)] = [(0, false), (1, true)]
                .map(|(i, in_runs)| leave(&mut pair[i], in_runs));
            prop_assert_eq!(&singly, &in_runs);
            for datagram in &singly {
                for (header, _) in Segments::new(datagram) {
                    // A probe's number is far behind all others.
                    if header.command == Command::Push && header.sn.since(pair[0].una) >= 0 {
                        let sn = header.sn.0 as usize;
                        stamps.resize(stamps.len().max(sn + 1), 0);
                        stamps[sn] = header.ts.0;
                    }
                }
            }
            prop_assert_eq!(pair[0].timeout(), pair[1].timeout());
        }
    }
}

#[test]
fn a_window_leaves_as_one_run_where_nothing_else_is_due() {
    let mut lone = Lone::new(&config());
    lone.write(vec![7; 1_000_000]);
    // What a peer has room for that has not said so yet.
    let (all, followers) = leave(&mut lone, true);
    assert_eq!((all.len(), followers), (32, 31));
}
