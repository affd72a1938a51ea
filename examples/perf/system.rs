//! CPU time and memory of this process, where the system reports them.

#[cfg(target_os = "linux")]
use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use kcpx::EndpointStats;

#[cfg(unix)]
use super::process;

/// CPU time of all threads. Unix.
pub(crate) fn cpu() -> Option<Duration> {
    #[cfg(unix)]
    return process::cpu_time().ok();
    #[cfg(not(unix))]
    return None;
}

/// Resident memory in KiB. Linux.
pub(crate) fn rss_kib() -> Option<u64> {
    #[cfg(unix)]
    return process::resident().ok().map(|bytes| bytes / 1024);
    #[cfg(not(unix))]
    return None;
}

/// Datagrams that the kernel dropped since the receive buffer of one of this process's UDP sockets
/// was full. Linux.
pub(crate) fn drops() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return count_drops();
    #[cfg(not(target_os = "linux"))]
    return None;
}

#[cfg(target_os = "linux")]
fn count_drops() -> Option<u64> {
    let links = std::fs::read_dir("/proc/self/fd").ok()?.flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let own: HashSet<String> = targets
        .filter_map(|target| {
            let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let mut sum = None;
    for table in ["/proc/self/net/udp", "/proc/self/net/udp6"] {
        // A system without IPv6 has one of them.
        for row in std::fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let columns: Vec<_> = row.split_whitespace().collect();
            if let [_, _, _, _, _, _, _, _, _, inode, _, _, drops, ..] = columns[..]
                && own.contains(inode)
            {
                *sum.get_or_insert(0) += drops.parse::<u64>().ok()?;
            }
        }
    }
    sum
}

/// Datagrams that an endpoint received and did not take, for whichever reason.
pub(crate) fn discarded(stats: &EndpointStats) -> u64 {
    stats.dropped.checksum
        + stats.dropped.reflected
        + stats.dropped.replayed
        + stats.dropped.truncated
        + stats.dropped.malformed
        + stats.dropped.no_connection
        + stats.dropped.time_wait
        + stats.refused.no_listener
        + stats.refused.max_connections
        + stats.refused.max_per_source
        + stats.refused.backlog
        + stats.refused.max_unvalidated
        + stats.refused.accept_filter
        + stats.refused.conv_in_use
}

/// Binds this process to one CPU. For as long as it has one thread: later ones inherit it.
#[cfg(target_os = "linux")]
pub(crate) fn pin(cpu: usize) -> Result<()> {
    use anyhow::Context;
    use nix::sched::{CpuSet, sched_setaffinity};
    use nix::unistd::Pid;

    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let refused = || format!("--pin {cpu}: this process may use {allowed} CPU(s), counted from 0");
    let mut set = CpuSet::new();
    set.set(cpu).with_context(refused)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(refused)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(cpu: usize) -> Result<()> {
    anyhow::bail!("--pin {cpu}: this system is not Linux")
}
