//! Echo: the client writes until its time is over and reads beside that; the clock stops when the
//! last block is back.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{BLOCK, Blocks, Meter, Seen, check};
use crate::args::{Load, Workload};
use crate::peers::Duplex;
use crate::protocol::Outcome;

/// Echoes whatever arrives, until the other side ends. `flush` is for transports that hold back
/// what is written; a bulk transfer does not need it.
pub(crate) async fn serve(
    stream: &mut impl Duplex,
    seen: &Seen,
    flush: bool,
) -> anyhow::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        let length = stream.read(&mut block).await?;
        if length == 0 {
            return Ok(());
        }
        seen.add(length);
        stream.write_all(&block[..length]).await?;
        if flush {
            stream.flush().await?;
        }
    }
}

pub(crate) async fn run(stream: &mut impl Duplex, load: Load) -> anyhow::Result<Outcome> {
    let meter = Meter::start()?;
    let (mut reader, mut writer) = tokio::io::split(&mut *stream);
    let writing = async {
        let mut blocks = Blocks::new(load.time(Workload::Echo), load.bytes());
        anyhow::Ok(blocks.write_to(&mut writer, &meter).await?)
    };
    let reading = async {
        let mut block = vec![0; BLOCK];
        for number in 0_u64.. {
            reader.read_exact(&mut block).await?;
            if check(&block, number)? {
                break;
            }
        }
        Ok(meter.wall().as_secs_f64())
    };
    let (bytes, wall_s) = tokio::try_join!(writing, reading)?;
    let retransmit_pct = stream.retransmit_pct();
    Ok(Outcome { bytes, wall_s, cpu_s: meter.cpu_s()?, retransmit_pct, ..Outcome::default() })
}
