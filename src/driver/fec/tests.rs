//! Tests of what FEC sends.

use std::time::Duration;

use super::*;
use crate::config::Config;
use crate::driver::output::send_batch::SendBatch;
use crate::driver::output::{PacketCodec, SendExtras, Written};
use crate::testkit::rng::Rng;
use crate::util::path::Path;

fn config(data: usize, parity: usize) -> FecConfig {
    FecConfig::new(data, parity).unwrap()
}

fn flow() -> FlowTiming {
    let (srtt, rto) = (Some(Duration::from_millis(50)), Duration::from_millis(62));
    FlowTiming { conv: 1, next_xmit_seq: 1, srtt, rto, loss_rate: 0 }
}

/// Parity packets of the group that packets at these times complete.
fn parities(fec: &mut FecSender, start: Instant, times: &[u64]) -> usize {
    let at = |millis: &u64| start + Duration::from_millis(*millis);
    let mut count = 0;
    for time in times {
        count = fec.seal(at(time), &flow(), &mut [0; 100]);
    }
    count
}

/// Rules: W-166, W-168.
#[test]
fn parity_is_left_out_where_a_retransmission_comes_first() {
    let start = Instant::now();
    let mut fec = FecSender::learned(config(5, 2));
    assert_eq!(parities(&mut fec, start, &[0, 25, 50, 75, 100]), 2, "50 ms before, in the mean");
    assert_eq!(parities(&mut fec, start, &[200, 226, 252, 278, 304]), 0);
    assert_eq!(parities(&mut fec, start, &[400, 401, 402, 403, 480]), 0);
    // The seqids of parity are used nevertheless.
    let mut packet = [0; 100];
    fec.seal(start, &flow(), &mut packet);
    assert_eq!(packet[..4], [21, 0, 0, 0]);
}

/// Rules: W-164, W-167.
#[test]
fn closing_costs_no_more_bytes_than_parity_adds_to_whole_groups() {
    let start = Instant::now();
    for seed in 0..1_000 {
        let mut rng = Rng::new(seed);
        let config = config(rng.range(2, 100) as usize, rng.range(1, 50) as usize);
        let mut group = OpenGroup::new(start, &flow());
        for _ in 1..rng.range(1, config.data_shards() as u64) {
            group.add(start, &flow(), rng.range(1, 1_400) as usize, config);
        }
        let Some(closing) = group.closing(config) else {
            assert_eq!(group.close_at, None);
            continue;
        };
        let added = closing.fillers * FILLER_BYTES + closing.parities * group.longest;
        let allowed = group.bytes * config.parity_shards() / config.data_shards();
        assert!(added <= allowed && closing.fillers <= group.packets, "seed {seed}");
        assert_eq!(group.packets + closing.fillers, config.data_shards());
    }
}

#[test]
fn parity_that_may_not_leave_is_not_waited_for() {
    let start = Instant::now();
    for may_send_extras in [true, false] {
        let mut codec = PacketCodec::new(&Config::new(), [0; 32]);
        let mut tx = SendBatch::default();
        let mut fec = FecSender::learned(config(5, 2));
        for _ in 0..5 {
            let fec = Some((&mut fec, &flow()));
            let extras = SendExtras { fec, duplicates: 0, may_send_extras };
            let path = Path::to(([127, 0, 0, 1], 1).into());
            codec.encode(start, &mut tx, path, extras, |tail| {
                tail.extend([0; 100]);
                Written::NewData
            });
        }
        assert_eq!(tx.len(), if may_send_extras { 7 } else { 5 });
        assert_eq!(fec.take_closed().is_some(), may_send_extras);
    }
}

#[test]
fn layout_is_bounded_from_the_first_packet_on() {
    let mut fec = FecSender::new(config(10, 3));
    let set = |fec: &mut FecSender, data, parity| {
        fec.set_config(config(data, parity), fec.max_shards());
        fec.encoder.config() == config(data, parity)
    };
    assert!(set(&mut fec, 20, 5) && set(&mut fec, 5, 2) && set(&mut fec, 10, 3));
    fec.seal(Instant::now(), &flow(), &mut [0; 100]);
    assert!(!set(&mut fec, 10, 4) && set(&mut fec, 5, 2) && !set(&mut fec, 5, 3));
}

#[test]
fn last_packet_between_two_layouts_is_in_no_group() {
    let start = Instant::now();
    let mut fec = FecSender::new(config(5, 2));
    fec.set_config(config(4, 2), FecConfig::MAX_SHARDS);
    while fec.encoder.is_unprotected() {
        assert_eq!(fec.seal(start, &flow(), &mut [0; 100]), 0);
        assert!(fec.group.is_none());
    }
    fec.seal(start, &flow(), &mut [0; 100]);
    assert_eq!(fec.group.map(|group| group.packets), Some(1));
}

/// Rule: W-164.
#[test]
fn group_is_closed_early_only_if_its_parity_suffices() {
    let (start, config) = (Instant::now(), config(5, 2));
    let close_after = |loss_rate| {
        let mut group = OpenGroup::new(start, &flow());
        for millis in [0, 10, 20] {
            let now = start + Duration::from_millis(millis);
            group.add(now, &FlowTiming { loss_rate, ..flow() }, 1_000, config);
        }
        (group.close_at.unwrap() - start).as_millis()
    };
    // Open for 25 ms, or idle for 25 ms.
    assert_eq!([0, 16_000, 17_000, 100_000].map(close_after), [25, 25, 45, 45]);
    // Half a round trip, but not longer than 25 ms.
    for (srtt, wait) in [(20, 10), (200, 25)] {
        let flow = FlowTiming { srtt: Some(Duration::from_millis(srtt)), ..flow() };
        let mut group = OpenGroup::new(start, &flow);
        (0..3).for_each(|_| group.add(start, &flow, 1_000, config));
        assert_eq!(group.close_at, Some(start + Duration::from_millis(wait)));
    }
}

/// Rules: W-163, P-56.
#[test]
fn groups_are_whole_until_the_peer_may_have_learned_the_layout() {
    let start = Instant::now();
    let mut fec = FecSender::new(config(5, 2));
    let later = start + Duration::from_millis(40);
    let fill = |fec: &mut FecSender| {
        for _ in 0..4 {
            fec.seal(start, &flow(), &mut [0; 1_000]);
        }
        fec.deadline(1)
    };
    for group in 0..16 {
        assert_eq!(fill(&mut fec), None, "no timer runs for a group that stays open");
        assert_eq!(fec.begin_closing(later, &flow(), true), None);
        // Even if the parity is late.
        let end = start + Duration::from_millis(400);
        assert_eq!(fec.seal(end, &flow(), &mut [0; 32]), 2, "group {group}");
        assert!(fec.take_closed().is_none());
    }
    assert_eq!(fill(&mut fec), Some(start + Duration::from_millis(25)));
    assert_eq!(fec.deadline(2), None, "another connection of the address");
    let closing = fec.begin_closing(later, &flow(), true);
    assert_eq!(closing, Some(Closing { fillers: 1, parities: 1 }));
    assert_eq!(fec.seal(later, &flow(), &mut [0; 32]), 1);
    let closed = fec.take_closed().unwrap();
    assert_eq!((closed.packets, closed.parities), (6, 1));
}
