//! Workloads that measure how long small messages take over one stream.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kcpx::KcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::client::Session;
use super::hash::pseudo_random;
use super::wire::Role;

/// Round trips before those that are measured.
const WARM_UP: u64 = 100;
/// A write that takes so long waited for capacity in the send buffer.
const BLOCKED: Duration = Duration::from_millis(1);

/// A message that begins with its number, so that no two are alike.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(size: usize) -> Self {
        Self { bytes: pseudo_random(2, size) }
    }

    fn numbered(&mut self, number: u64) -> &[u8] {
        self.bytes[..8].copy_from_slice(&number.to_be_bytes());
        &self.bytes
    }
}

pub(crate) async fn pingpong(session: &Session) -> Result<()> {
    let (plan, meter) = (&session.plan, &session.meter);
    let mut stream = session.open_as(Role::Echo).await?;
    let (mut message, mut back) = (Message::new(plan.size), vec![0; plan.size]);
    for number in 0..WARM_UP {
        round_trip(&mut stream, message.numbered(number), &mut back).await?;
    }
    session.begin().await?;
    let begin = Instant::now();
    for number in WARM_UP..WARM_UP + plan.count {
        let sent = Instant::now();
        if plan.time.is_some_and(|time| sent - begin >= time) {
            break;
        }
        round_trip(&mut stream, message.numbered(number), &mut back).await?;
        meter.count(plan.size);
        meter.latency(sent.elapsed());
        meter.sample(|| stream.stats());
    }
    session.end().await?;
    meter.set_final(stream.stats());
    stream.shutdown().await?;
    Ok(())
}

pub(crate) async fn round_trip(
    stream: &mut KcpStream,
    message: &[u8],
    back: &mut [u8],
) -> Result<()> {
    stream.write_all(message).await?;
    stream.read_exact(back).await?;
    ensure!(message == back, "another message came back");
    Ok(())
}

pub(crate) async fn messages(session: &Session) -> Result<()> {
    let (plan, meter) = (&session.plan, &session.meter);
    let mut stream = session.open_as(Role::Echo).await?;
    let (mut message, mut back) = (Message::new(plan.size), vec![0; plan.size]);
    for number in 0..WARM_UP {
        round_trip(&mut stream, message.numbered(number), &mut back).await?;
    }
    let (mut reader, mut writer) = stream.into_split();
    session.begin().await?;
    let begin = Instant::now();
    let fitting = plan.time.map(|time| time.as_nanos().div_ceil(plan.every.as_nanos()));
    let fitting = fitting.and_then(|count| u64::try_from(count).ok());
    let count = plan.count.min(fitting.unwrap_or(u64::MAX));
    let every = plan.every;

    let (sent, mut since) = mpsc::unbounded_channel();
    let mut writing = JoinSet::new();
    writing.spawn(async move {
        let mut blocked = None;
        for number in 0..count {
            let due = begin + nanos(every, number);
            sleep_until(due.into()).await;
            let from = origin(due, Instant::now(), blocked);
            // It fails when the reader has given up, which ends this as well.
            sent.send(from)?;
            let writes = Instant::now();
            writer.write_all(message.numbered(number)).await?;
            blocked = (writes.elapsed() >= BLOCKED).then(Instant::now);
        }
        Ok(writer.shutdown().await?)
    });
    let mut expected = Message::new(plan.size);
    for number in 0..count {
        reader.read_exact(&mut back).await?;
        let from = since.recv().await.context("a message that was not sent")?;
        let latency = from.elapsed();
        ensure!(back == expected.numbered(number), "another message than number {number} came");
        meter.count(plan.size);
        meter.latency(latency);
        meter.sample(|| reader.stats());
    }
    session.end().await?;
    meter.set_final(reader.stats());
    while let Some(written) = writing.join_next().await {
        let written: Result<()> = written?;
        written?;
    }
    Ok(())
}

/// The beginning of a message's latency: the moment when its sender woke up, since late timers are not
/// the link's doing. If the message was due while its sender waited for capacity, until `blocked`, then
/// the moment when it was due.
fn origin(due: Instant, awake: Instant, blocked: Option<Instant>) -> Instant {
    if blocked.is_some_and(|until| due < until) { due } else { awake }
}

fn nanos(every: Duration, number: u64) -> Duration {
    Duration::from_nanos((every.as_nanos() as u64).saturating_mul(number))
}
