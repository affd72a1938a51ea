//! Tables and charts of what ran across a path: rows are paths, columns are peers.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum as _;
use kcpx_relay::{QueueDelay, RateReplay};

use super::PathSample;
use crate::args::{Args, BurstLength, Peer, Wire, Workload, name};
use crate::chart::lines::{self, Line};
use crate::protocol::{Latency, Messages};
use crate::report::median;
use crate::workload::msg::LEARNING;

/// Messages of one part of the time.
type Part = fn(&Messages) -> Option<Latency>;
type Quantile = fn(&Latency) -> f64;
const FIRST: Part = |messages| messages.first_5s;
const REST: Part = |messages| messages.rest;

pub(crate) fn markdown(args: &Args, samples: &[PathSample]) -> String {
    let mut out = String::new();
    for workload in [Workload::Msg, Workload::Bulk] {
        for &wire in Wire::value_variants() {
            let samples: Vec<_> = samples
                .iter()
                .filter(|sample| (sample.case.workload, sample.case.wire) == (workload, wire))
                .collect();
            if !samples.is_empty() {
                tables(&mut out, args, workload, &samples);
            }
        }
    }
    out
}

/// The tables of one workload and one wire.
fn tables(out: &mut String, args: &Args, workload: Workload, samples: &[&PathSample]) {
    let title = title(args, workload, samples);
    let learning = LEARNING.as_secs();
    if workload == Workload::Bulk {
        let _ = writeln!(out, "\n{title}; Mbit/s at wire ratio\n");
        table(out, samples, bulk_cell);
    } else {
        let cells = "p50/p99/p99.9 at wire ratio";
        if args.load.time(workload) > LEARNING {
            let _ = writeln!(out, "\n{title}; {cells}, from second {} on\n", learning + 1);
            table(out, samples, |cell| latency_cell(cell, REST));
        }
        let _ = writeln!(out, "\n{title}; {cells}, the first {learning} s\n");
        table(out, samples, |cell| latency_cell(cell, FIRST));
    }
    if samples.iter().any(|sample| wait(sample).is_some()) {
        let cells = "wait in the queue from client to server, p50/p95/p99";
        let _ = writeln!(out, "\n{title}; {cells}\n");
        table(out, samples, wait_cell);
    }
    let _ = writeln!(out, "\n{}", relay(samples));
}

fn title(args: &Args, workload: Workload, samples: &[&PathSample]) -> String {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let seconds = args.load.time(workload).as_secs();
    let mut title = name(workload);
    let _ = match workload {
        Workload::Msg => {
            let (size, every) = (args.load.size, millis(args.load.every));
            write!(title, ": {size} bytes every {every} ms for {seconds} s")
        }
        _ if args.load.streams > 1 => {
            write!(title, ": {} connections, 64 KiB writes for {seconds} s", args.load.streams)
        }
        _ => write!(title, ": 64 KiB writes for {seconds} s"),
    };
    if let Some(server) = args.path.server {
        let _ = write!(title, " to a server of {}", name(server));
    }
    if let Some(first) = samples.first() {
        let _ = write!(title, ", {}", name(first.case.wire));
    }
    let _ = match &args.path.trace_delay {
        Some(file) => write!(title, "; delays of {}", short(file)),
        None => write!(title, "; round trip {} ms", millis(args.path.rtt)),
    };
    if !args.path.jitter.is_zero() {
        let order = if args.path.ordered { ", in order" } else { "" };
        let _ = write!(title, ", jitter up to {} ms{order}", millis(args.path.jitter));
    }
    if args.path.reorder > 0.0 {
        let _ = write!(title, ", {} % held back", args.path.reorder);
    }
    let _ = match args.path.burst {
        Some(BurstLength::Packets(mean)) => write!(title, ", lost in bursts of {mean} packets"),
        Some(BurstLength::Time(mean)) => {
            write!(title, ", lost in periods of {} ms", millis(mean))
        }
        None => Ok(()),
    };
    if let Some((rate, queue)) = args.path.rate.zip(args.path.queue) {
        let _ = write!(title, ", {rate} Mbit/s with a queue of {queue} packets");
    }
    title.push_str(&traces(args));
    if let Some(peer) = args.path.beside {
        let _ = write!(title, ", beside a bulk transfer of {}", name(peer));
        if let Some(congestion) = args.tcp_congestion.filter(|_| peer == Peer::Tcp) {
            let _ = write!(title, " ({})", name(congestion));
        }
    }
    let _ = match args.path.seed.len() {
        1 => write!(title, "; 1 seed"),
        count => write!(title, "; medians of {count} seeds"),
    };
    let pinned = samples.iter().all(|sample| sample.pinned || sample.figures.is_none());
    title + if pinned { ", one CPU for each process" } else { ", not pinned" }
}

