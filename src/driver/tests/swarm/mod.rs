//! Whole systems in virtual time: a server, clients, their applications, the network and a third party. A seed
//! draws the kinds of fault and behaviour of a run, and everything that they do.

mod apps;
mod kinds;
mod ledger;
mod plan;
mod settings;
mod system;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use self::kinds::{Kind, Kinds};
use self::plan::Plan;
use self::system::{Report, System};
use crate::testkit::seeds::Seeds;

/// Seeds of a run of CI.
const SEEDS: u64 = 500;
/// Restricts runs to some kinds.
const KINDS: &str = "KCP_TEST_KINDS";
/// How long `swarm_of_new_seeds` runs.
const MINUTES: &str = "KCPX_SWARM_MINUTES";

fn kinds_of(seed: u64) -> Kinds {
    let named = std::env::var(KINDS).ok();
    let named = named.map(|names| Kinds::parse(&names).unwrap_or_else(|error| panic!("{error}")));
    named.unwrap_or_else(|| Kinds::draw(seed))
}

fn run(seed: u64, kinds: Kinds, verbose: bool) -> Report {
    let plan = Plan::new(seed, kinds);
    if verbose {
        println!("{plan:#?}");
    }
    System::run(&plan, verbose)
}

/// Runs a seed. If it fails, turns kinds off as long as it still fails, and prints how to repeat that.
fn run_or_shrink(seed: u64, verbose: bool) -> Report {
    let attempt = |kinds| -> Result<Report, Box<dyn Any + Send>> {
        catch_unwind(AssertUnwindSafe(|| run(seed, kinds, verbose)))
    };
    let mut kinds = kinds_of(seed);
    let mut panic = match attempt(kinds) {
        Ok(report) => return report,
        Err(panic) => panic,
    };
    println!("seed {seed} fails with {}", kinds.names());
    for kind in kinds.iter() {
        if let Err(smaller) = attempt(kinds.without(kind)) {
            (kinds, panic) = (kinds.without(kind), smaller);
        }
    }
    println!("repeat: {KINDS}={} just sim {seed} swarm::swarm_keeps", kinds.names());
    resume_unwind(panic)
}

/// The sum of many runs.
#[derive(Debug)]
struct Summary {
    runs: u64,
    time: u64,
    bytes_read: u64,
    errors: usize,
    /// Runs with each kind.
    kinds: Vec<u64>,
    /// The largest share of the bound of recovery that a run used, in percent, and its seed: without and with
    /// lost peers.
    slowest: [(u64, u64); 2],
}

impl Summary {
    fn new() -> Self {
        let kinds = vec![0; Kind::ALL.len()];
        Self { runs: 0, time: 0, bytes_read: 0, errors: 0, kinds, slowest: [(0, 0); 2] }
    }

    fn add(&mut self, seed: u64, report: &Report) {
        self.runs += 1;
        self.time += report.time;
        self.bytes_read += report.bytes_read;
        self.errors += report.errors;
        let slowest = &mut self.slowest[usize::from(report.may_lose_peers)];
        *slowest = (*slowest).max((report.recovery * 100 / report.bound, seed));
        kinds_of(seed).iter().for_each(|kind| self.kinds[kind as usize] += 1);
    }

    fn print(&self) {
        let Self { runs, time, bytes_read, errors, slowest, .. } = self;
        let hours = Duration::from_micros(*time).as_secs() / 3_600;
        println!("{runs} runs, {hours} h, {bytes_read} bytes read, {errors} errors of streams");
        println!(
            "share of the bound of recovery in percent, and seed, without and with lost peers: {slowest:?}"
        );
        for (kind, count) in Kind::ALL.iter().zip(&self.kinds) {
            print!("{kind:?} {count}, ");
        }
        println!();
    }
}

#[test]
fn swarm_keeps_every_promise_to_applications() {
    let seeds = Seeds::of_commit(SEEDS);
    println!("{seeds:?}");
    let mut summary = Summary::new();
    for seed in seeds.iter() {
        summary.add(seed, &run_or_shrink(seed, seeds.is_chosen));
    }
    summary.print();
    assert!(seeds.is_chosen || summary.bytes_read > 0, "nothing was read");
}

/// Each line has a seed, its kinds, and what was wrong.
#[test]
fn swarm_with_seeds_that_once_failed_keeps_every_promise() {
    for line in include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (seed, kinds) = (words.next().unwrap(), words.next().unwrap());
        println!("{line}");
        run(seed.parse().unwrap(), Kinds::parse(kinds).unwrap(), false);
    }
}

#[test]
fn swarm_with_one_seed_is_deterministic() {
    for seed in 0..10 {
        let [one, other] = [0, 1].map(|_| run(seed, Kinds::draw(seed), false));
        assert_eq!((one.hash, one.time, one.errors), (other.hash, other.time, other.errors));
    }
}

/// `just swarm MINUTES`.
#[test]
#[ignore = "runs as long as it is told"]
fn swarm_of_new_seeds_keeps_every_promise() {
    let minutes = std::env::var(MINUTES).unwrap_or_default();
    let minutes: u64 = minutes.parse().unwrap_or_else(|_| panic!("{MINUTES} must be a number"));
    let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    let (begin, mut summary) = (Instant::now(), Summary::new());
    let mut next_line = Duration::ZERO;
    while begin.elapsed() < Duration::from_secs(60 * minutes) {
        let seed = first + summary.runs;
        summary.add(seed, &run_or_shrink(seed, false));
        if begin.elapsed() >= next_line {
            next_line = begin.elapsed() + Duration::from_secs(10);
            println!("{} s: {} runs from seed {first} on", begin.elapsed().as_secs(), summary.runs);
        }
    }
    summary.print();
}
