//! Seqids and contents that no honest peer sends, and restarted peers.

use super::*;

fn forged(seqid: u32, parity: bool, len: usize) -> Vec<u8> {
    let mut packet = seqid.to_le_bytes().to_vec();
    packet.extend_from_slice(&if parity { PARITY } else { DATA }.to_le_bytes());
    packet.resize(UNCOVERED_LEN + len, 0x5A);
    packet
}

/// An encoder and its decoder after ten groups, the payload generator, and the time.
fn running() -> (FecEncoder, FecDecoder, Rng, Instant) {
    let (now, shape, mut rng) = (Instant::now(), config(10, 3), Rng::new(1));
    let mut encoder = FecEncoder::starting_at(shape, 13_000);
    let mut decoder = FecDecoder::new(Some(shape));
    let packets = groups(&mut encoder, now, &mut rng, 10);
    recovers(&mut decoder, now, &packets, &[2, 20]);
    (encoder, decoder, rng, now)
}

#[test]
fn one_seqid_far_outside_does_not_move_the_window() {
    for far in [100_000, 13_000 + 13 * 200, 0, u32::MAX - 100, 1 << 31, 13_000 - 13 * 10] {
        let (mut encoder, mut decoder, mut rng, now) = running();
        for round in 0..20 {
            let packets = groups(&mut encoder, now, &mut rng, 1);
            // A repeated seqid counts once, and near packets in between reduce the count.
            let far = far / 13 * 13 + 10 + round % 2;
            decoder.input(now, &forged(far, true, 100), |_| unreachable!());
            decoder.input(now, &forged(far, true, 100), |_| unreachable!());
            recovers(&mut decoder, now, &packets, &[1, 4, 6]);
        }
        let stats = decoder.stats();
        assert_eq!(stats.refused_jumps + stats.late_shards, 40, "{far}");
    }
}

#[test]
fn sixteen_seqids_far_outside_move_the_window_and_two_after_a_pause() {
    for (pause, count) in [(0, 16), (999, 16), (1_000, 2), (60_000, 2)] {
        let (mut old, mut decoder, mut rng, now) = running();
        let mut encoder = FecEncoder::starting_at(config(10, 3), 1 << 30);
        let packets = groups(&mut encoder, now, &mut rng, 6);
        let now = now + millis(pause);
        // Packets before the last of them are not kept.
        for packet in &packets[..count] {
            assert!(feed(&mut decoder, now, packet).is_empty());
        }
        assert_eq!(decoder.stats().refused_jumps, count as u64 - 1, "after {pause} ms");
        recovers(&mut decoder, now, &packets[26..], &[0, 14, 15]);
        // The same number of old packets would move it back.
        let packets = groups(&mut old, now, &mut rng, 1);
        packets.iter().for_each(|packet| assert!(feed(&mut decoder, now, packet).is_empty()));
    }
}

#[test]
fn seqids_far_outside_with_one_near_between_them_do_not_move_the_window() {
    let (mut encoder, mut decoder, mut rng, now) = running();
    for round in 0..20 {
        let packets = groups(&mut encoder, now, &mut rng, 1);
        for place in 0..15 {
            let at = (1 << 30) + 13_000 * round + place;
            decoder.input(now, &forged(at, at % 13 >= 10, 100), |_| unreachable!());
        }
        recovers(&mut decoder, now, &packets, &[1, 4, 6]);
    }
}

#[test]
fn restarted_peer_at_seqid_zero_is_decoded() {
    for before in [1, 3, 5, 30, 64, 70, 1_000] {
        let (now, shape, mut rng) = (Instant::now(), config(10, 3), Rng::new(before));
        let mut encoder = FecEncoder::new(shape);
        let mut decoder = FecDecoder::new(Some(shape));
        for packet in groups(&mut encoder, now, &mut rng, before as usize) {
            decoder.input(now, &packet, |_| false);
        }
        // A group that the restart interrupts.
        for _ in 0..5 {
            decoder.input(now, &seal(&mut encoder, now, b"before")[0], |_| false);
        }
        let mut encoder = FecEncoder::new(shape);
        let mut lossy = groups(&mut encoder, now, &mut rng, 5);
        lossy.remove(4);
        lossy.iter().for_each(|packet| drop(feed(&mut decoder, now, packet)));
        for _ in 0..10 {
            recovers(&mut decoder, now, &groups(&mut encoder, now, &mut rng, 1), &[0, 5, 9]);
        }
        assert_eq!(decoder.stats().mismatched_shards, 0);
        assert_eq!(decoder.stats().layout_changes, 0);
    }
}

