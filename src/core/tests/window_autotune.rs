//! Window autotuning: how far windows that the application has not set follow the path.

use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, Reading, SECOND};
use crate::config::{CongestionControl, Timing};
use crate::testkit::link::LinkConfig;

const BYTES: u64 = 60_000_000;

/// Throughput of a transfer, MB/s, and the largest send window, segments.
fn transfer(
    congestion: CongestionControl,
    auto: bool,
    link: &LinkConfig,
    reading: &Reading,
) -> (f64, u32) {
    let mut plan = Plan::plain("tuning");
    for side in &mut plan.sides {
        let config = &mut side.config;
        (config.send_window, config.recv_window) = (1_024, 1_024);
        config.auto_windows = auto;
        (config.timing, config.congestion_control) = (Timing::FAST2, congestion);
        side.link = link.clone();
        side.reading = reading.clone();
    }
    plan.sides[0].traffic.bytes = BYTES;
    plan.sides[0].traffic.largest_write = 65_536;
    let mut sim = Sim::new(&plan);
    sim.start();
    let (mut largest, mut at) = (0, 0);
    while sim.sides[1].read < BYTES && at < 600 * SECOND {
        at += 50 * MILLIS;
        sim.run_until(at);
        largest = largest.max(sim.sides[0].kcp.stats().path.cwnd_segments);
    }
    (BYTES as f64 / 1e6 / (at as f64 / SECOND as f64), largest)
}

fn path(delay: u64) -> LinkConfig {
    LinkConfig { delay, ..LinkConfig::default() }
}

/// Rule: P-18.
#[test]
fn window_autotune_on_a_long_path_grows_to_the_limit() {
    let path = path(100 * MILLIS);
    // 1,024 segments in 200 ms; Startup needs five round trips until they are in flight.
    for (congestion, least, times) in
        [(CongestionControl::Off, 6.5, 3.0), (CongestionControl::Bbr, 6.0, 2.5)]
    {
        let (fixed, window) = transfer(congestion, false, &path, &Reading::default());
        assert_eq!(window, 1_024);
        assert!((least..7.2).contains(&fixed), "{fixed} MB/s");
        let (autotuned, window) = transfer(congestion, true, &path, &Reading::default());
        assert_eq!(window, 8_192);
        assert!(autotuned > times * fixed, "{autotuned} MB/s for {fixed}");
    }
}

#[test]
fn window_autotune_with_a_bottleneck_queue_does_not_fill_it() {
    // 2 MB/s and a queue of a second: 1,024 segments exceed the bandwidth-delay product.
    let path = LinkConfig { rate: Some(2_000_000), queue: 2_000_000, ..path(20 * MILLIS) };
    for congestion in [CongestionControl::Off, CongestionControl::Bbr] {
        let (_, window) = transfer(congestion, true, &path, &Reading::default());
        assert!(window <= 2_048, "{window}");
    }
}

#[test]
fn window_autotune_with_a_slow_reader_stays_small() {
    let slow = Reading { chunks: 1, every: 20 * MILLIS, ..Reading::default() };
    for congestion in [CongestionControl::Off, CongestionControl::Bbr] {
        let (_, window) = transfer(congestion, true, &path(20 * MILLIS), &slow);
        assert!(window <= 2_048, "{window}");
    }
}

#[test]
fn window_autotune_on_a_short_path_keeps_the_default() {
    for congestion in [CongestionControl::Off, CongestionControl::Bbr] {
        let (_, window) = transfer(congestion, true, &path(500), &Reading::default());
        assert_eq!(window, 1_024);
    }
}
