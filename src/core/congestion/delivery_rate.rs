//! Delivery rate samples (draft-cheng-iccrg-delivery-rate-estimation), and bytes in flight. A sample is the
//! bytes acknowledged between the departure of a transmission and its acknowledgement, divided by the
//! longer of the time it took to send them and the time it took to acknowledge them.
//!
//! A sample is never higher than the sending rate of its bytes, so a peer that acknowledges in bursts or too
//! early cannot raise it further.

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::util::queue;

/// Microseconds.
const SECOND: u64 = 1_000_000;

/// The latest transmission of a segment, and the state when it left.
#[derive(Clone, Copy, Debug)]
struct Transmission {
    sent_at: Micros,
    /// Send time of the most recently acknowledged transmission (draft `P.first_sent_time`).
    first_sent: Micros,
    /// When that one was acknowledged (draft `P.delivered_time`).
    delivered_at: Micros,
    /// Bytes acknowledged by then (draft `P.delivered`).
    delivered: u64,
    /// Bytes sent by then, including these.
    sent: u64,
    /// Header and payload.
    bytes: u32,
    acked: bool,
    /// The application, not the controller, limited sending (draft `P.is_app_limited`).
    app_limited: bool,
    /// Left before the controller began, so it has no state.
    unknown: bool,
}

impl Transmission {
    /// A segment that left on another path.
    const ELSEWHERE: Self = Self {
        sent_at: Micros(0),
        first_sent: Micros(0),
        delivered_at: Micros(0),
        delivered: 0,
        sent: 0,
        bytes: 0,
        acked: true,
        app_limited: true,
        unknown: true,
    };
}

/// A delivery rate sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// Bytes per second.
    pub(crate) rate: u64,
    /// Time that the rate covers, microseconds.
    pub(crate) elapsed: u64,
    /// When the transmission left, and the bytes sent by then.
    pub(crate) sent_at: Micros,
    pub(crate) sent: u64,
    /// Bytes acknowledged when the sampled transmission left. A round trip ends when this passes the bytes
    /// acknowledged at its start.
    pub(crate) prior_delivered: u64,
    pub(crate) app_limited: bool,
}

/// The acknowledgements of one datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) segments: u32,
    pub(crate) bytes: u64,
    /// The latest of the transmissions that may be sampled.
    newest: Option<Newest>,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    prior_delivered: u64,
    prior_at: Micros,
    sent_at: Micros,
    sent: u64,
    send_elapsed: u64,
    app_limited: bool,
}

/// State that the connections of a path share: bytes in flight, and the totals that a sample compares.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathTotals {
    /// Invariant: the sum of [`DeliveryRate::in_flight`] over all connections of the path.
    in_flight: u64,
    /// Bytes acknowledged (draft `C.delivered`).
    delivered: u64,
    /// Bytes sent, including retransmissions.
    sent: u64,
    /// When bytes were last acknowledged, or sending restarted (draft `C.delivered_time`).
    delivered_at: Micros,
    /// Send time of the most recently acknowledged transmission (draft `C.first_sent_time`).
    first_sent: Micros,
    /// Transmissions are application-limited until this number of bytes is acknowledged; 0: they are not
    /// (draft `C.app_limited`).
    app_limited_until: u64,
}

impl PathTotals {
    /// Bytes sent that are neither acknowledged nor found lost.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes acknowledged once all bytes now in flight are.
    pub(crate) fn delivered_later(&self) -> u64 {
        (self.delivered + self.in_flight).max(1)
    }

    /// The applications or the peers' windows limited the bytes now in flight: their rates only show a lower
    /// bound of the path's capacity.
    pub(crate) fn on_app_limited(&mut self) {
        self.app_limited_until = self.delivered_later();
    }
}

/// Estimator of one connection.
#[derive(Debug)]
pub(crate) struct DeliveryRate {
    /// One entry for each segment from the oldest that is not both acknowledged cumulatively and proved.
    transmissions: VecDeque<Transmission>,
    /// Invariant: the sum of `bytes` of all unacknowledged entries. Copies of a retransmission do not count:
    /// they hedge against the loss of the first one, and a message flow must not wait for them.
    in_flight: u64,
    /// Bytes that the path had delivered at this connection's last acknowledgement, and its time. A sample
    /// begins and ends with an acknowledgement, since peers acknowledge several segments at once.
    delivered: u64,
    delivered_at: Micros,
    batch: Batch,
}

