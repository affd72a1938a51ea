//! Tests of the sliding-window code: vectors, a receiver against the sent data, an independent solver, and
//! bounds.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::core::seq::Sn;
use crate::testkit::rng::Rng;

/// Memory limit of the decoders in these tests, bytes.
const LIMIT: usize = 96 * 1024;

/// A data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    frg: u8,
    payload: Vec<u8>,
}

fn segment(rng: &mut Rng, longest: usize) -> Segment {
    let len = rng.size(0, longest);
    let payload = std::iter::repeat_with(|| rng.next() as u8).take(len).collect();
    Segment { frg: rng.next() as u8, payload }
}

fn encode(key: u32, window: &[Segment]) -> Vec<u8> {
    let longest = window.iter().map(|source| source.payload.len()).max().unwrap_or(0);
    let mut out = vec![0xEE; 5];
    write_repair(key, window.iter().map(|s| (s.frg, &*s.payload)), longest, &mut out);
    out.split_off(5)
}

fn repair(key: u32, first: Sn, symbol: &[u8], count: usize) -> RepairSymbol<'_> {
    RepairSymbol { key, first, count: u8::try_from(count).unwrap(), symbol }
}

/// A receiver that has nothing but the code.
#[derive(Default)]
struct Receiver {
    decoder: Decoder,
    have: BTreeMap<u32, Segment>,
    /// Number of recovered segments in `have`.
    recovered: usize,
}

impl Receiver {
    fn source(have: &BTreeMap<u32, Segment>, sn: Sn) -> Source<'_> {
        have.get(&sn.0).map_or(Source::Missing, |segment| Source::Received {
            frg: segment.frg,
            payload: &segment.payload,
        })
    }

    fn on_repair(&mut self, symbol: RepairSymbol<'_>, limit: usize) -> Inserted {
        let (have, mut recovered) = (&self.have, Vec::new());
        self.decoder.start_datagram();
        let verdict =
            self.decoder.insert(symbol, limit, |sn| Self::source(have, sn), &mut recovered);
        self.store(recovered);
        verdict
    }

    fn on_segment(&mut self, sn: Sn, segment: &Segment) {
        if self.have.insert(sn.0, segment.clone()).is_none() {
            let mut recovered = Vec::new();
            self.decoder.start_datagram();
            self.decoder.on_source(sn, segment.frg, &segment.payload, &mut recovered);
            self.store(recovered);
        }
    }

    fn store(&mut self, recovered: Vec<RecoveredSegment>) {
        self.decoder.check_invariants();
        for RecoveredSegment { sn, frg, payload, .. } in recovered {
            self.recovered += 1;
            let before = self.have.insert(sn.0, Segment { frg, payload });
            assert_eq!(before, None, "a segment that was there is recovered");
        }
    }
}

#[derive(Debug, Deserialize)]
struct File {
    coefficients: Vec<Coefficients>,
    repairs: Vec<Repair>,
}

#[derive(Debug, Deserialize)]
struct Coefficients {
    key: u32,
    /// Coefficients of the positions 0 to 63.
    values: String,
}

