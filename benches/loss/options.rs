//! The command line.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, value_parser};

use crate::cells::{self, Cell, Congestion};
use crate::law::LawOptions;
use crate::traced;

/// Measures kcpx on impaired paths in virtual time, and prints each figure next to its goal
///
/// Both ends of a connection and the path between them run in this process under a virtual clock,
/// so ten minutes take a second and the machine does not matter: equal options print equal tables.
#[derive(Debug, Parser)]
#[command(
    name = "loss",
    bin_name = "cargo bench --bench loss --features _testkit --",
    after_help = "`--list` names the cells, `--help` explains the columns.",
    after_long_help = HELP
)]
pub(crate) struct Options {
    /// Cells by the beginning of their names: `G2`, or `B` for B1 and B2; default: all
    #[arg(value_name = "CELL", value_parser = cell_name)]
    cells: Vec<String>,
    /// Virtual seconds of each run, 1 to 86400 [default: 600 for messages, 12 for bulk, 40 for M, 120 for X]
    #[arg(long, value_name = "S", value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Runs of each cell, with the seeds 1 to N, 1 to 99; the tables have medians [default: 3]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=99))]
    seeds: Option<u64>,
    #[command(flatten)]
    pub(crate) law: LawOptions,
    /// Directory of recorded paths for R and D, pairs of NAME.down and NAME.up in the format of mahimahi
    #[arg(long, value_name = "DIR", default_value = "../shared/traces")]
    traces: PathBuf,
    /// Congestion control of the cells that use the default
    #[arg(long, value_name = "NAME", value_enum)]
    congestion: Option<Congestion>,
    /// Writes every figure of every seed to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Prints the cells and their goals, and runs nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Runs one seed and one virtual second of each cell twice, and checks that both runs give the
    /// same tables
    #[arg(long)]
    pub(crate) test: bool,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

const HELP: &str = "\
Columns:
  path             properties of the path, or of both; the workload, unless it is a message of 1 KiB every 10 ms
                   into one ordered stream; and the measured seconds, unless they are second 6 and
                   later; R measures all seconds
  redundancy       redundancy of both ends: FEC d/p, repair symbols in percent of the data, or auto
                   with its limit; for bulk also the windows; and the congestion control, unless it
                   is the default
  p50 ... max      one-way latency from the write to the read in order, ms; 25 ms are the path's
                   own. All message figures cover messages written in second 6 and later, or in
                   the seconds named in `path`
  first 5 s p99    p99 of the messages written earlier
  replay ...       for D: latency if the earliest copy of each message counts, on the same links; where
                   both are lost, both leave again a round trip of the slower path later
  of the sum ...   for M: bulk relative to the payload that both rates carry, and to what the better
                   path delivers alone; largest memory of received data, which waits for a gap, and
                   of unacknowledged data
  copies, fewest   for D: wire bytes relative to one copy of each message; the smallest of all seeds
  ideal ...        for R: p99 of a sender that sends each message once, when it is written, and the
                   share of the trace's rate that bulk reached
  wait p95         for R: how long packets waited in the queue from client to server, ms
  wire             IP bytes (datagrams and 28 each) from client to server per byte read
  retransmitted %  retransmissions in percent of all data segments sent
  smallest share   the slowest of several connections, in percent of an equal share of the
                   bottleneck
  verdict          `met`, or by how much each limit of the goal is missed; empty without a goal

Examples:
  cargo bench --bench loss --features _testkit
  cargo bench --bench loss --features _testkit -- G B2 --seconds 60 --seeds 1
  cargo bench --bench loss --features _testkit -- Q F L --json bulk.json";

impl Options {
    /// The options of the command line. Without `--bench`, `cargo test` runs this program with arguments for
    /// others; then it runs as a test.
    pub(crate) fn of_command_line() -> Self {
        if std::env::args().any(|arg| arg == "--bench") {
            Self::parse()
        } else {
            Self::parse_from(["loss", "--test"])
        }
    }

    /// Whether a cell of this name was selected.
    pub(crate) fn asks_for(&self, name: &str) -> bool {
        self.cells.is_empty() || self.cells.iter().any(|asked| begins_with(name, asked))
    }

    /// Virtual seconds of each run, if given.
    pub(crate) fn seconds(&self) -> Option<u64> {
        self.seconds.or_else(|| self.test.then_some(1))
    }

    pub(crate) fn seeds(&self) -> u64 {
        self.seeds.unwrap_or(if self.test { 1 } else { 3 })
    }

    /// The selected cells, in the order of the tables.
    ///
    /// # Errors
    ///
    /// When a recorded path cannot be read.
    pub(crate) fn cells(&self) -> Result<Vec<Cell>> {
        let mut all = cells::all();
        if self.asks_for("R") || self.asks_for("D") {
            let paths = traced::paths(&self.traces)?;
            all.extend(cells::traced_on_both(traced::beside_satellites(&paths)));
            all.extend(cells::traced(paths));
        }
        all.retain(|cell| self.asks_for(cell.name));
        for cell in &mut all {
            if cell.congestion == Congestion::Default {
                cell.congestion = self.congestion.unwrap_or(Congestion::Default);
            }
        }
        Ok(all)
    }
}

/// Accepts the beginning of a cell's name.
fn cell_name(asked: &str) -> Result<String, String> {
    if !asked.is_empty() && cells::NAMES.iter().any(|(name, _)| begins_with(name, asked)) {
        return Ok(asked.to_owned());
    }
    let names: Vec<_> = cells::NAMES.iter().map(|(name, _)| *name).collect();
    Err(format!("no cell begins with {asked:?}; the cells are {}", names.join(", ")))
}

/// Ignores case.
fn begins_with(name: &str, asked: &str) -> bool {
    name.get(..asked.len()).is_some_and(|start| start.eq_ignore_ascii_case(asked))
}
