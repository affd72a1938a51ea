use super::*;

fn arrivals(config: LinkConfig, count: u64) -> (Vec<(u64, u64)>, LinkStats) {
    let mut link = Link::new(config, 1);
    let mut all = Vec::new();
    for i in 0..count {
        link.send(i * 1_000, 1_000, |at, _| all.push((i, at)));
    }
    (all, link.stats())
}

#[test]
fn default_link_is_perfect() {
    let (all, _) = arrivals(LinkConfig::delay(40), 100);
    assert!(all.iter().copied().eq((0..100).map(|i| (i, i * 1_000 + 40))));
}

#[test]
fn loss_rate_matches_uniform_and_gilbert_elliott_settings() {
    let (all, _) = arrivals(LinkConfig { loss: 300_000, ..LinkConfig::default() }, 100_000);
    assert!((69_000..71_000).contains(&all.len()), "{}", all.len());
    let burst = Some(GilbertElliott { to_bad: 10_000, to_good: 90_000 });
    let config = LinkConfig { burst, ..LinkConfig::default() };
    assert!((config.mean_loss() - 0.1).abs() < 1e-9);
    let (all, stats) = arrivals(config, 100_000);
    assert!((88_000..92_000).contains(&all.len()), "{}", all.len());
    assert_eq!(stats.lost + all.len() as u64, 100_000);
    let runs = all.windows(2).filter(|pair| pair[1].0 > pair[0].0 + 1).count() as u64;
    assert!((9..14).contains(&(stats.lost / runs)), "bursts of {}", stats.lost / runs);
}

#[test]
fn bursts_by_time_have_their_mean_loss_and_duration_at_any_rate() {
    let burst_by_time = Some(BurstDurations { good: 475_000, bad: 25_000 });
    let config = LinkConfig { burst_by_time, ..LinkConfig::default() };
    assert!((config.mean_loss() - 0.05).abs() < 1e-9);
    // 2,000 bursts in 1,000 s, seen at one and at two datagrams per millisecond.
    for step in [1_000, 500] {
        let mut link = Link::new(config.clone(), 1);
        let (mut bursts, mut lost, mut before) = (0_u64, 0_u64, true);
        let count = 1_000_000_000 / step;
        for i in 0..count {
            let mut passes = false;
            link.send(i * step, 1_000, |_, _| passes = true);
            (bursts, lost) = (bursts + u64::from(before && !passes), lost + u64::from(!passes));
            before = passes;
        }
        let share = lost as f64 / count as f64;
        assert!((0.046..0.054).contains(&share), "{share}");
        let mean = lost * step / bursts;
        assert!((23_500..26_500).contains(&mean), "bursts of {mean} us");
    }
}

#[test]
fn jitter_reorders_unless_keep_order() {
    let config = |keep_order| LinkConfig { jitter: 20_000, keep_order, ..LinkConfig::default() };
    let ordered = |all: &[(u64, u64)]| all.is_sorted_by_key(|&(_, at)| at);
    assert!(ordered(&arrivals(config(true), 1_000).0));
    assert!(!ordered(&arrivals(config(false), 1_000).0));
}

#[test]
fn full_queue_drops_the_tail() {
    let config = LinkConfig { rate: Some(500_000), queue: 10_000, ..LinkConfig::default() };
    let (all, stats) = arrivals(config, 1_000);
    // The offered load is twice the rate. The queue fills, then half of the datagrams is dropped.
    assert!((500..515).contains(&all.len()), "{}", all.len());
    assert_eq!(stats.queue_full + all.len() as u64, 1_000);
    assert!(all.windows(2).skip(50).all(|pair| pair[1].1 - pair[0].1 == 2_000));
}

#[test]
fn policer_drops_what_exceeds_its_rate_and_delays_nothing() {
    let limit = LinkConfig { rate: Some(500_000), queue: 10_000, ..LinkConfig::default() };
    let config = LinkConfig { policer: true, ..limit.clone() };
    let ((passed, _), (queued, _)) = (arrivals(config, 1_000), arrivals(limit, 1_000));
    let ranks = |all: &[(u64, u64)]| all.iter().map(|(rank, _)| *rank).collect::<Vec<_>>();
    assert_eq!(ranks(&passed), ranks(&queued));
    assert!(passed.iter().all(|(rank, at)| *at == rank * 1_000));
}

#[test]
fn partitions_mtu_and_duplicates_are_counted() {
    let config = LinkConfig {
        partitions: vec![(10_000, 20_000)],
        duplicate: CERTAIN,
        copies: 1,
        ..LinkConfig::default()
    };
    let (all, stats) = arrivals(config, 30);
    assert_eq!((all.len(), stats.cut_off, stats.copies), (40, 10, 20));
    let (all, stats) = arrivals(LinkConfig { mtu: 999, ..LinkConfig::default() }, 30);
    assert_eq!((all.len(), stats.too_large), (0, 30));
}

