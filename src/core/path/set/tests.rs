//! Pings of each path and their timers, and the choice of another path.

use std::time::Duration;

use super::*;
use crate::config::KcpConfig;
use crate::core::recv::acks::Ack;
use crate::core::seq::{Sn, Ts};

/// Rule: W-112.
#[test]
fn path_that_falls_silent_with_each_pong_is_pinged_ten_times_a_second() {
    let mut now = Micros(1_000_000);
    let mut set = PathSet::new(now, true);
    let (mut rtt, mut pings) = (RttEstimator::new(Duration::from_secs(5)), 0);
    for _ in 0..1_000 {
        set.leave_active(now);
        let new = || PingId { sn: Sn(0), cookie: Ts(7) };
        if let Some((path, PathSegment::Ping(ping), _)) = set.poll(now, &rtt, new) {
            pings += 1;
            assert!(set.on_pong(now.add_micros(500), path, ping, &mut rtt));
        }
        now = now.add_micros(1_000);
    }
    assert_eq!(pings, 10);
}

const PING: PingId = PingId { sn: Sn(0), cookie: Ts(7) };

/// Lets `now` pass until the next ping on `path`. Pings of the other path are answered.
fn next_ping(set: &mut PathSet, now: &mut Micros, rtt: &mut RttEstimator, path: PathId) -> PingId {
    let mut cookie = now.0 as u32;
    loop {
        *now = now.add_micros(1_000);
        cookie += 1;
        let new = || PingId { cookie: Ts(cookie), ..PING };
        if let Some((id, PathSegment::Ping(ping), _)) = set.poll(*now, rtt, new) {
            if id == path {
                return ping;
            }
            assert!(set.on_pong(*now, id, ping, rtt));
        }
    }
}

/// Two usable paths; the first carries the data.
fn two_paths(now: Micros, rtt: &mut RttEstimator) -> PathSet {
    let mut set = PathSet::new(now, true);
    let path = SendPath::new(&KcpConfig::default());
    assert_eq!(set.add(now, Slot(1), path), Some(PathId(1)));
    let mut at = now;
    let ping = next_ping(&mut set, &mut at, rtt, PathId(1));
    assert!(set.on_pong(at, PathId(1), ping, rtt));
    set
}

fn state(set: &PathSet, id: PathId) -> PathState {
    set.entry(id).unwrap().state
}

/// Rule: P-42.
#[test]
fn silent_path_returns_after_pongs_that_double_with_each_silence() {
    let (mut now, id) = (Micros(1_000_000), PathId(1));
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    now = now.add_micros(60_000_000);
    let mut needed = Vec::new();
    for _ in 0..6 {
        set.entry_mut(id).unwrap().on_silent(now);
        let mut pongs = 0;
        while state(&set, id) == PathState::Silent {
            let ping = next_ping(&mut set, &mut now, &mut rtt, id);
            assert!(set.on_pong(now, id, ping, &mut rtt));
            pongs += 1;
        }
        needed.push(pongs);
    }
    assert_eq!(needed, [3, 6, 12, 24, 48, 48]);
}

/// The round trip grows beyond the wait for a pong, so each ping leaves again before its answer.
#[test]
fn round_trip_that_outgrows_the_wait_for_a_pong_is_measured() {
    let (mut now, id) = (Micros(1_000_000), PathId(1));
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    let end = now.add_micros(20_000_000);
    let (mut due, mut cookie): (Vec<(Micros, PingId)>, u32) = (Vec::new(), 0);
    while now < end {
        now = now.add_micros(1_000);
        cookie += 1;
        let new = || PingId { cookie: Ts(cookie), ..PING };
        if let Some((path, PathSegment::Ping(ping), _)) = set.poll(now, &rtt, new) {
            match path == id {
                true => due.push((now.add_micros(400_000), ping)),
                false => assert!(set.on_pong(now, path, ping, &mut rtt)),
            }
        }
        set.handle_timeout(now);
        while let Some((_, ping)) = due.first().filter(|(at, _)| *at <= now) {
            set.on_pong(now, id, *ping, &mut rtt);
            due.remove(0);
        }
    }
    assert_eq!(set.entry(id).unwrap().srtt(&rtt), Some(400_000));
}