#[test]
fn restarted_peer_with_another_layout_is_decoded() {
    let (now, mut rng) = (Instant::now(), Rng::new(9));
    for before in [1, 3, 5, 30, 70, 1_000] {
        for (data, parity) in [(5, 2), (20, 4), (100, 28)] {
            let shape = config(data, parity);
            let mut decoder = FecDecoder::new(Some(config(10, 3)));
            let mut encoder = FecEncoder::new(config(10, 3));
            for packet in groups(&mut encoder, now, &mut rng, before) {
                decoder.input(now, &packet, |_| false);
            }
            let mut encoder = FecEncoder::new(shape);
            for packet in groups(&mut encoder, now, &mut rng, 5) {
                decoder.input(now, &packet, |_| false);
            }
            assert_eq!(decoder.layout(), Some(shape));
            recovers(&mut decoder, now, &groups(&mut encoder, now, &mut rng, 4), &[0]);
        }
    }
}

#[test]
fn seqid_ahead_within_64_groups_moves_the_window_at_once() {
    let (_, mut decoder, mut rng, now) = running();
    let mut encoder = FecEncoder::starting_at(config(10, 3), 13_000 + 13 * (9 + 64));
    recovers(&mut decoder, now, &groups(&mut encoder, now, &mut rng, 3), &[0, 1, 2]);
    assert_eq!(decoder.stats().refused_jumps, 0);
}

#[test]
fn memory_is_bounded_by_four_groups() {
    let now = Instant::now();
    for (data, parity) in [(10, 3), (128, 127), (3, 60), (200, 56)] {
        let shape = config(data, parity);
        let mut rng = Rng::new(data as u64);
        let mut decoder = FecDecoder::new(Some(shape));
        let mut at = 0_u32;
        let mtu = 1_400;
        for _ in 0..60_000 {
            at = match rng.below(100) {
                0 => at.wrapping_add(rng.below(2_000) as u32),
                1 => rng.next() as u32,
                2..=60 => at.wrapping_add(1),
                _ => at.wrapping_sub(rng.below(4 * u64::from(shape.sum())) as u32),
            };
            let len = rng.range(0, mtu as u64) as usize;
            decoder.input(now, &forged(at, shape.is_parity(at), len), |_| false);
        }
        decoder.check_invariants();
        let (shards, cache) = decoder.memory();
        // A buffer also has some bytes for padding and alignment.
        assert!(shards <= 4 * (data + parity) * (mtu + 126), "{shards} of {shape:?}");
        assert!(cache <= 256 * 1024, "{cache} of {shape:?}");
    }
}

#[test]
fn memory_includes_the_recovered_packets() {
    let (now, shape, mut rng) = (Instant::now(), config(10, 10), Rng::new(1));
    let mut encoder = FecEncoder::new(shape);
    let mut packets = Vec::new();
    for _ in 0..10 {
        packets.extend(seal(&mut encoder, now, &payload(&mut rng, 1_400 - HEADER_LEN)));
    }
    let mut decoder = FecDecoder::new(Some(shape));
    recovers(&mut decoder, now, &packets, &(0..10).collect::<Vec<_>>());
    // Ten parity packets, and ten recovered ones.
    let (shards, _) = decoder.memory();
    let covered = 1_400 - UNCOVERED_LEN;
    assert!((20 * covered..20 * (covered + 126)).contains(&shards), "{shards}");
}

#[test]
fn coefficient_cache_stays_within_its_bound() {
    let now = Instant::now();
    for (data, parity) in [(10, 3), (128, 64), (128, 128), (170, 86)] {
        let shape = config(data, parity);
        let mut rng = Rng::new(1);
        let mut encoder = FecEncoder::new(shape);
        let mut decoder = FecDecoder::new(Some(shape));
        for _ in 0..if data > 100 { 60 } else { 1_000 } {
            let packets = groups(&mut encoder, now, &mut rng, 1);
            let mut lost: Vec<usize> = (0..data).collect();
            while lost.len() > parity {
                lost.swap_remove(rng.below(lost.len() as u64) as usize);
            }
            recovers(&mut decoder, now, &packets, &lost);
        }
        let cache = decoder.memory().1;
        assert!((1..=256 * 1024).contains(&cache), "{cache} of {shape:?}");
    }
}

