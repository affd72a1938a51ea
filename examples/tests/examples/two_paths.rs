//! A connection with two paths while one of them is cut.

use kcpx_skip::skip;

use super::process::Example;

/// A line of the table: numbers that arrived, numbers that were sent, numbers that did both during the cut.
struct Line {
    arrived: usize,
    sent: usize,
    during_the_cut: usize,
}

/// The line of a connection, if the table has one.
fn line(lines: &[String], name: &str) -> Option<Line> {
    let line = lines.iter().find_map(|line| line.strip_prefix(name))?;
    let words: Vec<_> = line.split_whitespace().collect();
    let [_, "ms", arrived, "of", sent, during_the_cut] = words[..] else { panic!("{line}") };
    let [arrived, sent, during_the_cut] =
        [arrived, sent, during_the_cut].map(|number| number.parse().expect("a number"));
    Some(Line { arrived, sent, during_the_cut })
}

#[test]
fn stream_with_two_paths_goes_on_while_one_is_cut() {
    let svg = std::env::temp_dir().join(format!("kcpx-{}-two-paths.svg", std::process::id()));
    let file = svg.to_str().expect("a path in UTF-8");
    let args = ["--seconds", "7", "--cut-at", "1", "--cut-for", "4", "--svg", file];
    let lines = Example::start("two_paths", &args).succeed();
    if let Some(needs) = lines.iter().find_map(|line| line.strip_prefix("SKIPPED: ")) {
        std::fs::remove_file(&svg).expect("an empty picture");
        return skip(needs);
    }
    // The example ends with an error if a number is missing or out of order.
    let [two, one] = ["kcpx, two paths", "kcpx, one path"].map(|name| {
        let line = line(&lines, name).unwrap_or_else(|| panic!("no {name} in {lines:#?}"));
        assert!(line.sent > 100 && line.arrived == line.sent, "{lines:#?}");
        line
    });
    assert!(two.during_the_cut > 50, "{lines:#?}");
    assert_eq!(one.during_the_cut, 0, "{lines:#?}");
    match line(&lines, "TCP, one path") {
        Some(tcp) => assert_eq!((tcp.arrived, tcp.during_the_cut), (tcp.sent, 0), "{lines:#?}"),
        None => skip(format!("namespaces, for TCP: {}", lines.join(" "))),
    }
    let picture = std::fs::read_to_string(&svg).expect("a picture");
    std::fs::remove_file(&svg).expect("a picture");
    assert!(picture.contains("kcpx, two paths") && picture.ends_with("</svg>\n"));
}

#[test]
fn two_paths_example_rejects_what_it_cannot_run_or_write() {
    let rejected = |args: &[&str], text: &str| Example::start("two_paths", args).reject_with(text);
    rejected(&["--cut-for", "20"], "--cut-at plus --cut-for must be below --seconds");
    rejected(&["--svg", "/nowhere/gaps.svg"], "--svg must be a file in a writable folder");
    rejected(&["--first", "80", "--second", "50"], "--second must be at least 108 ms");
}