/// Rule: P-42.
#[test]
fn silent_path_needs_more_pongs_for_each_lost_one() {
    let (mut now, id) = (Micros(1_000_000), PathId(1));
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    now = now.add_micros(60_000_000);
    set.entry_mut(id).unwrap().on_silent(now);
    let mut answered = 0;
    for is_lost in [false, false, true, false, false] {
        assert_eq!(state(&set, id), PathState::Silent, "{answered} pongs");
        let ping = next_ping(&mut set, &mut now, &mut rtt, id);
        if !is_lost {
            assert!(set.on_pong(now, id, ping, &mut rtt));
            answered += 1;
        }
    }
    assert_eq!(state(&set, id), PathState::Silent);
    let ping = next_ping(&mut set, &mut now, &mut rtt, id);
    assert!(set.on_pong(now, id, ping, &mut rtt));
    assert_eq!(state(&set, id), PathState::Usable);
}

/// Rule: P-43.
#[test]
fn silent_path_returns_at_once_if_all_are_silent() {
    let mut now = Micros(1_000_000);
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    for id in [PathId(0), PathId(1)] {
        set.entry_mut(id).unwrap().on_silent(now);
    }
    let ping = next_ping_of_silent(&mut set, &mut now, &rtt, PathId(1));
    assert!(set.on_pong(now, PathId(1), ping, &mut rtt));
    assert_eq!([0, 1].map(|id| state(&set, PathId(id))), [PathState::Silent, PathState::Usable]);
}

/// As [`next_ping`], but no path answers.
fn next_ping_of_silent(
    set: &mut PathSet,
    now: &mut Micros,
    rtt: &RttEstimator,
    path: PathId,
) -> PingId {
    loop {
        *now = now.add_micros(1_000);
        if let Some((id, PathSegment::Ping(ping), _)) = set.poll(*now, rtt, || PING)
            && id == path
        {
            return ping;
        }
    }
}

/// Rule: P-41.
#[test]
fn usable_path_is_silent_after_five_unanswered_pings() {
    let (mut now, id) = (Micros(1_000_000), PathId(1));
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    let mut pings = 0;
    loop {
        now = now.add_micros(1_000);
        assert_eq!(set.handle_timeout(now), Change::None);
        if state(&set, id) == PathState::Silent {
            break;
        }
        match set.poll(now, &rtt, || PING) {
            Some((path, PathSegment::Ping(_), _)) if path == id => pings += 1,
            Some((path, PathSegment::Ping(ping), _)) => {
                assert!(set.on_pong(now, path, ping, &mut rtt));
            }
            _ => {}
        }
        assert!(pings <= 20, "it never falls silent");
    }
    assert_eq!(pings, 5);
}

