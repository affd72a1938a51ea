//! Receive windows that close, shrink, are smaller than the initial assumption, or whose updates are lost;
//! ACKs under a rate limit; delivery buffers.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::Duration;

use super::report::explained;
use super::scripted_peer::{ScriptedPeer, commands, config, header};
use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, Reading, SECOND};
use crate::config::{AckPolicy, CongestionControl, KcpConfig, KeepaliveInterval, Timing};
use crate::core::segment::{Command, HEADER_LEN, Segments};
use crate::core::seq::Sn;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;

/// A reader pauses, and the path loses every window update. Once it delivers again, data flows within the
/// longest interval of window probes plus a round trip (RFC 9293 3.8.6.1).
#[test]
fn zero_window_with_lost_updates_reopens_within_the_probe_limit() {
    for lost_for in [0, SECOND, 7 * SECOND, 60 * SECOND, 600 * SECOND] {
        let mut plan = Plan::plain("closed window");
        let pause = (100 * MILLIS, 20 * SECOND);
        plan.sides[0].traffic.bytes = 400_000;
        plan.sides[1].config.recv_window = 32;
        plan.sides[1].reading = Reading { chunks: 1_000, every: 1, pause };
        plan.chaos = pause.1 + lost_for;
        let mut sim = Sim::new(&plan);
        let until = plan.chaos;
        sim.filter = Some(Box::new(move |now, from, _| {
            from == 0 || !(pause.0 + SECOND..until).contains(&now)
        }));
        explained(&plan, || {
            sim.start();
            sim.run_until(until);
            let (read, mut flowed) = (sim.sides[1].read, None);
            assert!(sim.sides[0].kcp.stats().probes.zero_window >= 3, "window probes go on");
            while flowed.is_none() {
                sim.step();
                flowed = (sim.sides[1].read > read).then_some(sim.now - until);
            }
            // Half a round trip for the window probe, one for the update and the data.
            assert!(flowed.unwrap() <= 5 * SECOND + 60 * MILLIS, "{flowed:?}");
            sim.run();
        });
    }
}

/// The window closed before there was data to send.
#[test]
fn window_probe_after_closing_on_the_last_byte_is_sent() {
    let mut script = ScriptedPeer::new(&config());
    script.write(vec![1; 100]);
    script.out();
    script.now = 40 * MILLIS;
    (script.una, script.wnd) = (Sn(1), 0);
    script.ack(0, 0);
    assert_eq!(script.timeout(), None);
    script.now = 10 * SECOND;
    script.write(vec![2; 100]);
    let probes: Vec<_> = script.run(40 * SECOND).into_iter().map(|(at, _)| at / MILLIS).collect();
    assert_eq!(probes, [10_500, 11_500, 13_500, 17_500, 22_500, 27_500, 32_500, 37_500]);
}

/// A peer with a slow reader sends ACKs for all segments but does not advance `una` (kcp-go `parse_data`).
/// Its window update may be lost, so the sender must probe.
#[test]
fn window_probe_while_una_is_held_back_is_sent() {
    for more in [false, true] {
        let mut script = ScriptedPeer::new(&config());
        script.write(vec![1; 1_376 * 4]);
        script.out();
        script.now = 40 * MILLIS;
        script.wnd = 0;
        for sn in 0..4 {
            script.ack(sn, 0);
        }
        if more {
            script.write(vec![2; 5_000]);
        }
        assert!(!script.kcp.is_drained());
        let sent = script.run(10 * SECOND);
        assert!(sent.iter().all(|(_, (header, _))| header.command == Command::WindowProbe));
        assert!(sent.len() >= 3, "{sent:?}");
        (script.una, script.wnd) = (Sn(4), 128);
        script.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
        assert_eq!(script.kcp.is_drained(), !more);
        assert_eq!(script.out().len(), if more { 4 } else { 0 });
    }
}

