//! Settings change datagrams and their times, in virtual time: the test plays the peer.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{self, ACK, PUSH, cause};
use kcpx::{
    AckPolicy, Config, CongestionControl, ConnectionError, Endpoint, KcpStream, KeepaliveInterval,
    RecvBatch, TimeoutCause, Timing, Transmit, Transport, WritePolicy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until};

const HEADER: usize = 24;

/// A segment that left: the milliseconds since the start of the test, and fields of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    at: u64,
    command: u8,
    wnd: u16,
    ts: u32,
    sn: u32,
    len: usize,
    /// Length of its datagram.
    datagram: usize,
}

/// The peer's end of the path.
#[derive(Default)]
struct Wire {
    start: Option<Instant>,
    conv: u32,
    sent: Vec<Segment>,
    incoming: VecDeque<Vec<u8>>,
    reader: Option<Waker>,
}

impl Wire {
    fn record(&mut self, datagram: &[u8]) {
        let start = *self.start.get_or_insert_with(Instant::now);
        let at = u64::try_from(start.elapsed().as_millis()).unwrap();
        let mut rest = datagram;
        while let Some((header, payload)) = rest.split_at_checked(HEADER) {
            let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
            let len = word(20) as usize;
            self.conv = word(0);
            self.sent.push(Segment {
                at,
                command: header[4],
                wnd: u16::from_le_bytes([header[6], header[7]]),
                ts: word(8),
                sn: word(12),
                len,
                datagram: datagram.len(),
            });
            rest = &payload[len..];
        }
        assert_eq!(rest, b"");
    }
}

struct Recorder(Arc<Mutex<Wire>>);

impl Transport for Recorder {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([10, 0, 0, 1], 1)))
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.0.lock().unwrap();
        let Some(datagram) = wire.incoming.pop_front() else {
            wire.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        assert!(batch.push(peer(), &datagram));
        Poll::Ready(Ok(()))
    }

    fn poll_send(
        &mut self,
        _: &mut Context<'_>,
        transmit: &Transmit<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut wire = self.0.lock().unwrap();
        transmit.datagrams().for_each(|datagram| wire.record(datagram));
        Poll::Ready(Ok(transmit.datagrams().len()))
    }
}

fn peer() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 1))
}

/// A stream and its peer, which is silent unless the test answers.
struct Played {
    stream: KcpStream,
    wire: Arc<Mutex<Wire>>,
}

/// Without timers that the tests do not set.
fn quiet() -> Config {
    Config::new()
        .early_data(true)
        .congestion_control(CongestionControl::Off)
        .keepalive(KeepaliveInterval::Never)
        .idle_timeout(None)
        .dead_peer_timeout(None)
}

impl Played {
    async fn open(config: Config) -> Self {
        let wire = Arc::new(Mutex::new(Wire::default()));
        wire.lock().unwrap().start = Some(Instant::now());
        let endpoint = Endpoint::from_transport(Recorder(wire.clone()), config).unwrap();
        let stream = endpoint.connect(peer()).await.unwrap();
        Self { stream, wire }
    }

    /// As [`Self::open`], with a byte that the peer has acknowledged after 20 ms. Forgets the datagrams so far.
    async fn established(config: Config) -> Self {
        let mut played = Self::open(config).await;
        played.write(b"!").await;
        played.stream.flush().await.unwrap();
        sleep(Duration::from_millis(20)).await;
        played.ack_all(1_024);
        sleep(Duration::from_millis(1)).await;
        played.stream.established().await.unwrap();
        let mut wire = played.wire.lock().unwrap();
        (wire.start, wire.sent) = (Some(Instant::now()), Vec::new());
        drop(wire);
        played
    }

    async fn write(&mut self, data: &[u8]) {
        self.stream.write_all(data).await.unwrap();
    }

    /// Waits until `ms` after the start.
    async fn until(&self, ms: u64) {
        let start = self.wire.lock().unwrap().start.unwrap();
        sleep_until(start + Duration::from_millis(ms)).await;
    }

    /// A segment of the peer arrives.
    fn deliver(&self, command: u8, wnd: u16, ts: u32, sn: u32, una: u32, payload: &[u8]) {
        let mut wire = self.wire.lock().unwrap();
        let mut datagram = common::segment(wire.conv, command, sn, una, payload);
        datagram[6..8].copy_from_slice(&wnd.to_le_bytes());
        datagram[8..12].copy_from_slice(&ts.to_le_bytes());
        wire.incoming.push_back(datagram);
        wire.reader.take().into_iter().for_each(Waker::wake);
    }

