//! Packets of the encoder, and their recovery.

use super::*;
use crate::fec::gf256::{Kernel, coefficients, padded};

/// Parity of a group computed at once, from its data packets.
fn one_shot(config: FecConfig, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let len = data.iter().map(Vec::len).max().unwrap() - UNCOVERED_LEN;
    let places: Vec<u8> = (0..=255).take(config.sum() as usize).collect();
    let (known, wanted) = places.split_at(config.data_shards());
    let mut rows = vec![0; padded(len) * wanted.len()];
    for (packet, column) in data.iter().zip(coefficients(known, wanted).chunks(wanted.len())) {
        let scalar = *Kernel::all().last().unwrap();
        scalar.fold(&mut rows, padded(len), column, &packet[UNCOVERED_LEN..]);
    }
    rows.chunks(padded(len)).map(|row| row[..len].to_vec()).collect()
}

#[test]
fn incremental_parity_equals_parity_of_the_whole_group() {
    let now = Instant::now();
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let config = config(rng.range(1, 40) as usize, rng.range(1, 12) as usize);
        for kernel in Kernel::all() {
            let mut rng = rng.clone();
            let mut encoder = FecEncoder::with_kernel(config, 0, kernel);
            // The longest packet changes from group to group, and within a group.
            for group in 0..4 {
                let (mut data, mut parity) = (Vec::new(), Vec::new());
                for _ in 0..config.data_shards() {
                    let len = rng.spread(0, 3_000) as usize;
                    let mut packets = seal(&mut encoder, now, &payload(&mut rng, len));
                    parity.extend(packets.drain(1..));
                    data.append(&mut packets);
                }
                if group == 0 && config.data_shards() == 1 {
                    assert!(parity.is_empty());
                    continue;
                }
                let first = group * config.sum() + config.data_shards() as u32;
                let expected = one_shot(config, &data);
                assert_eq!(parity.len(), expected.len());
                for (i, (packet, content)) in parity.iter().zip(expected).enumerate() {
                    assert_eq!(seqid(packet), first + i as u32);
                    assert_eq!(packet[4..UNCOVERED_LEN], PARITY.to_le_bytes());
                    assert!(packet[UNCOVERED_LEN..] == content, "seed {seed}, {}", kernel.name());
                }
            }
        }
    }
}

/// Rule: W-2.
#[test]
fn data_packet_header_has_seqid_flag_and_size() {
    let mut encoder = FecEncoder::starting_at(config(10, 3), 26);
    let packets = seal(&mut encoder, Instant::now(), b"datagram");
    assert_eq!(packets, [b"\x1a\0\0\0\xf1\0\x0a\0datagram"]);
}

#[test]
fn group_with_a_late_last_packet_skips_its_parity_seqids() {
    let start = Instant::now();
    let mut encoder = FecEncoder::new(config(3, 2));
    let mut at = |millis: u64| {
        let packets = seal(&mut encoder, start + self::millis(millis), b"datagram");
        (seqid(&packets[0]), packets.len() - 1)
    };
    // Only the gap between the last two counts.
    assert_eq!([at(0), at(2_000), at(2_499)], [(0, 0), (1, 0), (2, 2)]);
    assert_eq!([at(2_500), at(2_501), at(3_001)], [(5, 0), (6, 0), (7, 0)]);
    assert_eq!([at(3_001), at(9_000), at(9_000)], [(10, 0), (11, 0), (12, 2)]);
}

#[test]
fn first_packet_alone_gets_no_parity() {
    let start = Instant::now();
    let mut encoder = FecEncoder::new(config(1, 2));
    let mut at = |millis: u64| seal(&mut encoder, start + self::millis(millis), b"").len() - 1;
    assert_eq!([at(0), at(1), at(501), at(1_000), at(1_001)], [0, 2, 0, 2, 2]);
}

#[test]
fn seqid_wraps_after_the_last_group() {
    let now = Instant::now();
    let shape = config(10, 3);
    let mut encoder = FecEncoder::starting_at(shape, shape.paws() - 13);
    let packets = groups(&mut encoder, now, &mut Rng::new(1), 3);
    let numbers: Vec<u32> = packets.iter().map(|packet| seqid(packet)).collect();
    let expected = (shape.paws() - 13..shape.paws()).chain(0..26);
    assert!(numbers.into_iter().eq(expected));
    let mut decoder = FecDecoder::new(Some(shape));
    recovers(&mut decoder, now, &packets, &[0, 4, 9, 13, 14, 15, 30]);
    assert_eq!(decoder.stats().layout_changes, 0);
}

