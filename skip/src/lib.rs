//! How a test says that this machine cannot run it, or a part of it.
//!
//! The harness counts such a test as passed and captures the output of `println!`. A line on the standard error
//! passes the capture, so `.ci/run` prints and counts the lines.

use std::io::{self, Write as _};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::{env, thread};

/// The environment variable that, set to anything but 0, turns each skip into a failure.
pub const REQUIRE_ALL: &str = "KCPX_REQUIRE_ALL";

/// Writes one line about this thread's test, `SKIPPED: TEST: NEEDS`, to the standard error. The caller returns.
///
/// # Panics
///
/// If [`REQUIRE_ALL`] is set.
#[track_caller]
pub fn skip(needs: impl ToString) {
    let needs = needs.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let requires_all =
        env::var_os(REQUIRE_ALL).is_some_and(|value| !value.is_empty() && value != "0");
    assert!(
        !requires_all,
        "{REQUIRE_ALL} is set, and this machine lacks what the test needs: {needs}"
    );
    let current = thread::current();
    let test = current.name().unwrap_or("a thread without a name");
    // The harness may have begun a line, "test TEST ... ". One write, so that no other line falls into this one.
    drop(io::stderr().write_all(format!("\nSKIPPED: {test}: {needs}\n").as_bytes()));
}

/// Whether this machine has IPv6. If not, it calls [`skip`].
#[track_caller]
pub fn has_ipv6() -> bool {
    let bound = UdpSocket::bind("[::1]:0");
    if let Err(error) = &bound {
        skip(format!("IPv6: {error}"));
    }
    bound.is_ok()
}

/// The path of programs of others, which the environment variable `variable` names. Without it, it calls
/// [`skip`].
#[track_caller]
pub fn programs_in(variable: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    if path.is_none() {
        skip(format!("the programs that {variable} names"));
    }
    path
}
