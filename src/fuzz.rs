//! Bodies of the fuzz targets: plain functions of bytes, so that ordinary builds compile them and
//! ordinary tests run them. Private; see `fuzz/`.

mod choices;
mod datagram;
pub(crate) mod endpoint;
mod fec_decode;
mod kcp_ops;
mod open_packet;
mod repair;
mod retry;
pub(crate) mod wire;

pub use self::datagram::datagram;
pub use self::endpoint::{ENDPOINT, endpoint};
pub use self::fec_decode::*;
pub use self::kcp_ops::{KCP_OPS, kcp_ops};
pub use self::open_packet::*;
pub use self::repair::{REPAIR, repair};
pub use self::retry::retry;

use self::choices::Choices;
use crate::core::segment::{self, HEADER_LEN, Segments};

/// Parses arbitrary bytes: the parser agrees with a naive walk, and re-encodes each segment to the
/// same bytes.
///
/// # Panics
///
/// If the two differ.
pub fn segment(data: &[u8]) {
    let conv = data.first_chunk().map_or(0, |conv| u32::from_le_bytes(*conv));
    let walked = segment::validate(data, conv).is_ok();
    let naive = naive_walk(data, conv);
    assert_eq!(walked, naive.is_some());
    let segments: Vec<_> = Segments::new(data).collect();
    if let Some(naive) = naive {
        assert_eq!(segments.len(), naive.len());
        for ((header, payload), (at, len)) in segments.iter().zip(naive) {
            let mut written = Vec::new();
            header.emit(&mut written);
            assert_eq!(written, data[at..at + HEADER_LEN]);
            assert_eq!(*payload, &data[at + HEADER_LEN..at + HEADER_LEN + len]);
        }
    }
}

/// Offset and payload length of each segment, read byte by byte.
fn naive_walk(data: &[u8], conv: u32) -> Option<Vec<(usize, usize)>> {
    let word = |at: usize| -> u64 { (0..4).map(|i| u64::from(data[at + i]) << (8 * i)).sum() };
    let (mut at, mut found) = (0, Vec::new());
    while data.len() - at >= HEADER_LEN {
        let len = word(at + 20);
        let rest = (data.len() - at - HEADER_LEN) as u64;
        if word(at) != u64::from(conv) || !(81..=86).contains(&data[at + 4]) || len > rest {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        found.push((at, len));
        at += HEADER_LEN + len;
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::rng::Rng;

    fn random(seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let len = rng.range(1, 3_000) as usize;
        std::iter::repeat_with(|| rng.next() as u8).take(len).collect()
    }

    /// The seeds and the minimised corpus of a target, kept beside it; the published package has none.
    fn kept(target: &str) -> Vec<Vec<u8>> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        let mut paths = Vec::new();
        for kind in ["seeds", "minimised"] {
            let entries = std::fs::read_dir(folder.join(kind).join(target));
            paths.extend(entries.into_iter().flatten().map(|entry| entry.unwrap().path()));
        }
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            println!("{}", path.display());
            std::fs::read(path).unwrap()
        };
        paths.iter().map(read).collect()
    }

    #[test]
    fn kcp_ops_hold_invariants_for_any_input() {
        for input in kept("kcp_ops") {
            kcp_ops(&input);
        }
        for seed in 0..100 {
            println!("seed {seed}");
            let mut input = random(seed);
            // Every third input forges; without forgeries everything must arrive.
            input[1] = u8::from(seed % 3 == 0);
            kcp_ops(&input);
        }
    }

    #[test]
    fn forged_hello_and_repair_end_no_connection() {
        for input in kept("repair") {
            repair(&input);
        }
        for seed in 0..100 {
            println!("seed {seed}");
            repair(&random(seed));
        }
    }

    #[test]
    fn retry_opens_no_connection_without_a_valid_answer() {
        for input in kept("retry") {
            retry(&input);
        }
        for seed in 0..300 {
            println!("seed {seed}");
            retry(&random(seed));
        }
    }

    #[test]
    fn endpoint_survives_any_datagrams() {
        kept("datagram").iter().for_each(|input| datagram(input));
        for seed in 0..300 {
            println!("seed {seed}");
            datagram(&random(seed));
        }
    }

    #[test]
    fn endpoints_survive_any_application_and_network() {
        for input in kept("endpoint") {
            endpoint(&input);
        }
        for seed in 0..100 {
            println!("seed {seed}");
            endpoint(&random(seed));
        }
    }

    #[test]
    fn segment_parser_agrees_with_a_naive_walk() {
        kept("segment").iter().for_each(|input| segment(input));
        for seed in 0..1_000 {
            let mut input = random(seed);
            segment(&input);
            // Make the first segments plausible.
            for at in (0..input.len().saturating_sub(HEADER_LEN)).step_by(40) {
                input[at..at + 4].copy_from_slice(&[7, 0, 0, 0]);
                input[at + 4] = 81 + input[at + 4] % 6;
                input[at + 20..at + 24].copy_from_slice(&[16, 0, 0, 0]);
            }
            segment(&input);
        }
    }
}
