//! SM4, forwards only, with tables.
//!
//! The S-box and the linear map after it are one lookup per byte. Four blocks go through the
//! rounds together: a round of one block alone waits for its lookups most of the time.

use cipher::common::{BlockSizeUser, KeySizeUser, ParBlocks, ParBlocksSizeUser};
use cipher::consts::{U4, U16};
use cipher::{
    Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, InOut, Key, KeyInit,
};
use zeroize::Zeroizing;

/// Blocks at once.
pub(super) const LANES: usize = 4;

const SBOX: [u8; 256] = [
    0xd6, 0x90, 0xe9, 0xfe, 0xcc, 0xe1, 0x3d, 0xb7, 0x16, 0xb6, 0x14, 0xc2, 0x28, 0xfb, 0x2c, 0x05,
    0x2b, 0x67, 0x9a, 0x76, 0x2a, 0xbe, 0x04, 0xc3, 0xaa, 0x44, 0x13, 0x26, 0x49, 0x86, 0x06, 0x99,
    0x9c, 0x42, 0x50, 0xf4, 0x91, 0xef, 0x98, 0x7a, 0x33, 0x54, 0x0b, 0x43, 0xed, 0xcf, 0xac, 0x62,
    0xe4, 0xb3, 0x1c, 0xa9, 0xc9, 0x08, 0xe8, 0x95, 0x80, 0xdf, 0x94, 0xfa, 0x75, 0x8f, 0x3f, 0xa6,
    0x47, 0x07, 0xa7, 0xfc, 0xf3, 0x73, 0x17, 0xba, 0x83, 0x59, 0x3c, 0x19, 0xe6, 0x85, 0x4f, 0xa8,
    0x68, 0x6b, 0x81, 0xb2, 0x71, 0x64, 0xda, 0x8b, 0xf8, 0xeb, 0x0f, 0x4b, 0x70, 0x56, 0x9d, 0x35,
    0x1e, 0x24, 0x0e, 0x5e, 0x63, 0x58, 0xd1, 0xa2, 0x25, 0x22, 0x7c, 0x3b, 0x01, 0x21, 0x78, 0x87,
    0xd4, 0x00, 0x46, 0x57, 0x9f, 0xd3, 0x27, 0x52, 0x4c, 0x36, 0x02, 0xe7, 0xa0, 0xc4, 0xc8, 0x9e,
    0xea, 0xbf, 0x8a, 0xd2, 0x40, 0xc7, 0x38, 0xb5, 0xa3, 0xf7, 0xf2, 0xce, 0xf9, 0x61, 0x15, 0xa1,
    0xe0, 0xae, 0x5d, 0xa4, 0x9b, 0x34, 0x1a, 0x55, 0xad, 0x93, 0x32, 0x30, 0xf5, 0x8c, 0xb1, 0xe3,
    0x1d, 0xf6, 0xe2, 0x2e, 0x82, 0x66, 0xca, 0x60, 0xc0, 0x29, 0x23, 0xab, 0x0d, 0x53, 0x4e, 0x6f,
    0xd5, 0xdb, 0x37, 0x45, 0xde, 0xfd, 0x8e, 0x2f, 0x03, 0xff, 0x6a, 0x72, 0x6d, 0x6c, 0x5b, 0x51,
    0x8d, 0x1b, 0xaf, 0x92, 0xbb, 0xdd, 0xbc, 0x7f, 0x11, 0xd9, 0x5c, 0x41, 0x1f, 0x10, 0x5a, 0xd8,
    0x0a, 0xc1, 0x31, 0x88, 0xa5, 0xcd, 0x7b, 0xbd, 0x2d, 0x74, 0xd0, 0x12, 0xb8, 0xe5, 0xb4, 0xb0,
    0x89, 0x69, 0x97, 0x4a, 0x0c, 0x96, 0x77, 0x7e, 0x65, 0xb9, 0xf1, 0x09, 0xc5, 0x6e, 0xc6, 0x84,
    0x18, 0xf0, 0x7d, 0xec, 0x3a, 0xdc, 0x4d, 0x20, 0x79, 0xee, 0x5f, 0x3e, 0xd7, 0xcb, 0x39, 0x48,
];

/// What the key is mixed with at first.
const FK: [u32; 4] = [0xa3b1_bac6, 0x56aa_3350, 0x677d_9197, 0xb270_22dc];

/// For each byte of a word its share of the round function.
static TABLES: [[u32; 256]; 4] = tables();

/// Four words of each of `N` blocks.
type Words<const N: usize> = [[u32; N]; 4];

