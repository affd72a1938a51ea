//! Forward error correction of kcp-go: the encoder makes the same packets, and the decoder recovers every
//! loss that the parity covers.

use std::time::Instant;

use chacha20::ChaCha8Rng;
use kcpx::FecConfig;
use kcpx::fec::{FecDecoder, FecEncoder, HEADER_LEN};
use rand_core::{Rng as _, SeedableRng as _};
use serde::Deserialize;

use crate::unhex;

#[derive(Debug, Deserialize)]
struct File {
    vectors: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Run {
    data_shards: usize,
    parity_shards: usize,
    first_seqid: u32,
    packets: Vec<Packet>,
}

#[derive(Debug, Deserialize)]
struct Packet {
    payload: String,
    data_packet: String,
    #[serde(default)]
    parity_packets: Vec<String>,
}

/// A random number below `limit`.
fn below(rng: &mut ChaCha8Rng, limit: usize) -> usize {
    (rng.next_u64() % limit as u64) as usize
}

/// Encodes a data packet. Returns it with the parity packets that follow.
fn seal(encoder: &mut FecEncoder, now: Instant, payload: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut packet = vec![0; HEADER_LEN];
    packet.extend_from_slice(payload);
    let due = encoder.seal(now, &mut packet);
    let parity = (0..due).map(|index| {
        let mut parity = Vec::new();
        assert_eq!(encoder.emit_parity(index, &mut parity), parity.len());
        parity
    });
    let parity = parity.collect();
    (packet, parity)
}

/// Encodes the run and compares each packet. Returns the complete groups.
fn encode(run: &Run, config: FecConfig) -> Vec<Vec<Vec<u8>>> {
    let now = Instant::now();
    let mut encoder = FecEncoder::starting_at(config, run.first_seqid);
    let (mut groups, mut data) = (Vec::new(), Vec::new());
    for (i, expected) in run.packets.iter().enumerate() {
        let (packet, parity) = seal(&mut encoder, now, &unhex(&expected.payload));
        assert_eq!(packet, unhex(&expected.data_packet), "{config:?}, packet {i}");
        let wanted: Vec<_> = expected.parity_packets.iter().map(|packet| unhex(packet)).collect();
        assert_eq!(parity, wanted, "{config:?}, parity after packet {i}");
        data.push(packet);
        if !parity.is_empty() {
            data.extend(parity);
            groups.push(std::mem::take(&mut data));
        } else if data.len() == run.data_shards {
            data.clear();
        }
    }
    groups
}

/// Asserts that a decoder without the packets at `lost` recovers exactly the data packets among
/// them.
fn recover(config: FecConfig, group: &[Vec<u8>], lost: &[usize]) {
    let now = Instant::now();
    let mut decoder = FecDecoder::new(Some(config));
    let mut recovered = Vec::new();
    for (_, packet) in group.iter().enumerate().filter(|(place, _)| !lost.contains(place)) {
        decoder.input(now, packet, |datagram| {
            recovered.push(datagram.to_vec());
            true
        });
    }
    let places = (0..config.data_shards()).filter(|place| lost.contains(place));
    let expected: Vec<_> = places.map(|place| &group[place][HEADER_LEN..]).collect();
    assert_eq!(recovered, expected, "{config:?} without {lost:?}");
}

/// Calls `f` with every set of at most `count` places from `start` to `end`.
fn subsets(
    start: usize,
    end: usize,
    count: usize,
    chosen: &mut Vec<usize>,
    f: &mut dyn FnMut(&[usize]),
) {
    f(chosen);
    if count == 0 {
        return;
    }
    for place in start..end {
        chosen.push(place);
        subsets(place + 1, end, count - 1, chosen, f);
        chosen.pop();
    }
}

/// Rule: W-1.
#[test]
fn kcp_go_fec_groups_are_encoded_and_recovered() {
    let file: File = serde_json::from_str(include_str!("fec.json")).unwrap();
    assert!(!file.vectors.is_empty());
    for run in &file.vectors {
        let config = FecConfig::new(run.data_shards, run.parity_shards).unwrap();
        let sum = run.data_shards + run.parity_shards;
        let groups = encode(run, config);
        assert!(!groups.is_empty(), "the run holds a complete group");
        for (i, group) in groups.iter().enumerate() {
            assert_eq!(group.len(), sum);
            if sum <= 13 {
                subsets(0, sum, run.parity_shards, &mut Vec::new(), &mut |lost| {
                    recover(config, group, lost);
                });
                continue;
            }
            let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
            for _ in 0..2_000_usize.div_ceil(groups.len()) {
                let mut lost: Vec<usize> = (0..sum).collect();
                let left = below(&mut rng, run.parity_shards) + 1;
                while lost.len() > left {
                    lost.swap_remove(below(&mut rng, lost.len()));
                }
                recover(config, group, &lost);
            }
        }
    }
    println!("fec.json: {} runs ok", file.vectors.len());
}

/// Checks every `rs` row of `kcpgo-vectors.txt` and returns the number of rows.
///
/// Data packet `i` of a group has a 1 in byte `i` and zeros elsewhere, so byte `i` of each parity packet is
/// its coefficient.
#[cfg(feature = "_testkit")]
pub(crate) fn rs_rows() -> usize {
    let now = Instant::now();
    let text = include_str!("kcpgo-vectors.txt");
    let rows = text.lines().filter_map(|line| line.strip_prefix("rs x x "));
    let mut count = 0;
    for row in rows {
        let (data, matrix) = row.split_once(' ').unwrap();
        let (data, matrix) = (data.parse::<usize>().unwrap(), unhex(matrix.trim()));
        assert!(!matrix.is_empty() && matrix.len().is_multiple_of(data), "{row}");
        let config = FecConfig::new(data, matrix.len() / data).unwrap();
        let mut encoder = FecEncoder::new(config);
        // Takes the second group, since the first packet of all may have no parity.
        let mut parity = Vec::new();
        for i in 0..2 * data {
            let mut payload = vec![0; data];
            payload[i % data] = 1;
            parity = seal(&mut encoder, now, &payload).1;
        }
        let made: Vec<u8> =
            parity.iter().flat_map(|packet| packet[HEADER_LEN..].to_vec()).collect();
        assert_eq!(made, matrix, "{config:?}");
        count += 1;
    }
    count
}
