//! Detection of the peer's FEC layout.

use super::*;
use crate::fec::autotune::JumpDetector;

/// A packet of seqid and flag alone.
fn blank(seqid: u32, parity: bool) -> Vec<u8> {
    let mut packet = seqid.to_le_bytes().to_vec();
    packet.extend_from_slice(&if parity { PARITY } else { DATA }.to_le_bytes());
    packet.extend_from_slice(&[2, 0]);
    packet
}

fn sample(decoder: &mut FecDecoder, now: Instant, config: FecConfig, seqid: u32) {
    decoder.input(now, &blank(seqid, config.is_parity(seqid)), |_| true);
}

/// Layouts that differ in every respect that could matter.
fn shapes() -> Vec<FecConfig> {
    let mut shapes: Vec<_> =
        (1..=6).flat_map(|data| (1..=6).map(move |parity| config(data, parity))).collect();
    for (data, parity) in
        [(10, 3), (13, 2), (20, 5), (26, 13), (70, 30), (128, 128), (200, 56), (255, 1), (1, 255)]
    {
        shapes.push(config(data, parity));
    }
    shapes
}

#[test]
fn layout_is_detected_within_two_groups_without_loss() {
    let now = Instant::now();
    let shapes = shapes();
    for &shape in &shapes {
        for initial in std::iter::once(None).chain(shapes.iter().copied().map(Some)) {
            // The position of the first packet in its group, and the number of that group.
            for (offset, group) in
                [(0, 0), (0, 7), (1, 1_000), (shape.sum() / 2, 5), (shape.sum() - 1, 3)]
            {
                let start = group * shape.sum() + offset;
                let two = (start.div_ceil(shape.sum()) + 2) * shape.sum();
                let mut decoder = FecDecoder::new(initial);
                (start..two).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
                assert_eq!(decoder.layout(), Some(shape), "from {initial:?} at {start}");
                let changes = u64::from(initial != Some(shape));
                assert_eq!(decoder.stats().layout_changes, changes);
            }
        }
    }
}

#[test]
fn layout_change_is_detected_within_two_groups() {
    let now = Instant::now();
    let shapes = shapes();
    let mut later = 0;
    for &old in &shapes {
        for &new in shapes.iter().filter(|new| **new != old) {
            let mut decoder = FecDecoder::new(Some(old));
            (0..3 * old.sum()).for_each(|seqid| sample(&mut decoder, now, old, seqid));
            let start = new.group_start(3 * old.sum());
            let two = start + 2 * new.sum();
            (start..two).for_each(|seqid| sample(&mut decoder, now, new, seqid));
            // A single contradiction, or less than a whole group since the first, does not end a
            // proven layout. Small groups may agree with others until then.
            if decoder.layout() != Some(new) {
                let mut wrong = (start..two).filter(|i| old.is_parity(*i) != new.is_parity(*i));
                let (first, second) = (wrong.next().unwrap(), wrong.next());
                assert!(second.is_none() || two - first < new.sum(), "{old:?} to {new:?}");
                assert!(new.sum() <= 12, "{old:?} to {new:?}");
                later += 1;
                (two..two + 2 * new.sum()).for_each(|seqid| sample(&mut decoder, now, new, seqid));
            }
            assert_eq!(decoder.layout(), Some(new), "from {old:?}");
            assert_eq!(decoder.stats().layout_changes, 1);
        }
    }
    println!("{later} of {} take longer", shapes.len() * (shapes.len() - 1));
    assert!(later <= 50);
}

