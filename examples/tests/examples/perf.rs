//! The measuring tool: one server, a client of every workload.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ANYWHERE;
use super::process::Example;

/// Every key that `--help` explains.
const KEYS: [&str; 26] = [
    "workload",
    "interrupted",
    "bytes",
    "wall_s",
    "mb_per_s",
    "operations",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "connections",
    "failed",
    "client_cpu_s",
    "server_cpu_s",
    "cpu_s_per_gib",
    "rss_kib",
    "client_rss_kib",
    "kib_per_connection",
    "client_kib_per_connection",
    "retransmit_pct",
    "wire_bytes_out",
    "datagrams_out",
    "wire_bytes_in",
    "server_wire_bytes_out",
    "drops",
    "discarded",
];
const COLUMNS: &str = "seconds,bytes,mb_per_s,srtt_us,retransmit_pct,cpu_pct,operations";

fn client<'a>(addr: &'a str, workload: &'a str, options: &[&'a str]) -> Example {
    let args = ["client", "--connect", addr, "--workload", workload];
    Example::start("perf", &[&args, options].concat())
}

/// Runs a workload to its end. Returns the figures.
#[track_caller]
fn measure(addr: SocketAddr, workload: &str, options: &[&str]) -> Value {
    let addr = addr.to_string();
    let lines = client(&addr, workload, &[options, &["--json"]].concat()).succeed();
    figures(workload, &lines)
}

/// The line of JSON among the others.
#[track_caller]
fn figures(workload: &str, lines: &[String]) -> Value {
    let mut json = lines.iter().filter(|line| line.starts_with('{'));
    let (Some(line), None) = (json.next(), json.next()) else { panic!("not one line: {lines:?}") };
    let figures: Value = serde_json::from_str(line).expect("JSON");
    let keys = figures.as_object().expect("an object");
    assert_eq!(keys.len(), KEYS.len(), "{line}");
    for key in KEYS {
        assert!(keys.contains_key(key), "no {key} in {line}");
    }
    assert_eq!(figures["workload"], workload);
    assert!(number(&figures, "wall_s") > 0.0);
    figures
}

#[track_caller]
fn number(figures: &Value, key: &str) -> f64 {
    figures[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {figures}"))
}

#[track_caller]
fn assert_null(figures: &Value, keys: &[&str]) {
    for key in keys {
        assert!(figures[key].is_null(), "{key} is {}", figures[key]);
    }
}

/// They are in ascending order, and there is one for each round trip.
#[track_caller]
fn assert_latencies(figures: &Value, count: u64) {
    assert_eq!(figures["operations"], count);
    let percentiles = ["p50_us", "p99_us", "p999_us", "max_us"].map(|key| number(figures, key));
    assert!(percentiles[0] > 0.0 && percentiles.is_sorted(), "{percentiles:?}");
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kcpx-perf-{}-{name}", std::process::id()))
}

/// Takes the file away. Returns its rows.
#[track_caller]
fn read_series(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).expect("a time series");
    std::fs::remove_file(path).expect("a file");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(COLUMNS));
    let rows: Vec<Vec<_>> =
        lines.map(|line| line.split(',').map(str::to_owned).collect()).collect();
    assert!(!rows.is_empty(), "no rows");
    for row in &rows {
        assert_eq!(row.len(), COLUMNS.split(',').count(), "{row:?}");
        let numbers = row.iter().filter(|cell| !cell.is_empty());
        assert!(numbers.clone().all(|cell| cell.parse::<f64>().is_ok()), "{row:?}");
    }
    rows
}

