//! Data to send, and what it is recognised by.

#![allow(dead_code, reason = "each program uses a part of it")]

use chacha20::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use sha2::{Digest, Sha256};

/// `len` bytes without a pattern; another `seed` gives others (ChaCha8).
pub(crate) fn pseudo_random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// In hexadecimal digits.
pub(crate) fn sha256(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
