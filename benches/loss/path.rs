//! The path of a cell: both directions, and losses that change over time.

use kcpx::testkit::link::{BurstDurations, CERTAIN, GilbertElliott, LinkConfig};
use kcpx::testkit::trace::{DelayTrace, Trace};

use crate::FIRST_SEED;

pub(crate) const MILLIS: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000_000;
/// One-way delay, us: the round trip is 50 ms.
const DELAY: u64 = 25 * MILLIS;
const PERCENT: u32 = CERTAIN / 100;
/// Bytes of IPv4 and UDP headers.
pub(crate) const IP_OVERHEAD: usize = 28;
/// Bytes of a full IP packet.
pub(crate) const FULL_PACKET: u64 = 1_400 + IP_OVERHEAD as u64;

/// A path between client and server.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) name: String,
    /// Client to server, server to client.
    pub(crate) links: [LinkConfig; 2],
    /// Uniform loss of both links in ppm, with the start of each rate in ppm of the run's time.
    pub(crate) loss_steps: Vec<(u64, u32)>,
}

impl Path {
    fn symmetric(name: String, link: LinkConfig) -> Self {
        Self { name, links: [link.clone(), link], loss_steps: Vec::new() }
    }

    /// Independent losses in both directions.
    pub(crate) fn loss(percent: u32) -> Self {
        let link = LinkConfig { loss: percent * PERCENT, ..LinkConfig::delay(DELAY) };
        Self::symmetric(format!("loss {percent} %"), link)
    }

    /// Independent losses of 0.1 %.
    pub(crate) fn rare_loss() -> Self {
        let link = LinkConfig { loss: PERCENT / 10, ..LinkConfig::delay(DELAY) };
        Self::symmetric("loss 0.1 %".to_owned(), link)
    }

    /// Gilbert-Elliott bursts with a mean of 3 packets.
    pub(crate) fn bursts_of_packets(percent: u32) -> Self {
        let (loss, to_good) = (percent * PERCENT, CERTAIN / 3);
        let to_bad = u64::from(loss) * u64::from(to_good) / u64::from(CERTAIN - loss);
        let burst = Some(GilbertElliott { to_bad: to_bad as u32, to_good });
        let link = LinkConfig { burst, ..LinkConfig::delay(DELAY) };
        Self::symmetric(format!("bursts of 3 packets, {percent} %"), link)
    }

    /// Bursts with a mean of 25 ms, independent of the traffic.
    pub(crate) fn bursts_by_time(percent: u32) -> Self {
        let (loss, bad) = (u64::from(percent * PERCENT), 25 * MILLIS);
        let good = bad * (u64::from(CERTAIN) - loss) / loss;
        let burst_by_time = Some(BurstDurations { good, bad });
        let link = LinkConfig { burst_by_time, ..LinkConfig::delay(DELAY) };
        Self::symmetric(format!("bursts of 25 ms, {percent} %"), link)
    }

    /// Sets the round trip, milliseconds.
    pub(crate) fn with_round_trip(mut self, millis: u64) -> Self {
        self.links.iter_mut().for_each(|link| link.delay = millis * MILLIS / 2);
        self.name += &format!(", RTT {millis} ms");
        self
    }

    /// Uniform jitter without loss.
    pub(crate) fn jitter(millis: u64, keep_order: bool) -> Self {
        let link = LinkConfig { jitter: millis * MILLIS, keep_order, ..LinkConfig::delay(DELAY) };
        let order = if keep_order { ", order kept" } else { "" };
        Self::symmetric(format!("jitter {millis} ms{order}"), link)
    }

    /// Holds back 5 % of the packets for up to 20 ms, two messages.
    pub(crate) fn held_back() -> Self {
        let (reorder, reorder_by) = (5 * PERCENT, 20 * MILLIS);
        let link = LinkConfig { reorder, reorder_by, ..LinkConfig::delay(DELAY) };
        Self::symmetric("5 % held back up to 20 ms".to_owned(), link)
    }

