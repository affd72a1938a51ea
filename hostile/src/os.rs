//! Memory and CPU time, as the system reports them in /proc.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Resident memory of this process, KiB.
pub(crate) fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// CPU time of all threads of this process that are alive.
pub(crate) fn process_cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.map(|task| nanos_of(&task.path().join("schedstat"))).sum()
}

/// The first field of a `schedstat`: nanoseconds on a CPU.
fn nanos_of(schedstat: &Path) -> Duration {
    let text = fs::read_to_string(schedstat).unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
