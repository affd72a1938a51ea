//! Wrap of `sn` and `ts`: starts just before 2^32 and 2^31 must behave exactly as a start at zero.

use super::report::explained;
use super::sim::{Outcome, Sim};
use super::sim_plan::{MILLIS, Plan};
use crate::core::segment::{Command, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::stats::ConnectionStats;

const WINDOW: u16 = 128;

/// Four windows each way, with a tenth of the datagrams lost.
fn plan(start: u32, epoch: u32, seed: u64) -> Plan {
    let mut plan = Plan::plain("wrap");
    (plan.seed, plan.start) = (seed, Sn(start));
    for side in &mut plan.sides {
        (side.config.send_window, side.config.recv_window) = (WINDOW, WINDOW);
        side.ts_epoch = epoch;
        side.traffic.bytes = 4 * u64::from(WINDOW) * 1_376;
        side.link.loss = 100_000;
        side.link.jitter = 3 * MILLIS;
        side.link.duplicate = 50_000;
        (side.link.copies, side.link.copy_delay) = (2, 100 * MILLIS);
        side.probe_every = 1_500 * MILLIS;
    }
    plan
}

/// The values that must be equal: time of completion, number of events, and all counters.
fn trace(plan: &Plan) -> (u64, u64, [ConnectionStats; 2]) {
    let Outcome { finished, events, stats, .. } = explained(plan, || Sim::new(plan).run());
    (finished, events, stats)
}

#[test]
fn sn_wrap_changes_nothing() {
    let window = u32::from(WINDOW);
    let before = [0, 1, 2, window / 2, window, 2 * window];
    for seed in 0..5 {
        let expected = trace(&plan(0, 7, seed));
        for k in before {
            for start in [0_u32, 1 << 31] {
                assert_eq!(trace(&plan(start.wrapping_sub(k), 7, seed)), expected);
            }
        }
        // Pings are numbered 2^30 behind, so starts around 2^30 are tried too.
        for start in [1 << 30, 3 << 30] {
            assert_eq!(trace(&plan(start - 5, 7, seed)), expected);
        }
    }
}

#[test]
fn ts_wrap_changes_nothing() {
    for seed in 0..5 {
        let expected = trace(&plan(0, 0, seed));
        for k in [0, 1, 100, 1_000, 10_000] {
            for start in [0_u32, 1 << 31] {
                assert_eq!(trace(&plan(0, start.wrapping_sub(k), seed)), expected);
                assert_eq!(trace(&plan(0, start.wrapping_add(k), seed)), expected);
            }
        }
    }
}

/// The segments of a datagram, rebased to a start and an epoch of zero.
fn rebased(datagram: &[u8], start: u32, epoch: u32) -> Vec<(Header, Vec<u8>)> {
    let one = |(header, payload): (Header, &[u8])| {
        let sn = header.sn.back(start);
        // The `ts` of a ping, numbered far behind, is a cookie; window probes carry none.
        let has_ts = matches!(header.command, Command::Push | Command::Ack);
        let is_time = has_ts && sn.since(Sn(0)) > -(1 << 29);
        let ts = Ts(header.ts.0.wrapping_sub(if is_time { epoch } else { 0 }));
        (Header { sn, ts, una: header.una.back(start), ..header }, payload.to_vec())
    };
    Segments::new(datagram).map(one).collect()
}

/// Datagram by datagram, after rebasing.
#[test]
fn sn_and_ts_wrap_leave_every_datagram_identical_after_rebasing() {
    let datagrams = |start: u32, epoch: u32| {
        let plan = plan(start, epoch, 3);
        let mut sim = Sim::new(&plan);
        sim.record = true;
        sim.run();
        let all = sim.recorded.iter();
        all.map(|(side, bytes)| (*side, rebased(bytes, start, epoch))).collect::<Vec<_>>()
    };
    let expected = datagrams(0, 0);
    assert!(expected.len() > 1_000);
    for (start, epoch) in [(u32::MAX - 99, 0), (0, u32::MAX - 99), (1 << 31, (1 << 31) - 500)] {
        assert!(datagrams(start, epoch) == expected, "start {start}, epoch {epoch}");
    }
}
