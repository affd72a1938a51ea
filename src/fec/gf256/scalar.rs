//! The portable kernel: plain operations on whole lanes, which compilers vectorize for the target's
//! baseline. Tests compare the other kernels with it.

use super::field::{LANE, POLYNOMIAL};

type Lane = [u8; LANE];

pub(super) fn fold(rows: &mut [u8], stride: usize, coefficients: &[u8], src: &[u8]) {
    if stride == 0 {
        return;
    }
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