    /// 20 Mbit/s from client to server, with a drop-tail queue of this many full packets.
    pub(crate) fn bottleneck(queue: u64) -> Self {
        let mut path = Self::symmetric(
            format!("{BOTTLENECK_MBIT} Mbit/s, queue {queue}"),
            LinkConfig::delay(DELAY),
        );
        path.links[0].rate = Some(BOTTLENECK_MBIT * 1_000_000 / 8);
        // A packet is dropped that finds more than this.
        path.links[0].queue = (queue - 1) * FULL_PACKET;
        // Without jitter, packets arrive in step with the queue, and all seeds give the same run.
        (path.links[1].jitter, path.links[1].keep_order) = (200, true);
        path
    }

    /// A rate from client to server, with a drop-tail queue of one bandwidth-delay product, and a round trip in
    /// milliseconds.
    pub(crate) fn rate(mbit: u64, millis: u64) -> Self {
        let mut path = Self::bottleneck(1).with_round_trip(millis);
        path.name = format!("{mbit} Mbit/s, RTT {millis} ms");
        let rate = mbit * 1_000_000 / 8;
        path.links[0].rate = Some(rate);
        path.links[0].queue = (rate * millis / 1_000).max(20 * FULL_PACKET);
        path
    }

    /// 20 Mbit/s from client to server by a token bucket of this many full packets, without a queue.
    pub(crate) fn policer(burst: u64) -> Self {
        let mut path = Self::bottleneck(burst);
        path.name = format!("{BOTTLENECK_MBIT} Mbit/s, policer, bucket {burst}");
        path.links[0].policer = true;
        path
    }

    /// As [`Self::bottleneck`], with independent losses in both directions.
    pub(crate) fn lossy_bottleneck(queue: u64, percent: u32) -> Self {
        let mut path = Self::bottleneck(queue);
        path.name += &format!(", loss {percent} %");
        path.links.iter_mut().for_each(|link| link.loss = percent * PERCENT);
        path
    }

    /// No loss; 10 % from second 20 of 120; none again from second 60.
    pub(crate) fn loss_steps() -> Self {
        let mut path = Self::symmetric("loss 0, 10, 0 %".to_owned(), LinkConfig::delay(DELAY));
        path.loss_steps = vec![(part_of_120(20), 10 * PERCENT), (part_of_120(60), 0)];
        path
    }

    /// A path with the bottlenecks and delays of traces. Each queue holds 300 packets, as in a radio link.
    /// [`Self::at_seed`] chooses the start of the traces.
    pub(crate) fn traced(name: String, traces: [Trace; 2], delay: Option<&DelayTrace>) -> Self {
        let links = traces.map(|trace| LinkConfig {
            trace: Some(trace),
            queue_packets: 300,
            delay_trace: delay.cloned(),
            ..LinkConfig::delay(20 * MILLIS)
        });
        Self { name, links, loss_steps: Vec::new() }
    }

    /// The path of the run with this seed: each seed starts the traces 7 s later.
    pub(crate) fn at_seed(&self, seed: u64) -> Self {
        let later = (seed - FIRST_SEED) * 7_000;
        let mut path = self.clone();
        for link in &mut path.links {
            link.trace = link.trace.take().map(|trace| trace.with_offset(later));
            link.delay_trace = link.delay_trace.take().map(|delay| delay.with_offset(later));
        }
        path
    }

    /// Longest one-way delay from client to server, ms.
    pub(crate) fn longest_delay_ms(&self) -> f64 {
        self.links[0].longest_delay() as f64 / 1e3
    }
}

/// Rate of the bottleneck, in Mbit/s.
pub(crate) const BOTTLENECK_MBIT: u64 = 20;

/// Second `second` of 120, in ppm of the run.
pub(crate) const fn part_of_120(second: u64) -> u64 {
    second * 1_000_000 / 120
}