/// Window updates in any order, some of them duplicated: the right edge is the furthest one advertised.
#[test]
fn window_updates_reordered_keep_the_furthest_edge() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut script = ScriptedPeer::new(&config());
        script.write(vec![1; 1_376 * 32]);
        script.out();
        script.now = 40 * MILLIS;
        // `una` grows, and the right edge never moves back.
        let mut edge = 40;
        let mut updates = Vec::new();
        let last = rng.range(2, 20) as u32;
        for una in 1..=last {
            for _ in 0..2 {
                edge += rng.below(20) as u32;
                updates.push((Sn(una), (edge - una) as u16));
            }
        }
        // One duplicate only: three updates that agree on a smaller edge would be accepted.
        updates.push(rng.pick(&updates));
        for i in (1..updates.len()).rev() {
            updates.swap(i, rng.below(i as u64 + 1) as usize);
        }
        for (una, wnd) in updates {
            script.now += rng.below(20 * MILLIS);
            (script.una, script.wnd) = (una, wnd);
            script.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
        }
        assert_eq!(script.kcp.send.remote.available(Sn(last)), edge - last, "seed {seed}");
    }
}

/// Before the peer advertised its window, 32 segments are sent (IKCP_WND_RCV); the discarded ones are
/// retransmitted.
#[test]
fn window_smaller_than_the_initial_one_delays_by_seconds_at_most() {
    for window in [1, 2, 5, 31, 32, 33] {
        let mut plan = Plan::plain("small window");
        plan.sides[1].config.recv_window = window;
        plan.sides[0].traffic.bytes = 100 * 1_376;
        let outcome = Sim::new(&plan).run();
        let [sender, receiver] = outcome.stats;
        println!(
            "window {window}: {} ms, {} retransmitted, {} out of window",
            outcome.finished / MILLIS,
            sender.retransmits(),
            receiver.anomalies.out_of_window_segments
        );
        assert!(outcome.finished < 10 * SECOND);
        // Only segments of the first flight are out of window.
        let out_of_window = u64::from(32_u16.saturating_sub(window));
        assert!(receiver.anomalies.out_of_window_segments <= out_of_window);
        assert!(window < 32 || sender.retransmits() == 0);
    }
}

#[test]
fn receive_window_lowered_in_use_loses_no_data() {
    let mut plan = Plan::plain("shrinking");
    plan.sides[0].traffic.bytes = 3_000_000;
    plan.sides[1].reading = Reading { chunks: 4, every: 30 * MILLIS, pause: (0, 0) };
    let mut sim = Sim::new(&plan);
    sim.start();
    for (i, window) in [512, 100, 7, 1, 64, 2, 900].into_iter().enumerate() {
        sim.run_until(200 * MILLIS * (i as u64 + 1));
        sim.sides[1].set_windows(1_024, window);
        sim.service(1);
    }
    sim.run();
}

#[test]
fn mtu_lowered_in_use_applies_to_new_segments_only() {
    for sizes in [[1_400, 1_200, 576, 100], [500, 1_400, 25, 1_200]] {
        let mut plan = Plan::plain("mtu");
        plan.sides[0].traffic.bytes = 200_000;
        plan.sides[0].traffic.pause = 5 * MILLIS;
        plan.sides[0].config.mtu = sizes[0];
        for side in &mut plan.sides {
            side.link.loss = 100_000;
        }
        let mut sim = Sim::new(&plan);
        sim.record = true;
        sim.start();
        // The first number of each size.
        let mut first = [Sn(0); 4];
        for (i, mtu) in sizes.into_iter().enumerate() {
            sim.run_until(20 * MILLIS * (i as u64 + 1));
            first[i] = sim.sides[0].kcp.send.nxt();
            sim.sides[0].set_mtu(mtu);
        }
        sim.run();
        let (mut lens, mut full, mut kept, mut now) = (HashMap::new(), [0; 4], 0, 0);
        let sent = sim.recorded.iter().filter(|(from, _)| *from == 0);
        let segments = sent.flat_map(|(_, datagram)| Segments::new(datagram));
        for (header, payload) in segments.filter(|(header, _)| header.command == Command::Push) {
            let of = first.iter().rposition(|first| header.sn.since(*first) >= 0).unwrap_or(0);
            let len = HEADER_LEN + payload.len();
            assert!(len <= usize::from(sizes[of]), "{len} bytes in segment {}", header.sn.0);
            let before = lens.insert(header.sn, len);
            assert!(before.is_none_or(|before| before == len), "segment {}", header.sn.0);
            now = of.max(now);
            full[of] += u32::from(len == usize::from(sizes[of]));
            kept += u32::from(before.is_some() && len > usize::from(sizes[now]));
        }
        assert!(full.iter().all(|count| *count > 0), "full segments of each size: {full:?}");
        assert!(kept > 0, "no segment longer than the MTU left again");
    }
}

