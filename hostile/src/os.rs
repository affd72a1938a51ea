//! Memory, as the allocator counts it, and memory and CPU time, as the system reports them in /proc.

use std::alloc::System;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cap::Cap;

/// The system's allocator, with a count of the bytes in use. Without the pages that it keeps, the
/// count shows growth that resident memory hides or only seems to have.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes of this process's heap in use, KiB.
pub(crate) fn heap_kib() -> u64 {
    (HEAP.allocated() / 1_024) as u64
}

/// The system's report on a process.
pub(crate) fn proc_dir(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Resident memory of this process, KiB.
pub(crate) fn resident_kib() -> u64 {
    resident_kib_of(Path::new("/proc/self"))
}

/// Resident memory of a process, KiB.
pub(crate) fn resident_kib_of(proc_dir: &Path) -> u64 {
    let status = fs::read_to_string(proc_dir.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// CPU time of all threads of this process that are alive.
pub(crate) fn process_cpu_time() -> Duration {
    cpu_time(Path::new("/proc/self"))
}

/// CPU time of all threads of a process that are alive.
pub(crate) fn cpu_time(proc_dir: &Path) -> Duration {
    let tasks = fs::read_dir(proc_dir.join("task")).into_iter().flatten().flatten();
    tasks.map(|task| nanos_of(&task.path().join("schedstat"))).sum()
}

/// The first field of a `schedstat`: nanoseconds on a CPU.
fn nanos_of(schedstat: &Path) -> Duration {
    let text = fs::read_to_string(schedstat).unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
