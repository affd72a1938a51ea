//! The [BBR model](crate::core::congestion) over simulated paths and against scripted peers. Cell F of
//! `benches/loss` covers flows that share a bottleneck.

use std::num::NonZeroU64;

use super::scripted_peer::{ScriptedPeer, config};
use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, SECOND};
use crate::config::CongestionControl;
use crate::core::seq::Sn;
use crate::testkit::link::{CERTAIN, GilbertElliott, LinkConfig};

/// 20 Mbit/s.
const RATE: u64 = 2_500_000;
const RTT: u64 = 50 * MILLIS;
const PACKET: u64 = 1_400;
/// Bandwidth-delay product, segments.
const BDP: u32 = (RATE * RTT / SECOND / PACKET) as u32;

fn bottleneck(queue: u64) -> LinkConfig {
    LinkConfig { delay: RTT / 2, rate: Some(RATE), queue: queue * PACKET, ..LinkConfig::default() }
}

/// Bulk from the first side to the second, with the default windows, which adapt.
fn bulk(link: &LinkConfig, congestion: CongestionControl) -> Sim {
    let mut plan = Plan::plain("congestion model");
    for side in &mut plan.sides {
        side.config.congestion_control = congestion;
        side.link = link.clone();
    }
    plan.sides[0].traffic.bytes = 1 << 40;
    plan.sides[0].traffic.largest_write = 65_536;
    let mut sim = Sim::new(&plan);
    sim.start();
    sim
}

/// Mbit/s read from now until `until`, and retransmissions in percent of the segments read.
fn goodput(sim: &mut Sim, until: u64) -> (f64, f64) {
    let from = sim.now;
    let figures = |sim: &Sim| {
        let (sent, received) = (sim.sides[0].kcp.stats(), sim.sides[1].kcp.stats());
        (sim.sides[1].read, sent.retransmits(), received.received.segments)
    };
    let before = figures(sim);
    sim.run_until(until);
    let after = figures(sim);
    let mbit = (after.0 - before.0) as f64 * 8.0 / (until - from) as f64;
    let retransmitted = (after.1 - before.1) as f64 * 100.0 / (after.2 - before.2) as f64;
    println!("{from} to {until}: {mbit:.2} Mbit/s, {retransmitted:.2} % retransmitted");
    (mbit, retransmitted)
}

#[test]
fn bulk_through_a_bottleneck_fills_it_and_loses_little() {
    for queue in [20, 50, 89, 300] {
        let mut sim = bulk(&bottleneck(queue), CongestionControl::Bbr);
        // Startup loses what its last round sends beyond path and queue.
        let (_, retransmitted) = goodput(&mut sim, SECOND);
        assert!(retransmitted < 40.0, "queue of {queue}: {retransmitted} %");
        sim.run_until(3 * SECOND);
        let (mut most, mut at) = (0, 3 * SECOND);
        while at < 5 * SECOND {
            at += 10 * MILLIS;
            sim.run_until(at);
            most = most.max(sim.sides[0].kcp.stats().path.in_flight_segments);
        }
        // Includes segments acknowledged out of order.
        assert!(most <= 5 * BDP / 2, "queue of {queue}: {most} in flight");
        let (mbit, retransmitted) = goodput(&mut sim, 12 * SECOND);
        assert!(mbit >= 18.5, "queue of {queue}: {mbit} Mbit/s");
        assert!(retransmitted < 1.0, "queue of {queue}: {retransmitted} %");
        let stats = sim.sides[0].kcp.stats();
        let delivered = stats.path.delivery_bytes_per_second;
        assert!((2_400_000..2_600_000).contains(&delivered), "{stats:?}");
        assert!(stats.path.pacing_bytes_per_second > 2_000_000, "{stats:?}");
    }
}

/// A policer whose bucket is smaller than the initial window ends Startup at once, at a tenth of the rate. Up
/// must find the rest, although a round ends in the middle of a burst.
#[test]
fn bulk_through_a_policer_reaches_its_rate() {
    for bucket in [10, 50] {
        let link = LinkConfig { policer: true, ..bottleneck(bucket) };
        let mut sim = bulk(&link, CongestionControl::Bbr);
        sim.run_until(3 * SECOND);
        let (mbit, retransmitted) = goodput(&mut sim, 12 * SECOND);
        assert!(mbit >= 18.0, "bucket of {bucket}: {mbit} Mbit/s");
        assert!(retransmitted < 25.0, "bucket of {bucket}: {retransmitted} %");
    }
}

