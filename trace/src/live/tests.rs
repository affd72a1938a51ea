//! A local server with given pages, and what is shown of them at given times.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::*;

/// A page with the metrics of tunnels, in the order of the tunnel's page.
fn metrics(tunnels: &[(&str, [u64; 7])]) -> String {
    let names = [
        "kcp_sent_datagram_bytes_total",
        "kcp_received_datagram_bytes_total",
        "kcp_sent_segments_total",
        "kcp_retransmits_total",
        "kcp_redundant_bytes_total",
        "kcp_longest_srtt_microseconds",
        "kcp_unsent_bytes",
    ];
    let mut text = String::new();
    for (index, name) in names.iter().enumerate() {
        text += &format!("# HELP kcpx_{name} Text.\n# TYPE kcpx_{name} counter\n");
        for (tunnel, values) in tunnels {
            text += &format!("kcpx_{name}{{tunnel=\"{tunnel}\"}} {}\n", values[index]);
        }
    }
    text + "kcpx_smux_stalls_total{tunnel=\"other\"} 1\n# EOF\n"
}

fn ok(body: &str) -> String {
    format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Gives each connection the next answer, and then closes.
fn serve(answers: Vec<String>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /metrics HTTP/1."));
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, task)
}

fn fetched(answer: String) -> Result<Page> {
    let (address, task) = serve(vec![answer]);
    let page = page::fetch(&address);
    task.join().unwrap();
    page
}

fn page(tunnels: &[(&str, [u64; 7])]) -> Page {
    fetched(ok(&metrics(tunnels))).unwrap()
}

