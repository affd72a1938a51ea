//! Counters of the system.

use std::io;

#[cfg(target_os = "linux")]
pub(crate) use linux::{Pin, cpu_seconds, raise_file_limit};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{Pin, cpu_seconds, raise_file_limit};

/// Resident memory of this process in KiB.
pub(crate) fn resident_kib() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| io::Error::other("/proc/self/status has no VmRSS"))
}

/// Datagrams that this network has dropped since their socket's receive buffer was full.
pub(crate) fn udp_drops() -> Option<u64> {
    let ipv4 = std::fs::read_to_string("/proc/net/snmp").ok()?;
    let ipv6 = std::fs::read_to_string("/proc/net/snmp6").unwrap_or_default();
    Some(drops_of_ipv4(&ipv4)? + drops_of_ipv6(&ipv6).unwrap_or(0))
}

/// A line of names, and below it a line of values.
fn drops_of_ipv4(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|name| name == "RcvbufErrors")?;
    values.split_whitespace().nth(place)?.parse().ok()
}

fn drops_of_ipv6(snmp: &str) -> Option<u64> {
    let line = snmp.lines().find_map(|line| line.strip_prefix("Udp6RcvbufErrors"))?;
    line.trim().parse().ok()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
    use nix::sys::time::{TimeVal, TimeValLike as _};
    use nix::unistd::Pid;

    /// Binds this thread to one CPU, and the processes that it starts until this is dropped.
    pub(crate) struct Pin(Option<CpuSet>);

    impl Pin {
        pub(crate) fn to(cpu: usize) -> Self {
            let thread = Pid::from_raw(0);
            let Ok(before) = sched_getaffinity(thread) else { return Self(None) };
            let mut one = CpuSet::new();
            let set = one.set(cpu).is_ok() && sched_setaffinity(thread, &one).is_ok();
            Self(set.then_some(before))
        }

        /// Whether that worked.
        pub(crate) fn holds(&self) -> bool {
            self.0.is_some()
        }
    }

    impl Drop for Pin {
        fn drop(&mut self) {
            if let Some(before) = &self.0 {
                // It was allowed before, and there is nothing to do if it no longer is.
                let _ = sched_setaffinity(Pid::from_raw(0), before);
            }
        }
    }

    /// User and system time of this process.
    pub(crate) fn cpu_seconds() -> io::Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
        Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
    }

    /// Raises the limit of open files to the highest this process may set.
    pub(crate) fn raise_file_limit() -> io::Result<()> {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;

    /// Not pinned.
    pub(crate) struct Pin;

    impl Pin {
        pub(crate) fn to(_cpu: usize) -> Self {
            Self
        }

        pub(crate) fn holds(&self) -> bool {
            false
        }
    }

    pub(crate) fn cpu_seconds() -> io::Result<f64> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the process clock is read on Linux alone"))
    }

    pub(crate) fn raise_file_limit() -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snmp_drop_counters_are_found_by_name() {
        let snmp = "Tcp: InSegs RcvbufErrors\nTcp: 7 8\n\
                    Udp: InDatagrams NoPorts RcvbufErrors SndbufErrors\nUdp: 1 2 3 4\n\
                    UdpLite: InDatagrams RcvbufErrors\nUdpLite: 5 6\n";
        assert_eq!(drops_of_ipv4(snmp), Some(3));
        assert_eq!(drops_of_ipv4("Udp: InDatagrams\nUdp: 1\n"), None);
        assert_eq!(drops_of_ipv6("Udp6InErrors  \t9\nUdp6RcvbufErrors       \t5\n"), Some(5));
    }
}
