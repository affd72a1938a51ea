//! Messages on a schedule: the client stamps each with the time at which it was due, the server
//! with the same clock reads them in order and records how long each took.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::schedule::Schedule;
use super::{LAST, Meter, Seen, locked};
use crate::args::{Load, TIMEOUT, Workload};
use crate::clock::{self, Alarm};
use crate::peers::Duplex;
use crate::protocol::{Latency, Messages, Outcome};

/// Number and timestamp; what comes behind them is free.
pub(crate) const HEADER: usize = 16;
/// Messages that are due this early are counted apart: an adaptive sender learns the path by them.
pub(crate) const LEARNING: Duration = Duration::from_secs(5);

pub(crate) async fn serve(
    stream: &mut impl Duplex,
    seen: &Seen,
    size: usize,
) -> anyhow::Result<()> {
    *locked(&seen.latencies) = Some(Latencies::new()?);
    let mut message = vec![0; size];
    let mut bytes = 0_u64;
    loop {
        stream.read_exact(&mut message).await?;
        let now = clock::now()?;
        seen.add(size);
        bytes += size as u64;
        let last = match &mut *locked(&seen.latencies) {
            Some(latencies) => latencies.record(&message, now)?,
            None => true,
        };
        if last {
            stream.write_all(&bytes.to_le_bytes()).await?;
            stream.flush().await?;
            return Ok(());
        }
    }
}

pub(crate) async fn run(stream: &mut impl Duplex, load: Load) -> anyhow::Result<Outcome> {
    let (meter, alarm) = (Meter::start()?, Alarm::new()?);
    let time = load.time(Workload::Msg);
    let mut bytes = 0;
    let exchange = async {
        let mut message = vec![0x5a; load.size];
        for due in Schedule::new(clock::now()?, load.every, time) {
            if clock::now()? < due.at {
                alarm.until(due.at).await?;
            }
            let number = if due.last { due.number | LAST } else { due.number };
            message[..8].copy_from_slice(&number.to_le_bytes());
            let stamp = u64::try_from(due.at.as_nanos())?;
            message[8..HEADER].copy_from_slice(&stamp.to_le_bytes());
            stream.write_all(&message).await?;
            stream.flush().await?;
            bytes += load.size as u64;
        }
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).await?;
        anyhow::Ok(u64::from_le_bytes(answer))
    };
    let arrived = timeout(time + TIMEOUT, exchange).await.ok().transpose()?;
    if let Some(arrived) = arrived {
        ensure!(arrived == bytes, "{arrived} bytes arrived of {bytes}");
    }
    Ok(Outcome {
        bytes,
        wall_s: meter.wall().as_secs_f64(),
        cpu_s: meter.cpu_s()?,
        retransmit_pct: stream.retransmit_pct(),
        complete: Some(arrived.is_some()),
        ..Outcome::default()
    })
}

/// The latencies that the server records, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Latencies {
    received: u64,
    /// The timestamp of message 0.
    start: Duration,
    first: Histogram<u64>,
    rest: Histogram<u64>,
}

impl Latencies {
    fn new() -> anyhow::Result<Self> {
        // Up to ten minutes, to three digits; it allocates before the measurement alone.
        let empty = Histogram::new_with_bounds(1, 600_000_000_000, 3)?;
        Ok(Self { received: 0, start: Duration::ZERO, first: empty.clone(), rest: empty })
    }

    /// Records a message that was read at `now`, and returns whether it is the last one.
    fn record(&mut self, message: &[u8], now: Duration) -> anyhow::Result<bool> {
        let word = |at: usize| {
            let bytes = message.get(at..at + 8).context("a message without a header")?;
            anyhow::Ok(u64::from_le_bytes(bytes.try_into()?))
        };
        let (number, stamp) = (word(0)?, Duration::from_nanos(word(8)?));
        let expected = self.received;
        ensure!(number & !LAST == expected, "message {expected} has the number {number:#x}");
        let latency = now.checked_sub(stamp).with_context(|| {
            format!("message {expected} is from the future: do both sides have the same clock?")
        })?;
        if expected == 0 {
            self.start = stamp;
        }
        let since = stamp.checked_sub(self.start).context("a timestamp earlier than message 0")?;
        let part = if since < LEARNING { &mut self.first } else { &mut self.rest };
        part.saturating_record(u64::try_from(latency.as_nanos())?);
        self.received += 1;
        Ok(number & LAST != 0)
    }

    pub(crate) fn report(&self) -> Messages {
        let latency = |part: &Histogram<u64>| {
            let micros = |quantile| part.value_at_quantile(quantile) as f64 / 1e3;
            (!part.is_empty()).then(|| Latency {
                count: part.len(),
                min_us: part.min() as f64 / 1e3,
                p50_us: micros(0.5),
                p95_us: micros(0.95),
                p99_us: micros(0.99),
                p999_us: micros(0.999),
                max_us: part.max() as f64 / 1e3,
            })
        };
        Messages {
            received: self.received,
            first_5s: latency(&self.first),
            rest: latency(&self.rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn message(number: u64, stamp: Duration) -> Vec<u8> {
        let stamp = u64::try_from(stamp.as_nanos()).unwrap();
        [number.to_le_bytes(), stamp.to_le_bytes(), [0x5a; 8]].concat()
    }

    #[test]
    fn latencies_of_the_first_five_seconds_are_apart() {
        let mut latencies = Latencies::new().unwrap();
        let start = 7_000 * MILLI;
        for number in 0..10_u32 {
            let (stamp, last) = (start + number * 1_000 * MILLI, number == 9);
            let wire = u64::from(number) | if last { LAST } else { 0 };
            let taken = if number < 5 { 80 * MILLI } else { 30 * MILLI };
            assert_eq!(latencies.record(&message(wire, stamp), stamp + taken).unwrap(), last);
        }
        let report = latencies.report();
        let (first, rest) = (report.first_5s.unwrap(), report.rest.unwrap());
        assert_eq!((report.received, first.count, rest.count), (10, 5, 5));
        for (latency, millis) in [(first, 80.0), (rest, 30.0)] {
            for micros in [latency.min_us, latency.p50_us, latency.p999_us, latency.max_us] {
                assert!((micros / 1e3 - millis).abs() < 0.1, "{micros} us, {millis} ms");
            }
        }
    }

    #[test]
    fn duplicate_missing_and_future_messages_are_errors() {
        let mut latencies = Latencies::new().unwrap();
        assert!(latencies.report().first_5s.is_none());
        latencies.record(&message(0, MILLI), MILLI).unwrap();
        for (number, stamp) in [(0, MILLI), (2, MILLI), (1, 3 * MILLI), (1, Duration::ZERO)] {
            let error = latencies.record(&message(number, stamp), 2 * MILLI);
            assert!(error.is_err(), "number {number} at {stamp:?}");
        }
        assert!(latencies.record(&[0; 15], 2 * MILLI).is_err());
        latencies.record(&message(1, 2 * MILLI), 2 * MILLI).unwrap();
        assert_eq!(latencies.report().received, 2);
    }
}
