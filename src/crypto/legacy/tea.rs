//! TEA with 16 rounds (8 cycles) and big-endian words, as kcp-go uses it.
//!
//! Additions and shifts on two words run on a vector of blocks as fast as on one.

use cipher::common::{BlockSizeUser, KeySizeUser, ParBlocks, ParBlocksSizeUser};
use cipher::consts::{U8, U16};
use cipher::{
    Array, Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, InOut, Key,
    KeyInit,
};
use zeroize::Zeroizing;

/// Blocks processed at once.
pub(super) const LANES: usize = 8;

const CYCLES: u32 = 8;
const DELTA: u32 = 0x9e37_79b9;

/// `N` blocks as two vectors of words.
type Words<const N: usize> = [[u32; N]; 2];

pub(super) struct Tea {
    key: Zeroizing<[u32; 4]>,
}

impl Tea {
    #[inline(always)]
    fn rounds<const N: usize>(&self, [mut v0, mut v1]: Words<N>) -> Words<N> {
        let [k0, k1, k2, k3] = *self.key;
        let mut sum = 0_u32;
        for _ in 0..CYCLES {
            sum = sum.wrapping_add(DELTA);
            for (v0, v1) in v0.iter_mut().zip(&v1) {
                *v0 = v0.wrapping_add(mix(*v1, k0, k1, sum));
            }
            for (v1, v0) in v1.iter_mut().zip(&v0) {
                *v1 = v1.wrapping_add(mix(*v0, k2, k3, sum));
            }
        }
        [v0, v1]
    }
}

#[inline(always)]
fn mix(v: u32, a: u32, b: u32, sum: u32) -> u32 {
    (v << 4).wrapping_add(a) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(b)
}

fn key_words(key: &Array<u8, U16>) -> Zeroizing<[u32; 4]> {
    let mut words = Zeroizing::new([0; 4]);
    for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    words
}

/// Applies `rounds` to one block.
#[inline(always)]
fn one(mut block: InOut<'_, '_, Array<u8, U8>>, rounds: impl FnOnce(Words<1>) -> Words<1>) {
    let word = u64::from_be_bytes((*block.get_in()).into());
    let [[v0], [v1]] = rounds([[high(word)], [low(word)]]);
    *block.get_out() = join(v0, v1).into();
}

/// Applies `rounds` to [`LANES`] blocks.
#[inline(always)]
fn many(
    mut blocks: InOut<'_, '_, Array<Array<u8, U8>, U8>>,
    rounds: impl FnOnce(Words<LANES>) -> Words<LANES>,
) {
    let words = blocks.get_in().0.map(|block| u64::from_be_bytes(block.into()));
    let [v0, v1] = rounds([words.map(high), words.map(low)]);
    for ((block, v0), v1) in blocks.get_out().iter_mut().zip(v0).zip(v1) {
        *block = join(v0, v1).into();
    }
}

#[inline(always)]
fn join(v0: u32, v1: u32) -> [u8; 8] {
    (u64::from(v0) << 32 | u64::from(v1)).to_be_bytes()
}

#[inline(always)]
fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the other half is `high`")]
fn low(word: u64) -> u32 {
    word as u32
}

impl KeySizeUser for Tea {
    type KeySize = U16;
}

impl KeyInit for Tea {
    fn new(key: &Key<Self>) -> Self {
        Self { key: key_words(key) }
    }
}

impl BlockSizeUser for Tea {
    type BlockSize = U8;
}

impl ParBlocksSizeUser for Tea {
    type ParBlocksSize = U8;
}

impl BlockCipherEncrypt for Tea {
    #[inline]
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U8>) {
        f.call(self);
    }
}

impl BlockCipherEncBackend for Tea {
    #[inline(always)]
    fn encrypt_block(&self, block: InOut<'_, '_, Block<Self>>) {
        one(block, |words| self.rounds(words));
    }

    #[inline(always)]
    fn encrypt_par_blocks(&self, blocks: InOut<'_, '_, ParBlocks<Self>>) {
        many(blocks, |words| self.rounds(words));
    }
}
