//! 3DES (encrypt, decrypt, encrypt), forwards only, with tables.
//!
//! An S-box and the permutation after it are one lookup. The final permutation of one DES and the
//! initial one of the next cancel, so there is one of each.

use cipher::common::{BlockSizeUser, KeySizeUser, ParBlocks, ParBlocksSizeUser};
use cipher::consts::{U4, U8, U24};
use cipher::{
    Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, InOut, Key, KeyInit,
};
use zeroize::Zeroizing;

/// Blocks at once.
pub(super) const LANES: usize = 4;

/// The S-boxes by their six bits of input, first to last.
const SBOXES: [[u8; 64]; 8] = [
    [
        14, 0, 4, 15, 13, 7, 1, 4, 2, 14, 15, 2, 11, 13, 8, 1, 3, 10, 10, 6, 6, 12, 12, 11, 5, 9,
        9, 5, 0, 3, 7, 8, 4, 15, 1, 12, 14, 8, 8, 2, 13, 4, 6, 9, 2, 1, 11, 7, 15, 5, 12, 11, 9, 3,
        7, 14, 3, 10, 10, 0, 5, 6, 0, 13,
    ],
    [
        15, 3, 1, 13, 8, 4, 14, 7, 6, 15, 11, 2, 3, 8, 4, 14, 9, 12, 7, 0, 2, 1, 13, 10, 12, 6, 0,
        9, 5, 11, 10, 5, 0, 13, 14, 8, 7, 10, 11, 1, 10, 3, 4, 15, 13, 4, 1, 2, 5, 11, 8, 6, 12, 7,
        6, 12, 9, 0, 3, 5, 2, 14, 15, 9,
    ],
    [
        10, 13, 0, 7, 9, 0, 14, 9, 6, 3, 3, 4, 15, 6, 5, 10, 1, 2, 13, 8, 12, 5, 7, 14, 11, 12, 4,
        11, 2, 15, 8, 1, 13, 1, 6, 10, 4, 13, 9, 0, 8, 6, 15, 9, 3, 8, 0, 7, 11, 4, 1, 15, 2, 14,
        12, 3, 5, 11, 10, 5, 14, 2, 7, 12,
    ],
    [
        7, 13, 13, 8, 14, 11, 3, 5, 0, 6, 6, 15, 9, 0, 10, 3, 1, 4, 2, 7, 8, 2, 5, 12, 11, 1, 12,
        10, 4, 14, 15, 9, 10, 3, 6, 15, 9, 0, 0, 6, 12, 10, 11, 1, 7, 13, 13, 8, 15, 9, 1, 4, 3, 5,
        14, 11, 5, 12, 2, 7, 8, 2, 4, 14,
    ],
    [
        2, 14, 12, 11, 4, 2, 1, 12, 7, 4, 10, 7, 11, 13, 6, 1, 8, 5, 5, 0, 3, 15, 15, 10, 13, 3, 0,
        9, 14, 8, 9, 6, 4, 11, 2, 8, 1, 12, 11, 7, 10, 1, 13, 14, 7, 2, 8, 13, 15, 6, 9, 15, 12, 0,
        5, 9, 6, 10, 3, 4, 0, 5, 14, 3,
    ],
    [
        12, 10, 1, 15, 10, 4, 15, 2, 9, 7, 2, 12, 6, 9, 8, 5, 0, 6, 13, 1, 3, 13, 4, 14, 14, 0, 7,
        11, 5, 3, 11, 8, 9, 4, 14, 3, 15, 2, 5, 12, 2, 9, 8, 5, 12, 15, 3, 10, 7, 11, 0, 14, 4, 1,
        10, 7, 1, 6, 13, 0, 11, 8, 6, 13,
    ],
    [
        4, 13, 11, 0, 2, 11, 14, 7, 15, 4, 0, 9, 8, 1, 13, 10, 3, 14, 12, 3, 9, 5, 7, 12, 5, 2, 10,
        15, 6, 8, 1, 6, 1, 6, 4, 11, 11, 13, 13, 8, 12, 1, 3, 4, 7, 10, 14, 7, 10, 9, 15, 5, 6, 0,
        8, 15, 0, 14, 5, 2, 9, 3, 2, 12,
    ],
    [
        13, 1, 2, 15, 8, 13, 4, 8, 6, 10, 15, 3, 11, 7, 1, 4, 10, 12, 9, 5, 3, 6, 14, 11, 5, 0, 0,
        14, 12, 9, 7, 2, 7, 2, 11, 1, 4, 14, 1, 7, 9, 4, 12, 10, 14, 8, 2, 13, 0, 15, 6, 12, 10, 9,
        13, 0, 15, 3, 3, 5, 5, 6, 8, 11,
    ],
];

/// Which bit of its input each bit of a permutation is, counted from the most significant, from 1.
const P: [u8; 32] = [
    16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10, 2, 8, 24, 14, 32, 27, 3, 9, 19,
    13, 30, 6, 22, 11, 4, 25,
];
const PC1: [u8; 56] = [
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60,
    52, 44, 36, 63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29,
    21, 13, 5, 28, 20, 12, 4,
];
const PC2: [u8; 48] = [
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2, 41, 52,
    31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
];

/// How far the halves of the key turn before each round.
const TURNS: [u32; 16] = [1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1];

/// For each six bits of the input their share of the round function.
static TABLES: [[u32; 64]; 8] = tables();

pub(super) struct TripleDes {
    /// For each round the six-bit parts of its key for the even and for the odd S-boxes, a byte
    /// each.
    rounds: Zeroizing<[[[u32; 2]; 16]; 3]>,
}

