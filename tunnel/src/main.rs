//! `kcpx-tunnel`: reads its options, opens its log, and runs its tunnels.

use std::io::Write;
use std::process::ExitCode;

use kcpx_tunnel::options::{Invocation, OptionsError};
use kcpx_tunnel::process::{self, Log};

/// Status of options that are refused.
const REFUSED: u8 = 2;

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
        None => Log::to_stderr(),
    };
    if let Err(error) = tracing::subscriber::set_global_default(log.subscriber()) {
        return fail(&error, 1);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}"), 1),
    };
    match runtime.block_on(process::run(invocation, loaded, log.clone())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            // A log in a file is not what the user sees who started the program.
            if log.is_file() { fail(&error, 1) } else { ExitCode::from(1) }
        }
    }
}

fn fail(error: &impl std::fmt::Display, status: u8) -> ExitCode {
    // Nobody may read standard error.
    let _written = writeln!(std::io::stderr(), "kcpx-tunnel: {error}");
    ExitCode::from(status)
}
