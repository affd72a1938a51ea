//! Settings that change during a connection: the wire shows the effect of each.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::fixtures::{CLIENT, Pair, SECOND, SERVER, pattern, read_pattern};
use super::sim_world::addr;
use crate::config::{AckPolicy, Config, CongestionControl, Timing, WritePolicy};
use crate::core::segment::{Command, Header, Segments};

/// Less than the delay of the path in one direction.
const MOMENT: Duration = Duration::from_millis(5);
/// More than the send buffer takes.
const LEN: usize = 1 << 20;

/// A pair whose windows alone limit the flight.
fn unlimited() -> Pair {
    let config = Config::new().congestion_control(CongestionControl::Off);
    Pair::new(&config, &config)
}

/// A datagram, when it left in microseconds, and its segments.
struct Sent {
    at: u64,
    len: usize,
    segments: Vec<Header>,
}

/// The datagrams that `host` sends within `time`.
fn sent(pair: &mut Pair, host: u8, time: Duration) -> Vec<Sent> {
    pair.world.log();
    pair.world.run_for(time);
    let log = pair.world.log().into_iter().filter(|sent| sent.from == addr(host));
    log.map(|sent| {
        let segments = Segments::new(&sent.datagram).map(|(header, _)| header).collect();
        Sent { at: sent.at, len: sent.datagram.len(), segments }
    })
    .collect()
}

fn is_data(header: &Header) -> bool {
    header.command == Command::Push && header.len > 0
}

fn count_data(datagrams: &[Sent]) -> usize {
    datagrams.iter().flat_map(|sent| &sent.segments).filter(|header| is_data(header)).count()
}

/// Fills the client's send buffer. Returns the bytes that it took.
fn fill(pair: &Pair) -> usize {
    pair.client.try_write(&pattern(LEN)).unwrap()
}

/// Reads at the server the bytes of [`fill`].
fn drain(pair: &mut Pair, len: usize) {
    let Pair { world, server, .. } = pair;
    world.finish(60 * SECOND, read_pattern(server, len));
    world.run_for(SECOND);
}

#[test]
fn windows_set_in_use_limit_what_each_side_has_in_flight() {
    let mut pair = unlimited();
    for (send, recv) in [(4, 7), (40, 30), (1, 1), (30, 3)] {
        pair.client.set_windows(send, recv).unwrap();
        // Never shrinks: the server uses up the advertised window.
        let Pair { world, client, server, .. } = &mut pair;
        let used = 2 * LEN;
        world.finish(60 * SECOND, async {
            let data = pattern(used);
            let (sent, ()) = tokio::join!(server.write_all(&data), read_pattern(client, used));
            sent.unwrap();
        });
        world.run_for(SECOND);
        let up = fill(&pair);
        let down = pair.server.try_write(&pattern(LEN)).unwrap();
        pair.world.log();
        pair.world.run_for(MOMENT);
        let log = pair.world.log();
        let of = |host: u8| {
            let datagrams = log.iter().filter(move |sent| sent.from == addr(host));
            let headers = datagrams.flat_map(|sent| Segments::new(&sent.datagram));
            headers.map(|(header, _)| header).filter(is_data).collect::<Vec<_>>()
        };
        assert_eq!((of(CLIENT).len(), of(SERVER).len()), (send.into(), recv.into()));
        assert!(of(CLIENT).iter().all(|header| header.wnd == recv), "{:?}", of(CLIENT));
        drain(&mut pair, up);
        let Pair { world, client, .. } = &mut pair;
        world.finish(60 * SECOND, read_pattern(client, down));
        world.run_for(SECOND);
    }
}

#[test]
fn congestion_control_set_in_use_limits_the_first_flight() {
    let mut pair = Pair::plain();
    let mut flight = |control| {
        pair.client.set_congestion_control(control);
        let len = fill(&pair);
        let count = count_data(&sent(&mut pair, CLIENT, MOMENT));
        drain(&mut pair, len);
        count
    };
    let [limited, off, again] =
        [CongestionControl::Reno, CongestionControl::Off, CongestionControl::Reno].map(&mut flight);
    println!("{limited}, {off}, {again} segments");
    assert!(off > 180, "{off} segments of a full send buffer");
    assert!(limited < 100 && again < 180, "{limited} and {again} segments");
}

/// Milliseconds from a write to the first datagram with it.
fn write_delay(pair: &mut Pair) -> u64 {
    let start = pair.world.elapsed();
    pair.client.try_write(&pattern(1)).unwrap();
    let datagrams = sent(pair, CLIENT, 10 * SECOND);
    let first = datagrams.iter().find(|sent| sent.segments.iter().any(is_data)).unwrap().at;
    drain(pair, 1);
    (first - start) / 1_000
}

