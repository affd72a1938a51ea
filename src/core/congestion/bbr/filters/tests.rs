//! Each measurement by itself.

use super::*;

#[test]
fn round_ends_with_the_first_ack_of_data_sent_in_it() {
    let mut rounds = Rounds::default();
    assert!(rounds.on_acked(Micros(0), 0, 1_000).is_some());
    rounds.stats.rtt.on_rtt(40);
    rounds.stats.rtt.on_rtt(20);
    assert!(rounds.on_acked(Micros(0), 0, 2_000).is_none());
    assert!(rounds.on_acked(Micros(0), 999, 3_000).is_none());
    let stats = rounds.on_acked(Micros(0), 1_000, 4_000).unwrap();
    assert_eq!((stats.rtt.mean_rtt(), stats.rtt.min_rtt()), (Some(30), Some(20)));
    assert_eq!((rounds.stats.rtt.mean_rtt(), rounds.count), (None, 2));
}

#[test]
fn round_counts_what_is_acknowledged_and_the_most_in_flight_before_it() {
    let mut stats = RoundStats::default();
    for (segments, bytes, in_flight) in [(2, 2_000, 5_000), (3, 3_000, 1_000)] {
        stats.on_acked(&Acked { segments, in_flight, ..acked(Micros(0), bytes) });
    }
    assert_eq!((stats.acked, stats.bytes, stats.in_flight), (5, 5_000, 7_000));
}

#[test]
fn rtt_of_a_round_without_samples_is_unknown() {
    let mut rtt = RttSamples::default();
    for _ in 0..2 {
        assert_eq!((rtt.min_rtt(), rtt.mean_rtt(), rtt.spread()), (None, None, 0));
        rtt.add(&RttSamples::default());
    }
    [30, 20, 40].into_iter().for_each(|sample| rtt.on_rtt(sample));
    rtt.add(&RttSamples::default());
    assert_eq!((rtt.min_rtt(), rtt.mean_rtt(), rtt.spread()), (Some(20), Some(30), 20));
}

#[test]
fn rtt_within_a_sixty_fourth_renews_the_shortest() {
    let mut min = MinRtt::default();
    min.on_sample(Micros(0), 64_000);
    min.on_sample(Micros(9_000_000), 65_000);
    assert!(min.get() == Some(64_000) && !min.is_outdated(Micros(19_000_000)));
    min.on_sample(Micros(9_000_001), 65_001);
    assert!(min.is_outdated(Micros(19_000_001)));
}

#[test]
fn probe_replaces_the_shortest_also_by_a_longer_one() {
    let mut min = MinRtt::default();
    min.on_sample(Micros(0), 50_000);
    min.begin_probe(Micros(0));
    min.end_probe(Micros(11_000_000), true);
    assert_eq!(min.get(), Some(50_000), "nothing was measured");
    min.begin_probe(Micros(0));
    for rtt in [90_000, 80_000, 85_000] {
        min.on_sample(Micros(12_000_000), rtt);
    }
    min.end_probe(Micros(12_000_000), true);
    assert!(min.get() == Some(80_000) && !min.is_outdated(Micros(22_000_000)));
}

/// A round with eight samples of this RTT.
fn round_of(rtt: u64) -> RoundStats {
    let mut round = RoundStats::default();
    (0..8).for_each(|_| round.rtt.on_rtt(rtt));
    round
}

#[test]
fn time_between_probes_for_a_longer_path_doubles_while_they_find_one() {
    let (mut min, mut now, mut rtt) = (MinRtt::default(), Micros(0), 10_000);
    min.on_sample(now, rtt);
    for (grows, wait) in [
        (true, 3_000_000),
        (true, 6_000_000),
        (true, 12_000_000),
        (true, 12_000_000),
        (false, 3_000_000),
        (true, 6_000_000),
    ] {
        now = now.add_micros(100_000_000);
        min.begin_probe(now);
        rtt += rtt / 4 + 2_000 + u64::from(grows);
        min.on_sample(now, rtt);
        min.end_probe(now, true);
        let far = round_of(2 * rtt);
        (0..7).for_each(|_| min.on_round(now, &far));
        let after = |wait| now.add_micros(wait);
        assert!(!min.is_suspect(after(wait + 1)), "seven rounds");
        min.on_round(now, &far);
        assert!(!min.is_suspect(after(wait)), "{wait} us");
        assert!(min.is_suspect(after(wait + 1)), "{wait} us");
    }
}

