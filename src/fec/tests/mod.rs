//! Encoder and decoder against each other.

mod autotune;
mod codec;
mod forged_shards;
mod malicious_peer;

use std::time::{Duration, Instant};

use super::encoder::UNPROTECTED;
use super::packet::UNCOVERED_LEN;
use super::*;
use crate::testkit::rng::Rng;

fn config(data: usize, parity: usize) -> FecConfig {
    FecConfig::new(data, parity).unwrap()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn payload(rng: &mut Rng, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| rng.next() as u8).take(len).collect()
}

fn seqid(packet: &[u8]) -> u32 {
    u32::from_le_bytes(*packet.first_chunk().unwrap())
}

/// Makes a data packet of the datagram; returns it and the parity due.
fn seal(encoder: &mut FecEncoder, now: Instant, datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut packet = vec![0; HEADER_LEN];
    packet.extend_from_slice(datagram);
    let due = encoder.seal(now, &mut packet);
    let mut packets = vec![packet];
    for index in 0..due {
        let mut parity = Vec::new();
        let len = encoder.emit_parity(index, &mut parity);
        assert_eq!(len, parity.len());
        packets.push(parity);
    }
    packets
}

/// Packets of complete groups of random datagrams.
fn groups(encoder: &mut FecEncoder, now: Instant, rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let datagrams = count * encoder.config().data_shards();
    (0..datagrams)
        .flat_map(|_| {
            let len = rng.range(24, 200) as usize;
            seal(encoder, now, &payload(rng, len))
        })
        .collect()
}

/// Packets between groups of two layouts: data alone, until a new group begins.
fn between(encoder: &mut FecEncoder, now: Instant, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    loop {
        packets.extend(seal(encoder, now, &payload(rng, 60)));
        let next = seqid(packets.last().unwrap()) + 1;
        if packets.len() >= UNPROTECTED as usize && next.is_multiple_of(encoder.config().sum()) {
            assert!(packets.iter().all(|packet| fec_flag(packet) == FecFlag::Data));
            return packets;
        }
    }
}

/// Returns the datagrams recovered by this packet.
fn feed(decoder: &mut FecDecoder, now: Instant, packet: &[u8]) -> Vec<Vec<u8>> {
    let mut recovered = Vec::new();
    decoder.input(now, packet, |datagram| {
        recovered.push(datagram.to_vec());
        true
    });
    decoder.check_invariants();
    recovered
}

/// Feeds all packets except those at the lost indices. Every lost datagram must be recovered.
fn recovers(decoder: &mut FecDecoder, now: Instant, packets: &[Vec<u8>], lost: &[usize]) {
    let mut recovered = Vec::new();
    for (i, packet) in packets.iter().enumerate() {
        if !lost.contains(&i) {
            recovered.extend(feed(decoder, now, packet));
        }
    }
    let mut expected: Vec<_> = lost.iter().map(|i| &packets[*i]).collect();
    expected.retain(|packet| fec_flag(packet) == FecFlag::Data);
    let mut expected: Vec<_> =
        expected.into_iter().map(|packet| packet[HEADER_LEN..].to_vec()).collect();
    expected.sort();
    recovered.sort();
    assert_eq!(recovered, expected, "lost {lost:?}");
}

#[test]
fn fec_flag_follows_from_bytes_4_and_5() {
    for (low, expected) in [
        (0xF1, FecFlag::Data),
        (0xF2, FecFlag::Parity),
        (0xF3, FecFlag::OutOfBand),
        (81, FecFlag::Plain),
        (0xF0, FecFlag::Plain),
    ] {
        assert_eq!(fec_flag(&[1, 2, 3, 4, low, 0]), expected);
        assert_eq!(fec_flag(&[1, 2, 3, 4, low, 1]), FecFlag::Plain);
        assert_eq!(fec_flag(&[1, 2, 3, 4, low]), FecFlag::Plain);
    }
}

#[test]
fn shard_counts_outside_the_range_are_refused() {
    for (data, parity) in [(1, 1), (255, 1), (1, 255), (128, 128)] {
        let config = FecConfig::new(data, parity).unwrap();
        assert_eq!((config.data_shards(), config.parity_shards()), (data, parity));
    }
    for (preset, data, parity) in [(FecConfig::SHORT, 10, 3), (FecConfig::BULK, 64, 10)] {
        assert_eq!(FecConfig::new(data, parity), Ok(preset));
    }
    let refusal = |data, parity| FecConfig::new(data, parity).unwrap_err().to_string();
    assert_eq!(refusal(0, 3), "fec data shards must be between 1 and 255, got 0");
    assert_eq!(refusal(10, 0), "fec parity shards must be between 1 and 255, got 0");
    assert_eq!(refusal(200, 57), "fec data and parity shards must be between 2 and 256, got 257");
    assert_eq!(
        refusal(usize::MAX, usize::MAX).split(',').next(),
        Some("fec data shards must be between 1 and 255")
    );
}

#[test]
fn seqid_wraps_at_a_multiple_of_the_sum() {
    assert_eq!(config(10, 3).paws(), 4_294_967_287);
    assert_eq!(config(2, 1).paws(), u32::MAX);
    assert_eq!(config(128, 128).paws(), 4_294_967_040);
    assert_eq!(config(10, 3).group_start(4_294_967_275), 0);
    assert_eq!(config(10, 3).group_start(4_294_967_274), 4_294_967_274);
    assert_eq!(config(10, 3).group_start(14), 26);
}

#[test]
fn fec_stats_add_and_subtract() {
    let one = FecStats { data_shards: 1, refused_jumps: 7, ..FecStats::default() };
    let mut sum = FecStats { data_shards: 2, layout_changes: 1, ..FecStats::default() };
    sum += one;
    assert_eq!((sum.data_shards, sum.refused_jumps, sum.layout_changes), (3, 7, 1));
}