    /// The peer acknowledges the latest data segment and all before it, and advertises `wnd`.
    fn ack_all(&self, wnd: u16) {
        let last = self.data().last().copied().expect("data left");
        self.deliver(ACK, wnd, last.ts, last.sn, last.sn + 1, b"");
    }

    /// Segments with these numbers arrive, and are read one by one. Returns the window of the latest ACK.
    async fn receive(&mut self, numbers: std::ops::Range<u32>) -> u16 {
        for sn in numbers {
            self.deliver(PUSH, 128, 9, sn, 1, b"data");
            sleep(Duration::from_millis(200)).await;
            assert_eq!(self.stream.read(&mut [0; 9]).await.unwrap(), 4);
        }
        self.sent(ACK).last().unwrap().wnd
    }

    fn sent(&self, command: u8) -> Vec<Segment> {
        let wire = self.wire.lock().unwrap();
        wire.sent.iter().filter(|segment| segment.command == command).copied().collect()
    }

    /// All transmissions of data.
    fn data(&self) -> Vec<Segment> {
        self.sent(PUSH).into_iter().filter(|segment| segment.len > 0).collect()
    }

    /// Pings: empty, and far behind the receive window.
    fn pings(&self) -> Vec<u64> {
        let sent = self.sent(PUSH).into_iter();
        sent.filter(|segment| segment.len == 0).map(|segment| segment.at).collect()
    }

    /// Times of all transmissions of data.
    fn times(&self) -> Vec<u64> {
        self.data().iter().map(|segment| segment.at).collect()
    }
}

/// Whether each time is the expected one, within the resolution of the driver's timers.
#[track_caller]
fn assert_times(times: &[u64], expected: &[u64]) {
    let is_near = |(time, expected): (&u64, &u64)| (*expected..=expected + 4).contains(time);
    let all_near = times.iter().zip(expected).all(is_near);
    assert!(all_near && times.len() == expected.len(), "{times:?}, not {expected:?}");
}

