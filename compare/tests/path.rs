//! The workloads that run across a path, where the system lets this user make one: short real
//! measurements of two transports.
#![cfg(all(feature = "together", target_os = "linux"))]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use kcpx_relay::{Conditions, Path};
use kcpx_skip::skip;
use serde_json::Value;

const SECONDS: u64 = 2;
/// Half the round trip, in microseconds; the relay may hand on a packet that much early.
const ONE_WAY_US: f64 = 25_000.0;
const RELAY_EARLY_US: f64 = 50.0;

/// Whether there are namespaces and devices; reported as skipped if not.
fn has_paths() -> bool {
    match Path::new(Conditions::default(), 1) {
        Ok(_) => true,
        Err(error) => {
            skip(format!("namespaces and devices: {error:#}"));
            false
        }
    }
}

/// Measures kcpx and TCP without loss and with 5 %: what was printed, and the four samples.
fn measure(workload: &str) -> (String, Vec<Value>) {
    let (text, samples) = run(workload, &["--peers", "kcpx,tcp", "--loss", "0,5"]);
    let cases: Vec<_> = samples
        .iter()
        .map(|sample| {
            let loss = sample["conditions"]["loss_percent"].as_f64();
            (loss.expect("a loss"), sample["peer"].as_str().expect("a peer"))
        })
        .collect();
    assert_eq!(cases, [(0.0, "kcpx"), (0.0, "tcp"), (5.0, "kcpx"), (5.0, "tcp")]);
    (text, samples)
}

/// The output of a measurement with these options, and its samples.
fn run(workload: &str, options: &[&str]) -> (String, Vec<Value>) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let json = format!("{}/path-{process}-{number}.jsonl", env!("CARGO_TARGET_TMPDIR"));
    let output = Command::new(env!("CARGO_BIN_EXE_kcpx-compare"))
        .args(["--workload", workload])
        .args(options)
        .args(["--rtt", "50ms", "--seconds", &SECONDS.to_string(), "--json", &json])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the program");
    assert!(output.status.success(), "{}", output.status);
    let samples = std::fs::read_to_string(&json).expect("samples");
    std::fs::remove_file(&json).expect("its own file");
    let samples = samples.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    (String::from_utf8(output.stdout).expect("text"), samples.collect())
}

/// Checks a sample of either workload.
fn check(sample: &Value) {
    assert_eq!(sample["error"], Value::Null, "{sample}");
    assert_eq!(sample["complete"], true, "{sample}");
    assert_eq!(sample["bytes"], sample["read_bytes"], "{sample}");
    assert!(number(&sample["wire_ratio"]) > 1.0, "{sample}");
    let up = &sample["client_to_server"];
    assert!(number(&up["bytes"]) > number(&sample["read_bytes"]), "{sample}");
    assert_eq!(up["lost"] == 0, sample["conditions"]["loss_percent"] == 0.0, "{sample}");
    for direction in ["client_to_server", "server_to_client"] {
        assert_eq!(sample[direction]["relay_drops"], 0, "{sample}");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Cells of the tables, without the lines below their headings.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with('|') && !line.starts_with("|--"));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn every_message_arrives_once_and_takes_at_least_the_delay() {
    if !has_paths() {
        return;
    }
    let (text, samples) = measure("msg");
    for sample in &samples {
        check(sample);
        let (every_ms, size) = (number(&sample["every_ms"]), number(&sample["size"]));
        let expected = SECONDS as f64 * 1e3 / every_ms;
        assert_eq!(number(&sample["read_bytes"]), expected * size, "{sample}");
        let messages = &sample["messages"];
        // The server ends with an error at a message that is not the next one.
        assert_eq!(number(&messages["received"]), expected, "{sample}");
        assert_eq!(messages["rest"], Value::Null, "{sample}");
        let first = &messages["first_5s"];
        assert_eq!(number(&first["count"]), expected, "{sample}");
        let names = ["min_us", "p50_us", "p95_us", "p99_us", "p999_us", "max_us"];
        let latencies = names.map(|name| number(&first[name]));
        assert!(latencies[0] >= ONE_WAY_US - RELAY_EARLY_US, "{sample}");
        assert!(latencies.is_sorted(), "{sample}");
    }
    let rows = rows(&text);
    let heads: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(heads, ["loss", "0 %", "5 %"], "{text}");
    // Behind the name of tcp is its congestion control.
    let names = rows[0].iter().filter_map(|head| head.split(' ').next());
    assert!(names.eq(["loss", "kcpx", "tcp"]), "{text}");
    for cell in rows[1..].iter().flat_map(|row| &row[1..]) {
        let (latencies, ratio) = cell.split_once(" ms at ").expect(cell);
        assert_eq!(latencies.split('/').count(), 3, "{cell}");
        assert!(ratio.parse::<f64>().is_ok(), "{cell}");
    }
}

#[test]
fn bulk_reads_all_that_was_written_and_counts_what_came_in_time() {
    if !has_paths() {
        return;
    }
    let (text, samples) = measure("bulk");
    for sample in &samples {
        check(sample);
        // Less than the whole time, if everything arrived before its end.
        let within = &sample["within"];
        let (in_time, seconds) = (number(&within["bytes"]), number(&within["seconds"]));
        assert!(in_time > 0.0 && in_time <= number(&sample["read_bytes"]), "{sample}");
        assert!(seconds > 0.0 && seconds <= SECONDS as f64, "{sample}");
        let goodput = number(&sample["goodput_mbit_per_s"]);
        assert!((goodput * seconds * 1e6 / 8.0 - in_time).abs() < 1.0, "{sample}");
        assert_eq!(sample["messages"], Value::Null, "{sample}");
    }
    let rows = rows(&text);
    assert_eq!(rows.len(), 3, "{text}");
    for cell in rows[1..].iter().flat_map(|row| &row[1..]) {
        let (goodput, ratio) = cell.split_once(" at ").expect(cell);
        assert!(goodput.parse::<f64>().is_ok() && ratio.parse::<f64>().is_ok(), "{cell}");
    }
}

#[test]
fn transfers_beside_each_other_share_the_rate_of_the_path() {
    if !has_paths() {
        return;
    }
    let path = ["--loss", "0", "--rate", "8", "--queue", "50"];
    let (text, samples) =
        run("bulk", &[&["--peers", "kcpx", "--beside", "tcp"], &path[..]].concat());
    for sample in &samples {
        assert_eq!(sample["error"], Value::Null, "{sample}");
        let goodput = [&sample["goodput_mbit_per_s"], &sample["beside_mbit_per_s"]].map(number);
        assert!(goodput.iter().all(|goodput| *goodput > 0.0), "{sample}");
        // Packets in the queue at the end of the time came in before.
        assert!(goodput[0] + goodput[1] <= 8.8, "{sample}");
    }
    assert!(text.contains("beside a bulk transfer of tcp"), "{text}");
    let (own, rest) = rows(&text)[1][1].split_once(" + ").expect("two figures");
    let (beside, ratio) = rest.split_once(" at ").expect("a ratio");
    assert!([own, beside, ratio].iter().all(|figure| figure.parse::<f64>().is_ok()), "{text}");
}