/// Rule: P-55.
#[test]
fn layout_change_starts_after_516_unprotected_packets_at_a_group_start() {
    let now = Instant::now();
    let mut rng = Rng::new(1);
    let mut encoder = FecEncoder::new(config(10, 3));
    (0..4).for_each(|_| drop(seal(&mut encoder, now, b"lost")));
    encoder.set_config(config(10, 3));
    assert_eq!(seqid(&seal(&mut encoder, now, b"the same groups")[0]), 4);
    encoder.set_config(config(3, 3));
    assert_eq!(encoder.emit_parity(0, &mut Vec::new()), 0);
    let alone = between(&mut encoder, now, &mut rng);
    assert!(alone.iter().map(|packet| seqid(packet)).eq(5..522));
    let packets = groups(&mut encoder, now, &mut rng, 1);
    assert!(packets.iter().map(|packet| seqid(packet)).eq(522..528));
    recovers(&mut FecDecoder::new(Some(config(3, 3))), now, &packets, &[0, 1, 2]);
    // The encoder skips seqids that the new layout does not have.
    let last = config(10, 3).paws() - 13;
    let mut encoder = FecEncoder::starting_at(config(10, 3), last);
    encoder.set_config(config(128, 128));
    assert_eq!(seqid(&seal(&mut encoder, now, b"x")[0]), 0);
}

/// A receiver that keeps the old groups until it has forgotten them, as kcp-go's does, must not
/// compute datagrams that were never sent.
#[test]
fn layout_change_never_mixes_parity_of_both_layouts() {
    let now = Instant::now();
    let mut rng = Rng::new(2);
    for (old, new) in [((10, 3), (5, 2)), ((3, 1), (20, 5)), ((1, 1), (2, 4)), ((10, 3), (9, 4))] {
        for before in 0..30 {
            let old = config(old.0, old.1);
            let mut encoder = FecEncoder::new(old);
            (0..before).for_each(|_| drop(seal(&mut encoder, now, b"before")));
            encoder.set_config(config(new.0, new.1));
            let mut alone = 0;
            loop {
                let packets = seal(&mut encoder, now, &payload(&mut rng, 60));
                if packets.len() > 1 {
                    break;
                }
                alone += 1;
            }
            assert!(alone >= 2 * 258, "{alone} after {before}");
        }
    }
}

#[test]
fn emit_parity_without_a_full_group_writes_nothing() {
    let now = Instant::now();
    let mut encoder = FecEncoder::new(config(2, 1));
    let mut out = Vec::new();
    assert_eq!(encoder.emit_parity(0, &mut out), 0);
    seal(&mut encoder, now, b"a");
    assert_eq!(encoder.emit_parity(0, &mut out), 0);
    seal(&mut encoder, now, b"b");
    assert_eq!(encoder.emit_parity(1, &mut out), 0);
    assert_eq!(out, b"");
    assert_eq!(encoder.emit_parity(0, &mut out), out.len());
    assert_eq!(out.len(), HEADER_LEN + 1);
    seal(&mut encoder, now, b"a");
    assert_eq!(encoder.emit_parity(0, &mut out), 0);
}

#[test]
fn largest_datagrams_are_recovered() {
    let now = Instant::now();
    let mut encoder = FecEncoder::new(config(2, 1));
    let mut packets = seal(&mut encoder, now, &payload(&mut Rng::new(1), 65_507 - HEADER_LEN));
    packets.extend(seal(&mut encoder, now, b"short"));
    assert_eq!(packets[2].len(), 65_507);
    for lost in 0..3 {
        recovers(&mut FecDecoder::new(Some(config(2, 1))), now, &packets, &[lost]);
    }
}

#[test]
fn every_loss_pattern_within_parity_is_recovered() {
    let now = Instant::now();
    for seed in 0..200 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let data = rng.spread(2, 255);
        let shape = config(data as usize, rng.spread(1, (256 - data).min(data)) as usize);
        let packets = groups(&mut FecEncoder::new(shape), now, &mut rng, 8);
        let sum = shape.sum() as usize;
        let mut lost = Vec::new();
        for group in 0..8 {
            let mut places: Vec<usize> = (0..sum).collect();
            for i in 0..rng.range(0, shape.parity_shards() as u64) as usize {
                let j = i + rng.below((sum - i) as u64) as usize;
                places.swap(i, j);
                lost.push(group * sum + places[i]);
            }
        }
        let mut decoder = FecDecoder::new(Some(shape));
        recovers(&mut decoder, now, &packets, &lost);
        let stats = decoder.stats();
        assert_eq!((stats.mismatched_shards, stats.unrecoverable_groups), (0, 0));
        let received = stats.data_shards + stats.parity_shards;
        assert_eq!(received as usize, packets.len() - lost.len());
    }
}

