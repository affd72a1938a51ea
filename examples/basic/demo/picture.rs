//! The round trips as bars on the terminal, and over time in an SVG file.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::chart::{self, Panel};
use super::contender::Outcome;
use super::{Args, MESSAGE, percentile};

/// Characters of the longest bar.
const WIDTH: f64 = 46.0;

/// Prints a bar for each contender and percentile, all of one scale.
pub(crate) fn print(rtt: Duration, outcomes: &[Outcome]) {
    let rows = [("median", 0.5), ("99 %", 0.99), ("99.9 %", 0.999)];
    let longest = outcomes.iter().map(|outcome| percentile(&outcome.sorted, 0.999)).max();
    let longest = millis(longest.unwrap_or_default()).max(1.0);
    println!("round trips in ms; the link alone takes {:.0}", millis(rtt));
    for (name, part) in rows {
        println!("{name} of the messages took at most");
        for outcome in outcomes {
            let value = millis(percentile(&outcome.sorted, part));
            let bar = bar(value / longest * WIDTH);
            println!("  {:<10} {bar} {value:.0}", outcome.contender.name());
        }
    }
    println!("\nbytes on the link for each byte of messages and replies");
    for outcome in outcomes {
        println!("  {:<10} {:.2}", outcome.contender.name(), outcome.bytes_ratio);
        if outcome.missing > 0 {
            println!("  {:<10} {} replies did not come in time", "", outcome.missing);
        }
    }
    println!();
}

/// In eighths of a character.
fn bar(length: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (length * 8.0).round().max(1.0) as usize;
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

/// Draws into the build directory, or into the temporary one if the first is missing or not writable.
pub(crate) fn save(args: Args, outcomes: &[Outcome]) -> Result<PathBuf> {
    let picture = draw(args, outcomes);
    let exe = std::env::current_exe().unwrap_or_default();
    let build = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    if let Some(path) = build.map(|dir| dir.join("kcpx-demo.svg"))
        && std::fs::write(&path, &picture).is_ok()
    {
        return Ok(path);
    }
    // Other users share this directory: a name of its own.
    let path = std::env::temp_dir().join(format!("kcpx-demo-{}.svg", std::process::id()));
    let file =
        std::fs::File::create_new(&path).and_then(|mut file| file.write_all(picture.as_bytes()));
    file.with_context(|| {
        format!("cannot write {}: set TMPDIR to a writable directory", path.display())
    })?;
    Ok(path)
}

fn draw(args: Args, outcomes: &[Outcome]) -> String {
    let note = format!(
        "{MESSAGE} bytes, 100 a second; the link: {} ms round trip, {} % lost each way",
        (2 * args.link.delay).as_millis(),
        args.link.loss,
    );
    let labels: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            let at = |part| millis(percentile(&outcome.sorted, part));
            format!(
                "{}: round trip, ms (median {:.0}, 99 % {:.0}, 99.9 % {:.0})",
                outcome.contender.name(),
                at(0.5),
                at(0.99),
                at(0.999),
            )
        })
        .collect();
    let panels: Vec<_> = outcomes
        .iter()
        .zip(&labels)
        .map(|(outcome, label)| {
            let points = outcome.over_time.iter().map(|(seconds, rtt)| (*seconds, millis(*rtt)));
            Panel { label, points: points.collect() }
        })
        .collect();
    chart::compared_over_time("Round trips over a bad link", &note, &panels)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
