//! Output: markdown tables with the goal next to each figure, and JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::cells::{Cell, Congestion, Plan};
use crate::figures::{Figures, Goal, ratio};
use crate::simulation::Second;

/// One cell with its figures.
pub(crate) struct Row {
    pub(crate) cell: Cell,
    pub(crate) seconds: u64,
    /// One per seed.
    pub(crate) runs: Vec<Figures>,
    pub(crate) median: Figures,
}

/// A number with a fixed number of digits, or nothing.
fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}

type Column = (&'static str, fn(&Row) -> String);

const MESSAGES: [Column; 14] = [
    ("cell", |row| row.cell.name.to_owned()),
    ("path", |row| row.cell.description(row.seconds)),
    ("redundancy", |row| row.cell.variant()),
    ("p50", |row| cell(row.median.p50_ms, 1)),
    ("p99", |row| cell(row.median.p99_ms, 1)),
    ("p99.9", |row| cell(row.median.p999_ms, 1)),
    ("max", |row| cell(row.median.max_ms, 1)),
    ("ideal p99", |row| cell(row.median.ideal_p99_ms, 1)),
    ("wait p95", |row| cell(row.median.wait_p95_ms, 1)),
    ("first 5 s p99", |row| cell(row.median.early_p99_ms, 1)),
    ("wire", |row| cell(Some(row.median.wire), 3)),
    ("retransmitted %", |row| cell(Some(row.median.retransmitted_percent), 2)),
    ("goal", |row| row.cell.goal.text()),
    ("verdict", |row| row.cell.goal.verdict(&row.median)),
];

const BULK: [Column; 13] = [
    ("cell", |row| row.cell.name.to_owned()),
    ("path", |row| row.cell.description(row.seconds)),
    ("redundancy", |row| row.cell.variant()),
    ("Mbit/s", |row| cell(row.median.bulk_mbit, 2)),
    ("MB/s", |row| cell(row.median.bulk_mbit.map(|mbit| mbit / 8.0), 2)),
    ("ideal Mbit/s", |row| cell(row.median.ideal_mbit, 2)),
    ("wait p95", |row| cell(row.median.wait_p95_ms, 1)),
    ("smallest share %", |row| cell(row.median.smallest_share_percent, 0)),
    ("message p99", |row| cell(row.median.p99_ms, 1)),
    ("wire", |row| cell(Some(row.median.wire), 3)),
    ("retransmitted %", |row| cell(Some(row.median.retransmitted_percent), 2)),
    ("goal", |row| row.cell.goal.text()),
    ("verdict", |row| row.cell.goal.verdict(&row.median)),
];

const MESSAGES_ON_BOTH: [Column; 15] = [
    ("cell", |row| row.cell.name.to_owned()),
    ("paths", |row| row.cell.description(row.seconds)),
    ("mode", |row| row.cell.variant()),
    ("p50", |row| cell(row.median.p50_ms, 1)),
    ("replay p50", |row| cell(row.median.ideal_p50_ms, 1)),
    ("p99", |row| cell(row.median.p99_ms, 1)),
    ("replay p99", |row| cell(row.median.ideal_p99_ms, 1)),
    ("p99.9", |row| cell(row.median.p999_ms, 1)),
    ("replay p99.9", |row| cell(row.median.ideal_p999_ms, 1)),
    ("max", |row| cell(row.median.max_ms, 1)),
    ("copies", |row| cell(row.median.copies, 3)),
    ("fewest", |row| cell(row.runs.iter().filter_map(|run| run.copies).min_by(f64::total_cmp), 3)),
    ("retransmitted %", |row| cell(Some(row.median.retransmitted_percent), 2)),
    ("goal", |row| row.cell.goal.text()),
    ("verdict", |row| row.cell.goal.verdict(&row.median)),
];

const BULK_ON_TWO: [Column; 12] = [
    ("cell", |row| row.cell.name.to_owned()),
    ("paths", |row| row.cell.description(row.seconds)),
    ("mode", |row| row.cell.variant()),
    ("Mbit/s", |row| cell(row.median.bulk_mbit, 2)),
    ("of the sum", |row| cell(ratio(row.median.bulk_mbit, row.median.ideal_mbit), 2)),
    ("of the better path", |row| cell(ratio(row.median.bulk_mbit, row.median.alone_mbit), 2)),
    ("received KiB", |row| cell(row.median.received_kib, 0)),
    ("unacknowledged KiB", |row| cell(row.median.sent_kib, 0)),
    ("wire", |row| cell(Some(row.median.wire), 3)),
    ("retransmitted %", |row| cell(Some(row.median.retransmitted_percent), 2)),
    ("goal", |row| row.cell.goal.text()),
    ("verdict", |row| row.cell.goal.verdict(&row.median)),
];

/// The tables of all rows.
pub(crate) fn markdown(rows: &[Row], seeds: u64) -> String {
    let mut times: Vec<_> = rows.iter().map(|row| row.seconds).collect();
    times.sort_unstable();
    times.dedup();
    let times = times.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let last = crate::FIRST_SEED + seeds - 1;
    let mut out = format!(
        "Virtual time, runs of {times} s, medians of the seeds {} to {last}. RTT 50 ms; latencies \
         one way, in order, in ms; losses in both directions; wire: IP bytes from client to server \
         per byte read.\n",
        crate::FIRST_SEED
    );
    let (two, one): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.cell.has_two_paths());
    let (bulk, messages): (Vec<_>, Vec<_>) = one.into_iter().partition(|row| row.cell.has_bulk());
    if !messages.is_empty() {
        out += "\nMessages, 1 KiB per 10 ms unless noted. All figures except \"first 5 s p99\" cover \
                second 6 and later, or the seconds named with the path.\n\n";
        table(&mut out, &MESSAGES, &messages);
    }
    if !bulk.is_empty() {
        out += "\nBulk. \"smallest share\": the slowest connection in percent of an equal share of \
                the bottleneck.\n\n";
        table(&mut out, &BULK, &bulk);
    }
    let (bulk, messages): (Vec<_>, Vec<_>) = two.into_iter().partition(|row| row.cell.has_bulk());
    if !messages.is_empty() {
        out += "\nMessages on both of two paths, 1 KiB per 10 ms. \"replay\": the earlier copy of each message on \
                the same links, and both again a round trip of the slower path later where both are \
                lost. \"copies\": wire bytes relative to one copy; \"fewest\": the smallest of all seeds.\n\n";
        table(&mut out, &MESSAGES_ON_BOTH, &messages);
    }
    if !bulk.is_empty() {
        out += "\nBulk on two paths. \"of the sum\": of the payload that both rates carry; \"of the better path\": \
                of what it delivers alone; the largest memory of received data, which waits for a gap, and of \
                unacknowledged data.\n\n";
        table(&mut out, &BULK_ON_TWO, &bulk);
    }
    let met = rows.iter().filter(|row| row.cell.goal.verdict(&row.median) == "met").count();
    let judged = rows.iter().filter(|row| !row.cell.goal.0.is_empty()).count();
    writeln!(out, "\n{met} of {judged} goals met.").expect("a string takes all");
    out
}

