//! Copies of blocks of the sink's size through a buffer larger than the caches of one core, since what
//! two processes exchange does not stay in one of them either.

use std::hint::black_box;

use crate::args::{Load, Workload};
use crate::protocol::Outcome;
use crate::workload::{BLOCK, Meter};

/// Bytes of the source, and of what it is copied to.
const BUFFER: usize = 4 << 20;

pub(crate) fn run(load: Load) -> anyhow::Result<Outcome> {
    let (time, limit) = (load.time(Workload::Sink), load.bytes());
    // Not zero: untouched pages are all the same one.
    let source = vec![0x5a_u8; BUFFER];
    let mut copy = vec![0xa5_u8; BUFFER];
    let meter = Meter::start()?;
    let mut bytes = 0;
    while bytes < limit && meter.wall() < time {
        for (to, from) in copy.chunks_exact_mut(BLOCK).zip(source.chunks_exact(BLOCK)) {
            to.copy_from_slice(black_box(from));
            black_box(to);
        }
        bytes += BUFFER as u64;
    }
    let wall_s = meter.wall().as_secs_f64();
    Ok(Outcome { bytes, wall_s, cpu_s: meter.cpu_s()?, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Args;

    #[test]
    fn memcpy_ends_at_the_limit_and_counts_what_it_copied() {
        let load = Args::parse_from(["compare", "--limit", "9"]).load;
        let outcome = run(load).unwrap();
        // Whole buffers of 4 MiB.
        assert_eq!(outcome.bytes, 12 << 20);
        assert!(outcome.wall_s > 0.0);
    }
}
