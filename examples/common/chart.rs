//! Charts as SVG documents: values over time, and the distribution of durations.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::fmt::Write;
use std::time::Duration;

/// Width of every chart, and the left and right edge of its plot.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 24.0;
/// Top edge of the first plot, below title and note.
const TOP: f64 = 96.0;

/// Light by default, dark where the viewer prefers that; with a background of its own, so that it
/// stays legible where the viewer ignores the preference.
const STYLE: &str = "
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .page { fill: #ffffff }
    .title { font-size: 17px; font-weight: 600 }
    .note { fill: #59636e }
    .axis { stroke: #59636e }
    .grid { stroke: #d9dee3 }
    .bar { fill: #2f81c7 }
    .curve { fill: none; stroke: #2f81c7; stroke-width: 1.5; stroke-linejoin: round }
    .label { stroke: #c2410c; stroke-width: 1.5; stroke-dasharray: 5 3 }
    .label-text { fill: #c2410c; font-weight: 600 }
    .span { fill: #c2410c; fill-opacity: 0.12 }
    @media (prefers-color-scheme: dark) {
        text { fill: #e6edf3 }
        .page { fill: #0d1117 }
        .note { fill: #9da7b3 }
        .axis { stroke: #9da7b3 }
        .grid { stroke: #2b333d }
        .bar { fill: #58a6ff }
        .curve { stroke: #58a6ff }
        .label { stroke: #f0883e }
        .label-text { fill: #f0883e }
        .span { fill: #f0883e; fill-opacity: 0.2 }
    }
";

/// An SVG document under construction. Texts must not need escapes.
struct Picture {
    out: String,
}

impl Picture {
    fn new(height: f64, title: &str, note: &str) -> Self {
        let mut picture = Self { out: String::new() };
        picture.add(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" "#
        ));
        picture.add(format_args!(
            r#"width="{WIDTH}" height="{height}" role="img" aria-label="{title}">"#
        ));
        picture.add(format_args!("<style>{STYLE}</style>"));
        picture.add(format_args!(r#"<rect class="page" width="{WIDTH}" height="{height}"/>"#));
        picture.add(format_args!(r#"<text class="title" x="{LEFT}" y="28">{title}</text>"#));
        picture.add(format_args!(r#"<text class="note" x="{LEFT}" y="50">{note}</text>"#));
        picture
    }

    /// Appends an element as it is.
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "{element}");
    }

    fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.add(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    fn text(&mut self, class: &str, anchor: &str, x: f64, y: f64, content: &str) {
        self.add(format_args!(
            r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{content}</text>"#
        ));
    }

    /// A horizontal axis from 0 to `end` with about ten labelled ticks; `x` places a value.
    fn x_axis(&mut self, bottom: f64, end: f64, x: impl Fn(f64) -> f64, unit: &str) {
        let step = round_step(end / 10.0);
        for tick in 0..=(end / step) as u32 {
            let value = f64::from(tick) * step;
            self.line("axis", x(value), bottom, x(value), bottom + 5.0);
            let label = format!("{}{unit}", number(value));
            self.text("note", "middle", x(value), bottom + 20.0, &label);
        }
        self.line("axis", LEFT, bottom, RIGHT, bottom);
    }

    /// Vertical lines through the plot. Labels of close labels go below each other, each beside its
    /// line.
    fn labels(&mut self, labels: &[(&str, Duration)], x: impl Fn(f64) -> f64) {
        for (index, (name, value)) in labels.iter().enumerate() {
            let value = millis(*value);
            let (at, level) = (x(value), TOP - 18.0 + 16.0 * index as f64);
            self.line("label", at, level - 11.0, at, BOTTOM);
            let (anchor, beside) = if at > RIGHT - 120.0 { ("end", -6.0) } else { ("start", 6.0) };
            let digits = if value < 10.0 { 3 } else { 1 };
            let label = format!("{name} {value:.digits$} ms");
            self.text("label-text", anchor, at + beside, level, &label);
        }
    }

    fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
}

/// The next 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let magnitude = 10_f64.powf(least.max(0.000_001).log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= least);
    factor.unwrap_or(10.0) * magnitude
}

/// The label of a tick, without the digits that only come from counting in floating point.
fn number(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

// ----- values over time -----

/// Distance of two panels from top to top, and height of the plot in each.
const PANEL: f64 = 205.0;
const PLOT: f64 = 140.0;
/// Height below the plot of the last panel, for the labels of the time axis.
const FOOT: f64 = 45.0;
/// Most points of a curve; beyond, neighbours become their mean.
const POINTS: usize = 600;

/// One curve: what it shows, with the unit, and its points from left to right: seconds and value.
pub(crate) struct Panel<'a> {
    pub(crate) label: &'a str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws the panels over a common time axis, each with a scale of its own. Values are not negative.
pub(crate) fn over_time(title: &str, note: &str, panels: &[Panel<'_>]) -> String {
    draw_panels(title, note, panels, 0.001, None)
}

/// The same with one scale for all panels, which compares them.
pub(crate) fn compared_over_time(title: &str, note: &str, panels: &[Panel<'_>]) -> String {
    draw_panels(title, note, panels, most_of(panels), None)
}

/// The same with a span of time shaded in all panels: its begin and end in seconds.
pub(crate) fn compared_with_a_span(
    title: &str,
    note: &str,
    panels: &[Panel<'_>],
    span: [f64; 2],
) -> String {
    draw_panels(title, note, panels, most_of(panels), Some(span))
}

fn most_of(panels: &[Panel<'_>]) -> f64 {
    panels.iter().map(Panel::most).fold(0.001, f64::max)
}

/// `least`: value that each scale reaches at least.
fn draw_panels(
    title: &str,
    note: &str,
    panels: &[Panel<'_>],
    least: f64,
    span: Option<[f64; 2]>,
) -> String {
    let height = TOP + PANEL * panels.len().saturating_sub(1) as f64 + PLOT + FOOT;
    let mut picture = Picture::new(height, title, note);
    let end = panels.iter().flat_map(|panel| panel.points.last()).map(|(time, _)| *time);
    let end = end.fold(0.001, f64::max);
    for (index, panel) in panels.iter().enumerate() {
        let top = TOP + PANEL * index as f64;
        if let Some([from, to]) = span {
            let [from, to] = [from, to].map(|time| LEFT + time.min(end) / end * (RIGHT - LEFT));
            picture.add(format_args!(
                r#"<rect class="span" x="{from:.1}" y="{top:.1}" width="{:.1}" height="{PLOT}"/>"#,
                to - from
            ));
        }
        draw_panel(&mut picture, top, end, least, panel);
    }
    picture.finish()
}

impl Panel<'_> {
    /// The largest value of the curve.
    fn most(&self) -> f64 {
        thinned(&self.points).iter().map(|(_, value)| *value).fold(0.0, f64::max)
    }
}

fn draw_panel(picture: &mut Picture, top: f64, end: f64, least: f64, panel: &Panel<'_>) {
    let bottom = top + PLOT;
    let points = thinned(&panel.points);
    let most = panel.most().max(least);
    let y_tick = round_step(most / 4.0);
    let y_end = y_tick * (most / y_tick).ceil();
    let x = |time: f64| LEFT + time / end * (RIGHT - LEFT);
    let y = |value: f64| bottom - value / y_end * PLOT;

    picture.text("note", "start", LEFT - 52.0, top - 14.0, panel.label);
    for tick in 0..=(y_end / y_tick).round() as u32 {
        let value = f64::from(tick) * y_tick;
        picture.line("grid", LEFT, y(value), RIGHT, y(value));
        picture.text("note", "end", LEFT - 8.0, y(value) + 4.0, &number(value));
    }
    picture.x_axis(bottom, end, x, " s");

    let mut path = String::new();
    for (time, value) in points {
        // Writing to a string does not fail.
        let _ = write!(path, "{:.1},{:.1} ", x(time), y(value));
    }
    picture.add(format_args!(r#"<polyline class="curve" points="{}"/>"#, path.trim_end()));
}

fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let group = points.len().div_ceil(POINTS).max(1);
    let mean = |group: &[(f64, f64)]| {
        let count = group.len() as f64;
        let sum = group.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(group).map(mean).collect()
}

// ----- distribution of durations -----

/// Height of a distribution, and the bottom edge of its plot.
const HEIGHT: f64 = 400.0;
const BOTTOM: f64 = HEIGHT - 56.0;

/// Draws how durations, each with its count, are distributed up to `longest`, and a line at each of
/// `labels`, which are in ascending order. `what` names the things that are counted.
pub(crate) fn distribution(
    title: &str,
    note: &str,
    what: &str,
    durations: impl IntoIterator<Item = (Duration, u64)>,
    longest: Duration,
    labels: &[(&str, Duration)],
) -> String {
    let end = millis(longest).max(0.001);
    let width = round_step(end / 120.0);
    let bars = counts_per_bar(durations, width, end);
    let x_end = width * bars.len() as f64;
    let most = bars.iter().copied().max().unwrap_or(0).max(1) as f64;
    let y_tick = round_step(most / 5.0).max(1.0);
    let y_end = y_tick * (most / y_tick).ceil();
    let x = |value: f64| LEFT + value / x_end * (RIGHT - LEFT);
    let y = |count: f64| BOTTOM - count / y_end * (BOTTOM - TOP);
    let mut picture = Picture::new(HEIGHT, title, note);

    // Axes: counts upwards, milliseconds to the right.
    for tick in 0..=(y_end / y_tick).round() as u32 {
        let (count, at) = (f64::from(tick) * y_tick, y(f64::from(tick) * y_tick));
        picture.line("grid", LEFT, at, RIGHT, at);
        picture.text("note", "end", LEFT - 8.0, at + 4.0, &number(count));
    }
    picture.x_axis(BOTTOM, x_end, x, "");
    let unit = format!("milliseconds, {} per bar", number(width));
    picture.text("note", "middle", f64::midpoint(LEFT, RIGHT), BOTTOM + 42.0, &unit);
    picture.text("note", "start", LEFT - 52.0, TOP - 32.0, what);

    for (index, &count) in bars.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (from, to) = (x(index as f64 * width), x((index + 1) as f64 * width));
        let top = y(count as f64);
        picture.add(format_args!(
            r#"<rect class="bar" x="{:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"/>"#,
            from + 0.5,
            (to - from - 1.0).max(0.5),
            BOTTOM - top,
        ));
    }
    picture.labels(labels, x);
    picture.finish()
}

/// How many durations fall into each bar of `width` milliseconds up to `end`.
fn counts_per_bar(
    durations: impl IntoIterator<Item = (Duration, u64)>,
    width: f64,
    end: f64,
) -> Vec<u64> {
    let mut bars = vec![0_u64; (end / width) as usize + 1];
    for (duration, times) in durations {
        if let Some(count) = bars.get_mut((millis(duration) / width) as usize) {
            *count += times;
        }
    }
    bars
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
