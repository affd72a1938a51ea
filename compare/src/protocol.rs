//! Messages between the processes, one JSON object per line; help.txt explains it.

use serde::{Deserialize, Serialize};

use crate::args::Case;

/// The first line of a server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    pub(crate) addr: std::net::SocketAddr,
    /// A note of the table beside the name.
    #[serde(default)]
    pub(crate) note: Option<String>,
}

/// A server's answer to each line it is sent.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// User and system time of the process.
    pub(crate) cpu_s: f64,
    /// Resident memory of the process.
    pub(crate) rss_kib: u64,
    /// Payload that its side of the workload has read.
    pub(crate) bytes: u64,
    /// Connections it has accepted.
    pub(crate) connections: u64,
    /// For `msg` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) messages: Option<Messages>,
    /// For `bulk` alone, once its time is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) within: Option<Within>,
}

/// Messages that arrived, each once and in order.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Messages {
    pub(crate) received: u64,
    /// Those due within five seconds of the first.
    pub(crate) first_5s: Option<Latency>,
    pub(crate) rest: Option<Latency>,
}

/// From when a message was due to when it was read, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) min_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

/// Bytes that a server read within its time, which begins with the first byte.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Within {
    pub(crate) bytes: u64,
    /// Less than asked for if everything arrived before.
    pub(crate) seconds: f64,
}

/// The one line of a client, when its work is done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Outcome {
    /// Payload that went to the server.
    pub(crate) bytes: u64,
    pub(crate) wall_s: f64,
    /// User and system time of the process during the work.
    pub(crate) cpu_s: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
    pub(crate) round_trips: Option<u64>,
    /// Connections that got everything back.
    pub(crate) finished: Option<u64>,
    /// Connections that had not got everything back when the time was over.
    pub(crate) stuck: Option<u64>,
    /// Connections that failed with an error.
    pub(crate) failed: Option<u64>,
    /// Retransmitted share of what was sent in percent, where the transport reports it.
    pub(crate) retransmit_pct: Option<f64>,
    /// For msg and bulk: whether the server had read everything when the client ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) complete: Option<bool>,
}

/// The result of one measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    pub(crate) note: Option<String>,
    /// 10^6 bytes per second.
    pub(crate) mb_per_s: Option<f64>,
    pub(crate) server_cpu_s: f64,
    /// Both processes.
    pub(crate) cpu_s_per_gib: Option<f64>,
    /// Growth of the server's resident memory per connection, after a rest.
    pub(crate) server_kib_per_connection: Option<f64>,
    /// CPU time of the server per second while its connections do nothing.
    pub(crate) server_idle_ms_per_s: Option<f64>,
    /// Datagrams that the kernel dropped at full buffers, of all processes in this network.
    pub(crate) udp_drops: Option<u64>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) run: u32,
    pub(crate) pinned: bool,
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
    /// Why there are no figures.
    pub(crate) error: Option<String>,
}
