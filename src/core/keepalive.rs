//! Whether the peer is there: echo probes, keepalive, and the limits on silence.
//!
//! The echo probe is an empty PUSH whose number lies a quarter of the circle behind what the peer
//! has acknowledged. Every KCP peer takes it for a repetition, acknowledges it and copies its time
//! stamp, a random cookie; so the answer proves that the peer is there now, and its cumulative
//! acknowledgement shows whether it still has the state of this conversation.

use std::time::Duration;

use crate::config::KcpConfig;
use crate::core::clock::{Micros, micros};
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// Distance of a probe's number behind the oldest unacknowledged one.
const PROBE_DISTANCE: u32 = 1 << 30;
/// How long a cookie is worth something.
pub(crate) const COOKIE_LIFE: u64 = 10_000_000;
/// Least time between probes.
const MIN_PING_INTERVAL: u64 = 1_000_000;
/// The same where the peer says that it lacks an answer, by repeating itself.
const MIN_PING_INTERVAL_PROMPTED: u64 = 100_000;
/// Share of the keepalive period that one side waits longer than the other.
const KEEPALIVE_STAGGER: u64 = 16;
/// Share of the dead-peer time after which an unanswered peer is probed each second.
const PING_START_DIVISOR: u64 = 3;

#[derive(Clone, Copy, Debug)]
struct Ping {
    sn: Sn,
    cookie: Ts,
    /// What the peer had acknowledged when it was first asked.
    una: Sn,
    first_sent: Micros,
    sent: Micros,
}

impl Ping {
    fn is_fresh(&self, now: Micros) -> bool {
        now.since(self.first_sent) <= COOKIE_LIFE
    }
}

/// The answer to an echo probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pong {
    /// Its cumulative acknowledgement lies behind what the peer had acknowledged before it was
    /// asked.
    pub(crate) state_lost: bool,
    /// Microseconds since it was asked, where that happened once.
    pub(crate) rtt: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Keepalive {
    keepalive: Option<u64>,
    idle: Option<u64>,
    dead: Option<u64>,
    heard: Micros,
    /// Since when an answer is outstanding.
    waiting: Option<Micros>,
    probe: Option<Ping>,
    /// The last one that was answered.
    last_answered: Option<Ping>,
    /// A probe is to be sent with the next transmission.
    ping_pending: bool,
    validated: bool,
    /// The peer is asked each second until it has proved that it is there.
    validating: bool,
    cookies: u64,
}

impl Keepalive {
    pub(crate) fn new(config: &KcpConfig, now: Micros, seed: u64) -> Self {
        let limit = |limit: Option<Duration>| limit.map(micros);
        Self {
            keepalive: limit(config.keepalive),
            idle: limit(config.idle_timeout),
            dead: limit(config.dead_peer_timeout),
            heard: now,
            waiting: None,
            probe: None,
            last_answered: None,
            ping_pending: false,
            validated: false,
            validating: false,
            cookies: seed,
        }
    }

    /// The peer goes first with keepalives: it takes one to keep both sides.
    pub(crate) fn give_way(&mut self) {
        let idle = self.idle.unwrap_or(u64::MAX);
        let later = |period: u64| {
            let later = period.saturating_add(period / KEEPALIVE_STAGGER);
            // Not so late that the answer comes when silence has ended the conversation.
            if later.saturating_add(2 * MIN_PING_INTERVAL) < idle { later } else { period }
        };
        self.keepalive = self.keepalive.map(later);
    }

    /// A valid datagram came from the peer.
    pub(crate) fn on_received(&mut self, now: Micros) {
        self.heard = now;
        if self.waiting.is_some() {
            self.waiting = Some(now);
        }
    }

    /// The first datagram leaves: from now on silence counts.
    pub(crate) fn on_start(&mut self, now: Micros) {
        self.heard = now;
    }

    /// The peer proved that it received something of ours.
    pub(crate) fn on_validated(&mut self) {
        self.validated = true;
    }

    /// Silence after which the peer is given up, microseconds.
    pub(crate) fn dead_after(&self) -> Option<u64> {
        self.dead
    }

    pub(crate) fn is_validated(&self) -> bool {
        self.validated
    }

    /// Whether an acknowledgement answers the outstanding probe; if so the probe is settled.
    pub(crate) fn on_answer(&mut self, now: Micros, (sn, ts): (Sn, Ts), una: Sn) -> Option<Pong> {
        let asked = |probe: &Ping| probe.sn == sn && probe.cookie == ts && probe.is_fresh(now);
        let probe = self.probe.filter(asked)?;
        self.last_answered = self.probe.take();
        self.validated = true;
        // Later acknowledgements may have overtaken the answer, so it is judged by what was
        // acknowledged when the probe left.
        let rtt = (probe.sent == probe.first_sent).then(|| now.since(probe.sent));
        Some(Pong { state_lost: una.since(probe.una) < 0, rtt })
    }