/// ACKs wait for the end of a GSO batch, but not if a rate limit spreads it over a second.
#[test]
fn ack_during_a_rate_limited_batch_leaves_with_the_next_datagram() {
    let acked_at = |rate: Option<u64>| {
        let mut config = config();
        config.rate_limit = rate.and_then(NonZeroU64::new);
        let mut script = ScriptedPeer::new(&config);
        script.write(vec![1; 1_376 * 30]);
        // Behind a gap, so the ACK is immediate.
        script.push(1, b"later");
        let early = script.out();
        script.push(3, b"latest");
        let sent = script.run(5 * SECOND);
        let acks = sent.iter().filter(|(_, (header, _))| header.command == Command::Ack);
        (early.len(), acks.map(|(at, _)| at / MILLIS).collect::<Vec<_>>())
    };
    // A datagram takes 28 ms at this rate.
    assert_eq!(acked_at(Some(50_000)), (1, vec![28, 28]));
    // Without a limit the batch takes no time, and the first ACK comes at its end.
    assert_eq!(acked_at(None), (31, vec![0]));
}

/// A ping that is due while the rate limit blocks leaves afterwards.
/// Rule: P-19.
#[test]
fn ping_due_during_a_rate_limit_leaves_after_it() {
    let mut config = config();
    config.rate_limit = NonZeroU64::new(1_000);
    config.keepalive = KeepaliveInterval::After(Duration::from_secs(1));
    let mut script = ScriptedPeer::new(&config);
    script.write(vec![1; 1_376]);
    assert_eq!(script.out().len(), 1);
    script.now = 40 * MILLIS;
    script.una = Sn(1);
    script.ack(0, 0);
    // The keepalive is due at 1.04 s, the rate limit blocks until 1.4 s.
    let sent: Vec<_> = script.run(2 * SECOND).into_iter().map(|(at, _)| at / MILLIS).collect();
    assert_eq!(sent, [1_400]);
}

#[test]
fn retransmits_on_a_clean_path_with_any_ack_policy_and_preset_are_zero() {
    let presets = [
        (Timing::KCP_DEFAULT, CongestionControl::Reno),
        (Timing::NORMAL, CongestionControl::Bbr),
        (Timing::FAST, CongestionControl::Bbr),
        (Timing::FAST3, CongestionControl::Bbr),
    ];
    for preset in presets {
        for policy in [AckPolicy::PerBatch, AckPolicy::Interval, AckPolicy::Immediate] {
            let mut plan = Plan::plain("policies");
            for side in &mut plan.sides {
                (side.config.timing, side.config.congestion_control) = preset;
                side.config.ack_policy = policy;
                side.traffic.bytes = 300_000;
                side.link = LinkConfig::delay(15 * MILLIS);
            }
            let outcome = Sim::new(&plan).run();
            for stats in outcome.stats {
                assert_eq!(stats.retransmits(), 0, "{preset:?} {policy:?}");
            }
        }
    }
}

#[test]
fn window_update_is_carried_by_any_segment() {
    let mut script = ScriptedPeer::new(&config());
    script.push(0, b"data");
    script.give(header(Command::WindowProbe, 1 << 30, 0), b"");
    assert_eq!(commands(&script.out()), [Command::Ack]);
    script.give(header(Command::WindowProbe, 1 << 30, 0), b"");
    assert_eq!(commands(&script.out()), [Command::WindowUpdate]);
    script.give(header(Command::WindowProbe, 1 << 30, 0), b"");
    script.write(b"more".to_vec());
    assert_eq!(commands(&script.out()), [Command::Push]);
    assert!(script.out().is_empty());
}

