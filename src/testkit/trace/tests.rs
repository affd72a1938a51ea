use super::*;

const FULL: usize = OPPORTUNITY as usize;

fn trace(times: &[u32]) -> Trace {
    let lines: Vec<_> = times.iter().map(u32::to_string).collect();
    Trace::parse(&lines.join("\n")).unwrap()
}

/// Departures in ms of packets with these lengths, one per `gap` µs.
fn departures(trace: &Trace, lens: &[usize], gap: u64) -> Vec<(u64, u64)> {
    let mut cursor = Cursor::new(trace.clone());
    let sent = lens.iter().zip(0..).map(|(len, place)| cursor.send(place * gap, *len));
    sent.map(|sent| (sent.begins / MICROS, sent.ends / MICROS)).collect()
}

#[test]
fn opportunities_carry_a_full_packet_each_and_begin_again() {
    let trace = trace(&[2, 2, 5]);
    assert_eq!(departures(&trace, &[FULL; 5], 0), [(2, 2), (2, 2), (5, 5), (7, 7), (7, 7)]);
    assert_eq!(trace.mean_rate(), 900_000);
}

#[test]
fn small_packets_share_an_opportunity_and_large_ones_continue_in_the_next() {
    let trace = trace(&[1, 4, 9]);
    // 600, 600 and 300 of the third; its rest, then 1,200 of the fourth and its last 200.
    let expected = [(1, 1), (1, 1), (1, 4), (4, 9), (9, 9)];
    assert_eq!(departures(&trace, &[600, 600, 600, 1_400, 1_300], 0), expected);
    assert_eq!(departures(&trace, &[3_100], 0), [(1, 9)]);
}

#[test]
fn unused_opportunities_are_lost_and_so_is_one_at_the_very_moment() {
    let trace = trace(&[0, 1, 1, 2, 3, 10]);
    assert_eq!(departures(&trace, &[100; 3], 1_000), [(1, 1), (2, 2), (3, 3)]);
    // The rest of a used opportunity is lost too.
    assert_eq!(departures(&trace, &[100, FULL], 1_500), [(1, 1), (2, 2)]);
    assert_eq!(departures(&trace, &[FULL; 2], 10_000), [(1, 1), (11, 11)]);
}

#[test]
fn time_without_packets_is_skipped_in_one_search() {
    let times: Vec<u32> = (1..=1_000).collect();
    let mut cursor = Cursor::new(trace(&times));
    for now in [0, 5_500, 999_000, 1_000_000, 86_400_000_123_456] {
        let next = now / MICROS * MICROS + MICROS;
        assert_eq!(cursor.send(now, 1), Departure { begins: next, ends: next }, "{now}");
    }
}

#[test]
fn offset_begins_in_the_middle_and_wraps() {
    let trace = trace(&[1, 4, 9]);
    for (offset, first) in [(0, [1, 4, 9]), (2, [2, 7, 8]), (4, [5, 6, 9]), (9 * 7 + 2, [2, 7, 8])]
    {
        let sent = departures(&trace.clone().with_offset(offset), &[FULL; 3], 0);
        assert_eq!(sent.iter().map(|(_, ends)| *ends).collect::<Vec<_>>(), first, "{offset}");
    }
}

#[test]
fn longest_is_what_the_worst_moment_needs() {
    let trace = trace(&[1, 4, 9]);
    // Just after 4 ms: 9 ms. After 9 ms: 10, 13 and so on.
    assert_eq!(trace.longest(1), 5_000);
    assert_eq!(trace.longest(1_501), 8_000);
    assert_eq!(trace.longest(4 * OPPORTUNITY), 9_000 + 5_000);
}