impl DeliveryRate {
    /// Starts with segments in flight that left earlier. `in_flight`: bytes of each, 0 for acknowledged ones.
    pub(crate) fn new(in_flight: impl Iterator<Item = u32>, path: &mut PathTotals) -> Self {
        let unknown = |bytes| Transmission { bytes, acked: bytes == 0, ..Transmission::ELSEWHERE };
        let transmissions: VecDeque<_> = in_flight.map(unknown).collect();
        let in_flight = transmissions.iter().map(|sent| u64::from(sent.bytes)).sum();
        path.in_flight += in_flight;
        let (delivered, delivered_at, batch) = (path.delivered, Micros(0), Batch::default());
        Self { transmissions, in_flight, delivered, delivered_at, batch }
    }

    /// Bytes of this connection that are neither acknowledged nor found lost.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The connection leaves the path.
    pub(crate) fn leave(&mut self, path: &mut PathTotals) {
        self.end_flight(path, self.in_flight);
        self.transmissions.clear();
    }

    /// A new segment leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, path: &mut PathTotals, now: Micros, bytes: u32) {
        let sent = self.transmission(path, now, bytes);
        queue::push(&mut self.transmissions, sent);
    }

    /// When the latest transmission of segment `index` left, if known.
    pub(crate) fn sent_at(&self, index: usize) -> Option<Micros> {
        self.transmissions.get(index).filter(|sent| !sent.unknown).map(|sent| sent.sent_at)
    }

    /// Segment `index` was found lost and is retransmitted.
    pub(crate) fn on_retransmitted(
        &mut self,
        path: &mut PathTotals,
        now: Micros,
        index: usize,
        bytes: u32,
    ) {
        let Some(lost) = self.transmissions.get(index) else { return };
        let in_flight = if lost.acked { 0 } else { u64::from(lost.bytes) };
        self.end_flight(path, in_flight);
        let sent = self.transmission(path, now, bytes);
        self.transmissions[index] = sent;
    }

    /// `bytes` are no longer in flight.
    fn end_flight(&mut self, path: &mut PathTotals, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        path.in_flight = path.in_flight.saturating_sub(bytes);
    }

    /// The state of a transmission that leaves now; counts it as in flight.
    #[inline]
    fn transmission(&mut self, path: &mut PathTotals, now: Micros, bytes: u32) -> Transmission {
        // Transmissions before this estimator began are unknown.
        if path.in_flight == 0 || path.delivered_at == Micros(0) {
            (path.first_sent, path.delivered_at) = (now, now);
        }
        if self.in_flight == 0 || self.delivered_at == Micros(0) {
            (self.delivered, self.delivered_at) = (path.delivered, path.delivered_at);
        }
        self.in_flight += u64::from(bytes);
        path.in_flight += u64::from(bytes);
        path.sent += u64::from(bytes);
        Transmission {
            sent_at: now,
            first_sent: path.first_sent,
            delivered_at: self.delivered_at,
            delivered: self.delivered,
            sent: path.sent,
            bytes,
            acked: false,
            app_limited: path.app_limited_until > 0,
            unknown: false,
        }
    }

    /// Segment `index` was acknowledged for the first time. `is_latest`: as far as known, its latest
    /// transmission arrived.
    #[inline]
    pub(crate) fn on_acked(
        &mut self,
        path: &mut PathTotals,
        now: Micros,
        index: usize,
        is_latest: bool,
    ) {
        let Some(sent) = self.transmissions.get_mut(index).filter(|sent| !sent.acked) else {
            return;
        };
        sent.acked = true;
        let sent = *sent;
        self.end_flight(path, sent.bytes.into());
        path.delivered += u64::from(sent.bytes);
        path.delivered_at = now;
        (self.delivered, self.delivered_at) = (path.delivered, now);
        self.batch.segments = self.batch.segments.saturating_add(1);
        self.batch.bytes += u64::from(sent.bytes);
        // Compared across datagrams too, since they may be reordered.
        let is_newest = sent.sent_at >= path.first_sent
            && self.batch.newest.is_none_or(|newest| sent.delivered >= newest.prior_delivered);
        if is_latest && !sent.unknown && is_newest {
            path.first_sent = sent.sent_at;
            self.batch.newest = Some(Newest {
                prior_delivered: sent.delivered,
                prior_at: sent.delivered_at,
                sent_at: sent.sent_at,
                sent: sent.sent,
                send_elapsed: sent.sent_at.since(sent.first_sent),
                app_limited: sent.app_limited,
            });
        }
    }

    /// Segment `index` leaves on another path, so it is not in flight on this one any more.
    pub(crate) fn on_moved_away(&mut self, path: &mut PathTotals, index: usize) {
        let Some(sent) = self.transmissions.get_mut(index).filter(|sent| !sent.acked) else {
            return;
        };
        sent.acked = true;
        let bytes = sent.bytes;
        self.end_flight(path, bytes.into());
    }

    /// The number of segments that have an entry.
    pub(crate) fn len(&self) -> usize {
        self.transmissions.len()
    }

    /// Adds an entry for each segment up to `len` that left on another path.
    pub(crate) fn skip_to(&mut self, len: usize) {
        while self.transmissions.len() < len {
            queue::push(&mut self.transmissions, Transmission::ELSEWHERE);
        }
    }

    /// SND.UNA passes the oldest segment, and an ACK has proved that it arrived. No sample, since `una`
    /// echoes no timestamp.
    #[inline]
    pub(crate) fn on_una(&mut self, path: &mut PathTotals, now: Micros) {
        self.on_acked(path, now, 0, false);
        self.transmissions.pop_front();
    }

    /// The first `count` segments are no longer in flight, and count as not delivered.
    pub(crate) fn write_off(&mut self, path: &mut PathTotals, count: u32) {
        for _ in 0..count {
            let Some(sent) = self.transmissions.pop_front() else { return };
            self.end_flight(path, if sent.acked { 0 } else { sent.bytes.into() });
        }
    }

    /// Ends a datagram's acknowledgements: returns what they covered, and the sample. `min_rtt` in
    /// microseconds. There is no sample without it or over a shorter time: then a retransmission whose
    /// original arrived was measured, not the path (section 4.1.4 of the draft).
    pub(crate) fn take_batch(
        &mut self,
        path: &mut PathTotals,
        now: Micros,
        min_rtt: Option<u64>,
    ) -> (Batch, Option<RateSample>) {
        let batch = std::mem::take(&mut self.batch);
        if path.app_limited_until > 0 && path.delivered > path.app_limited_until {
            path.app_limited_until = 0;
        }
        let sample = batch.newest.and_then(|newest| {
            let elapsed = newest.send_elapsed.max(now.since(newest.prior_at));
            if elapsed == 0 || elapsed < min_rtt? {
                return None;
            }
            let bytes = path.delivered.saturating_sub(newest.prior_delivered);
            Some(RateSample {
                rate: bytes.saturating_mul(SECOND) / elapsed,
                elapsed,
                sent_at: newest.sent_at,
                sent: newest.sent,
                prior_delivered: newest.prior_delivered,
                app_limited: newest.app_limited,
            })
        });
        (batch, sample)
    }

    /// Whether no segment is in flight or waits for SND.UNA.
    pub(crate) fn is_empty(&self) -> bool {
        self.transmissions.is_empty()
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self, unacked: impl Iterator<Item = bool>) {
        let in_flight = self.transmissions.iter().filter(|sent| !sent.acked);
        let sum: u64 = in_flight.map(|sent| u64::from(sent.bytes)).sum();
        assert_eq!(self.in_flight, sum, "bytes in flight");
        let counted = self.transmissions.iter().map(|sent| !sent.acked);
        assert!(counted.eq(unacked), "an entry for each segment, in flight until acknowledged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u32 = 1_000;

    /// The only connection of a path.
    struct Alone {
        rate: DeliveryRate,
        path: PathTotals,
    }

    impl Alone {
        fn new(in_flight: impl Iterator<Item = u32>) -> Self {
            let mut path = PathTotals::default();
            Self { rate: DeliveryRate::new(in_flight, &mut path), path }
        }

        fn on_sent(&mut self, now: Micros, bytes: u32) {
            self.rate.on_sent(&mut self.path, now, bytes);
        }

        fn on_acked(&mut self, now: Micros, index: usize, is_latest: bool) {
            self.rate.on_acked(&mut self.path, now, index, is_latest);
        }

        fn on_una(&mut self, now: Micros) {
            self.rate.on_una(&mut self.path, now);
        }

        fn take_batch(&mut self, now: Micros, min_rtt: Option<u64>) -> (Batch, Option<RateSample>) {
            self.rate.take_batch(&mut self.path, now, min_rtt)
        }

        /// Bytes in flight, equal for connection and path, and bytes delivered.
        fn bytes(&self) -> (u64, u64) {
            assert_eq!(self.rate.in_flight(), self.path.in_flight());
            (self.path.in_flight(), self.path.delivered())
        }
    }

    fn empty() -> Alone {
        Alone::new(std::iter::empty())
    }

    /// ACK of the oldest segment, and a `una` beyond it.
    fn ack(rate: &mut Alone, now: u64) {
        rate.on_acked(Micros(now), 0, true);
        rate.on_una(Micros(now));
    }

    /// Sends a packet every `gap` us; each is acknowledged `rtt` later in batches of `batch` packets. Returns
    /// the largest rate.
    fn largest_rate(gap: u64, rtt: u64, batch: u64) -> u64 {
        let (mut rate, mut largest, mut acked) = (empty(), 0, 0);
        for i in 0..2_000_u64 {
            let now = Micros(1 + i * gap);
            while acked + batch <= i && 1 + (acked + batch - 1) * gap + rtt <= now.0 {
                (0..batch).for_each(|_| ack(&mut rate, now.0));
                acked += batch;
                let sample = rate.take_batch(now, Some(rtt)).1;
                largest = largest.max(sample.map_or(0, |sample| sample.rate));
            }
            rate.on_sent(now, PACKET);
        }
        largest
    }

    /// Rule: P-20.
    #[test]
    fn rate_follows_departures_however_acks_are_batched() {
        for batch in [1, 2, 20, 100] {
            let rate = largest_rate(500, 50_000, batch);
            // 1,000 bytes every 0.5 ms.
            assert!((1_900_000..=2_060_000).contains(&rate), "{batch}: {rate}");
        }
    }

    #[test]
    fn ack_before_the_round_trip_is_no_sample() {
        let mut rate = empty();
        (0..10).for_each(|_| rate.on_sent(Micros(1_000), PACKET));
        (0..10).for_each(|_| ack(&mut rate, 1_001));
        assert_eq!(rate.take_batch(Micros(1_001), Some(50_000)).1, None);
        assert_eq!(rate.bytes(), (0, 10_000));
    }

    #[test]
    fn retransmission_is_in_flight_until_the_segment_is_acked() {
        let mut rate = empty();
        (0..3).for_each(|_| rate.on_sent(Micros(1_000), PACKET));
        rate.rate.on_retransmitted(&mut rate.path, Micros(60_000), 0, PACKET);
        assert_eq!(rate.bytes(), (3_000, 0));
        rate.rate.check_invariants([true, true, true].into_iter());
        // The original arrived, so the retransmission is not sampled.
        rate.on_acked(Micros(61_000), 0, false);
        assert_eq!(rate.take_batch(Micros(61_000), Some(50_000)).1, None);
        assert_eq!(rate.bytes(), (2_000, 1_000));
        rate.on_una(Micros(61_000));
        rate.rate.check_invariants([true, true].into_iter());
    }

    #[test]
    fn samples_stay_app_limited_until_the_data_in_flight_is_acked() {
        let mut rate = empty();
        rate.on_sent(Micros(1_000), PACKET);
        rate.path.on_app_limited();
        (0..2).for_each(|_| rate.on_sent(Micros(2_000), PACKET));
        let mut limited = Vec::new();
        for at in [51_000, 52_000, 53_000] {
            ack(&mut rate, at);
            limited
                .push(rate.take_batch(Micros(at), Some(50_000)).1.map(|sample| sample.app_limited));
            rate.on_sent(Micros(at), PACKET);
        }
        assert_eq!(limited, [Some(false), Some(true), Some(true)]);
        (0..3).for_each(|_| ack(&mut rate, 103_000));
        assert_eq!(
            rate.take_batch(Micros(103_000), Some(50_000)).1.map(|s| s.app_limited),
            Some(false)
        );
    }

    #[test]
    fn segments_sent_before_the_start_are_in_flight_and_no_samples() {
        let mut rate = Alone::new([PACKET, 0, PACKET].into_iter());
        assert_eq!(rate.bytes(), (2_000, 0));
        (0..3).for_each(|_| ack(&mut rate, 9));
        let (batch, sample) = rate.take_batch(Micros(9), Some(1));
        assert_eq!((batch.segments, batch.bytes, sample), (2, 2_000, None));
        assert_eq!(rate.bytes(), (0, 2_000));
    }

    #[test]
    fn sample_counts_deliveries_of_all_connections_of_the_path() {
        let mut path = PathTotals::default();
        let mut flows = [(); 2].map(|()| DeliveryRate::new(std::iter::empty(), &mut path));
        let mut largest = 0;
        for i in 0..400 {
            let (flow, now) = (&mut flows[i % 2], Micros(1_000 + i as u64 * 500));
            if i >= 100 {
                flow.on_acked(&mut path, now, 0, true);
                flow.on_una(&mut path, now);
                let sample = flow.take_batch(&mut path, now, Some(50_000)).1;
                largest = largest.max(sample.map_or(0, |sample| sample.rate));
            }
            flow.on_sent(&mut path, now, PACKET);
        }
        assert_eq!((flows[0].in_flight(), path.in_flight()), (50_000, 100_000));
        // 1,000 bytes every 0.5 ms.
        assert!((1_900_000..=2_060_000).contains(&largest), "{largest}");
        flows[0].leave(&mut path);
        assert_eq!((flows[0].in_flight(), path.in_flight()), (0, 50_000));
    }

    #[test]
    fn una_alone_is_no_sample() {
        let mut rate = empty();
        (0..10).for_each(|_| rate.on_sent(Micros(1_000), PACKET));
        (0..10).for_each(|_| rate.on_una(Micros(51_000)));
        assert_eq!(rate.take_batch(Micros(51_000), Some(50_000)).1, None);
        assert_eq!(rate.bytes(), (0, 10_000));
    }

    #[test]
    fn reordered_ack_of_an_earlier_departure_is_no_sample() {
        let mut rate = empty();
        for at in 1..=3 {
            rate.on_sent(Micros(at * 1_000), PACKET);
        }
        rate.on_acked(Micros(53_000), 2, true);
        assert!(rate.take_batch(Micros(53_000), Some(50_000)).1.is_some());
        rate.on_acked(Micros(53_500), 0, true);
        assert_eq!(rate.take_batch(Micros(53_500), Some(50_000)).1, None);
        // The next transmission counts from the latest departure.
        rate.on_sent(Micros(54_000), PACKET);
        assert_eq!(rate.rate.transmissions[3].first_sent, Micros(3_000));
    }

    #[test]
    fn rate_after_an_idle_time_counts_from_the_new_departure() {
        let mut rate = empty();
        rate.on_sent(Micros(1_000), PACKET);
        ack(&mut rate, 51_000);
        assert_eq!(rate.take_batch(Micros(51_000), Some(50_000)).1.map(|s| s.rate), Some(20_000));
        (0..10).for_each(|_| rate.on_sent(Micros(10_000_000), PACKET));
        (0..10).for_each(|_| ack(&mut rate, 10_050_000));
        let sample = rate.take_batch(Micros(10_050_000), Some(50_000)).1.unwrap();
        assert_eq!((sample.rate, sample.elapsed), (200_000, 50_000));
    }

    #[test]
    fn rate_of_a_model_that_begins_with_data_in_flight_counts_from_its_first_departure() {
        let mut rate = Alone::new([PACKET].into_iter());
        rate.on_sent(Micros(5_000_000), PACKET);
        rate.on_acked(Micros(5_050_000), 1, true);
        let sample = rate.take_batch(Micros(5_050_000), Some(50_000)).1.unwrap();
        assert_eq!((sample.rate, sample.elapsed), (20_000, 50_000));
    }

    #[test]
    fn departure_is_that_of_the_latest_transmission_if_known() {
        let mut rate = Alone::new([PACKET].into_iter());
        rate.on_sent(Micros(7), PACKET);
        let departures = |rate: &Alone| [0, 1, 2].map(|index| rate.rate.sent_at(index));
        assert_eq!(departures(&rate), [None, Some(Micros(7)), None]);
        rate.rate.on_retransmitted(&mut rate.path, Micros(9), 0, PACKET);
        assert_eq!(departures(&rate), [Some(Micros(9)), Some(Micros(7)), None]);
    }
}
