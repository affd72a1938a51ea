//! The line of a skipped test, as the harness lets it through. Each test runs itself again.

use std::env;
use std::process::{Command, Output};

use kcpx_skip::{REQUIRE_ALL, skip};

/// Set in the process whose test skips itself.
const INNER: &str = "KCPX_SKIP_INNER";

/// Runs the test `name` of this program alone, with `value` for [`REQUIRE_ALL`].
fn run(name: &str, value: &str) -> Output {
    let mut program = Command::new(env::current_exe().unwrap());
    program.args(["--exact", name]).env(INNER, "1").env(REQUIRE_ALL, value).output().unwrap()
}

fn is_inner() -> bool {
    env::var_os(INNER).is_some()
}

#[test]
fn skip_writes_one_line_past_the_capture_of_the_harness() {
    if is_inner() {
        println!("captured");
        return skip("a machine\nwith  two lines\n");
    }
    for value in ["", "0"] {
        let output = run("skip_writes_one_line_past_the_capture_of_the_harness", value);
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
        assert!(!out.contains("captured"), "{out}");
        let lines = err.lines().filter(|line| line.contains("SKIPPED"));
        let test = "skip_writes_one_line_past_the_capture_of_the_harness";
        let expected = format!("SKIPPED: {test}: a machine with two lines");
        assert_eq!(lines.collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn skip_fails_the_test_if_all_is_required() {
    if is_inner() {
        return skip("a second moon");
    }
    let output = run("skip_fails_the_test_if_all_is_required", "1");
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(!output.status.success() && out.contains("1 failed"), "{out}{err}");
    assert!(out.contains("a second moon") && !err.contains("SKIPPED"), "{out}{err}");
}
