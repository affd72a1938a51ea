//! Upper limits on several paths: a replay of messages on the same links, and the sum of the rates.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use kcpx::testkit::link::{Link, LinkConfig};

use crate::path::{FULL_PACKET, IP_OVERHEAD};
use crate::simulation::{CLIENT, Setup};
use crate::traced::{HEADER_LEN, Ideal};
use crate::workload::Workload;

/// `None` for several flows, and for bulk without limits of the rate.
pub(crate) fn ideal(setup: &Setup<'_>) -> Option<Ideal> {
    let (size, every, start) = match setup.flows[..] {
        [(Workload::Messages { size, every }, start)] => (size, every, start),
        [(Workload::Bulk, _)] => {
            let bulk_mbit = sum_of_rates(setup)?;
            return Some(Ideal { latencies: Vec::new(), bulk_mbit });
        }
        _ => return None,
    };
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

/// Payload that full packets carry on all paths together, Mbit/s.
fn sum_of_rates(setup: &Setup<'_>) -> Option<f64> {
    let rate: u64 = setup.paths.iter().map(|path| path.links[CLIENT].rate).sum::<Option<_>>()?;
    let payload = FULL_PACKET - (HEADER_LEN + IP_OVERHEAD) as u64;
    Some(rate as f64 * 8.0 / 1e6 * payload as f64 / FULL_PACKET as f64)
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
