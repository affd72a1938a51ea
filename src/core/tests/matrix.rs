//! Throughput, latency and retransmissions of each preset on lossy and reordering paths, compared
//! with the tables stored in `matrix.txt`. A change of behaviour shows in the difference.
//!
//! `KCP_UPDATE=1 cargo test --lib core::tests::matrix` stores new tables.

use std::fmt::Write;

use super::sim::{Outcome, Sim};
use super::sim_plan::{MILLIS, Plan, SECOND};
use crate::config::{CongestionControl, Timing};
use crate::testkit::link::LinkConfig;

const STORED: &str = include_str!("matrix.txt");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/core/tests/matrix.txt");

type Preset = (&'static str, (Timing, CongestionControl));
/// Name, loss in parts per million, and jitter that reorders, microseconds.
type Path = (&'static str, u32, u64);

const PRESETS: [Preset; 5] = [
    ("protocol", (Timing::KCP_DEFAULT, CongestionControl::Reno)),
    ("normal", (Timing::NORMAL, CongestionControl::Bbr)),
    ("fast", (Timing::FAST, CongestionControl::Bbr)),
    ("fast2", (Timing::FAST2, CongestionControl::Bbr)),
    ("fast3", (Timing::FAST3, CongestionControl::Bbr)),
];
const PATHS: [Path; 6] = [
    ("0 %", 0, 0),
    ("1 %", 10_000, 0),
    ("5 %", 50_000, 0),
    ("10 %", 100_000, 0),
    ("30 %", 300_000, 0),
    ("0 %, reordered", 0, 10 * MILLIS),
];
/// Presets and losses for messages.
const MESSAGE_PRESETS: &[Preset] = PRESETS.split_at(3).1;
const MESSAGE_PATHS: [Path; 5] = [
    ("0 %", 0, 0),
    ("1 %", 10_000, 0),
    ("5 %", 50_000, 0),
    ("10 %", 100_000, 0),
    ("20 %", 200_000, 0),
];
const MESSAGE_BYTES: u64 = 1_024;
const MESSAGES: u64 = 6_000;
/// Bytes of IPv4 and UDP headers.
const IP_OVERHEAD: u64 = 28;

/// 40 ms round trip, 20 Mbit/s, a queue of 250 ms.
fn plan(preset: (Timing, CongestionControl), loss: u32, jitter: u64) -> Plan {
    let mut plan = Plan::plain("matrix");
    plan.seed = 7;
    for side in &mut plan.sides {
        (side.config.send_window, side.config.recv_window) = (256, 1_024);
        side.config.auto_windows = false;
        (side.config.timing, side.config.congestion_control) = preset;
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
    let (outcome, latencies) = measure(&plan);
    format!("{latencies} {:.2}", outcome.stats[0].retransmit_percent())
}

/// 6,000 messages of 1 KiB, one each 10 ms, 50 ms round trip: latency, ms, and IP bytes that the
/// sender sent per byte.
fn messages(preset: (Timing, CongestionControl), loss: u32) -> String {
    let mut plan = Plan::plain("messages");
    plan.seed = 7;
    for side in &mut plan.sides {
        (side.config.timing, side.config.congestion_control) = preset;
        side.link = LinkConfig { loss, ..LinkConfig::delay(25 * MILLIS) };
    }
    let traffic = &mut plan.sides[0].traffic;
    (traffic.bytes, traffic.largest_write) = (MESSAGES * MESSAGE_BYTES, MESSAGE_BYTES);
    traffic.every = 10 * MILLIS;
    let (outcome, latencies) = measure(&plan);
    let sent = &outcome.stats[0];
    assert!(outcome.finished >= (MESSAGES - 1) * 10 * MILLIS, "messages left too early");
    let ip_bytes = sent.sent.datagram_bytes + sent.sent.datagrams * IP_OVERHEAD;
    format!("{latencies} {:.3}", ip_bytes as f64 / (MESSAGES * MESSAGE_BYTES) as f64)
}

/// Median and p99 of the latencies from the first side to the second, ms.
fn measure(plan: &Plan) -> (Outcome, String) {
    let mut sim = Sim::new(plan);
    sim.measure = true;
    let outcome = sim.run();
    let mut times = std::mem::take(&mut sim.sides[1].latencies);
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100] / MILLIS;
    (outcome, format!("{}/{}", at(50), at(99)))
}

fn table(
    title: &str,
    presets: &[Preset],
    paths: &[Path],
    cell: impl Fn((Timing, CongestionControl), u32, u64) -> String,
) -> String {
    let mut table = format!("{title}\n\n{:<10}", "preset");
    for (name, ..) in paths {
        write!(table, "{name:>16}").unwrap();
    }
    for &(name, preset) in presets {
        write!(table, "\n{name:<10}").unwrap();
        for &(_, loss, jitter) in paths {
            write!(table, "{:>16}", cell(preset, loss, jitter)).unwrap();
        }
    }
    table + "\n"
}

#[test]
fn preset_matrix_is_as_stored() {
    let path = "40 ms round trip, 20 Mbit/s, send window 256, loss each way";
    let title = format!("Bulk, MB/s and retransmitted %: {path}");
    let bulk =
        table(&title, &PRESETS, &PATHS, |preset, loss, jitter| bulk(plan(preset, loss, jitter)));
    let title = "Small writes, median/p99 in ms and retransmitted %: the same path";
    let thin =
        table(title, &PRESETS, &PATHS, |preset, loss, jitter| thin(plan(preset, loss, jitter)));
    let title = "Messages of 1 KiB each 10 ms, median/p99 in ms and IP bytes per byte: 50 ms round \
                 trip, loss each way";
    let messages =
        table(title, MESSAGE_PRESETS, &MESSAGE_PATHS, |preset, loss, _| messages(preset, loss));
    let all = format!("{bulk}\n{thin}\n{messages}");
    println!("{all}");
    if std::env::var_os("KCP_UPDATE").is_some() {
        std::fs::write(PATH, &all).unwrap();
        return;
    }
    let hint =
        "behaviour changed; if on purpose: KCP_UPDATE=1 cargo test --lib core::tests::matrix";
    assert_eq!(all, STORED, "{hint}");
}