#[derive(Debug, Deserialize)]
struct Repair {
    key: u32,
    sources: Vec<(u8, String)>,
    symbol: String,
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Rules: W-125, W-126, W-129, P-14.
#[test]
fn rlc_vectors_match() {
    let file: File =
        serde_json::from_str(include_str!("../../../../tests/vectors/rlc.json")).unwrap();
    for row in &file.coefficients {
        let values: Vec<u8> = (0..64).map(|at| coefficient(row.key, at)).collect();
        assert_eq!(values, unhex(&row.values), "key {}", row.key);
    }
    for row in &file.repairs {
        let segment =
            |(frg, payload): &(u8, String)| Segment { frg: *frg, payload: unhex(payload) };
        let window: Vec<_> = row.sources.iter().map(segment).collect();
        assert_eq!(encode(row.key, &window), unhex(&row.symbol), "key {}", row.key);
    }
    assert!(file.coefficients.len() >= 4 && file.repairs.len() >= 4);
}

#[test]
fn coefficients_are_nonzero_and_spread() {
    let mut counts = [0; 256];
    for key in 0..4_096_u32 {
        for position in 0..64 {
            counts[usize::from(coefficient(key.wrapping_mul(0x0101_0101), position))] += 1;
        }
    }
    assert_eq!(counts[0], 0);
    // 1,028 of each are expected.
    assert!(counts[1..].iter().all(|count| (800..1_300).contains(count)), "{counts:?}");
}

/// Rule: W-119.
#[test]
fn one_repair_recovers_any_one_of_its_window() {
    let mut rng = Rng::new(1);
    let window: Vec<_> = (0..64).map(|_| segment(&mut rng, 200)).collect();
    let first = Sn(u32::MAX - 20);
    for lost in 0..window.len() {
        let mut receiver = Receiver::default();
        for (sn, segment) in (0..).zip(&window).filter(|(sn, _)| *sn as usize != lost) {
            receiver.on_segment(first.advance(sn), segment);
        }
        let symbol = encode(lost as u32, &window);
        let verdict = receiver.on_repair(repair(lost as u32, first, &symbol, 64), LIMIT);
        assert_eq!(verdict, Inserted::Innovative);
        assert_eq!(receiver.have[&first.advance(lost as u32).0], window[lost]);
        let verdict = receiver.on_repair(repair(lost as u32, first, &symbol, 64), LIMIT);
        assert_eq!(verdict, Inserted::Redundant);
    }
}

/// Rules: W-123, W-135.
#[test]
fn malformed_repairs_are_rejected() {
    let mut rng = Rng::new(2);
    let window: Vec<_> = (0..3).map(|_| segment(&mut rng, 50)).collect();
    let symbol = encode(9, &window);
    let mut receiver = Receiver::default();
    for count in [0, 65, 255] {
        let verdict = receiver.on_repair(repair(9, Sn(0), &symbol, count), LIMIT);
        assert_eq!(verdict, Inserted::Invalid, "{count} segments");
    }
    assert_eq!(receiver.on_repair(repair(9, Sn(0), &symbol[..2], 3), LIMIT), Inserted::Invalid);
    // Shorter than a segment that it covers.
    let long = Segment { frg: 0, payload: vec![1; 51] };
    receiver.on_segment(Sn(1), &long);
    assert_eq!(receiver.on_repair(repair(9, Sn(0), &symbol, 3), LIMIT), Inserted::Invalid);
    assert_eq!(receiver.on_repair(repair(9, Sn(0), &symbol, 3), 0), Inserted::Dropped);
    assert!(receiver.decoder.is_empty() && receiver.recovered == 0);
}

/// Rule: W-135.
#[test]
fn symbol_that_is_no_segment_recovers_nothing() {
    for symbol in [&[0, 5, 0, 1, 2][..], &[0, 1, 0, 1, 2], &[0, 0xFF, 0xFF, 1, 2]] {
        let mut receiver = Receiver::default();
        let scaled: Vec<u8> = {
            let factor = coefficient(3, 0);
            symbol.iter().map(|byte| multiply(factor, *byte)).collect()
        };
        receiver.on_repair(repair(3, Sn(0), &scaled, 1), LIMIT);
        assert!(receiver.decoder.is_empty() && receiver.have.is_empty());
    }
}

#[test]
fn source_that_is_not_kept_makes_a_repair_useless() {
    let mut decoder = Decoder::default();
    let source = |sn| if sn == Sn(1) { Source::Forgotten } else { Source::Missing };
    let verdict = decoder.insert(repair(1, Sn(0), &[0; 10], 2), LIMIT, source, &mut Vec::new());
    assert!(verdict == Inserted::Dropped && decoder.is_empty());
}

/// With losses, reordering, duplicates, windows of all lengths and memory limits of all sizes, only sent
/// segments are recovered. Returns the number of recovered segments.
fn recover_and_compare(seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let start = Sn([0, u32::MAX - 30, 1 << 31][rng.below(3) as usize]);
    let count = rng.size(1, 120);
    let longest = [0, 1, 30, 200][rng.below(4) as usize];
    let sent: Vec<_> = (0..count).map(|_| segment(&mut rng, longest)).collect();
    let (loss, rate) = (rng.below(60), rng.range(5, 100));
    let limit = if rng.below(3) == 0 { rng.size(0, 2_000) } else { LIMIT };
    let mut receiver = Receiver::default();
    let mut held_back: Vec<(u64, Option<RepairSymbol<'_>>, usize)> = Vec::new();
    let mut key = rng.next() as u32;
    let mut encoded = Vec::new();
    for end in 1..=count {
        if rng.below(100) < rate {
            let window = rng.size(1, end.min(MAX_WINDOW));
            key = key.wrapping_add(1);
            encoded.push((key, end - window, window, encode(key, &sent[end - window..end])));
        } else {
            encoded.push((0, 0, 0, Vec::new()));
        }
    }
    for (index, (key, first, window, symbol)) in encoded.iter().enumerate() {
        let at = |rng: &mut Rng| index as u64 + rng.below(2) * rng.below(12);
        if rng.below(100) >= loss {
            held_back.push((at(&mut rng), None, index));
        }
        if *window > 0 && rng.below(100) >= loss {
            let symbol = repair(*key, start.advance(*first as u32), symbol, *window);
            for _ in 0..1 + rng.below(2) * rng.below(2) {
                held_back.push((at(&mut rng), Some(symbol), index));
            }
        }
    }
    held_back.sort_by_key(|(at, ..)| *at);
    for (_, repair, index) in held_back {
        match repair {
            Some(repair) => assert_ne!(receiver.on_repair(repair, limit), Inserted::Invalid),
            None => receiver.on_segment(start.advance(index as u32), &sent[index]),
        }
        assert!(receiver.decoder.memory() <= limit);
    }
    for (sn, segment) in &receiver.have {
        assert_eq!(sent.get(Sn(*sn).since(start) as usize), Some(segment), "seed {seed}, sn {sn}");
    }
    receiver.recovered
}

#[test]
fn recovered_segments_equal_the_sent_segments() {
    let recovered: usize = (0..2_000).map(recover_and_compare).sum();
    println!("seeds 0 to 1,999: {recovered} segments recovered");
    assert!(recovered > 10_000);
}

/// `cargo test --release --lib rlc -- --ignored --nocapture`: some seconds.
#[test]
#[ignore = "the full number of seeds, for optimized builds"]
fn recovered_segments_equal_the_sent_segments_with_100_000_seeds() {
    let recovered: usize = (0..100_000).map(recover_and_compare).sum();
    println!("seeds 0 to 99,999: {recovered} segments recovered");
    assert!(recovered > 500_000);
}

/// Product of polynomials, bit by bit.
fn slow_multiply(a: u8, b: u8) -> u8 {
    (0..8).rev().fold(0, |product, bit| {
        let doubled = product << 1 ^ if product & 0x80 != 0 { 0x1D } else { 0 };
        doubled ^ if b >> bit & 1 == 1 { a } else { 0 }
    })
}

/// Unknowns that a system of coefficients determines, solved at once from scratch.
fn determined(mut matrix: Vec<Vec<u8>>, unknowns: usize) -> Vec<usize> {
    let mut top = 0;
    for column in 0..unknowns {
        let Some(pivot) = (top..matrix.len()).find(|row| matrix[*row][column] != 0) else {
            continue;
        };
        matrix.swap(top, pivot);
        let inverse = (1..=255).find(|x| slow_multiply(*x, matrix[top][column]) == 1).unwrap();
        matrix[top].iter_mut().for_each(|x| *x = slow_multiply(*x, inverse));
        let pivot = matrix[top].clone();
        for (at, row) in matrix.iter_mut().enumerate().filter(|(at, _)| *at != top) {
            let factor = row[column];
            assert!(at != top);
            row.iter_mut().zip(&pivot).for_each(|(x, p)| *x ^= slow_multiply(factor, *p));
        }
        top += 1;
    }
    let alone = |row: &Vec<u8>| {
        let mut nonzero = row.iter().enumerate().filter(|(_, x)| **x != 0);
        nonzero.next().filter(|_| nonzero.next().is_none()).map(|(column, _)| column)
    };
    matrix.iter().filter_map(alone).collect()
}

/// Rule: W-128.
#[test]
fn decoder_agrees_with_an_independent_solver() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let count = rng.size(2, 30);
        let sent: Vec<_> = (0..count).map(|_| segment(&mut rng, 20)).collect();
        let mut receiver = Receiver::default();
        let mut repairs = Vec::new();
        let mut arrived = vec![false; count];
        for step in 0..60 {
            if rng.below(2) == 0 {
                let at = rng.below(count as u64) as usize;
                arrived[at] = true;
                receiver.on_segment(Sn(at as u32), &sent[at]);
            } else {
                let first = rng.below(count as u64) as usize;
                let window = rng.size(1, count - first);
                let symbol = encode(step, &sent[first..first + window]);
                receiver.on_repair(repair(step, Sn(first as u32), &symbol, window), LIMIT);
                repairs.push((step, first, window));
            }
            let missing: Vec<_> = (0..count).filter(|at| !arrived[*at]).collect();
            let row = |(key, first, window): &(u32, usize, usize)| {
                let coefficient_of = |at: &usize| match at.checked_sub(*first) {
                    Some(position) if position < *window => coefficient(*key, position as u8),
                    _ => 0,
                };
                missing.iter().map(coefficient_of).collect()
            };
            let solved = determined(repairs.iter().map(row).collect(), missing.len());
            let mut expected: Vec<_> = solved.into_iter().map(|index| missing[index]).collect();
            expected.extend((0..count).filter(|at| arrived[*at]));
            expected.sort_unstable();
            let have: Vec<_> = receiver.have.keys().map(|sn| *sn as usize).collect();
            assert_eq!(have, expected, "seed {seed}, step {step}");
        }
    }
}

