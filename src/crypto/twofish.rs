//! Twofish encryption with key-dependent S-boxes that are computed once per key.
//!
//! Each S-box includes the matrix product, so a round is eight lookups. The `twofish` crate computes both
//! for each block: it encrypts 2 MB/s, so that a few thousand forged datagrams a second fill a core. As in
//! any cipher with tables, time depends on the CPU cache.

use cipher::common::{BlockSizeUser, KeySizeUser, ParBlocksSizeUser};
use cipher::consts::{U1, U16, U32};
use cipher::{
    Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, InOut, InvalidLength,
    Key, KeyInit,
};
use zeroize::Zeroizing;

/// Polynomials of the two fields: the matrix of a round, and the code of the key.
const MDS_POLYNOMIAL: u16 = 0x169;
const RS_POLYNOMIAL: u16 = 0x14d;

const MDS: [[u8; 4]; 4] = [
    [0x01, 0xef, 0x5b, 0x5b],
    [0x5b, 0xef, 0xef, 0x01],
    [0xef, 0x5b, 0x01, 0xef],
    [0xef, 0x01, 0xef, 0x5b],
];

const RS: [[u8; 8]; 4] = [
    [0x01, 0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e],
    [0xa4, 0x56, 0x82, 0xf3, 0x1e, 0xc6, 0x68, 0xe5],
    [0x02, 0xa1, 0xfc, 0xc1, 0x47, 0xae, 0x3d, 0x19],
    [0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e, 0x03],
];

/// The fixed byte permutations `q0` and `q1`.
static Q: [[u8; 256]; 2] = [
    permutation([
        [8, 1, 7, 13, 6, 15, 3, 2, 0, 11, 5, 9, 14, 12, 10, 4],
        [14, 12, 11, 8, 1, 2, 3, 5, 15, 4, 10, 6, 7, 0, 9, 13],
        [11, 10, 5, 14, 6, 13, 9, 0, 12, 8, 15, 3, 2, 4, 7, 1],
        [13, 7, 15, 4, 1, 2, 6, 14, 9, 11, 3, 0, 8, 5, 12, 10],
    ]),
    permutation([
        [2, 8, 11, 13, 15, 7, 6, 14, 3, 1, 9, 4, 0, 10, 12, 5],
        [1, 14, 2, 11, 4, 12, 3, 7, 6, 13, 10, 5, 15, 9, 0, 8],
        [4, 12, 7, 5, 1, 6, 9, 10, 0, 14, 13, 8, 2, 11, 3, 15],
        [11, 9, 5, 1, 12, 3, 13, 14, 6, 4, 7, 15, 2, 0, 8, 10],
    ]),
];

/// The entries of `Q` that each byte of a word passes, the innermost first. Keys of 32 bytes pass all
/// five, shorter keys the last four or three.
const CHAINS: [[usize; 5]; 4] =
    [[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 0, 1, 1, 0]];

/// Four tables of 256 words, for the four bytes of a word.
type Tables = [[u32; 256]; 4];

pub(super) struct Twofish {
    /// The round function of each byte of a word.
    tables: Box<Zeroizing<Tables>>,
    /// Words added before the first round, after the last, and in each round.
    before: Zeroizing<[u32; 4]>,
    after: Zeroizing<[u32; 4]>,
    rounds: Zeroizing<[[u32; 2]; 16]>,
}

impl Twofish {
    #[inline(always)]
    fn g(&self, [b0, b1, b2, b3]: [u8; 4]) -> u32 {
        let [t0, t1, t2, t3] = &**self.tables;
        t0[usize::from(b0)] ^ t1[usize::from(b1)] ^ t2[usize::from(b2)] ^ t3[usize::from(b3)]
    }

    #[inline(always)]
    fn encrypt_words(&self, words: [u32; 4]) -> [u32; 4] {
        let [mut a, mut b, mut c, mut d] = words;
        let [k0, k1, k2, k3] = *self.before;
        (a, b, c, d) = (a ^ k0, b ^ k1, c ^ k2, d ^ k3);
        for [k0, k1] in self.rounds.iter() {
            let t0 = self.g(a.to_le_bytes());
            let t1 = self.g(b.rotate_left(8).to_le_bytes());
            let sum = t0.wrapping_add(t1);
            c = (c ^ sum.wrapping_add(*k0)).rotate_right(1);
            d = d.rotate_left(1) ^ sum.wrapping_add(t1).wrapping_add(*k1);
            (a, b, c, d) = (c, d, a, b);
        }
        let [k4, k5, k6, k7] = *self.after;
        [c ^ k4, d ^ k5, a ^ k6, b ^ k7]
    }
}

impl KeySizeUser for Twofish {
    type KeySize = U32;
}

impl KeyInit for Twofish {
    fn new(key: &Key<Self>) -> Self {
        schedule(key)
    }

    fn new_from_slice(key: &[u8]) -> Result<Self, InvalidLength> {
        if matches!(key.len(), 16 | 24 | 32) { Ok(schedule(key)) } else { Err(InvalidLength) }
    }
}

