//! The conditions of one direction.

use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;

use super::as_millis;

/// The longest delay; times stay far from overflow.
const LONGEST: Duration = Duration::from_secs(10);
/// Mean length of a burst in packets.
const BURST_PACKETS: std::ops::RangeInclusive<f64> = 1.0..=1e6;
/// Mean length of a bad period. It has a lower bound since each period costs a draw, even without
/// packets.
const BURST_TIME: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=LONGEST;

/// The conditions of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Conditions {
    /// The least delay of a packet. At most 10 s together with the jitter. Default 25 ms.
    #[serde(rename = "delay_ms", serialize_with = "as_millis")]
    pub delay: Duration,
    /// The largest extra delay. Each packet draws its own, so packets overtake each other unless `ordered`
    /// is set. Default 0.
    #[serde(rename = "jitter_ms", serialize_with = "as_millis")]
    pub jitter: Duration,
    /// Whether a packet is due no earlier than the packet sent before it. If packets are close together, the
    /// mean delay then nears delay and jitter together. Those that `reorder`
    /// holds back are overtaken all the same. Default false.
    pub ordered: bool,
    /// Percent of the packets that never arrive. Default 0.
    #[serde(rename = "loss_percent")]
    pub loss: f64,
    /// How losses come together. Needs a loss above 0. Default `None`: each packet is lost or not
    /// whatever happened to the others.
    pub burst: Option<Burst>,
    /// Percent of the packets that are held back by a further quarter of the delay, and at least
    /// 1 ms, so that later ones overtake them. Default 0.
    #[serde(rename = "reorder_percent")]
    pub reorder: f64,
    /// Percent of the packets that arrive twice, unless lost. Default 0.
    #[serde(rename = "duplicate_percent")]
    pub duplicate: f64,
    /// A slow link at the beginning. Default `None`: packets take no time to send.
    pub bottleneck: Option<Bottleneck>,
}

/// Losses in bursts: a Gilbert-Elliott model whose good state loses nothing and whose bad state
/// loses everything. `loss` is the stationary share of the bad state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Burst {
    /// The state changes from packet to packet; this is the mean number of consecutive packets that
    /// are lost. 1 to 1,000,000, and such that the share of losses is possible: with a mean of N at
    /// most N in N + 1, since at least one packet arrives between two bursts.
    Packets(f64),
    /// The state changes with time, whether or not there are packets; this is the mean length of a
    /// bad period, exponentially distributed. A packet meets the state of the moment when it leaves
    /// the bottleneck. 1 ms to 10 s, with a loss below 100 %.
    #[serde(rename = "ms", serialize_with = "as_millis")]
    Time(Duration),
}

/// A link of a fixed rate with a queue that drops at its tail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bottleneck {
    /// 10^6 bits per second, above 0. Whole IP packets count.
    pub rate_mbit: f64,
    /// Packets that it holds at most, with the one being sent; at least 1.
    pub queue: usize,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(25),
            jitter: Duration::ZERO,
            ordered: false,
            loss: 0.0,
            burst: None,
            reorder: 0.0,
            duplicate: 0.0,
            bottleneck: None,
        }
    }
}

impl Conditions {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that is outside its range.
    pub fn validate(&self) -> anyhow::Result<()> {
        ensure!(
            self.delay <= LONGEST && self.jitter <= LONGEST - self.delay,
            "delay and jitter must be at most {LONGEST:?} together, got {:?} and {:?}",
            self.delay,
            self.jitter
        );
        for (field, percent) in
            [("loss", self.loss), ("reorder", self.reorder), ("duplicate", self.duplicate)]
        {
            ensure!(
                (0.0..=100.0).contains(&percent),
                "{field} must be between 0 and 100 %, got {percent}"
            );
        }
        if let Some(burst) = self.burst {
            burst.validate(self.loss)?;
        }
        if let Some(Bottleneck { rate_mbit, queue }) = self.bottleneck {
            ensure!(
                (0.001..=1e6).contains(&rate_mbit),
                "rate must be between 0.001 and 1000000 Mbit/s, got {rate_mbit}"
            );
            ensure!(queue > 0, "queue must be at least 1 packet, got 0");
        }
        Ok(())
    }
}