    /// Whether a probe of that number and cookie was sent a short time ago, answered or not.
    pub(crate) fn is_recent_ping(&self, now: Micros, (sn, ts): (Sn, Ts)) -> bool {
        let probes = [self.probe, self.last_answered].into_iter().flatten();
        probes.filter(|p| p.is_fresh(now)).any(|p| (p.sn, p.cookie) == (sn, ts))
    }

    /// Asks for a probe as soon as the gap between probes allows.
    pub(crate) fn request_ping(&mut self, now: Micros) {
        self.ping_pending |= self.probe.is_none_or(|p| now.since(p.sent) >= MIN_PING_INTERVAL);
    }

    /// Asks for a probe now, and each second until the peer has answered something.
    pub(crate) fn insist(&mut self, now: Micros) {
        self.validating = true;
        self.request_ping(now);
    }

    /// The peer repeats what it was answered: the answer was lost, and the probe that came with it.
    pub(crate) fn on_duplicate_received(&mut self, now: Micros) {
        let asked = self.probe.filter(|_| self.validating && !self.validated);
        self.ping_pending |=
            asked.is_some_and(|probe| now.since(probe.sent) >= MIN_PING_INTERVAL_PROMPTED);
    }

    /// Whether a probe leaves with the next transmission.
    pub(crate) fn is_due(&self) -> bool {
        self.ping_pending
    }

    /// The probe to send now, if one is due. Its number is never zero, which other listeners take
    /// for an opening. While its cookie is worth something the same probe is repeated, so an
    /// answer counts even where a round trip takes longer than the gap between probes.
    pub(crate) fn poll_ping(&mut self, now: Micros, una: Sn) -> Option<(Sn, Ts)> {
        if !std::mem::take(&mut self.ping_pending) {
            return None;
        }
        let probe = match self.probe.filter(|probe| probe.is_fresh(now)) {
            Some(probe) => Ping { sent: now, ..probe },
            None => {
                let (sn, cookie) = (dataless_sn(una), self.next_cookie());
                Ping { sn, cookie, una, first_sent: now, sent: now }
            }
        };
        self.probe = Some(probe);
        Some((probe.sn, probe.cookie))
    }

    /// SplitMix64 over the caller's random seed: cookies need to be unguessable for strangers who
    /// do not see the traffic; whoever sees it can answer anyway.
    pub(crate) fn next_cookie(&mut self) -> Ts {
        self.cookies = self.cookies.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.cookies;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Ts((z >> 32) as u32)
    }

    /// Keeps track of whether the peer owes an answer (`outstanding`: data in flight, or data
    /// waiting for a window).
    pub(crate) fn watch(&mut self, now: Micros, outstanding: bool) {
        if outstanding || self.probe.is_some() {
            self.waiting.get_or_insert(now);
        } else {
            self.waiting = None;
        }
    }

    /// Checks the limits and schedules probes. `started`: something of ours has ever been sent;
    /// before that the peer has no reason to say anything, and a probe would introduce us to it.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Micros,
        started: bool,
    ) -> Result<(), ConnectionError> {
        // Both limits may be over at once; that an answer is missing says more.
        if let Some((dead, since)) = self.dead.zip(self.silent_since()) {
            if now.since(since) >= dead {
                return Err(ConnectionError::DeadPeer);
            }
            if started && now >= self.ping_start_at(dead, since) {
                self.request_ping(now);
            }
        }
        if started && self.idle.is_some_and(|idle| now.since(self.heard) >= idle) {
            return Err(ConnectionError::IdleTimeout);
        }
        let keepalive = started && self.keepalive_at().is_some_and(|at| now >= at);
        if keepalive || self.validation_ping_at().is_some_and(|at| now >= at) {
            self.request_ping(now);
        }
        Ok(())
    }

    /// When [`Self::handle_timeout`] has something to do next.
    pub(crate) fn deadline(&self, started: bool) -> Option<Micros> {
        let idle = self.idle.filter(|_| started).map(|idle| self.heard.add_micros(idle));
        // A probe that is due leaves with the next transmission and needs no timer.
        let probing = started && !self.ping_pending;
        let silence = self.dead.zip(self.silent_since()).map(|(dead, since)| {
            let anxious = self.ping_start_at(dead, since);
            let next =
                self.probe.map_or(anxious, |p| anxious.max(p.sent.add_micros(MIN_PING_INTERVAL)));
            if probing { next.min(since.add_micros(dead)) } else { since.add_micros(dead) }
        });
        let keepalive = if probing { self.keepalive_at() } else { None };
        let insisting = self.validation_ping_at().filter(|_| probing);
        [idle, silence, keepalive, insisting].into_iter().flatten().min()
    }

    /// When the peer begins to be probed each second: after a share of the dead-peer time without
    /// a word, and a moment to answer what it owes since `since`.
    fn ping_start_at(&self, dead: u64, since: Micros) -> Micros {
        self.heard.add_micros(dead / PING_START_DIVISOR).max(since.add_micros(MIN_PING_INTERVAL))
    }

    fn silent_since(&self) -> Option<Micros> {
        self.waiting.map(|waiting| waiting.max(self.heard))
    }

    /// When a peer that has proved nothing is asked again.
    fn validation_ping_at(&self) -> Option<Micros> {
        let asked = self.probe.filter(|_| self.validating && !self.validated)?;
        Some(asked.sent.add_micros(MIN_PING_INTERVAL))
    }

    /// The next keepalive: one period after the last sign of life, or after the last probe.
    fn keepalive_at(&self) -> Option<Micros> {
        let last = self.probe.map_or(self.heard, |p| p.sent.max(self.heard));
        self.keepalive.map(|period| last.add_micros(period))
    }
}

