//! Medians and tables.

use std::fmt::Write as _;

use clap::ValueEnum as _;

use crate::args::{Args, Case, Peer, Wire, Workload, name};
use crate::protocol::{Figures, Sample};

/// A figure of one measurement.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    digits: usize,
    pub(crate) value: fn(&Figures) -> Option<f64>,
    /// Whether the table has kcpx's figure divided by each other one.
    ratio: bool,
}

const fn column(title: &'static str, digits: usize, value: fn(&Figures) -> Option<f64>) -> Column {
    Column { title, digits, value, ratio: false }
}

const fn compared(
    title: &'static str,
    digits: usize,
    value: fn(&Figures) -> Option<f64>,
) -> Column {
    Column { title, digits, value, ratio: true }
}

const RETRANSMIT: Column = column("retransmit %", 3, |it| it.outcome.retransmit_pct);
const DROPS: Column = column("drops", 0, |it| it.udp_drops.map(|drops| drops as f64));
const BULK: &[Column] = &[
    compared("MB/s", 1, |it| it.mb_per_s),
    compared("CPU-s/GiB", 2, |it| it.cpu_s_per_gib),
    RETRANSMIT,
    DROPS,
];
const PINGPONG: &[Column] = &[
    compared("p50 µs", 1, |it| it.outcome.p50_us),
    compared("p99 µs", 1, |it| it.outcome.p99_us),
    column("p99.9 µs", 1, |it| it.outcome.p999_us),
    column("round trips", 0, |it| it.outcome.round_trips.map(|count| count as f64)),
    column("CPU µs per round trip", 1, |it| {
        let count = it.outcome.round_trips.filter(|count| *count > 0)?;
        Some((it.outcome.cpu_s + it.server_cpu_s) * 1e6 / count as f64)
    }),
];
const MANY: &[Column] = &[
    compared("seconds", 2, |it| Some(it.outcome.wall_s)),
    column("finished", 0, |it| it.outcome.finished.map(|count| count as f64)),
    column("stuck", 0, |it| it.outcome.stuck.map(|count| count as f64)),
    column("failed", 0, |it| it.outcome.failed.map(|count| count as f64)),
    column("CPU-s", 2, |it| Some(it.outcome.cpu_s + it.server_cpu_s)),
    compared("server KiB each", 2, |it| it.server_kib_per_connection),
    column("server idle ms/s", 2, |it| it.server_idle_ms_per_s),
    DROPS,
];

impl Workload {
    pub(crate) fn columns(self) -> &'static [Column] {
        match self {
            Self::Sink | Self::Echo => BULK,
            Self::Pingpong => PINGPONG,
            Self::Many => MANY,
            // Their tables have paths in rows and peers in columns.
            Self::Msg | Self::Bulk => &[],
        }
    }
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(upper.midpoint(values[values.len() / 2 - 1]))
}

/// The values of one row and one column, of the runs that succeeded.
fn values(samples: &[Sample], case: Case, column: &Column) -> Vec<f64> {
    let samples = samples.iter().filter(|sample| sample.case == case);
    let figures = samples.filter_map(|sample| sample.figures.as_ref());
    figures.filter_map(column.value).filter(|value| value.is_finite()).collect()
}

pub(crate) fn figure(samples: &[Sample], case: Case, column: &Column) -> Option<f64> {
    median(values(samples, case, column))
}

/// The rows of a workload, in the order of the tables.
pub(crate) fn cases(samples: &[Sample], workload: Workload) -> Vec<Case> {
    let wires = Wire::value_variants().iter();
    let rows = wires.flat_map(|wire| Peer::value_variants().iter().map(|peer| (*wire, *peer)));
    let find = |(wire, peer)| {
        let mut cases = samples.iter().map(|sample| sample.case);
        let is_row = |case: &Case| (case.workload, case.wire, case.peer) == (workload, wire, peer);
        cases.find(is_row)
    };
    rows.filter_map(find).collect()
}

/// The name of a row's transport, with what it says about itself.
pub(crate) fn label(samples: &[Sample], case: Case) -> String {
    let mut samples = samples.iter().filter(|sample| sample.case == case);
    let note = samples.find_map(|sample| sample.figures.as_ref()?.note.as_deref());
    let peer = name(case.peer);
    note.map_or_else(|| peer.clone(), |note| format!("{peer} ({note})"))
}

pub(crate) fn markdown(args: &Args, samples: &[Sample]) -> String {
    let mut out = String::new();
    for workload in Workload::value_variants() {
        let rows = cases(samples, *workload);
        if !rows.is_empty() {
            let _ =
                write!(out, "\n{}\n\n{}", title(args, *workload, samples), table(samples, &rows));
        }
    }
    out
}

