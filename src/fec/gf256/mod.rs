//! Arithmetic in GF(2^8) with the polynomial 0x11D, and the one operation that is worth speed.
//!
//! Every coefficient that coding and recovery need is a value of a Lagrange polynomial, so there
//! is no matrix to invert: see [`coefficients`]. All bytes go through [`Kernel::fold`].

mod scalar;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86;

/// Bytes that kernels take at a time. Rows are padded with zeros to whole lanes.
pub(crate) const LANE: usize = 64;

/// What is left of x^8 after division by the polynomial.
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

/// The logarithm of each element but zero, which has none.
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
#[cfg_attr(
    not(any(test, target_arch = "x86", target_arch = "x86_64")),
    expect(dead_code, reason = "only tables of the kernels need it")
)]
pub(crate) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// What each shard `known` contributes to each shard `wanted`: for the first of `known` one
/// coefficient for each of `wanted`, then for the second, and so on.
///
/// The code that kcp-go uses takes the data shards as values of a polynomial at the points 0, 1,
/// 2, ... and the parity shards as its values at the points that follow: that is what a
/// Vandermonde matrix times the inverse of its top says. So any shard follows from as many others
/// as there are data shards by Lagrange's formula. No point may be named twice.
pub(crate) fn coefficients(known: &[u8], wanted: &[u8]) -> Vec<u8> {
    let numerators = wanted.iter().map(|&at| known.iter().map(|&k| log(at ^ k)).sum::<u32>());
    let numerators: Vec<u32> = numerators.collect();
    let mut table = Vec::with_capacity(known.len() * wanted.len());
    for &k in known {
        let others = known.iter().filter(|&&other| other != k);
        let denominator = others.map(|&other| log(k ^ other)).sum::<u32>() % 255;
        for (&at, numerator) in wanted.iter().zip(&numerators) {
            // At most 255 logarithms below 255 each, so nothing overflows, and nothing is below
            // zero: the numerator contains the logarithm that is taken off, and 255 is nothing.
            let exponent = numerator - log(at ^ k) + 255 - denominator;
            table.push(EXP[(exponent % 255) as usize]);
        }
    }
    table
}

fn log(element: u8) -> u32 {
    u32::from(LOG[usize::from(element)])
}

/// `len` rounded up to whole lanes.
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(LANE)
}

/// How bytes are multiplied: the best way this processor has. Made by [`Kernel::best`] alone, so
/// whoever has one may run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    Simd(x86::Level),
}

impl Kernel {
    /// The fastest that this processor has. The standard library remembers what it found.
    pub(crate) fn best() -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        if let Some(level) = x86::Level::available().next() {
            return Self(Level::Simd(level));
        }
        Self(Level::Scalar)
    }

    /// All that this processor has, the fastest first.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        all.extend(x86::Level::available().map(|level| Self(Level::Simd(level))));
        all.push(Self(Level::Scalar));
        all
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            Level::Simd(level) => level.name(),
        }
    }

    /// Adds `src`, times the row's coefficient, to each row: `rows` are `stride` bytes apart, and
    /// there are as many as `coefficients`.
    ///
    /// `src` may end anywhere and is taken as continued by zeros to the end of its last lane.
    ///
    /// # Panics
    ///
    /// When `stride` is not whole lanes or less than `src`, or `rows` are too short. Callers own
    /// the rows, and size them; no packet decides about it.
    pub(crate) fn fold(self, rows: &mut [u8], stride: usize, coefficients: &[u8], src: &[u8]) {
        assert!(stride.is_multiple_of(LANE) && src.len() <= stride);
        assert!(coefficients.len().checked_mul(stride).is_some_and(|all| all <= rows.len()));
        match self.0 {
            Level::Scalar => scalar::fold(rows, stride, coefficients, src),
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            Level::Simd(level) => level.fold(rows, stride, coefficients, src),
        }
    }
}

#[cfg(test)]
mod tests;
