//! Shows what KCP connections did, from a capture: the implementation of the program `kcpx-trace`, which is
//! [`main`]. No API for others.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![allow(clippy::disallowed_macros, reason = "a program prints")]

mod capture;
mod decrypt;
mod flow;
#[cfg(any(test, feature = "_testkit"))]
#[doc(hidden)]
pub mod fuzz;
mod graph;
mod inside;
mod layers;
#[doc(hidden)]
pub mod live;
#[doc(hidden)]
pub mod pcap;
mod plot;
mod qlog;
mod summary;
#[cfg(test)]
mod tests;

use std::io::{BufWriter, Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use crate::capture::Frames;
use crate::flow::Connections;
use crate::layers::{Keys, Layers};

/// Shows what KCP connections did, from a capture by tcpdump or Wireshark: of kcpx, kcp-go, kcptun and the C
/// library; `live` shows a running kcpx-tunnel.
///
/// Captures are pcap or pcapng files, of any size; `-` reads the standard input.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tcpdump -i any -w game.pcap udp port 4000
  kcpx-trace summary game.pcap
  kcpx-trace graph game.pcap game.svg
  kcpx-trace decrypt tunnel.pcap --crypt aes --key 'it is a secret' plain.pcap
  kcpx-trace json game.pcap | jq 'select(.why == \"retransmission\")'
  kcpx-trace live 127.0.0.1:9464";

#[derive(Debug, Subcommand)]
enum Command {
    /// Connections, with losses, retransmissions, round trips, and who closed
    Summary {
        #[command(flatten)]
        input: Input,
        /// Connections that are printed, those with most data first
        #[arg(long, value_name = "N", default_value_t = 20)]
        most: usize,
        /// One JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// A picture of one connection: numbers, round trips and data in flight over time; of a log (`*.sqlog`, see
    /// `Config::qlog`) also rate, limits and phase of the congestion control
    Graph {
        #[command(flatten)]
        input: Input,
        /// The picture to write: FILE.svg or FILE.png
        #[arg(value_name = "FILE")]
        output: PathBuf,
        /// Conversation id; otherwise the connection with most data
        #[arg(long, value_name = "CONV", value_parser = conv)]
        conv: Option<u32>,
    },
    /// A capture without cipher, which Wireshark reads
    Decrypt {
        #[command(flatten)]
        input: Input,
        /// The capture to write
        #[arg(value_name = "OUTPUT")]
        output: PathBuf,
    },
    /// One event a line, as JSON
    Json {
        #[command(flatten)]
        input: Input,
    },
    /// Rate, round trip, loss, redundancy and queue of a running tunnel, each second: a screen on a terminal,
    /// lines elsewhere
    Live(live::Options),
}

#[derive(Debug, clap::Args)]
struct Input {
    /// Capture to read
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
    #[command(flatten)]
    keys: Keys,
}

fn conv(text: &str) -> Result<u32, String> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    u32::from_str_radix(digits, radix)
        .map_err(|_| "a conversation id is a number such as 7 or 0x1a2b3c4d".into())
}

/// The program.
pub fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // `kcpx-trace json | head` ends when head has enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Summary { input, most, json } => {
            let read = input.read(|_, _| Ok(()))?;
            let mut out = BufWriter::new(stdout().lock());
            if json {
                summary::json(&mut out, &read)?
            } else {
                summary::print(&mut out, &read, most)?
            }
            Ok(out.flush()?)
        }
        Command::Graph { input, output, conv } => graph::write(&input, &output, conv),
        Command::Decrypt { input, output } => {
            ensure!(input.capture != output, "the output is the capture itself: name another file");
            decrypt::write(&input.capture, &input.keys, &output)
        }
        Command::Json { input } => {
            let mut out = BufWriter::new(stdout().lock());
            input.read(|_, seen| {
                serde_json::to_writer(&mut out, seen)?;
                Ok(out.write_all(b"\n")?)
            })?;
            Ok(out.flush()?)
        }
        Command::Live(options) => live::run(&options),
    }
}

/// What a capture has.
struct Read {
    frames: Frames,
    opened: layers::Opened,
    connections: Connections,
}

impl Input {
    /// Reads the capture, and calls `each` with the index of the connection and each of its segments.
    fn read(&self, mut each: impl FnMut(usize, &flow::Seen) -> Result<()>) -> Result<Read> {
        let mut layers = Layers::new(&self.keys)?;
        let mut connections = Connections::default();
        let frames = capture::read(&self.capture, |packet| {
            layers.open(&packet, |datagram| {
                let mut result = Ok(());
                connections.input(datagram, |index, seen| {
                    if result.is_ok() {
                        result = each(index, seen);
                    }
                });
                result
            })
        })?;
        connections.finish();
        Ok(Read { frames, opened: layers.counters, connections })
    }
}
