//! Transfers over several multiplexers, side by side: bytes one way, over TCP on loopback, a
//! `KcpStream` on loopback, or an in-memory carrier, on two threads.
//! `cargo run --release -p kcpx-smux-compare -- [MIB] [ROUNDS] [NAME]...`: names are `tcp`, `duplex`, `kcp`,
//! and parts of peers' names; without any, it measures all. It refuses other arguments.
//!
//! All peers of a round run one after the other, so that a change of the machine's load meets each of them;
//! the table has medians, and medians of each round's ratios. Reads and writes are 64 KiB, the `config`
//! functions below have the settings, and the rest is each library's default. A peer that fails has an
//! empty cell, and the reason is on stderr.

mod arguments;
mod carrier;
mod go;
mod peers;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use self::arguments::Arguments;
use self::peers::Peer;

const CARRIERS: [&str; 3] = ["tcp", "duplex", "kcp"];

/// The cost of one transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Megabytes per second.
    pub(crate) rate: f64,
    /// Seconds of CPU time per gigabyte, both ends together.
    pub(crate) cpu: f64,
}

struct Row {
    name: String,
    /// `None` where a round failed.
    rounds: Vec<Option<Figures>>,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match Arguments::parse(&arguments).and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    println!("| carrier, streams | peer | MB/s | CPU s/GB | MB/s of raw | CPU of Go's |");
    println!("|---|---|---|---|---|---|");
    let mut is_empty = true;
    for carrier in CARRIERS.into_iter().filter(|carrier| arguments.wants_carrier(carrier)) {
        for streams in [1, 100] {
            let rows = compare((carrier, streams), arguments);
            for row in &rows {
                println!("| {carrier}, {streams} | {}", row.columns(&rows));
                is_empty = false;
            }
        }
    }
    if is_empty {
        return Err(format!("nothing was measured: {} needs tcp and {}", GO[0], go::VARIABLE));
    }
    Ok(())
}

/// Rows of one carrier and number of streams.
fn compare((carrier, streams): (&str, usize), arguments: &Arguments) -> Vec<Row> {
    let new = |name: &str| Row { name: name.to_owned(), rounds: Vec::new() };
    let is_wanted = |peer: &str| arguments.wants_peer(peer);
    let peers: Vec<_> = Peer::ALL.into_iter().filter(|peer| is_wanted(peer.name())).collect();
    let total = arguments.total;
    let mut rows: Vec<_> = peers.iter().map(|peer| new(peer.name())).collect();
    let mut go = [new(GO[0]), new(GO[1])];
    for _ in 0..arguments.rounds {
        for (peer, row) in peers.iter().zip(&mut rows) {
            // The carrier alone is one stream.
            let streams = if *peer == Peer::Raw { 1 } else { streams };
            row.push(measure(carrier, *peer, streams, total));
        }
        if carrier == "tcp"
            && GO.into_iter().any(is_wanted)
            && let Some(figures) = go::measure(streams, total)
        {
            let [v1, v2] = &mut go;
            match figures {
                Ok(figures) => {
                    v1.push(Ok(figures[0]));
                    v2.push(Ok(figures[1]));
                }
                Err(error) => {
                    v1.push(Err(error));
                    v2.rounds.push(None);
                }
            }
        }
    }
    rows.extend(go.into_iter().filter(|row| !row.rounds.is_empty()));
    rows
}

/// Names of the rows of versions 1 and 2.
const GO: [&str; 2] = ["xtaci/smux v1 (Go)", "xtaci/smux v2 (Go)"];

impl Row {
    fn push(&mut self, figures: Result<Figures>) {
        if let Err(error) = &figures {
            eprintln!("{}: {error:#}", self.name);
        }
        self.rounds.push(figures.ok());
    }

    /// The cells behind the carrier's. A failed round counts nowhere.
    fn columns(&self, rows: &[Self]) -> String {
        let column = |value: fn(&Figures) -> f64, digits: usize| {
            cell(self.rounds.iter().flatten().map(value), digits)
        };
        let ratio = |other: &str, value: fn(&Figures) -> f64| {
            let other = rows.iter().find(|row| row.name == other && row.name != self.name);
            let pairs = other.into_iter().flat_map(|row| self.rounds.iter().zip(&row.rounds));
            let ratios = pairs
                .filter_map(|(ours, other)| Some(value(ours.as_ref()?) / value(other.as_ref()?)));
            cell(ratios, 2)
        };
        let go = if self.name.contains("v1") { GO[0] } else { GO[1] };
        format!(
            "{} | {} | {} | {} | {} |",
            self.name,
            column(|figures| figures.rate, 0),
            column(|figures| figures.cpu, 2),
            ratio(Peer::Raw.name(), |figures| figures.rate),
            ratio(go, |figures| figures.cpu),
        )
    }
}

/// The median; empty without values.
fn cell(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).map_or_else(String::new, |median| format!("{median:.digits$}"))
}

fn measure(carrier: &str, peer: Peer, streams: usize, total: usize) -> Result<Figures> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    let len = total / streams;
    let (seconds, cpu) = runtime.block_on(async {
        match carrier {
            "tcp" => {
                let (client, server) = carrier::tcp().await?;
                timed(peer.run(client, server, streams, len)).await
            }
            "kcp" => {
                let (client, server, listener) = carrier::kcp().await?;
                let figures = timed(peer.run(client, server, streams, len)).await;
                drop(listener);
                figures
            }
            _ => {
                let (client, server) = tokio::io::duplex(256 << 10);
                timed(peer.run(client, server, streams, len)).await
            }
        }
    })?;
    let bytes = (len * streams) as f64;
    Ok(Figures { rate: bytes / 1e6 / seconds, cpu: cpu / (bytes / 1e9) })
}

/// Seconds and CPU seconds of this process that `run` took.
async fn timed(run: impl Future<Output = Result<()>>) -> Result<(f64, f64)> {
    let (started, cpu) = (Instant::now(), cpu_seconds());
    run.await?;
    Ok((started.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

/// User and system time of this process, in steps of 10 ms. 0 without `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_round_counts_nowhere_and_a_peer_without_rounds_has_empty_cells() {
        let row = |name: &str, rates: &[Option<f64>]| {
            let rounds = rates.iter().map(|rate| rate.map(|rate| Figures { rate, cpu: 2.0 }));
            Row { name: name.to_owned(), rounds: rounds.collect() }
        };
        let rows = [
            row(Peer::Raw.name(), &[Some(400.0), Some(800.0)]),
            row("half", &[None, Some(200.0)]),
            row("failed", &[None, None]),
        ];
        let columns = rows.each_ref().map(|row| row.columns(&rows));
        assert_eq!(columns[1], "half | 200 | 2.00 | 0.25 |  |");
        assert_eq!(columns[2], "failed |  |  |  |  |");
    }
}
