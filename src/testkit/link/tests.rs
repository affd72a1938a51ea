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
    // 2,000 bursts in 1,000 s, seen by one and by two datagrams per millisecond.
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
    // Offered: twice the rate. The queue fills, then half of the datagrams is dropped.
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
