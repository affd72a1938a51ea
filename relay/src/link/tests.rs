//! Links under a clock that only these tests move.

use super::*;

pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) fn numbered(number: u32) -> Vec<u8> {
    let mut packet = vec![0; 100];
    packet[..4].copy_from_slice(&number.to_be_bytes());
    packet
}

/// Sends `count` packets, one each `gap`, and gives what arrived, with its time, in that order.
pub(super) fn pass(link: &mut Link, count: u32, gap: Duration) -> Vec<(Duration, u32)> {
    for number in 0..count {
        link.push(gap * number, &numbered(number));
    }
    let mut arrived = Vec::new();
    while let Some(due) = link.next_due() {
        if let Some(before) = due.checked_sub(Duration::from_nanos(1)) {
            assert_eq!(link.pop_due(before), None, "too early");
        }
        let packet = link.pop_due(due).expect("it is due");
        arrived.push((due, u32::from_be_bytes(packet[..4].try_into().expect("four bytes"))));
    }
    arrived
}

#[test]
fn default_conditions_only_delay() {
    let mut link = Link::new(Conditions::default(), 1);
    let arrived = pass(&mut link, 1_000, MS);
    let expected: Vec<_> = (0..1_000).map(|number| (MS * (25 + number), number)).collect();
    assert_eq!(arrived, expected);
    let counts = link.counts();
    assert_eq!((counts.packets, counts.bytes), (1_000, 100_000));
    assert_eq!((counts.delivered, counts.delivered_bytes), (1_000, 100_000));
    assert_eq!(counts.lost + counts.queue_dropped + counts.relay_drops, 0);
}

#[test]
fn packets_of_one_instant_keep_their_order() {
    let mut link = Link::new(Conditions::default(), 1);
    let order: Vec<_> = pass(&mut link, 500, Duration::ZERO).iter().map(|(_, n)| *n).collect();
    assert_eq!(order, (0..500).collect::<Vec<_>>());
}

#[test]
fn loss_rate_matches_the_setting() {
    for percent in [0.0, 0.5, 5.0, 20.0, 100.0] {
        let conditions = Conditions { loss: percent, ..Conditions::default() };
        let mut link = Link::new(conditions, 7);
        let arrived = pass(&mut link, 100_000, Duration::ZERO).len() as f64;
        let lost = 100_000.0 - arrived;
        // Five standard deviations.
        let spread = 5.0 * (1_000.0 * percent * (1.0 - percent / 100.0)).sqrt();
        assert!((lost - 1_000.0 * percent).abs() <= spread, "{lost} lost at {percent} %");
        assert_eq!(link.counts().lost as f64, lost);
    }
}

