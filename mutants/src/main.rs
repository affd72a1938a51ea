//! Mutation tests of the workspace (CONTRIBUTING.md, `just mutants`).
//!
//! A build for each mutant would take minutes, so one program has all of them, and the variable `KCPX_MUTANT`
//! chooses one (mutant schemata; Untch, Offutt and Harrold 1993).

mod areas;
mod equivalent;
mod report;
mod rewrite;
mod run;
mod sample;
mod sites;
mod source;
#[cfg(test)]
mod tests;
mod workspace;

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, bail, ensure};
use clap::Parser;

use crate::areas::{Area, Judge};
use crate::equivalent::Equivalent;
use crate::report::Progress;
use crate::run::{Suite, Verdict};
use crate::sample::{Mutant, Sample};
use crate::workspace::{Build, Program, Workspace};

/// Mutants that are run at the same time.
const JOBS: usize = 2;

/// Changes the code in random places and counts the changes that the tests notice.
///
/// A mutant is one change: `<` becomes `<=`, a call is left out, a constant is doubled, a function returns at once.
/// The program draws COUNT places of each area with SEED in a copy of the workspace, target/mutants, and builds its
/// tests once with all of them. Each mutant then runs the tests that reach its code, tests of its module and short
/// tests of all programs first, until one fails. A mutant that hangs ends after 20 s and three times the time of its
/// tests, without the time in which the machine was busy, and counts as noticed.
///
/// Tests that run for long, mutants/long.txt, do not judge. A survivor may yet fail one of them.
///
/// Each verdict is printed when it is found, and at the end a table by area. For a mutant that no test notices
/// these are its place, the change after `-` and `+`. It shows a test that is missing, or it changes nothing that a
/// test could see. In the second case add its lines and the reason to mutants/equivalent.txt.
#[derive(Parser)]
struct Args {
    /// The same seed draws the same mutants of the same code.
    seed: u64,
    /// Places to change in each area. One of them takes seconds.
    count: usize,
    /// Parts of the code to change, in this order.
    #[arg(required = true)]
    areas: Vec<Area>,
    /// Status 1 if tests notice fewer mutants in a hundred than this.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    at_least: f64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    ensure!(
        (0.0..=100.0).contains(&args.at_least),
        "--at-least must be between 0 and 100, got {}",
        args.at_least
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package has a folder in the workspace");
    let equivalent = Equivalent::read(&root.join("mutants/equivalent.txt"))?;
    for place in equivalent.outdated(root) {
        eprintln!(
            "warning: mutants/equivalent.txt has a line that is no longer in the code: {place}"
        );
    }
    let sample = Sample::draw(root, &args.areas, args.seed, args.count)?;
    for (area, places) in &sample.sites {
        let drawn = args.count.min(*places);
        println!("seed {}: {drawn} of {places} places of {}", args.seed, area.name());
    }
    let verdicts = judge(&sample, &equivalent, root)?;
    let share = report::print(&verdicts);
    if share < args.at_least {
        eprintln!(
            "error: tests must notice at least {} % of the mutants, they notice {share:.1} %",
            args.at_least
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the packages of the sample, and has their tests judge its mutants.
fn judge<'a>(
    sample: &'a Sample,
    equivalent: &Equivalent,
    root: &Path,
) -> Result<Vec<(&'a Mutant, Verdict)>> {
    let (known, unknown): (Vec<_>, Vec<_>) =
        sample.mutants.iter().partition(|mutant| equivalent.reason(mutant).is_some());
    let known = known.into_iter().filter_map(|mutant| {
        Some((mutant, Verdict::Equivalent(equivalent.reason(mutant)?.to_owned())))
    });
    let mut verdicts: Vec<_> = known.collect();
    verdicts.iter().for_each(|(mutant, verdict)| report::print_verdict(mutant, verdict));
    let mut left_out: HashSet<usize> = verdicts.iter().map(|(mutant, _)| mutant.id).collect();
    let mut judges: Vec<&Judge> = unknown.iter().map(|mutant| mutant.area.judge()).collect();
    let mut seen = HashSet::new();
    judges.retain(|judge| seen.insert(judge.package));
    let workspace = Workspace::new(root);
    let progress = Mutex::new(Progress::new(unknown.len()));
    for judge in judges {
        let programs = build(&workspace, judge, sample, &mut left_out)?;
        eprintln!("{}: running the tests without a mutant", judge.package);
        let suites =
            programs.into_iter().map(|program| Suite::record(program, &workspace.record()));
        let suites: Vec<Suite> = suites.collect::<Result<_>>()?;
        let mutants = unknown.iter().copied().filter(|mutant| mutant.area.judge() == judge);
        verdicts.extend(judge_all(&mutants.collect::<Vec<_>>(), &suites, &left_out, &progress)?);
    }
    verdicts.sort_by_key(|(mutant, _)| mutant.id);
    Ok(verdicts)
}

/// Builds the test programs of a package. Leaves out mutants that do not compile.
fn build(
    workspace: &Workspace,
    judge: &Judge,
    sample: &Sample,
    left_out: &mut HashSet<usize>,
) -> Result<Vec<Program>> {
    loop {
        workspace.update(&sample.texts(left_out))?;
        let errors = match workspace.build(judge)? {
            Build::Programs(programs) => return Ok(programs),
            Build::Errors(errors) => errors,
        };
        let blamed = errors.iter().filter_map(|(places, _)| sample.blamed(places, left_out));
        let mut blamed: HashSet<usize> = blamed.collect();
        if blamed.is_empty() {
            blamed.extend(errors.iter().flat_map(|(places, _)| sample.suspected(places, left_out)));
        }
        // Each further build leaves out more, so the loop ends.
        if blamed.is_empty() {
            bail!("the code does not compile, and no mutant is to blame: {}", errors[0].1);
        }
        eprintln!("{} mutants do not compile and are left out", blamed.len());
        left_out.extend(blamed);
    }
}

/// Judges mutants, [`JOBS`] at a time.
fn judge_all<'a>(
    mutants: &[&'a Mutant],
    suites: &[Suite],
    left_out: &HashSet<usize>,
    progress: &Mutex<Progress>,
) -> Result<Vec<(&'a Mutant, Verdict)>> {
    let next = AtomicUsize::new(0);
    let job = || {
        let mut verdicts = Vec::new();
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let is_left_out = left_out.contains(&mutant.id);
            let verdict = if is_left_out {
                Verdict::NotCompiled
            } else {
                run::judge(suites, mutant.id, &mutant.module)?
            };
            progress.lock().expect("no job panics").add(mutant, &verdict);
            verdicts.push((*mutant, verdict));
        }
        Ok(verdicts)
    };
    thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS).map(|_| scope.spawn(job)).collect();
        let verdicts = jobs.into_iter().map(|job| job.join().expect("no job panics"));
        verdicts.collect::<Result<Vec<_>>>().map(|verdicts| verdicts.concat())
    })
}
