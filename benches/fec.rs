//! Forward error correction of groups of 10 data and 3 parity packets of 1,400 bytes each.
//!
//! `cargo bench --bench fec --features _testkit`. Throughput counts the bytes of the data packets, 14,000 per
//! group, in each benchmark. `raw` is the arithmetic alone, for each kernel that the processor has; `encoder`
//! and `decoder` are what a connection runs; `reed-solomon-erasure` is that crate's portable code in the same
//! run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kcpx::FecConfig;
use kcpx::fec::bench::{self, Codec};
use kcpx::fec::{FecDecoder, FecEncoder, HEADER_LEN};
use reed_solomon_erasure::galois_8::ReedSolomon;

const DATA: usize = 10;
const PARITY: usize = 3;
const LEN: usize = 1_400;
const PLACES: [u8; DATA + PARITY] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
/// Lost packets of the benchmarks with one, two and three losses.
const LOST: [&[u8]; 3] = [&[4], &[1, 6], &[0, 4, 9]];

fn settings() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50)
}

fn config() -> FecConfig {
    FecConfig::new(DATA, PARITY).expect("valid")
}

fn content(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| ((i * 31 + seed * 97) ^ (i >> 3)) as u8).collect()
}

/// A data packet for the encoder, with space for its header.
fn packet(seed: usize) -> Vec<u8> {
    let mut packet = content(seed);
    packet.iter_mut().take(HEADER_LEN).for_each(|byte| *byte = 0);
    packet
}

/// All packets of consecutive groups.
fn packets(groups: usize) -> Vec<Vec<Vec<u8>>> {
    let now = Instant::now();
    let mut encoder = FecEncoder::new(config());
    let group = |_| {
        let mut parity = Vec::new();
        let mut group: Vec<_> = (0..DATA)
            .map(|i| {
                let mut packet = packet(i);
                for index in 0..encoder.seal(now, &mut packet) {
                    parity.push(Vec::new());
                    encoder.emit_parity(index, parity.last_mut().expect("pushed"));
                }
                packet
            })
            .collect();
        group.append(&mut parity);
        group
    };
    (0..groups).map(group).collect()
}

fn encode(c: &mut Criterion) {
    let now = Instant::now();
    let mut group = c.benchmark_group("encode 10+3");
    group.throughput(Throughput::BytesDecimal((DATA * LEN) as u64));
    let shards: Vec<_> = (0..DATA).map(content).collect();
    for kernel in bench::kernels() {
        let mut codec = Codec::new(&PLACES[..DATA], &shards, &PLACES[DATA..], kernel);
        group.bench_function(format!("raw {kernel}"), |b| b.iter(|| black_box(&mut codec).run()));
    }
    let mut encoder = FecEncoder::new(config());
    let mut group_of: Vec<_> = (0..DATA).map(packet).collect();
    let mut out = Vec::with_capacity(PARITY * LEN);
    group.bench_function("encoder", |b| {
        b.iter(|| {
            for packet in &mut group_of {
                let due = encoder.seal(now, packet);
                out.clear();
                for index in 0..due {
                    encoder.emit_parity(index, &mut out);
                }
            }
            black_box(&out);
        });
    });
    let other = ReedSolomon::new(DATA, PARITY).expect("valid");
    let mut shards: Vec<_> = (0..DATA + PARITY).map(content).collect();
    group.bench_function("reed-solomon-erasure", |b| {
        b.iter(|| other.encode(black_box(&mut shards)).expect("valid"));
    });
    group.finish();
}

fn reconstruct(c: &mut Criterion) {
    let now = Instant::now();
    for lost in LOST {
        let mut group = c.benchmark_group(format!("reconstruct {} of 10+3", lost.len()));
        group.throughput(Throughput::BytesDecimal((DATA * LEN) as u64));
        let known: Vec<u8> =
            PLACES.iter().copied().filter(|place| !lost.contains(place)).take(DATA).collect();
        let shards: Vec<_> = known.iter().map(|place| content(usize::from(*place))).collect();
        for kernel in bench::kernels() {
            let mut codec = Codec::new(&known, &shards, lost, kernel);
            let name = format!("raw {kernel}");
            group.bench_function(name, |b| b.iter(|| black_box(&mut codec).run()));
        }
        // Enough groups that the ring turns over; numbers continue across iterations.
        let mut groups = packets(64);
        let mut decoder = FecDecoder::new(Some(config()));
        let mut next = 0;
        group.bench_function("decoder", |b| {
            b.iter(|| {
                let group = &mut groups[next as usize % 64];
                for (place, packet) in group.iter_mut().enumerate() {
                    if lost.iter().any(|lost| usize::from(*lost) == place) {
                        continue;
                    }
                    let number = next * (DATA + PARITY) as u32 + place as u32;
                    packet[..4].copy_from_slice(&number.to_le_bytes());
                    decoder.input(now, packet, |datagram| !black_box(datagram).is_empty());
                }
                next += 1;
            });
        });
        assert_eq!(decoder.stats().recovered_shards, u64::from(next) * lost.len() as u64);
        let other = ReedSolomon::new(DATA, PARITY).expect("valid");
        let mut shards: Vec<_> = (0..DATA + PARITY).map(content).collect();
        other.encode(&mut shards).expect("valid");
        group.bench_function("reed-solomon-erasure", |b| {
            b.iter_batched_ref(
                || {
                    let mut left: Vec<_> = shards.iter().cloned().map(Some).collect();
                    lost.iter().for_each(|place| left[usize::from(*place)] = None);
                    left
                },
                |left| other.reconstruct_data(left).expect("enough is left"),
                BatchSize::SmallInput,
            );
        });
        group.finish();
    }
}

/// Without losses the decoder only copies and computes nothing.
fn lossless(c: &mut Criterion) {
    let now = Instant::now();
    let mut group = c.benchmark_group("receive 10+3 without loss");
    group.throughput(Throughput::BytesDecimal((DATA * LEN) as u64));
    let mut packets = packets(1).remove(0);
    let mut decoder = FecDecoder::new(Some(config()));
    let mut number = 0_u32;
    group.bench_function("decoder", |b| {
        b.iter(|| {
            for packet in &mut packets {
                packet[..4].copy_from_slice(&number.to_le_bytes());
                decoder.input(now, packet, |_| unreachable!());
                number += 1;
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = settings();
    targets = encode, reconstruct, lossless
}
criterion_main!(benches);