impl TripleDes {
    #[inline(always)]
    fn encrypt<const N: usize>(&self, blocks: [u64; N]) -> [u64; N] {
        let blocks = blocks.map(initial);
        let (mut left, mut right) = (blocks.map(|block| low(block >> 32)), blocks.map(low));
        for keys in self.rounds.iter() {
            for key in keys {
                for (left, right) in left.iter_mut().zip(&right) {
                    *left ^= f(*right, *key);
                }
                (left, right) = (right, left);
            }
            // The halves do not change places after the last round of each DES.
            (left, right) = (right, left);
        }
        let mut halves = left.into_iter().zip(right);
        blocks.map(|_| {
            let (left, right) = halves.next().unwrap_or_default();
            last(u64::from(left) << 32 | u64::from(right))
        })
    }
}

#[inline(always)]
fn f(half: u32, [even, odd]: [u32; 2]) -> u32 {
    // Turned like this, every second group of six bits stands at the end of a byte.
    let [e0, e2, e4, e6] = six_bits(half.rotate_left(29) ^ even);
    let [o1, o3, o5, o7] = six_bits(half.rotate_left(1) ^ odd);
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    t0[e0] ^ t2[e2] ^ t4[e4] ^ t6[e6] ^ t1[o1] ^ t3[o3] ^ t5[o5] ^ t7[o7]
}

#[inline(always)]
fn six_bits(word: u32) -> [usize; 4] {
    word.to_be_bytes().map(|byte| usize::from(byte & 63))
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the caller shifts")]
fn low(block: u64) -> u32 {
    block as u32
}

/// Swaps the bits under `mask` with those `by` places further up.
#[inline(always)]
fn swap(block: u64, by: u32, mask: u64) -> u64 {
    let differ = (block ^ block >> by) & mask;
    block ^ differ ^ differ << by
}

/// The initial permutation.
#[inline(always)]
fn initial(mut block: u64) -> u64 {
    block = swap(block, 9, 0x0055_0055_0055_0055);
    block = swap(block, 18, 0x0000_3333_0000_3333);
    block = swap(block, 36, 0x0000_0000_0f0f_0f0f);
    block = swap(block, 24, 0x0000_0000_ff00_ff00);
    swap(block, 24, 0x0000_00ff_0000_00ff)
}

/// The final permutation: the initial one backwards.
#[inline(always)]
fn last(mut block: u64) -> u64 {
    block = swap(block, 24, 0x0000_00ff_0000_00ff);
    block = swap(block, 24, 0x0000_0000_ff00_ff00);
    block = swap(block, 36, 0x0000_0000_0f0f_0f0f);
    block = swap(block, 18, 0x0000_3333_0000_3333);
    swap(block, 9, 0x0055_0055_0055_0055)
}

const fn tables() -> [[u32; 64]; 8] {
    let mut tables = [[0; 64]; 8];
    let (mut at, mut six) = (0, 0);
    while at < 8 {
        let word = (SBOXES[at][six] as u32) << (28 - 4 * at);
        let mut bit = 0;
        while bit < 32 {
            tables[at][six] |= (word >> (32 - P[bit]) & 1) << (31 - bit);
            bit += 1;
        }
        six += 1;
        if six == 64 {
            (at, six) = (at + 1, 0);
        }
    }
    tables
}

/// Picks bits of a value of `width` bits.
fn pick(value: u64, width: u8, bits: &[u8]) -> u64 {
    bits.iter().fold(0, |picked, bit| picked << 1 | value >> (width - bit) & 1)
}

/// The keys of the sixteen rounds of one DES.
fn schedule(key: u64) -> [[u32; 2]; 16] {
    let half = (1 << 28) - 1;
    let picked = pick(key, 64, &PC1);
    let (mut c, mut d) = (picked >> 28, picked & half);
    TURNS.map(|by| {
        c = (c << by | c >> (28 - by)) & half;
        d = (d << by | d >> (28 - by)) & half;
        let key = pick(c << 28 | d, 56, &PC2);
        let part = |at: u32| low(key >> (42 - 6 * at) & 63);
        let word = |first: u32| (0..4).fold(0, |word, i| word << 8 | part(first + 2 * i));
        [word(0), word(1)]
    })
}

impl KeySizeUser for TripleDes {
    type KeySize = U24;
}

impl KeyInit for TripleDes {
    fn new(key: &Key<Self>) -> Self {
        let mut rounds = Zeroizing::new([[[0; 2]; 16]; 3]);
        for (rounds, key) in rounds.iter_mut().zip(key.as_chunks().0) {
            *rounds = schedule(u64::from_be_bytes(*key));
        }
        // The second of the three is a decryption.
        let [_, second, _] = &mut *rounds;
        second.reverse();
        Self { rounds }
    }
}

impl BlockSizeUser for TripleDes {
    type BlockSize = U8;
}

impl ParBlocksSizeUser for TripleDes {
    type ParBlocksSize = U4;
}

impl BlockCipherEncrypt for TripleDes {
    #[inline]
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U8>) {
        f.call(self);
    }
}

impl BlockCipherEncBackend for TripleDes {
    #[inline]
    fn encrypt_block(&self, mut block: InOut<'_, '_, Block<Self>>) {
        let [out] = self.encrypt([u64::from_be_bytes((*block.get_in()).into())]);
        *block.get_out() = out.to_be_bytes().into();
    }

    #[inline]
    fn encrypt_par_blocks(&self, mut blocks: InOut<'_, '_, ParBlocks<Self>>) {
        let words = blocks.get_in().0.map(|block| u64::from_be_bytes(block.into()));
        for (block, word) in blocks.get_out().iter_mut().zip(self.encrypt(words)) {
            *block = word.to_be_bytes().into();
        }
    }
}