#[test]
fn least_mean_rtt_is_forgotten_after_a_second_window_of_6_s() {
    let mut min = MinRtt::default();
    min.on_sample(Micros(0), 10_000);
    for (at, rtt, calm) in [
        (6_000_000, 12_000, 12_000),
        (6_000_001, 15_000, 12_000),
        (12_000_001, 15_000, 12_000),
        (12_000_002, 15_000, 15_000),
        (12_000_003, 31_001, 15_000),
        (18_000_003, 31_001, 15_000),
        (24_000_004, 31_001, 31_000),
    ] {
        min.on_round(Micros(at), &round_of(rtt));
        assert_eq!(min.calm(), Some(calm), "{at} us");
    }
}

#[test]
fn rtt_of_zero_is_no_division_by_zero() {
    let mut min = MinRtt::default();
    min.on_sample(Micros(0), 0);
    assert_eq!(min.get(), Some(1));
}

#[test]
fn only_losses_of_the_phase_count_and_two_rounds_later() {
    let mut probe = LossProbe::default();
    probe.on_sent();
    assert_eq!(probe.take(9), None);
    probe.begin(Micros(1_000));
    (0..20).for_each(|_| probe.on_sent());
    [900, 1_000, 1_500].into_iter().for_each(|at| probe.on_lost(Micros(at)));
    [70, 50, 60].into_iter().for_each(|rtt| probe.on_rtt(rtt));
    probe.end(Micros(2_000), 7);
    probe.on_sent();
    probe.on_rtt(1);
    [1_999, 2_000].into_iter().for_each(|at| probe.on_lost(Micros(at)));
    assert_eq!(probe.take(8), None);
    probe.on_spurious_loss();
    assert_eq!(probe.take(9), Some((20, 2, Some(50))));
    assert_eq!(probe.take(10), None);
}

#[test]
fn base_follows_the_loss_of_rounds_without_a_queue() {
    let mut base = LossBase::new();
    assert_eq!(base.per_million(), 0);
    (0..100).for_each(|_| base.on_round(100, 5));
    assert!((47_000..=50_000).contains(&base.per_million()), "{}", base.per_million());
    (0..200).for_each(|_| base.on_round(100, 0));
    assert!(base.per_million() < 1_000, "{}", base.per_million());
}

#[test]
fn only_loss_beyond_the_base_is_congestion() {
    let mut base = LossBase::new();
    // The threshold is 2 % plus two standard deviations: 2.9 % with a base of 0.2 % and 100 segments.
    assert!(base.is_exceeded(100, 3) && !base.is_exceeded(100, 2) && !base.is_exceeded(7, 7));
    (0..200).for_each(|_| base.on_round(100, 20));
    assert!(!base.is_exceeded(100, 29) && base.is_exceeded(100, 31));
    assert!(!base.is_exceeded_by(100, 31, 400_000));
}

/// Two standard deviations of 10,000 segments with a base of 0.2 % are 0.089 %.
#[test]
fn large_counts_are_judged_at_three_standard_deviations() {
    let base = LossBase::new();
    assert!(!base.is_exceeded(10_000, 208) && base.is_exceeded(10_000, 209));
    let sure = |lost| base.is_surely_exceeded(10_000, lost);
    assert!(!sure(213) && sure(214));
}

