//! Tests of what FEC sends.

use std::time::Duration;

use super::*;
use crate::config::Config;
use crate::driver::packet_codec::{PacketCodec, SendExtras, Written};
use crate::driver::send_batch::SendBatch;
use crate::testkit::rng::Rng;
use crate::util::path::Path;

fn config(data: usize, parity: usize) -> FecConfig {
    FecConfig::new(data, parity).unwrap()
}

fn flow() -> FlowTiming {
    let (srtt, rto) = (Some(Duration::from_millis(50)), Duration::from_millis(62));
    let (loss_rate, parity_rate, has_unsent) = (0, None, false);
    FlowTiming { conv: 1, next_xmit_seq: 1, srtt, rto, loss_rate, parity_rate, has_unsent }
}

/// Parity packets of the group that the last of these packets, at these times, completes.
fn parities(fec: &mut FecSender, start: Instant, times: &[u64]) -> usize {
    let at = |millis: &u64| start + Duration::from_millis(*millis);
    let mut count = 0;
    for time in times {
        count = fec.seal(at(time), &flow(), &mut [0; 100]);
    }
    count
}

#[test]
fn parity_is_left_out_where_a_retransmission_comes_first() {
    let start = Instant::now();
    let mut fec = FecSender::confirmed(config(5, 2), start);
    assert_eq!(parities(&mut fec, start, &[0, 25, 50, 75, 100]), 2, "50 ms before, in the mean");
    assert_eq!(parities(&mut fec, start, &[200, 226, 252, 278, 304]), 0);
    assert_eq!(parities(&mut fec, start, &[400, 401, 402, 403, 480]), 0);
    // The seqids of parity are used all the same.
    let mut packet = [0; 100];
    fec.seal(start, &flow(), &mut packet);
    assert_eq!(packet[..4], [21, 0, 0, 0]);
}

