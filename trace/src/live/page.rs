//! The page of metrics: HTTP, its text, and the counters of each tunnel.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ureq::Agent;

use super::Point;

/// For connection, request and answer together.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of an answer in bytes: several thousand tunnels.
const MOST_BYTES: u64 = 1 << 24;
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
    let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    ensure!(matches!(port, Some(Ok(_))), "expected HOST:PORT, such as 127.0.0.1:9464");
    let config = Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0);
    let agent = Agent::new_with_config(config.proxy(None).build());
    let answer = agent.get(format!("http://{address}/metrics")).call();
    let mut answer = answer.context("is kcpx-tunnel running there with -metrics?")?;
    Ok(answer.body_mut().with_config().limit(MOST_BYTES).read_to_string()?)
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
