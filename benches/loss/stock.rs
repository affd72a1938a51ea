//! The decoder of a stock receiver, kcp-go without FEC of its own. It recovers nothing until it has learned
//! the layout, for which the oldest packets that it remembers must form a whole period without a gap.

use std::collections::VecDeque;
use std::time::Instant;

use kcpx::FecConfig;
use kcpx::fec::{FecDecoder, FecFlag, fec_flag};

/// Packets remembered (kcp-go `maxAutoTuneSamples`).
const SAMPLES: usize = 258;

#[derive(Default)]
pub(crate) struct StockDecoder {
    /// Seqid, and whether it is parity.
    samples: VecDeque<(u32, bool)>,
    decoder: Option<FecDecoder>,
}

impl StockDecoder {
    /// A shard arrives.
    pub(crate) fn input(
        &mut self,
        now: Instant,
        shard: &[u8],
        recovered: impl FnMut(&[u8]) -> bool,
    ) {
        if let Some(decoder) = &mut self.decoder {
            return decoder.input(now, shard, recovered);
        }
        let seqid = shard.first_chunk().map_or(0, |seqid| u32::from_le_bytes(*seqid));
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((seqid, fec_flag(shard) == FecFlag::Parity));
        self.decoder = self.layout().map(|layout| FecDecoder::new(Some(layout)));
    }

    /// Layout from the first two runs that begin and end among the oldest packets without a gap.
    fn layout(&self) -> Option<FecConfig> {
        let mut sorted: Vec<_> = self.samples.iter().copied().collect();
        sorted.sort_unstable();
        let pairs = sorted.windows(2).take_while(|pair| pair[0].0 + 1 == pair[1].0);
        let mut edges = pairs.filter(|pair| pair[0].1 != pair[1].1).map(|pair| pair[1]);
        let [(first, is_parity), (second, _), (third, _)] =
            [edges.next()?, edges.next()?, edges.next()?];
        let (one, other) = ((second - first) as usize, (third - second) as usize);
        let (data, parity) = if is_parity { (other, one) } else { (one, other) };
        FecConfig::new(data, parity).ok()
    }
}
