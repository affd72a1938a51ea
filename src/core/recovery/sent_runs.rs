//! Runs in flight: one record for the full segments of a GSO batch, which left back to back at one instant,
//! each in its own datagram.
//!
//! On a path without loss a cumulative acknowledgement removes a run or the front of it without visiting
//! single segments, except the latest one, which gets an ACK of its own.
//! [`SentSegments`](super::sent_segments::SentSegments) breaks the runs up into segments when a second
//! segment is acknowledged by number or one is retransmitted.

use std::collections::VecDeque;

use crate::core::recovery::sent_segments::SentSegment;
use crate::core::send::send_buffer::BufferRange;
use crate::core::seq::Sn;
use crate::util::queue;

/// Consecutive segments that left once, back to back in a GSO batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRun {
    /// Number of the first segment.
    sn: Sn,
    /// At least 1.
    count: u32,
    /// The first segment; the others differ from it only in [`SentSegment::xmit_seq`].
    first: SentSegment,
    /// Payload of the first segment; the payloads of the others follow it and have the same length.
    payload: BufferRange,
}

impl SentRun {
    /// The first segment, and the number of segments.
    pub(crate) fn segments(&self) -> (&SentSegment, u32) {
        (&self.first, self.count)
    }

    fn get(&self, index: u32) -> (Sn, SentSegment) {
        (self.sn.advance(index), self.first.nth_of_run(index))
    }

    /// The segments from `index` on.
    fn iter(&self, index: u32) -> impl Iterator<Item = (Sn, SentSegment)> {
        let run = *self;
        (index..self.count).map(move |index| run.get(index))
    }

    /// Splits off the first `count` segments; some must remain.
    fn split_to(&mut self, count: u32) -> Self {
        let front = Self { count, ..*self };
        let (sn, first) = self.get(count);
        *self =
            Self { sn, count: self.count - count, first, payload: self.payload.nth_after(count) };
        front
    }
}

const _: () = assert!(size_of::<SentRun>() == 56, "less than a cache line");

/// The runs in flight, in order of number, without gaps.
#[derive(Debug, Default)]
pub(crate) struct SentRuns {
    runs: VecDeque<SentRun>,
    /// Segments of all runs.
    len: u32,
    /// The one segment with an ACK of its own.
    acked: Option<Sn>,
}

impl SentRuns {
    /// Segments of all runs.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether every segment has an ACK of its own.
    #[inline]
    pub(crate) fn all_acked(&self) -> bool {
        self.len == u32::from(self.acked.is_some())
    }

    /// Records the ACK of a segment. Returns false if another one is already recorded.
    pub(crate) fn ack(&mut self, sn: Sn) -> bool {
        let is_first = self.acked.is_none() && self.find(sn).is_some();
        if is_first {
            self.acked = Some(sn);
        }
        is_first || self.acked == Some(sn)
    }

    /// Appends segment `sn`, the next number, to the last run if it continues that run.
    #[inline]
    pub(crate) fn push(&mut self, sn: Sn, segment: SentSegment, payload: BufferRange) {
        self.len += 1;
        if let Some(last) = self.runs.back_mut()
            && last.payload.nth_after(last.count) == payload
            && last.first.nth_of_run(last.count).left_as(&segment)
        {
            last.count += 1;
            return;
        }
        queue::push(&mut self.runs, SentRun { sn, count: 1, first: segment, payload });
    }

    /// Removes the first run, or up to `max` segments of it. A segment with an ACK of its own is removed
    /// alone.
    pub(crate) fn pop_front(&mut self, max: u32) -> Option<SentRun> {
        let first = self.runs.front_mut()?;
        let before_acked = self.acked.and_then(|acked| acked.offset_from(first.sn));
        let is_acked = before_acked == Some(0);
        let max = if is_acked { 1 } else { max.min(before_acked.unwrap_or(max)) };
        let mut run =
            if first.count > max { first.split_to(max) } else { self.runs.pop_front()? };
        self.len -= run.count;
        if is_acked {
            (run.first.acked, self.acked) = (true, None);
        }
        Some(run)
    }

    /// The segment with the lowest number that has no ACK of its own.
    #[inline]
    pub(crate) fn front(&self) -> Option<(Sn, SentSegment)> {
        let first = self.runs.front().map(|run| (run.sn, run.first))?;
        if self.acked != Some(first.0) {
            return Some(first);
        }
        let next = first.0.advance(1);
        self.get(next).map(|segment| (next, segment))
    }