/// The RTO before the first sample is 200 ms, and grows by half of it with `nodelay`, else by the whole.
#[tokio::test(start_paused = true)]
async fn timing_sets_the_times_of_retransmissions() {
    let nodelay = [0, 200, 500, 900, 1_400];
    let normal = [0, 200, 600, 1_200];
    for (config, in_use, expected) in [
        (Timing::FAST3, None, &nodelay[..]),
        (Timing::NORMAL, None, &normal[..]),
        (Timing::FAST3, Some(Timing::KCP_DEFAULT), &normal[..]),
        (Timing::KCP_DEFAULT, Some(Timing::FAST2), &nodelay[..]),
    ] {
        let mut played = Played::open(quiet().timing(config)).await;
        if let Some(timing) = in_use {
            played.stream.set_timing(timing);
        }
        played.write(b"x").await;
        played.until(1_450).await;
        assert_times(&played.times(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn max_retransmit_interval_limits_the_time_between_retransmissions() {
    let config = quiet().timing(Timing::NORMAL).max_retransmit_interval(Duration::from_secs(1));
    let mut played = Played::open(config).await;
    played.write(b"x").await;
    played.until(9_900).await;
    let times = played.times();
    let longest = times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!((1_000..=1_004).contains(&longest), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn ack_policy_sets_the_time_of_the_ack() {
    let timing = Timing::new(true, Duration::from_millis(100), None).unwrap();
    let interval = quiet().timing(timing).ack_policy(AckPolicy::Interval);
    let immediate = quiet().timing(timing).ack_policy(AckPolicy::Immediate);
    for (config, in_use, expected) in [
        (immediate.clone(), None, 0),
        (interval.clone(), None, 100),
        (immediate, Some(AckPolicy::Interval), 100),
        (interval.clone(), Some(AckPolicy::Immediate), 0),
        (interval, Some(AckPolicy::PerBatch), 0),
    ] {
        let played = Played::established(config).await;
        if let Some(policy) = in_use {
            played.stream.set_ack_policy(policy);
        }
        played.until(50).await;
        played.deliver(PUSH, 128, 9, 0, 1, b"data");
        played.until(400).await;
        let acks: Vec<_> = played.sent(ACK).iter().map(|ack| ack.at).collect();
        assert_times(&acks, &[50 + expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn write_policy_sets_the_time_of_a_small_write() {
    let timing = Timing::new(true, Duration::from_millis(100), None).unwrap();
    let config = |policy| quiet().timing(timing).write_policy(policy);
    for (first, in_use, expected) in [
        (WritePolicy::Immediate, None, 0),
        (WritePolicy::Delayed, None, 100),
        (WritePolicy::Immediate, Some(WritePolicy::Delayed), 100),
        (WritePolicy::Delayed, Some(WritePolicy::Immediate), 0),
    ] {
        let mut played = Played::established(config(first)).await;
        if let Some(policy) = in_use {
            played.stream.set_write_policy(policy);
        }
        played.until(50).await;
        played.write(b"small").await;
        played.until(180).await;
        let first = played.times().first().copied().unwrap();
        assert_times(&[first], &[50 + expected]);
    }
}

/// Segments that leave at once to a peer that has advertised 1,024.
#[tokio::test(start_paused = true)]
async fn congestion_control_sets_the_first_flight() {
    for (control, in_use, expected) in [
        (CongestionControl::Off, None, 100),
        (CongestionControl::Reno, None, 2),
        (CongestionControl::Reno, Some(CongestionControl::Off), 100),
        (CongestionControl::Off, Some(CongestionControl::Reno), 1),
    ] {
        let mut played = Played::established(quiet().congestion_control(control)).await;
        if let Some(control) = in_use {
            played.stream.set_congestion_control(control);
        }
        played.until(50).await;
        played.write(&vec![1; 100 * 1_376]).await;
        played.until(60).await;
        assert_eq!(played.data().len(), expected, "{control:?} {in_use:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn send_window_limits_the_segments_in_flight() {
    for (config, in_use, expected) in
        [(8, None, 8), (64, None, 64), (64, Some(5), 5), (5, Some(64), 64)]
    {
        let mut played = Played::established(quiet().windows(config, 128)).await;
        if let Some(send) = in_use {
            played.stream.set_windows(send, 128).unwrap();
        }
        played.until(50).await;
        let stream = &mut played.stream;
        let _ =
            tokio::time::timeout(Duration::from_millis(10), stream.write_all(&vec![1; 200_000]))
                .await;
        // Retransmissions do not widen it.
        played.until(2_000).await;
        let last = played.data().iter().map(|segment| segment.sn).max();
        assert_eq!(last, Some(expected), "segments 1 to {expected}: {config} {in_use:?}");
    }
}

/// The latest ACK tells the peer how far it may send.
#[tokio::test(start_paused = true)]
async fn receive_window_is_advertised_to_the_peer() {
    let mut played = Played::established(quiet().windows(32, 64)).await;
    let first = played.receive(0..1).await;
    played.stream.set_windows(32, 200).unwrap();
    let raised = played.receive(1..3).await;
    played.stream.set_windows(32, 16).unwrap();
    // The advertised window is used up first.
    let kept = played.receive(3..4).await;
    let lowered = played.receive(4..250).await;
    assert_eq!([first, raised, kept, lowered], [64, 200, 199, 16]);
}

#[tokio::test(start_paused = true)]
async fn mtu_limits_new_datagrams() {
    let mut played = Played::established(quiet().mtu(1_000)).await;
    played.write(&[1; 5_000]).await;
    played.until(10).await;
    let longest = played.data().iter().map(|segment| segment.datagram).max();
    assert_eq!(longest, Some(1_000));
    played.ack_all(1_024);
    played.until(20).await;
    played.stream.set_mtu(600).unwrap();
    let before = played.data().len();
    played.write(&[1; 5_000]).await;
    played.until(30).await;
    let longest = played.data()[before..].iter().map(|segment| segment.datagram).max();
    assert_eq!(longest, Some(600));
}

/// 28 datagrams of 1,400 bytes.
#[tokio::test(start_paused = true)]
async fn rate_limit_spreads_datagrams() {
    let rate = NonZeroU64::new(14_000);
    for (config, in_use, at_once) in [
        (None, None, true),
        (rate, None, false),
        (None, Some(rate), false),
        (rate, Some(None), true),
    ] {
        let mut played = Played::established(quiet().rate_limit(config)).await;
        if let Some(rate) = in_use {
            played.stream.set_rate_limit(rate);
        }
        played.until(50).await;
        played.write(&vec![1; 28 * 1_376]).await;
        // Retransmissions count too.
        played.until(1_050).await;
        let bytes: usize = played.data().iter().map(|segment| segment.datagram).sum();
        if at_once {
            assert_times(&played.times()[..28], &[50; 28]);
        } else {
            assert!((12_600..=16_800).contains(&bytes), "{bytes} bytes in a second");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_further_copies_of_each_datagram() {
    for (config, in_use, copies) in [(0, None, 1), (2, None, 3), (0, Some(1), 2), (2, Some(0), 1)] {
        let mut played = Played::established(quiet().duplicates(config)).await;
        if let Some(duplicates) = in_use {
            played.stream.set_duplicates(duplicates).unwrap();
        }
        played.until(50).await;
        played.write(b"data").await;
        played.until(55).await;
        let sent = played.data();
        assert_eq!(sent.len(), copies, "{sent:?}");
        assert!(sent.iter().all(|copy| *copy == sent[0]), "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn keepalive_sets_the_time_of_the_first_ping() {
    let after = |seconds| KeepaliveInterval::After(Duration::from_secs(seconds));
    for (config, in_use, expected) in [
        (KeepaliveInterval::Never, None, None),
        (after(5), None, Some(5)),
        (after(5), Some(KeepaliveInterval::Never), None),
        (KeepaliveInterval::Never, Some(after(9)), Some(9)),
    ] {
        let played = Played::established(quiet().keepalive(config)).await;
        if let Some(interval) = in_use {
            played.stream.set_keepalive(interval, None).unwrap();
        }
        played.until(20_000).await;
        let first = played.pings().first().copied();
        // Such timers may be an eighth late, so that several fall together.
        let is_due =
            |at: u64| expected.is_some_and(|due| (due * 1_000..=due * 1_125).contains(&at));
        assert!(
            first.map_or_else(|| expected.is_none(), is_due),
            "{config:?} {in_use:?}: {first:?}"
        );
    }
}

/// When the connection ended, seconds after the start, and why.
async fn end(played: &mut Played) -> (u64, ConnectionError) {
    let start = played.wire.lock().unwrap().start.unwrap();
    let error = cause(played.stream.read_u8().await);
    ((start.elapsed() + Duration::from_millis(500)).as_secs(), error)
}

#[tokio::test(start_paused = true)]
async fn dead_peer_timeout_sets_the_time_of_giving_up() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    for (config, in_use, expected) in [(5, None, 5), (5, Some(30), 30), (30, Some(5), 5)] {
        let config = quiet().dead_peer_timeout(seconds(config));
        let mut played = Played::established(config).await;
        if let Some(timeout) = in_use {
            played.stream.set_dead_peer_timeout(seconds(timeout)).unwrap();
        }
        played.write(b"anyone?").await;
        let dead = ConnectionError::DeadPeer(TimeoutCause::Nothing);
        assert_eq!(end(&mut played).await, (expected, dead));
    }
}

#[tokio::test(start_paused = true)]
async fn idle_timeout_sets_the_time_of_giving_up() {
    for (config, in_use, expected) in [(5, None, 5), (5, Some(30), 30), (30, Some(5), 5)] {
        let config = quiet().idle_timeout(Some(Duration::from_secs(config)));
        let mut played = Played::established(config).await;
        if let Some(timeout) = in_use {
            let timeout = Some(Duration::from_secs(timeout));
            played.stream.set_keepalive(KeepaliveInterval::Never, timeout).unwrap();
        }
        assert_eq!(end(&mut played).await, (expected, ConnectionError::IdleTimeout));
    }
}

/// Bytes that a writer may hand over before the peer takes any.
#[tokio::test(start_paused = true)]
async fn send_buffer_limits_what_is_written_ahead() {
    let mut accepted = Vec::new();
    for bytes in [10_000, 1_000_000] {
        let mut played = Played::established(quiet().windows(4, 128).send_buffer(bytes)).await;
        let mut written = 0;
        let write = async {
            while written < 4_000_000 {
                written += played.stream.write(&[1; 1_000]).await.unwrap();
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(1), write).await.is_err());
        accepted.push(written);
    }
    assert!((10_000..=20_000).contains(&accepted[0]), "{accepted:?}");
    assert!((1_000_000..=1_020_000).contains(&accepted[1]), "{accepted:?}");
}
