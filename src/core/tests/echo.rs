//! Reflections: a host that echoes UDP, or the path, returns each segment unaltered.
//!
//! | segment | its echo |
//! |---|---|
//! | data, ping, MTU probe, PATH_CHALLENGE, initial segment without data, FIN, HELLO, REPAIR | recognised by number and timestamp, and dropped |
//! | ACK, FIN-ACK, RST, RST-ACK, HELLO-ACK, RST without state | copies number and timestamp of the peer's segment, so it proves nothing; its `una` acknowledges nothing before the peer is validated, and it does not count for the anti-amplification limit |
//! | window probe, window update | the same; a window probe draws an update, and the echo of the update draws nothing |
//! | ping without state (Retry) | recognised by its keyed hash before the peer is validated (`driver/tests/echo_host.rs`); too far behind for TIME-WAIT to acknowledge |
//! | out-of-band datagram | sent only to validated peers |

use std::net::SocketAddr;
use std::time::Duration;

use super::report::each_seed;
use super::scripted_peer::{ScriptedPeer, Sent, config, datagram, header};
use super::sim_plan::{MILLIS, SECOND};
use crate::core::path::validation::PathValidation;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::Sn;
use crate::testkit::rng::Rng;

fn is_reflection(script: &ScriptedPeer, (header, payload): &Sent) -> bool {
    script.kcp.is_reflection(&datagram(&[(*header, payload)]))
}

#[test]
fn segments_that_leave_unasked_are_recognised_when_they_come_back() {
    // The initial segment without data, and the first ping.
    let mut script = ScriptedPeer::new(&config());
    script.kcp.open(script.instant());
    let initial = script.out();
    assert!(initial.iter().all(|sent| is_reflection(&script, sent)) && !initial.is_empty());

    // Data on a path that carries no full datagram, with pings and probes of MTU discovery, then
    // FIN.
    let mut script = ScriptedPeer::new(&config());
    let probe = Header { frg: CONTROL_CAPABLE, ..header(Command::WindowUpdate, 0, 0) };
    script.give(probe, b"");
    script.write(vec![1; 20_000]);
    let (mut pings, mut probes) = (0, 0);
    for _ in 0..600 {
        script.now += 50 * MILLIS;
        for sent in script.out() {
            let (header, payload) = &sent;
            assert!(is_reflection(&script, &sent), "{header:?}");
            let is_far = Sn(0).since(header.sn) > 65_535;
            probes += u32::from(is_far && !payload.is_empty());
            if is_far && payload.is_empty() {
                pings += 1;
                script.ack(header.sn.0, header.ts.0);
            }
        }
    }
    assert!(pings > 0 && probes > 0, "{pings} pings, {probes} MTU probes");
    script.una = script.kcp.send.nxt();
    script.give(probe, b"");
    script.kcp.close(script.instant());
    let fin = script.out();
    assert!(fin.iter().any(|(header, _)| header.command == Command::Control), "{fin:?}");
    assert!(fin.iter().all(|sent| is_reflection(&script, sent)), "{fin:?}");

    // A PATH_CHALLENGE.
    let now = script.instant();
    let other = SocketAddr::from(([10, 0, 0, 1], 1));
    let moved = datagram(&[(header(Command::Push, 0, 0), b"moved")]);
    let PathValidation::Challenge(challenge) = script.kcp.validate_path(now, other, &moved, 77)
    else {
        panic!("the first datagram draws a challenge")
    };
    let mut bytes = Vec::new();
    script.kcp.write_path_challenge(challenge, &mut bytes);
    assert!(script.kcp.is_reflection(&bytes));
}

/// A segment of a forger who sees no datagram of this side.
fn forge(rng: &mut Rng) -> (Header, Vec<u8>) {
    let commands = [
        Command::Push,
        Command::Push,
        Command::Ack,
        Command::WindowProbe,
        Command::WindowUpdate,
        Command::Control,
    ];
    let (command, sn) = (rng.pick(&commands), rng.pick(&[0, 0, 1, 2, 3, 9, 0xC000_0000]));
    let payload = vec![9; rng.pick(&[0, 0, 1, 100])];
    let forged = Header {
        frg: rng.pick(&[0, 0, 1, 2, 3, 4, 5, CONTROL_CAPABLE]),
        wnd: rng.pick(&[0, 1, 128]),
        una: Sn(rng.below(4) as u32),
        ..header(command, sn, rng.next() as u32)
    };
    let payload = if command == Command::Push { payload } else { Vec::new() };
    (forged, payload)
}

#[test]
fn nothing_an_echo_returns_validates_acknowledges_or_keeps_alive() {
    each_seed("echo::nothing_an_echo_returns", 0..300, |seed, _| {
        let mut rng = Rng::new(seed);
        let mut script = ScriptedPeer::new(&config());
        let (without_data, allowance) = (rng.below(2) == 0, rng.pick(&[0, 1_200]));
        script.kcp.require_validation(script.instant(), allowance);
        let initial = if without_data {
            script.kcp.expect_capable_acks();
            let initial = header(Command::WindowProbe, 1 << 30, 5);
            (Header { frg: CONTROL_CAPABLE, ..initial }, Vec::new())
        } else {
            (header(Command::Push, 0, 5), vec![7; 10])
        };
        let mut forged = 0;
        let mut give = |script: &mut ScriptedPeer, (header, payload): (Header, Vec<u8>)| {
            let datagram = datagram(&[(header, &payload)]);
            forged += datagram.len();
            script.input(&datagram).unwrap();
            forged
        };
        let mut most = give(&mut script, initial);
        script.write(vec![1; 50_000]);
        let mut waiting: Vec<(u64, Sent)> = Vec::new();
        for step in 0..600 {
            script.now += 50 * MILLIS;
            // Forged segments arrive for five seconds, afterwards only the echo.
            if step < 100 && rng.below(4) == 0 {
                most = give(&mut script, forge(&mut rng));
            }
            let delay = rng.pick(&[0, 0, 1, 12]) * SECOND;
            let sent = script.out();
            waiting.extend(sent.into_iter().map(|sent| (script.now + delay, sent)));
            let now = script.now;
            for (_, sent) in waiting.extract_if(.., |(at, _)| *at <= now) {
                if !is_reflection(&script, &sent) {
                    script.input(&datagram(&[(sent.0, &sent.1)])).unwrap();
                }
            }
            assert!(!script.kcp.is_established(), "validated");
            assert_eq!(script.kcp.una(), Sn(0), "acknowledged");
            let limit = (3 * most).max(allowance) as u64;
            assert!(script.sent.1 <= limit, "{} bytes for {most}", script.sent.1);
        }
        let alive = script.kcp.time_since_alive(script.instant());
        assert!(alive >= Duration::from_millis(24_900), "a sign of life {alive:?} ago");
        format!("{} bytes for {most}", script.sent.1)
    });
}
