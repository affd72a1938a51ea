//! One screen of running tunnels, each second, from the page that `kcpx-tunnel -metrics` serves.

mod page;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal as _, Write, stdout};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use self::page::{Counters, Page};

/// Columns of a sparkline; each is one reading.
const COLUMNS: usize = 40;
/// Tunnels on a screen of 24 lines: those with most traffic.
const ON_A_SCREEN: usize = 3;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address of the metrics, as in `kcpx-tunnel -metrics HOST:PORT`
    #[arg(value_name = "HOST:PORT")]
    pub address: String,
    /// Ends after this number of seconds; otherwise at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
}

/// Draws on a terminal; prints a line each second for each tunnel elsewhere.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut out = stdout().lock();
    let is_terminal = out.is_terminal();
    watch(options, Duration::from_secs(1), is_terminal, &mut out)
}

/// Reads the page each `period` until it has been read [`Options::seconds`] times after the first.
///
/// # Errors
///
/// If the first reading fails, or the output. Later readings are tried again.
#[doc(hidden)]
pub fn watch(
    options: &Options,
    period: Duration,
    is_terminal: bool,
    out: &mut impl Write,
) -> Result<()> {
    let started = Instant::now();
    let mut live = Live::new(&options.address, page::fetch(&options.address)?);
    let mut next = started;
    for _ in 0..options.seconds.unwrap_or(u64::MAX) {
        next = (next + period).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let page = page::fetch(&options.address);
        live.read(started.elapsed(), page);
        if is_terminal {
            live.draw(out)?
        } else {
            live.print(out)?
        }
        out.flush()?;
    }
    Ok(())
}

/// The latest readings.
struct Live {
    address: String,
    /// By their names.
    tunnels: BTreeMap<String, Tunnel>,
    /// When the page was read.
    read_at: Duration,
    /// Since when no page comes, and why.
    gone: Option<(Duration, Error)>,
    /// Time of the latest attempt.
    now: Duration,
}

struct Tunnel {
    counters: Counters,
    /// The newest last. `None`: no page, or a tunnel that began again.
    points: VecDeque<Option<Point>>,
}

/// The quantities of one reading, in the order of [`ROWS`].
type Point = [f64; ROWS.len()];

/// Name, and text of a value.
type Row = (&'static str, fn(f64) -> String);

const ROWS: [Row; 6] = [
    ("sent", |bits| scaled(bits, "bit/s")),
    ("received", |bits| scaled(bits, "bit/s")),
    ("RTT", |seconds| format!("{:.1} ms", seconds * 1e3)),
    ("loss", |share| format!("{:.1} %", share * 1e2)),
    ("redundancy", |share| format!("{:.1} %", share * 1e2)),
    ("queue", |bytes| scaled(bytes, "B")),
];

impl Live {
    fn new(address: &str, page: Page) -> Self {
        let tunnels = page.into_iter().map(|(name, counters)| (name, Tunnel::new(counters)));
        Self {
            address: address.to_owned(),
            tunnels: tunnels.collect(),
            read_at: Duration::ZERO,
            gone: None,
            now: Duration::ZERO,
        }
    }

    /// Takes the page of a later moment, or the reason that there is none.
    fn read(&mut self, now: Duration, page: Result<Page>) {
        self.now = now;
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                let since = self.gone.take().map_or(now, |(since, _)| since);
                self.gone = Some((since, error));
                self.tunnels.values_mut().for_each(|tunnel| tunnel.push(None));
                return;
            }
        };
        let seconds = (now - self.read_at).as_secs_f64();
        (self.read_at, self.gone) = (now, None);
        let mut before = std::mem::take(&mut self.tunnels);
        for (name, counters) in page {
            let mut tunnel = before.remove(&name).unwrap_or_else(|| Tunnel::new(counters));
            tunnel.push(counters.since(&tunnel.counters, seconds));
            tunnel.counters = counters;
            self.tunnels.insert(name, tunnel);
        }
    }

    /// A line for each tunnel.
    fn print(&self, out: &mut impl Write) -> Result<()> {
        if let Some(gone) = self.gone() {
            return Ok(writeln!(out, "{gone}")?);
        }
        for (name, tunnel) in &self.tunnels {
            write!(out, "{name}")?;
            for (column, (name, _)) in ROWS.iter().enumerate() {
                write!(out, "  {name} {}", tunnel.now(column))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// The screen, in the place of the one before.
    fn draw(&self, out: &mut impl Write) -> Result<()> {
        // To the corner, and everything from there is cleared.
        write!(out, "\x1b[H\x1b[J")?;
        Ok(self.screen().iter().try_for_each(|line| writeln!(out, "{line}"))?)
    }

    fn screen(&self) -> Vec<String> {
        let mut lines =
            vec![self.gone().unwrap_or_else(|| {
                format!("{}, {} s; Ctrl-C ends", self.address, self.now.as_secs())
            })];
        let mut busiest: Vec<(&String, &Tunnel)> = self.tunnels.iter().collect();
        busiest.sort_by_key(|(_, tunnel)| std::cmp::Reverse(tunnel.counters.bytes()));
        for (name, tunnel) in busiest.iter().take(ON_A_SCREEN) {
            lines.push(format!("{name:<24}{:>COLUMNS$}{:>14}", "", "most"));
            lines.extend((0..ROWS.len()).map(|column| tunnel.row(column)));
        }
        if busiest.len() > ON_A_SCREEN {
            lines.push(format!("{} more tunnels with less traffic", busiest.len() - ON_A_SCREEN));
        }
        lines
    }

    fn gone(&self) -> Option<String> {
        let (since, error) = self.gone.as_ref()?;
        let seconds = (self.now - *since).as_secs();
        Some(format!("no metrics for {seconds} s, trying again: {error:#}"))
    }
}

impl Tunnel {
    fn new(counters: Counters) -> Self {
        Self { counters, points: VecDeque::with_capacity(COLUMNS) }
    }

    fn push(&mut self, point: Option<Point>) {
        if self.points.len() == COLUMNS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// The value of the newest reading.
    fn now(&self, column: usize) -> String {
        let point = self.points.back().copied().flatten();
        point.map_or_else(|| "-".to_owned(), |point| ROWS[column].1(point[column]))
    }

    /// Name, value, sparkline and largest value of a quantity.
    fn row(&self, column: usize) -> String {
        let (name, text) = ROWS[column];
        let value = |point: Option<Point>| point.map(|point| point[column]);
        let most = self.points.iter().filter_map(|point| value(*point)).fold(0.0, f64::max);
        let line: String = self.points.iter().map(|point| bar(value(*point), most)).collect();
        format!("{name:<10}{:>13} {line:>COLUMNS$}{:>14}", self.now(column), text(most))
    }
}

/// A space without a value. The lowest level is 0 alone.
fn bar(value: Option<f64>, most: f64) -> char {
    let Some(value) = value else { return ' ' };
    if most == 0.0 {
        return LEVELS[0];
    }
    LEVELS[(value / most * (LEVELS.len() - 1) as f64).ceil() as usize]
}

/// With a prefix of the SI.
fn scaled(value: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G"];
    let (mut value, mut index) = (value, 0);
    // 999.95 would be printed as 1000.0.
    while value >= 999.95 && index < prefixes.len() - 1 {
        value /= 1e3;
        index += 1;
    }
    let digits = usize::from(index > 0);
    format!("{value:.digits$} {}{unit}", prefixes[index])
}
