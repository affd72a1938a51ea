//! Workloads that move bulk data over one stream.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::client::Session;
use super::hash::pseudo_random;
use super::wire::Role;

/// Period in bytes of what is sent: a prime, so that no piece that is misplaced by
/// whole writes or whole segments compares equal.
const PERIOD: usize = 65_521;

/// The rest to send: a number of bytes, or until a time.
struct Limit {
    end: Option<Instant>,
    left: u64,
}

impl Limit {
    fn new(bytes: Option<u64>, time: Option<Duration>) -> Self {
        let end = time.map(|time| Instant::now() + time);
        Self { end, left: bytes.unwrap_or(u64::MAX) }
    }

    /// Bytes of the next write; `None` when it is over.
    fn next(&mut self, size: usize) -> Option<usize> {
        if self.left == 0 || self.end.is_some_and(|end| Instant::now() >= end) {
            return None;
        }
        let len = usize::try_from(self.left).unwrap_or(size).min(size);
        self.left -= len as u64;
        Some(len)
    }
}

pub(crate) async fn sink(session: &Session) -> Result<()> {
    let (plan, meter) = (&session.plan, &session.meter);
    let mut stream = session.open_as(Role::Sink).await?;
    let block = pseudo_random(1, plan.size);
    session.begin().await?;
    let (mut limit, mut sent) = (Limit::new(plan.bytes, plan.time), 0);
    while let Some(len) = limit.next(block.len()) {
        stream.write_all(&block[..len]).await?;
        sent += len as u64;
        meter.count(len);
        meter.sample(|| stream.stats());
    }
    stream.shutdown().await?;
    let arrived = stream.read_u64().await?;
    session.end().await?;
    meter.set_final(stream.stats());
    ensure!(arrived == sent, "sent {sent} bytes, the server has counted {arrived}");
    Ok(())
}

pub(crate) async fn source(session: &Session) -> Result<()> {
    let meter = &session.meter;
    session.begin().await?;
    let mut stream = session.open_as(Role::Source).await?;
    loop {
        let chunk = stream.read_chunk().await?;
        if chunk.is_empty() {
            break;
        }
        meter.count(chunk.len());
        meter.sample(|| stream.stats());
    }
    session.end().await?;
    meter.set_final(stream.stats());
    // The report compares it with the bytes that the server sent.
    stream.shutdown().await?;
    Ok(())
}

pub(crate) async fn echo(session: &Session) -> Result<()> {
    let (plan, meter) = (&session.plan, &session.meter);
    let (mut reader, mut writer) = session.open_as(Role::Echo).await?.into_split();
    let pattern = pattern(plan.size);
    session.begin().await?;
    let (mut limit, size, data) = (Limit::new(plan.bytes, plan.time), plan.size, pattern.clone());
    let mut writing = JoinSet::new();
    writing.spawn(async move {
        let mut sent = 0_u64;
        while let Some(len) = limit.next(size) {
            let from = (sent % PERIOD as u64) as usize;
            writer.write_all(&data[from..from + len]).await?;
            sent += len as u64;
        }
        writer.shutdown().await?;
        anyhow::Ok(sent)
    });
    let mut arrived = 0_u64;
    loop {
        let chunk = reader.read_chunk().await?;
        if chunk.is_empty() {
            break;
        }
        for piece in chunk.chunks(size) {
            let from = (arrived % PERIOD as u64) as usize;
            let same = *piece == pattern[from..from + piece.len()];
            ensure!(same, "what came back differs beyond byte {arrived}");
            arrived += piece.len() as u64;
        }
        meter.count(chunk.len());
        meter.sample(|| reader.stats());
    }
    session.end().await?;
    meter.set_final(reader.stats());
    while let Some(sent) = writing.join_next().await {
        let sent = sent??;
        ensure!(arrived == sent, "sent {sent} bytes, {arrived} came back");
    }
    Ok(())
}

/// One period, and the part of the next that a write begun in it reaches into.
fn pattern(size: usize) -> Vec<u8> {
    let period = pseudo_random(1, PERIOD);
    period.iter().copied().cycle().take(PERIOD + size).collect()
}
