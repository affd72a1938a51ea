//! Data to send, and what it is recognised by.

#![allow(dead_code, reason = "each program uses a part of it")]

use sha2::{Digest, Sha256};

/// `len` bytes without a pattern; another `seed` gives others (SplitMix64).
pub(crate) fn pseudo_random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(len).collect()
}

/// In hexadecimal digits.
pub(crate) fn sha256(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
