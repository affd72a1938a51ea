//! Cost of single steps of the KCP state machine for send windows of 128 to 16,384 segments.
//!
//! `cargo bench --bench core`. Each figure is per element: per ACK, per segment acknowledged by `una`, per
//! call, per retransmission. No figure should grow with the window.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kcpx::proto::segment::{Command, Header};
use kcpx::proto::seq::{Sn, Ts};
use kcpx::proto::{Kcp, PacketType, Seed};
use kcpx::{Config, CongestionControl, KeepaliveInterval, Mode, Timing};

const WINDOWS: [u16; 4] = [128, 1_024, 4_096, 16_384];
const RECV_WINDOW: u16 = 1_024;
const CONV: u32 = 7;
const PAYLOAD: &[u8] = b"payload";
/// Wire length of a segment in these benches: a header of 24 bytes, and the payload.
const SEGMENT_LEN: usize = 24 + PAYLOAD.len();

fn segment(command: Command, sn: u32, una: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let (ts, frg, len) = (Ts(0), 0, 0);
    Header { conv: CONV, command, frg, wnd: u16::MAX, ts, sn: Sn(sn), una: Sn(una), len }
        .emit(&mut out);
    out
}

/// A sender with a full send window in flight, all sent at `now`.
fn full_window(window: u16, fast_retransmit: bool, now: Instant) -> Kcp {
    let timing = if fast_retransmit { Timing::FAST3 } else { without_fast_retransmit() };
    let config = Config::new()
        .windows(window, RECV_WINDOW)
        .mode(Mode::Message)
        .timing(timing)
        .congestion_control(CongestionControl::Off)
        .keepalive(KeepaliveInterval::Never)
        .idle_timeout(None);
    let mut kcp = Kcp::new(CONV, &config, now, Seed::default()).expect("valid");
    kcp.input(now, &segment(Command::WindowUpdate, 1, 0), PacketType::Regular).expect("valid");
    let mut out = Vec::new();
    for _ in 0..window {
        kcp.send(now, Bytes::from_static(PAYLOAD));
    }
    while kcp.poll_transmit(now, &mut out).is_some() {
        out.clear();
    }
    kcp
}

fn without_fast_retransmit() -> Timing {
    Timing::new(true, Duration::from_millis(10), None).expect("valid")
}

/// ACKs of a window except one segment in a hundred, shuffled with a fixed seed.
fn shuffled_acks_with_holes(window: u16) -> Vec<Vec<u8>> {
    let mut numbers: Vec<u32> = (0..u32::from(window)).filter(|sn| sn % 100 != 0).collect();
    let mut state = 0x9E37_79B9_u64;
    for i in (1..numbers.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let j = usize::try_from((state >> 33) % (i as u64 + 1)).expect("small");
        numbers.swap(i, j);
    }
    numbers.into_iter().map(|sn| segment(Command::Ack, sn, 0)).collect()
}

fn ack(c: &mut Criterion) {
    let now = Instant::now();
    let mut group = c.benchmark_group("ack_random_with_holes");
    for window in WINDOWS {
        let acks = shuffled_acks_with_holes(window);
        group.throughput(Throughput::Elements(acks.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(window), |b| {
            b.iter_batched_ref(
                || full_window(window, false, now),
                |kcp| {
                    for ack in &acks {
                        kcp.input(now, ack, PacketType::Regular).expect("valid");
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn una(c: &mut Criterion) {
    let now = Instant::now();
    let mut group = c.benchmark_group("una_releases_window");
    for window in WINDOWS {
        let update = segment(Command::WindowUpdate, 1, u32::from(window));
        group.throughput(Throughput::Elements(u64::from(window)));
        group.bench_function(BenchmarkId::from_parameter(window), |b| {
            b.iter_batched_ref(
                || full_window(window, false, now),
                |kcp| kcp.input(now, &update, PacketType::Regular),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn flush(c: &mut Criterion) {
    let now = Instant::now();
    let mut group = c.benchmark_group("flush_with_nothing_due");
    for window in WINDOWS {
        let mut kcp = full_window(window, false, now);
        let mut out = Vec::with_capacity(2_000);
        group.bench_function(BenchmarkId::from_parameter(window), |b| {
            b.iter(|| {
                kcp.handle_timeout(now);
                black_box(kcp.poll_transmit(now, &mut out).is_some());
                black_box(kcp.poll_timeout())
            });
        });
    }
    group.finish();
}

/// Sends everything that may leave. Returns the time it took and the number of segments.
fn send_all(kcp: &mut Kcp, now: Instant) -> (Duration, u64) {
    let (mut out, mut bytes) = (Vec::with_capacity(2_000), 0);
    let start = Instant::now();
    while kcp.poll_transmit(now, &mut out).is_some() {
        bytes += out.len();
        out.clear();
    }
    (start.elapsed(), (bytes / SEGMENT_LEN) as u64)
}

/// Measures `run`, which returns the time of some retransmissions and their number.
fn retransmissions(c: &mut Criterion, name: &str, run: impl Fn(u16) -> (Duration, u64)) {
    let mut group = c.benchmark_group(name);
    for window in WINDOWS {
        let (_, expected) = run(window);
        assert!(expected >= 64, "{expected} left of a window of {window}");
        group.throughput(Throughput::Elements(expected));
        group.bench_function(BenchmarkId::from_parameter(window), |b| {
            let timed = |_| {
                let (time, left) = run(window);
                assert_eq!(left, expected);
                time
            };
            b.iter_custom(|iterations| (0..iterations).map(timed).sum());
        });
    }
    group.finish();
}

/// Fast retransmit of the older half of the window, which the first ACKs show to be lost.
///
/// Retransmissions need tokens, and each ACK adds one: 64 unmeasured ACKs from the end of the window
/// alternate with the retransmissions that they allow.
fn fast_retransmit(c: &mut Criterion) {
    let now = Instant::now();
    retransmissions(c, "fast_retransmit", |window| {
        let mut kcp = full_window(window, true, now);
        let (mut time, mut segments, mut newest) = (Duration::ZERO, 0, u32::from(window));
        for _ in 0..window / 128 {
            for _ in 0..64 {
                newest -= 1;
                let ack = segment(Command::Ack, newest, 0);
                kcp.input(now, &ack, PacketType::Regular).expect("valid");
            }
            let (round_time, round_segments) = send_all(&mut kcp, now);
            time += round_time;
            segments += round_segments;
        }
        (time, segments)
    });
}

/// RTO: every segment has expired, and the tokens that exist without an ACK limit the retransmissions.
fn timeout(c: &mut Criterion) {
    let start = Instant::now();
    retransmissions(c, "timeout_retransmit", |window| {
        let mut kcp = full_window(window, false, start);
        send_all(&mut kcp, start + Duration::from_millis(900))
    });
}

criterion_group!(benches, ack, una, flush, fast_retransmit, timeout);
criterion_main!(benches);
