//! Windows that nobody has set: how far they follow the path.

use super::link::LinkConfig;
use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, Reading, SECOND};

const BYTES: u64 = 60_000_000;

/// MB/s of a transfer, and the largest window that the sender had.
fn transfer(auto: bool, link: &LinkConfig, reading: &Reading) -> (f64, u32) {
    let mut plan = Plan::plain("tuning");
    for side in &mut plan.sides {
        let config = &mut side.config;
        (config.send_window, config.recv_window) = (1_024, 1_024);
        config.auto_windows = auto;
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
        largest = largest.max(sim.sides[0].kcp.stats().cwnd_segments);
    }
    (BYTES as f64 / 1e6 / (at as f64 / SECOND as f64), largest)
}

fn path(delay: u64) -> LinkConfig {
    LinkConfig { delay, ..LinkConfig::default() }
}

#[test]
fn windows_grow_where_the_path_takes_more() {
    let path = path(100 * MILLIS);
    let (fixed, window) = transfer(false, &path, &Reading::default());
    assert_eq!(window, 1_024);
    // 1,024 segments in 200 ms.
    assert!((6.5..7.2).contains(&fixed), "{fixed} MB/s");
    let (tuned, window) = transfer(true, &path, &Reading::default());
    assert_eq!(window, 8_192);
    assert!(tuned > 3.0 * fixed, "{tuned} MB/s for {fixed}");
}

#[test]
fn windows_do_not_grow_into_queues() {
    // 2 MB/s, a queue of a second: 1,024 segments are more than the path holds.
    let path = LinkConfig { rate: Some(2_000_000), queue: 2_000_000, ..path(20 * MILLIS) };
    let (_, window) = transfer(true, &path, &Reading::default());
    assert!(window <= 2_048, "{window}");
}

#[test]
fn windows_do_not_grow_where_nobody_reads_as_fast() {
    let slow = Reading { chunks: 1, every: 20 * MILLIS, ..Reading::default() };
    let (_, window) = transfer(true, &path(20 * MILLIS), &slow);
    assert!(window <= 2_048, "{window}");
}

#[test]
fn short_paths_have_enough() {
    let (_, window) = transfer(true, &path(500), &Reading::default());
    assert_eq!(window, 1_024);
}