#[test]
fn same_seed_gives_the_same_run_and_another_seed_differs() {
    let conditions = Conditions {
        jitter: 10 * MS,
        loss: 10.0,
        reorder: 10.0,
        duplicate: 10.0,
        ..Conditions::default()
    };
    let run = |seed| pass(&mut Link::new(conditions, seed), 1_000, MS);
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// Neither other conditions nor the speed of packets change which ones are lost.
#[test]
fn packet_fate_depends_on_its_rank_alone() {
    let lossy = Conditions { loss: 5.0, ..Conditions::default() };
    let more = Conditions { jitter: 20 * MS, reorder: 50.0, ..lossy };
    let survivors = |conditions, gap| {
        let arrived = pass(&mut Link::new(conditions, 11), 2_000, gap);
        let mut numbers: Vec<_> = arrived.into_iter().map(|(_, number)| number).collect();
        numbers.sort_unstable();
        numbers
    };
    let expected = survivors(lossy, Duration::ZERO);
    assert!(expected.len() < 2_000);
    assert_eq!(survivors(lossy, 3 * MS), expected);
    assert_eq!(survivors(more, MS / 10), expected);
}

#[test]
fn jitter_stays_in_range_and_reorders() {
    let conditions = Conditions { jitter: 10 * MS, ..Conditions::default() };
    let arrived = pass(&mut Link::new(conditions, 5), 1_000, MS);
    let late: Vec<_> = arrived.iter().map(|(due, number)| *due - MS * *number).collect();
    assert!(late.iter().all(|late| (25 * MS..=35 * MS).contains(late)));
    assert!(late.iter().any(|late| *late < 26 * MS) && late.iter().any(|late| *late > 34 * MS));
    assert!(!arrived.is_sorted_by_key(|(_, number)| *number));
}

/// The same draws as without `ordered`, and each packet waits for those before it.
#[test]
fn ordered_jitter_never_reorders() {
    let jittery =
        Conditions { jitter: 20 * MS, loss: 5.0, duplicate: 5.0, ..Conditions::default() };
    let run = |conditions| pass(&mut Link::new(conditions, 5), 10_000, MS / 10);
    let arrived = run(Conditions { ordered: true, ..jittery });
    assert!(arrived.is_sorted_by_key(|(_, number)| *number));

    let mut free = run(jittery);
    assert!(!free.is_sorted_by_key(|(_, number)| *number));
    free.sort_by_key(|(_, number)| *number);
    let numbers = |arrived: &[(Duration, u32)]| -> Vec<_> {
        arrived.iter().map(|(_, number)| *number).collect()
    };
    assert_eq!(numbers(&arrived), numbers(&free));
    let mut pairs = arrived.iter().zip(&free);
    assert!(pairs.all(|((due, _), (free_due, _))| due >= free_due));
    let late = arrived.iter().map(|(due, number)| *due - MS / 10 * *number);
    assert!(late.max().is_some_and(|late| late <= 45 * MS));
}

#[test]
fn ordered_packets_do_not_overtake_those_before_a_shorter_delay() {
    let conditions = |millis| Conditions {
        delay: MS * millis,
        jitter: 10 * MS,
        ordered: true,
        ..Conditions::default()
    };
    let shorter = Step { at: 500 * MS, conditions: conditions(5) };
    let schedule =
        Schedule { initial: conditions(100), steps: vec![shorter], ..Schedule::default() };
    let arrived = pass(&mut Link::new(schedule, 5), 1_000, MS);
    assert_eq!(arrived.len(), 1_000);
    assert!(arrived.is_sorted_by_key(|(_, number)| *number));
    assert!(arrived.last().is_some_and(|(due, _)| *due <= (999 + 15) * MS));
}

#[test]
fn reorder_holds_packets_back_in_an_ordered_path_too() {
    let conditions = Conditions { reorder: 10.0, ordered: true, ..Conditions::default() };
    let plain = Conditions { ordered: false, ..conditions };
    let run = |conditions| pass(&mut Link::new(conditions, 5), 1_000, MS);
    assert_eq!(run(conditions), run(plain));
}

#[test]
fn reordered_packets_are_overtaken() {
    let conditions = Conditions { reorder: 10.0, ..Conditions::default() };
    let mut link = Link::new(conditions, 5);
    let arrived = pass(&mut link, 1_000, MS);
    let late = arrived.iter().filter(|(due, number)| *due - MS * *number == MS * 25 + MS * 25 / 4);
    assert_eq!(late.count() as u64, link.counts().reordered);
    assert!((50..150).contains(&link.counts().reordered));
    assert!(!arrived.is_sorted_by_key(|(_, number)| *number));
}

#[test]
fn duplicate_arrives_after_the_original() {
    let conditions = Conditions { duplicate: 100.0, ..Conditions::default() };
    let mut link = Link::new(conditions, 5);
    let order: Vec<_> = pass(&mut link, 3, MS).iter().map(|(_, number)| *number).collect();
    assert_eq!(order, [0, 0, 1, 1, 2, 2]);
    assert_eq!((link.counts().duplicated, link.counts().delivered), (3, 6));
}

#[test]
fn full_memory_drops_packets_and_counts_them() {
    let mut link = Link::new(Conditions::default(), 1);
    link.free = 250;
    for number in 0..5 {
        link.push(Duration::ZERO, &numbered(number));
    }
    assert_eq!((link.free, link.counts().relay_drops), (50, 3));
    // A packet that leaves frees memory.
    assert!(link.pop_due(25 * MS).is_some());
    link.push(25 * MS, &numbered(9));
    assert_eq!((link.free, link.counts().relay_drops), (50, 3));

    let packet = link.pop_due(25 * MS).expect("the second packet");
    link.refused(packet.len());
    let counts = link.counts();
    assert_eq!((counts.delivered, counts.delivered_bytes, counts.relay_drops), (1, 100, 4));
}

#[test]
fn pop_due_within_counts_late_packets_without_the_grain() {
    let grain = MS / 20;
    let mut link = Link::new(Conditions::default(), 1);
    (0..3).for_each(|number| link.push(Duration::ZERO, &numbered(number)));
    assert_eq!(link.pop_due_within(MS * 25 - grain - Duration::from_nanos(1), grain), None);
    for (taken, late) in [(MS * 25 - grain, 0), (MS * 26, 0), (MS * 26 + grain, 1)] {
        assert!(link.pop_due_within(taken, grain).is_some());
        assert_eq!(link.counts().late, late);
    }
}

#[test]
fn late_delivery_is_counted() {
    let mut link = Link::new(Conditions::default(), 1);
    (0..3).for_each(|number| link.push(Duration::ZERO, &numbered(number)));
    for (millis, late) in [(25, 0), (26, 0), (27, 1)] {
        assert!(link.pop_due(MS * millis).is_some());
        assert_eq!(link.counts().late, late);
    }
}

/// A seed keeps its meaning: arrivals of all conditions together, as recorded with the first
/// version that had seeds.
#[test]
fn recorded_seeds_give_the_recorded_arrivals() {
    let conditions = Conditions {
        jitter: 10 * MS,
        loss: 10.0,
        reorder: 10.0,
        duplicate: 10.0,
        bottleneck: Some(Bottleneck { rate_mbit: 1.0, queue: 10 }),
        ..Conditions::default()
    };
    for (seed, expected) in
        [(1, 0x91c9_7592_3e7e_a173_u64), (3, 0x1851_fb5a_7c5a_0955), (!1, 0x2333_b3ca_e608_c8ee)]
    {
        let arrived = pass(&mut Link::new(conditions, seed), 2_000, MS * 3 / 4);
        // FNV-1a over times and numbers.
        let bytes = arrived.iter().flat_map(|(due, number)| {
            [due.as_nanos() as u64, u64::from(*number)].into_iter().flat_map(u64::to_le_bytes)
        });
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(hash, expected, "seed {seed}: {} arrivals", arrived.len());
    }
}

/// The seed of a test of random distributions. Its bounds hold for any.
pub(super) fn seed() -> u64 {
    let seed = std::env::var("KCP_TEST_SEED").map_or(7, |seed| seed.parse().expect("a number"));
    println!("seed {seed}: KCP_TEST_SEED={seed} cargo test -p kcpx-relay --lib");
    seed
}
