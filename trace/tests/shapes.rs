//! The shapes of docs/troubleshooting.md: the program shows of each what it is made of.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../examples/shapes/shape.rs"]
mod shape;

use std::path::Path;
use std::process::{Command, Output};

use clap::ValueEnum as _;
use serde_json::Value;

use crate::shape::Shape;

const WITH_KEY: [&str; 4] = ["--crypt", "aes-128-gcm", "--key", "secret"];

fn run(command: &str, capture: &Path, others: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kcpx-trace"));
    program.arg(command).arg(capture).args(others).output().unwrap()
}

fn succeeded(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A number of the summary, such as `/connections/0/sides/0/segments`.
fn number(summary: &Value, path: &str) -> u64 {
    summary.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {summary}"))
}

/// Times in milliseconds of the events of the sender, or of its peer, that `wanted` takes.
fn times(
    capture: &Path,
    keys: &[&str],
    from_peer: bool,
    wanted: impl Fn(&Value) -> bool,
) -> Vec<u64> {
    let events = succeeded(run("json", capture, keys));
    let events = events.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events: Vec<Value> = events.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let began = events[0]["at_ns"].as_u64().unwrap();
    let is_peers = |event: &&Value| event["from"].as_str().unwrap().ends_with(":4000");
    let events = events.iter().filter(|event| is_peers(event) == from_peer && wanted(event));
    events.map(|event| (event["at_ns"].as_u64().unwrap() - began) / 1_000_000).collect()
}

/// Groups of times that have at least 100 ms between them.
fn groups(times: &[u64]) -> usize {
    times.windows(2).filter(|pair| pair[1] - pair[0] >= 100).count() + 1
}

#[test]
fn each_shape_has_its_figures_and_its_picture() {
    let folder = tempfile::tempdir().unwrap();
    for shape in Shape::value_variants() {
        let capture = folder.path().join("shape.pcap");
        std::fs::write(&capture, shape.capture().unwrap()).unwrap();
        let keys: &[&str] = if *shape == Shape::WrongKey { &WITH_KEY } else { &[] };
        let summary = succeeded(run("summary", &capture, &[keys, &["--json"]].concat()));
        let summary: Value = serde_json::from_slice(&summary).unwrap();
        let of_a = |field: &str| number(&summary, &format!("/connections/0/sides/0/{field}"));
        let of_b = |field: &str| number(&summary, &format!("/connections/0/sides/1/{field}"));
        let (sent, again) = (of_a("segments"), of_a("retransmissions"));
        let rtts = || (of_a("rtt/min_us"), of_a("rtt/max_us"));
        assert!(of_a("spurious") * 10 <= again, "{shape:?}: {summary}");
        let is_again = |event: &Value| event["why"] == "retransmission";
        let sent_again = || times(&capture, keys, false, is_again);
        match shape {
            Shape::Clean => {
                assert!(sent > 1_500 && again == 0, "{sent} segments, {again} again");
                assert!(rtts().1 < 300_000, "{:?} microseconds", rtts());
            }
            Shape::Loss => {
                assert!((30..80).contains(&(again * 1_000 / sent)), "{again} of {sent}");
                assert!(groups(&sent_again()) > 5, "{:?}", sent_again());
            }
            Shape::Bursts => {
                let groups = groups(&sent_again());
                assert!(again > 20 && (2..6).contains(&groups), "{:?}", sent_again());
            }
            Shape::Bufferbloat => {
                let (least, most) = rtts();
                assert!(again == 0 && most > 20 * least, "{again} again, {least} to {most}");
            }
            Shape::Window => {
                assert_eq!((of_a("max_in_flight"), of_b("window"), again), (32, 32, 0));
            }
            Shape::WrongKey => {
                assert_eq!((of_b("datagrams"), sent), (0, 0));
                assert!(of_a("window_probes") > 5, "{summary}");
            }
            Shape::Gone => {
                let (last, its_last) =
                    (times(&capture, keys, false, |_| true), times(&capture, keys, true, |_| true));
                assert!(last.last() > Some(&9_000) && its_last.last() < Some(&2_000), "{summary}");
                assert!(again > 10 && summary["connections"][0]["end"].is_null(), "{summary}");
            }
        }
        for name in ["shape.svg", "shape.png"] {
            let picture = folder.path().join(name);
            succeeded(run("graph", &capture, &[&[picture.to_str().unwrap()], keys].concat()));
            assert!(std::fs::read(picture).unwrap().len() > 4_000, "{shape:?}, {name}");
        }
    }
}

#[test]
fn a_shape_is_the_same_capture_each_time() {
    assert!(Shape::Bursts.capture().unwrap() == Shape::Bursts.capture().unwrap());
}

#[test]
fn a_wrong_key_for_the_capture_is_an_error_that_names_the_options() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("shape.pcap");
    std::fs::write(&capture, Shape::WrongKey.capture().unwrap()).unwrap();
    let picture = folder.path().join("shape.svg");
    let wrong = ["--crypt", "aes-128-gcm", "--key", "another"];
    for keys in [&wrong[..], &[]] {
        let output = run("graph", &capture, &[&[picture.to_str().unwrap()], keys].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains("--crypt") && error.contains("--key"),
            "{error}"
        );
        assert!(!picture.exists());
    }
}
