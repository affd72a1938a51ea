//! Captures of seven connections, each with another trouble: what docs/troubleshooting.md shows.
//!
//! Two state machines of kcpx and a link between them, under a clock that jumps from one event to the next:
//! the same shape is the same capture, and seconds take an instant.

mod shape;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::shape::Shape;

/// Writes the capture of a connection in trouble, as the host that sends sees it.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run -p kcpx-trace --example shapes -- loss loss.pcap
  cargo run -p kcpx-trace -- graph loss.pcap loss.svg")]
struct Args {
    /// What happens to the connection
    #[arg(value_enum)]
    shape: Shape,
    /// Capture to write
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
}

fn main() -> Result<()> {
    let Args { shape, capture } = Args::parse();
    let file = shape.capture()?;
    std::fs::write(&capture, file).with_context(|| format!("cannot write {}", capture.display()))
}