#[test]
fn closing_costs_no_more_bytes_than_parity_adds_to_whole_groups() {
    let start = Instant::now();
    for seed in 0..1_000 {
        let mut rng = Rng::new(seed);
        let config = config(rng.range(2, 100) as usize, rng.range(1, 50) as usize);
        let mut group = OpenGroup::new(start, &flow(), false);
        for _ in 1..rng.range(1, config.data_shards() as u64) {
            group.add(start, &flow(), rng.range(1, 1_400) as usize, config);
        }
        let Some(closing) = group.closing(config, None) else {
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
fn fec_probe_uses_up_one_parity_packet_of_its_group() {
    let start = Instant::now();
    for (parity, covered) in [(2, Some((5, 1))), (1, None)] {
        let mut fec = FecSender::confirmed(config(5, parity), start);
        (0..4).for_each(|_| assert_eq!(fec.seal(start, &flow(), &mut [0; 100]), 0));
        assert_eq!(fec.seal_probe(start, &flow(), &mut [0; 32]), parity);
        let closed = fec.take_closed().map(|group| (group.packets - 1, group.parities));
        assert_eq!(closed, covered);
    }
}

#[test]
fn parity_that_may_not_leave_is_not_waited_for() {
    let start = Instant::now();
    for may_send_extras in [true, false] {
        let mut codec = PacketCodec::new(&Config::new(), [0; 32]);
        let mut tx = SendBatch::default();
        let mut fec = FecSender::confirmed(config(5, 2), start);
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

#[test]
fn group_is_closed_early_only_if_its_parity_suffices() {
    let (start, config) = (Instant::now(), config(5, 2));
    let close_after = |loss_rate| {
        let mut group = OpenGroup::new(start, &flow(), false);
        for millis in [0, 10, 20] {
            let now = start + Duration::from_millis(millis);
            group.add(now, &FlowTiming { loss_rate, ..flow() }, 1_000, config);
        }
        (group.close_at.unwrap() - start).as_millis()
    };
    // Open for 25 ms; or idle for that long.
    assert_eq!([0, 16_000, 17_000, 100_000].map(close_after), [25, 25, 45, 45]);
}

#[test]
fn group_that_splits_a_message_is_closed_with_the_message_before_the_next_one() {
    let (start, config) = (Instant::now(), config(6, 4));
    let limited = FlowTiming { parity_rate: Some(166_666), ..flow() };
    let mut fec = FecSender::confirmed(config, start);
    let at = |millis| start + Duration::from_millis(millis);
    let message = |fec: &mut FecSender, millis| {
        let parities = [0; 2].map(|_| fec.seal(at(millis), &limited, &mut [0; 560]));
        (parities, fec.deadline(1))
    };
    // In whole messages: parity leaves with the third one.
    assert_eq!(message(&mut fec, 0), ([0, 0], None));
    assert_eq!(message(&mut fec, 10).0, [0, 0]);
    assert_eq!(message(&mut fec, 20), ([0, 1], None));
    // A FEC probe takes a place in between.
    assert_eq!(message(&mut fec, 30).0, [0, 0]);
    assert_eq!(message(&mut fec, 40).0, [0, 0]);
    assert_eq!(fec.seal(at(50), &limited, &mut [0; 560]), 0);
    assert_eq!(fec.seal_probe(at(50), &limited, &mut [0; 32]), 2);
    assert_eq!(fec.seal(at(50), &limited, &mut [0; 560]), 0);
    assert_eq!(message(&mut fec, 60).0, [0, 0]);
    let (parities, deadline) = message(&mut fec, 70);
    assert_eq!((parities, deadline), ([0, 0], Some(at(70))));
    let closing = fec.begin_closing(at(70), &limited, true).unwrap();
    assert_eq!(closing.fillers, 1);
    fec.seal(at(70), &limited, &mut [0; 32]);
    assert_eq!(fec.encoder().packets_in_group(), 0);
    assert_eq!(message(&mut fec, 80), ([0, 0], None), "the next group splits nothing");
}

#[test]
fn group_is_not_realigned_for_another_connection_or_within_a_message() {
    let (start, config) = (Instant::now(), config(4, 2));
    let limited = FlowTiming { parity_rate: Some(400_000), ..flow() };
    // A group that begins in the middle of what leaves, and is full but for one packet.
    let fillers = |ends: u32, later: u32, has_unsent| {
        let mut fec = FecSender::confirmed(config, start);
        // While a packet is sealed, it has not left.
        for conv in [1, 1, 1, ends, 1, 1, later] {
            let flow = FlowTiming { conv, has_unsent: true, ..limited };
            fec.seal(start, &flow, &mut [0; 560]);
        }
        assert_eq!(fec.encoder().packets_in_group(), 3);
        let flow = FlowTiming { conv: 1, has_unsent, ..limited };
        fec.begin_closing(start, &flow, true).map(|closing| closing.fillers)
    };
    assert_eq!(fillers(1, 1, false), Some(1));
    assert_eq!(fillers(1, 1, true), None, "the message goes on");
    assert_eq!(fillers(2, 1, false), None, "the burst was of another connection");
    assert_eq!(fillers(1, 2, false), None, "another connection takes part");
}

#[test]
fn group_is_not_closed_before_a_fec_probe_is_answered() {
    let start = Instant::now();
    let mut fec = FecSender::new(config(5, 2));
    let later = start + Duration::from_millis(40);
    let fill = |fec: &mut FecSender| {
        for _ in 0..4 {
            fec.seal(start, &flow(), &mut [0; 1_000]);
        }
        fec.deadline(1)
    };
    assert_eq!(fill(&mut fec), None, "no timer runs for a group that stays open");
    assert_eq!(fec.begin_closing(later, &flow(), true), None);
    assert_eq!(fec.seal_probe(start, &flow(), &mut [0; 32]), 2);
    fec.on_probe_answered();
    let closed = fec.take_closed();
    assert!(closed.is_none(), "the FEC probe was not answered when the parity left");
    assert_eq!(fill(&mut fec), Some(start + Duration::from_millis(25)));
    assert_eq!(fec.deadline(2), None, "another connection of the address");
    let closing = fec.begin_closing(later, &flow(), true);
    assert_eq!(closing, Some(Closing { fillers: 1, parities: 1 }));
    assert_eq!(fec.seal(later, &flow(), &mut [0; 32]), 1);
    let closed = fec.take_closed().unwrap();
    assert_eq!((closed.packets, closed.parities), (6, 1));
}