#[test]
fn ping_of_a_silent_path_waits_an_eighth_of_the_silence_and_at_most_15_s() {
    let (mut now, id) = (Micros(1_000_000), PathId(1));
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    set.entry_mut(id).unwrap().on_silent(now);
    let silent_since = now;
    let (mut last, mut grown, mut longest) = (None, 0, 0);
    while now.since(silent_since) < 300_000_000 {
        now = set.deadline().unwrap().max(now);
        match set.poll(now, &rtt, || PING) {
            Some((path, PathSegment::Ping(_), _)) if path == id => {
                let silence = |at: Micros| at.since(silent_since);
                let Some(last) = last.replace(now).filter(|at| silence(*at) >= 10_000_000) else {
                    continue;
                };
                assert_eq!(now.since(last), (silence(last) / 8).min(15_000_000));
                if silence(last) < 120_000_000 { grown += 1 } else { longest += 1 }
            }
            Some((path, PathSegment::Ping(ping), _)) => {
                assert!(set.on_pong(now, path, ping, &mut rtt));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(grown > 10 && longest > 10, "{grown} {longest}");
}

/// A NAT has changed the address, and the peer announces the path again.
#[test]
fn path_that_is_validated_again_keeps_its_silences_and_waiting_acks() {
    let (now, id) = (Micros(1_000_000), PathId(1));
    let mut set = PathSet::new(now, false);
    let new = || SendPath::new(&KcpConfig::default());
    assert!(set.add_validated(now, id, Slot(1), new()).is_some());
    set.entry_mut(id).unwrap().on_silent(now);
    let mut acks = PendingAcks::default();
    set.on_data(now, id, &mut acks);
    acks.on_probe(now, Ack { sn: Sn(1), ts: Ts(2) });
    set.on_data(now, PathId::FIRST, &mut acks);
    assert_eq!((set.silences(id), set.next_waiting_acks()), (1, Some(id)));
    assert!(set.add_validated(now, id, Slot(1), new()).is_some());
    assert_eq!(state(&set, id), PathState::Usable);
    assert_eq!((set.silences(id), set.next_waiting_acks()), (1, Some(id)));
    assert_eq!(set.silences(PathId::FIRST), 0);
}

#[test]
fn acks_leave_on_their_path_although_data_comes_on_another() {
    let (now, id) = (Micros(1_000_000), PathId(1));
    let mut set = two_paths(now, &mut RttEstimator::new(Duration::from_secs(5)));
    for (from, to) in [(PathId::FIRST, id), (id, PathId::FIRST)] {
        let mut acks = PendingAcks::default();
        set.on_data(now, from, &mut acks);
        assert!(set.waiting_acks().is_none() && set.next_waiting_acks().is_none());
        acks.on_probe(now, Ack { sn: Sn(1), ts: Ts(2) });
        set.on_data(now, to, &mut acks);
        assert!(acks.is_empty());
        assert_eq!(set.next_waiting_acks(), Some(from));
        let mut sent = Vec::new();
        set.waiting_acks().unwrap().take(Sn(2), 9, |ack| sent.push(ack));
        assert_eq!(sent, [Ack { sn: Sn(1), ts: Ts(2) }]);
        assert_eq!(set.next_waiting_acks(), None);
    }
}

/// The first path is not pinged, and the next ping of the other one leaves.
fn ping_other(set: &mut PathSet, now: Micros, rtt: &RttEstimator) -> PingId {
    set.entry_mut(PathId::FIRST).unwrap().next_ping = NEVER;
    set.entry_mut(PathId(1)).unwrap().next_ping = now;
    let new = || PingId { cookie: Ts(now.0 as u32), ..PING };
    match set.poll(now, rtt, new) {
        Some((PathId(1), PathSegment::Ping(ping), true)) => ping,
        other => panic!("{other:?}"),
    }
}

/// When the next ping of the second path leaves, microseconds after `now`.
fn ping_after(set: &PathSet, now: Micros) -> u64 {
    set.entry(PathId(1)).unwrap().next_ping.since(now)
}

#[test]
fn usable_path_is_pinged_each_5_s_in_use_and_each_15_s_otherwise() {
    for (unused, interval) in [(0, 5_000_000), (4_999_999, 5_000_000), (5_000_000, 15_000_000)] {
        let mut rtt = RttEstimator::new(Duration::from_secs(5));
        let mut set = two_paths(Micros(1_000_000), &mut rtt);
        let used = Micros(100_000_000);
        set.on_used(used);
        let now = used.add_micros(unused);
        let ping = ping_other(&mut set, now, &rtt);
        assert!(set.on_pong(now, PathId(1), ping, &mut rtt));
        assert_eq!(ping_after(&set, now), interval, "{unused} us after the last use");
        // What arrives on the active path is as good as a pong.
        set.on_arrival(now, PathId::FIRST);
        set.on_arrival(now.add_micros(1_000), PathId(1));
        assert_eq!(set.entry(PathId::FIRST).unwrap().next_ping, now.add_micros(interval));
        assert_eq!(ping_after(&set, now), interval);
    }
}

#[test]
fn path_is_pinged_within_5_s_once_it_is_used_again() {
    for (unused, wait) in [(4_999_999, 15_000_000 - 4_999_999), (5_000_000, 5_000_000)] {
        let mut rtt = RttEstimator::new(Duration::from_secs(5));
        let mut set = two_paths(Micros(1_000_000), &mut rtt);
        let used = Micros(100_000_000);
        set.on_used(used);
        set.entry_mut(PathId(1)).unwrap().next_ping = used.add_micros(15_000_000);
        let now = used.add_micros(unused);
        set.on_used(now);
        assert_eq!(ping_after(&set, now), wait);
    }
}

#[test]
fn unanswered_ping_leaves_again_after_the_rto_and_then_within_250_ms() {
    for (srtt, samples, first, next) in [
        (1_000, 200, 100_000, 100_000),
        (160_000, 200, 200_000, 200_000),
        (400_000, 200, 500_000, 250_000),
        (400_000, 1, 1_200_000, 250_000),
    ] {
        let mut now = Micros(1_000_000);
        let mut rtt = RttEstimator::new(Duration::from_secs(5));
        let mut set = two_paths(now, &mut rtt);
        now = now.add_micros(10_000_000);
        let path = &mut set.send_mut(PathId(1)).unwrap().rtt;
        *path = RttEstimator::new(Duration::from_secs(5));
        (0..samples).for_each(|i| path.on_sample(now.add_micros(i * srtt), srtt));
        for wait in [first, next, next] {
            ping_other(&mut set, now, &rtt);
            assert_eq!(ping_after(&set, now), wait, "{srtt} us");
            now = now.add_micros(wait);
        }
    }
}

/// The RTO includes what the round trip varies by.
#[test]
fn ping_of_a_path_in_doubt_leaves_again_after_one_and_a_quarter_round_trips() {
    for (is_doubted, wait) in [(false, 600_000), (true, 250_000)] {
        let mut now = Micros(1_000_000);
        let mut rtt = RttEstimator::new(Duration::from_secs(5));
        let mut set = two_paths(now, &mut rtt);
        now = now.add_micros(10_000_000);
        let path = &mut set.send_mut(PathId(1)).unwrap().rtt;
        *path = RttEstimator::new(Duration::from_secs(5));
        path.on_sample(now, 200_000);
        if is_doubted {
            set.on_overdue(now, Slot(1));
        }
        ping_other(&mut set, now, &rtt);
        assert_eq!(ping_after(&set, now), wait);
    }
}

#[test]
fn ping_after_a_late_pong_waits_for_a_quarter_longer_and_at_most_2_s() {
    for (late, wait) in [(400_000, 500_000), (1_600_000, 2_000_000), (9_000_000, 2_000_000)] {
        let mut now = Micros(1_000_000);
        let mut rtt = RttEstimator::new(Duration::from_secs(5));
        let mut set = two_paths(now, &mut rtt);
        now = now.add_micros(10_000_000);
        let ping = ping_other(&mut set, now, &rtt);
        assert_eq!(ping_other(&mut set, now.add_micros(100_000), &rtt), ping, "it leaves again");
        now = now.add_micros(late);
        assert!(set.on_pong(now, PathId(1), ping, &mut rtt));
        assert_eq!(ping_after(&set, now), 0, "the round trip is unknown");
        ping_other(&mut set, now, &rtt);
        assert_eq!(ping_after(&set, now), wait);
    }
}

/// The estimates of a path after a first round trip of `srtt` microseconds.
fn rtt_of(srtt: u64) -> RttEstimator {
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    rtt.on_sample(Micros(1_000_000), srtt);
    rtt
}

#[test]
fn data_moves_to_a_path_that_is_shorter_by_a_quarter_and_5_ms() {
    let now = Micros(1_000_000);
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    set.send_mut(PathId(1)).unwrap().rtt = rtt_of(100_000);
    let switch = |resend| Change::Switch { to: PathId(1), resend };
    assert_eq!(set.prefer_better(&rtt_of(130_000)), Change::None);
    assert_eq!(set.prefer_better(&rtt_of(130_001)), switch(false));
    set.on_overdue(now, Slot(1));
    assert_eq!(set.prefer_better(&rtt_of(130_001)), Change::None, "it is in doubt");
    set.entry_mut(PathId::FIRST).unwrap().on_silent(now);
    assert_eq!(set.prefer_better(&rtt_of(1_000)), switch(true));
}

#[test]
fn answer_to_a_copy_may_take_2_ms_longer_than_the_longest_round_trip() {
    let now = Micros(1_000_000);
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    set.send_mut(PathId(1)).unwrap().rtt = rtt_of(100_000);
    let waits = [30_000, 101_999, 102_000, 200_000].map(|srtt| set.copy_wait(&rtt_of(srtt)));
    assert_eq!(waits, [72_000, 1, 0, 0]);
    set.entry_mut(PathId(1)).unwrap().on_silent(now);
    assert_eq!(set.copy_wait(&rtt_of(30_000)), 0);
}

#[test]
fn four_pings_of_the_peer_wait_for_their_answer_each_once() {
    let now = Micros(1_000_000);
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(now, &mut rtt);
    let ping = |cookie| PingId { cookie: Ts(cookie), ..PING };
    for cookie in [1, 2, 3, 4, 4, 3, 5] {
        set.on_ping(now, PathId(1), ping(cookie));
    }
    set.on_ping(now, PathId(2), ping(6));
    let answers = std::iter::from_fn(|| match set.poll(now, &rtt, || PING) {
        Some((PathId(1), PathSegment::Answer(ping), true)) => Some(ping.cookie.0),
        _ => None,
    });
    assert_eq!(answers.collect::<Vec<_>>(), [2, 4, 3, 5]);
}

#[test]
fn pongs_after_a_silence_halve_after_a_minute_without_another() {
    let id = PathId(1);
    for (quiet, needed) in [(59_999_999, 12), (60_000_000, 6)] {
        let mut rtt = RttEstimator::new(Duration::from_secs(5));
        let mut set = two_paths(Micros(1_000_000), &mut rtt);
        let entry = set.entry_mut(id).unwrap();
        (entry.silent_since, entry.needed) = (Micros(100_000_000), 12);
        let now = Micros(100_000_000 + quiet);
        let ping = ping_other(&mut set, now, &rtt);
        assert!(set.on_pong(now, id, ping, &mut rtt));
        assert_eq!(set.entry(id).unwrap().needed, needed);
    }
    let mut rtt = RttEstimator::new(Duration::from_secs(5));
    let mut set = two_paths(Micros(1_000_000), &mut rtt);
    let now = Micros(100_000_000);
    let ping = ping_other(&mut set, now, &rtt);
    assert!(set.on_pong(now, id, ping, &mut rtt));
    assert_eq!(set.entry(id).unwrap().needed, 3, "the least number");
}

/// The address may belong to another host by then.
#[test]
fn side_that_accepted_pings_a_silent_path_for_a_minute_and_after_a_ping_of_the_peer() {
    let (silent_since, id) = (Micros(1_000_000), PathId(1));
    for (silence, is_last) in [(59_999_999, false), (60_000_000, true)] {
        let mut set = PathSet::new(silent_since, false);
        let path = SendPath::new(&KcpConfig::default());
        assert!(set.add_validated(silent_since, id, Slot(1), path).is_some());
        let now = silent_since.add_micros(silence);
        let entry = set.entry_mut(id).unwrap();
        entry.on_silent(silent_since);
        entry.next_ping = now;
        set.entry_mut(PathId::FIRST).unwrap().next_ping = NEVER;
        let rtt = RttEstimator::new(Duration::from_secs(5));
        assert!(matches!(set.poll(now, &rtt, || PING), Some((_, PathSegment::Ping(_), false))));
        assert_eq!(set.deadline() == Some(NEVER), is_last, "{silence} us");
        set.on_ping(now, id, PING);
        assert_eq!(set.entry(id).unwrap().next_ping == now, is_last, "{silence} us");
    }
}

#[test]
fn connection_has_at_most_four_paths_and_keeps_one_that_answered() {
    let now = Micros(1_000_000);
    let mut set = PathSet::new(now, true);
    let new = || SendPath::new(&KcpConfig::default());
    let added: Vec<_> = (1..=4).map(|slot| set.add(now, Slot(slot), new())).collect();
    assert_eq!(added, [Some(PathId(1)), Some(PathId(2)), Some(PathId(3)), None]);
    assert_eq!(set.remove(now, PathId::FIRST), None, "no other path was ever usable");
    assert_eq!(set.remove(now, PathId(2)), Some(Change::None));
    set.forget(PathId(2));
    assert_eq!(set.add(now, Slot(2), new()), Some(PathId(2)), "its number is free again");
    assert_eq!(set.remove(now, PathId(9)), None);

    let mut set = PathSet::new(now, false);
    for id in [PathId::FIRST, PathId(4)] {
        assert_eq!(set.add_validated(now, id, Slot(1), new()), None, "{id:?}");
    }
}

/// An answer to a segment that left on a removed path says nothing about another one.
#[test]
fn path_gets_a_slot_that_no_other_one_has_and_in_which_nothing_is_in_flight() {
    let now = Micros(1_000_000);
    let mut set = PathSet::new(now, true);
    let new = || SendPath::new(&KcpConfig::default());
    assert_eq!(set.free_slot(|_| true), Some(Slot(1)));
    assert!(set.add(now, Slot(1), new()).is_some());
    assert_eq!(set.free_slot(|_| true), Some(Slot(2)));
    assert_eq!(set.free_slot(|slot| slot != Slot(2)), Some(Slot(3)));
    assert_eq!(set.free_slot(|slot| slot == Slot(1)), None);
    (2..=3).for_each(|slot| assert!(set.add(now, Slot(slot), new()).is_some()));
    assert_eq!(set.free_slot(|_| true), None);
}

/// Segments in flight leave again at once, since nothing will answer for them on the removed path.
#[test]
fn removed_active_path_hands_its_data_to_a_usable_path_and_else_to_a_silent_one() {
    let switch = |to| Some(Change::Switch { to: PathId(to), resend: true });
    for (second, follows) in [(PathState::Usable, switch(2)), (PathState::Silent, switch(1))] {
        let now = Micros(1_000_000);
        let mut set = PathSet::new(now, true);
        for (slot, state) in [(1, PathState::Silent), (2, second)] {
            let path = SendPath::new(&KcpConfig::default());
            assert_eq!(set.add(now, Slot(slot), path), Some(PathId(slot)));
            set.entry_mut(PathId(slot)).unwrap().state = state;
        }
        assert_eq!(set.remove(now, PathId::FIRST), follows, "{second:?}");
    }
}

#[test]
fn reset_leaves_on_each_path_that_has_ever_answered_in_turn() {
    let now = Micros(1_000_000);
    let mut set = PathSet::new(now, true);
    let new = || SendPath::new(&KcpConfig::default());
    (1..=3).for_each(|slot| assert!(set.add(now, Slot(slot), new()).is_some()));
    for (id, state) in [(1, PathState::Usable), (3, PathState::Silent)] {
        set.entry_mut(PathId(id)).unwrap().state = state;
    }
    let mut turn = Vec::new();
    for _ in 0..4 {
        let Change::Switch { to, resend: false } = set.rotate() else { panic!() };
        set.switch(to, |_| ());
        turn.push(to.number());
    }
    assert_eq!(turn, [1, 3, 0, 1]);
}
