//! Ping-pong: 64 bytes there and back, one at a time. The server is echo's.

use std::time::Instant;

use anyhow::ensure;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Meter;
use crate::args::{Load, Workload};
use crate::peers::Duplex;
use crate::protocol::Outcome;

const MESSAGE: usize = 64;
const WARM_UP: u64 = 100;

pub(crate) async fn run(stream: &mut impl Duplex, load: Load) -> anyhow::Result<Outcome> {
    for number in 0..WARM_UP {
        round_trip(stream, number).await?;
    }
    // Nanoseconds up to ten minutes, to three digits; it allocates before the measurement alone.
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 600_000_000_000, 3)?;
    let meter = Meter::start()?;
    while latencies.len() < load.round_trips as u64 && meter.wall() < load.time(Workload::Pingpong)
    {
        let start = Instant::now();
        round_trip(stream, latencies.len()).await?;
        latencies.saturating_record(u64::try_from(start.elapsed().as_nanos())?);
    }
    let (wall_s, cpu_s) = (meter.wall().as_secs_f64(), meter.cpu_s()?);

    let micros = |quantile| {
        (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile) as f64 / 1e3)
    };
    Ok(Outcome {
        bytes: latencies.len() * MESSAGE as u64,
        wall_s,
        cpu_s,
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        round_trips: Some(latencies.len()),
        retransmit_pct: stream.retransmit_pct(),
        ..Outcome::default()
    })
}

async fn round_trip(stream: &mut impl Duplex, number: u64) -> anyhow::Result<()> {
    let mut message = [0x5a; MESSAGE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    stream.write_all(&message).await?;
    stream.flush().await?;
    let mut answer = [0; MESSAGE];
    stream.read_exact(&mut answer).await?;
    ensure!(answer == message, "round trip {number} brought something else");
    Ok(())
}