#[test]
fn write_policy_and_timing_set_in_use_delay_writes() {
    let mut pair = unlimited();
    assert_eq!(write_delay(&mut pair), 0);
    for millis in [500, 10, 5_000] {
        let timing = Timing::new(true, Duration::from_millis(millis), None).unwrap();
        pair.client.set_timing(timing);
        for is_delayed in [true, false] {
            let policy = if is_delayed { WritePolicy::Delayed } else { WritePolicy::Immediate };
            let expected = if is_delayed { millis } else { 0 };
            pair.client.set_write_policy(policy);
            assert_eq!(write_delay(&mut pair), expected, "{millis} ms, {policy:?}");
            pair.client.set_nodelay(is_delayed).unwrap();
            assert_eq!(write_delay(&mut pair), if is_delayed { 0 } else { millis });
        }
    }
}

#[test]
fn timing_set_in_use_changes_the_time_to_a_retransmission() {
    let mut pair = unlimited();
    let mut gaps = |timing| {
        pair.client.set_timing(timing);
        pair.world.cut(addr(CLIENT), addr(SERVER), true);
        pair.client.try_write(&pattern(1)).unwrap();
        let datagrams = sent(&mut pair, CLIENT, SECOND);
        let times = datagrams.iter().filter(|sent| sent.segments.iter().any(is_data));
        let mut times: Vec<_> = times.map(|sent| sent.at / 1_000).collect();
        // Several copies at once are one retransmission.
        times.dedup();
        pair.world.cut(addr(CLIENT), addr(SERVER), false);
        drain(&mut pair, 1);
        times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
    };
    let slow = Timing::new(false, Duration::from_millis(300), None).unwrap();
    let [fast, slow, again] = [Timing::FAST3, slow, Timing::FAST3].map(&mut gaps);
    println!("{fast:?}, {slow:?}, {again:?} ms");
    // The RTO has the interval as a part.
    assert!(fast[0] < 100 && slow[0] >= 300 && again[0] < 100);
    assert!(fast.len() > slow.len() && again.len() > slow.len());
}

#[test]
fn ack_policy_set_in_use_decides_when_acknowledgements_leave() {
    let mut pair = unlimited();
    let mut acks = |policy, interval| {
        let interval = Duration::from_millis(interval);
        pair.server.set_timing(Timing::new(true, interval, None).unwrap());
        pair.server.set_ack_policy(policy);
        pair.world.run_for(SECOND);
        let start = pair.world.elapsed();
        pair.client.try_write(&pattern(4_000)).unwrap();
        let datagrams = sent(&mut pair, SERVER, SECOND);
        let is_ack = |header: &Header| header.command == Command::Ack;
        let times = datagrams.iter().filter(|sent| sent.segments.iter().any(is_ack));
        let times: Vec<_> = times.map(|sent| (sent.at - start) / 1_000).collect();
        drain(&mut pair, 4_000);
        times
    };
    // The data needs 10 ms.
    assert_eq!(acks(AckPolicy::PerBatch, 30), [10]);
    assert_eq!(acks(AckPolicy::Immediate, 30), [10; 3]);
    assert_eq!(acks(AckPolicy::Interval, 30), [40]);
    assert_eq!(acks(AckPolicy::Interval, 20), [30]);
    assert_eq!(acks(AckPolicy::PerBatch, 20), [10]);
}

#[test]
fn rate_limit_set_in_use_limits_bytes_per_second() {
    let mut pair = unlimited();
    for rate in [20_000, 5_000, 40_000] {
        pair.client.set_rate_limit(NonZeroU64::new(rate));
        let len = fill(&pair);
        // The bytes that leave at once.
        pair.world.run_for(SECOND);
        let bytes: usize = sent(&mut pair, CLIENT, 4 * SECOND).iter().map(|sent| sent.len).sum();
        let expected = 4 * rate as usize;
        assert!(bytes.abs_diff(expected) < expected / 10, "{bytes} bytes at {rate}");
        pair.client.set_rate_limit(None);
        let bytes: usize = sent(&mut pair, CLIENT, SECOND).iter().map(|sent| sent.len).sum();
        assert!(bytes > 50_000, "{bytes} bytes without a limit");
        drain(&mut pair, len);
    }
}

#[test]
fn mtu_and_duplicates_set_in_use_shape_the_datagrams() {
    let mut pair = unlimited();
    for (mtu, duplicates) in [(1_400, 0), (900, 2), (500, 0), (500, 1)] {
        pair.client.set_mtu(mtu).unwrap();
        pair.client.set_duplicates(duplicates).unwrap();
        pair.world.run_for(SECOND);
        pair.client.try_write(&pattern(9_000)).unwrap();
        let datagrams = sent(&mut pair, CLIENT, MOMENT);
        let longest = datagrams.iter().map(|sent| sent.len).max();
        assert_eq!(longest, Some(mtu.into()));
        let segments = 9_000_usize.div_ceil(usize::from(mtu) - 24);
        assert_eq!(count_data(&datagrams), segments * (1 + usize::from(duplicates)));
        drain(&mut pair, 9_000);
    }
}
