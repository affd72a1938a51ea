//! The result of a run: a table, a line of JSON, a time series.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::{ClientArgs, Plan, Workload};
use super::meter::{Measured, Row};
use super::plot;
use super::system;
use super::wire::Sample;

const GIB: f64 = (1_u64 << 30) as f64;

/// The client's measurements.
pub(crate) struct Client {
    pub(crate) measured: Measured,
    /// Memory before there was anything of the run.
    pub(crate) rss_kib_before: Option<u64>,
    pub(crate) failed: u32,
    pub(crate) interrupted: bool,
}

/// The server's samples.
pub(crate) struct Server {
    /// Before there was anything of the run.
    pub(crate) before: Sample,
    pub(crate) begin: Sample,
    pub(crate) end: Sample,
    /// When all streams had ended.
    pub(crate) totals: Sample,
}

/// The keys of `--json`, which `--help` explains.
#[derive(Serialize)]
pub(crate) struct Figures {
    workload: &'static str,
    interrupted: bool,
    pub(crate) bytes: u64,
    pub(crate) wall_s: f64,
    pub(crate) mb_per_s: Option<f64>,
    pub(crate) operations: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: Option<f64>,
    pub(crate) connections: u64,
    failed: u32,
    client_cpu_s: Option<f64>,
    server_cpu_s: Option<f64>,
    cpu_s_per_gib: Option<f64>,
    rss_kib: Option<u64>,
    client_rss_kib: Option<u64>,
    kib_per_connection: Option<f64>,
    client_kib_per_connection: Option<f64>,
    pub(crate) retransmit_pct: Option<f64>,
    wire_bytes_out: u64,
    datagrams_out: u64,
    wire_bytes_in: u64,
    server_wire_bytes_out: u64,
    drops: Option<u64>,
    discarded: u64,
}

pub(crate) struct Report {
    pub(crate) workload: Workload,
    pub(crate) figures: Figures,
    /// Nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(plan: &Plan, client: Client, server: &Server) -> Self {
        let Client { measured, rss_kib_before, failed, interrupted } = client;
        let (begin, end) = (&measured.begin, &measured.end);
        let wall_s = (end.at - begin.at).as_secs_f64();
        let bulk = matches!(plan.workload, Workload::Sink | Workload::Source | Workload::Echo);
        let crowd = matches!(plan.workload, Workload::Many | Workload::Idle);
        let connections = match plan.workload {
            Workload::Many => measured.operations,
            _ => u64::from(plan.connections - failed),
        };

        let client_cpu = grown(end.cpu, begin.cpu, Duration::saturating_sub);
        let client_cpu_s = client_cpu.map(|cpu| cpu.as_secs_f64());
        let server_cpu_s = grown(server.end.cpu_s, server.begin.cpu_s, |now, then| now - then);
        let both = client_cpu_s.zip(server_cpu_s).map(|(client, server)| client + server);
        let gib = measured.bytes as f64 / GIB;