/// The part of the title about recorded bottlenecks.
fn traces(args: &Args) -> String {
    let mut text = String::new();
    let ways = [("up", &args.path.trace_up), ("down", &args.path.trace_down)].map(|(way, file)| {
        let file = file.as_ref()?;
        Some(format!("{} {way}", short(file)))
    });
    for way in ways.into_iter().flatten() {
        let _ = write!(text, ", trace {way}");
    }
    if !text.is_empty() {
        let queue = args.path.queue.unwrap_or(RateReplay::QUEUE);
        let _ = write!(text, " with a queue of {queue} packets");
    }
    text
}

fn short(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).display().to_string()
}

/// Peers in the order of the other tables.
fn peers(samples: &[&PathSample]) -> Vec<Peer> {
    let all = Peer::value_variants().iter().copied();
    all.filter(|peer| samples.iter().any(|sample| sample.case.peer == *peer)).collect()
}

/// Losses in the order of the command line.
fn losses(samples: &[&PathSample]) -> Vec<f64> {
    let mut losses = Vec::new();
    for sample in samples {
        let loss = sample.conditions.loss;
        if !losses.contains(&loss) {
            losses.push(loss);
        }
    }
    losses
}

fn cell_samples<'a>(samples: &[&'a PathSample], loss: f64, peer: Peer) -> Vec<&'a PathSample> {
    let same = |sample: &&&PathSample| sample.conditions.loss == loss && sample.case.peer == peer;
    samples.iter().filter(same).copied().collect()
}

fn label(samples: &[&PathSample], peer: Peer) -> String {
    let mut same = samples.iter().filter(|sample| sample.case.peer == peer);
    let note = same.find_map(|sample| sample.figures.as_ref()?.note.as_deref());
    let limit = samples.iter().find(|sample| sample.case.peer == peer);
    let limit = limit.and_then(|sample| sample.case.max_overhead);
    let peer = match limit.filter(|_| peer == Peer::KcpxAuto) {
        Some(limit) => format!("{} limit {}", name(peer), f64::from(limit) / 1e3),
        None => name(peer),
    };
    note.map_or_else(|| peer.clone(), |note| format!("{peer} ({note})"))
}

fn table(
    out: &mut String,
    samples: &[&PathSample],
    cell: impl Fn(&[&PathSample]) -> Option<String>,
) {
    let peers = peers(samples);
    out.push_str("| loss |");
    for &peer in &peers {
        let _ = write!(out, " {} |", label(samples, peer));
    }
    let _ = writeln!(out, "\n|---:|{}", "---:|".repeat(peers.len()));
    for loss in losses(samples) {
        let _ = write!(out, "| {loss} % |");
        for &peer in &peers {
            let samples = cell_samples(samples, loss, peer);
            let counted: Vec<_> =
                samples.iter().filter(|sample| sample.error.is_none()).copied().collect();
            let text = cell(&counted).unwrap_or_default();
            let _ = match counted.len() {
                count if count == samples.len() => write!(out, " {text} |"),
                0 => write!(out, " {} |", unfinished(&samples)),
                count => write!(out, " {text} ({count} of {} seeds) |", samples.len()),
            };
        }
        out.push('\n');
    }
}

