//! Single steps for benches and tests of the published package. Private.

use super::config::FecConfig;
use super::decoder::FecDecoder;
use super::encoder::FecEncoder;
use super::gf256::{Kernel, coefficients};
use super::shard_buffers::{Rows, Shard};

/// Kernels of this processor, the fastest first.
#[must_use]
pub fn kernels() -> Vec<&'static str> {
    Kernel::all().into_iter().map(Kernel::name).collect()
}

fn kernel(name: &str) -> Kernel {
    let named = Kernel::all().into_iter().find(|kernel| kernel.name() == name);
    named.expect("a kernel that this processor has")
}

/// The parity rows of the coding matrix, one after the other.
#[must_use]
pub fn parity_rows(data: usize, parity: usize) -> Vec<u8> {
    let known: Vec<u8> = (0..=u8::MAX).take(data).collect();
    let wanted: Vec<u8> = (0..=u8::MAX).skip(data).take(parity).collect();
    let table = coefficients(&known, &wanted);
    (0..parity).flat_map(|row| table.iter().skip(row).step_by(parity).copied()).collect()
}

/// An encoder with this kernel.
#[must_use]
pub fn encoder(config: FecConfig, seqid: u32, name: &str) -> FecEncoder {
    FecEncoder::with_kernel(config, seqid, kernel(name))
}

/// A decoder with this kernel.
#[must_use]
pub fn decoder(config: FecConfig, name: &str) -> FecDecoder {
    FecDecoder::with_kernel(Some(config), kernel(name))
}

/// Computes some shards from others: encoding and reconstruction alone.
#[derive(Debug)]
pub struct Codec {
    known: Vec<Shard>,
    coefficients: Vec<u8>,
    wanted: usize,
    rows: Rows,
}

impl Codec {
    /// Takes `shards` of the positions `known`, one per data position.
    #[must_use]
    pub fn new(known: &[u8], shards: &[Vec<u8>], wanted: &[u8], name: &str) -> Self {
        let keep = |content: &Vec<u8>| {
            let mut shard = Shard::default();
            shard.set(content);
            shard
        };
        Self {
            known: shards.iter().map(keep).collect(),
            coefficients: coefficients(known, wanted),
            wanted: wanted.len(),
            rows: Rows::new(kernel(name)),
        }
    }

    /// Computes the wanted shards.
    pub fn run(&mut self) {
        self.rows.clear(self.wanted);
        let columns = self.coefficients.chunks_exact(self.wanted);
        for (shard, column) in self.known.iter().zip(columns) {
            self.rows.fold(column, shard.lanes());
        }
    }

    /// Returns a shard that [`Self::run`] computed.
    #[must_use]
    pub fn shard(&self, index: usize, len: usize) -> &[u8] {
        self.rows.row(index, len).unwrap_or_default()
    }
}