#[test]
fn layout_is_detected_within_16_groups_at_10_percent_loss() {
    let now = Instant::now();
    let shapes = [(1, 1), (2, 2), (5, 1), (1, 6), (10, 3), (20, 5), (70, 30), (128, 128)];
    for (data, parity) in shapes {
        let shape = config(data, parity);
        let mut worst = 0;
        for seed in 0..1_000 {
            let mut rng = Rng::keyed(seed, u64::from(shape.sum()));
            let initial =
                rng.pick(&[None, Some(config(1, 1)), Some(config(10, 2)), Some(config(3, 1))]);
            let start = rng.below(1 << 20) as u32 * shape.sum();
            let mut decoder = FecDecoder::new(initial);
            let mut learned = (initial == Some(shape)).then_some(0);
            let mut delayed = None;
            for seqid in start..start + 16 * shape.sum() {
                if rng.chance(100_000) {
                    continue;
                }
                // Some packets arrive twice, and some after the next packet.
                if delayed.is_none() && rng.chance(50_000) {
                    delayed = Some(seqid);
                    continue;
                }
                sample(&mut decoder, now, shape, seqid);
                if rng.chance(50_000) {
                    sample(&mut decoder, now, shape, seqid);
                }
                if let Some(seqid) = delayed.take() {
                    sample(&mut decoder, now, shape, seqid);
                }
                if decoder.layout() == Some(shape) {
                    learned.get_or_insert_with(|| (seqid - start) / shape.sum() + 1);
                } else {
                    assert_eq!(decoder.stats().layout_changes, 0, "seed {seed}, {shape:?}");
                }
            }
            let Some(groups) = learned else { panic!("seed {seed}: {shape:?} from {initial:?}") };
            assert_eq!(decoder.layout(), Some(shape), "seed {seed}");
            worst = worst.max(groups);
        }
        println!("{data}+{parity}: at most {worst} groups");
    }
}

#[test]
fn layout_is_detected_among_groups_without_parity() {
    let now = Instant::now();
    let shape = config(10, 3);
    for every in 2..=4 {
        let mut decoder = FecDecoder::new(Some(config(5, 2)));
        for seqid in 0..13 * 40 {
            if !shape.is_parity(seqid) || seqid / 13 % every == 0 {
                sample(&mut decoder, now, shape, seqid);
            }
        }
        assert_eq!(decoder.layout(), Some(shape), "every {every}");
    }
}

#[test]
fn layout_change_is_detected_and_recovery_continues() {
    let start = Instant::now();
    let ratios = [(10, 3), (5, 5), (20, 4), (3, 1), (1, 1), (128, 100), (10, 3)];
    let mut rng = Rng::new(1);
    let mut encoder = FecEncoder::new(config(2, 2));
    let mut decoder = FecDecoder::new(Some(config(2, 2)));
    recovers(&mut decoder, start, &groups(&mut encoder, start, &mut rng, 3), &[1, 2]);
    for (round, (data, parity)) in ratios.into_iter().enumerate() {
        let now = start + millis(1_500 * (round as u64 + 1));
        encoder.set_config(config(data, parity));
        // The layout also changes in the middle of a group.
        if round % 2 == 1 {
            encoder.set_config(config(7, 7));
            seal(&mut encoder, now, b"lost");
            encoder.set_config(config(data, parity));
        }
        for packet in between(&mut encoder, now - millis(1), &mut rng) {
            decoder.input(now, &packet, |_| panic!("nothing was lost"));
        }
        for packet in groups(&mut encoder, now, &mut rng, 3).iter().skip(data) {
            decoder.input(now, packet, |_| false);
        }
        let packets = groups(&mut encoder, now, &mut rng, 4);
        let begin = packets.iter().position(|packet| {
            seqid(packet).is_multiple_of(encoder.config().sum())
                && fec_flag(packet) == FecFlag::Data
        });
        assert_eq!(decoder.layout(), Some(encoder.config()), "round {round}");
        let begin = begin.unwrap();
        packets[..begin].iter().for_each(|packet| drop(feed(&mut decoder, now, packet)));
        let rest = &packets[begin..];
        let whole = rest.len() / (data + parity) * (data + parity);
        recovers(&mut decoder, now, &rest[..whole], &[0]);
    }
    assert_eq!(decoder.stats().layout_changes, ratios.len() as u64);
}

