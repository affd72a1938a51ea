//! Erasure decoding: lost data shards from the received ones, with a cache of coefficients.

use super::config::{FecConfig, Places};
use super::gf256::{Kernel, coefficients};
use super::packet::SIZE_LEN;
use super::shard_buffers::{Rows, Shard};

/// Bytes of cached coefficients. Loss patterns recur: one lost packet per group yields only one
/// pattern per position.
const CACHE_LEN: usize = 256 * 1024;
/// Most patterns cached.
const MAX_PATTERNS: usize = 256;

/// Coefficients for one set of received shards.
#[derive(Clone, Debug, Default)]
struct Pattern {
    present: Places,
    coefficients: Vec<u8>,
}

/// Computes lost data shards of one layout's groups.
#[derive(Debug)]
pub(super) struct Reconstructor {
    config: FecConfig,
    /// Direct-mapped: a set of shards has one slot. Empty before the first loss.
    patterns: Vec<Pattern>,
    /// The most recently recovered shards.
    rows: Rows,
}

impl Reconstructor {
    pub(super) fn new(config: FecConfig, kernel: Kernel) -> Self {
        Self { config, patterns: Vec::new(), rows: Rows::new(kernel) }
    }

    pub(super) fn set_config(&mut self, config: FecConfig) {
        if config != self.config {
            (self.config, self.patterns) = (config, Vec::new());
        }
    }

    /// Recovers the data shards missing from `shards`, which has one shard per data position of a
    /// group, all in different positions. Returns their number.
    pub(super) fn run(&mut self, shards: &mut [(u8, Shard)]) -> usize {
        shards.sort_unstable_by_key(|(place, _)| *place);
        let mut present = Places::default();
        shards.iter().for_each(|(place, _)| _ = present.insert(*place));
        let lost = (0..self.config.data).filter(|place| !present.contains(*place)).count();
        let slot = self.slot(&present);
        let Some(pattern) = self.patterns.get_mut(slot).filter(|_| lost > 0) else { return 0 };
        if pattern.present != present {
            let known: Vec<u8> = shards.iter().map(|(place, _)| *place).collect();
            let wanted = (0..self.config.data).filter(|place| !present.contains(*place));
            let wanted: Vec<u8> = wanted.collect();
            *pattern = Pattern { present, coefficients: coefficients(&known, &wanted) };
        }
        self.rows.clear(lost);
        for ((_, shard), column) in shards.iter().zip(pattern.coefficients.chunks_exact(lost)) {
            self.rows.fold(column, shard.lanes());
        }
        lost
    }

    /// Returns the KCP datagram of a recovered shard, which was padded to `len` bytes; `None` if it
    /// is malformed.
    pub(super) fn datagram(&self, index: usize, len: usize) -> Option<&[u8]> {
        let shard = self.rows.row(index, len)?;
        let size = usize::from(u16::from_le_bytes(*shard.first_chunk::<SIZE_LEN>()?));
        let (content, padding) = shard.split_at_checked(size)?;
        // A wrong shard leaves noise in the padding, hardly ever zeros.
        padding.iter().all(|byte| *byte == 0).then_some(content)?.get(SIZE_LEN..)
    }

    fn slot(&mut self, present: &Places) -> usize {
        if self.patterns.is_empty() {
            let lost = self.config.data_shards().min(self.config.parity_shards());
            let each = size_of::<Pattern>() + lost * self.config.data_shards();
            self.patterns = vec![Pattern::default(); (CACHE_LEN / each).clamp(1, MAX_PATTERNS)];
        }
        let mix = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = present.0.iter().fold(0, |hash, word| {
            let hash = mix(hash, word);
            hash ^ hash >> 32
        });
        usize::try_from(hash >> 40).unwrap_or(0) % self.patterns.len()
    }

    /// Bytes of the cached coefficients.
    pub(super) fn cache_memory(&self) -> usize {
        let coefficients = self.patterns.iter().map(|pattern| pattern.coefficients.capacity());
        coefficients.sum::<usize>() + self.patterns.capacity() * size_of::<Pattern>()
    }

    pub(super) fn memory(&self) -> usize {
        self.cache_memory() + self.rows.memory()
    }
}
