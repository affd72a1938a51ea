//! A histogram of durations as an SVG picture.

use std::time::Duration;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
/// Where the axes cross, and where the plot ends.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = HEIGHT - 56.0;

/// Light by default, dark where the viewer prefers that; with a background of its own, so that it
/// can be read where the viewer has no preference to tell.
const STYLE: &str = "
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .page { fill: #ffffff }
    .title { font-size: 17px; font-weight: 600 }
    .note { fill: #59636e }
    .axis { stroke: #59636e }
    .grid { stroke: #d9dee3 }
    .bar { fill: #2f81c7 }
    .mark { stroke: #c2410c; stroke-width: 1.5; stroke-dasharray: 5 3 }
    .mark-text { fill: #c2410c; font-weight: 600 }
    @media (prefers-color-scheme: dark) {
        text { fill: #e6edf3 }
        .page { fill: #0d1117 }
        .note { fill: #9da7b3 }
        .axis { stroke: #9da7b3 }
        .grid { stroke: #2b333d }
        .bar { fill: #58a6ff }
        .mark { stroke: #f0883e }
        .mark-text { fill: #f0883e }
    }
";

/// Draws how `samples` are distributed, with a labelled line at each of `marks`, which are in
/// ascending order.
pub(crate) fn svg(
    title: &str,
    note: &str,
    samples: &[Duration],
    marks: &[(&str, Duration)],
) -> String {
    let millis = |duration: &Duration| duration.as_secs_f64() * 1e3;
    let longest = samples.iter().max().map_or(1.0, millis);
    let step = round_step(longest / 120.0); // width of a bar
    let mut counts = vec![0_u32; (longest / step) as usize + 1];
    for sample in samples {
        counts[(millis(sample) / step) as usize] += 1;
    }
    let x_end = step * counts.len() as f64;
    let y_tick = round_step(f64::from(counts.iter().copied().max().unwrap_or(1)) / 5.0).max(1.0);
    let y_end = y_tick * (f64::from(counts.iter().copied().max().unwrap_or(1)) / y_tick).ceil();
    let x = |value: f64| LEFT + value / x_end * (RIGHT - LEFT);
    let y = |count: f64| BOTTOM - count / y_end * (BOTTOM - TOP);

    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>
<text class="title" x="{LEFT}" y="28">{title}</text>
<text class="note" x="{LEFT}" y="50">{note}</text>
"#
    );
    let mut add = |element: String| out.push_str(&(element + "\n"));

    // Axes: counts upwards, milliseconds to the right.
    for tick in 0..=(y_end / y_tick).round() as u32 {
        let (count, at) = (f64::from(tick) * y_tick, y(f64::from(tick) * y_tick));
        add(line("grid", LEFT, at, RIGHT, at));
        add(text("note", "end", LEFT - 8.0, at + 4.0, &format!("{count}")));
    }
    let x_tick = round_step(x_end / 10.0);
    for tick in 0..=(x_end / x_tick) as u32 {
        let value = f64::from(tick) * x_tick;
        add(line("axis", x(value), BOTTOM, x(value), BOTTOM + 5.0));
        add(text("note", "middle", x(value), BOTTOM + 20.0, &format!("{value}")));
    }
    add(line("axis", LEFT, BOTTOM, RIGHT, BOTTOM));
    let unit = format!("milliseconds, {step} per bar");
    add(text("note", "middle", (LEFT + RIGHT) / 2.0, BOTTOM + 42.0, &unit));
    add(text("note", "start", LEFT - 52.0, TOP - 14.0, "messages"));

    for (index, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (from, to) = (x(index as f64 * step), x((index + 1) as f64 * step));
        let top = y(f64::from(count));
        add(format!(
            r#"<rect class="bar" x="{:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"/>"#,
            from + 0.5,
            (to - from - 1.0).max(0.5),
            BOTTOM - top,
        ));
    }

    // Labels of close marks go below each other, each beside its line.
    for (index, (name, value)) in marks.iter().enumerate() {
        let (at, level) = (x(millis(value)), TOP - 18.0 + 16.0 * index as f64);
        add(line("mark", at, level - 11.0, at, BOTTOM));
        let (anchor, beside) = if at > RIGHT - 120.0 { ("end", -6.0) } else { ("start", 6.0) };
        let label = format!("{name} {:.1} ms", millis(value));
        add(text("mark-text", anchor, at + beside, level, &label));
    }
    out.push_str("</svg>\n");
    out
}

/// The next 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let magnitude = 10_f64.powf(least.max(0.001).log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= least);
    factor.unwrap_or(10.0) * magnitude
}

fn line(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> String {
    format!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#)
}

fn text(class: &str, anchor: &str, x: f64, y: f64, content: &str) -> String {
    format!(
        r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{content}</text>"#
    )
}
