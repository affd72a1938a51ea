//! `kcpx-tunnel`: reads its options, opens its log, and runs its tunnels.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, thread};

use kcpx_tunnel::options::{Invocation, Loaded, OptionsError};
use kcpx_tunnel::process::Log;
use tokio::runtime::Builder;

/// Exit status for refused options.
const REFUSED: u8 = 2;
/// Limit for writing the last log lines: their reader may have stopped.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit for tasks to end. A name lookup blocks its thread for as long as it takes.
const END_TIMEOUT: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let invocation = Invocation::of_process();
    let loaded = match invocation.load() {
        Ok(loaded) => loaded,
        // Help and version too, which end with status 0.
        Err(OptionsError::CommandLine(error)) => error.exit(),
        Err(error) => return fail(&error, REFUSED),
    };
    let log = match &loaded.settings.process.log {
        Some(path) => match Log::to_file(path) {
            Ok(log) => log,
            Err(error) => {
                return fail(&format!("cannot open {}: {error}", path.display()), REFUSED);
            }
        },
        None => match Log::to_stderr() {
            Ok(log) => log,
            Err(error) => return fail(&format!("cannot start: {error}"), 1),
        },
    };
    let status = run(invocation, loaded, &log);
    log.flush(FLUSH_TIMEOUT);
    status
}

fn run(invocation: Invocation, loaded: Loaded, log: &Log) -> ExitCode {
    if let Err(error) = tracing::subscriber::set_global_default(log.subscriber()) {
        return fail(&error, 1);
    }
    let threads = match worker_threads() {
        Ok(threads) => threads,
        Err(error) => return fail(&error, REFUSED),
    };
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}"), 1),
    };
    let ended = runtime.block_on(kcpx_tunnel::run(invocation, loaded, log.clone()));
    runtime.shutdown_timeout(END_TIMEOUT);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            // A log in a file is not visible to the user who started the program.
            if log.is_file() { fail(&error, 1) } else { ExitCode::from(1) }
        }
    }
}

/// Sets the number of worker threads, as in every Tokio program.
const WORKER_THREADS: &str = "TOKIO_WORKER_THREADS";

/// Returns the number of worker threads: by default one per two CPUs. The other CPUs run the
/// kernel's side of both sockets and the local TCP peers, and traffic between two workers costs
/// more CPU time per byte (docs/lab.md).
fn worker_threads() -> Result<usize, String> {
    match env::var_os(WORKER_THREADS) {
        None => Ok(thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2))),
        Some(value) => value
            .to_str()
            .and_then(|text| text.parse().ok())
            .filter(|threads| *threads > 0)
            .ok_or_else(|| format!("{WORKER_THREADS} must be a number from 1 on, got {value:?}")),
    }
}

/// Writes one sentence to standard error, through a log if possible: it never blocks on the reader.
fn fail(error: &impl std::fmt::Display, status: u8) -> ExitCode {
    let sentence = format!("kcpx-tunnel: {error}\n");
    match Log::to_stderr() {
        Ok(log) => {
            drop((&log).write_all(sentence.as_bytes()));
            log.flush(FLUSH_TIMEOUT);
        }
        Err(_) => drop(std::io::stderr().write_all(sentence.as_bytes())),
    }
    ExitCode::from(status)
}
