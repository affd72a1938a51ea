//! The state machine on impaired paths, judged in virtual time: message latency and bulk throughput under
//! loss, bursts, reordering and bottlenecks, each figure next to its goal.
//!
//! `cargo bench --bench loss --features _testkit`; `-- --help` explains columns and options.

mod cells;
mod endpoint;
mod figures;
mod law;
mod options;
mod path;
mod replay;
mod simulation;
mod stock;
mod table;
mod traced;
mod workload;

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::cells::Cell;
use crate::figures::Figures;
use crate::options::Options;
use crate::table::Row;

/// Seed of each cell's first run; the others use the following seeds.
pub(crate) const FIRST_SEED: u64 = 1;

fn main() -> Result<()> {
    let options = Options::of_command_line();
    let cells = options.cells()?;
    if options.list {
        list(&cells);
        return Ok(());
    }
    let (seconds, seeds) = (options.seconds(), options.seeds());
    if options.test {
        return test(&cells, &options);
    }
    let kept = law::Kind::ALL.into_iter().filter(|kind| options.asks_for(kind.name()));
    let kept = kept.map(|kind| law::judge(kind, &options.law)).collect::<Result<Vec<_>>>()?;
    if cells.is_empty() {
        ensure!(kept.into_iter().all(|kept| kept), "too few plans keep the law");
        return Ok(());
    }
    let (count, began) = (cells.len(), Instant::now());
    let mut rows = Vec::new();
    for cell in cells {
        progress(rows.len() + 1, count, &cell, cell.seconds(seconds));
        rows.push(run(cell, seconds, seeds, options.law.timeline)?);
    }
    end_progress(count, began);
    print!("{}", table::markdown(&rows, seeds));
    if let Some(path) = &options.json {
        std::fs::write(path, table::json(&rows, seeds)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Runs one cell with each seed.
fn run(cell: Cell, seconds: Option<u64>, seeds: u64, timeline: bool) -> Result<Row> {
    let seconds = cell.seconds(seconds);
    let runs = cell
        .run(seconds, FIRST_SEED..FIRST_SEED + seeds, timeline)
        .map_err(|error| anyhow!("{}, {}: {error}", cell.name, cell.description(seconds)))?;
    let median = Figures::median(&runs);
    Ok(Row { cell, seconds, runs, median })
}

/// Runs everything twice, and compares the tables and the JSON.
fn test(cells: &[Cell], options: &Options) -> Result<()> {
    let (seconds, seeds) = (options.seconds(), options.seeds());
    let once = || -> Result<String> {
        let rows: Result<Vec<Row>> =
            cells.iter().map(|cell| run(cell.clone(), seconds, seeds, false)).collect();
        let rows = rows?;
        Ok(table::markdown(&rows, seeds) + &table::json(&rows, seeds)?)
    };
    let (first, second) = (once()?, once()?);
    for (first, second) in first.lines().zip(second.lines()) {
        ensure!(first == second, "the same seed gives\n{first}\nand then\n{second}");
    }
    ensure!(first == second, "the same seed gives more lines one time than the other");
    law::test(&options.law)?;
    println!("loss: {} rows and plans of the law, twice alike", cells.len());
    Ok(())
}

/// The cells, each with its rows and goals.
fn list(cells: &[Cell]) {
    for (name, meaning) in cells::NAMES {
        let rows: Vec<&Cell> = cells.iter().filter(|cell| cell.name == name).collect();
        if rows.is_empty() {
            continue;
        }
        println!("{name:<4}{meaning}");
        for cell in rows {
            let path = cell.description(cell.seconds(None));
            let goal = cell.goal.text();
            println!("      {path:<44} {:<28} {goal}", cell.variant());
        }
    }
}

/// Shows the running cell: in one line of a terminal, else in a line each.
fn progress(index: usize, count: usize, cell: &Cell, seconds: u64) {
    let (path, variant) = (cell.description(seconds), cell.variant());
    let line = format!("[{index:>2}/{count}] {} {path}, {variant}", cell.name);
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
        // Failing to write progress is no reason to stop.
        let _ = stderr().flush();
    } else {
        eprintln!("{line}");
    }
}

fn end_progress(count: usize, began: Instant) {
    let start = if stderr().is_terminal() { "\r\x1b[K" } else { "" };
    eprintln!("{start}{count} rows in {:.0} s", began.elapsed().as_secs_f64());
}
