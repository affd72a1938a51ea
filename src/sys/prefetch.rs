//! Software prefetch: loads memory that is needed soon while other work goes on.

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Loads all of `value` into the processor's caches without waiting. Does nothing on processors other
/// than x86-64.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        let start = std::ptr::from_ref(value).cast::<i8>();
        for offset in (0..size_of::<T>()).step_by(LINE) {
            #[expect(unsafe_code, reason = "the standard library has no safe prefetch")]
            // SAFETY: the instruction is a part of SSE, which every x86-64 processor has. It reads no
            // memory that the program can observe, and never faults.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset));
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
