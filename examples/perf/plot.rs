//! Chart of a run: values over time, or the distribution of latencies.

use std::time::Duration;

use super::args::Workload;
use super::chart::{self, Panel};
use super::meter::Row;
use super::report::Report;

pub(crate) fn svg(report: &Report) -> String {
    match report.workload {
        Workload::Sink | Workload::Source | Workload::Echo | Workload::Idle => over_time(report),
        Workload::Pingpong | Workload::Messages | Workload::Many => distribution(report),
    }
}

fn over_time(report: &Report) -> String {
    let figures = &report.figures;
    let points = |value: fn(&Row) -> Option<f64>| {
        report.rows.iter().filter_map(|row| Some((row.seconds, value(row)?))).collect()
    };
    if report.workload == Workload::Idle {
        let title = format!("{} idle connections", figures.connections);
        let cpu =
            Panel { label: "CPU of the client, % of a core", points: points(|row| row.cpu_pct) };
        return chart::over_time(&title, "", &[cpu]);
    }
    let title = format!("{} over one stream", report.workload.name());
    let speed = figures.mb_per_s.unwrap_or(0.0);
    let note = format!(
        "{} bytes in {:.2} s: {speed:.1} MB/s, {:.2} % of the segments resent",
        figures.bytes,
        figures.wall_s,
        figures.retransmit_pct.unwrap_or(0.0),
    );
    let mut panels =
        vec![Panel { label: "goodput, MB/s", points: points(|row| Some(row.mb_per_s)) }];
    // The side that only receives has no samples of it.
    if report.workload != Workload::Source {
        let rtt = points(|row| row.srtt.map(|srtt| srtt.as_secs_f64() * 1e3));
        panels.push(Panel { label: "smoothed round trip, ms", points: rtt });
    }
    chart::over_time(&title, &note, &panels)
}

/// Up to the 99.9th percentile: the few that took very long would make all others one bar.
fn distribution(report: &Report) -> String {
    let latencies = &report.latencies;
    let at = |quantile| Duration::from_nanos(latencies.value_at_quantile(quantile));
    let labels = [("p50", at(0.5)), ("p99", at(0.99)), ("p99.9", at(0.999))];
    let (title, what) = match report.workload {
        Workload::Many => ("Time to the answer of connections that begin at once", "connections"),
        Workload::Messages => ("Round trips of messages at a steady rate", "messages"),
        _ => ("Round trips, one at a time", "round trips"),
    };
    let (count, longest) = (latencies.len(), at(1.0).as_secs_f64() * 1e3);
    let beyond = count - latencies.count_between(0, latencies.value_at_quantile(0.999));
    let note = format!("{count} of them, {beyond} not shown, up to {longest:.3} ms");
    let counted = latencies
        .iter_recorded()
        .map(|value| (Duration::from_nanos(value.value_iterated_to()), value.count_at_value()));
    chart::distribution(title, &note, what, counted, at(0.999), &labels)
}