fn table(out: &mut String, columns: &[Column], rows: &[&Row]) {
    let mut line = |cells: Vec<String>| {
        writeln!(out, "| {} |", cells.join(" | ")).expect("a string takes all");
    };
    line(columns.iter().map(|(name, _)| (*name).to_owned()).collect());
    line(columns.iter().map(|_| "---".to_owned()).collect());
    for row in rows {
        line(columns.iter().map(|(_, text)| text(row)).collect());
    }
}

/// Prints the events of each second of a run.
pub(crate) fn print_timeline(timeline: &[Second]) {
    println!(
        "{:>6} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>7} {:>7} {:>7} {:>6} {:>8} {:>8} {:>5}",
        "s",
        "Mbit/s",
        "wire",
        "rtx %",
        "rto",
        "copies",
        "spur",
        "full",
        "wait ms",
        "srtt ms",
        "rto ms",
        "min ms",
        "cwnd",
        "pacing",
        "delivery",
        "path"
    );
    for pair in timeline.windows(2) {
        let [before, after] = pair else { continue };
        let read = (after.read - before.read) as f64;
        let (stats, sent) = (&after.stats, after.stats.sent.segments - before.stats.sent.segments);
        let again = after.stats.retransmits() - before.stats.retransmits();
        let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        println!(
            "{:>6.1} {:>8.2} {:>6.2} {:>6.1} {:>6} {:>6} {:>6} {:>6} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>6} {:>8.2} {:>8.2} {:>5}",
            after.at as f64 / 1e6,
            read * 8.0 / (after.at - before.at) as f64,
            (after.ip_bytes - before.ip_bytes) as f64 / read.max(1.0),
            again as f64 * 100.0 / (sent + again).max(1) as f64,
            stats.retransmit.timeout - before.stats.retransmit.timeout,
            stats.retransmit.redundant - before.stats.retransmit.redundant,
            stats.retransmit.spurious - before.stats.retransmit.spurious,
            after.queue_full - before.queue_full,
            after.wait as f64 / 1e3,
            millis(stats.path.srtt),
            millis(stats.path.rto),
            millis(stats.path.min_rtt),
            stats.path.cwnd_segments,
            stats.path.pacing_bytes_per_second as f64 * 8e-6,
            stats.path.delivery_bytes_per_second as f64 * 8e-6,
            after.path,
        );
    }
}

#[derive(Serialize)]
struct JsonRow<'a> {
    cell: &'a str,
    path: String,
    plan: Plan,
    /// How several paths are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    windows: String,
    congestion: Congestion,
    seconds: u64,
    goal: &'a Goal,
    verdict: String,
    median: &'a Figures,
    runs: &'a [Figures],
}

/// All rows, with the figures of each seed.
///
/// # Errors
///
/// When a figure has no JSON representation.
pub(crate) fn json(rows: &[Row], seeds: u64) -> serde_json::Result<String> {
    let row = |row: &Row| {
        let Row { cell, seconds, runs, median } = row;
        serde_json::to_value(JsonRow {
            cell: cell.name,
            path: cell.description(*seconds),
            plan: cell.plan,
            mode: cell.has_two_paths().then(|| cell.mode.to_string()),
            windows: cell.windows.to_string(),
            congestion: cell.congestion,
            seconds: *seconds,
            goal: &cell.goal,
            verdict: cell.goal.verdict(median),
            median,
            runs,
        })
    };
    let cells = rows.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    let all =
        serde_json::json!({ "first_seed": crate::FIRST_SEED, "seeds": seeds, "cells": cells });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}