/// At 20 % Reno keeps 0.5 Mbit/s.
/// Rule: P-20.
#[test]
fn random_loss_does_not_reduce_the_rate() {
    for (loss, least) in [(10_000, 18.2), (50_000, 17.2), (200_000, 13.5)] {
        let link = LinkConfig { loss, ..bottleneck(89) };
        let mut sim = bulk(&link, CongestionControl::Bbr);
        let (mbit, _) = goodput(&mut sim, 12 * SECOND);
        assert!(mbit >= least, "loss of {loss} ppm: {mbit} Mbit/s");
        // The goal for a connection without congestion control is 88.4 Mbit/s.
        if loss == 50_000 {
            let link = LinkConfig { loss, ..LinkConfig::delay(RTT / 2) };
            let mut sim = bulk(&link, CongestionControl::Bbr);
            let (mbit, _) = goodput(&mut sim, 12 * SECOND);
            assert!(mbit >= 88.4, "no bottleneck: {mbit} Mbit/s");
        }
    }
}

#[test]
fn rate_follows_a_bottleneck_that_changes() {
    let mut sim = bulk(&bottleneck(89), CongestionControl::Bbr);
    sim.run_until(5 * SECOND);
    for (rate, least) in [(RATE / 4, 4.4), (4 * RATE, 70.0)] {
        let from = sim.now;
        sim.links[0].set_config(LinkConfig { rate: Some(rate), ..bottleneck(89) });
        sim.run_until(from + 10 * SECOND);
        let (mbit, retransmitted) = goodput(&mut sim, from + 20 * SECOND);
        assert!(mbit >= least, "{rate}: {mbit} Mbit/s");
        assert!(retransmitted < 3.0, "{rate}: {retransmitted} %");
    }
}

/// The path becomes longer, which first looks like a queue. After eight rounds without an RTT close to the
/// shortest, it is measured with half a bandwidth-delay product in flight.
#[test]
fn min_rtt_probe_finds_a_longer_path() {
    let mut sim = bulk(&bottleneck(300), CongestionControl::Bbr);
    sim.run_until(5 * SECOND);
    sim.links[0].set_config(LinkConfig { delay: 3 * RTT / 2, ..bottleneck(300) });
    let (mut probed, mut at) = (None, 5 * SECOND + RTT);
    while at < 20 * SECOND {
        at += 10 * MILLIS;
        sim.run_until(at);
        if sim.sides[0].kcp.stats().path.in_flight_segments <= 3 * BDP / 4 {
            probed.get_or_insert(at);
        }
    }
    let probed = probed.expect("little in flight at some time");
    assert!((5 * SECOND..8 * SECOND).contains(&probed), "{probed}");
    let (mbit, _) = goodput(&mut sim, 30 * SECOND);
    assert!(mbit >= 18.0, "{mbit} Mbit/s");
}

/// Microseconds from write to read of each message of 1 KiB.
fn message_latencies(link: &LinkConfig, mtu: u16, congestion: CongestionControl) -> Vec<u64> {
    let mut plan = Plan::plain("messages");
    for side in &mut plan.sides {
        (side.config.congestion_control, side.config.mtu) = (congestion, mtu);
        side.link = link.clone();
    }
    let traffic = &mut plan.sides[0].traffic;
    (traffic.bytes, traffic.largest_write, traffic.every) = (4_000 << 10, 1 << 10, 10 * MILLIS);
    let mut sim = Sim::new(&plan);
    sim.measure = true;
    sim.run();
    std::mem::take(&mut sim.sides[1].latencies)
}

/// The model does not delay messages: each is read at the same time as without it.
#[test]
fn app_limited_flow_is_not_delayed() {
    let independent = |loss| LinkConfig { loss, ..LinkConfig::delay(RTT / 2) };
    // Bursts of 3 packets, with losses of 10 and 20 %.
    let bursts = |to_bad| {
        let burst = Some(GilbertElliott { to_bad, to_good: CERTAIN / 3 });
        LinkConfig { burst, ..LinkConfig::delay(RTT / 2) }
    };
    let independent = [0, 10_000, 100_000, 200_000, 300_000].map(independent);
    let bursts = [CERTAIN / 27, CERTAIN / 12].map(bursts);
    for link in independent.into_iter().chain(bursts) {
        // The smaller MTU cuts each message in two.
        for mtu in [1_400, 544] {
            let model = message_latencies(&link, mtu, CongestionControl::Bbr);
            assert_eq!(model.len(), 4_000);
            let without = message_latencies(&link, mtu, CongestionControl::Off);
            let differ = model.iter().zip(&without).filter(|(model, without)| model != without);
            assert_eq!(differ.count(), 0, "MTU {mtu}, {link:?}");
        }
    }
}

