//! A connection with several paths without the driver.

use super::scripted_peer::{ScriptedPeer, config, header};
use super::sim_plan::{MILLIS, SECOND};
use crate::core::connection::multipath::AddPathError;
use crate::core::path::set::PathId;
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, Header, Segments};
use crate::core::seq::Sn;

const RTT: u64 = 10 * MILLIS;
const OTHER: PathId = PathId(1);

/// A connection whose peer accepts paths.
fn new(aggregates: bool) -> ScriptedPeer {
    let mut scripted = ScriptedPeer::new(&config());
    if aggregates {
        scripted.kcp.aggregate_paths();
    }
    scripted.kcp.ask_for_paths();
    message(&mut scripted);
    let is_hello = |header: &Header| {
        header.command == Command::Control && header.frg == ControlType::Hello as u8
    };
    let mut sent = scripted.out().into_iter().map(|(header, _)| header);
    let hello = sent.find(is_hello).unwrap();
    scripted.now += RTT;
    scripted.give(Header { frg: ControlType::HelloAck as u8, sn: Sn(7), ..hello }, b"");
    assert_eq!(scripted.kcp.peer_accepts_paths(), Some(true));
    scripted
}

/// As [`new`], with a second path that answers.
fn with_another() -> ScriptedPeer {
    let mut scripted = new(false);
    assert_eq!(scripted.kcp.add_path(scripted.instant()), Ok(OTHER));
    assert_eq!(pings_on_the_other_path(&mut scripted, 0), [0]);
    scripted
}

/// Sends one message, which is acknowledged after [`RTT`].
fn message(scripted: &mut ScriptedPeer) {
    let sn = scripted.una;
    scripted.write("message");
    let mut sent = scripted.out().into_iter().map(|(header, _)| header);
    let push = sent.rfind(|header| header.sn == sn).unwrap();
    scripted.now += RTT;
    scripted.una = sn.advance(1);
    let ack = header(Command::Ack, push.sn.0, push.ts.0);
    scripted.give(Header { frg: CONTROL_CAPABLE, ..ack }, b"");
}

/// The pings that leave now, and their paths.
fn pings(scripted: &mut ScriptedPeer) -> Vec<(PathId, Header)> {
    scripted.out();
    let (now, mut pings) = (scripted.instant(), Vec::new());
    while let Some(path) = scripted.kcp.next_transmit_path(now) {
        let mut bytes = Vec::new();
        assert!(scripted.kcp.poll_transmit_on_path(now, &mut bytes).is_some());
        let sent = Segments::new(&bytes).map(|(header, _)| (path, header));
        pings.extend(sent.filter(|(_, header)| header.command == Command::Push));
    }
    pings
}

/// Lets `time` pass; all pings are answered after [`RTT`]. Returns when those on the second path left.
fn pings_on_the_other_path(scripted: &mut ScriptedPeer, time: u64) -> Vec<u64> {
    let (start, mut times) = (scripted.now, Vec::new());
    loop {
        let pings = pings(scripted);
        let other = pings.iter().filter(|(path, _)| *path == OTHER);
        times.extend(other.map(|_| scripted.now - start));
        scripted.now += if pings.is_empty() { 0 } else { RTT };
        for (path, ping) in pings {
            scripted.kcp.set_arrival(path);
            scripted.ack(ping.sn.0, ping.ts.0);
        }
        scripted.kcp.set_arrival(PathId::FIRST);
        match scripted.timeout().filter(|at| *at <= start + time) {
            Some(at) => scripted.now = at,
            None => break,
        }
    }
    scripted.now = scripted.now.max(start + time);
    times
}

#[test]
fn connection_has_three_further_paths_whether_transfers_use_all_or_one() {
    for aggregates in [false, true] {
        let mut scripted = new(aggregates);
        let now = scripted.instant();
        let added: Vec<_> = (0..4).map(|_| scripted.kcp.add_path(now)).collect();
        let expected = [Ok(OTHER), Ok(PathId(2)), Ok(PathId(3)), Err(AddPathError::TooMany)];
        assert_eq!(added, expected, "{aggregates}");
    }
}

#[test]
fn mtu_that_is_lowered_limits_each_path_and_raised_the_active_one() {
    let mut scripted = with_another();
    let sizes = |mtu| {
        scripted.kcp.set_mtu(mtu).unwrap();
        scripted.kcp.paths().map(|path| path.current_mtu).collect::<Vec<_>>()
    };
    assert_eq!([1_400, 1_000, 1_200].map(sizes), [[1_400, 1_400], [1_000, 1_000], [1_200, 1_000]]);
}

#[test]
fn single_message_after_a_pause_has_the_other_path_pinged_within_5_s() {
    let answer = |scripted: &mut ScriptedPeer| {
        scripted.give(header(Command::WindowProbe, 1 << 30, 0), b"");
        let sent = scripted.out();
        assert_eq!(sent[0].0.command, Command::WindowUpdate);
    };
    let pause = 26 * SECOND;
    for (act, wait) in [(message as fn(&mut _), 5 * SECOND - RTT), (answer, 9 * SECOND + 2 * RTT)] {
        let mut scripted = with_another();
        assert_eq!(pings_on_the_other_path(&mut scripted, pause), [5 * SECOND, 20 * SECOND + RTT]);
        act(&mut scripted);
        assert_eq!(pings_on_the_other_path(&mut scripted, 10 * SECOND)[0], wait);
    }
}

/// How long a lost message waits until it leaves again.
fn retransmitted_after(mut scripted: ScriptedPeer) -> u64 {
    let start = scripted.now;
    scripted.write("lost");
    assert!(!scripted.out().is_empty());
    loop {
        scripted.now = scripted.timeout().unwrap();
        if scripted.out().iter().any(|(_, payload)| payload == b"lost") {
            return scripted.now - start;
        }
        pings(&mut scripted);
    }
}

#[test]
fn lost_message_waits_for_the_answer_to_its_copy_only_while_copies_leave() {
    let measured = |mut scripted: ScriptedPeer| {
        (0..20).for_each(|_| message(&mut scripted));
        scripted
    };
    for paths in [new as fn(bool) -> _, |_| with_another()] {
        let mut asked = measured(paths(false));
        assert_eq!(asked.kcp.copy_paths().count(), 0);
        let alone = retransmitted_after(measured(paths(false)));
        assert_eq!(retransmitted_after(asked), alone);
    }
    let mut copied = measured(with_another());
    copied.kcp.copy_on_paths();
    assert_eq!(copied.kcp.copy_paths().collect::<Vec<_>>(), [(OTHER, 1_400)]);
    let alone = retransmitted_after(measured(new(false)));
    assert_eq!(retransmitted_after(copied), alone + 2 * MILLIS);
}
