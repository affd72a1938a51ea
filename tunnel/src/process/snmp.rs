//! Counters as CSV, as in kcptun's `snmplog`; file names by Go's time layouts.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};

use jiff::ZonedDateTime;
use jiff::civil::DateTime;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use super::counters::{Counters, Snapshot};
use crate::settings::SnmpLog;

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

/// Formats `time` by a layout of Go: `2006`, `01`, `02`, `15`, `04` and `05` are year, month, day,
/// hour, minute and second; everything else is literal.
///
/// Go has more tokens, such as `Jan` and `MST`; kcptun's users need these six in file names.
fn format_go_time(layout: &str, time: DateTime) -> String {
    let mut formatted = String::with_capacity(layout.len());
    let mut rest = layout;
    while let Some(next) = rest.chars().next() {
        let tokens = [
            ("2006", i32::from(time.year()), 4),
            ("01", time.month().into(), 2),
            ("02", time.day().into(), 2),
            ("15", time.hour().into(), 2),
            ("04", time.minute().into(), 2),
            ("05", time.second().into(), 2),
        ];
        let token = tokens.into_iter().find(|(token, ..)| rest.starts_with(token));
        let Some((token, value, width)) = token else {
            formatted.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        // Writing to a string does not fail.
        let _written = write!(formatted, "{value:0width$}");
        rest = &rest[token.len()..];
    }
    formatted
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

    #[test]
    fn layout_tokens_are_replaced_and_the_rest_stays() {
        let time = jiff::civil::date(2026, 1, 2).at(3, 4, 5, 678);
        for (layout, formatted) in [
            ("", ""),
            ("snmp.log", "snmp.log"),
            ("snmp-20060102.log", "snmp-20260102.log"),
            ("2006-01-02T15:04:05", "2026-01-02T03:04:05"),
            ("20060102150405", "20260102030405"),
            ("0102", "0102"),
            ("2007 1 2 3", "2007 1 2 3"),
            ("é-15-ü.csv", "é-03-ü.csv"),
            ("%Y %d", "%Y %d"),
            ("200", "200"),
            ("0", "0"),
        ] {
            assert_eq!(format_go_time(layout, time), formatted, "{layout}");
        }
        let late = jiff::civil::date(999, 12, 31).at(23, 59, 58, 0);
        assert_eq!(format_go_time("2006/01/02 15:04:05", late), "0999/12/31 23:59:58");
    }
}