#[test]
fn errors_name_the_line_and_say_what_to_do() {
    for (text, expected) in [
        ("", "the file is empty: write at least one line"),
        ("1\nx\n", "line 2 is 'x': write one whole number of milliseconds, from 0 to 86400000"),
        ("1\n\n2", "line 2 is '': write one whole number"),
        ("-1", "line 1 is '-1': write one whole number"),
        ("1.5", "line 1 is '1.5': write one whole number"),
        ("1\n5\n4", "line 3: 4 ms comes after 5 ms: sort the lines by number"),
        ("0\n0", "line 2: the trace ends at 0 ms: end it with its length, 1 ms or more"),
        ("1\n86400001", "line 2: 86400001 ms is too large: write at most 86400000 ms"),
    ] {
        let error = Trace::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = DelayTrace::parse("5\n10001").unwrap_err().to_string();
    assert_eq!(error, "line 2: 10001 ms is too large: write at most 10000 ms");
    assert_eq!(DelayTrace::parse("\n5").unwrap_err().to_string()[..9], *"line 1 is");
    assert_eq!(DelayTrace::parse(""), Err(TraceError::Empty));
    // Windows line ends, and a last line without one.
    assert_eq!(Trace::parse("1\r\n2\r\n"), Trace::parse("1\n2"));
}

#[test]
fn delays_last_ten_milliseconds_each_and_begin_again() {
    let delays = DelayTrace::parse("9\n0\n30\n").unwrap();
    let at = |delays: &DelayTrace, ms: [u64; 5]| ms.map(|ms| delays.at(ms * MICROS) / MICROS);
    assert_eq!(at(&delays, [0, 9, 10, 29, 30]), [9, 9, 0, 30, 9]);
    assert_eq!(at(&delays.clone().with_offset(35), [0, 4, 5, 15, 25]), [9, 9, 0, 30, 9]);
    assert_eq!(delays.longest(), 30_000);
}

/// Mbit/s per 100 ms.
fn rates(trace: &Trace) -> Vec<f64> {
    let mut rates = vec![0.0; trace.period().div_ceil(100) as usize];
    for time in trace.times.iter() {
        rates[(*time as usize - 1) / 100] += 0.12;
    }
    rates
}

fn gaps(trace: &Trace, least: u32) -> Vec<u32> {
    let gaps = trace.times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.filter(|gap| *gap >= least).collect()
}

/// Over many seeds, the means and gaps of the models are near the recorded values.
#[test]
fn models_have_the_rates_and_gaps_of_recordings() {
    let seconds = 120;
    let (mut lte, mut drive, mut satellite) = (0, 0, 0);
    let (mut outages, mut handovers) = (0, 0);
    for seed in 0..10 {
        let traces = [Trace::lte(seed, seconds), Trace::drive(seed, seconds)];
        let sky = Trace::satellite(seed, seconds);
        for trace in traces.iter().chain([&sky.rate]) {
            assert_eq!(trace.period(), seconds * 1_000);
        }
        lte += traces[0].mean_rate() * 8 / 10;
        drive += traces[1].mean_rate() * 8 / 10;
        satellite += sky.rate.mean_rate() * 8 / 10;
        assert!(rates(&traces[0]).iter().all(|rate| *rate < 80.0));
        let long = gaps(&traces[1], 200);
        assert!(long.iter().all(|gap| *gap < 3_500), "{long:?}");
        outages += long.len();
        handovers += gaps(&sky.rate, 35).len();
        assert!((20_000..=39_000).contains(&sky.delay.longest()), "{}", sky.delay.longest());
    }
    assert!((14_000_000..20_000_000).contains(&lte), "{lte}");
    assert!((3_800_000..6_000_000).contains(&drive), "{drive}");
    assert!((44_000_000..54_000_000).contains(&satellite), "{satellite}");
    assert!((100..350).contains(&outages), "{outages} in 20 minutes");
    // Eight per trace.
    assert!((70..100).contains(&handovers), "{handovers} of 80");
    assert_eq!(Trace::lte(3, 5), Trace::lte(3, 5));
    assert_ne!(Trace::lte(3, 5), Trace::lte(4, 5));
}