/// Large segments stored behind a gap are delivered uncopied; the small ones between them must not each take
/// a large buffer.
#[test]
fn delivery_small_chunks_after_a_burst_share_a_buffer() {
    let mut script = ScriptedPeer::new(&config());
    (0..100).for_each(|sn| script.push(sn, &[1; 1_300]));
    assert_eq!(script.read_all().len(), 130_000);
    for pair in 0..40 {
        script.push(101 + 2 * pair, &[2]);
        script.push(102 + 2 * pair, &[3; 512]);
    }
    script.push(100, &[4]);
    let chunks: Vec<_> = std::iter::from_fn(|| script.kcp.recv()).collect();
    let small: Vec<_> = chunks.iter().filter(|chunk| chunk.len() <= 2).collect();
    assert!(small.len() >= 39, "{}", small.len());
    for two in small.windows(2) {
        assert_eq!(two[0].as_ptr().wrapping_add(two[0].len()), two[1].as_ptr());
    }
}

/// The peer may wait for an answer, or may have missed that the window is smaller.
#[test]
fn data_beyond_the_window_is_answered_with_the_window() {
    let mut script = ScriptedPeer::new(&config());
    script.push(0, b"data");
    script.out();
    script.push(60_000, b"far beyond");
    assert_eq!(commands(&script.out()), [Command::WindowUpdate]);
    assert!(script.out().is_empty(), "once");
}

/// Otherwise a stream that was busy would have no memory for data.
#[test]
fn buffer_of_a_burst_is_released_while_memory_is_short() {
    let mut script = ScriptedPeer::new(&config());
    for burst in [0..100, 100..101] {
        burst.for_each(|sn| script.push(sn, &[1; 1_300]));
        script.read_all();
    }
    let before = script.kcp.recv_memory();
    assert!(before > 20_000, "{before} bytes are spare");
    script.kcp.limit_recv_memory(0, false);
    assert!(script.kcp.recv_memory() < 2_000);
    script.kcp.limit_recv_memory(16 << 10, false);
    // Also if reordered.
    for sn in (101..111).rev() {
        script.push(sn, &[2; 1_300]);
    }
    assert_eq!(script.read_all().len(), 13_000);
}

/// Frames that use up what may wait, but leave at once: the application limits the flow, and nothing says
/// that there is more to write.
#[test]
fn writer_of_large_frames_does_not_wait_once_a_frame_has_left() {
    let mut config = config();
    (config.timing, config.congestion_control) = (Timing::FAST3, CongestionControl::Bbr);
    config.send_window = 1_024;
    let mut script = ScriptedPeer::new(&config);
    script.wnd = 1_024;
    for _ in 0..50 {
        script.write(vec![0; 1_000_000]);
        assert!(script.kcp.is_backlogged());
        while !script.kcp.is_drained() {
            let sent = script.out();
            script.now += 20 * MILLIS;
            for (header, _) in sent {
                script.una = header.sn.advance(1);
                script.ack(header.sn.0, header.ts.0);
            }
        }
        assert!(!script.kcp.is_backlogged());
    }
}

/// At the application's rate limit, too, only what leaves within 10 ms may wait, but at least 16 KiB.
#[test]
fn rate_limit_bounds_the_data_that_waits() {
    for (rate, most) in [(100_000, 16 << 10), (8_000_000, 80_000)] {
        let (rate_limit, auto_windows) = (NonZeroU64::new(rate), false);
        let config = KcpConfig { rate_limit, send_window: 1_024, auto_windows, ..config() };
        let mut script = ScriptedPeer::new(&config);
        script.wnd = 1_024;
        script.give(header(Command::WindowUpdate, 0, 0), b"");
        assert_eq!(script.kcp.send_capacity(), most, "{rate} bytes a second");
    }
}
