//! Cost of single steps of the KCP state machine against the send window, 128 to 16,384 segments.
//!
//! `cargo bench --bench core`. Each figure is per element: per ACK, per segment acknowledged by
//! `una`, per call, per retransmission. Expected: no figure grows with the window.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kcpx::proto::segment::{Command, Header};
use kcpx::proto::seq::{Sn, Ts};
use kcpx::proto::{Kcp, PacketType, Seed};
use kcpx::{CongestionControl, KcpConfig, Mode, Timing};

const WINDOWS: [u16; 4] = [128, 1_024, 4_096, 16_384];
const CONV: u32 = 7;

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
    let mut config = KcpConfig::default();
    (config.send_window, config.mode, config.timing) = (window, Mode::Message, timing);
    (config.keepalive, config.idle_timeout, config.early_retransmit) = (None, None, false);
    let mut kcp = Kcp::new(CONV, &config, now, Seed::default()).expect("valid");
    kcp.input(now, &segment(Command::WindowUpdate, 1, 0), PacketType::Regular).expect("valid");
    let mut out = Vec::new();
    for _ in 0..window {
        kcp.send(now, Bytes::from_static(b"payload"));
    }
    while kcp.poll_transmit(now, &mut out).is_some() {
        out.clear();
    }
    kcp
}

fn without_fast_retransmit() -> Timing {
    Timing::new(true, Duration::from_millis(10), None, CongestionControl::Disabled).expect("valid")
}

/// ACKs of a window but for one segment in a hundred, shuffled by a fixed seed.
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

/// Fast retransmit: every segment but the last two is found lost by later ACKs and retransmitted
/// once.
fn fast_retransmit(c: &mut Criterion) {
    let now = Instant::now();
    let mut group = c.benchmark_group("fast_retransmit");
    for window in WINDOWS {
        let acks: Vec<_> =
            (1..=2).map(|i| segment(Command::Ack, u32::from(window) - i, 0)).collect();
        group.throughput(Throughput::Elements(u64::from(window)));
        group.bench_function(BenchmarkId::from_parameter(window), |b| {
            let mut out = Vec::with_capacity(2_000);
            b.iter_batched_ref(
                || {
                    let mut kcp = full_window(window, true, now);
                    for ack in &acks {
                        kcp.input(now, ack, PacketType::Regular).expect("valid");
                    }
                    kcp
                },
                |kcp| {
                    while kcp.poll_transmit(now, &mut out).is_some() {
                        out.clear();
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// RTO: every segment expires and is retransmitted once.
fn timeout(c: &mut Criterion) {
    let start = Instant::now();
    let mut group = c.benchmark_group("timeout_retransmit");
    for window in WINDOWS {
        group.throughput(Throughput::Elements(u64::from(window)));
        group.bench_function(BenchmarkId::from_parameter(window), |b| {
            let mut out = Vec::with_capacity(2_000);
            b.iter_batched_ref(
                || full_window(window, false, start),
                |kcp| {
                    let now = start + Duration::from_millis(900);
                    while kcp.poll_transmit(now, &mut out).is_some() {
                        out.clear();
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, ack, una, flush, fast_retransmit, timeout);
criterion_main!(benches);
