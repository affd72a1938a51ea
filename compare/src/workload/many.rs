//! Many: all connections start at once, each sends 1 KiB and reads it back. They stay open, so that
//! it can be seen what they cost while they do nothing.

use std::sync::Arc;

use anyhow::ensure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Meter, Seen};
use crate::args::{Load, TIMEOUT};
use crate::peers::{Connect, Duplex};
use crate::protocol::Outcome;

const MESSAGE: usize = 1024;

/// Echoes one message and then waits for more. A connection that waits holds no buffer, as a
/// server would have it that counts on many of them.
pub(crate) async fn serve(stream: &mut impl Duplex, seen: &Seen) -> anyhow::Result<()> {
    let mut message = vec![0; MESSAGE];
    stream.read_exact(&mut message).await?;
    seen.add(MESSAGE);
    stream.write_all(&message).await?;
    stream.flush().await?;
    drop(message);
    stream.read_u8().await?;
    Ok(())
}

/// Returns the connections too, which would end if they were dropped.
pub(crate) async fn run<C: Connect>(
    client: C,
    load: Load,
) -> anyhow::Result<(Outcome, Vec<C::Stream>)> {
    let client = Arc::new(client);
    let meter = Meter::start()?;
    let mut tasks = JoinSet::new();
    for number in 0..load.connections {
        tasks.spawn(one(client.clone(), number));
    }
    let (mut streams, mut failures) = (Vec::with_capacity(load.connections), Vec::new());
    let all = async {
        while let Some(task) = tasks.join_next().await {
            match task? {
                Ok(stream) => streams.push(stream),
                Err(error) => failures.push(error),
            }
        }
        anyhow::Ok(())
    };
    if let Ok(ended) = timeout(TIMEOUT, all).await {
        ended?;
    }
    let (wall_s, cpu_s) = (meter.wall().as_secs_f64(), meter.cpu_s()?);
    if let Some(error) = failures.first() {
        eprintln!("{} connections failed, the first one: {error:#}", failures.len());
    }
    let outcome = Outcome {
        bytes: (streams.len() * MESSAGE) as u64,
        wall_s,
        cpu_s,
        finished: Some(streams.len() as u64),
        stuck: Some(tasks.len() as u64),
        failed: Some(failures.len() as u64),
        ..Outcome::default()
    };
    Ok((outcome, streams))
}

async fn one<C: Connect>(client: Arc<C>, number: usize) -> anyhow::Result<C::Stream> {
    let mut stream = client.connect().await?;
    let mut message = vec![0x5a; MESSAGE];
    message[..8].copy_from_slice(&(number as u64).to_le_bytes());
    stream.write_all(&message).await?;
    stream.flush().await?;
    let mut answer = vec![0; MESSAGE];
    stream.read_exact(&mut answer).await?;
    ensure!(answer == message, "connection {number} got something else");
    Ok(stream)
}