#[test]
fn numbers_beyond_any_window_saturate() {
    let mut base = LossBase::new();
    (0..1_000).for_each(|_| base.on_round(u64::MAX, u64::MAX));
    assert_eq!(base.per_million(), MAX_LOSS_BASE);
    assert!(base.is_exceeded(u64::from(u32::MAX), u64::from(u32::MAX)));
}

fn acked(now: Micros, bytes: u64) -> Acked {
    Acked {
        now,
        segments: 1,
        bytes,
        delivered: 0,
        in_flight: 0,
        rtt: None,
        longest_wait: 0,
        rate: None,
    }
}

#[test]
fn bursts_of_acks_add_to_the_window_and_single_acks_do_not() {
    for (gap, bytes, expected) in [(1_000, 1_000, 1_000), (40_000, 40_000, 40_000)] {
        let mut aggregation = AckAggregation::default();
        for i in 1..100_u64 {
            aggregation.on_acked(&acked(Micros(i * gap), bytes), 1_000_000, None);
        }
        assert_eq!(aggregation.extra(1_000_000), expected);
    }
}

#[test]
fn data_of_a_tick_is_held_by_the_peer_and_data_after_a_pause_is_not() {
    // Microseconds between two ticks, bytes of each, and bytes that the peer holds at 1 MB/s.
    for (gap, bytes, held) in
        [(1_000, 1_000, 0), (10_000, 10_000, 9_900), (100_000, 90_000, 99_900), (50_000, 1_000, 0)]
    {
        let mut aggregation = AckAggregation::default();
        for i in 1..100_u64 {
            let now = Micros(i * gap);
            // One datagram holds the ACKs of only some segments.
            aggregation.on_acked(&acked(now, bytes / 2), 1_000_000, None);
            aggregation.on_acked(&acked(now.add_micros(100), bytes / 2), 1_000_000, None);
            aggregation.next_round(now);
        }
        assert_eq!(aggregation.held_by_peer(1_000_000), held, "{gap} us");
    }
}

#[test]
fn pause_before_a_stream_of_acks_is_no_tick() {
    let mut aggregation = AckAggregation::default();
    let mut now = Micros(1_000_000);
    for _ in 0..20 {
        now = now.add_micros(60_000);
        for _ in 0..1_000 {
            now = now.add_micros(500);
            aggregation.on_acked(&acked(now, 500), 1_000_000, None);
            aggregation.next_round(now);
        }
    }
    assert_eq!(aggregation.held_by_peer(1_000_000), 0);
}

#[test]
fn extra_is_at_most_a_tenth_of_a_second() {
    let mut aggregation = AckAggregation::default();
    (0..100).for_each(|_| aggregation.on_acked(&acked(Micros(1), u64::MAX), 1_000_000, None));
    assert_eq!(aggregation.extra(1_000_000), 100_000);
}

#[test]
fn maximum_is_forgotten_after_ten_rounds() {
    let mut max = WindowedMax::default();
    max.update(7);
    max.update(100);
    for _ in 1..FILTER_ROUNDS {
        max.next_round();
        max.update(50);
        assert_eq!(max.max(), 100);
    }
    max.next_round();
    assert_eq!(max.max(), 50);
    (0..FILTER_ROUNDS).for_each(|_| max.next_round());
    assert_eq!(max.max(), 0);
}

fn sample(sent_at: u64, sent: u64, app_limited: bool) -> RateSample {
    let (elapsed, rate, prior_delivered) = (0, 0, 0);
    RateSample { rate, elapsed, sent_at: Micros(sent_at), sent, prior_delivered, app_limited }
}