#[test]
fn few_contradicting_flags_change_nothing_and_many_pause_recovery() {
    let now = Instant::now();
    let mut rng = Rng::new(5);
    let shape = config(10, 3);
    let packets = groups(&mut FecEncoder::new(shape), now, &mut rng, 200);
    let mut decoder = FecDecoder::new(Some(shape));
    for (i, group) in packets.chunks(13).enumerate() {
        // Wrong kinds in every tenth group; repeated packets change nothing.
        let many = i >= 100;
        if i % 10 == 0 {
            for _ in 0..if many { 8 } else { 1 } {
                // The correct packet of this position arrives too.
                let at = seqid(&group[0]) + rng.range(1, 11) as u32;
                decoder.input(now, &blank(at, !shape.is_parity(at)), |_| unreachable!());
            }
        }
        decoder.input(now, &group[11], |_| unreachable!());
        // Packets that agree: 64 of them.
        if many && i % 10 < 5 {
            let lost = [i % 10, 12];
            let rest = group.iter().enumerate().filter(|(at, _)| !lost.contains(at));
            rest.for_each(|(_, packet)| decoder.input(now, packet, |_| unreachable!()));
        } else {
            recovers(&mut decoder, now, group, &[i % 10, 12]);
        }
    }
    let stats = decoder.stats();
    let counted = (stats.recovered_shards, stats.misplaced_shards, stats.layout_changes);
    assert_eq!(counted, (10 * 10 + 10 * 5, 10 + 80, 0));
}

#[test]
fn expected_layout_recovers_nothing_before_confirmation() {
    let now = Instant::now();
    let mut rng = Rng::new(6);
    let shape = config(10, 3);
    let packets = groups(&mut FecEncoder::new(shape), now, &mut rng, 5);
    let mut decoder = FecDecoder::with_expected_layout(shape);
    for (i, group) in packets.chunks(13).enumerate() {
        if i < 2 {
            let rest = group.iter().skip(1);
            rest.for_each(|packet| decoder.input(now, packet, |_| unreachable!()));
        } else {
            recovers(&mut decoder, now, group, &[0]);
        }
    }
}

#[test]
fn contradicting_flags_do_not_stop_detection() {
    let start = Instant::now();
    let shape = config(10, 3);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut decoder = FecDecoder::new(Some(config(4, 4)));
        // One seqid in a hundred also arrives with the wrong kind, before or after the right one.
        let mut wrong = 0;
        for seqid in 0..13 * 200 {
            let now = start + millis(u64::from(seqid));
            let forged = rng.chance(10_000).then(|| blank(seqid, !shape.is_parity(seqid)));
            let packets = [Some(blank(seqid, shape.is_parity(seqid))), forged];
            let order = if rng.chance(500_000) { [0, 1] } else { [1, 0] };
            for packet in order.iter().filter_map(|i| packets[*i].as_ref()) {
                decoder.input(now, packet, |_| true);
            }
            wrong += u64::from(decoder.layout() != Some(shape));
        }
        assert!(wrong < 13 * 100, "seed {seed}: wrong for {wrong} packets");
        // Once that stops, it has no further effect.
        let now = start + millis(13 * 200 + 1_000);
        (13 * 200..13 * 203).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
        assert_eq!(decoder.layout(), Some(shape), "seed {seed}");
    }
}

#[test]
fn layout_changes_are_at_least_a_second_apart() {
    let start = Instant::now();
    let shapes = [config(10, 3), config(5, 2)];
    let mut decoder = FecDecoder::new(None);
    let mut seqid = 0;
    // A peer that changes its layout ten times a second, for ten seconds.
    for round in 0..100 {
        let shape = shapes[round % 2];
        seqid = shape.group_start(seqid);
        for _ in 0..8 * shape.sum() {
            sample(&mut decoder, start + millis(100 * round as u64), shape, seqid);
            seqid += 1;
        }
    }
    let changes = decoder.stats().layout_changes;
    assert!((5..=10).contains(&changes), "{changes}");
    // Once the layout stays, the decoder keeps it.
    for _ in 0..4 * 13 {
        sample(&mut decoder, start + millis(12_000), shapes[0], shapes[0].group_start(seqid));
        seqid += 1;
    }
    let first = shapes[0].group_start(seqid);
    for seqid in first..first + 4 * 13 {
        sample(&mut decoder, start + millis(12_000), shapes[0], seqid);
    }
    assert_eq!(decoder.layout(), Some(shapes[0]));
}