        let each = |now, before| {
            let kib = grown(now, before, u64::saturating_sub)? as f64;
            (crowd && connections > 0).then(|| kib / connections as f64)
        };
        let drops = grown(end.drops, begin.drops, u64::saturating_sub);
        let server_drops = grown(server.end.drops, server.begin.drops, u64::saturating_sub);
        let discarded = system::discarded(&end.endpoint) - system::discarded(&begin.endpoint);
        let resent = measured.retransmits + server.totals.retransmits;
        let segments = measured.segments + server.totals.sent_segments + resent;
        let micros = |quantile| micros(&measured.latencies, quantile);
        let figures = Figures {
            workload: plan.workload.name(),
            interrupted,
            bytes: measured.bytes,
            wall_s,
            mb_per_s: (plan.workload != Workload::Idle && wall_s > 0.0)
                .then(|| measured.bytes as f64 / wall_s / 1e6),
            operations: measured.operations,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            max_us: micros(1.0),
            connections,
            failed,
            client_cpu_s,
            server_cpu_s,
            cpu_s_per_gib: both.filter(|_| bulk && gib > 0.0).map(|both| both / gib),
            rss_kib: server.end.rss_kib,
            client_rss_kib: end.rss_kib,
            kib_per_connection: each(server.end.rss_kib, server.before.rss_kib),
            client_kib_per_connection: each(end.rss_kib, rss_kib_before),
            retransmit_pct: (segments > 0).then(|| resent as f64 * 100.0 / segments as f64),
            wire_bytes_out: end.endpoint.sent.bytes - begin.endpoint.sent.bytes,
            datagrams_out: end.endpoint.sent.datagrams - begin.endpoint.sent.datagrams,
            wire_bytes_in: end.endpoint.received.bytes - begin.endpoint.received.bytes,
            server_wire_bytes_out: server.end.wire_bytes_out - server.begin.wire_bytes_out,
            drops: drops.zip(server_drops).map(|(client, server)| client + server),
            discarded: discarded + server.end.discarded - server.begin.discarded,
        };
        let Measured { latencies, rows, .. } = measured;
        Self { workload: plan.workload, figures, latencies, rows }
    }

    /// Shows and stores it as the command line says.
    pub(crate) fn write(&self, args: &ClientArgs) -> Result<()> {
        if args.json {
            eprint!("{}", self.table());
            println!("{}", serde_json::to_string(&self.figures)?);
        } else {
            print!("{}", self.table());
        }
        if let Some(path) = &args.csv {
            store(path, &self.csv())?;
        }
        if let Some(path) = &args.plot {
            store(path, &plot::svg(self))?;
        }
        Ok(())
    }

    fn table(&self) -> String {
        let figures = &self.figures;
        let mut out = String::new();
        let mut row = |what: &str, value: String| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{what:<24} {value}");
        };
        let interrupted = if figures.interrupted { ", interrupted" } else { "" };
        row("workload", format!("{}{interrupted}", figures.workload));
        row("time", format!("{:.3} s", figures.wall_s));
        if let Some(speed) = figures.mb_per_s {
            row("goodput", format!("{speed:.1} MB/s, {} bytes", figures.bytes));
        }
        if let (Some(p50), Some(p99), Some(p999), Some(max)) =
            (figures.p50_us, figures.p99_us, figures.p999_us, figures.max_us)
        {
            row("round trips", figures.operations.to_string());
            row("latency", format!("p50 {p50:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.1} us"));
        }
        if matches!(self.workload, Workload::Many | Workload::Idle) {
            row("connections", format!("{}, {} failed", figures.connections, figures.failed));
        }
        row(
            "CPU",
            format!(
                "client {} s, server {} s{}",
                shown(figures.client_cpu_s, 3),
                shown(figures.server_cpu_s, 3),
                figures
                    .cpu_s_per_gib
                    .map_or_else(String::new, |cost| { format!(", together {cost:.2} s per GiB") }),
            ),
        );
        row("memory", figures.memory());
        row("resent", format!("{} % of the segments", shown(figures.retransmit_pct, 3)));
        row(
            "on the wire",
            format!(
                "client sent {} bytes in {} datagrams and received {}; server sent {}",
                figures.wire_bytes_out,
                figures.datagrams_out,
                figures.wire_bytes_in,
                figures.server_wire_bytes_out,
            ),
        );
        row(
            "lost datagrams",
            format!(
                "{} at full sockets, {} discarded",
                shown(figures.drops.map(|drops| drops as f64), 0),
                figures.discarded
            ),
        );
        out
    }

    fn csv(&self) -> String {
        let header = "seconds,bytes,mb_per_s,srtt_us,retransmit_pct,cpu_pct,operations\n";
        let mut out = header.to_owned();
        let cell =
            |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
        for row in &self.rows {
            let srtt = row.srtt.map(|srtt| srtt.as_secs_f64() * 1e6);
            let _ = writeln!(
                out,
                "{:.3},{},{:.3},{},{},{},{}",
                row.seconds,
                row.bytes,
                row.mb_per_s,
                cell(srtt),
                cell(row.retransmit_pct),
                cell(row.cpu_pct),
                row.operations,
            );
        }
        out
    }
}

impl Figures {
    /// Memory of both processes, as a line of the table.
    fn memory(&self) -> String {
        let memory = |kib: Option<u64>| shown(kib.map(|kib| kib as f64), 0);
        let (client, server) = (memory(self.client_rss_kib), memory(self.rss_kib));
        let each = match (self.client_kib_per_connection, self.kib_per_connection) {
            (Some(client), Some(server)) => {
                format!("; per connection {client:.2} and {server:.2} KiB")
            }
            _ => String::new(),
        };
        format!("client {client} KiB, server {server} KiB{each}")
    }
}

/// Latency at a quantile in microseconds; `None` without a sample.
fn micros(latencies: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile) as f64 / 1e3)
}

fn grown<T>(now: Option<T>, before: Option<T>, minus: fn(T, T) -> T) -> Option<T> {
    Some(minus(now?, before?))
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "?".to_owned(), |value| format!("{value:.digits$}"))
}

fn store(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
