//! FEC probes: whether the peer decodes the FEC layout that is sent to it.
//!
//! No datagram of kcp-go says so. A FEC probe is a ping that takes a place in a group and does not
//! leave: it can be answered only if the peer reconstructs it. A decoder that was not configured
//! for this layout learns it from whole groups in a row alone. So until a FEC probe is answered
//! parity leaves also where it comes later than a retransmission: in the first
//! [`LEARNING_GROUPS`], then in the group with a FEC probe and the one before. Likewise after
//! [`MAX_UNANSWERED`] in a row that are not answered. A peer that answers none is sent no FEC any
//! more.

use std::time::{Duration, Instant};

/// Group that holds the first FEC probe, and groups from one to the next until one is answered.
const FIRST_GROUP: u32 = 3;
const GROUPS_BETWEEN: u32 = 8;
/// Groups of a layout that are whole in any case, unless a FEC probe is answered before.
const LEARNING_GROUPS: u32 = 16;
/// Time from one FEC probe to the next once one was answered.
const INTERVAL: Duration = Duration::from_secs(10);
/// Least time in which an answer is waited for; two RTOs if that is longer.
const MIN_WAIT: Duration = Duration::from_millis(200);
/// FEC probes without an answer in a row after which the layout counts as unknown to the peer.
const MAX_UNANSWERED: u32 = 3;
/// Data packets and FEC probes without any answer after which FEC is turned off. kcp-go learns a
/// layout of 10 + 5 within 1,350 packets at 20 % loss, nine times of ten.
const MAX_PACKETS: u32 = 1_500;
const MAX_PROBES: u32 = 8;

/// State of the FEC probes towards one address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FecProbes {
    /// Groups since the last FEC probe, and data packets since the layout began.
    groups: u32,
    packets: u32,
    /// Groups since the layout began, at most [`LEARNING_GROUPS`].
    learned: u32,
    /// When the last FEC probe was sent, and whether its answer is outstanding.
    last: Option<Instant>,
    outstanding: bool,
    /// FEC probes in a row that were not answered.
    unanswered: u32,
    /// One of the last [`MAX_UNANSWERED`] was answered.
    confirmed: bool,
    /// One was answered since the layout began.
    ever_confirmed: bool,
}

impl FecProbes {
    /// Whether the peer decodes the layout.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// A data packet leaves.
    pub(super) fn on_packet(&mut self) {
        self.packets = self.packets.saturating_add(1);
    }

    /// The group of the last packet is complete.
    pub(super) fn on_group(&mut self) {
        self.groups = self.groups.saturating_add(1);
        self.learned = self.learned.saturating_add(1).min(LEARNING_GROUPS);
    }

    /// Whether the parity of the current group leaves however late it is, so that the peer can
    /// learn the layout.
    pub(super) fn needs_whole_group(&self) -> bool {
        !self.confirmed && (self.learned < LEARNING_GROUPS || self.groups + 2 >= GROUPS_BETWEEN)
    }

    /// Whether the current group is to hold a FEC probe.
    pub(super) fn is_due(&self, now: Instant, rto: Duration) -> bool {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        match since {
            None => self.groups + 1 >= FIRST_GROUP,
            Some(since) if self.confirmed && self.unanswered == 0 => since >= INTERVAL,
            Some(since) => self.groups + 1 >= GROUPS_BETWEEN && since >= MIN_WAIT.max(2 * rto),
        }
    }

    /// A FEC probe is in the group that is complete now, after [`Self::on_group`].
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.judge_last();
        (self.last, self.outstanding, self.groups) = (Some(now), true, 0);
    }

    fn judge_last(&mut self) {
        if std::mem::take(&mut self.outstanding) {
            self.unanswered = self.unanswered.saturating_add(1);
            self.confirmed &= self.unanswered < MAX_UNANSWERED;
        }
    }

    /// A FEC probe was answered; if none is outstanding, one of the layout before.
    pub(super) fn on_answered(&mut self) {
        if std::mem::take(&mut self.outstanding) {
            self.unanswered = 0;
            (self.confirmed, self.ever_confirmed) = (true, true);
        }
    }

    /// Whether nothing shows that the peer decodes any FEC, after all that was sent.
    pub(super) fn have_failed(&self) -> bool {
        !self.ever_confirmed && self.packets >= MAX_PACKETS && self.unanswered >= MAX_PROBES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: Duration = Duration::from_millis(60);

    /// Completes groups of ten packets, one each 50 ms, until a FEC probe is due; sends it. Returns
    /// the number of groups, the one with the FEC probe included.
    fn next(probes: &mut FecProbes, now: &mut Instant) -> u32 {
        for groups in 1..1_000 {
            (0..10).for_each(|_| probes.on_packet());
            *now += Duration::from_millis(50);
            if probes.is_due(*now, RTO) {
                probes.on_sent(*now);
                return groups;
            }
            probes.on_group();
        }
        panic!("no FEC probe is due");
    }

    #[test]
    fn fec_probes_are_in_the_third_group_then_each_eighth_then_each_ten_seconds() {
        let (mut probes, mut now) = (FecProbes::default(), Instant::now());
        let groups = [(); 4].map(|()| next(&mut probes, &mut now));
        assert_eq!(groups, [3, 8, 8, 8]);
        assert!(!probes.is_confirmed());
        probes.on_answered();
        assert!(probes.is_confirmed());
        assert_eq!(next(&mut probes, &mut now), 200);
    }

    #[test]
    fn groups_are_whole_while_the_peer_may_learn_the_layout() {
        let (mut probes, mut now) = (FecProbes::default(), Instant::now());
        let mut whole = Vec::new();
        for group in 0..40 {
            whole.extend(probes.needs_whole_group().then_some(group));
            now += Duration::from_millis(500);
            let due = probes.is_due(now, RTO);
            probes.on_group();
            if due {
                assert_eq!(whole.last(), Some(&group));
                probes.on_sent(now);
            }
        }
        assert_eq!(whole[..16], (0..16).collect::<Vec<_>>());
        assert_eq!(whole[16..], [17, 18, 25, 26, 33, 34]);
        probes.on_answered();
        assert!(!probes.needs_whole_group());
    }

    #[test]
    fn answer_to_a_fec_probe_of_the_layout_before_confirms_nothing() {
        let mut probes = FecProbes::default();
        probes.on_answered();
        assert!(!probes.is_confirmed());
    }

    #[test]
    fn three_unanswered_fec_probes_withdraw_the_confirmation() {
        let (mut probes, mut now) = (FecProbes::default(), Instant::now());
        next(&mut probes, &mut now);
        probes.on_answered();
        for _ in 0..3 {
            next(&mut probes, &mut now);
            assert!(probes.is_confirmed());
        }
        assert_eq!(next(&mut probes, &mut now), 8);
        assert!(!probes.is_confirmed() && !probes.have_failed());
    }

    #[test]
    fn fec_probes_have_failed_after_1500_packets_and_eight_without_an_answer() {
        let (mut probes, mut now) = (FecProbes::default(), Instant::now());
        let mut groups = 0;
        while !probes.have_failed() {
            groups += next(&mut probes, &mut now);
        }
        assert!((150..160).contains(&groups), "{groups} groups of 10");
        // Many packets at once are no reason: an answer takes a round trip.
        let mut probes = FecProbes::default();
        for _ in 0..10_000 {
            probes.on_packet();
            if probes.is_due(now, RTO) {
                probes.on_sent(now);
            }
            probes.on_group();
        }
        assert!(!probes.have_failed());
    }
}
