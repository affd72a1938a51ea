//! Runs test programs with one mutant chosen, until the first test fails.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::workspace::Program;

/// A mutant may ask for memory without end. KiB of address space.
const MAX_MEMORY: &str = "8388608";
/// Least time limit of a run.
const MIN_LIMIT: Duration = Duration::from_secs(20);
/// A run may take as long as its tests took without a mutant, multiplied by this.
const SLOWDOWN: f64 = 3.0;
/// Time limit of all tests of a program without a mutant.
const RECORD_LIMIT: Duration = Duration::from_secs(1_800);
/// Time of the tests in the first run of a program with a mutant, seconds. Most mutants need no further one.
const FIRST_BATCH: f64 = 1.0;
/// Growth from one run of a mutant to its next.
const BATCH_GROWTH: f64 = 4.0;

/// Names of tests that do not judge.
const LONG: &str = include_str!("../long.txt");

/// What the tests say about a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By this test.
    Killed(String),
    /// A test takes too long, or waits forever.
    Timeout,
    Survived,
    /// No test runs the code.
    NotReached,
    NotCompiled,
    /// Judged before, for this reason.
    Equivalent(String),
}

/// How a run ended.
enum Ending {
    Passed,
    Failed(String),
    TimedOut,
}

/// Tests of a program, with the mutants that each reaches.
pub struct Suite {
    program: Program,
    /// Seconds that each test takes.
    times: HashMap<String, f64>,
    /// Names of the threads that reach a mutant. The thread of a test has its name.
    reached: HashMap<usize, BTreeSet<String>>,
}

impl Suite {
    /// Runs the tests without a mutant, apart from [`LONG`] ones. `scratch` is a file for the mutants that they reach.
    pub fn record(program: Program, scratch: &Path) -> Result<Self> {
        let _ = fs::remove_file(scratch);
        let mut times = HashMap::new();
        // The times of tests are an unstable option.
        let mut args = ["-Zunstable-options", "--report-time"].map(str::to_owned).to_vec();
        let long = LONG.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        args.extend(long.map(|name| format!("--skip={name}")));
        let chosen = format!("record:{}", scratch.display());
        let ending =
            run(&program, &args, &chosen, RECORD_LIMIT, |line| times.extend(time_of(line)))?;
        match ending {
            Ending::Passed => {}
            Ending::Failed(test) => {
                bail!("no mutant was chosen, yet {} failed: {test}", program.name)
            }
            Ending::TimedOut => bail!("no mutant was chosen, yet {} hangs", program.name),
        }
        let mut reached: HashMap<usize, BTreeSet<String>> = HashMap::new();
        for line in fs::read_to_string(scratch).unwrap_or_default().lines() {
            let (id, thread) =
                line.split_once(' ').context("the record of mutants is cut short")?;
            reached.entry(id.parse()?).or_default().insert(thread.to_owned());
        }
        Ok(Self { program, times, reached })
    }

    /// Names of the tests that may reach the mutant: first what was seen there, tests of its module, short ones.
    fn tests(&self, id: usize, module: &str) -> Vec<&str> {
        let Some(threads) = self.reached.get(&id) else { return Vec::new() };
        // A thread that a test started may be of any test.
        let is_known = threads.iter().all(|thread| self.times.contains_key(thread));
        let names = self.times.keys().filter(|name| !is_known || threads.contains(*name));
        let mut names: Vec<&str> = names.map(String::as_str).collect();
        names.sort_by(|one, other| {
            let order =
                |name: &str| (!threads.contains(name), !name.starts_with(module), self.times[name]);
            order(one).partial_cmp(&order(other)).expect("times are numbers")
        });
        names
    }