fn printed(live: &Live) -> String {
    let mut out = Vec::new();
    live.print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

const START: [u64; 7] = [1_000_000, 50_000, 1_000, 10, 100_000, 40_000, 0];

#[test]
fn quantities_are_differences_of_two_pages_over_the_time_between_them() {
    let mut live = Live::new("x:1", page(&[("client :1", START), ("client :2", START)]));
    let later = [3_500_000, 50_125, 3_000, 50, 600_000, 52_345, 1_234_567];
    live.read(Duration::from_secs(2), Ok(page(&[("client :1", later), ("client :2", START)])));
    assert_eq!(
        printed(&live),
        "client :1  sent 10.0 Mbit/s  received 500 bit/s  RTT 52.3 ms  loss 2.0 %  \
         redundancy 20.0 %  queue 1.2 MB\n\
         client :2  sent 0 bit/s  received 0 bit/s  RTT 40.0 ms  loss 0.0 %  \
         redundancy 0.0 %  queue 0 B\n"
    );
}

#[test]
fn screen_has_sparklines_and_replaces_the_one_before() {
    let mut live = Live::new("host:9464", page(&[("client :1", START)]));
    let mut values = START;
    // Bytes a second of the seven readings; the last one is the value.
    for (second, bytes) in [0, 10_000, 20_000, 40_000, 70_000, 35_000, 0].into_iter().enumerate() {
        values[0] += bytes;
        live.read(Duration::from_secs(second as u64 + 1), Ok(page(&[("client :1", values)])));
    }
    let mut screen = Vec::new();
    live.draw(&mut screen).unwrap();
    let screen = String::from_utf8(screen).unwrap();
    let lines: Vec<&str> = screen.strip_prefix("\x1b[H\x1b[J").unwrap().lines().collect();
    assert_eq!(lines.len(), 8);
    assert_eq!(lines[0], "host:9464, 7 s; Ctrl-C ends");
    assert_eq!(lines[1], format!("client :1{:>69}", "most"));
    let spaces = " ".repeat(COLUMNS - 7);
    assert_eq!(lines[2], format!("sent            0 bit/s {spaces}▁▂▃▅█▅▁  560.0 kbit/s"));
    assert_eq!(lines[4], format!("RTT             40.0 ms {spaces}███████       40.0 ms"));
    assert!(lines.iter().all(|line| line.chars().count() < 80), "{screen}");
}

#[test]
fn sparkline_keeps_the_newest_readings() {
    let mut live = Live::new("x:1", page(&[("t", START)]));
    for second in 1..=100 {
        let mut values = START;
        values[6] = second;
        live.read(Duration::from_secs(second), Ok(page(&[("t", values)])));
    }
    let screen = live.screen();
    let queue = screen.last().unwrap();
    assert_eq!(queue.chars().filter(|letter| LEVELS.contains(letter)).count(), COLUMNS);
    // The oldest is 61 of 100.
    assert!(queue.contains("▆") && !queue.contains("▅"), "{queue}");
}

#[test]
fn screen_has_the_three_tunnels_with_most_traffic() {
    let names: Vec<String> = (0..5).map(|number| format!("client :{number}")).collect();
    let tunnels: Vec<_> = names
        .iter()
        .zip(0..)
        .map(|(name, bytes)| {
            let mut values = START;
            values[1] += bytes;
            (name.as_str(), values)
        })
        .collect();
    let mut live = Live::new("x:1", page(&tunnels));
    live.read(Duration::from_secs(1), Ok(page(&tunnels)));
    let screen = live.screen();
    assert_eq!(screen.len(), 23);
    let shown: Vec<_> = screen.iter().filter(|line| line.starts_with("client")).collect();
    let shown: Vec<_> = shown.iter().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(shown, ["client :4", "client :3", "client :2"]);
    assert_eq!(screen.last().unwrap(), "2 more tunnels with less traffic");
}

#[test]
fn tunnel_that_began_again_or_is_gone_leaves_a_gap() {
    let mut live = Live::new("x:1", page(&[("t", START)]));
    live.read(Duration::from_secs(1), Ok(page(&[("t", START)])));
    live.read(Duration::from_secs(2), Err(Error::msg("no route")));
    live.read(Duration::from_secs(5), Err(Error::msg("no route")));
    assert_eq!(printed(&live), "no metrics for 3 s, trying again: no route\n");
    assert_eq!(live.screen()[0], "no metrics for 3 s, trying again: no route");
    // Another process: its counters are smaller.
    live.read(Duration::from_secs(6), Ok(page(&[("t", [0; 7])])));
    assert!(printed(&live).starts_with("t  sent -  received -  RTT -  "), "{}", printed(&live));
    let mut values = [0; 7];
    values[0] = 125;
    live.read(Duration::from_secs(7), Ok(page(&[("t", values)])));
    assert!(printed(&live).starts_with("t  sent 1.0 kbit/s  "), "{}", printed(&live));
    let row = live.screen()[2].clone();
    assert!(row.contains("▁   █"), "{row}");
}

#[test]
fn answer_that_is_no_page_of_the_tunnel_is_an_error_that_says_why() {
    let page = metrics(&[("t", START)]);
    for (answer, reason) in [
        ("HTTP/1.1 404 Not Found\r\n\r\n".to_owned(), "404"),
        (String::new(), "is kcpx-tunnel running there"),
        ("SSH-2.0-OpenSSH\r\n".to_owned(), "HTTP"),
        (ok("<html></html>"), "it has no metric kcpx_kcp_sent_datagram_bytes_total"),
        (
            ok(&page.replace("kcpx_kcp_unsent_bytes", "x")),
            "it has no metric kcpx_kcp_unsent_bytes of t",
        ),
        (ok(&page.replace("\"} 50000\n", "\"} many\n")), "must be a number, got \"many\""),
        (ok(&page.replace("\"} 50000\n", "\"}\n")), "a line is "),
    ] {
        let error = format!("{:#}", fetched(answer).unwrap_err());
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("/metrics"), "{error}");
    }
}

#[test]
fn names_of_tunnels_are_no_commands_to_a_terminal() {
    let page = page(&[("a\x1b[2Jb", START)]);
    assert_eq!(page.keys().collect::<Vec<_>>(), ["a[2Jb"]);
}

#[test]
fn watch_reads_again_until_the_page_is_back() {
    let good = ok(&metrics(&[("t", START)]));
    let (address, task) = serve(vec![good.clone(), good.clone(), String::new(), good]);
    let options = Options { address, seconds: Some(3) };
    let mut out = Vec::new();
    watch(&options, Duration::from_millis(1), false, &mut out).unwrap();
    task.join().unwrap();
    let out = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[0].starts_with("t  sent 0 bit/s  "), "{out}");
    assert!(lines[1].starts_with("no metrics for 0 s, trying again: cannot read http://"), "{out}");
    assert!(lines[2].starts_with("t  sent 0 bit/s  "), "{out}");
}

#[test]
fn watch_ends_at_once_if_the_first_page_cannot_be_read() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, reason) in [
        (free.to_string(), "is kcpx-tunnel running there with -metrics?"),
        ("127.0.0.1".to_owned(), "expected HOST:PORT, such as 127.0.0.1:9464"),
    ] {
        let options = Options { address: address.clone(), seconds: None };
        let error = watch(&options, Duration::from_millis(1), true, &mut Vec::new()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.starts_with(&format!("cannot read http://{address}/metrics: ")), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}
