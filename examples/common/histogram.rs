//! A histogram of durations as an SVG picture.

use std::time::Duration;

use super::picture::{LEFT, Picture, RIGHT, number, round_step};

const HEIGHT: f64 = 400.0;
/// Where the plot begins and ends, from top to bottom.
const TOP: f64 = 96.0;
const BOTTOM: f64 = HEIGHT - 56.0;

/// Draws how `samples`, which are `what`, are distributed, with a labelled line at each of `marks`,
/// which are in ascending order.
pub(crate) fn svg(
    title: &str,
    note: &str,
    what: &str,
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
    let mut picture = Picture::new(HEIGHT, title, note);

    // Axes: counts upwards, milliseconds to the right.
    for tick in 0..=(y_end / y_tick).round() as u32 {
        let (count, at) = (f64::from(tick) * y_tick, y(f64::from(tick) * y_tick));
        picture.line("grid", LEFT, at, RIGHT, at);
        picture.text("note", "end", LEFT - 8.0, at + 4.0, &number(count));
    }
    let x_tick = round_step(x_end / 10.0);
    for tick in 0..=(x_end / x_tick) as u32 {
        let value = f64::from(tick) * x_tick;
        picture.line("axis", x(value), BOTTOM, x(value), BOTTOM + 5.0);
        picture.text("note", "middle", x(value), BOTTOM + 20.0, &number(value));
    }
    picture.line("axis", LEFT, BOTTOM, RIGHT, BOTTOM);
    let unit = format!("milliseconds, {} per bar", number(step));
    picture.text("note", "middle", f64::midpoint(LEFT, RIGHT), BOTTOM + 42.0, &unit);
    picture.text("note", "start", LEFT - 52.0, TOP - 32.0, what);

    for (index, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (from, to) = (x(index as f64 * step), x((index + 1) as f64 * step));
        let top = y(f64::from(count));
        picture.add(format_args!(
            r#"<rect class="bar" x="{:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"/>"#,
            from + 0.5,
            (to - from - 1.0).max(0.5),
            BOTTOM - top,
        ));
    }

    // Labels of close marks go below each other, each beside its line.
    for (index, (name, value)) in marks.iter().enumerate() {
        let (at, level) = (x(millis(value)), TOP - 18.0 + 16.0 * index as f64);
        picture.line("mark", at, level - 11.0, at, BOTTOM);
        let (anchor, beside) = if at > RIGHT - 120.0 { ("end", -6.0) } else { ("start", 6.0) };
        let value = millis(value);
        let digits = if value < 10.0 { 3 } else { 1 };
        let label = format!("{name} {value:.digits$} ms");
        picture.text("mark-text", anchor, at + beside, level, &label);
    }
    picture.finish()
}