/// Takes the file away, after checking that it is a picture whose elements are all closed.
#[track_caller]
fn read_picture(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("a picture");
    std::fs::remove_file(path).expect("a file");
    let mut open = Vec::new();
    for tag in text.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("the end of a tag");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => assert_eq!(tag.matches('"').count() % 2, 0, "{tag}"),
            None => open.push(tag.split(' ').next().expect("a name")),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    assert!(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{text}");
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    text
}

#[test]
fn perf_bulk_workloads_count_their_bytes() {
    let (server, addr) = Example::serve("perf", &["server", "--listen", ANYWHERE]);
    let (csv, svg) = (scratch("bulk.csv"), scratch("bulk.svg"));
    let files = ["--csv", csv.to_str().unwrap(), "--plot", svg.to_str().unwrap()];
    for (workload, bytes) in [("sink", 3_000_001_u32), ("source", 3_000_001), ("echo", 1_000_003)] {
        let count = bytes.to_string();
        let figures = measure(addr, workload, &[&files, ["--bytes", &count].as_slice()].concat());
        assert_eq!(figures["bytes"], bytes);
        assert_eq!(figures["interrupted"], false);
        assert!(number(&figures, "mb_per_s") > 0.0);
        let moved = match workload {
            "source" => ["wire_bytes_in", "server_wire_bytes_out"].as_slice(),
            "sink" => &["wire_bytes_out"],
            _ => &["wire_bytes_out", "wire_bytes_in", "server_wire_bytes_out"],
        };
        for key in moved {
            assert!(number(&figures, key) > f64::from(bytes), "{key} in {figures}");
        }
        assert_null(&figures, &["p50_us", "p99_us", "p999_us", "max_us", "kib_per_connection"]);
        if cfg!(target_os = "linux") {
            for key in ["client_cpu_s", "server_cpu_s", "cpu_s_per_gib", "rss_kib", "drops"] {
                assert!(number(&figures, key) >= 0.0);
            }
        }

        let rows = read_series(&csv);
        let sums: Vec<u64> = rows.iter().map(|row| row[1].parse().unwrap()).collect();
        assert!(sums.is_sorted() && sums.iter().all(|sum| *sum <= bytes.into()), "{sums:?}");
        let picture = read_picture(&svg);
        assert!(picture.contains("<polyline class=\"curve\""), "{picture}");
        assert!(server.line_after("127.0.0.1:").contains("begins"));
        let over = server.line_after("127.0.0.1:");
        assert!(over.contains(&format!(" {bytes} ")), "{over}");
    }
}

#[test]
fn perf_ends_after_the_given_time() {
    let (_server, addr) = Example::serve("perf", &["server", "--listen", ANYWHERE]);
    for workload in ["sink", "source", "echo"] {
        let figures = measure(addr, workload, &["--seconds", "0.3"]);
        assert!(number(&figures, "bytes") > 0.0);
    }
    let figures = measure(addr, "pingpong", &["--seconds", "0.3"]);
    assert!(number(&figures, "wall_s") >= 0.3);
}

#[test]
fn perf_measures_every_round_trip() {
    let (_server, addr) = Example::serve("perf", &["server", "--listen", ANYWHERE]);
    let (csv, svg) = (scratch("trips.csv"), scratch("trips.svg"));
    let files = ["--csv", csv.to_str().unwrap(), "--plot", svg.to_str().unwrap()];
    let trips = [&files, ["--count", "50", "--size", "200"].as_slice()].concat();
    for (workload, options) in
        [("pingpong", trips.clone()), ("messages", [&trips, ["--every", "2"].as_slice()].concat())]
    {
        let figures = measure(addr, workload, &options);
        assert_latencies(&figures, 50);
        assert_eq!(figures["bytes"], 50 * 200);
        assert_eq!(figures["connections"], 1);
        read_series(&csv);
        let picture = read_picture(&svg);
        assert!(picture.contains("p99.9 "), "{picture}");
    }
}

#[test]
fn perf_counts_its_connections() {
    let (_server, addr) = Example::serve("perf", &["server", "--listen", ANYWHERE]);
    let (csv, svg) = (scratch("crowd.csv"), scratch("crowd.svg"));
    let files = ["--csv", csv.to_str().unwrap(), "--plot", svg.to_str().unwrap()];
    let figures = measure(addr, "many", &[&files, ["--connections", "300"].as_slice()].concat());
    assert_latencies(&figures, 300);
    assert_eq!((&figures["connections"], &figures["failed"]), (&300.into(), &0.into()));
    assert_eq!(figures["bytes"], 300 * 1_024);
    read_series(&csv);
    read_picture(&svg);

    let rest = ["--connections", "40", "--seconds", "0.2"];
    let figures = measure(addr, "idle", &[&files, rest.as_slice()].concat());
    assert_eq!((&figures["connections"], &figures["failed"]), (&40.into(), &0.into()));
    assert_null(&figures, &["mb_per_s", "p50_us", "cpu_s_per_gib"]);
    assert!(number(&figures, "wall_s") >= 0.2);
    read_series(&csv);
    assert!(read_picture(&svg).contains("40 idle connections"));
}

#[test]
fn perf_applies_link_options_on_both_sides() {
    let link = ["--key", "k", "--crypt", "aes", "--datashard", "4", "--parityshard", "2"];
    let more = ["--mode", "manual", "--nodelay", "1", "--interval", "15", "--acknodelay"];
    let options = [link.as_slice(), &more, &["--sndwnd", "200", "--threads", "1"]].concat();
    let server = [&["server", "--listen", ANYWHERE], options.as_slice()].concat();
    let (_server, addr) = Example::serve("perf", &server);
    let figures = measure(addr, "sink", &[&["--bytes", "500k"], options.as_slice()].concat());
    assert_eq!(figures["bytes"], 500_000);
    // Two packets of redundancy for four of data.
    assert!(number(&figures, "wire_bytes_out") > 700_000.0, "{figures}");

    // With another key there is no run: no peer answers.
    let addr = addr.to_string();
    let other = client(&addr, "sink", &["--key", "another", "--crypt", "aes"]);
    other.fail_with("has it the same --crypt and --key?");
}

#[test]
#[cfg(target_os = "linux")]
fn perf_interrupted_reports_what_was_measured() {
    let (_server, addr) = Example::serve("perf", &["server", "--listen", ANYWHERE]);
    let addr = addr.to_string();
    for workload in ["sink", "source", "echo", "pingpong", "messages"] {
        let client = client(&addr, workload, &["--seconds", "100", "--json"]);
        // A line per second: the measurement is going on.
        while !client.line().contains("RTT") {}
        client.interrupt();
        let figures = figures(workload, &client.succeed());
        assert_eq!(figures["interrupted"], true);
        assert!(number(&figures, "bytes") > 0.0);
        assert!(number(&figures, "wall_s") < 100.0);
    }
}

/// A stream with a wrong header, or without a run, is given up; the
/// server serves the next.
#[test]
fn perf_server_survives_unknown_clients() {
    use kcpx::KcpStream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::common::{guarded, one_thread};

    let (_server, addr) = Example::serve("perf", &["server", "--listen", ANYWHERE]);
    one_thread().block_on(guarded(async {
        let unknown_clients: [&[u8]; 4] = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"kpf1\x02\0\0\0\0\0\0\0\0\0\0\x07",
            b"kpf1\x09\0\0\0\0\0\0\0\0\0\0\x07",
            b"kpf1\0\0\0\0\0\0\0\0\0\0\0\x07{\"workload\":7}\n",
        ];
        for words in unknown_clients {
            let mut stream = KcpStream::connect(addr).await.expect("a stream");
            stream.write_all(words).await.expect("capacity");
            let mut answer = Vec::new();
            // Reset, or ended without a word.
            if stream.read_to_end(&mut answer).await.is_ok() {
                assert_eq!(answer, b"");
            }
        }
        // A line that is too long.
        let mut stream = KcpStream::connect(addr).await.expect("a stream");
        stream.write_all(b"kpf1\0\0\0\0\0\0\0\0\0\0\0\x08").await.expect("capacity");
        stream.write_all(&[b'x'; 5_000]).await.expect("capacity");
        let mut answer = Vec::new();
        if stream.read_to_end(&mut answer).await.is_ok() {
            assert_eq!(answer, b"");
        }
    }));
    assert_eq!(measure(addr, "sink", &["--bytes", "1000"])["bytes"], 1_000);
}

#[test]
fn perf_rejects_invalid_options_by_name() {
    let start = |workload: &str, options: &[&str]| client("127.0.0.1:9", workload, options);
    let refused = |workload: &str, options: &[&str], text: &str| {
        start(workload, options).reject_with(text);
    };
    refused("sink", &["--count", "5"], "--count means nothing for sink, which takes --seconds");
    refused("idle", &["--bytes", "5"], "--bytes means nothing for idle, which takes --seconds");
    start("sink", &["--bytes", "5 apples"]).fail_with("alone or with k, M, G, Ki, Mi or Gi");
    refused("sink", &["--seconds", "0"], "--seconds must be between 0.1 and 86400, got 0");
    start("dance", &[])
        .fail_with("possible values: sink, source, echo, pingpong, many, idle, messages");
    refused("sink", &["--mtu", "20"], "mtu (bytes) must be between 25 and ");
    Example::start("perf", &["client", "--connect", "nowhere"]).fail_with("write HOST:PORT");
    let lines = Example::start("perf", &["client", "--help"]).succeed().join("\n");
    for key in KEYS {
        assert!(lines.contains(key), "--help does not explain {key}");
    }
    assert!(lines.contains(&COLUMNS.replace(',', ", ")));
}
