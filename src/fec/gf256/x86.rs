//! Kernels for x86 (GFNI, AVX2, SSSE3). All share one loop with different vectors: it loads a piece
//! of the source once, and for up to four rows multiplies it and adds it to the row.
//!
//! Without GFNI a product is two lookups in tables of 16 bytes, one for each half of the byte. GFNI
//! multiplies by a bit matrix; its own multiplication uses another polynomial.

#![expect(unsafe_code, reason = "loads and stores of vectors, and calls of what was detected")]

#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{LANE, multiply, padded};

/// For each coefficient its products with 0 to 15, then with 0, 16, 32, ... 240.
static NIBBLES: [[u8; 32]; 256] = {
    let mut tables = [[0; 32]; 256];
    let mut coefficient: u8 = 255;
    loop {
        let mut i: u8 = 0;
        while i < 16 {
            tables[coefficient as usize][i as usize] = multiply(coefficient, i);
            tables[coefficient as usize][16 + i as usize] = multiply(coefficient, i << 4);
            i += 1;
        }
        if coefficient == 0 {
            break tables;
        }
        coefficient -= 1;
    }
};

/// For each coefficient the bit matrix that multiplies by it: byte `7 - i` is the row for bit `i`
/// of the result, and its bit `j` says whether bit `j` of the operand counts.
static MATRICES: [u64; 256] = {
    let mut matrices = [0; 256];
    let mut coefficient: u8 = 255;
    loop {
        let (mut matrix, mut j) = (0, 0);
        while j < 8 {
            let column = multiply(coefficient, 1 << j);
            let mut i = 0;
            while i < 8 {
                matrix |= ((column >> i & 1) as u64) << (8 * (7 - i) + j);
                i += 1;
            }
            j += 1;
        }
        matrices[coefficient as usize] = matrix;
        if coefficient == 0 {
            break matrices;
        }
        coefficient -= 1;
    }
};

/// Processor features that a level may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    Gfni,
    Avx512f,
    Avx512bw,
    Avx2,
    Ssse3,
}

impl Feature {
    fn is_detected(self) -> bool {
        match self {
            Self::Gfni => is_x86_feature_detected!("gfni"),
            Self::Avx512f => is_x86_feature_detected!("avx512f"),
            Self::Avx512bw => is_x86_feature_detected!("avx512bw"),
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Ssse3 => is_x86_feature_detected!("ssse3"),
        }
    }
}

/// Instruction sets; outside tests only [`Level::available`] creates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    GfniAvx512,
    GfniAvx2,
    Avx2,
    Ssse3,
}

impl Level {
    /// Returns the levels of this processor, the fastest first.
    pub(super) fn available() -> impl Iterator<Item = Self> {
        Self::of_processor(Feature::is_detected)
    }

    /// Returns the levels of a processor that has these features, the fastest first.
    fn of_processor(has: impl Fn(Feature) -> bool) -> impl Iterator<Item = Self> {
        [Self::GfniAvx512, Self::GfniAvx2, Self::Avx2, Self::Ssse3]
            .into_iter()
            .filter(move |level| level.is_available(&has))
    }

    /// Whether the processor has all features of the level's `target_feature`.
    fn is_available(self, has: impl Fn(Feature) -> bool) -> bool {
        match self {
            Self::GfniAvx512 => {
                has(Feature::Gfni) && has(Feature::Avx512f) && has(Feature::Avx512bw)
            }
            Self::GfniAvx2 => has(Feature::Gfni) && has(Feature::Avx2),
            Self::Avx2 => has(Feature::Avx2),
            Self::Ssse3 => has(Feature::Ssse3),
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GfniAvx512 => "gfni-avx512",
            Self::GfniAvx2 => "gfni-avx2",
            Self::Avx2 => "avx2",
            Self::Ssse3 => "ssse3",
        }
    }

    pub(super) fn fold(self, rows: &mut [u8], stride: usize, coefficients: &[u8], src: &[u8]) {
        // SAFETY: a level exists only where `available` found all its features.
        unsafe {
            match self {
                Self::GfniAvx512 => gfni_avx512::fold(rows, stride, coefficients, src),
                Self::GfniAvx2 => gfni_avx2::fold(rows, stride, coefficients, src),
                Self::Avx2 => avx2::fold(rows, stride, coefficients, src),
                Self::Ssse3 => ssse3::fold(rows, stride, coefficients, src),
            }
        }
    }
}

