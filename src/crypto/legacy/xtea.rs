//! XTEA: 64 rounds (32 cycles) on big-endian words.

use cipher::common::{BlockSizeUser, KeySizeUser, ParBlocks, ParBlocksSizeUser};
use cipher::consts::{U8, U16};
use cipher::{
    Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, InOut, Key, KeyInit,
};
use zeroize::Zeroizing;

use super::tea::{Words, key_words, many, one};

const CYCLES: usize = 32;
const DELTA: u32 = 0x9e37_79b9;

pub(super) struct Xtea {
    /// What each cycle adds to its two halves.
    schedule: Zeroizing<[[u32; 2]; CYCLES]>,
}

impl Xtea {
    #[inline(always)]
    fn rounds<const N: usize>(&self, [mut v0, mut v1]: Words<N>) -> Words<N> {
        for [k0, k1] in self.schedule.iter() {
            for (v0, v1) in v0.iter_mut().zip(&v1) {
                *v0 = v0.wrapping_add(mix(*v1) ^ k0);
            }
            for (v1, v0) in v1.iter_mut().zip(&v0) {
                *v1 = v1.wrapping_add(mix(*v0) ^ k1);
            }
        }
        [v0, v1]
    }
}

#[inline(always)]
fn mix(v: u32) -> u32 {
    (v << 4 ^ v >> 5).wrapping_add(v)
}

impl KeySizeUser for Xtea {
    type KeySize = U16;
}

impl KeyInit for Xtea {
    fn new(key: &Key<Self>) -> Self {
        let [k0, k1, k2, k3] = *key_words(key);
        let word = |index: u32| match index & 3 {
            0 => k0,
            1 => k1,
            2 => k2,
            _ => k3,
        };
        let mut schedule = Zeroizing::new([[0; 2]; CYCLES]);
        let mut sum = 0_u32;
        for [first, second] in schedule.iter_mut() {
            *first = sum.wrapping_add(word(sum));
            sum = sum.wrapping_add(DELTA);
            *second = sum.wrapping_add(word(sum >> 11));
        }
        Self { schedule }
    }
}

impl BlockSizeUser for Xtea {
    type BlockSize = U8;
}

impl ParBlocksSizeUser for Xtea {
    type ParBlocksSize = U8;
}

impl BlockCipherEncrypt for Xtea {
    #[inline]
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U8>) {
        f.call(self);
    }
}

impl BlockCipherEncBackend for Xtea {
    #[inline(always)]
    fn encrypt_block(&self, block: InOut<'_, '_, Block<Self>>) {
        one(block, |words| self.rounds(words));
    }

    #[inline(always)]
    fn encrypt_par_blocks(&self, blocks: InOut<'_, '_, ParBlocks<Self>>) {
        many(blocks, |words| self.rounds(words));
    }
}