fn title(args: &Args, workload: Workload, samples: &[Sample]) -> String {
    let (load, seconds) = (args.load, args.load.time(workload).as_secs());
    let what = match workload {
        Workload::Sink => format!("sink: one connection, 64 KiB writes for {seconds} s"),
        Workload::Echo => format!("echo: one connection, 64 KiB writes for {seconds} s"),
        Workload::Pingpong => format!("pingpong: 64 bytes, up to {} times", load.round_trips),
        Workload::Many => {
            format!("many: {} connections at once, an echo of 1 KiB each", load.connections)
        }
        Workload::Msg | Workload::Bulk => name(workload),
    };
    let mut same = samples.iter().filter(|sample| sample.case.workload == workload);
    let pinned = if same.all(|sample| sample.pinned || sample.error.is_some()) {
        "one CPU for each process"
    } else {
        "not pinned"
    };
    let runs =
        if args.runs == 1 { "1 run".into() } else { format!("medians of {} runs", args.runs) };
    format!("{what}; {runs}, {pinned}")
}

fn table(samples: &[Sample], rows: &[Case]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let columns = first.workload.columns();
    let ratios = || columns.iter().filter(|column| column.ratio);
    let mut out = "| wire | peer |".to_owned();
    for column in columns {
        let _ = write!(out, " {} |", column.title);
    }
    for column in ratios() {
        let _ = write!(out, " {}: kcpx / peer |", column.title);
    }
    let lowest = columns.first().map_or("", |column| column.title);
    let _ = write!(out, " {lowest}: least – most | runs |\n|---|---|");
    let _ = writeln!(out, "{}", "---:|".repeat(columns.len() + ratios().count() + 2));
    for &case in rows {
        let _ = write!(out, "| {} | {} |", name(case.wire), label(samples, case));
        for column in columns {
            cell(&mut out, figure(samples, case, column), column.digits);
        }
        let ours = Case { peer: Peer::Kcpx, ..case };
        for column in ratios().filter(|_| case != ours) {
            let pair = figure(samples, ours, column).zip(figure(samples, case, column));
            cell(&mut out, pair.map(|(ours, theirs)| ours / theirs), 2);
        }
        if case == ours {
            out.push_str(&" |".repeat(ratios().count()));
        }
        if let Some(column) = columns.first() {
            let values = values(samples, case, column);
            let least = values.iter().copied().reduce(f64::min);
            match least.zip(values.iter().copied().reduce(f64::max)) {
                Some((least, most)) => {
                    let digits = column.digits;
                    let _ = write!(out, " {least:.digits$} – {most:.digits$} |");
                }
                None => out.push_str(" |"),
            }
            let of = samples.iter().filter(|sample| sample.case == case).count();
            let _ = writeln!(out, " {}/{of} |", values.len());
        }
    }
    out
}

fn cell(out: &mut String, value: Option<f64>, digits: usize) {
    let _ = match value {
        Some(value) => write!(out, " {value:.digits$} |"),
        None => write!(out, " |"),
    };
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::args::TcpCongestion;
    use crate::protocol::Outcome;

    pub(crate) fn sample(peer: Peer, wire: Wire, run: u32, mb_per_s: Option<f64>) -> Sample {
        let figures = mb_per_s.map(|mb_per_s| Figures {
            outcome: Outcome::default(),
            note: (peer == Peer::Quinn).then(|| "TLS 1.3".to_owned()),
            mb_per_s: Some(mb_per_s),
            server_cpu_s: 1.0,
            cpu_s_per_gib: Some(1e3 / mb_per_s),
            server_kib_per_connection: None,
            server_idle_ms_per_s: None,
            udp_drops: Some(0),
        });
        let case = Case::new(Workload::Sink, wire, peer);
        let error = figures.is_none().then(|| "not done after 44 s".to_owned());
        Sample { case, run, pinned: true, figures, error }
    }

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }

    #[test]
    fn table_shows_medians_ratios_and_empty_cells() {
        let mut samples = Vec::new();
        for (run, speed) in [(0, 900.0), (1, 1_100.0), (2, 1_000.0)] {
            samples.push(sample(Peer::Kcpx, Wire::Plain, run, Some(speed)));
            samples.push(sample(Peer::Quinn, Wire::Plain, run, Some(speed / 4.0)));
            samples.push(sample(Peer::KcpRs, Wire::Plain, run, None));
        }
        let table = table(&samples, &cases(&samples, Workload::Sink));
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
        assert_eq!(rows[2][1..4], ["kcpx", "1000.0", "1.00"]);
        assert_eq!(rows[2][6..], ["", "", "900.0 – 1100.0", "3/3"]);
        assert_eq!(rows[3][1..], ["kcp-rs", "", "", "", "", "", "", "", "0/3"]);
        assert_eq!(rows[4][1..4], ["quinn (TLS 1.3)", "250.0", "4.00"]);
        assert_eq!(rows[4][6..], ["4.00", "0.25", "225.0 – 275.0", "3/3"]);
    }

    #[test]
    fn samples_with_a_congestion_control_have_rows() {
        let mut sample = sample(Peer::Tcp, Wire::Plain, 0, Some(900.0));
        sample.case.tcp_congestion = Some(TcpCongestion::Cubic);
        assert_eq!(cases(std::slice::from_ref(&sample), Workload::Sink), [sample.case]);
    }
}
