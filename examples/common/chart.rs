//! Values over time as an SVG picture, one panel below the other.

use std::fmt::Write;

use super::picture::{LEFT, Picture, RIGHT, number, round_step};

/// From the top of a panel to that of the next, where the first one is, and how high its plot is.
const PANEL: f64 = 205.0;
const TOP: f64 = 96.0;
const PLOT: f64 = 140.0;
/// Below the plot of the last panel: the labels of the time axis.
const FOOT: f64 = 45.0;
/// A curve has no more points than this; beyond, neighbours become their mean.
const POINTS: usize = 600;

/// One curve: what it shows, with the unit, and its points from left to right: seconds and value.
pub(crate) struct Panel<'a> {
    pub(crate) label: &'a str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws the panels over a common time axis. Values are not negative.
pub(crate) fn svg(title: &str, note: &str, panels: &[Panel<'_>]) -> String {
    let height = TOP + PANEL * panels.len().saturating_sub(1) as f64 + PLOT + FOOT;
    let mut picture = Picture::new(height, title, note);
    let end = panels.iter().flat_map(|panel| panel.points.last()).map(|(time, _)| *time);
    let end = end.fold(0.001, f64::max);
    for (index, panel) in panels.iter().enumerate() {
        draw(&mut picture, TOP + PANEL * index as f64, end, panel);
    }
    picture.finish()
}

fn draw(picture: &mut Picture, top: f64, end: f64, panel: &Panel<'_>) {
    let bottom = top + PLOT;
    let points = thinned(&panel.points);
    let most = points.iter().map(|(_, value)| *value).fold(0.001, f64::max);
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
    let x_tick = round_step(end / 10.0);
    for tick in 0..=(end / x_tick) as u32 {
        let time = f64::from(tick) * x_tick;
        picture.line("axis", x(time), bottom, x(time), bottom + 5.0);
        picture.text("note", "middle", x(time), bottom + 20.0, &format!("{} s", number(time)));
    }
    picture.line("axis", LEFT, bottom, RIGHT, bottom);

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