#[test]
fn rate_is_taken_over_ten_milliseconds_and_over_what_left_in_that_time() {
    let mut interval = RateInterval::default();
    assert!(interval.on_sample(Micros(1_000), 500, &sample(1_000, 2_000, false)).is_none());
    assert!(interval.on_sample(Micros(10_999), 9_000, &sample(10_000, 9_000, true)).is_none());
    let rate = interval.on_sample(Micros(11_000), 10_500, &sample(10_500, 12_000, false)).unwrap();
    assert_eq!((rate.rate, rate.elapsed, rate.app_limited), (1_000_000, 10_000, true));
    // The ACKs were withheld: less has left since.
    let rate = interval.on_sample(Micros(21_000), 30_500, &sample(20_500, 17_000, false)).unwrap();
    assert_eq!((rate.rate, rate.elapsed, rate.app_limited), (500_000, 10_000, false));
    // What left over a longer time than its ACKs took to arrive.
    let rate = interval.on_sample(Micros(22_000), 50_500, &sample(40_500, 37_000, false)).unwrap();
    assert_eq!((rate.rate, rate.elapsed), (1_000_000, 20_000));
}

#[test]
fn rate_is_taken_over_eight_times_the_jitter_and_at_most_sixteen_round_trips() {
    for (spread, rtt, least) in [
        (0, 50_000, 10_000),
        (1_250, 50_000, 10_000),
        (1_251, 50_000, 10_008),
        (90_000, 1_000, 16_000),
    ] {
        let mut interval = RateInterval::default();
        interval.on_round(spread, rtt);
        assert!(!interval.is_long(least - 1) && interval.is_long(least), "{spread} {rtt}");
    }
}

#[test]
fn tally_judges_from_a_hundred_segments_on_and_halves_what_is_old() {
    let round =
        |acked, lost| RoundStats { acked, lost, bytes: 1_000, duration: 500, ..Default::default() };
    let mut tally = Tally::default();
    assert_eq!((tally.is_enough(), tally.rate()), (false, 0));
    tally.add(&round(90, 9));
    assert!(!tally.is_enough());
    tally.add(&round(0, 1));
    assert_eq!((tally.is_enough(), tally.rate()), (true, 2_000_000));
    tally.add(&round(90, 9));
    assert_eq!((tally.acked, tally.lost), (180, 19));
    tally.add(&round(1, 0));
    assert_eq!((tally.acked, tally.lost, tally.bytes, tally.time), (181, 19, 4_000, 2_000));
    tally.add(&round(1, 0));
    assert_eq!((tally.acked, tally.lost, tally.bytes, tally.time), (91, 9, 3_000, 1_500));
}

#[test]
fn rtt_shorter_by_more_than_an_eighth_shows_that_the_shortest_had_a_queue() {
    let mut min = MinRtt::default();
    assert!(!min.on_sample(Micros(0), 80_000), "the first one");
    assert!(!min.on_sample(Micros(0), 70_000));
    assert!(!min.on_sample(Micros(0), 70_000 - 8_750) && min.on_sample(Micros(0), 53_000));
    min.renew(Micros(0), 80_000);
    assert!(!min.on_sample(Micros(0), 10_000), "an application-limited flow queues nothing");
}

#[test]
fn rtt_above_ten_seconds_counts_as_ten() {
    let mut min = MinRtt::default();
    min.on_sample(Micros(0), 60_000_000);
    assert_eq!(min.get(), Some(10_000_000));
    min.replace(Micros(0), 60_000_000);
    assert_eq!(min.get(), Some(10_000_000));
}

/// A twentieth of the RTT, a millisecond and half of the jitter; a single sample varies by the other half.
#[test]
fn queue_shows_in_an_rtt_beyond_jitter() {
    let mut min = MinRtt::default();
    assert!(!min.is_near(1) && min.calm().is_none(), "before the first sample");
    min.on_sample(Micros(0), 40_000);
    assert!(min.is_near(43_000) && !min.is_near(43_001));
    let mut round = RoundStats::default();
    (0..4).for_each(|_| [36_000, 44_000].into_iter().for_each(|rtt| round.rtt.on_rtt(rtt)));
    min.on_round(Micros(0), &round);
    assert!(min.is_near(47_000) && !min.is_near(47_001));
    assert!(min.is_sample_near(51_000) && !min.is_sample_near(51_001));
}

