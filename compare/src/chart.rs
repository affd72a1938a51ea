//! Bar charts, legible on light and on dark pages.

#[cfg(all(feature = "together", target_os = "linux"))]
pub(crate) mod lines;

use std::fmt::Write as _;

use clap::ValueEnum as _;

use crate::args::{Case, Peer, Wire, Workload, name};
use crate::protocol::Sample;
use crate::report::{Column, cases, figure, label};

const WIDTH: u32 = 720;
const MARGIN: u32 = 16;
/// Space for the names on the left and the figures on the right.
const NAMES: u32 = 230;
const VALUES: u32 = 165;
const BAR: u32 = 16;
const ROW: u32 = 24;
const HEADING: u32 = 30;
const TITLE: u32 = 36;

const STYLE: &str = "text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.group, .none { fill: #59636e; }
.value { font-variant-numeric: tabular-nums; }
.bar { fill: #8c959f; }
.ours { fill: #0969da; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.group, .none { fill: #9198a1; }
.bar { fill: #656c76; }
.ours { fill: #4493f8; }
}";

struct Bar {
    label: String,
    /// None for what could not be measured.
    value: Option<f64>,
    /// The text behind the figure.
    remark: String,
    ours: bool,
}

struct Group {
    heading: String,
    bars: Vec<Bar>,
}

struct Chart {
    title: String,
    digits: usize,
    groups: Vec<Group>,
}

/// File names and contents.
pub(crate) fn all(samples: &[Sample]) -> Vec<(String, String)> {
    let by_wire = |workload, title: &str, column, digits| {
        let groups = Wire::value_variants().iter().map(|wire| {
            let cases = cases(samples, workload);
            let cases: Vec<_> = cases.into_iter().filter(|case| case.wire == *wire).collect();
            group(samples, name(*wire), &cases, column)
        });
        Chart { title: title.into(), digits, groups: groups.collect() }
    };
    let percentiles = || {
        let cases = cases(samples, Workload::Pingpong);
        let cases: Vec<_> = cases.into_iter().filter(|case| case.wire == Wire::Plain).collect();
        let groups = ["p50 µs", "p99 µs", "p99.9 µs"].into_iter();
        let groups = groups.map(|column| {
            let heading = column.trim_end_matches(" µs").to_owned();
            group(samples, heading, &cases, column)
        });
        let title = "64 bytes there and back, µs (less is better)".into();
        Chart { title, digits: 1, groups: groups.collect() }
    };
    let charts = [
        ("sink", by_wire(Workload::Sink, "One way, MB/s (more is better)", "MB/s", 0)),
        (
            "sink-cpu",
            by_wire(
                Workload::Sink,
                "One way, CPU seconds of both sides per GiB (less is better)",
                "CPU-s/GiB",
                2,
            ),
        ),
        ("echo", by_wire(Workload::Echo, "There and back, MB/s (more is better)", "MB/s", 0)),
        ("pingpong", percentiles()),
        (
            "many",
            by_wire(
                Workload::Many,
                "All connections at once, seconds until the last echo (less is better)",
                "seconds",
                2,
            ),
        ),
        (
            "memory",
            by_wire(
                Workload::Many,
                "Server memory per idle connection, KiB (less is better)",
                "server KiB each",
                1,
            ),
        ),
    ];
    let drawn = charts.into_iter().filter_map(|(name, mut chart)| {
        chart.groups.retain(|group| !group.bars.is_empty());
        (!chart.groups.is_empty()).then(|| (format!("{name}.svg"), chart.svg()))
    });
    drawn.collect()
}

fn group(samples: &[Sample], heading: String, cases: &[Case], title: &str) -> Group {
    let transports = cases.iter().filter(|case| !case.peer.is_machine());
    let bars = transports.filter_map(|&case| {
        let column = case.workload.columns().iter().find(|column| column.title == title)?;
        Some(bar(samples, case, column))
    });
    Group { heading, bars: bars.collect() }
}

fn bar(samples: &[Sample], case: Case, column: &Column) -> Bar {
    let value = figure(samples, case, column);
    let remark = match unfinished(samples, case) {
        Some(count) if count > 0.0 => format!(", {count:.0} unfinished"),
        _ => String::new(),
    };
    Bar { label: label(samples, case), value, remark, ours: case.peer == Peer::Kcpx }
}

/// Connections that were stuck or failed: a time without them says little.
fn unfinished(samples: &[Sample], case: Case) -> Option<f64> {
    let count = |title| {
        let column = case.workload.columns().iter().find(|column| column.title == title)?;
        figure(samples, case, column)
    };
    Some(count("stuck")? + count("failed").unwrap_or(0.0))
}

impl Chart {
    fn svg(&self) -> String {
        let rows: usize = self.groups.iter().map(|group| group.bars.len()).sum();
        let (rows, groups) = (rows as u32, self.groups.len() as u32);
        let height = 2 * MARGIN + TITLE + groups * HEADING + rows * ROW;
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n\
             <text class=\"title\" x=\"{MARGIN}\" y=\"{y}\">{title}</text>\n",
            title = escaped(&self.title),
            y = MARGIN + 16,
        );
        let mut y = MARGIN + TITLE;
        for group in &self.groups {
            let (heading, baseline) = (escaped(&group.heading), y + 18);
            let _ = writeln!(
                out,
                "<text class=\"group\" x=\"{MARGIN}\" y=\"{baseline}\">{heading}</text>"
            );
            y += HEADING;
            for bar in &group.bars {
                self.bar(&mut out, bar, self.length(group, bar), y);
                y += ROW;
            }
        }
        out.push_str("</svg>\n");
        out
    }

    /// The longest bar of each group fills the width: groups may differ by orders of magnitude.
    fn length(&self, group: &Group, bar: &Bar) -> f64 {
        let values = group.bars.iter().filter_map(|bar| bar.value);
        let most = values.fold(0.0, f64::max);
        let width = f64::from(WIDTH - 2 * MARGIN - NAMES - VALUES);
        if most > 0.0 { width * bar.value.unwrap_or(0.0) / most } else { 0.0 }
    }

    fn bar(&self, out: &mut String, bar: &Bar, length: f64, y: u32) {
        let (left, baseline) = (MARGIN + NAMES, y + 13);
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{baseline}\" text-anchor=\"end\">{label}</text>",
            x = left - 10,
            label = escaped(&bar.label),
        );
        let Some(value) = bar.value else {
            let _ = writeln!(
                out,
                "<text class=\"none\" x=\"{left}\" y=\"{baseline}\">not finished</text>"
            );
            return;
        };
        let class = if bar.ours { "bar ours" } else { "bar" };
        let (length, digits) = (length.max(1.0), self.digits);
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{left}\" y=\"{y}\" width=\"{length:.1}\" \
             height=\"{BAR}\" rx=\"2\"/>\n\
             <text class=\"value\" x=\"{x:.1}\" y=\"{baseline}\">{value:.digits$}{remark}</text>",
            remark = escaped(&bar.remark),
            x = f64::from(left) + length + 8.0,
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    fn widths(svg: &str) -> Vec<f64> {
        let bars = svg.lines().filter(|line| line.starts_with("<rect"));
        bars.map(|line| line.split("width=\"").nth(1).unwrap())
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn bar_lengths_are_proportional_within_a_group() {
        let samples = [
            sample(Peer::Kcpx, Wire::Plain, 0, Some(2_000.0)),
            sample(Peer::Quinn, Wire::Plain, 0, Some(500.0)),
            sample(Peer::KcpRs, Wire::Plain, 0, None),
            sample(Peer::Kcpx, Wire::Fec, 0, Some(10.0)),
        ];
        let charts = all(&samples);
        let names: Vec<_> = charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["sink.svg", "sink-cpu.svg"]);
        let svg = &charts[0].1;
        let [ours, theirs, alone] = widths(svg)[..] else { panic!("{svg}") };
        assert!((ours / theirs - 4.0).abs() < 0.01, "{ours} and {theirs}");
        assert!((ours - alone).abs() < f64::EPSILON, "{ours} and {alone}");
        assert_eq!(svg.matches("not finished").count(), 1);
        assert_eq!(svg.matches("class=\"bar ours\"").count(), 2);
    }

    #[test]
    fn svg_elements_are_closed_and_text_is_escaped() {
        let mut odd = sample(Peer::Quinn, Wire::Plain, 0, Some(1.0));
        odd.figures.as_mut().unwrap().note = Some("a < b & c".to_owned());
        let svg = &all(&[odd])[0].1;
        assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap();
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "{svg}");
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}