#[test]
fn congestion_control_may_change_while_data_is_in_flight() {
    let link = LinkConfig { loss: 10_000, ..bottleneck(89) };
    let mut sim = bulk(&link, CongestionControl::Off);
    let modes = [CongestionControl::Bbr, CongestionControl::Reno, CongestionControl::Off];
    for (i, mode) in modes.into_iter().cycle().take(9).enumerate() {
        sim.run_until((i as u64 + 1) * SECOND);
        sim.sides[0].kcp.set_congestion_control(mode);
        sim.sides[0].kcp.check_invariants();
        let paced = sim.sides[0].kcp.stats().path.pacing_bytes_per_second;
        assert_eq!(paced, 0, "nothing is known of the path yet");
    }
    sim.sides[0].kcp.set_congestion_control(CongestionControl::Bbr);
    sim.run_until(13 * SECOND);
    let (mbit, retransmitted) = goodput(&mut sim, 20 * SECOND);
    assert!(mbit >= 18.0 && retransmitted < 3.0, "{mbit} Mbit/s, {retransmitted} %");
}

#[test]
fn idle_connection_has_no_model_and_begins_with_the_initial_window() {
    let mut script = model_peer();
    for _ in 0..3 {
        script.write(vec![7; 100 * 1_376]);
        let first = script.out();
        assert_eq!(first.len(), 32, "the initial window");
        script.kcp.release_memory();
        script.kcp.check_invariants();
        assert!(script.out().is_empty(), "with data in flight the model stays");
        let mut sent = first;
        while let Some((last, _)) = sent.last().cloned() {
            script.now += RTT;
            script.una = Sn(script.una.0.max(last.sn.0 + 1));
            script.ack(last.sn.0, last.ts.0);
            let until = script.now + RTT;
            let data = script.run(until).into_iter().map(|(_, segment)| segment);
            sent = data.filter(|(_, payload)| !payload.is_empty()).collect();
        }
        assert_eq!(script.kcp.stats().unsent_bytes, 0);
        assert!(script.kcp.has_reclaimable_memory());
        script.kcp.release_memory();
        script.kcp.check_invariants();
        assert_eq!(script.kcp.stats().path.delivery_bytes_per_second, 0);
        script.now += SECOND;
    }
}

/// After an outage the path may be another one.
#[test]
fn outage_is_followed_by_startup() {
    let link = LinkConfig { partitions: vec![(5 * SECOND, 9 * SECOND)], ..bottleneck(89) };
    let mut sim = bulk(&link, CongestionControl::Bbr);
    sim.run_until(12 * SECOND);
    let (mbit, retransmitted) = goodput(&mut sim, 16 * SECOND);
    assert!(mbit >= 18.0 && retransmitted < 3.0, "{mbit} Mbit/s, {retransmitted} %");
}

/// A connection with a full window of data in flight, and the sent segments.
fn model_peer() -> ScriptedPeer {
    let mut config = config();
    config.congestion_control = CongestionControl::Bbr;
    let mut script = ScriptedPeer::new(&config);
    (script.now, script.wnd) = (1_000 * MILLIS, u16::MAX);
    script
}

/// Sends whenever the connection may for `time`, and acknowledges everything with `una` every `every` us,
/// `early` round trips before it can have arrived. Returns the segments sent and the most sent at one time.
fn acked_in_bursts(script: &mut ScriptedPeer, time: u64, every: u64) -> (usize, usize) {
    let (until, mut sent, mut most) = (script.now + time, 0, 0);
    while script.now < until {
        let free = script.kcp.send_capacity();
        script.write(vec![7; free]);
        let next = script.now + every;
        let left = script.run(next);
        sent += left.len();
        for at in left.chunk_by(|a, b| a.0 == b.0) {
            most = most.max(at.len());
        }
        // Acknowledging anything younger than 5 ms would make the round trip short.
        let arrived = left.iter().rev().find(|(at, _)| at + 5 * MILLIS <= script.now);
        let Some((_, (last, _))) = arrived else { continue };
        script.una = Sn(last.sn.0 + 1);
        script.ack(last.sn.0, last.ts.0);
    }
    (sent, most)
}

#[test]
fn acks_in_bursts_do_not_raise_the_rate_beyond_the_sending_rate() {
    let mut script = model_peer();
    // Everything is acknowledged every 50 ms.
    acked_in_bursts(&mut script, 2 * SECOND, RTT);
    let before = script.kcp.stats();
    let (sent, _) = acked_in_bursts(&mut script, 4 * SECOND, RTT);
    let stats = script.kcp.stats();
    let delivered = sent as u64 * PACKET * SECOND / (4 * SECOND);
    assert!(stats.path.delivery_bytes_per_second <= delivered * 3 / 2, "{stats:?}, {delivered}");
    assert!(before.path.delivery_bytes_per_second > 0);
}