/// How far a transport came that did not finish; empty where it did not start.
fn unfinished(samples: &[&PathSample]) -> String {
    let arrived = samples.iter().find_map(|sample| {
        let scheduled = sample.message?.scheduled;
        let received = sample.figures.as_ref()?.messages?.received;
        (received < scheduled).then(|| format!("{received} of {scheduled} arrived"))
    });
    arrived.unwrap_or_default()
}

fn latency_cell(samples: &[&PathSample], part: Part) -> Option<String> {
    let figure = |value: Quantile| latency(samples, part, value).map(millis);
    let (p50, p99, p999) =
        (figure(|it| it.p50_us)?, figure(|it| it.p99_us)?, figure(|it| it.p999_us)?);
    Some(format!("{p50}/{p99}/{p999} ms{} at {:.2}", beside(samples), ratio(samples)?))
}

/// Goodput of the transfer beside, if there is one.
fn beside(samples: &[&PathSample]) -> String {
    let goodput = samples.iter().filter_map(|sample| sample.figures.as_ref()?.beside_mbit_per_s);
    median(goodput.collect()).map_or_else(String::new, |goodput| format!(" + {goodput:.2}"))
}

/// Whole milliseconds from a hundred on.
fn millis(millis: f64) -> String {
    if millis < 100.0 { format!("{millis:.1}") } else { format!("{millis:.0}") }
}

/// A figure of the messages, in milliseconds.
fn latency(samples: &[&PathSample], part: Part, value: Quantile) -> Option<f64> {
    let latencies = samples
        .iter()
        .filter_map(|sample| part(sample.figures.as_ref()?.messages.as_ref()?))
        .map(|latency| value(&latency) / 1e3);
    median(latencies.collect())
}

fn ratio(samples: &[&PathSample]) -> Option<f64> {
    let ratios = samples.iter().filter_map(|sample| Some(sample.figures.as_ref()?.wire_ratio));
    median(ratios.collect())
}

fn bulk_cell(samples: &[&PathSample]) -> Option<String> {
    let goodput = samples.iter().filter_map(|sample| sample.figures.as_ref()?.goodput_mbit_per_s);
    let goodput = median(goodput.collect())?;
    Some(format!("{goodput:.2}{} at {:.2}", beside(samples), ratio(samples)?))
}

fn wait(sample: &PathSample) -> Option<QueueDelay> {
    sample.figures.as_ref()?.client_to_server.queue_delay
}

fn wait_cell(samples: &[&PathSample]) -> Option<String> {
    let figure = |value: fn(QueueDelay) -> Duration| {
        let waits = samples.iter().filter_map(|sample| wait(sample));
        median(waits.map(|wait| value(wait).as_secs_f64() * 1e3).collect()).map(millis)
    };
    let (p50, p95, p99) = (figure(|it| it.p50)?, figure(|it| it.p95)?, figure(|it| it.p99)?);
    Some(format!("{p50}/{p95}/{p99} ms"))
}

/// How well the relay kept its conditions.
fn relay(samples: &[&PathSample]) -> String {
    let figures = || samples.iter().filter_map(|sample| sample.figures.as_ref());
    let percent = |(late, of): (u64, u64)| late as f64 * 100.0 / of.max(1) as f64;
    let worst = figures().map(|figures| percent(figures.late())).fold(0.0, f64::max);
    let drops: u64 = figures().map(super::PathFigures::relay_drops).sum();
    format!(
        "Relay: at most {worst:.3} % of the packets of a measurement came out more than 1 ms late; \
         {drops} lost by the relay itself."
    )
}

