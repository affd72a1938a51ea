//! The limit of open file descriptors, sockets included.

use std::io;

/// Assumed if the system has no such limit, or it is unknown.
const UNKNOWN: u64 = 16_384;

/// Raises the soft limit to the hard limit and returns it: most systems start a program with 1,024.
///
/// # Errors
///
/// If the system denies it.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};

        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        // macOS takes no more, whatever the hard limit is (OPEN_MAX).
        let raised = if cfg!(target_vendor = "apple") { hard.min(10_240) } else { hard };
        if soft < raised {
            setrlimit(Resource::RLIMIT_NOFILE, raised, hard)?;
        }
        Ok(raised.max(soft))
    }
    #[cfg(not(unix))]
    Ok(UNKNOWN)
}

/// Returns the current limit.
pub(crate) fn descriptor_limit() -> u64 {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit};

        getrlimit(Resource::RLIMIT_NOFILE).map_or(UNKNOWN, |(soft, _)| soft)
    }
    #[cfg(not(unix))]
    UNKNOWN
}
