//! The table and the picture.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kcpx::PathStatus;

use super::chart::{self, Panel};
use super::{Args, INTERVAL};

/// Points of each curve, so that none is a mean of several.
const POINTS: u32 = 600;

/// A connection that takes part. Its number is the first byte on the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    TwoPaths,
    OnePath,
    Tcp,
}

impl Case {
    pub(crate) const ALL: [Self; 3] = [Self::TwoPaths, Self::OnePath, Self::Tcp];

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|case| *case as u8 == number)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TwoPaths => "kcpx, two paths",
            Self::OnePath => "kcpx, one path",
            Self::Tcp => "TCP, one path",
        }
    }
}

/// When each number of a connection left and arrived.
pub(crate) struct Run {
    pub(crate) case: Case,
    pub(crate) sent: Vec<Instant>,
    /// In order, without a missing one.
    pub(crate) arrived: Vec<Instant>,
}

/// All connections over the same cables.
pub(crate) struct Outcome {
    pub(crate) started: Instant,
    /// When the first cable lost everything, and when it no longer did.
    pub(crate) cut: Instant,
    pub(crate) healed: Instant,
    pub(crate) runs: Vec<Run>,
}

impl Run {
    fn longest_gap(&self) -> Duration {
        self.arrived.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// Numbers that left and arrived while the first cable was cut.
    fn during(&self, cut: Instant, healed: Instant) -> usize {
        let both = self.sent.iter().zip(&self.arrived);
        both.filter(|(sent, arrived)| **sent > cut && **arrived < healed).count()
    }

    /// The time without a number that ends or lasts at each point of a time axis: seconds, milliseconds.
    fn curve(&self, start: Instant) -> Vec<(f64, f64)> {
        let Some(end) = self.arrived.last() else { return Vec::new() };
        let width = end.saturating_duration_since(start) / POINTS;
        let mut next = self.arrived.iter().copied().peekable();
        let mut last = start;
        (1..=POINTS)
            .map(move |point| {
                let until = start + width * point;
                let mut longest = Duration::ZERO;
                while let Some(arrival) = next.next_if(|arrival| *arrival <= until) {
                    longest = longest.max(arrival - last);
                    last = arrival;
                }
                longest = longest.max(until - last);
                ((until - start).as_secs_f64(), longest.as_secs_f64() * 1e3)
            })
            .collect()
    }
}

pub(crate) fn print_task(args: &Args) {
    println!(
        "a number each {} ms for {} s; round trips {} and {} ms; the first path is cut after {} s, for {} s",
        INTERVAL.as_millis(),
        args.seconds,
        args.first,
        args.second,
        args.cut_at,
        args.cut_for
    );
}

/// The paths of the connection that has two, before the cut.
pub(crate) fn print_paths(paths: &[PathStatus]) {
    for path in paths {
        println!(
            "path {} from {}{}",
            path.id.number(),
            path.local.ip(),
            if path.is_active { ", which carries the data" } else { "" }
        );
    }
}

/// Prints the table, and writes the picture if there is a file for it.
pub(crate) fn print(args: &Args, outcome: &Outcome) -> Result<()> {
    println!(
        "\n{:<17}{:>14}{:>20}{:>34}",
        "", "longest gap", "arrived in order", "sent and arrived during the cut"
    );
    for run in &outcome.runs {
        println!(
            "{:<17}{:>11} ms{:>20}{:>34}",
            run.case.name(),
            run.longest_gap().as_millis(),
            format!("{} of {}", run.arrived.len(), run.sent.len()),
            run.during(outcome.cut, outcome.healed),
        );
    }
    let Some(file) = &args.svg else { return Ok(()) };
    std::fs::write(file, picture(args, outcome))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("\npicture: {}", file.display());
    Ok(())
}

fn picture(args: &Args, outcome: &Outcome) -> String {
    let note = format!(
        "A number leaves each {} ms; round trips {} and {} ms; the first path is cut in the shaded time",
        INTERVAL.as_millis(),
        args.first,
        args.second
    );
    let label = |run: &Run| {
        let gap = run.longest_gap().as_millis();
        format!("{}: milliseconds without a number, {gap} at most", run.case.name())
    };
    let labels: Vec<_> = outcome.runs.iter().map(label).collect();
    let panels = outcome.runs.iter().zip(&labels);
    let panels = panels.map(|(run, label)| Panel { label, points: run.curve(outcome.started) });
    let shaded = [outcome.cut, outcome.healed].map(|time| (time - outcome.started).as_secs_f64());
    let title = "Gaps between arrivals while one of two paths is cut";
    chart::compared_with_a_span(title, &note, &panels.collect::<Vec<_>>(), shaded)
}