pub(super) struct Sm4 {
    rounds: Zeroizing<[[u32; 4]; 8]>,
}

impl Sm4 {
    #[inline(always)]
    fn encrypt<const N: usize>(&self, [mut a, mut b, mut c, mut d]: Words<N>) -> Words<N> {
        for [k0, k1, k2, k3] in self.rounds.iter() {
            round(&mut a, &b, &c, &d, *k0);
            round(&mut b, &c, &d, &a, *k1);
            round(&mut c, &d, &a, &b, *k2);
            round(&mut d, &a, &b, &c, *k3);
        }
        [d, c, b, a]
    }
}

#[inline(always)]
fn round<const N: usize>(to: &mut [u32; N], x: &[u32; N], y: &[u32; N], z: &[u32; N], key: u32) {
    let [t0, t1, t2, t3] = &TABLES;
    for (((to, x), y), z) in to.iter_mut().zip(x).zip(y).zip(z) {
        let [b0, b1, b2, b3] = (x ^ y ^ z ^ key).to_be_bytes().map(usize::from);
        *to ^= t0[b0] ^ t1[b1] ^ t2[b2] ^ t3[b3];
    }
}

const fn tables() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut at = 0;
    while at < 256 {
        let byte = (SBOX[at] as u32) << 24;
        let share = byte
            ^ byte.rotate_left(2)
            ^ byte.rotate_left(10)
            ^ byte.rotate_left(18)
            ^ byte.rotate_left(24);
        tables[0][at] = share;
        tables[1][at] = share.rotate_right(8);
        tables[2][at] = share.rotate_right(16);
        tables[3][at] = share.rotate_right(24);
        at += 1;
    }
    tables
}

/// The four words of a block.
#[inline(always)]
fn load(block: &Block<Sm4>) -> [u32; 4] {
    let word = u128::from_be_bytes((*block).into());
    [96, 64, 32, 0].map(|shift| low(word >> shift))
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the caller shifts")]
fn low(word: u128) -> u32 {
    word as u32
}

#[inline(always)]
fn store(block: &mut Block<Sm4>, words: [u32; 4]) {
    let [a, b, c, d] = words.map(u128::from);
    *block = (a << 96 | b << 64 | c << 32 | d).to_be_bytes().into();
}

impl KeySizeUser for Sm4 {
    type KeySize = U16;
}

impl KeyInit for Sm4 {
    fn new(key: &Key<Self>) -> Self {
        let mut words = Zeroizing::new(load(key));
        words.iter_mut().zip(FK).for_each(|(word, fixed)| *word ^= fixed);
        let mut rounds = Zeroizing::new([[0; 4]; 8]);
        // The constant of each round has the bytes 7 * (4 * round + 0..4).
        let mut bytes = (0..=u8::MAX).map(|at| at.wrapping_mul(7));
        let mut constant = || u32::from_be_bytes([(); 4].map(|()| bytes.next().unwrap_or(0)));
        for key in rounds.as_flattened_mut() {
            let [a, b, c, d] = *words;
            let mixed = (b ^ c ^ d ^ constant()).to_be_bytes();
            let mixed = u32::from_be_bytes(mixed.map(|byte| SBOX[usize::from(byte)]));
            *key = a ^ mixed ^ mixed.rotate_left(13) ^ mixed.rotate_left(23);
            *words = [b, c, d, *key];
        }
        Self { rounds }
    }
}

impl BlockSizeUser for Sm4 {
    type BlockSize = U16;
}

impl ParBlocksSizeUser for Sm4 {
    type ParBlocksSize = U4;
}

impl BlockCipherEncrypt for Sm4 {
    #[inline]
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U16>) {
        f.call(self);
    }
}

impl BlockCipherEncBackend for Sm4 {
    #[inline(always)]
    fn encrypt_block(&self, mut block: InOut<'_, '_, Block<Self>>) {
        let words = load(block.get_in()).map(|word| [word]);
        store(block.get_out(), self.encrypt(words).map(|[word]| word));
    }

    #[inline(always)]
    fn encrypt_par_blocks(&self, mut blocks: InOut<'_, '_, ParBlocks<Self>>) {
        let [p, q, r, s] = blocks.get_in().0.each_ref().map(load);
        let words = [0, 1, 2, 3].map(|at| [p[at], q[at], r[at], s[at]]);
        let words = self.encrypt(words);
        for (at, block) in blocks.get_out().iter_mut().enumerate() {
            store(block, words.map(|lanes| lanes[at]));
        }
    }
}