#[test]
fn seqid_wrap_is_not_a_group_edge() {
    let now = Instant::now();
    for shape in shapes() {
        let mut decoder = FecDecoder::new(Some(config(9, 9)));
        let numbers = (shape.paws() - shape.sum()..shape.paws()).chain(0..3 * shape.sum());
        numbers.for_each(|seqid| sample(&mut decoder, now, shape, seqid));
        assert_eq!(decoder.layout(), Some(shape));
        assert_eq!(decoder.stats().layout_changes, 1);
    }
}

#[test]
fn forged_seqid_far_outside_does_not_stop_detection() {
    let now = Instant::now();
    let shape = config(10, 3);
    for far in [50_000, 4_000, 1 << 31, u32::MAX] {
        let mut decoder = FecDecoder::new(None);
        (0..13).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
        sample(&mut decoder, now, config(1, 1), far);
        (13..13 * 4).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
        assert_eq!(decoder.layout(), Some(shape), "{far}");
    }
}

#[test]
fn two_forged_seqids_far_outside_do_not_delay_detection() {
    let (now, shape) = (Instant::now(), config(10, 3));
    let mut decoder = FecDecoder::new(None);
    (0..13).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
    (50_000..50_002).for_each(|far| sample(&mut decoder, now, shape, far));
    (13..26).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
    assert_eq!(decoder.layout(), Some(shape));
}

/// The forged flag makes an edge 254 seqids before the second end of data, and the right packet replaces it.
#[test]
fn forged_edge_near_the_largest_sum_does_not_delay_detection() {
    let (now, shape) = (Instant::now(), config(128, 128));
    let mut decoder = FecDecoder::new(None);
    decoder.input(now, &blank(129, false), |_| unreachable!());
    sample(&mut decoder, now, shape, 130);
    (0..511).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
    assert_eq!(decoder.layout(), None, "two groups less a packet");
    sample(&mut decoder, now, shape, 511);
    assert_eq!(decoder.layout(), Some(shape));
}

/// No layout has the last seqid. After it, seqid 0 has the place of a parity packet 4,096 earlier, and a second
/// conflict would void the window.
#[test]
fn forged_last_seqid_does_not_delay_detection_beyond_the_wrap() {
    let (now, shape, last) = (Instant::now(), config(2, 15), u32::MAX);
    assert_eq!(shape.paws(), last);
    let mut decoder = FecDecoder::new(None);
    assert!(shape.is_parity(last - 4_095) && !shape.is_parity(0));
    sample(&mut decoder, now, shape, last - 4_095);
    decoder.input(now, &blank(last - 30, !shape.is_parity(last - 30)), |_| unreachable!());
    (last - 30..last).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
    decoder.input(now, &blank(last, false), |_| unreachable!());
    (0..2).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
    assert_eq!(decoder.layout(), None, "two groups less a packet");
    sample(&mut decoder, now, shape, 2);
    assert_eq!(decoder.layout(), Some(shape));
}

/// The packets before the jump are directly behind the ones after it, where the window stores them by their seqid.
#[test]
fn packets_before_a_jump_do_not_confirm_a_layout() {
    let (start, shape) = (Instant::now(), config(10, 3));
    let mut decoder = FecDecoder::new(None);
    (0..25).for_each(|seqid| sample(&mut decoder, start, shape, seqid));
    let (now, first) = (start + millis(1_000), 26 + 4_096 * 13);
    assert_eq!(shape.group_start(first), first);
    // The first packet after a pause proves no jump.
    (first..first + 26).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
    assert_eq!(decoder.layout(), None, "two groups less a packet");
    sample(&mut decoder, now, shape, first + 26);
    assert_eq!(decoder.layout(), Some(shape));
}

