//! CPU time, memory and open files of this process (Unix).

#![allow(dead_code, reason = "each program uses a part of it")]

use std::io::{Error, Result};
use std::time::Duration;

/// CPU time that all threads of this process have used.
#[expect(unsafe_code, reason = "the standard library has no process clock")]
pub(crate) fn cpu_time() -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes, and the call keeps no pointer.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    if result != 0 {
        return Err(Error::last_os_error());
    }
    let nanos = u32::try_from(time.tv_nsec).map_err(Error::other)?;
    Ok(Duration::new(u64::try_from(time.tv_sec).map_err(Error::other)?, nanos))
}

/// Resident memory of this process in bytes.
pub(crate) fn resident() -> Result<u64> {
    resident_of(std::process::id())
}

/// Resident memory of a process in bytes.
pub(crate) fn resident_of(id: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Error::other("its status has no VmRSS"))
}

/// Raises the limit of open files to the highest this process may set, and returns it.
#[expect(unsafe_code, reason = "the standard library has no resource limits")]
pub(crate) fn raise_file_limit() -> Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes, and the call keeps no pointer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is valid for reads, and the call keeps no pointer.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}