    /// Payload of the segment with the lowest number.
    pub(crate) fn front_payload(&self) -> Option<BufferRange> {
        self.runs.front().map(|run| run.payload)
    }

    /// Index of the run that contains `sn`, and index of `sn` in it, by bisection.
    fn find(&self, sn: Sn) -> Option<(usize, u32)> {
        let after = self.runs.partition_point(|run| sn.since(run.sn) >= 0);
        let at = after.checked_sub(1)?;
        let run = self.runs.get(at)?;
        let index = sn.offset_from(run.sn)?;
        (index < run.count).then_some((at, index))
    }

    pub(crate) fn get(&self, sn: Sn) -> Option<SentSegment> {
        let (at, index) = self.find(sn)?;
        let mut segment = self.runs.get(at)?.get(index).1;
        segment.acked = self.acked == Some(sn);
        Some(segment)
    }

    pub(crate) fn payload(&self, sn: Sn) -> Option<BufferRange> {
        let (at, index) = self.find(sn)?;
        self.runs.get(at).map(|run| run.payload.nth_after(index))
    }

    /// Segments without an ACK of their own from `sn` on, in order of number, which is also the order of
    /// transmission.
    pub(crate) fn iter_from(&self, sn: Sn) -> impl Iterator<Item = (Sn, SentSegment)> {
        let (at, index) = self.find(sn).unwrap_or((self.runs.len(), 0));
        let mut rest = self.runs.range(at..);
        let first = rest.next().into_iter().flat_map(move |run| run.iter(index));
        let acked = self.acked;
        first.chain(rest.flat_map(|run| run.iter(0))).filter(move |(sn, _)| acked != Some(*sn))
    }

    /// Removes all runs and passes each segment with its payload to `each`.
    pub(crate) fn break_up(&mut self, mut each: impl FnMut(SentSegment, BufferRange)) {
        self.len = 0;
        let acked = self.acked.take();
        for run in self.runs.drain(..) {
            for index in 0..run.count {
                let (sn, mut segment) = run.get(index);
                segment.acked = acked == Some(sn);
                each(segment, run.payload.nth_after(index));
            }
        }
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        queue::is_reclaimable(&self.runs)
    }