/// Of the first four packets of the other layout the third one alone contradicts the first layout.
#[test]
fn layout_is_proven_by_as_many_packets_as_two_groups_have_after_its_detection() {
    for (first, is_proven) in [(51, false), (50, true)] {
        let (start, shape, other) = (Instant::now(), config(10, 3), config(1, 1));
        let mut decoder = FecDecoder::new(None);
        (0..25).for_each(|seqid| sample(&mut decoder, start, shape, seqid));
        assert_eq!(decoder.layout(), None);
        sample(&mut decoder, start, shape, 25);
        assert_eq!(decoder.layout(), Some(shape));
        let now = start + millis(1_000);
        // The first two of the other layout are among these.
        (first..76).for_each(|seqid| sample(&mut decoder, now, shape, seqid));
        sample(&mut decoder, now, other, 76);
        assert_eq!(decoder.layout(), Some(shape));
        sample(&mut decoder, now, other, 77);
        assert_eq!(decoder.layout(), Some(if is_proven { shape } else { other }));
    }
}

/// One seqid of four groups comes with the wrong flag, and its packet is late.
#[test]
fn group_of_a_contradiction_and_those_beside_it_recover_nothing_before_the_right_packet() {
    // Before all other packets, or while the group before is the newest.
    for first in [0, 1] {
        let (now, shape, mut rng) = (Instant::now(), config(10, 3), Rng::new(1));
        let packets = groups(&mut FecEncoder::new(shape), now, &mut rng, 4);
        let mut decoder = FecDecoder::new(Some(shape));
        let (before, after) = packets.split_at(first);
        before.iter().for_each(|packet| drop(feed(&mut decoder, now, packet)));
        let late = 13 + 5;
        decoder.input(now, &blank(late, true), |_| unreachable!());
        // A data packet of each group is lost.
        for packet in after.iter().filter(|packet| seqid(packet) % 13 != 2) {
            if seqid(packet) != late {
                let recovered = feed(&mut decoder, now, packet).len();
                let completes = seqid(packet) == 3 * 13 + 10;
                assert_eq!(recovered, usize::from(completes), "{} after {first}", seqid(packet));
            }
        }
        assert_eq!(feed(&mut decoder, now, &packets[late as usize]).len(), 3, "after {first}");
    }
}

#[test]
fn contradiction_two_groups_ahead_does_not_stop_recovery() {
    let (now, shape, mut rng) = (Instant::now(), config(10, 3), Rng::new(1));
    let packets = groups(&mut FecEncoder::new(shape), now, &mut rng, 4);
    let mut decoder = FecDecoder::new(Some(shape));
    feed(&mut decoder, now, &packets[0]);
    let wrong = 2 * 13 + 5;
    decoder.input(now, &blank(wrong, true), |_| unreachable!());
    // The right packet of this seqid is lost, and a data packet of each group.
    let lost = [2, 13 + 2, 2 * 13 + 2, wrong as usize, 3 * 13 + 2].map(|index| index - 1);
    recovers(&mut decoder, now, &packets[1..], &lost);
    assert_eq!(decoder.stats().misplaced_shards, 1);
}

#[test]
fn contradictions_suspend_the_layout_up_to_64_groups_away() {
    for (group, suspends) in [(35, false), (36, true), (164, true), (165, false)] {
        let (now, shape, mut rng) = (Instant::now(), config(10, 3), Rng::new(1));
        let mut encoder = FecEncoder::starting_at(shape, 100 * 13);
        let mut decoder = FecDecoder::new(Some(shape));
        recovers(&mut decoder, now, &groups(&mut encoder, now, &mut rng, 1), &[0]);
        for seqid in group * 13..group * 13 + 8 {
            decoder.input(now, &blank(seqid, true), |_| unreachable!());
        }
        let packets = groups(&mut encoder, now, &mut rng, 1);
        let recovered: usize =
            packets.iter().skip(1).map(|packet| feed(&mut decoder, now, packet).len()).sum();
        assert_eq!((recovered == 0, decoder.layout()), (suspends, Some(shape)), "group {group}");
    }
}

