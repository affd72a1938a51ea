//! Bulk: the client writes until its time is over, the server counts what it reads in order within
//! the same time from its first byte on.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{BLOCK, Blocks, Meter, Seen, check, locked};
use crate::args::{Load, TIMEOUT, Workload};
use crate::peers::{Connect, Duplex};
use crate::protocol::{Outcome, Within};

pub(crate) async fn serve(
    stream: &mut impl Duplex,
    seen: &Seen,
    time: Duration,
) -> anyhow::Result<()> {
    let mut block = vec![0; BLOCK];
    for number in 0_u64.. {
        let mut filled = 0;
        while filled < BLOCK {
            let length = stream.read(&mut block[filled..]).await?;
            ensure!(length > 0, "the stream ended in block {number}");
            filled += length;
            seen.add(length);
            let now = Instant::now();
            let mut goodput = locked(&seen.goodput);
            goodput.get_or_insert_with(|| Goodput::new(now, time)).add(now, length);
        }
        if check(&block, number)? {
            if let Some(goodput) = &mut *locked(&seen.goodput) {
                goodput.end(Instant::now());
            }
            stream.write_all(&((number + 1) * BLOCK as u64).to_le_bytes()).await?;
            stream.flush().await?;
            break;
        }
    }
    Ok(())
}

pub(crate) async fn run(stream: &mut impl Duplex, load: Load) -> anyhow::Result<Outcome> {
    let time = load.time(Workload::Bulk);
    let mut blocks = Blocks::new(time, u64::MAX);
    let meter = Meter::start()?;
    let exchange = async {
        blocks.write_to(stream, &meter).await?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).await?;
        anyhow::Ok(u64::from_le_bytes(answer))
    };
    // Bytes that a transport has not delivered by then do not count as goodput: a limit keeps the client
    // from waiting for ever.
    let arrived = timeout(time + TIMEOUT, exchange).await.ok().transpose()?;
    let (wall_s, bytes) = (meter.wall().as_secs_f64(), blocks.number * BLOCK as u64);
    if let Some(arrived) = arrived {
        ensure!(arrived == bytes, "{arrived} bytes arrived of {bytes}");
    }
    Ok(Outcome {
        bytes,
        wall_s,
        cpu_s: meter.cpu_s()?,
        retransmit_pct: stream.retransmit_pct(),
        complete: Some(arrived.is_some()),
        ..Outcome::default()
    })
}

/// Several connections at once; their figures are sums.
pub(crate) async fn run_all<C: Connect>(
    client: C,
    load: Load,
) -> anyhow::Result<(Outcome, Vec<C::Stream>)> {
    let (meter, mut tasks) = (Meter::start()?, JoinSet::new());
    for _ in 0..load.streams {
        let mut stream = client.connect().await?;
        tasks.spawn(async move { anyhow::Ok((run(&mut stream, load).await?, stream)) });
    }
    let (mut sum, mut streams) = (Outcome { complete: Some(true), ..Outcome::default() }, vec![]);
    while let Some(ended) = tasks.join_next().await {
        let (outcome, stream) = ended??;
        sum.bytes += outcome.bytes;
        sum.complete = sum.complete.min(outcome.complete);
        streams.push(stream);
    }
    (sum.wall_s, sum.cpu_s) = (meter.wall().as_secs_f64(), meter.cpu_s()?);
    Ok((sum, streams))
}

/// Bytes that a server has read since the first one.
#[derive(Debug)]
pub(crate) struct Goodput {
    start: Instant,
    time: Duration,
    /// Read within the time.
    bytes: u64,
    /// Set when the last byte was read.
    ended: Option<Duration>,
}

impl Goodput {
    fn new(start: Instant, time: Duration) -> Self {
        Self { start, time, bytes: 0, ended: None }
    }

    fn add(&mut self, now: Instant, length: usize) {
        if now - self.start <= self.time {
            self.bytes += length as u64;
        }
    }

    fn end(&mut self, now: Instant) {
        self.ended = Some(now - self.start);
    }

    /// `None` until the time is over, or everything has arrived before.
    pub(crate) fn report(&self, now: Instant) -> Option<Within> {
        let elapsed = self.ended.unwrap_or_else(|| now - self.start);
        (self.ended.is_some() || elapsed >= self.time)
            .then(|| Within { bytes: self.bytes, seconds: elapsed.min(self.time).as_secs_f64() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_what_was_read_within_the_time() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut goodput = Goodput::new(start, Duration::from_secs(1));
        for (millis, length) in [(0, 100), (400, 200), (1_000, 400), (1_001, 800)] {
            goodput.add(at(millis), length);
        }
        assert!(goodput.report(at(999)).is_none());
        let within = goodput.report(at(1_500)).unwrap();
        assert_eq!((within.bytes, within.seconds), (700, 1.0));
        goodput.end(at(2_000));
        assert_eq!(goodput.report(at(2_000)).unwrap().bytes, 700);

        let mut short = Goodput::new(start, Duration::from_secs(1));
        short.add(at(100), 50);
        short.end(at(500));
        let within = short.report(at(9_000)).unwrap();
        assert_eq!((within.bytes, within.seconds), (50, 0.5));
    }
}
