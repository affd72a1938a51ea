//! Spurious retransmissions on a long fat path: 142 ms round trip with jitter, 100 Mbit/s, windows of 2,048
//! segments, `nodelay` 0/10/0/1. No datagram is lost, so every retransmission is spurious.

use std::time::Duration;

use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, SECOND};
use crate::config::{CongestionControl, Timing};
use crate::stats::ConnectionStats;
use crate::testkit::link::LinkConfig;

const GIGABYTE: u64 = 1_000_000_000;

fn transfer(jitter: u64, keep_order: bool, bytes: u64) -> (ConnectionStats, f64) {
    let mut plan = Plan::plain("published");
    for side in &mut plan.sides {
        let config = &mut side.config;
        (config.send_window, config.recv_window) = (2_048, 2_048);
        config.timing = Timing::new(false, Duration::from_millis(10), None).unwrap();
        config.congestion_control = CongestionControl::Off;
        side.link = LinkConfig {
            // 71 ms each way on average.
            delay: 71 * MILLIS - jitter / 2,
            jitter,
            keep_order,
            rate: Some(12_500_000),
            queue: 8_000_000,
            ..LinkConfig::default()
        };
    }
    plan.sides[0].traffic.bytes = bytes;
    plan.sides[0].traffic.largest_write = 256 * 1024;
    let mut sim = Sim::new(&plan);
    let outcome = sim.run();
    let dropped: u64 = sim.links.iter().map(|link| link.stats().queue_full).sum();
    assert_eq!(dropped, 0, "the queue is deep enough for no loss");
    let seconds = outcome.finished as f64 / SECOND as f64;
    let stats = outcome.stats[0];
    println!(
        "jitter +-{} ms, order {}: {:.1} s, {:.1} Mbit/s, {} of {} segments retransmitted, {:.4} %, \
         srtt {:.1} ms",
        jitter as f64 / 2_000.0,
        if keep_order { "kept" } else { "not kept" },
        seconds,
        bytes as f64 * 8.0 / seconds / 1e6,
        stats.retransmits(),
        stats.sent.segments,
        stats.retransmit_percent(),
        stats.path.srtt.as_micros() as f64 / 1_000.0,
    );
    (stats, seconds)
}

/// Jitter of 5 ms up and down each way, without reordering.
#[test]
fn spurious_retransmits_with_jitter_stay_below_a_fifth_percent() {
    let (stats, seconds) = transfer(10 * MILLIS, true, GIGABYTE);
    assert_eq!(stats.sent.payload_bytes, GIGABYTE);
    assert!(stats.retransmit_percent() <= 0.2);
    assert!(seconds < 90.0, "{seconds}");
}

/// Jitter that reorders, at 100 Mbit/s by ninety datagrams and more.
#[test]
fn spurious_retransmits_with_reordering_stay_below_one_percent() {
    for jitter in [MILLIS, 4 * MILLIS, 10 * MILLIS, 40 * MILLIS] {
        let (stats, _) = transfer(jitter, false, GIGABYTE / 10);
        assert!(stats.retransmit_percent() <= 1.0);
    }
}
