//! Upper limits on several paths: a replay of messages on the same links, and the sum of the rates.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use kcpx::testkit::link::{Link, LinkConfig};

use crate::path::IP_OVERHEAD;
use crate::simulation::{CLIENT, Setup};
use crate::traced::{HEADER_LEN, Ideal};
use crate::workload::Workload;

/// `None` without messages.
pub(crate) fn ideal(setup: &Setup<'_>) -> Option<Ideal> {
    let &[(Workload::Messages { size, every }, start)] = &setup.flows[..] else { return None };
    let written: Vec<u64> = (start..setup.end).step_by(every as usize).collect();
    let arrivals = arrivals(setup, &written, size + HEADER_LEN + IP_OVERHEAD);
    let (mut latest, mut latencies) = (0, Vec::new());
    for (at, arrival) in written.into_iter().zip(arrivals) {
        latest = arrival.max(latest);
        if setup.measured.contains(&at) {
            latencies.push(latest - at);
        }
    }
    latencies.sort_unstable();
    Some(Ideal { latencies, bulk_mbit: 0.0 })
}

/// Arrival of the earliest copy of each message, if each leaves on all paths when it is written, and again one
/// round trip of the slowest path after all copies were lost.
fn arrivals(setup: &Setup<'_>, written: &[u64], len: usize) -> Vec<u64> {
    let paths = 0..setup.paths.len();
    let mut links: Vec<Link> = paths.map(|path| setup.link(path, CLIENT)).collect();
    let mut due: BinaryHeap<_> = written.iter().zip(0..).map(|(&at, i)| Reverse((at, i))).collect();
    let mut arrivals = vec![0; written.len()];
    while let Some(Reverse((at, i))) = due.pop() {
        let mut earliest = u64::MAX;
        for link in &mut links {
            link.send(at, len, |arrival, _| earliest = earliest.min(arrival));
        }
        if earliest < u64::MAX {
            arrivals[i] = earliest;
        } else {
            due.push(Reverse((at + longest_round_trip(setup, at), i)));
        }
    }
    arrivals
}

/// The longest round trip of all paths at this time, without queues.
fn longest_round_trip(setup: &Setup<'_>, at: u64) -> u64 {
    let delay = |link: &LinkConfig| link.delay_trace.as_ref().map_or(link.delay, |d| d.at(at));
    let round_trips = setup.paths.iter().map(|path| path.links.iter().map(delay).sum());
    round_trips.max().unwrap_or(0)
}