    /// Takes tests of about `budget` seconds from the front of `rest`, and runs them with the mutant.
    fn run_batch(&self, id: usize, rest: &mut &[&str], budget: f64) -> Result<Ending> {
        let mut seconds = 0.0;
        let is_within = |name: &&&str| {
            let begins_within = seconds < budget;
            seconds += self.times[**name];
            begins_within
        };
        let (batch, others) = rest.split_at(rest.iter().take_while(is_within).count());
        *rest = others;
        let seconds: f64 = batch.iter().map(|name| self.times[*name]).sum();
        let limit = MIN_LIMIT + Duration::from_secs_f64(seconds * SLOWDOWN);
        let mut args = vec!["--exact".to_owned(), "--test-threads=1".to_owned()];
        args.extend(batch.iter().map(|name| (*name).to_owned()));
        run(&self.program, &args, &id.to_string(), limit, |_| {})
    }
}

/// Judges a mutant in code of `module` by the suites: first a batch of short tests of each, then longer ones.
pub fn judge(suites: &[Suite], id: usize, module: &str) -> Result<Verdict> {
    let tests: Vec<_> = suites.iter().map(|suite| suite.tests(id, module)).collect();
    let mut rest: Vec<(&Suite, &[&str])> =
        suites.iter().zip(tests.iter().map(|tests| &tests[..])).collect();
    rest.retain(|(_, tests)| !tests.is_empty());
    if rest.is_empty() {
        return Ok(Verdict::NotReached);
    }
    let mut budget = FIRST_BATCH;
    while !rest.is_empty() {
        for (suite, tests) in &mut rest {
            match suite.run_batch(id, tests, budget)? {
                Ending::Passed => {}
                Ending::Failed(test) => return Ok(Verdict::Killed(test)),
                Ending::TimedOut => return Ok(Verdict::Timeout),
            }
        }
        rest.retain(|(_, tests)| !tests.is_empty());
        budget *= BATCH_GROWTH;
    }
    Ok(Verdict::Survived)
}

/// Runs a test program. `chosen` is the value of `KCPX_MUTANT`.
fn run(
    program: &Program,
    args: &[String],
    chosen: &str,
    limit: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<Ending> {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v \"$0\" && exec \"$@\"", MAX_MEMORY])
        .arg(&program.path)
        .args(args)
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .env("KCPX_MUTANT", chosen)
        .env("RUSTC_BOOTSTRAP", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().context("cannot run sh")?;
    let output = BufReader::new(child.stdout.take().context("the output is piped")?);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = output.split(b'\n').map_while(Result::ok);
        lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .try_for_each(|line| sender.send(line))
    });
    let began = Instant::now();
    let mut deadline = began + limit;
    loop {
        let ending = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.contains("... FAILED") => Ending::Failed(name_of(&line).to_owned()),
            Ok(line) => {
                on_line(&line);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {
                deadline = began + limit + waited_for_cpu(child.id());
                if Instant::now() < deadline {
                    continue;
                }
                Ending::TimedOut
            }
            Err(RecvTimeoutError::Disconnected) if child.wait()?.success() => {
                return Ok(Ending::Passed);
            }
            // Such as an overflow of the stack.
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Ending::Failed("the program ended early".to_owned()));
            }
        };
        end(&mut child)?;
        return Ok(ending);
    }
}

/// Longest time that a thread of the process could not run since the machine was busy (Linux; elsewhere zero). It
/// does not count against the time limit.
fn waited_for_cpu(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waits = threads.filter_map(|thread| {
        let schedule = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some(Duration::from_nanos(schedule.split_whitespace().nth(1)?.parse().ok()?))
    });
    waits.max().unwrap_or_default()
}

/// Ends a program and what it has started.
fn end(child: &mut Child) -> Result<()> {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.kill();
    child.wait()?;
    Ok(())
}

/// The name in a line such as `test core::seq::tests::wraps ... ok`.
fn name_of(line: &str) -> &str {
    let name =
        line.strip_prefix("test ").and_then(|line| line.split(" ... ").next()).unwrap_or(line);
    name.strip_suffix(" - should panic").unwrap_or(name)
}

/// Name and seconds in a line such as `test core::seq::tests::wraps ... ok <0.001s>`.
fn time_of(line: &str) -> Option<(String, f64)> {
    let (_, time) = line.strip_suffix("s>")?.rsplit_once(" ok <")?;
    Some((name_of(line).to_owned(), time.parse().ok()?))
}
