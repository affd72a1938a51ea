//! Throughput, latency and retransmissions of each preset on lossy and reordering paths, compared
//! with the tables stored in `matrix.txt`. A change of behaviour shows in the difference.
//!
//! `KCP_UPDATE=1 cargo test --lib core::tests::matrix` stores new tables.

use std::fmt::Write;

use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, SECOND};
use crate::config::Timing;
use crate::testkit::link::LinkConfig;

const STORED: &str = include_str!("matrix.txt");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/core/tests/matrix.txt");

const PRESETS: [(&str, Timing); 5] = [
    ("protocol", Timing::KCP_DEFAULT),
    ("normal", Timing::NORMAL),
    ("fast", Timing::FAST),
    ("fast2", Timing::FAST2),
    ("fast3", Timing::FAST3),
];
/// Loss in parts per million, and jitter that reorders, microseconds.
const PATHS: [(&str, u32, u64); 6] = [
    ("0 %", 0, 0),
    ("1 %", 10_000, 0),
    ("5 %", 50_000, 0),
    ("10 %", 100_000, 0),
    ("30 %", 300_000, 0),
    ("0 %, reordered", 0, 10 * MILLIS),
];

/// 40 ms round trip, 20 Mbit/s, a queue of 250 ms.
fn plan(preset: Timing, loss: u32, jitter: u64) -> Plan {
    let mut plan = Plan::plain("matrix");
    plan.seed = 7;
    for side in &mut plan.sides {
        (side.config.send_window, side.config.recv_window) = (256, 1_024);
        side.config.auto_windows = false;
        side.config.timing = preset;
        side.link = LinkConfig {
            delay: 20 * MILLIS,
            jitter,
            loss,
            rate: Some(2_500_000),
            queue: 625_000,
            ..LinkConfig::default()
        };
    }
    plan
}

/// 4 MB one way: throughput in virtual time, MB/s, and retransmissions, percent.
fn bulk(mut plan: Plan) -> String {
    plan.sides[0].traffic.bytes = 4_000_000;
    plan.sides[0].traffic.largest_write = 64 * 1024;
    let outcome = Sim::new(&plan).run();
    let seconds = outcome.finished as f64 / SECOND as f64;
    format!("{:.3} {:.2}", 4.0 / seconds, outcome.stats[0].retransmit_percent())
}

/// 2,000 writes of up to 200 bytes, up to 40 ms apart: latency, ms, and retransmissions, percent.
fn thin(mut plan: Plan) -> String {
    plan.sides[0].traffic.bytes = 200_000;
    plan.sides[0].traffic.largest_write = 200;
    plan.sides[0].traffic.pause = 40 * MILLIS;
    let mut sim = Sim::new(&plan);
    sim.measure = true;
    let outcome = sim.run();
    let mut times = std::mem::take(&mut sim.sides[1].latencies);
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100] / MILLIS;
    format!("{}/{} {:.2}", at(50), at(99), outcome.stats[0].retransmit_percent())
}

fn table(title: &str, cell: fn(Plan) -> String) -> String {
    let mut table = format!("{title}\n\n{:<10}", "preset");
    for (name, ..) in PATHS {
        write!(table, "{name:>16}").unwrap();
    }
    for (name, preset) in PRESETS {
        write!(table, "\n{name:<10}").unwrap();
        for (_, loss, jitter) in PATHS {
            write!(table, "{:>16}", cell(plan(preset, loss, jitter))).unwrap();
        }
    }
    table + "\n"
}

#[test]
fn preset_matrix_is_as_stored() {
    let path = "40 ms round trip, 20 Mbit/s, send window 256, loss each way";
    let bulk = table(&format!("Bulk, MB/s and retransmitted %: {path}"), bulk);
    let thin = table("Small writes, median/p99 in ms and retransmitted %: the same path", thin);
    let both = format!("{bulk}\n{thin}");
    println!("{both}");
    if std::env::var_os("KCP_UPDATE").is_some() {
        std::fs::write(PATH, &both).unwrap();
        return;
    }
    let hint =
        "behaviour changed; if on purpose: KCP_UPDATE=1 cargo test --lib core::tests::matrix";
    assert_eq!(both, STORED, "{hint}");
}
