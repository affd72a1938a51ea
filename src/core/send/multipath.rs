//! Several paths: data leaves on another one, and when an answer on the present one is overdue.

use std::mem;

use super::Sender;
use crate::core::clock::Micros;
use crate::core::congestion::Congestion;
use crate::core::recovery::loss::{MAX_PATH_PROBES, PathProbes};
use crate::core::recovery::sent::SentSegment;
use crate::core::send::path::SendPath;

/// Segments of a list that [`Sender::overdue_at`] looks at. More lost ones at its front hide the answer that is
/// overdue, and pings find out that the path is silent.
const MAX_INSPECTED: usize = 64;
/// Least wait for an overdue answer beyond the round trip, microseconds.
const MIN_OVERDUE: u64 = 10_000;

impl Sender {
    /// Data leaves on another path from now on: `other` has its state, and the state of the last one afterwards.
    /// `resend`: the last one is silent, so what is in flight leaves again.
    pub(crate) fn switch_path(&mut self, now: Micros, other: &mut SendPath, resend: bool) {
        let (mode, una, next) = (self.path.congestion.mode(), self.una(), self.next_xmit_seq());
        let (rto, has_acked) = (self.path.rtt.rto(), self.path.loss.has_acked());
        other.take_settings(&self.path);
        mem::swap(&mut self.path, other);
        // The old path's model would be out of date when it is used again.
        other.congestion = Congestion::disabled();
        self.path.congestion = Congestion::disabled();
        self.with_flight(self.in_flight(), |congestion, segment, in_flight| {
            congestion.set_mode(mode, una, segment, in_flight);
        });
        self.path.pacer.reset();
        self.path.loss.begin_at(next, rto);
        self.path.mtu.on_path_used(now, self.nxt(), self.in_flight() > 0);
        self.path.since = now;
        self.on_peer_activity(now);
        self.path.probes = PathProbes::default();
        if resend {
            // A peer that acknowledges nothing on any path is not sent a window on each.
            let count = if has_acked { self.in_flight() } else { MAX_PATH_PROBES };
            self.path.probes.on_path_silent(next, count);
        }
    }

    /// When an answer of the active path is overdue: its first transmission after the latest acknowledged one
    /// has waited longer than a round trip and what it varies by. `None` if nothing is unanswered.
    pub(crate) fn overdue_at(&self) -> Option<Micros> {
        let srtt = self.path.rtt.srtt()?;
        let is_unanswered =
            |segment: &SentSegment| !self.path.loss.has_acked_since(segment.xmit_seq);
        let lists = self.sent_segments.oldest_per_list();
        let first = lists.filter_map(|(sn, _)| {
            let mut list = self.sent_segments.unacked_from(sn).take(MAX_INSPECTED);
            list.find(|(_, segment)| is_unanswered(segment)).map(|(_, segment)| segment.last_sent)
        });
        let margin = (srtt / 4 + 4 * self.path.rtt.rttvar()).max(MIN_OVERDUE);
        Some(first.min()?.add_micros(srtt + margin + self.path.loss.copy_wait()))
    }
}
