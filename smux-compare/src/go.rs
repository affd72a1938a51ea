//! xtaci/smux in Go: a program outside this repository does the same transfers over TCP.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow};

use crate::Figures;

/// The program's path.
pub(crate) const VARIABLE: &str = "KCPX_SMUX_GO";

/// Runs `PROGRAM MIB STREAMS`, which prints for version 1 and then for version 2 a line that ends in
/// `: RATE MB/s, CPU s/GB`. `None` without a program.
pub(crate) fn measure(streams: usize, total: usize) -> Option<Result<[Figures; 2]>> {
    let program = std::env::var_os(VARIABLE)?;
    let output = Command::new(&program)
        .args([(total >> 20).to_string(), streams.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{VARIABLE}: {}", program.display()));
    Some(output.and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        let figures: Vec<_> = text.lines().filter_map(parse).collect();
        figures.try_into().map_err(|_| anyhow!("{VARIABLE}: not the two lines it prints: {text:?}"))
    }))
}

fn parse(line: &str) -> Option<Figures> {
    let (rate, cpu) = line.rsplit_once(": ")?.1.split_once(" MB/s, ")?;
    Some(Figures { rate: rate.parse().ok()?, cpu: cpu.strip_suffix(" s/GB")?.parse().ok()? })
}