/// File names and contents: median and p99 over the loss, from second 6 on, or of the first five
/// seconds where there is no more; goodput of bulk.
pub(crate) fn charts(samples: &[PathSample]) -> Vec<(String, String)> {
    let mut charts = Vec::new();
    for &wire in Wire::value_variants() {
        let of = |workload| -> Vec<&PathSample> {
            let same =
                |sample: &&PathSample| (sample.case.workload, sample.case.wire) == (workload, wire);
            samples.iter().filter(same).collect()
        };
        let suffix = if wire == Wire::Plain { String::new() } else { format!("-{}", name(wire)) };
        let messages = of(Workload::Msg);
        let any_rest = latency(&messages, REST, |it| it.p50_us).is_some();
        let (part, when) =
            if any_rest { (REST, "from second 6 on") } else { (FIRST, "the first 5 s") };
        let quantiles: [(&str, Quantile); 2] = [("p50", |it| it.p50_us), ("p99", |it| it.p99_us)];
        for (quantile, value) in quantiles {
            let title = format!("One-way latency, {quantile}, ms over loss, {when}");
            let lines = plot(&messages, |samples| latency(samples, part, value));
            charts.push((format!("msg-{quantile}{suffix}.svg"), title, lines, losses(&messages)));
        }
        let bulk = of(Workload::Bulk);
        let lines = plot(&bulk, |samples| {
            let goodput = samples.iter().map(|sample| sample.figures.as_ref()?.goodput_mbit_per_s);
            median(goodput.flatten().collect())
        });
        let title = "Goodput, Mbit/s over loss".to_owned();
        charts.push((format!("bulk{suffix}.svg"), title, lines, losses(&bulk)));
    }
    let drawn = charts.into_iter().filter_map(|(file, title, lines, losses)| {
        let places: Vec<_> = losses.iter().map(|loss| format!("{loss} %")).collect();
        Some((file, lines::svg(&title, &places, &lines)?))
    });
    drawn.collect()
}

