//! Runs a test for many seeds, and prints plan and command to reproduce a failure.

use super::sim_plan::Plan;
use crate::core::segment::{Command, Header, Segments};
use crate::testkit::seeds::Seeds;

/// One line per datagram, with each segment.
pub(crate) fn describe(datagram: &[u8]) -> String {
    let one = |(header, _): (Header, &[u8])| {
        let Header { command, frg, wnd, ts, sn, una, len, .. } = header;
        let name = match command {
            Command::Push => format!("push {} [{len}] frg {frg} ts {}", sn.0, ts.0),
            Command::Ack => format!("ack {} ts {}", sn.0, ts.0),
            Command::WindowProbe => "wask".to_owned(),
            Command::WindowUpdate => "wins".to_owned(),
            Command::Repair => format!("repair {} + {frg} [{len}] key {}", sn.0, ts.0),
            Command::Control => format!("control {frg} {} ts {}", sn.0, ts.0),
        };
        format!("{name} una {} wnd {wnd}", una.0)
    };
    Segments::new(datagram).map(one).collect::<Vec<_>>().join("; ")
}

/// Runs `run` for each seed. `KCP_TEST_SEED` selects one seed, verbosely; `KCP_TEST_SEEDS` sets
/// their number. After a panic prints the command that reproduces it.
pub(crate) fn each_seed(
    test: &str,
    seeds: std::ops::Range<u64>,
    mut run: impl FnMut(u64, bool) -> String,
) {
    let seeds = Seeds::or(seeds);
    let verbose = seeds.is_chosen;
    for seed in seeds.iter() {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, verbose)));
        match result {
            Ok(line) if verbose => println!("{line}"),
            Ok(_) => {}
            Err(panic) => {
                let command = format!("cargo test --lib core::tests::{test} -- --nocapture");
                println!("reproduce with: KCP_TEST_SEED={seed} {command}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Runs `run`; prints the plan if it panics.
pub(crate) fn explained<T>(plan: &Plan, run: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(value) => value,
        Err(panic) => {
            println!("plan: {plan}");
            std::panic::resume_unwind(panic);
        }
    }
}