    /// Frees the capacity of an empty queue, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        queue::release(&mut self.runs);
    }

    /// Asserts that the runs follow each other without gaps from `start` on.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self, start: Sn) {
        let (mut sn, mut xmit_seq) = (start, 0);
        for run in &self.runs {
            assert!(run.sn == sn && run.count > 0 && run.first.xmit_seq > xmit_seq, "{run:?}");
            let (last_sn, last) = run.get(run.count - 1);
            assert!(!last.acked && !last.retransmitted && last.backoff_level() == 0, "{run:?}");
            (sn, xmit_seq) = (last_sn.advance(1), last.xmit_seq);
        }
        assert_eq!(sn, start.advance(self.len));
        assert!(self.acked.is_none_or(|acked| self.find(acked).is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::clock::Micros;
    use crate::core::recovery::sent_segments::SentSegments;
    use crate::core::seq::Ts;
    use proptest::prelude::*;

    /// Payloads of `len` bytes, back to back in chunks of 20 segments.
    fn payload(index: u32, len: u32) -> BufferRange {
        BufferRange::new(index / 20, index % 20 * len, len)
    }

    /// All that [`SentSegments`] reports about one segment.
    fn seen((sn, segment): (Sn, SentSegment)) -> (u32, u64, u64, u32, u8, bool, bool) {
        let SentSegment { xmit_seq, last_sent, first_ts, .. } = segment;
        let backoff_level = segment.backoff_level();
        let flags = (segment.retransmitted, segment.acked);
        (sn.0, xmit_seq, last_sent.0, first_ts.0, backoff_level, flags.0, flags.1)
    }

    /// All that can be asked about the segments in flight.
    fn contents(sent: &SentSegments) -> impl PartialEq + std::fmt::Debug {
        let sns = (0..sent.len() + 1).map(|offset| sent.una().advance(offset));
        let segments: Vec<_> =
            sns.map(|sn| (sent.get(sn).map(|s| seen((sn, s))), sent.payload(sn))).collect();
        let oldest: Vec<_> = sent.oldest_per_list().collect();
        let order =
            oldest.iter().map(|(sn, _)| sent.unacked_from(*sn).map(seen).collect::<Vec<_>>());
        let order: Vec<_> = order.collect();
        let middle = sent.una().advance(sent.len() / 2);
        let from_middle = sent.get(middle).is_some_and(|segment| !segment.acked);
        let from_middle =
            from_middle.then(|| sent.unacked_from(middle).map(seen).collect::<Vec<_>>());
        let state = (sent.una(), sent.nxt(), sent.all_acked(), sent.oldest_payload());
        (segments, oldest.into_iter().map(seen).collect::<Vec<_>>(), order, from_middle, state)
    }

    proptest! {
        #[test]
        fn runs_and_single_segments_say_the_same(
            start: u32,
            steps in prop::collection::vec((0_u8..9, any::<u16>()), 1..120),
        ) {
            let (mut runs, mut singles) = (SentSegments::new(Sn(start)), SentSegments::new(Sn(start)));
            let mut pushed = 0;
            for (i, (step, pick)) in steps.into_iter().enumerate() {
                let (now, ts) = (Micros(i as u64), Ts(u32::try_from(i).unwrap() / 3));
                let sn = runs.una().advance(u32::from(pick) % runs.len().max(1));
                let unacked = runs.get(sn).is_some_and(|segment| !segment.acked);
                let level = u8::try_from(pick >> 8).unwrap() % 3;
                match step {
                    0..=3 => for _ in 0..=pick % 30 {
                        // Some share a datagram, and some have another length.
                        let payload = payload(pushed, 9 + u32::from(step == 0));
                        if step != 1 {
                            runs.begin_datagram();
                            singles.begin_datagram();
                        }
                        if step == 3 { runs.push(now, ts, payload, 0) } else { runs.push_to_runs(now, ts, payload, 0) };
                        singles.push(now, ts, payload, 0);
                        pushed += 1;
                    },
                    4 if unacked => [&mut runs, &mut singles].map(|sent| sent.mark_retransmitted(now, sn, level, pick & 1 == 0)).into_iter().collect(),
                    5 if unacked => [&mut runs, &mut singles].map(|sent| sent.move_to_back(now, sn)).into_iter().collect(),
                    6 if unacked => [&mut runs, &mut singles].map(|sent| sent.ack(sn)).into_iter().collect(),
                    7 => {
                        let popped = [&mut runs, &mut singles].map(|sent| sent.pop_acked().map(|s| s.xmit_seq));
                        prop_assert_eq!(popped[0], popped[1]);
                    }
                    _ => {
                        let popped = [&mut runs, &mut singles].map(|sent| {
                            let mut popped = Vec::new();
                            let count = sent.pop_acked_run(u32::from(pick % 50), |first, count| {
                                let all = (0..count).map(|index| first.nth_of_run(index));
                                popped.extend(all.map(|segment| (segment.xmit_seq, segment.acked)));
                            });
                            (count, popped)
                        });
                        prop_assert_eq!(&popped[0], &popped[1]);
                    }
                }
                runs.check_invariants();
                prop_assert_eq!(contents(&runs), contents(&singles));
            }
        }
    }

    #[test]
    fn full_segments_of_a_batch_are_one_record_until_one_is_acknowledged() {
        let mut sent = SentSegments::new(Sn(7));
        for batch in 0..3 {
            for index in batch * 20..(batch + 1) * 20 {
                sent.begin_datagram();
                sent.push_to_runs(Micros(batch.into()), Ts(batch), payload(index, 9), 0);
            }
        }
        let mut popped = Vec::new();
        assert_eq!(sent.pop_acked_run(30, |first, count| popped.push((first.xmit_seq, count))), 30);
        assert_eq!(popped, [(2, 20), (42, 10)]);
        sent.ack(Sn(7 + 50));
        assert!(sent.get(Sn(57)).unwrap().acked && !sent.get(Sn(56)).unwrap().acked);
        sent.ack(Sn(7 + 51));
        popped.clear();
        assert_eq!(sent.pop_acked_run(30, |first, count| popped.push((first.xmit_seq, count))), 30);
        assert_eq!(popped, Vec::from_iter((0..30).map(|index| (62 + 2 * index, 1))));
        assert!(sent.is_empty());
    }
}