#[test]
fn datagram_fate_is_independent_of_the_fate_of_others() {
    let lossy = LinkConfig { loss: 100_000, jitter: 5_000, ..LinkConfig::default() };
    let healed = LinkConfig { duplicate: 500_000, copies: 5, ..lossy.clone() };
    let first = |mut all: Vec<(u64, u64)>| {
        all.dedup_by_key(|(i, _)| *i);
        all
    };
    let (plain, copied) = (arrivals(lossy, 1_000).0, arrivals(healed, 1_000).0);
    assert_eq!(first(plain), first(copied));
}

#[test]
fn damage_always_changes_the_datagram() {
    let config = LinkConfig { corrupt: CERTAIN, ..LinkConfig::default() };
    let mut link = Link::new(config, 3);
    let datagram: Vec<u8> = (0..200).collect();
    for i in 0..300 {
        link.send(i, datagram.len(), |_, damage| {
            let mut damaged = datagram.clone();
            damage.apply(&mut damaged);
            assert_ne!(damaged, datagram, "{damage:?}");
        });
    }
}

fn trace(text: &str) -> Option<Trace> {
    Some(Trace::parse(text).unwrap())
}

#[test]
fn trace_is_a_bottleneck_with_a_queue_of_bytes_or_packets() {
    // One opportunity per 2 ms for a datagram of 1,000 bytes per 1 ms.
    let by_bytes = LinkConfig { trace: trace("2"), queue: 10_000, ..LinkConfig::delay(500) };
    let (all, stats) = arrivals(by_bytes.clone(), 1_000);
    // 750 kB/s: three of four pass, plus the full queue.
    assert!((750..765).contains(&all.len()), "{}", all.len());
    assert_eq!(stats.queue_full + all.len() as u64, 1_000);
    assert_eq!(stats.accepted_bytes, all.len() as u64 * 1_000);
    assert!(all.iter().all(|(_, at)| at % 2_000 == 500));
    let longest = all.iter().map(|(rank, at)| at - rank * 1_000).max().unwrap();
    assert!((14_000..=by_bytes.longest_delay()).contains(&longest), "{longest}");

    let by_packets = LinkConfig { queue_packets: 3, ..by_bytes };
    let mut link = Link::new(by_packets, 1);
    let mut count = 0;
    (0..10).for_each(|_| link.send(0, 100, |_, _| count += 1));
    assert_eq!((count, link.stats().queue_full), (3, 7));
    link.send(2_000, 100, |at, _| assert_eq!(at, 4_500));
}

#[test]
fn waits_are_from_arrival_to_the_first_bit() {
    let mut link =
        Link::new(LinkConfig { trace: trace("5"), queue: 1 << 20, ..LinkConfig::default() }, 1);
    (0..100).for_each(|_| link.send(0, 1_500, |_, _| {}));
    let expected = Waits { count: 100, p50: 250_000, p95: 475_000, p99: 495_000, max: 500_000 };
    assert_eq!(link.waits(), expected);
    link.count_waits_from(1_000_000);
    link.send(999_000, 1_500, |_, _| {});
    assert_eq!(link.waits(), Waits::default());
    link.send(1_001_000, 1_500, |_, _| {});
    assert_eq!((link.waits().count, link.waits().p50), (1, 4_000));

    let rate = LinkConfig { rate: Some(1_000_000), queue: 1 << 20, ..LinkConfig::default() };
    let mut link = Link::new(rate.clone(), 1);
    (0..3).for_each(|_| link.send(0, 1_000, |_, _| {}));
    assert_eq!(link.waits(), Waits { count: 3, p50: 1_000, p95: 2_000, p99: 2_000, max: 2_000 });
    let mut policer = Link::new(LinkConfig { policer: true, ..rate }, 1);
    policer.send(0, 1_000, |_, _| {});
    assert_eq!(policer.waits(), Waits::default());
}

#[test]
fn recorded_delay_falls_without_reordering() {
    let delay_trace = Some(DelayTrace::parse("30\n5").unwrap());
    let config = LinkConfig { delay_trace, ..LinkConfig::delay(1) };
    assert_eq!(config.longest_delay(), 30_000);
    let (all, _) = arrivals(config, 20);
    let at: Vec<_> = all.iter().map(|(_, at)| at / 1_000).collect();
    assert_eq!(at[..10], [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]);
    // 15 to 24 ms without the earlier datagrams.
    assert_eq!(at[10..], [39; 10]);
}

#[test]
fn trace_goes_on_through_a_change_of_other_settings() {
    let config = LinkConfig { trace: trace("1\n9"), queue: 10_000, ..LinkConfig::default() };
    let mut link = Link::new(config.clone(), 1);
    (0..2).for_each(|_| link.send(0, 1_500, |_, _| {}));
    link.set_config(LinkConfig { loss: 1, ..config.clone() });
    link.send(0, 1_500, |at, _| assert_eq!(at, 10_000));
    link.set_config(LinkConfig { trace: trace("50"), ..config });
    link.send(0, 1_500, |at, _| assert_eq!(at, 50_000));
}
