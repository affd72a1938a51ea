//! A bottleneck with a drop-tail queue, without congestion control: the [retransmission
//! budget](crate::core::recovery::loss::RetransmitBudget) and the loss input of window autotuning keep most of the
//! traffic useful.

use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, SECOND};
use crate::config::{CongestionControl, Timing};
use crate::testkit::link::LinkConfig;

/// UDP and IPv4 headers, bytes.
const IP_UDP: u64 = 28;
/// 20 Mbit/s.
const RATE: u64 = 2_500_000;
const RTT: u64 = 50 * MILLIS;
const PACKET: u64 = 1_400;
/// Bandwidth-delay product, segments.
const BDP: u64 = RATE * RTT / SECOND / PACKET;
const DURATION: u64 = 12 * SECOND;

struct Outcome {
    /// Mbit/s that the application read.
    goodput: f64,
    /// Bytes on the wire, from sender to receiver, per byte that the application read.
    wire_ratio: f64,
    /// Most segments in flight after the first 3 s.
    in_flight: u64,
}

fn plan(link: &LinkConfig, auto: bool) -> Plan {
    let mut plan = Plan::plain("bottleneck");
    for side in &mut plan.sides {
        let config = &mut side.config;
        (config.timing, config.congestion_control) = (Timing::FAST3, CongestionControl::Off);
        (config.send_window, config.recv_window) = (1_024, 1_024);
        config.auto_windows = auto;
        side.link = link.clone();
    }
    plan.sides[0].traffic.bytes = 1 << 40;
    plan.sides[0].traffic.largest_write = 65_536;
    plan
}

fn bulk(name: &str, link: &LinkConfig, auto: bool) -> Outcome {
    let mut sim = Sim::new(&plan(link, auto));
    sim.start();
    let (mut in_flight, mut now) = (0, 0);
    while now < DURATION {
        now += 10 * MILLIS;
        sim.run_until(now);
        let stats = sim.sides[0].kcp.stats();
        // At least the acknowledged segments arrived.
        let arrived = sim.sides[1].kcp.stats().received.segments;
        let trickle = 4 * (1 + now / (30 * MILLIS));
        assert!(stats.retransmits() <= arrived + 64 + trickle, "{name} at {now}: {stats:?}");
        if now > 3 * SECOND {
            in_flight = in_flight.max(u64::from(stats.path.in_flight_segments));
        }
    }
    let (stats, read) = (sim.sides[0].kcp.stats(), sim.sides[1].read as f64);
    let wire = stats.sent.datagram_bytes + IP_UDP * stats.sent.datagrams;
    let outcome = Outcome {
        goodput: read * 8.0 / (DURATION as f64 / SECOND as f64) / 1e6,
        wire_ratio: wire as f64 / read,
        in_flight,
    };
    println!(
        "{name}, automatic windows {auto}: {:.1} Mbit/s at {:.2} bytes on the wire per byte, {} in \
         flight, window {}",
        outcome.goodput, outcome.wire_ratio, outcome.in_flight, stats.path.cwnd_segments,
    );
    outcome
}

fn bottleneck(queue: u64) -> LinkConfig {
    LinkConfig { delay: RTT / 2, rate: Some(RATE), queue: queue * PACKET, ..LinkConfig::default() }
}

#[test]
fn bulk_through_a_bottleneck_delivers_most_of_its_traffic() {
    for queue in [50, 89, 300] {
        for auto in [false, true] {
            let outcome = bulk(&format!("queue of {queue}"), &bottleneck(queue), auto);
            let (goodput, wire_ratio) = if auto { (18.0, 1.15) } else { (17.0, 2.1) };
            assert!(outcome.goodput >= goodput, "{}", outcome.goodput);
            assert!(outcome.wire_ratio <= wire_ratio, "{}", outcome.wire_ratio);
            assert!(!auto || outcome.in_flight <= 2 * (BDP + queue), "{}", outcome.in_flight);
        }
    }
}

/// The budget does not limit a path that loses packets without a bottleneck: without it the rates are 93.0
/// and 56.4 Mbit/s, and at most 5 % may be missing.
#[test]
fn bulk_with_random_loss_is_as_fast_as_without_a_budget() {
    for (loss, least) in [(50_000, 88.4), (200_000, 53.6)] {
        let link = LinkConfig { loss, ..LinkConfig::delay(RTT / 2) };
        let outcome = bulk(&format!("loss of {loss} ppm"), &link, false);
        assert!(outcome.goodput >= least, "{}", outcome.goodput);
    }
}
