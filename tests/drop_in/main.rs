//! The behaviour that users of `TcpStream` rely on, written once and run on TCP and on KCP, each on a runtime
//! of one thread and on a runtime of several.
//!
//! A behaviour describes its result in a few words. A result that differs between the transports is listed in
//! `differences.rs`, with its reason, and in docs/drop-in.md. An unlisted difference fails, and so does a
//! listed one that no longer exists.

mod accepts;
mod cancels;
mod connects;
mod differences;
mod ends;
mod flow;
mod halves;
mod options;
mod readiness;
mod resets;
mod runtimes;
mod support;
mod transport;
mod waiters;

use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use differences::Difference;
use support::{Behaviour, Observation};
use transport::{Kcp, Tcp, Transport};

/// Limit for a behaviour. Most take milliseconds, the slowest two seconds.
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    // Ignores the flags of the test harness. The first word selects tests by name.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let began = Instant::now();
    let mut report = Report::default();
    for ((name, tcp), (_, kcp)) in all::<Tcp>().into_iter().zip(all::<Kcp>()) {
        if name.contains(&filter) {
            report.add(name, observe(name, tcp), observe(name, kcp));
        }
    }
    if filter.is_empty() {
        report.failures.extend(differences::unknown(&names()));
    }
    report.print(began.elapsed())
}

fn all<T: Transport>() -> Vec<Behaviour> {
    let mut all = Vec::new();
    all.extend(ends::all::<T>());
    all.extend(resets::all::<T>());
    all.extend(halves::all::<T>());
    all.extend(cancels::all::<T>());
    all.extend(flow::all::<T>());
    all.extend(readiness::all::<T>());
    all.extend(options::all::<T>());
    all.extend(accepts::all::<T>());
    all.extend(connects::all::<T>());
    all.extend(runtimes::all::<T>());
    all.extend(waiters::all::<T>());
    all
}

fn names() -> Vec<&'static str> {
    all::<Tcp>().into_iter().map(|(name, _)| name).collect()
}

/// Returns the result of a behaviour if both kinds of runtime agree on it, otherwise an error.
fn observe(name: &str, run: fn() -> support::Run) -> Result<Observation, String> {
    let one = observe_on("current_thread", name, one_thread, run)?;
    let several = observe_on("multi_thread", name, two_threads, run)?;
    if one == several {
        Ok(one)
    } else {
        Err(format!("{one:?} on current_thread, {several:?} on multi_thread"))
    }
}

fn observe_on(
    kind: &str,
    name: &str,
    runtime: fn() -> Runtime,
    run: fn() -> support::Run,
) -> Result<Observation, String> {
    let (done, result) = mpsc::channel();
    // A separate thread, so that the limit holds for a behaviour that never yields.
    let behaviour = move || {
        let observation = runtime().block_on(run());
        // Fails after the limit.
        drop(done.send(observation));
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(behaviour).expect("a thread");
    match result.recv_timeout(LIMIT) {
        Ok(observation) => {
            drop(thread.join());
            Ok(observation)
        }
        Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("hangs on {kind}")),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(format!("panicked on {kind}")),
    }
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[derive(Default)]
struct Report {
    equal: usize,
    differences: Vec<&'static Difference>,
    failures: Vec<String>,
}

impl Report {
    fn add(
        &mut self,
        name: &str,
        tcp: Result<Observation, String>,
        kcp: Result<Observation, String>,
    ) {
        let known = differences::of(name);
        let verdict = match (&tcp, &kcp, known) {
            (Err(why), _, _) => Err(format!("{name}: TCP {why}")),
            (_, Err(why), _) => Err(format!("{name}: KCP {why}")),
            (Ok(tcp), Ok(kcp), None) if tcp == kcp => Ok(format!("{name}: {tcp}")),
            (Ok(tcp), Ok(kcp), None) => Err(format!("{name}: TCP {tcp:?}, KCP {kcp:?}")),
            (Ok(tcp), Ok(kcp), Some(_)) if tcp == kcp => {
                Err(format!("{name}: documented as a difference, and both see {tcp:?}"))
            }
            (Ok(tcp), Ok(kcp), Some(known)) if known.tcp == tcp && known.kcp == kcp => {
                Ok(format!("{name}: differs, TCP {tcp}, KCP {kcp}"))
            }
            (Ok(tcp), Ok(kcp), Some(_)) => {
                Err(format!("{name}: not as documented, TCP {tcp:?}, KCP {kcp:?}"))
            }
        };
        match verdict {
            Ok(line) => {
                println!("{line}");
                match known {
                    Some(difference) => self.differences.push(difference),
                    None => self.equal += 1,
                }
            }
            Err(line) => {
                println!("FAILED {line}");
                self.failures.push(line);
            }
        }
    }

    fn print(mut self, took: Duration) -> ExitCode {
        println!("\n{}", differences::HEAD);
        for difference in &self.differences {
            let row = difference.row();
            println!("{row}");
            if !differences::is_documented(&row) {
                self.failures.push(format!("docs/drop-in.md has no row {row}"));
            }
        }
        println!("\n{:.1} s", took.as_secs_f64());
        for failure in &self.failures {
            println!("FAILED {failure}");
        }
        let (equal, different) = (self.equal, self.differences.len());
        let (passed, failed) = (equal + different, self.failures.len());
        let verdict = if failed == 0 { "ok" } else { "FAILED" };
        println!(
            "test result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 \
             filtered out"
        );
        println!(
            "drop-in: {} behaviours, {equal} equal, {different} documented differences",
            equal + different
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
