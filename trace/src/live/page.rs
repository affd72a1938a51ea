//! The page of metrics: HTTP, its text, and the counters of each tunnel.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::Point;

/// For connection, request and answer together.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of an answer in bytes: several thousand tunnels.
const MOST_BYTES: usize = 1 << 24;
const METRICS: [&str; 7] = [
    "kcpx_kcp_sent_datagram_bytes_total",
    "kcpx_kcp_received_datagram_bytes_total",
    "kcpx_kcp_sent_segments_total",
    "kcpx_kcp_retransmits_total",
    "kcpx_kcp_redundant_bytes_total",
    "kcpx_kcp_longest_srtt_microseconds",
    "kcpx_kcp_unsent_bytes",
];
/// [`METRICS`] that only grow, unless the process began again.
const COUNTERS: usize = 5;

/// Counters of each tunnel by its name.
pub(super) type Page = BTreeMap<String, Counters>;

/// Values in the order of [`METRICS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters([u64; METRICS.len()]);

impl Counters {
    /// The quantities between two pages; `None` if the counters began again.
    pub(super) fn since(&self, before: &Self, seconds: f64) -> Option<Point> {
        if self.0.iter().zip(before.0).take(COUNTERS).any(|(now, before)| *now < before) {
            return None;
        }
        let grown = |index: usize| (self.0[index] - before.0[index]) as f64;
        let [sent, received, segments, again, redundant] = std::array::from_fn(grown);
        let share = |part: f64, of: f64| if of == 0.0 { 0.0 } else { (part / of).min(1.0) };
        let [.., srtt, unsent] = self.0;
        Some([
            sent * 8.0 / seconds,
            received * 8.0 / seconds,
            srtt as f64 / 1e6,
            share(again, segments),
            share(redundant, sent),
            unsent as f64,
        ])
    }

    /// All bytes of the tunnel.
    pub(super) fn bytes(&self) -> u64 {
        self.0[0].saturating_add(self.0[1])
    }
}

/// Reads the page.
///
/// # Errors
///
/// Without an answer in time, and if it is not the page of kcpx-tunnel.
pub(super) fn fetch(address: &str) -> Result<Page> {
    let text = get(address).with_context(|| format!("cannot read http://{address}/metrics"))?;
    parse(&text)
        .with_context(|| format!("http://{address}/metrics is not a page of kcpx-tunnel -metrics"))
}

/// The body of the answer.
fn get(address: &str) -> Result<String> {
    let deadline = Instant::now() + TIMEOUT;
    let mut stream = connect(address, deadline)?;
    // An answer of version 1.0 has no chunks, and ends with the connection.
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut block) = (Vec::new(), [0; 16_384]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the answer did not end within {} s", TIMEOUT.as_secs());
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The loop says that the time is over.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(answer.len() <= MOST_BYTES, "the answer has more than {MOST_BYTES} bytes");
    }
    let answer = String::from_utf8(answer).context("the answer is not text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.lines().next().and_then(|line| line.strip_prefix("HTTP/1."));
    let status = status.and_then(|line| line.split_once(' ')).context("the answer is not HTTP")?.1;
    ensure!(status.starts_with("200"), "the answer is {}", status.trim_end());
    Ok(body.to_owned())
}

fn connect(address: &str, deadline: Instant) -> Result<TcpStream> {
    let mut last = None;
    for address in
        address.to_socket_addrs().context("expected HOST:PORT, such as 127.0.0.1:9464")?
    {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).context("is kcpx-tunnel running there with -metrics?"),
        None => bail!("the name has no address"),
    }
}

/// The counters of each tunnel.
fn parse(text: &str) -> Result<Page> {
    let mut tunnels: BTreeMap<String, [Option<u64>; METRICS.len()]> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((metric, rest)) = line.split_once("{tunnel=\"") else { continue };
        let Some(index) = METRICS.iter().position(|name| *name == metric) else { continue };
        let (name, value) =
            rest.rsplit_once("\"} ").with_context(|| format!("a line is {line:?}"))?;
        let number = value.trim_end().parse();
        let number = number.with_context(|| format!("{metric} must be a number, got {value:?}"))?;
        // Nothing that a terminal takes as a command.
        let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
        tunnels.entry(name).or_default()[index] = Some(number);
    }
    ensure!(!tunnels.is_empty(), "it has no metric {}", METRICS[0]);
    let complete = tunnels.into_iter().map(|(name, values)| {
        let mut counters = [0; METRICS.len()];
        for ((counter, value), metric) in counters.iter_mut().zip(values).zip(METRICS) {
            *counter = value.with_context(|| format!("it has no metric {metric} of {name}"))?;
        }
        Ok((name, Counters(counters)))
    });
    complete.collect()
}