/// A forged flag and then the right one, before two groups have confirmed the layout.
#[test]
fn expected_layout_is_not_adopted_again_after_a_flag_that_the_right_packet_replaces() {
    let (now, shape) = (Instant::now(), config(10, 3));
    let mut decoder = FecDecoder::with_expected_layout(shape);
    for seqid in 0..13 * 6 {
        if seqid == 20 {
            decoder.input(now, &blank(seqid, true), |_| unreachable!());
        }
        sample(&mut decoder, now, shape, seqid);
    }
    assert_eq!((decoder.layout(), decoder.stats().layout_changes), (Some(shape), 0));
}

/// Eight packets in a row contradict the layout, and some more while others confirm it. All packets but one of each
/// later group arrive.
#[test]
fn suspended_layout_is_confirmed_by_two_groups_of_packets_and_eight_for_a_contradiction() {
    // The 30th packet of a group, after 80 packets, or 80 and 40.
    for (contradictions, expected) in [(0, 2 * 39 + 29), (5, 3 * 39 + 29)] {
        let (now, shape, mut rng) = (Instant::now(), config(30, 10), Rng::new(1));
        let mut encoder = FecEncoder::new(shape);
        let mut decoder = FecDecoder::new(Some(shape));
        let packets = groups(&mut encoder, now, &mut rng, 6);
        let (before, after) = packets.split_at(80);
        before.iter().for_each(|packet| drop(feed(&mut decoder, now, packet)));
        let contradict = |decoder: &mut FecDecoder, count: u32| {
            let seqids = 40..40 + count;
            seqids.for_each(|seqid| decoder.input(now, &blank(seqid, true), |_| unreachable!()));
        };
        contradict(&mut decoder, 8);
        let arrived = after.iter().enumerate().filter(|(at, _)| at % 40 != 7);
        let needed = arrived.enumerate().find_map(|(count, (_, packet))| {
            if count == 50 {
                contradict(&mut decoder, contradictions);
            }
            (!feed(&mut decoder, now, packet).is_empty()).then_some(count)
        });
        assert_eq!(needed, Some(expected), "{contradictions} contradictions");
    }
}

/// Whether the `count`th far shard in a row proves a jump, after these shards: far or near.
fn jumps_after(kinds: impl IntoIterator<Item = bool>, count: usize) -> bool {
    let now = Instant::now();
    let mut detector = JumpDetector::default();
    detector.on_near(now);
    let mut seqid = 1 << 30;
    let mut far = |detector: &mut JumpDetector| {
        seqid += 1;
        detector.on_far(now, seqid, |other| seqid.abs_diff(other) < 64)
    };
    for is_far in kinds {
        if is_far {
            assert!(!far(&mut detector));
        } else {
            detector.on_near(now);
        }
    }
    let proofs: Vec<bool> = (0..count).map(|_| far(&mut detector)).collect();
    assert!(!proofs[..count - 1].contains(&true), "{proofs:?}");
    proofs[count - 1]
}

#[test]
fn each_near_shard_outweighs_one_far_shard() {
    assert!(jumps_after([], 16));
    // Ten far ones and the excess that is left of them.
    for (near, left) in [(0, 10), (1, 9), (5, 5), (9, 1), (10, 0), (11, 0), (40, 0)] {
        let kinds = || [true; 10].into_iter().chain(vec![false; near]);
        assert!(jumps_after(kinds(), 16 - left), "{near} near ones");
    }
    // More near ones than far ones, in any order, leave nothing.
    assert!(jumps_after([true, false, true, false, false, true, false], 16));
}