/// Rule: W-133.
#[test]
fn memory_and_work_of_hostile_repairs_are_bounded() {
    let mut rng = Rng::new(5);
    let mut decoder = Decoder::default();
    let mut recovered = Vec::new();
    for i in 0..20_000_u32 {
        // Windows that are far apart, windows that overlap, and symbols of any length.
        let first = Sn(rng.below(400) as u32);
        let count = rng.size(1, 64);
        let symbol: Vec<u8> = std::iter::repeat_n(rng.next() as u8, rng.size(0, 3_000)).collect();
        let source = |_| Source::Missing;
        decoder.start_datagram();
        decoder.insert(repair(i, first, &symbol, count), LIMIT, source, &mut recovered);
        assert!(decoder.memory() <= LIMIT, "{} bytes", decoder.memory());
        assert!(decoder.row_operations() <= 64);
        if rng.below(4) == 0 {
            let sn = Sn(rng.below(464) as u32);
            decoder.on_source(sn, 0, &symbol, &mut recovered);
            assert!(decoder.row_operations() <= 64);
        }
        decoder.check_invariants();
        recovered.clear();
    }
    decoder.insert(
        repair(0, Sn(0), &vec![0; 65_000], 1),
        LIMIT,
        |_| Source::Missing,
        &mut recovered,
    );
    assert!(decoder.memory() <= LIMIT);
}

