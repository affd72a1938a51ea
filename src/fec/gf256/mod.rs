//! GF(2^8) with the polynomial 0x11D, the field of kcp-go's Reed-Solomon code and of the
//! sliding-window code of `core/redundancy/rlc`: arithmetic, coefficients, and kernels.
//!
//! Every coefficient of encoding and decoding is a value of a Lagrange polynomial, so no matrix is
//! inverted: see [`coefficients`].

mod kernel;
#[cfg(test)]
mod tests;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86;

pub(crate) use kernel::Kernel;

/// Bytes that kernels process at a time. Rows are padded with zeros to whole lanes.
pub(crate) const LANE: usize = 64;

/// x^8 modulo the polynomial 0x11D.
const POLYNOMIAL: u8 = 0x1D;

/// Powers of the generator 2, twice in a row so that a sum of two logarithms is an index.
const EXP: [u8; 510] = {
    let (mut table, mut i, mut power) = ([0; 510], 0, 1);
    while i < 510 {
        table[i] = power;
        power = double(power);
        i += 1;
    }
    table
};

/// The logarithm of each element; zero has none.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i: u8 = 0;
    while i < 255 {
        table[EXP[i as usize] as usize] = i;
        i += 1;
    }
    table
};

const fn double(element: u8) -> u8 {
    (element << 1) ^ (POLYNOMIAL * (element >> 7))
}

/// The product of two elements.
pub(crate) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The multiplicative inverse of `a`; 0 for 0, which has none.
pub(crate) const fn inverse(a: u8) -> u8 {
    if a == 0 { 0 } else { EXP[255 - LOG[a as usize] as usize] }
}

/// Returns the coefficients of each shard `known` in each shard `wanted`: for the first of `known`
/// one for each of `wanted`, then for the second, and so on. All points must differ.
///
/// The code of kcp-go (klauspost/reedsolomon: a Vandermonde matrix times the inverse of its top)
/// takes the data shards as values of a polynomial at the points 0, 1, 2, ..., and the parity
/// shards as its values at the next points. By Lagrange's formula, any set of shards equal in
/// number to the data shards yields every other shard.
pub(crate) fn coefficients(known: &[u8], wanted: &[u8]) -> Vec<u8> {
    let numerators = wanted.iter().map(|&at| known.iter().map(|&k| log(at ^ k)).sum::<u32>());
    let numerators: Vec<u32> = numerators.collect();
    let mut table = Vec::with_capacity(known.len() * wanted.len());
    for &k in known {
        let others = known.iter().filter(|&&other| other != k);
        let denominator = others.map(|&other| log(k ^ other)).sum::<u32>() % 255;
        for (&at, numerator) in wanted.iter().zip(&numerators) {
            // No overflow: at most 255 logarithms below 255 each. Never negative: the numerator
            // contains the subtracted logarithm, and 255 is 0 modulo the group's order.
            let exponent = numerator - log(at ^ k) + 255 - denominator;
            table.push(EXP[(exponent % 255) as usize]);
        }
    }
    table
}

fn log(element: u8) -> u32 {
    u32::from(LOG[usize::from(element)])
}

/// Rounds `len` up to whole lanes.
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(LANE)
}
