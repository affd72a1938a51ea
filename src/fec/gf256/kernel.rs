//! Kernels multiply whole shards with the vector instructions of the processor.

use super::field::LANE;
use super::scalar;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
use super::x86;

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
            Level::Scalar => scalar::fold(rows, stride, coefficients, src),
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            Level::Simd(level) => level.fold(rows, stride, coefficients, src),
        }
    }
}