/// Rule: W-133.
#[test]
fn limit_that_falls_drops_the_oldest_equations_until_the_others_fit() {
    let mut rng = Rng::new(8);
    let pairs = [0, 100, 200].map(|first| {
        let pair = [(); 2].map(|()| Segment { payload: vec![rng.next() as u8; 300], frg: 0 });
        (Sn(first), pair)
    });
    let mut receiver = Receiver::default();
    for (first, pair) in &pairs {
        receiver.on_repair(repair(first.0, *first, &encode(first.0, pair), 2), LIMIT);
    }
    let each = receiver.decoder.memory() / 3;
    assert!(each > 300);
    for (limit, kept) in [(3 * each, 3), (3 * each - 1, 2), (2 * each, 2), (each, 1)] {
        receiver.decoder.enforce_limit(limit);
        assert_eq!(receiver.decoder.memory(), kept * each, "a limit of {limit} bytes");
    }
    for (first, [one, _]) in &pairs {
        receiver.on_segment(*first, one);
    }
    let have: Vec<u32> = receiver.have.keys().copied().collect();
    assert_eq!(have, [0, 100, 200, 201], "the newest equation is left");
}

/// Rule: W-133.
#[test]
fn history_keeps_the_latest_64_within_its_limit() {
    let mut rng = Rng::new(6);
    for limit in [0, 100, 5_000, LIMIT] {
        let mut history = History::default();
        let mut sent: Vec<Segment> = Vec::new();
        for i in 0..500 {
            let longest = if i % 100 == 99 { 70_000 } else { 1_400 };
            sent.push(segment(&mut rng, longest));
            let Segment { frg, payload } = &sent[i];
            history.push(*frg, payload, limit);
            history.check_invariants();
            assert!(history.memory() <= limit);
            for (age, sent) in (1..=70).zip(sent.iter().rev()) {
                let kept = history.get(age);
                assert!(kept.is_none_or(|kept| kept == (sent.frg, &*sent.payload)), "age {age}");
                assert!(age <= 64 || kept.is_none());
            }
        }
        history.shrink(limit / 2);
        history.check_invariants();
        assert!(history.memory() <= limit / 2);
    }
}

#[test]
fn history_of_a_steady_flow_allocates_nothing() {
    let mut history = History::default();
    let payload = [7; 1_024];
    (0..64).for_each(|_| history.push(0, &payload, LIMIT));
    let first: Vec<_> = (1..=64).map(|age| history.get(age).unwrap().1.as_ptr()).collect();
    (0..64).for_each(|_| history.push(0, &payload, LIMIT));
    let second: Vec<_> = (1..=64).map(|age| history.get(age).unwrap().1.as_ptr()).collect();
    assert_eq!(first, second, "the newest reuse the memory of the oldest");
}
