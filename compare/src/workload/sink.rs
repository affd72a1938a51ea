//! Sink: the client writes until its time is over, the server reads, checks and answers how much
//! arrived. The clock stops when that answer is there.

use anyhow::ensure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{BLOCK, Blocks, Meter, Seen, check};
use crate::args::{Load, Workload};
use crate::peers::Duplex;
use crate::protocol::Outcome;

pub(crate) async fn serve(stream: &mut impl Duplex, seen: &Seen) -> anyhow::Result<()> {
    let mut block = vec![0; BLOCK];
    for number in 0_u64.. {
        stream.read_exact(&mut block).await?;
        seen.add(BLOCK);
        if check(&block, number)? {
            stream.write_all(&((number + 1) * BLOCK as u64).to_le_bytes()).await?;
            stream.flush().await?;
            break;
        }
    }
    Ok(())
}

pub(crate) async fn run(stream: &mut impl Duplex, load: Load) -> anyhow::Result<Outcome> {
    let mut blocks = Blocks::new(load.time(Workload::Sink), load.bytes());
    let meter = Meter::start()?;
    let bytes = blocks.write_to(stream, &meter).await?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await?;
    let wall_s = meter.wall().as_secs_f64();

    let arrived = u64::from_le_bytes(answer);
    ensure!(arrived == bytes, "{arrived} bytes arrived of {bytes}");
    let retransmit_pct = stream.retransmit_pct();
    Ok(Outcome { bytes, wall_s, cpu_s: meter.cpu_s()?, retransmit_pct, ..Outcome::default() })
}