/// The loop, for a module that defines `Vector`, `Table`, `load`, `store`, `add`, `table` and
/// `product` for these features.
macro_rules! fold {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn fold(rows: &mut [u8], stride: usize, coefficients: &[u8], src: &[u8]) {
            let (mut rows, mut coefficients) = (rows, coefficients);
            while !coefficients.is_empty() {
                let count = coefficients.len().min(4);
                let (strip, later) = rows.split_at_mut(count * stride);
                let (factors, others) = coefficients.split_at(count);
                match *factors {
                    [a] => fold_strip(strip, stride, [a], src),
                    [a, b] => fold_strip(strip, stride, [a, b], src),
                    [a, b, c] => fold_strip(strip, stride, [a, b, c], src),
                    [a, b, c, d, ..] => fold_strip(strip, stride, [a, b, c, d], src),
                    [] => {}
                }
                (rows, coefficients) = (later, others);
            }
        }

        #[target_feature(enable = $features)]
        fn fold_strip<const N: usize>(
            rows: &mut [u8],
            stride: usize,
            coefficients: [u8; N],
            src: &[u8],
        ) {
            assert!(padded(src.len()) <= stride && rows.len() == N * stride);
            let mut tables = [table(0); N];
            for (to, coefficient) in tables.iter_mut().zip(coefficients) {
                *to = table(coefficient);
            }
            let (whole, tail) = src.split_at(src.len() - src.len() % LANE);
            let rows = rows.as_mut_ptr();
            // SAFETY: whole lanes of the source; each row is `stride` long, so it has them too.
            unsafe { fold_lanes(rows, stride, &tables, whole.as_ptr(), whole.len()) };
            if !tail.is_empty() {
                let mut last = [0; LANE];
                last[..tail.len()].copy_from_slice(tail);
                // SAFETY: the assertion leaves each row one more lane than `whole` has.
                unsafe { fold_lanes(rows.add(whole.len()), stride, &tables, last.as_ptr(), LANE) };
            }
        }

        /// `len` is whole lanes. `src` must be readable for `len` bytes, and `N` rows that are
        /// `stride` apart must be readable and writable for `len` bytes each.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn fold_lanes<const N: usize>(
            rows: *mut u8,
            stride: usize,
            tables: &[Table; N],
            src: *const u8,
            len: usize,
        ) {
            let mut at = 0;
            while at < len {
                // SAFETY: a vector at `at` lies within `len`, which the caller guarantees for the
                // source and each row.
                unsafe {
                    let piece = load(src.add(at));
                    for (n, table) in tables.iter().enumerate() {
                        let to = rows.add(n * stride + at);
                        store(to, add(load(to), product(piece, table)));
                    }
                }
                at += size_of::<Vector>();
            }
        }
    };
}

/// `load`, `store` and `add` of a module, by the intrinsics of its vectors.
macro_rules! memory {
    ($features:literal, $load:ident, $store:ident, $add:ident) => {
        /// `from` must be readable for one vector.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load(from: *const u8) -> Vector {
            // SAFETY: guaranteed by the caller; no alignment is needed.
            unsafe { $load(from.cast()) }
        }

        /// `to` must be writable for one vector.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store(to: *mut u8, vector: Vector) {
            // SAFETY: guaranteed by the caller; no alignment is needed.
            unsafe { $store(to.cast(), vector) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add(a: Vector, b: Vector) -> Vector {
            $add(a, b)
        }
    };
}

mod gfni_avx512 {
    use super::*;

    type Vector = __m512i;
    type Table = __m512i;

    memory!("gfni,avx512f,avx512bw", _mm512_loadu_si512, _mm512_storeu_si512, _mm512_xor_si512);
    fold!("gfni,avx512f,avx512bw");

    #[inline]
    #[target_feature(enable = "gfni,avx512f,avx512bw")]
    fn table(coefficient: u8) -> Table {
        _mm512_set1_epi64(MATRICES[usize::from(coefficient)].cast_signed())
    }