/// A number for segments that carry no data of the stream: far behind everything in use, never
/// zero.
pub(crate) fn dataless_sn(una: Sn) -> Sn {
    match una.back(PROBE_DISTANCE) {
        Sn(0) => Sn(u32::MAX),
        sn => sn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn liveness() -> Keepalive {
        Keepalive::new(&KcpConfig::default(), Micros(0), 7)
    }

    #[test]
    fn who_repeats_itself_is_asked_again_at_once_but_not_each_time() {
        let mut live = liveness();
        live.insist(Micros(0));
        let asked = live.poll_ping(Micros(0), Sn(0)).unwrap();
        let mut probes = 0;
        for ms in 0..1_000 {
            let now = Micros(ms * 1_000);
            live.on_duplicate_received(now);
            probes += usize::from(live.poll_ping(now, Sn(0)).is_some());
        }
        assert_eq!(probes, 9);
        live.on_answer(Micros(SECOND), asked, Sn(0)).unwrap();
        live.on_duplicate_received(Micros(2 * SECOND));
        assert!(!live.is_due(), "it has answered");
    }

    #[test]
    fn an_idle_conversation_probes_each_period_and_hears_the_answer() {
        let mut live = liveness();
        assert_eq!(live.deadline(true), Some(Micros(15 * SECOND)));
        live.handle_timeout(Micros(15 * SECOND), true).unwrap();
        let (sn, cookie) = live.poll_ping(Micros(15 * SECOND), Sn(5)).unwrap();
        assert_eq!(sn, Sn(5_u32.wrapping_sub(1 << 30)));
        assert_eq!(live.on_answer(Micros(16 * SECOND), (sn, Ts(cookie.0 ^ 1)), Sn(5)), None);
        assert!(!live.is_validated());
        let answer = live.on_answer(Micros(16 * SECOND), (sn, cookie), Sn(5));
        assert_eq!(answer.map(|answer| answer.state_lost), Some(false));
        assert!(live.is_validated());
        live.on_received(Micros(16 * SECOND));
        assert_eq!(live.deadline(true), Some(Micros(31 * SECOND)));
    }

    #[test]
    fn a_cookie_expires() {
        let mut live = liveness();
        live.request_ping(Micros(0));
        let (sn, cookie) = live.poll_ping(Micros(0), Sn(5)).unwrap();
        assert_eq!(live.on_answer(Micros(11 * SECOND), (sn, cookie), Sn(5)), None);
    }

    #[test]
    fn a_probe_is_repeated_while_its_cookie_lives() {
        let mut live = liveness();
        let mut probe = |second: u32| {
            let now = Micros(u64::from(second) * SECOND);
            live.request_ping(now);
            live.poll_ping(now, Sn(5 + second)).unwrap()
        };
        let first = probe(0);
        assert_eq!((probe(1), probe(10)), (first, first));
        assert_ne!(probe(11), first);
    }

    #[test]
    fn an_answer_is_judged_by_what_was_acknowledged_when_it_was_asked_for() {
        for (una, forgotten) in [(4, true), (5, false), (9, false)] {
            let mut live = liveness();
            live.request_ping(Micros(0));
            let (sn, cookie) = live.poll_ping(Micros(0), Sn(5)).unwrap();
            let answer = live.on_answer(Micros(SECOND), (sn, cookie), Sn(una));
            assert_eq!(answer.map(|answer| answer.state_lost), Some(forgotten));
        }
    }

    #[test]
    fn a_silent_peer_is_probed_each_second_and_given_up_after_the_limit() {
        let mut config = KcpConfig::default();
        (config.keepalive, config.idle_timeout) = (None, None);
        let mut live = Keepalive::new(&config, Micros(0), 7);
        assert_eq!(live.deadline(true), None, "nothing outstanding, nothing to do");
        live.watch(Micros(3_600 * SECOND), true);
        let mut now;
        let mut probes = 0;
        let error = loop {
            now = live.deadline(true).unwrap();
            match live.handle_timeout(now, true) {
                Err(error) => break error,
                Ok(()) => probes += u32::from(live.poll_ping(now, Sn(0)).is_some()),
            }
        };
        assert_eq!(error, ConnectionError::DeadPeer);
        assert_eq!((now, probes), (Micros(3_660 * SECOND), 59));
    }

    #[test]
    fn probes_never_carry_the_number_zero() {
        assert_eq!(dataless_sn(Sn(1 << 30)), Sn(u32::MAX));
    }
}
