//! kcp-go's older block ciphers, all in cipher feedback.
//!
//! All are crates except TEA, which has kcp-go's 16 rounds, and Twofish, whose crate is too slow.

use blowfish::Blowfish;
use cast5::Cast5;
use cipher::common::{BlockSizeUser, KeySizeUser, ParBlocks, ParBlocksSizeUser};
use cipher::consts::{U1, U8, U16};
use cipher::{
    Array, Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, InOut, Key,
    KeyInit,
};
use des::TdesEde3;
use sm4::Sm4;
use zeroize::Zeroizing;

use super::algorithm::Algorithm;
use super::cfb;
use super::frame::Transform;
use super::twofish::Twofish;

/// The bare encryption of an older algorithm; `None` for other algorithms and wrong key lengths.
pub(super) fn transform(algorithm: Algorithm, key: &[u8]) -> Option<Box<dyn Transform>> {
    match algorithm {
        Algorithm::TripleDes => cfb::new::<TdesEde3, 4>(key),
        Algorithm::Blowfish => {
            // The schedule repeats the key, so repeating a short key yields the same schedule and
            // meets the crate's minimum of four bytes.
            let key = Zeroizing::new(if key.len() < 4 { key.repeat(4) } else { key.to_vec() });
            cfb::new::<Blowfish, 4>(&key)
        }
        Algorithm::Cast5 => cfb::new::<Cast5, 4>(key),
        Algorithm::Sm4 => cfb::new::<Sm4, 4>(key),
        Algorithm::Tea => cfb::new::<Tea, LANES>(key),
        Algorithm::Twofish => cfb::new::<Twofish, 4>(key),
        Algorithm::Xtea => cfb::new::<Xtea, 4>(key),
        _ => None,
    }
}

/// Blocks that TEA processes at once.
const LANES: usize = 8;

const CYCLES: u32 = 8;
const DELTA: u32 = 0x9e37_79b9;

/// `N` blocks as two vectors of words.
type Words<const N: usize> = [[u32; N]; 2];

/// TEA with kcp-go's 16 rounds (8 cycles) and big-endian words.
///
/// Additions and shifts on two words run on a vector of blocks as fast as on one.
struct Tea {
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

/// Reverses the bytes of each word of four.
fn swap_words<const N: usize>(bytes: &mut [u8; N]) {
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
}

/// XTEA of its crate on big-endian words, as in kcp-go; the crate's are little-endian.
struct Xtea(xtea::Xtea);

impl KeySizeUser for Xtea {
    type KeySize = U16;
}

impl KeyInit for Xtea {
    fn new(key: &Key<Self>) -> Self {
        let mut key = Zeroizing::new((*key).into());
        swap_words::<16>(&mut key);
        let key = Zeroizing::new(Key::<Self>::from(*key));
        Self(xtea::Xtea::new(&key))
    }
}

impl BlockSizeUser for Xtea {
    type BlockSize = U8;
}

impl ParBlocksSizeUser for Xtea {
    type ParBlocksSize = U1;
}

impl BlockCipherEncrypt for Xtea {
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U8>) {
        f.call(self);
    }
}

impl BlockCipherEncBackend for Xtea {
    fn encrypt_block(&self, mut block: InOut<'_, '_, Block<Self>>) {
        let mut bytes = block.clone_in();
        swap_words(&mut bytes.0);
        BlockCipherEncrypt::encrypt_block(&self.0, &mut bytes);
        swap_words(&mut bytes.0);
        *block.get_out() = bytes;
    }
}