#[test]
fn duplicate_and_forged_acks_change_nothing_in_the_model() {
    let mut script = model_peer();
    script.write(vec![7; 100 * 1_376]);
    let first = script.out();
    assert_eq!(first.len(), 32, "the initial window");
    script.now += RTT;
    first.iter().for_each(|(header, _)| script.ack(header.sn.0, header.ts.0));
    let before = script.kcp.stats();
    for _ in 0..1_000 {
        for (header, _) in &first {
            script.ack(header.sn.0, header.ts.0);
        }
        script.ack(1 << 20, first[0].0.ts.0);
        script.una = Sn(1 << 20);
        script.ack(0, 0);
        script.una = Sn(0);
    }
    let after = script.kcp.stats();
    assert_eq!(after.path.delivery_bytes_per_second, before.path.delivery_bytes_per_second);
    assert_eq!(after.path.pacing_bytes_per_second, before.path.pacing_bytes_per_second);
    assert_eq!(after.path.cwnd_segments, before.path.cwnd_segments);
}

/// Acknowledgements at the time of departure: no division by zero, no limit on such a path, and a window that
/// saturates.
#[test]
fn rtt_of_zero_limits_nothing() {
    let mut script = model_peer();
    for _ in 0..50 {
        script.write(vec![7; 100 * 1_376]);
        for (header, _) in script.out() {
            script.una = Sn(header.sn.0 + 1);
            script.ack(header.sn.0, header.ts.0);
        }
    }
    let stats = script.kcp.stats();
    assert_eq!(
        (stats.path.pacing_bytes_per_second, stats.path.cwnd_segments),
        (0, 1_024),
        "{stats:?}"
    );
}

/// Without the rate, the initial window leaves at once.
#[test]
fn first_data_leaves_at_the_configured_rate() {
    let mut config = config();
    config.congestion_control = CongestionControl::Bbr;
    config.initial_rate = NonZeroU64::new(100 * PACKET);
    let mut script = ScriptedPeer::new(&config);
    script.write(vec![7; 32 * 1_376]);
    let times = script.run(200 * MILLIS).into_iter().map(|(at, _)| at);
    assert!(times.eq((0..=20).map(|index| index * 10 * MILLIS)), "100 segments per second");
}

/// The connection has moved, and other connections use both paths.
#[test]
fn connection_that_shares_another_path_is_paced_as_that_path() {
    let sender = |initial_rate: u64| {
        let mut config = config();
        config.congestion_control = CongestionControl::Bbr;
        config.initial_rate = NonZeroU64::new(initial_rate);
        let mut script = ScriptedPeer::new(&config);
        script.write(vec![7; 1_376]);
        assert_eq!(script.out().len(), 1);
        script
    };
    let mut moved = sender(0);
    let rates = [100 * PACKET, 900 * PACKET].map(|rate| {
        let mut other = sender(rate);
        moved.kcp.share_path(&other.kcp.shared_path());
        moved.kcp.stats().path.pacing_bytes_per_second
    });
    assert!(rates[0] > 0 && rates[1] == 9 * rates[0], "{rates:?}");
}

/// Towards a peer that acknowledges nothing, only the initial window and the budget's grants leave.
#[test]
fn unacknowledged_data_is_bounded_by_the_initial_window() {
    let mut script = model_peer();
    let free = script.kcp.send_capacity();
    script.write(vec![7; free]);
    let sent = script.run(60 * SECOND);
    let data = sent.iter().filter(|(_, (_, payload))| !payload.is_empty());
    let new = data.map(|(_, (header, _))| header.sn.0).max().unwrap() + 1;
    assert_eq!(new, 32, "{} segments", sent.len());
    assert!(sent.len() <= 32 + 64 + 4 * 60_000 / 200, "{}", sent.len());
}

/// The shortest round trip stays below 2 ms; a queue makes the smoothed one longer.
#[test]
fn short_path_has_a_model_from_10_ms_on_and_until_below_5_ms() {
    let mut script = ScriptedPeer::new(&config());
    let mut sn = 0;
    for (rtt, has_model) in [
        (1_500, false),
        (5_100, false),
        (9_900, false),
        (10_100, true),
        (9_900, true),
        (5_100, true),
        (4_900, false),
        (9_900, false),
    ] {
        for _ in 0..100 {
            script.write(vec![7; 100]);
            let sent = script.out();
            let ts = sent.iter().find(|(header, _)| header.sn.0 == sn).unwrap().0.ts;
            script.now += rtt;
            sn += 1;
            script.una = Sn(sn);
            script.ack(sn - 1, ts.0);
        }
        assert_eq!(script.kcp.stats().path.pacing_bytes_per_second > 0, has_model, "{rtt} us");
    }
}
