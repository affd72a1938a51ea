//! Workloads of many connections.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kcpx::KcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};

use super::client::Session;
use super::hash::pseudo_random;
use super::latency::round_trip;
use super::wire::{HEADER, Role};

/// Connections of `idle` that are being opened at the same time.
const AT_ONCE: usize = 256;
/// How long the last acknowledgements of `idle`, and timers after them, may take.
const DRAIN: Duration = Duration::from_secs(1);

pub(crate) async fn many(session: &Session) -> Result<()> {
    let (plan, meter) = (&session.plan, &session.meter);
    session.begin().await?;
    let begin = Instant::now();
    let mut connecting = JoinSet::new();
    for number in 0..plan.connections {
        let session = session.clone();
        connecting.spawn(async move {
            let stream = exchange(&session, number).await?;
            let latency = begin.elapsed();
            anyhow::Ok((stream, latency))
        });
    }
    let end = begin + plan.time.unwrap_or_default();
    let (mut streams, mut error) = (Vec::new(), None);
    while let Ok(Some(opened)) = timeout_at(end.into(), connecting.join_next()).await {
        match opened? {
            Ok((stream, latency)) => {
                meter.count(plan.size);
                meter.latency(latency);
                streams.push(stream);
            }
            Err(failure) => error = Some(failure),
        }
    }
    session.end().await?;
    connecting.shutdown().await;
    let failed = plan.connections - u32::try_from(streams.len())?;
    session.failed(failed).await;
    if let Some(error) = error {
        eprintln!("{failed} connections failed, the last of them: {error:#}");
    }
    close(session, streams)
}

/// One connection of `many`: everything in one write, as a request is.
async fn exchange(session: &Session, number: u32) -> Result<KcpStream> {
    let mut request = session.header(Role::Echo).to_vec();
    request.extend(pseudo_random(number.into(), session.plan.size));
    let mut stream = session.connect().await?;
    stream.write_all(&request).await?;
    let mut back = vec![0; session.plan.size];
    stream.read_exact(&mut back).await?;
    ensure!(back == request[HEADER..], "connection {number}: something else came back");
    Ok(stream)
}

pub(crate) async fn idle(session: &Session) -> Result<()> {
    let plan = &session.plan;
    let (mut connecting, mut streams) = (JoinSet::new(), Vec::new());
    for number in 0..plan.connections {
        let session = session.clone();
        connecting.spawn(async move { exchange(&session, number).await });
        if connecting.len() >= AT_ONCE
            && let Some(opened) = connecting.join_next().await
        {
            streams.push(opened??);
        }
    }
    while let Some(opened) = connecting.join_next().await {
        streams.push(opened??);
    }
    sleep(DRAIN).await;
    session.begin().await?;
    sleep(plan.time.unwrap_or_default()).await;
    session.end().await?;
    // They are all still there.
    let (message, mut back) = (pseudo_random(3, plan.size), vec![0; plan.size]);
    for stream in &mut streams {
        if let Err(error) = round_trip(stream, &message, &mut back).await {
            bail!("a connection did not survive the rest: {error}");
        }
    }
    close(session, streams)
}

/// Drops the streams, which sends their FINs.
fn close(session: &Session, streams: Vec<KcpStream>) -> Result<()> {
    for stream in streams {
        session.meter.add(&stream.stats());
    }
    Ok(())
}