#[test]
fn mean_rtt_without_a_queue_is_within_three_times_the_shortest() {
    for (mean, calm) in [(5_000, 10_000), (20_000, 20_000), (31_000, 31_000), (31_001, 31_000)] {
        let mut min = MinRtt::default();
        min.on_sample(Micros(0), 10_000);
        let mut round = round_of(mean);
        min.on_round(Micros(0), &round);
        assert_eq!(min.calm(), Some(calm));
        // Seven samples are no mean.
        round = RoundStats::default();
        (0..7).for_each(|_| round.rtt.on_rtt(1));
        min.on_round(Micros(0), &round);
        assert_eq!(min.calm(), Some(calm));
    }
}

#[test]
fn path_has_changed_if_its_rtt_has_doubled_and_little_is_in_flight() {
    for (probed, drained, has_changed) in
        [(50_001, true, false), (50_002, true, true), (50_002, false, false)]
    {
        let mut min = MinRtt::default();
        min.on_sample(Micros(0), 20_000);
        min.begin_probe(Micros(0));
        min.on_sample(Micros(0), probed);
        assert_eq!(min.end_probe(Micros(0), drained), has_changed, "{probed} us");
    }
}

#[test]
fn loss_base_starts_with_64_segments_without_loss_and_remembers_4096() {
    let mut base = LossBase::new();
    assert!(!base.is_measured());
    base.on_round(936, 100);
    assert!(base.is_measured() && base.per_million() == 100_000);
    base.on_queue();
    assert_eq!(base.per_million(), 93_750);
    let mut base = LossBase::new();
    base.on_round(1_000_000, 0);
    base.on_round(4_096, 1_024);
    assert_eq!(base.per_million(), 125_000);
}

/// ACKs within a millisecond are of one tick, which is 8 ms long at least.
#[test]
fn ticks_are_told_from_acks_that_arrive_at_a_steady_rate() {
    for (gap, apart, held) in
        [(8_000, 0, 8_000), (7_999, 0, 0), (20_000, 1_000, 19_000), (20_000, 1_001, 0)]
    {
        let mut aggregation = AckAggregation::default();
        for i in 1..100_u64 {
            let now = Micros(i * gap);
            aggregation.on_acked(&acked(now, gap / 4 + 1), 1_000_000, None);
            aggregation.on_acked(&acked(now.add_micros(apart), gap / 4 + 1), 1_000_000, None);
            aggregation.next_round(now.add_micros(apart));
        }
        assert_eq!(aggregation.held_by_peer(1_000_000), held, "{gap} and {apart} us");
    }
}

/// Half of what the rate carries in the time is enough, since the rate may be too high.
#[test]
fn tick_acknowledges_half_of_what_the_rate_carries() {
    for (bytes, held) in [(9_999, 0), (10_000, 20_000)] {
        let mut aggregation = AckAggregation::default();
        for i in 1..100_u64 {
            let now = Micros(i * 20_000);
            aggregation.on_acked(&acked(now, bytes), 1_000_000, None);
            aggregation.next_round(now);
        }
        assert_eq!(aggregation.held_by_peer(1_000_000), held, "{bytes} bytes");
    }
}

#[test]
fn ack_delay_counts_once_it_was_seen_in_two_rounds_of_50_ms() {
    for (step, extra) in [(50_000, 20_000), (49_999, 1_000)] {
        let mut aggregation = AckAggregation::default();
        for i in 1..=2_u64 {
            // 10 ms on the path, and 1 ms for 1,000 bytes.
            let longest_wait = 31_000;
            let acked = Acked { longest_wait, ..acked(Micros(i * step), 1_000) };
            aggregation.on_acked(&acked, 1_000_000, Some(10_000));
            aggregation.next_round(Micros(i * step));
        }
        assert_eq!(aggregation.extra(1_000_000), extra, "rounds of {step} us");
    }
}
