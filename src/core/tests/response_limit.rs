//! How many datagrams without data a connection sends, whatever the two sides believe of each
//! other: in a second at most as many as it received, and ten.

use super::report::each_seed;
use super::scripted_peer::{datagram, header};
use super::sim_plan::{MILLIS, SECOND};
use super::two_endpoints::TwoEndpoints;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::Sn;
use crate::testkit::rng::Rng;

/// Datagrams without data in a second beyond those received.
const ALLOWANCE: u64 = 10;

/// Runs for a second; checks the limit for both sides, and returns the datagrams of both.
fn run_a_second(pair: &mut TwoEndpoints) -> u64 {
    let before = (pair.received, pair.sent_without_data, pair.sent);
    pair.run(SECOND);
    for side in [0, 1] {
        let received = pair.received[side] - before.0[side];
        let sent = pair.sent_without_data[side] - before.1[side];
        assert!(sent <= received + ALLOWANCE, "side {side}: {sent} for {received} received");
    }
    pair.sent - before.2
}

/// Two sides that have exchanged data.
fn connected(seed: u64) -> TwoEndpoints {
    let mut pair = TwoEndpoints::new(seed, 0);
    pair.write(0, &[1; 3_000]);
    pair.run(50 * MILLIS);
    pair.write(1, &[2; 3_000]);
    pair.run(200 * MILLIS);
    assert_eq!((pair.read(0).len(), pair.read(1).len()), (3_000, 3_000));
    pair
}

#[test]
fn forged_data_that_contradicts_both_sides_causes_no_storm() {
    let mut pair = connected(1);
    // The peer takes it for data of side 0, which then finds every `una` of the peer invalid.
    let (una, nxt) = (pair.sides[1].send.nxt(), pair.sides[0].send.nxt());
    let forged = Header { una, ..header(Command::Push, nxt.0, 5) };
    pair.input(1, &datagram(&[(forged, &[3; 100])])).unwrap();
    for _ in 0..3 {
        run_a_second(&mut pair);
    }
    for _ in 0..20 {
        let sent = run_a_second(&mut pair);
        assert!(sent <= 4, "one ping each and its pong, not {sent} datagrams");
    }
}

/// A datagram that fits the connection to `to` more or less.
fn forge(pair: &TwoEndpoints, to: usize, rng: &mut Rng) -> Vec<u8> {
    let near = |rng: &mut Rng, sn: Sn| match rng.below(4) {
        0 => sn,
        1 => Sn(sn.0.wrapping_add(rng.below(2_000) as u32).wrapping_sub(1_000)),
        2 => Sn(sn.0.wrapping_add(rng.below(8) as u32).wrapping_sub(4)),
        _ => Sn(rng.next() as u32),
    };
    let (receiver, other) = (&pair.sides[to].send, &pair.sides[1 - to].send);
    let commands = [
        Command::Push,
        Command::Ack,
        Command::WindowProbe,
        Command::WindowUpdate,
        Command::Control,
    ];
    let payload = vec![9; rng.pick(&[0, 0, 1, 100, 1_000])];
    let forged = Header {
        frg: rng.pick(&[0, 1, 2, 3, 4, 5, CONTROL_CAPABLE]),
        wnd: rng.pick(&[0, 1, 128, u16::MAX]),
        una: near(rng, receiver.nxt()),
        ..header(rng.pick(&commands), near(rng, other.nxt()).0, rng.next() as u32)
    };
    datagram(&[(forged, &payload)])
}

#[test]
fn forged_datagrams_of_any_kind_cause_no_storm() {
    each_seed("response_limit::forged_datagrams_of_any_kind", 0..300, |seed, _| {
        let mut rng = Rng::new(seed);
        let mut pair = connected(seed);
        for second in 0..15 {
            if second < 3 {
                for _ in 0..1 + rng.below(5) {
                    let to = rng.below(2) as usize;
                    let forged = forge(&pair, to, &mut rng);
                    // Malformed ones are dropped.
                    let _ = pair.input(to, &forged);
                }
                pair.write(rng.below(2) as usize, &[4; 500]);
            }
            if second == 8 {
                pair.close(rng.below(2) as usize);
            }
            run_a_second(&mut pair);
        }
        format!("{} datagrams", pair.sent)
    });
}
