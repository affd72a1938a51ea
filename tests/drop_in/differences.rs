//! Differences between KCP and TCP, each with its reason.

/// A behaviour that differs.
pub(crate) struct Difference {
    name: &'static str,
    pub(crate) tcp: &'static str,
    pub(crate) kcp: &'static str,
    reason: &'static str,
}

/// The document with every row.
const DOCUMENT: &str = include_str!("../../docs/drop-in.md");

pub(crate) const HEAD: &str = "| behaviour | TCP | KCP | why |\n|---|---|---|---|";

const TABLE: &[Difference] = &[
    Difference {
        name: "shutdown_of_unread_data",
        tcp: "Ok(()) at once, every byte, end",
        kcp: "Ok(()) when the peer has every byte, every byte, end",
        reason: "`Ok` says that nothing is lost when the process ends",
    },
    Difference {
        name: "reads_after_a_reset",
        tcp: "ConnectionReset, end, end",
        kcp: "ConnectionReset, ConnectionReset, ConnectionReset",
        reason: "a failed stream is never mistaken for one that ended",
    },
    Difference {
        name: "writes_after_a_reset",
        tcp: "read ConnectionReset, write BrokenPipe",
        kcp: "read ConnectionReset, write ConnectionReset",
        reason: "every call reports the same reason",
    },
    Difference {
        name: "write_after_the_peer_dropped",
        tcp: "read end, write BrokenPipe",
        kcp: "read end, write ConnectionReset",
        reason: "every call reports the same reason",
    },
    Difference {
        name: "write_after_the_peers_last_stream_dropped",
        tcp: "read end, write BrokenPipe",
        kcp: "read end, write TimedOut",
        reason: "a socket closes `Config::linger` after its last stream at the latest; then \
                 no peer answers",
    },
    Difference {
        name: "shutdown_after_a_reset",
        tcp: "read ConnectionReset, shutdown Ok(())",
        kcp: "read ConnectionReset, shutdown ConnectionReset",
        reason: "`Ok` would say that the peer has every byte",
    },
    Difference {
        name: "drop_with_unread_data",
        tcp: "ConnectionReset",
        kcp: "end",
        reason: "a reset could destroy what was written before the drop",
    },
    Difference {
        name: "nodelay_by_default",
        tcp: "false, false",
        kcp: "true, true",
        reason: "KCP is for low latency",
    },
    Difference {
        name: "bind_in_a_runtime_without_time",
        tcp: "Ok(())",
        kcp: "A Tokio 1.x context was found, but timers are disabled. Call `enable_time` on the \
              runtime builder to enable timers.",
        reason: "retransmission needs a clock, which TCP has in the kernel",
    },
];

impl Difference {
    /// The row in the document.
    pub(crate) fn row(&self) -> String {
        let Self { name, tcp, kcp, reason } = self;
        format!("| `{name}` | {tcp} | {kcp} | {reason} |")
    }
}

/// Returns the difference of a behaviour, or `None` if TCP and KCP behave alike.
pub(crate) fn of(name: &str) -> Option<&'static Difference> {
    TABLE.iter().find(|difference| difference.name == name)
}

pub(crate) fn is_documented(row: &str) -> bool {
    DOCUMENT.lines().any(|line| line == row)
}

/// Returns an error for each difference without a behaviour.
pub(crate) fn unknown(names: &[&str]) -> Vec<String> {
    let gone = TABLE.iter().filter(|difference| !names.contains(&difference.name));
    gone.map(|difference| format!("{}: there is no such behaviour", difference.name)).collect()
}