/// The schedule for a key of 16, 24 or 32 bytes.
fn schedule(key: &[u8]) -> Twofish {
    let words = Zeroizing::new(key.as_chunks::<4>().0.to_vec());
    let mut even: Zeroizing<Vec<_>> = Zeroizing::new(words.iter().step_by(2).copied().collect());
    let mut odd: Zeroizing<Vec<_>> =
        Zeroizing::new(words.iter().skip(1).step_by(2).copied().collect());
    // In the order of application.
    even.reverse();
    odd.reverse();
    let code: Zeroizing<Vec<_>> =
        Zeroizing::new(key.as_chunks().0.iter().map(|chunk| encode(*chunk)).collect());

    let mut added = (0..20_u8).map(|i| {
        let first = h([2 * i; 4], &even);
        let second = h([2 * i + 1; 4], &odd).rotate_left(8);
        let sum = first.wrapping_add(second);
        [sum, sum.wrapping_add(second).rotate_left(9)]
    });
    let mut pair = || added.next().unwrap_or_default();
    let ([k0, k1], [k2, k3], [k4, k5], [k6, k7]) = (pair(), pair(), pair(), pair());
    let mut rounds = Zeroizing::new([[0; 2]; 16]);
    rounds.fill_with(pair);

    let mut tables = Box::new(Zeroizing::new([[0; 256]; 4]));
    for (column, table) in tables.iter_mut().enumerate() {
        for (word, byte) in table.iter_mut().zip(0..=u8::MAX) {
            *word = share(column, substitute(column, byte, &code));
        }
    }
    Twofish {
        tables,
        before: Zeroizing::new([k0, k1, k2, k3]),
        after: Zeroizing::new([k4, k5, k6, k7]),
        rounds,
    }
}

/// The function `h` of a word and a list of words, in the order of application.
fn h(word: [u8; 4], list: &[[u8; 4]]) -> u32 {
    let shares = word.iter().enumerate().map(|(at, byte)| share(at, substitute(at, *byte, list)));
    shares.fold(0, |sum, share| sum ^ share)
}

/// One byte of a word through its chain of permutations and list bytes.
fn substitute(at: usize, byte: u8, list: &[[u8; 4]]) -> u8 {
    let chain = &CHAINS[at][4 - list.len()..];
    let (last, steps) = chain.split_last().unwrap_or((&0, &[]));
    let mixed =
        steps.iter().zip(list).fold(byte, |byte, (q, key)| Q[*q][usize::from(byte)] ^ key[at]);
    Q[*last][usize::from(mixed)]
}

/// The term of one byte in the matrix product.
fn share(column: usize, byte: u8) -> u32 {
    u32::from_le_bytes(MDS.map(|row| multiply(row[column], byte, MDS_POLYNOMIAL)))
}

/// Eight bytes of the key to four, by the Reed-Solomon code.
fn encode(bytes: [u8; 8]) -> [u8; 4] {
    RS.map(|row| {
        let products = row.iter().zip(bytes).map(|(a, b)| multiply(*a, b, RS_POLYNOMIAL));
        products.fold(0, |sum, product| sum ^ product)
    })
}

/// The product in the field of 256 elements with this polynomial.
fn multiply(a: u8, b: u8, polynomial: u16) -> u8 {
    let mut product = 0_u16;
    for bit in (0..8).rev() {
        product <<= 1;
        product ^= polynomial * (product >> 8);
        product ^= u16::from(a) * u16::from(b >> bit & 1);
    }
    product.to_le_bytes()[0]
}

/// A byte permutation of four permutations of half bytes.
const fn permutation(t: [[u8; 16]; 4]) -> [u8; 256] {
    let mut table = [0; 256];
    let mut x = 0;
    while x < 256 {
        let (mut a, mut b) = (x >> 4, x & 15);
        let mut stage = 0;
        while stage < 4 {
            (a, b) = (a ^ b, a ^ (b >> 1 | b << 3) & 15 ^ a << 3 & 15);
            (a, b) = (t[stage][a] as usize, t[stage + 1][b] as usize);
            stage += 2;
        }
        // Two half bytes.
        table[x] = t_byte(a, b);
        x += 1;
    }
    table
}

#[expect(clippy::cast_possible_truncation, reason = "both are half bytes")]
const fn t_byte(low: usize, high: usize) -> u8 {
    (high << 4 | low) as u8
}

impl BlockSizeUser for Twofish {
    type BlockSize = U16;
}

impl ParBlocksSizeUser for Twofish {
    type ParBlocksSize = U1;
}

impl BlockCipherEncrypt for Twofish {
    #[inline]
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U16>) {
        f.call(self);
    }
}

impl BlockCipherEncBackend for Twofish {
    #[inline(always)]
    fn encrypt_block(&self, mut block: InOut<'_, '_, Block<Self>>) {
        let word = u128::from_le_bytes((*block.get_in()).into());
        let words = [0, 32, 64, 96].map(|shift| low(word >> shift));
        let [a, b, c, d] = self.encrypt_words(words).map(u128::from);
        *block.get_out() = (a | b << 32 | c << 64 | d << 96).to_le_bytes().into();
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the caller shifts")]
fn low(word: u128) -> u32 {
    word as u32
}