impl Burst {
    fn validate(self, loss: f64) -> anyhow::Result<()> {
        ensure!(loss > 0.0, "bursts require a loss above 0 %, got {loss}");
        match self {
            Self::Packets(mean) => {
                ensure!(
                    BURST_PACKETS.contains(&mean),
                    "burst must be between {} and {} packets, got {mean}",
                    BURST_PACKETS.start(),
                    BURST_PACKETS.end()
                );
                let most = 100.0 * mean / (mean + 1.0);
                ensure!(
                    loss <= most,
                    "loss in bursts of {mean} packets on average must be at most {most:.2} %, got \
                     {loss}: a packet arrives between two bursts"
                );
            }
            Self::Time(mean) => {
                ensure!(
                    BURST_TIME.contains(&mean),
                    "burst must be between {:?} and {:?}, got {mean:?}",
                    BURST_TIME.start(),
                    BURST_TIME.end()
                );
                ensure!(loss < 100.0, "loss in bursts must be below 100 %, got {loss}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn conditions_outside_their_range_are_rejected() {
        let good = Conditions::default();
        assert!(good.validate().is_ok());
        let bottleneck = |rate_mbit, queue| Some(Bottleneck { rate_mbit, queue });
        let burst = |loss, burst| Conditions { loss, burst: Some(burst), ..good };
        for (bad, expected) in [
            (
                Conditions { delay: Duration::from_secs(11), ..good },
                "must be at most 10s together, got 11s",
            ),
            (
                Conditions { jitter: Duration::from_secs(10), ..good },
                "must be at most 10s together",
            ),
            (Conditions { loss: 100.5, ..good }, "loss must be between 0 and 100 %, got 100.5"),
            (Conditions { loss: f64::NAN, ..good }, "loss must be between 0 and 100 %, got NaN"),
            (
                Conditions { duplicate: -1.0, ..good },
                "duplicate must be between 0 and 100 %, got -1",
            ),
            (
                Conditions { reorder: f64::INFINITY, ..good },
                "reorder must be between 0 and 100 %, got inf",
            ),
            (
                Conditions { bottleneck: bottleneck(0.0, 1), ..good },
                "between 0.001 and 1000000 Mbit/s, got 0",
            ),
            (
                Conditions { bottleneck: bottleneck(1.0, 0), ..good },
                "must be at least 1 packet, got 0",
            ),
            (burst(0.0, Burst::Packets(3.0)), "bursts require a loss above 0 %, got 0"),
            (burst(0.0, Burst::Time(20 * MS)), "bursts require a loss above 0 %, got 0"),
            (
                burst(5.0, Burst::Packets(0.5)),
                "burst must be between 1 and 1000000 packets, got 0.5",
            ),
            (burst(5.0, Burst::Packets(f64::NAN)), "between 1 and 1000000 packets, got NaN"),
            (burst(51.0, Burst::Packets(1.0)), "must be at most 50.00 %, got 51"),
            (burst(5.0, Burst::Time(MS / 2)), "burst must be between 1ms and 10s, got 500µs"),
            (burst(5.0, Burst::Time(10_001 * MS)), "between 1ms and 10s, got 10.001s"),
            (burst(100.0, Burst::Time(20 * MS)), "must be below 100 %, got 100"),
        ] {
            let error = bad.validate().expect_err("outside its range").to_string();
            assert!(error.contains(expected), "{error}, not {expected}");
        }
        for good in [burst(50.0, Burst::Packets(1.0)), burst(99.9, Burst::Time(MS))] {
            good.validate().expect("at the end of its range");
        }
    }
}
