//! GF(2^8), the field of kcp-go's Reed-Solomon code and of the sliding-window code of
//! `core/redundancy/rlc`: arithmetic, coefficients, and kernels.

mod field;
mod kernel;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86;

pub(super) use field::coefficients;
pub(crate) use field::{LANE, inverse, multiply, padded};
pub(crate) use kernel::Kernel;