#[test]
fn shard_buffers_are_reused() {
    let (mut encoder, mut decoder, mut rng, now) = running();
    let mut run = |decoder: &mut FecDecoder, encoder: &mut FecEncoder| {
        for _ in 0..200 {
            let mut packets = Vec::new();
            for _ in 0..10 {
                packets.extend(seal(encoder, now, &payload(&mut rng, 1_392)));
            }
            let lost = rng.below(13) as usize;
            recovers(decoder, now, &packets, &[lost, (lost + 5) % 13]);
        }
        (decoder.memory(), encoder.memory())
    };
    let once = run(&mut decoder, &mut encoder);
    assert_eq!(run(&mut decoder, &mut encoder), once);
}

#[test]
fn short_and_foreign_packets_are_ignored() {
    let mut decoder = FecDecoder::new(None);
    let now = Instant::now();
    for packet in [&[][..], &[0; 5], &forged(1, false, 0), &forged(2, true, 1), &[0; 100]] {
        decoder.input(now, packet, |_| unreachable!());
    }
    let mut out_of_band = forged(1, false, 50);
    out_of_band[4] = 0xF3;
    decoder.input(now, &out_of_band, |_| unreachable!());
    assert_eq!(decoder.stats(), FecStats::default());
}

#[test]
fn parity_of_wrong_length_recovers_nothing() {
    let (now, shape) = (Instant::now(), config(2, 2));
    let packets = groups(&mut FecEncoder::new(shape), now, &mut Rng::new(1), 1);
    let mut short = packets[2].clone();
    short.truncate(packets[0].len().min(packets[1].len()) - 2);
    for (data, parity) in [(0, 2), (0, 3), (1, 3)] {
        // A flipped byte in the padding, or in the size.
        let mut decoder = FecDecoder::new(Some(shape));
        let mut damaged = packets[parity].clone();
        damaged[UNCOVERED_LEN + 1] ^= 0x40;
        decoder.input(now, &packets[data], |_| unreachable!());
        decoder.input(now, &damaged, |_| unreachable!());
        assert_eq!(decoder.stats().mismatched_shards, 1);
    }
    let mut decoder = FecDecoder::new(Some(shape));
    decoder.input(now, &packets[0], |_| unreachable!());
    decoder.input(now, &short, |_| unreachable!());
    assert_eq!(decoder.stats().mismatched_shards, 1);
}

#[test]
fn reused_seqid_restarts_its_group() {
    let (now, shape, mut rng) = (Instant::now(), config(4, 2), Rng::new(8));
    let old = groups(&mut FecEncoder::new(shape), now, &mut rng, 1);
    let new = groups(&mut FecEncoder::new(shape), now, &mut rng, 1);
    let mut decoder = FecDecoder::new(Some(shape));
    recovers(&mut decoder, now, &old[..3], &[]);
    recovers(&mut decoder, now, &new, &[1, 3]);
    assert_eq!(decoder.stats().mismatched_shards, 0);
}

#[test]
fn arbitrary_packets_keep_the_invariants() {
    let now = Instant::now();
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut decoder =
            FecDecoder::new(rng.pick(&[None, Some(config(10, 3)), Some(config(1, 1))]));
        let mut at = rng.next() as u32;
        let mut clock = now;
        for _ in 0..500 {
            at = match rng.below(10) {
                0 => rng.next() as u32,
                1 => at.wrapping_sub(rng.below(50) as u32),
                2 => at.wrapping_add(rng.below(50) as u32),
                _ => at.wrapping_add(1),
            };
            clock += millis(rng.below(3) * rng.below(600));
            let len = rng.below(80) as usize;
            let mut packet = forged(at, rng.chance(300_000), len);
            packet.iter_mut().skip(UNCOVERED_LEN).for_each(|byte| *byte = rng.below(3) as u8);
            decoder.input(clock, &packet, |_| rng.chance(500_000));
            decoder.check_invariants();
        }
    }
}