/// One line for each peer, with a value or a gap for each loss.
fn plot(samples: &[&PathSample], value: impl Fn(&[&PathSample]) -> Option<f64>) -> Vec<Line> {
    let lines = peers(samples).into_iter().map(|peer| {
        let values = losses(samples).into_iter().map(|loss| {
            let mut samples = cell_samples(samples, loss, peer);
            samples.retain(|sample| sample.error.is_none());
            value(&samples)
        });
        Line { label: label(samples, peer), ours: peer == Peer::Kcpx, values: values.collect() }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Case;
    use crate::path::{Message, PathFigures};
    use crate::protocol::Outcome;

    fn args(line: &str) -> Args {
        Args::from_arguments(line.split(' ')).unwrap()
    }

    fn msg(peer: Peer, loss: f64, seed: u64, p50_ms: f64, received: u64) -> PathSample {
        let latency = |scale: f64| Latency {
            count: 500,
            min_us: 25_000.0,
            p50_us: p50_ms * 1e3 * scale,
            p95_us: p50_ms * 2e3 * scale,
            p99_us: p50_ms * 3e3 * scale,
            p999_us: p50_ms * 4e3 * scale,
            max_us: p50_ms * 5e3 * scale,
        };
        let messages =
            Messages { received, first_5s: Some(latency(2.0)), rest: Some(latency(1.0)) };
        let figures = PathFigures {
            outcome: Outcome::default(),
            note: (peer == Peer::Quinn).then(|| "TLS 1.3".to_owned()),
            server_cpu_s: 1.0,
            read_bytes: 1_000,
            messages: Some(messages),
            goodput_mbit_per_s: None,
            within: None,
            beside_mbit_per_s: None,
            wire_ratio: 1.25,
            client_to_server: kcpx_relay::Counts { late: 1, delivered: 200, ..Default::default() },
            server_to_client: kcpx_relay::Counts { delivered: 200, ..Default::default() },
            server_kernel: Default::default(),
            client_kernel: Default::default(),
        };
        PathSample {
            case: Case::new(Workload::Msg, Wire::Plain, peer),
            conditions: kcpx_relay::Conditions { loss, ..Default::default() },
            traces: Default::default(),
            seed,
            seconds: 10,
            message: Some(Message { every_ms: 10.0, size: 1_024, scheduled: 1_000 }),
            pinned: true,
            figures: Some(figures),
            error: (received < 1_000).then(|| "not all arrived".to_owned()),
        }
    }

    #[test]
    fn table_has_paths_in_rows_and_peers_in_columns() {
        let args = args("compare --workload msg --loss 0,5 --seconds 10 --seed 1,2,3");
        let mut samples = Vec::new();
        for (seed, p50_ms) in [(1, 26.0), (2, 30.0), (3, 28.0)] {
            samples.push(msg(Peer::Kcpx, 0.0, seed, p50_ms, 1_000));
            samples.push(msg(Peer::Kcpx, 5.0, seed, p50_ms, if seed == 1 { 10 } else { 1_000 }));
            samples.push(msg(Peer::Quinn, 0.0, seed, 100.0, 1_000));
            samples.push(msg(Peer::Quinn, 5.0, seed, 100.0, 321));
        }
        samples.last_mut().unwrap().figures = None;
        let text = markdown(&args, &samples);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), 8, "{text}");
        assert!(rows.iter().all(|row| row.len() == 3), "{text}");
        assert_eq!(rows[0], ["loss", "kcpx", "quinn (TLS 1.3)"]);
        assert_eq!(
            rows[2],
            ["0 %", "28.0/84.0/112 ms at 1.25", "100/300/400 ms at 1.25"],
            "medians of the seeds"
        );
        assert_eq!(
            rows[3],
            ["5 %", "29.0/87.0/116 ms at 1.25 (2 of 3 seeds)", "321 of 1000 arrived"]
        );
        assert_eq!(rows[6][1], "56.0/168/224 ms at 1.25", "the first seconds");
        assert!(text.contains("from second 6 on") && text.contains("the first 5 s"), "{text}");
        assert!(text.contains("at most 0.250 %"), "{text}");
    }

    #[test]
    fn traces_are_in_the_title_and_waits_in_a_table() {
        let line =
            "compare --workload msg --loss 0 --seconds 5 --trace-up a/X.down --trace-down X.up";
        let mut sample = msg(Peer::Kcpx, 0.0, 1, 26.0, 1_000);
        let [p50, p95, p99] = [2, 31, 250].map(Duration::from_millis);
        let waits = QueueDelay { p50, p95, p99, max: p99 };
        sample.figures.as_mut().unwrap().client_to_server.queue_delay = Some(waits);
        let text = markdown(&args(line), &[sample]);
        let traces = ", trace X.down up, trace X.up down with a queue of 300 packets";
        assert!(text.contains(traces), "{text}");
        assert!(text.contains("p50/p95/p99") && text.contains("| 2.0/31.0/250 ms |"), "{text}");
        let line = "compare --workload msg --loss 0 --seconds 5 --trace-delay a/X.delay";
        let text = markdown(&args(line), &[msg(Peer::Kcpx, 0.0, 1, 26.0, 1_000)]);
        assert!(text.contains("; delays of X.delay;") && !text.contains("round trip"), "{text}");
        assert!(!text.contains("p50/p95/p99"), "no queue: {text}");
    }

    #[test]
    fn short_measurement_has_the_first_seconds_alone() {
        let args = args("compare --workload msg --loss 0 --seconds 5");
        let text = markdown(&args, &[msg(Peer::Kcpx, 0.0, 1, 26.0, 1_000)]);
        assert!(!text.contains("from second 6 on") && text.contains("the first 5 s"), "{text}");
    }

    #[test]
    fn charts_have_a_line_for_each_peer() {
        let samples = [
            msg(Peer::Kcpx, 0.0, 1, 26.0, 1_000),
            msg(Peer::Kcpx, 5.0, 1, 30.0, 1_000),
            msg(Peer::Quinn, 0.0, 1, 26.0, 1_000),
            msg(Peer::Quinn, 5.0, 1, 90.0, 1_000),
        ];
        let charts = charts(&samples);
        let names: Vec<_> = charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["msg-p50.svg", "msg-p99.svg"]);
        for (_, svg) in &charts {
            assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
            assert!(svg.contains("quinn (TLS 1.3)") && svg.contains("5 %"), "{svg}");
        }
    }
}