/// Rule: W-166.
#[test]
fn group_is_recovered_from_any_part_of_its_parity() {
    let now = Instant::now();
    for left in 1..=4 {
        let shape = config(6, 4);
        let mut encoder = FecEncoder::new(shape);
        let packets = groups(&mut encoder, now, &mut Rng::new(left), 20);
        let mut decoder = FecDecoder::new(Some(shape));
        // The first parity packets are sent, the others are not; one data packet is lost for each
        // parity packet sent.
        let lost = |index: &usize| {
            let (group, place) = (index / 10, (index % 10) as u64);
            place >= 6 + left || (0..left).any(|i| (group as u64 + i) % 6 == place)
        };
        let lost: Vec<usize> = (0..packets.len()).filter(lost).collect();
        recovers(&mut decoder, now, &packets, &lost);
        assert_eq!(decoder.stats().recovered_shards, 20 * left);
    }
}

#[test]
fn finished_group_is_not_decoded_again() {
    let now = Instant::now();
    for (data, parity) in [(1, 1), (2, 3), (3, 3), (1, 4)] {
        let shape = config(data, parity);
        let mut encoder = FecEncoder::new(shape);
        let packets = groups(&mut encoder, now, &mut Rng::new(7), 20);
        let mut decoder = FecDecoder::new(Some(shape));
        recovers(&mut decoder, now, &packets, &[]);
        assert_eq!(decoder.stats().recovered_shards, 0);
        // The last packets again do not restart it either; they are counted as duplicates or late.
        let again = (data + parity) * 4;
        recovers(&mut decoder, now, &packets[packets.len() - again..], &[]);
        assert_eq!(decoder.stats().duplicate_shards, again as u64);
    }
}

#[test]
fn reordered_and_duplicate_packets_are_recovered_once() {
    let now = Instant::now();
    let shape = config(10, 3);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let packets = groups(&mut FecEncoder::new(shape), now, &mut rng, 20);
        // Packets are late by up to two groups, one in five arrives twice, and three of each group
        // never arrive.
        let mut queue: Vec<(u64, usize)> = Vec::new();
        let mut lost = Vec::new();
        for index in 0..packets.len() {
            if index % 13 % 4 == (index / 13) % 4 && index % 13 != 12 {
                lost.push(index);
                continue;
            }
            for _ in 0..1 + u64::from(rng.chance(200_000)) {
                queue.push((index as u64 + rng.below(26), index));
            }
        }
        queue.sort_unstable();
        let mut decoder = FecDecoder::new(Some(shape));
        let fed = queue.iter().flat_map(|(_, index)| feed(&mut decoder, now, &packets[*index]));
        let recovered: Vec<_> = fed.collect();
        // Any ten packets finish a group, so parity may also have computed packets that were only
        // late.
        for index in lost.into_iter().filter(|index| index % 13 < 10) {
            let count = recovered.iter().filter(|d| **d == packets[index][HEADER_LEN..]).count();
            assert_eq!(count, 1, "seed {seed}, packet {index}");
        }
        assert_eq!(decoder.stats().mismatched_shards, 0);
    }
}

#[test]
fn unrecoverable_group_is_counted_when_it_leaves_the_window() {
    let now = Instant::now();
    let shape = config(4, 2);
    let packets = groups(&mut FecEncoder::new(shape), now, &mut Rng::new(3), 6);
    let mut decoder = FecDecoder::new(Some(shape));
    // The first group has too few packets, the second not even parity.
    for index in [3, 5, 6, 7] {
        assert!(feed(&mut decoder, now, &packets[index]).is_empty());
    }
    recovers(&mut decoder, now, &packets[12..24], &[]);
    assert_eq!(decoder.stats().unrecoverable_groups, 0);
    recovers(&mut decoder, now, &packets[24..], &[]);
    assert_eq!(decoder.stats().unrecoverable_groups, 1);
}

#[test]
fn malformed_recovered_datagrams_are_counted() {
    let now = Instant::now();
    let packets = groups(&mut FecEncoder::new(config(2, 1)), now, &mut Rng::new(1), 1);
    let mut decoder = FecDecoder::new(Some(config(2, 1)));
    decoder.input(now, &packets[0], |_| unreachable!());
    decoder.input(now, &packets[2], |datagram| {
        assert_eq!(datagram, &packets[1][HEADER_LEN..]);
        false
    });
    let stats = decoder.stats();
    assert_eq!((stats.recovered_shards, stats.mismatched_shards), (0, 1));
}
