//! Counters as CSV, with the columns of kcp-go's `Snmp` (March 2026), as in kcptun's `snmplog`.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::ops::Add;

use jiff::ZonedDateTime;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use super::counters::Counters;
use super::go_time::format_go_time;
use crate::settings::SnmpLog;

macro_rules! snapshot {
    ($($(#[$doc:meta])* $field:ident: $column:literal),* $(,)?) => {
        /// Counters by the names of kcp-go's `Snmp`. A column without a counter in this crate stays
        /// 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Snapshot {
            /// Column names in kcp-go's order (`Snmp.Header`).
            pub const COLUMNS: [&str; 30] = [$($column),*];

            /// Returns the values in the order of the columns.
            #[must_use]
            pub fn values(&self) -> [u64; 30] {
                [$(self.$field),*]
            }
        }

        /// Sum over several tunnels.
        impl Add for Snapshot {
            type Output = Self;

            fn add(self, more: Self) -> Self {
                Self { $($field: self.$field.saturating_add(more.$field)),* }
            }
        }
    };
}

snapshot! {
    /// Bytes that streams accepted from this side.
    bytes_sent: "BytesSent",
    /// Bytes that streams delivered to this side.
    bytes_received: "BytesReceived",
    /// Most concurrent KCP connections.
    max_conn: "MaxConn",
    /// Connections opened by this side.
    active_opens: "ActiveOpens",
    /// Connections opened by peers.
    passive_opens: "PassiveOpens",
    /// Current connections.
    curr_estab: "CurrEstab",
    /// Receive errors, and truncated datagrams.
    in_errs: "InErrs",
    /// Datagrams with a wrong checksum or tag.
    in_csum_errors: "InCsumErrors",
    /// Malformed datagrams.
    kcp_in_errors: "KCPInErrors",
    /// Datagrams received.
    in_pkts: "InPkts",
    /// Datagrams sent.
    out_pkts: "OutPkts",
    /// Data segments received.
    in_segs: "InSegs",
    /// Data segments sent, including retransmissions.
    out_segs: "OutSegs",
    /// Bytes of the datagrams received.
    in_bytes: "InBytes",
    /// Bytes of the datagrams sent.
    out_bytes: "OutBytes",
    /// Retransmissions.
    retrans_segs: "RetransSegs",
    /// Fast retransmits.
    fast_retrans_segs: "FastRetransSegs",
    /// Early retransmits.
    early_retrans_segs: "EarlyRetransSegs",
    /// Retransmissions after an RTO.
    lost_segs: "LostSegs",
    /// Duplicate data segments received.
    duplicate_segs: "RepeatSegs",
    /// FEC groups whose data arrived completely.
    fec_full_shards: "FECFullShards",
    /// FEC parity packets received.
    fec_parity_shards: "FECParityShards",
    /// FEC groups that did not decode.
    fec_errs: "FECErrs",
    /// Packets recovered by FEC.
    fec_recovered: "FECRecovered",
    /// FEC groups held by the decoder.
    fec_shard_set: "FECShardSet",
    /// Number of the newest FEC group.
    fec_shard_min: "FECShardMin",
    /// Capacity of the send queue in segments.
    ring_buffer_snd_queue: "RingBufferSndQueue",
    /// Capacity of the receive queue in segments.
    ring_buffer_rcv_queue: "RingBufferRcvQueue",
    /// Capacity of the buffer of segments in flight.
    ring_buffer_snd_buffer: "RingBufferSndBuffer",
    /// Out-of-band datagrams received.
    oob_packets: "OOBPackets",
}

/// Appends a line after every period until dropped.
///
/// Reports a file that cannot be written each time, and retries after the next period.
pub async fn write_periodically(settings: SnmpLog, counters: Counters) {
    let mut ticks = interval(settings.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let reports = counters.read();
        let sum = reports.iter().fold(Snapshot::default(), |sum, report| sum + report.snmp);
        let path = settings.path.clone();
        let written = spawn_blocking(move || append(&path, &ZonedDateTime::now(), &sum)).await;
        if let Ok(Err(error)) = written {
            warn!("snmplog {}: {error}", settings.path);
        }
    }
}

/// Appends a line to the file that `path` names at `now`; an empty file gets the columns first.
///
/// The file name is a layout of Go, its folders are not.
fn append(path: &str, now: &ZonedDateTime, snapshot: &Snapshot) -> io::Result<()> {
    let name = path.rfind(std::path::is_separator).map_or(0, |separator| separator + 1);
    let (folders, layout) = path.split_at(name);
    let path = format!("{folders}{}", format_go_time(layout, now.datetime()));
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let mut lines = String::new();
    if file.metadata()?.len() == 0 {
        lines.push_str("Unix,");
        lines.push_str(&Snapshot::COLUMNS.join(","));
        lines.push('\n');
    }
    // Writing to a string does not fail.
    let _written = write!(lines, "{}", now.timestamp().as_second());
    for value in snapshot.values() {
        let _written = write!(lines, ",{value}");
    }
    lines.push('\n');
    file.write_all(lines.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::process::Report;

    /// The first line that kcptun 2026 writes.
    const HEADER: &str = "Unix,BytesSent,BytesReceived,MaxConn,ActiveOpens,PassiveOpens,CurrEstab,\
        InErrs,InCsumErrors,KCPInErrors,InPkts,OutPkts,InSegs,OutSegs,InBytes,OutBytes,RetransSegs,\
        FastRetransSegs,EarlyRetransSegs,LostSegs,RepeatSegs,FECFullShards,FECParityShards,FECErrs,\
        FECRecovered,FECShardSet,FECShardMin,RingBufferSndQueue,RingBufferRcvQueue,\
        RingBufferSndBuffer,OOBPackets";

    #[test]
    fn lines_of_one_file_share_the_columns() {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().join("2006");
        fs::create_dir(&folder).unwrap();
        let layout = folder.join("snmp-20060102.csv");
        let now: ZonedDateTime = "2026-03-09T08:05:01+00:00[UTC]".parse().unwrap();
        let mut snapshot = Snapshot { bytes_sent: 1, oob_packets: 30, ..Snapshot::default() };
        append(layout.to_str().unwrap(), &now, &snapshot).unwrap();
        snapshot.duplicate_segs = u64::MAX;
        append(layout.to_str().unwrap(), &now, &snapshot).unwrap();
        let text = fs::read_to_string(folder.join("snmp-20260309.csv")).unwrap();
        let zeros = |count: usize| "0,".repeat(count);
        let first = format!("1773043501,1,{}30", zeros(28));
        let second = format!("1773043501,1,{}{},{}30", zeros(18), u64::MAX, zeros(9));
        assert_eq!(text, format!("{HEADER}\n{first}\n{second}\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn sum_of_all_tunnels_is_written_each_period() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("snmp.csv");
        let counters = Counters::default();
        for bytes in [1, 2] {
            counters.register(move || {
                let mut report = Report::new("a");
                report.snmp.bytes_sent = bytes;
                report
            });
        }
        let (path_text, period) = (path.to_str().unwrap().to_owned(), Duration::from_secs(60));
        let settings = SnmpLog { path: path_text, period };
        let task = tokio::spawn(write_periodically(settings, counters));
        let lines = loop {
            // Virtual time advances while everything waits.
            tokio::time::sleep(Duration::from_secs(30)).await;
            let text = fs::read_to_string(&path).unwrap_or_default();
            if text.lines().count() >= 3 {
                break text;
            }
        };
        task.abort();
        let bytes: Vec<_> = lines.lines().skip(1).map(|line| line.split(',').nth(1)).collect();
        assert_eq!(bytes[..2], [Some("3"), Some("3")]);
    }
}
