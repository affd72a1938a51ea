//! Mutations of inputs that are settings and records of equal length: none moves a part of a record.

use libfuzzer_sys::fuzzer_mutate;

/// Most records that one mutation moves.
const MAX_RUN: usize = 8;

/// Mutates the first `size` bytes of `data`, which may grow to `max_size`. Returns the new size.
/// `layout`: bytes of the settings, and of a record.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    layout: (usize, usize),
) -> usize {
    let (settings, width) = layout;
    let count = size.saturating_sub(settings) / width;
    if count == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut state = u64::from(seed);
    let mut below = |limit: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit.max(1)
    };
    let (what, from, to) = (below(8), below(count), below(count));
    let run = 1 + below(MAX_RUN.min(count - from));
    let place = |record: usize| settings + record * width;
    let end = place(count);
    match what {
        0 if count > run => {
            data.copy_within(place(from + run)..end, place(from));
            place(count - run)
        }
        1 | 2 if place(count + run) <= max_size => {
            let copy = data[place(from)..place(from + run)].to_vec();
            data.copy_within(place(to)..end, place(to + run));
            data[place(to)..][..copy.len()].copy_from_slice(&copy);
            place(count + run)
        }
        3 => {
            for byte in 0..width {
                data.swap(place(from) + byte, place(to) + byte);
            }
            end
        }
        4 => {
            fuzzer_mutate(&mut data[..settings], settings, settings);
            end
        }
        _ => {
            fuzzer_mutate(&mut data[place(from)..place(from + 1)], width, width);
            end
        }
    }
}