    #[inline]
    #[target_feature(enable = "gfni,avx512f,avx512bw")]
    fn product(piece: Vector, table: &Table) -> Vector {
        _mm512_gf2p8affine_epi64_epi8::<0>(piece, *table)
    }
}

mod gfni_avx2 {
    use super::*;

    type Vector = __m256i;
    type Table = __m256i;

    memory!("gfni,avx2", _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256);
    fold!("gfni,avx2");

    #[inline]
    #[target_feature(enable = "gfni,avx2")]
    fn table(coefficient: u8) -> Table {
        _mm256_set1_epi64x(MATRICES[usize::from(coefficient)].cast_signed())
    }

    #[inline]
    #[target_feature(enable = "gfni,avx2")]
    fn product(piece: Vector, table: &Table) -> Vector {
        _mm256_gf2p8affine_epi64_epi8::<0>(piece, *table)
    }
}

mod avx2 {
    use super::*;

    type Vector = __m256i;
    /// Products of the low and of the high half, in both halves of the vector.
    type Table = (__m256i, __m256i);

    memory!("avx2", _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256);
    fold!("avx2");

    #[inline]
    #[target_feature(enable = "avx2")]
    fn table(coefficient: u8) -> Table {
        let halves = NIBBLES[usize::from(coefficient)].as_ptr();
        // SAFETY: the table has 32 bytes.
        let (low, high) =
            unsafe { (_mm_loadu_si128(halves.cast()), _mm_loadu_si128(halves.add(16).cast())) };
        (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn product(piece: Vector, table: &Table) -> Vector {
        let mask = _mm256_set1_epi8(0x0F);
        let low = _mm256_and_si256(piece, mask);
        let high = _mm256_and_si256(_mm256_srli_epi64::<4>(piece), mask);
        _mm256_xor_si256(_mm256_shuffle_epi8(table.0, low), _mm256_shuffle_epi8(table.1, high))
    }
}

mod ssse3 {
    use super::*;

    type Vector = __m128i;
    /// Products of the low and of the high half.
    type Table = (__m128i, __m128i);

    memory!("ssse3", _mm_loadu_si128, _mm_storeu_si128, _mm_xor_si128);
    fold!("ssse3");

    #[inline]
    #[target_feature(enable = "ssse3")]
    fn table(coefficient: u8) -> Table {
        let halves = NIBBLES[usize::from(coefficient)].as_ptr();
        // SAFETY: the table has 32 bytes.
        unsafe { (_mm_loadu_si128(halves.cast()), _mm_loadu_si128(halves.add(16).cast())) }
    }

    #[inline]
    #[target_feature(enable = "ssse3")]
    fn product(piece: Vector, table: &Table) -> Vector {
        let mask = _mm_set1_epi8(0x0F);
        let low = _mm_and_si128(piece, mask);
        let high = _mm_and_si128(_mm_srli_epi64::<4>(piece), mask);
        _mm_xor_si128(_mm_shuffle_epi8(table.0, low), _mm_shuffle_epi8(table.1, high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_a_processor_need_no_feature_that_it_lacks() {
        let all =
            [Feature::Gfni, Feature::Avx512f, Feature::Avx512bw, Feature::Avx2, Feature::Ssse3];
        let levels = [
            (Level::GfniAvx512, &[Feature::Gfni, Feature::Avx512f, Feature::Avx512bw][..]),
            (Level::GfniAvx2, &[Feature::Gfni, Feature::Avx2]),
            (Level::Avx2, &[Feature::Avx2]),
            (Level::Ssse3, &[Feature::Ssse3]),
        ];
        // Every set of features, whether or not a processor has it.
        for set in 0..1_u32 << all.len() {
            let present = all.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
            let present: Vec<_> = present.map(|(_, feature)| *feature).collect();
            let runs = |needs: &[Feature]| needs.iter().all(|need| present.contains(need));
            let expected = levels.iter().filter(|(_, needs)| runs(needs)).map(|(level, _)| *level);
            let found = Level::of_processor(|feature| present.contains(&feature));
            assert!(found.eq(expected), "{present:?}");
        }
    }
}
