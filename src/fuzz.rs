//! Bodies of the fuzz targets: plain functions of bytes, so that ordinary builds compile them and
//! ordinary tests run them. Private; see `fuzz/`.

mod choices;
mod datagram;
mod endpoint;
mod fec_decode;
mod kcp_ops;
mod open_packet;
mod repair;
mod retry;
mod segment;
mod wire;

pub use self::datagram::datagram;
pub use self::endpoint::endpoint;
pub use self::fec_decode::*;
pub use self::kcp_ops::kcp_ops;
pub use self::open_packet::*;
pub use self::repair::repair;
pub use self::retry::retry;
pub use self::segment::segment;

use self::choices::Choices;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::segment::HEADER_LEN;
    use crate::testkit::rng::Rng;

    fn random(seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let len = rng.range(1, 3_000) as usize;
        std::iter::repeat_with(|| rng.next() as u8).take(len).collect()
    }

    /// Inputs kept beside the targets; the published package has none.
    fn seeds(target: &str) -> Vec<Vec<u8>> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/");
        let Ok(entries) = std::fs::read_dir(format!("{folder}{target}")) else {
            return Vec::new();
        };
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            println!("{}", path.display());
            std::fs::read(path).unwrap()
        };
        paths.iter().map(read).collect()
    }

    #[test]
    fn kcp_ops_hold_invariants_for_any_input() {
        seeds("kcp_ops").iter().for_each(|input| kcp_ops(input));
        for seed in 0..300 {
            println!("seed {seed}");
            let mut input = random(seed);
            // Every third input forges; without forgeries everything must arrive.
            input[1] = u8::from(seed % 3 == 0);
            kcp_ops(&input);
        }
    }

    #[test]
    fn forged_hello_and_repair_end_no_connection() {
        seeds("repair").iter().for_each(|input| repair(input));
        for seed in 0..300 {
            println!("seed {seed}");
            repair(&random(seed));
        }
    }

    #[test]
    fn retry_opens_no_connection_without_a_valid_answer() {
        for seed in 0..1_000 {
            println!("seed {seed}");
            retry(&random(seed));
        }
    }

    #[test]
    fn endpoint_survives_any_datagrams() {
        seeds("datagram").iter().for_each(|input| datagram(input));
        for seed in 0..300 {
            println!("seed {seed}");
            datagram(&random(seed));
        }
    }

    #[test]
    fn endpoints_survive_any_application_and_network() {
        seeds("endpoint").iter().for_each(|input| endpoint(input));
        for seed in 0..300 {
            println!("seed {seed}");
            endpoint(&random(seed));
        }
    }

    #[test]
    fn segment_parser_agrees_with_a_naive_walk() {
        seeds("segment").iter().for_each(|input| segment(input));
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
