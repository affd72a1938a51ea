//! Kernels multiply whole shards with the vector instructions of the processor.

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
use super::x86;
use super::{LANE, POLYNOMIAL};

/// Multiplication kernel of this processor. Only [`Kernel::best`] and the tests' list create one,
/// so a kernel's instructions are always available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    Simd(x86::Level),
}

impl Kernel {
    /// Returns the fastest kernel of this processor. The standard library caches the detection.
    pub(crate) fn best() -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        if let Some(level) = x86::Level::available().next() {
            return Self(Level::Simd(level));
        }
        Self(Level::Scalar)
    }

    /// Returns all kernels of this processor, the fastest first.
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

    /// Adds `src` times the row's coefficient to each row. `rows` holds one row per coefficient,
    /// `stride` bytes apart.
    ///
    /// `src` may have any length; zeros are assumed to the end of its last lane.
    ///
    /// # Panics
    ///
    /// If `stride` is not whole lanes or is shorter than `src`, or `rows` is too short. Callers
    /// size the rows; no packet can cause it.
    pub(crate) fn fold(self, rows: &mut [u8], stride: usize, coefficients: &[u8], src: &[u8]) {
        assert!(stride.is_multiple_of(LANE) && src.len() <= stride);
        assert!(coefficients.len().checked_mul(stride).is_some_and(|all| all <= rows.len()));
        match self.0 {
            Level::Scalar => scalar(rows, stride, coefficients, src),
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            Level::Simd(level) => level.fold(rows, stride, coefficients, src),
        }
    }
}

type Lane = [u8; LANE];

/// The portable kernel: plain operations on whole lanes, which compilers vectorize for the target's
/// baseline. Tests compare the other kernels with it.
fn scalar(rows: &mut [u8], stride: usize, coefficients: &[u8], src: &[u8]) {
    let (lanes, tail) = src.as_chunks::<LANE>();
    let mut last = [0; LANE];
    last.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
    let last = (!tail.is_empty()).then_some(&last);
    for (i, lane) in lanes.iter().chain(last).enumerate() {
        let powers = powers(lane);
        for (row, &coefficient) in rows.chunks_exact_mut(stride).zip(coefficients) {
            if let Some(to) = row.as_chunks_mut::<LANE>().0.get_mut(i) {
                add(to, &powers, coefficient);
            }
        }
    }
}

/// The lane times 1, 2, 4, ... 128.
fn powers(lane: &Lane) -> [Lane; 8] {
    let mut powers = [*lane; 8];
    for i in 1..8 {
        let (done, rest) = powers.split_at_mut(i);
        for (to, from) in rest[0].iter_mut().zip(&done[i - 1]) {
            *to = (from << 1) ^ (POLYNOMIAL & (from >> 7).wrapping_neg());
        }
    }
    powers
}

/// Adds the lane times the coefficient: the powers of its set bits.
fn add(to: &mut Lane, powers: &[Lane; 8], coefficient: u8) {
    for (bit, power) in powers.iter().enumerate() {
        let mask = (coefficient >> bit & 1).wrapping_neg();
        to.iter_mut().zip(power).for_each(|(to, from)| *to ^= from & mask);
    }
}
