//! Keepalive, ping, idle timeout and dead-peer timeout of a connection.
//!
//! A ping (QUIC PING, RFC 9000 19.2) is an empty PUSH with a number 2^30 before SND.UNA, like the old
//! sequence number of the keepalive of RFC 9293 3.8.4. Every KCP implementation treats it as a
//! duplicate: it acknowledges the number and copies the timestamp, a random cookie. This ACK is the
//! pong. It proves that the peer receives our datagrams (address validation, RFC 9000 8.1), and its
//! `una` shows whether the peer still has the state of this connection.
//!
//! The number of a ping also tells which side opened the connection (RFC 9293 3.5, active and
//! passive open). Initial segments forged to two servers, each in the name of the other, would open a
//! connection between them: both sides passive, each answering the other's pings. So the lowest bit
//! of a ping's number tells that its sender has accepted the connection.

use std::time::Duration;

use crate::config::{KcpConfig, KeepaliveInterval};
use crate::core::clock::{Micros, micros};
use crate::core::segment::Header;
use crate::core::seq::{Sn, Ts};
use crate::error::{ConnectionError, TimeoutCause};
use crate::util::earliest;

/// How long after the first transmission of a ping its pong is valid, microseconds.
pub(crate) const COOKIE_LIFE: u64 = 10_000_000;
/// Shortest time between two pings, microseconds.
const MIN_PING_INTERVAL: u64 = 1_000_000;
/// The same for an unvalidated peer whose duplicates show that our ACKs are lost, microseconds.
const MIN_PING_INTERVAL_PROMPTED: u64 = 100_000;
/// Divisor: [`Keepalive::defer`] adds `period / 16` to the keepalive period, so that only the other
/// side pings.
const KEEPALIVE_STAGGER: u64 = 16;
/// Divisor of the dead-peer timeout: pings begin after a third of it without an answer, or earlier
/// if the peer supports CONTROL, one every [`MIN_PING_INTERVAL`].
const PING_START_DIVISOR: u64 = 3;
/// Longest wait of [`Keepalive::ask_at`], microseconds, and the doublings that reach it.
const MAX_ASK_WAIT: u64 = 20_000_000;
const MAX_ASK_DOUBLINGS: u8 = 5;
/// How long [`Keepalive::ask_at`] asks in vain, microseconds; afterwards dead-peer timeout and
/// keepalive remain.
const MAX_ASK_TIME: u64 = 60_000_000;

/// Address validation (RFC 9000 8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerValidation {
    /// Entered at construction; left on [`Keepalive::start_validation`] or a valid ACK.
    NotRequested,
    /// A ping is sent every [`MIN_PING_INTERVAL`]. Entered on [`Keepalive::start_validation`]; left
    /// on a valid ACK or pong.
    Requested,
    /// Entered on a valid ACK or pong, never left.
    Validated,
}

/// How much longer than its keepalive period this side waits, so that only the peer pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deferral {
    None,
    /// By a part of the period, [`KEEPALIVE_STAGGER`].
    Stagger,
    /// By a whole period, or by [`KEEPALIVE_STAGGER`] where the idle timeout does not allow that.
    Period,
}

/// Pings, and the timeouts that end a connection. All durations in microseconds.
#[derive(Debug)]
pub(crate) struct Keepalive {
    /// Keepalive period, deferral included.
    period: Option<u64>,
    deferral: Deferral,
    idle_timeout: Option<u64>,
    dead_peer_timeout: Option<u64>,
    /// When the peer's latest datagram arrived, or our first was sent.
    last_received: Micros,
    /// When the peer's latest sign of life arrived, or our first datagram was sent.
    last_alive: Micros,
    /// The peer's latest datagram had nothing new. Comparing the two times is not enough: a process
    /// that stops between reading the clock and receiving gives both datagrams the same time.
    is_unproven: bool,
    /// The network of this host has changed since the latest sign of life.
    network_changed: bool,
    /// When a ping asked for a sign of life because the latest datagrams were none; counts while
    /// later than `last_alive`.
    asked: Micros,
    /// When an answer of the peer became due, or the latest sign of life while it was due; `None`
    /// while no answer is due.
    unanswered_since: Option<Micros>,
    ping: PingState,
    /// [`Self::ask_at`] requested the ping that is due. Cleared when it is sent.
    asks_early: bool,
    /// The ping before the outstanding one, or the latest answered one.
    previous: Option<Ping>,
    validation: PeerValidation,
    /// A pong has to show whether the peer supports FIN.
    asks_capability: bool,
    /// Pongs since the peer last acknowledged data or nothing was outstanding, see
    /// [`Self::ask_at`].
    pongs: u8,
    /// Data or FIN is in flight.
    in_flight: bool,
    /// State of SplitMix64, see [`Self::next_cookie`].
    cookie_state: u64,
}

impl Keepalive {
    pub(crate) fn new(config: &KcpConfig, now: Micros, cookie_seed: u64) -> Self {
        let limit = |limit: Option<Duration>| limit.map(micros);
        Self {
            period: limit(config.keepalive.period(config.idle_timeout)),
            deferral: Deferral::None,
            idle_timeout: limit(config.idle_timeout),
            dead_peer_timeout: limit(config.dead_peer_timeout),
            last_received: now,
            last_alive: now,
            is_unproven: false,
            network_changed: false,
            asked: now,
            unanswered_since: None,
            ping: PingState::Idle,
            asks_early: false,
            previous: None,
            validation: PeerValidation::NotRequested,
            asks_capability: false,
            pongs: 0,
            in_flight: false,
            cookie_state: cookie_seed,
        }
    }

    /// Lengthens the keepalive period a little, so that the peer's pings keep both sides alive.
    pub(crate) fn defer(&mut self) {
        self.set_period(self.period, Deferral::Stagger);
    }

    /// Doubles the keepalive period where the idle timeout allows it: the peer has a whole period
    /// more to retransmit lost pings.
    pub(crate) fn defer_by_a_period(&mut self) {
        self.set_period(self.period, Deferral::Period);
    }

    /// Changes keepalive interval and idle timeout.
    pub(crate) fn set_timeouts(&mut self, keepalive: KeepaliveInterval, idle: Option<Duration>) {
        self.idle_timeout = idle.map(micros);
        self.set_period(keepalive.period(idle).map(micros), self.deferral);
    }

    /// Changes the dead-peer timeout.
    pub(crate) fn set_dead_peer_timeout(&mut self, timeout: Option<Duration>) {
        self.dead_peer_timeout = timeout.map(micros);
    }

    fn set_period(&mut self, period: Option<u64>, deferral: Deferral) {
        self.deferral = deferral;
        let stagger = |period| self.deferred(period, period / KEEPALIVE_STAGGER);
        self.period = period.map(|period| {
            let longer = match deferral {
                Deferral::None => None,
                Deferral::Stagger => stagger(period),
                Deferral::Period => self.deferred(period, period).or_else(|| stagger(period)),
            };
            longer.unwrap_or(period)
        });
    }

    /// The longer period, if it leaves time for a pong before the idle timeout.
    fn deferred(&self, period: u64, by: u64) -> Option<u64> {
        let idle = self.idle_timeout.unwrap_or(u64::MAX);
        let longer = period.saturating_add(by);
        (longer.saturating_add(2 * MIN_PING_INTERVAL) < idle).then_some(longer)
    }

    /// A valid datagram arrived. Only new data or a new acknowledgement (`is_new`) is a sign of
    /// life: anything else may be a replay. Late in the idle timeout a replay draws a ping, which
    /// only the peer can answer.
    pub(crate) fn on_received(&mut self, now: Micros, is_new: bool) {
        self.last_received = now;
        self.is_unproven = !is_new;
        if !is_new {
            self.ask_for_proof(now);
            return;
        }
        (self.last_alive, self.network_changed) = (now, false);
        if self.unanswered_since.is_some() {
            self.unanswered_since = Some(now);
        }
    }

    /// Asks the peer for a sign of life, if that is due.
    fn ask_for_proof(&mut self, now: Micros) {
        if self.unproven_ping_at().is_some_and(|at| now >= at) {
            self.request_ping(now);
            if self.asked <= self.last_alive {
                self.asked = now;
            }
        }
    }

    /// The first datagram is sent: the idle timeout starts.
    pub(crate) fn on_first_sent(&mut self, now: Micros) {
        (self.last_received, self.last_alive) = (now, now);
    }

    /// A valid ACK or pong arrived: the peer receives our datagrams.
    pub(crate) fn on_validated(&mut self) {
        self.validation = PeerValidation::Validated;
    }

    /// The network of this host has changed. `pings`: the peer is pinged, whenever the latest ping
    /// was sent.
    pub(crate) fn on_network_changed(&mut self, pings: bool) {
        self.network_changed = true;
        if pings {
            self.ping.request();
        }
    }

    /// The peer has acknowledged data.
    pub(crate) fn on_acked(&mut self) {
        self.pongs = 0;
    }

    /// When the peer last showed a sign of life.
    pub(crate) fn last_alive(&self) -> Micros {
        self.last_alive
    }

    /// Dead-peer timeout, microseconds.
    pub(crate) fn dead_after(&self) -> Option<u64> {
        self.dead_peer_timeout
    }

    /// Whether the peer's address is validated.
    pub(crate) fn is_validated(&self) -> bool {
        self.validation == PeerValidation::Validated
    }

    /// An ACK arrived that matches no segment in flight. Returns the pong if the ACK answers the
    /// outstanding ping.
    pub(crate) fn on_pong(&mut self, now: Micros, id: PingId, una: Sn) -> Option<Pong> {
        let answers = |ping: &&Ping| ping.id == id && ping.is_fresh(now);
        let ping = *self.ping.outstanding().filter(answers)?;
        self.ping.on_pong();
        self.previous = Some(ping);
        self.pongs = self.pongs.saturating_add(1);
        // ACKs sent after the pong may arrive before it, so `una` is compared with the ping's.
        let rtt = (ping.sent == ping.first_sent).then(|| now.since(ping.sent));
        Some(Pong { state_lost: una.since(ping.una) < 0, rtt, is_early: ping.is_early })
    }

    /// Whether this ping was first sent within [`COOKIE_LIFE`], answered
    /// or not.
    pub(crate) fn is_recent_ping(&self, now: Micros, id: PingId) -> bool {
        self.recent_ping_sent(now, id).is_some()
    }

    /// Whether this is one of the latest two pings, however old.
    pub(crate) fn is_ping(&self, id: PingId) -> bool {
        let pings = [self.ping.outstanding(), self.previous.as_ref()];
        pings.into_iter().flatten().any(|ping| ping.id == id)
    }

    /// Latest transmission of a recent ping.
    fn recent_ping_sent(&self, now: Micros, id: PingId) -> Option<Micros> {
        let pings = [self.ping.outstanding(), self.previous.as_ref()].into_iter().flatten();
        let mut pings = pings.filter(|ping| ping.is_fresh(now));
        pings.find(|ping| ping.id == id).map(|ping| ping.sent)
    }

    /// Whether a recent ping was sent, without a sign of life since.
    pub(crate) fn is_unanswered_ping(&self, now: Micros, id: PingId) -> bool {
        self.recent_ping_sent(now, id).is_some_and(|sent| self.last_alive <= sent)
    }

    /// Requests a ping, whenever the latest one was sent.
    pub(crate) fn ask_again(&mut self) {
        self.ping.request();
    }

    /// Requests a ping, unless one was sent within [`MIN_PING_INTERVAL`], answered or not: the pong
    /// of a peer whose state contradicts ours would request the next ping at once.
    pub(crate) fn request_ping(&mut self, now: Micros) {
        if self.next_ping_at().is_none_or(|at| now >= at) {
            self.ping.request();
        }
    }

    /// When the next ping may be sent; `None` if none was sent.
    pub(crate) fn next_ping_at(&self) -> Option<Micros> {
        let sent = |ping: Option<&Ping>| ping.map(|ping| ping.sent);
        let sent = sent(self.ping.outstanding()).max(sent(self.previous.as_ref()));
        sent.map(|sent| sent.add_micros(MIN_PING_INTERVAL))
    }

    /// Requests a ping now, and one every [`MIN_PING_INTERVAL`] until the peer is validated.
    pub(crate) fn start_validation(&mut self, now: Micros) {
        if self.validation == PeerValidation::NotRequested {
            self.validation = PeerValidation::Requested;
        }
        self.request_ping(now);
    }

    /// While `asks`, a pong has to show whether the peer supports FIN, and a ping leaves every [`MIN_PING_INTERVAL`].
    /// That has no limit of time: FIN, which leaves after the pong, has none either.
    #[inline]
    pub(crate) fn ask_for_capability(&mut self, now: Micros, asks: bool) {
        self.asks_capability = asks;
        if asks {
            self.start_validation(now);
        }
    }

    /// A duplicate of acknowledged data arrived: our ACK was lost, and with it the validation ping
    /// in the same datagram.
    pub(crate) fn on_duplicate_received(&mut self, now: Micros) {
        if self
            .unvalidated_ping()
            .is_some_and(|ping| now.since(ping.sent) >= MIN_PING_INTERVAL_PROMPTED)
        {
            self.ping.request();
        }
    }

    /// Whether a ping is due.
    pub(crate) fn is_due(&self) -> bool {
        self.ping.is_due()
    }

    /// The ping to send now, if due; `una` is the least that its pong has to acknowledge. A fresh ping is
    /// retransmitted unchanged, so that its pong counts even if the RTT exceeds
    /// [`MIN_PING_INTERVAL`].
    pub(crate) fn poll_ping(&mut self, now: Micros, una: Sn, role: Role) -> Option<PingId> {
        if !self.ping.is_due() {
            return None;
        }
        let fresh = self.ping.outstanding().filter(|ping| ping.is_fresh(now)).copied();
        let is_early = std::mem::take(&mut self.asks_early);
        let ping = match fresh {
            Some(ping) => Ping { sent: now, is_early: ping.is_early && is_early, ..ping },
            None => {
                self.previous = self.ping.outstanding().copied().or(self.previous);
                let id = PingId { sn: role.ping_sn(una), cookie: self.next_cookie() };
                Ping { id, una, first_sent: now, sent: now, is_early }
            }
        };
        self.ping = PingState::Outstanding(ping);
        Some(ping.id)
    }

    /// A random cookie: SplitMix64 over the caller's seed. RFC 9000 8.2.1 asks for unpredictable
    /// data. SplitMix64 is invertible from two outputs, but an attacker who sees our datagrams can
    /// answer pings anyway.
    pub(crate) fn next_cookie(&mut self) -> Ts {
        self.cookie_state = self.cookie_state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.cookie_state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Ts((z >> 32) as u32)
    }

    /// Starts or stops the dead-peer timeout. `outstanding`: an answer to data, FIN or an initial
    /// segment is due; `in_flight`: data or FIN was sent and is unacknowledged. An outstanding ping
    /// counts too.
    #[inline]
    pub(crate) fn update_outstanding(&mut self, now: Micros, outstanding: bool, in_flight: bool) {
        let was_in_flight = std::mem::replace(&mut self.in_flight, in_flight);
        let has_ping = self.ping.outstanding().is_some();
        if in_flight && !was_in_flight && !has_ping {
            // The peer has opened its window: the answer due before has come.
            self.unanswered_since = Some(now);
        } else if outstanding || has_ping {
            self.unanswered_since.get_or_insert(now);
        } else {
            (self.unanswered_since, self.pongs) = (None, 0);
        }
    }

    /// Acts on passed deadlines: requests pings, ends the connection. `started`: a datagram was
    /// sent. Before that the peer has no reason to send, and a ping would be the first segment of
    /// the connection. `ask_at`: see [`Self::ask_at`].
    ///
    /// # Errors
    ///
    /// [`ConnectionError::DeadPeer`] or [`ConnectionError::IdleTimeout`] if that timeout has
    /// passed.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Micros,
        started: bool,
        ask_at: Option<Micros>,
    ) -> Result<(), ConnectionError> {
        // `DeadPeer` first: it is the more specific error.
        let changed = self.network_changed;
        let cause = if changed { TimeoutCause::NetworkChanged } else { TimeoutCause::Nothing };
        if let Some((timeout, since)) = self.dead_peer_timeout.zip(self.silent_since())
            && now.since(since) >= timeout
        {
            return Err(ConnectionError::DeadPeer(cause));
        }
        if started && self.ping_start_at(ask_at).is_some_and(|at| now >= at) {
            let (was_due, regular) = (self.ping.is_due(), self.ping_start_at(None));
            self.request_ping(now);
            self.asks_early |= !was_due && self.ping.is_due() && regular.is_none_or(|at| now < at);
        }
        if started {
            self.ask_for_proof(now);
        }
        if started && self.idle_end().is_some_and(|at| now >= at) {
            let has_asked = self.network_changed && self.silent_since().is_some();
            let error = ConnectionError::DeadPeer(cause);
            return Err(if has_asked { error } else { ConnectionError::IdleTimeout });
        }
        let due = started && self.keepalive_at().is_some_and(|at| now >= at);
        if due || self.validation_ping_at().is_some_and(|at| now >= at) {
            self.request_ping(now);
        }
        Ok(())
    }

    /// When [`Self::handle_timeout`] has something to do next.
    pub(crate) fn deadline(&self, started: bool, ask_at: Option<Micros>) -> Option<Micros> {
        let idle = self.idle_end().filter(|_| started);
        // A ping that is due needs no timer.
        let may_ping = started && !self.ping.is_due();
        let dead = self.dead_peer_timeout.zip(self.silent_since());
        let dead = dead.map(|(timeout, since)| since.add_micros(timeout));
        let start = self.ping_start_at(ask_at);
        let asks = start.map(|start| self.next_ping_at().map_or(start, |at| at.max(start)));
        let pings = [asks, self.keepalive_at(), self.unproven_ping_at(), self.validation_ping_at()];
        let ping = earliest(pings).filter(|_| may_ping);
        earliest([idle, dead, ping])
    }

    /// When pings begin, one every [`MIN_PING_INTERVAL`], while an answer is due: at `ask_at`, or a
    /// third of the dead-peer timeout after the latest sign of life, but at least
    /// [`MIN_PING_INTERVAL`] after the answer became due.
    fn ping_start_at(&self, ask_at: Option<Micros>) -> Option<Micros> {
        let since = self.silent_since()?;
        let least = since.add_micros(MIN_PING_INTERVAL);
        let share = |timeout| self.last_alive.add_micros(timeout / PING_START_DIVISOR).max(least);
        let may_ask = |at: &Micros| {
            self.next_ping_at().is_none_or(|next| next <= *at || next.since(*at) < MAX_ASK_TIME)
        };
        earliest([self.dead_peer_timeout.map(share), ask_at.filter(may_ask)])
    }

    /// When to ping a silent peer that reports a lost state: after `time` microseconds without a
    /// sign of life while an ACK or a pong is due, at least [`MIN_PING_INTERVAL`] and at most
    /// [`MAX_ASK_WAIT`]. While ACKs are due, each pong without an ACK doubles the wait.
    pub(crate) fn ask_at(&self, time: u64) -> Option<Micros> {
        let wait = time.clamp(MIN_PING_INTERVAL, MAX_ASK_WAIT);
        let for_acks = (wait << self.pongs.min(MAX_ASK_DOUBLINGS)).min(MAX_ASK_WAIT);
        let since = self.silent_since()?;
        let acks = self.in_flight.then_some(for_acks);
        let pong = self.ping.outstanding().map(|_| wait);
        earliest([acks, pong]).map(|wait| since.add_micros(wait))
    }

    /// The same for a window probe sent at `sent`, if no datagram arrived since.
    pub(crate) fn ask_after_probe(&self, sent: Micros, time: u64) -> Option<Micros> {
        (self.last_received <= sent).then(|| sent.add_micros(time.max(MIN_PING_INTERVAL)))
    }

    /// Since when an answer is due without a sign of life.
    fn silent_since(&self) -> Option<Micros> {
        self.unanswered_since.map(|since| since.max(self.last_alive))
    }

    /// The outstanding ping, while address validation is requested and not complete.
    fn unvalidated_ping(&self) -> Option<&Ping> {
        self.ping.outstanding().filter(|_| self.validation == PeerValidation::Requested)
    }

    /// When the next ping for validation, or for the capability, is due.
    fn validation_ping_at(&self) -> Option<Micros> {
        let again = self.validation == PeerValidation::Requested || self.asks_capability;
        let ping = self.ping.outstanding().filter(|_| again)?;
        Some(ping.sent.add_micros(MIN_PING_INTERVAL))
    }

    /// When pings begin, one every [`MIN_PING_INTERVAL`], if the latest datagrams may be replays:
    /// two thirds of the idle timeout after the latest sign of life.
    fn unproven_ping_at(&self) -> Option<Micros> {
        let idle = self.idle_timeout.filter(|_| self.is_unproven)?;
        let at = self.last_alive.add_micros(idle / 3 * 2);
        Some(self.next_ping_at().map_or(at, |next| next.max(at)))
    }

    /// When the idle timeout ends the connection. A peer asked for a sign of life has a third of
    /// the timeout to answer: this side may have been suspended when the ping was due.
    fn idle_end(&self) -> Option<Micros> {
        let idle = self.idle_timeout?;
        let asked = Some(self.asked).filter(|asked| *asked > self.last_alive);
        let answer = asked.map(|asked| asked.add_micros(idle / 3));
        Some(self.last_alive.add_micros(idle)).max(answer)
    }

    /// When the next keepalive ping is due: one period after the peer's latest datagram or our
    /// outstanding ping.
    fn keepalive_at(&self) -> Option<Micros> {
        let ping = self.ping.outstanding().map(|ping| ping.sent);
        let last = ping.map_or(self.last_received, |sent| sent.max(self.last_received));
        let at = last.add_micros(self.period?);
        Some(self.next_ping_at().map_or(at, |next| next.max(at)))
    }
}

/// Number and cookie of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PingId {
    pub(crate) sn: Sn,
    pub(crate) cookie: Ts,
}

impl PingId {
    /// The ping that `header` is, or copies number and cookie of.
    pub(crate) fn named_by(header: &Header) -> Self {
        Self { sn: header.sn, cookie: header.ts }
    }
}

/// A ping that was sent.
#[derive(Clone, Copy, Debug)]
struct Ping {
    id: PingId,
    /// The least `una` of a peer that had the connection's state at the first transmission.
    una: Sn,
    first_sent: Micros,
    sent: Micros,
    is_early: bool,
}

impl Ping {
    fn is_fresh(&self, now: Micros) -> bool {
        now.since(self.first_sent) <= COOKIE_LIFE
    }
}

/// Whether a ping is outstanding, and whether one is due.
#[derive(Clone, Copy, Debug)]
enum PingState {
    /// Entered at construction and on a pong; left when a ping is requested.
    Idle,
    /// A ping is due. Entered from `Idle` when a ping is requested, and from `OutstandingDue` on a
    /// pong; left when the ping is sent.
    Due,
    /// A ping is unanswered. Entered when a ping is sent; left on a pong, or when a ping is
    /// requested. A ping older than [`COOKIE_LIFE`] stays until the next one replaces it.
    Outstanding(Ping),
    /// A ping is unanswered and a ping is due: the same, or a new one if the first is older than
    /// [`COOKIE_LIFE`]. Entered from `Outstanding` when a ping is requested; left on a pong, or
    /// when the ping is sent.
    OutstandingDue(Ping),
}

impl PingState {
    fn outstanding(&self) -> Option<&Ping> {
        match self {
            Self::Idle | Self::Due => None,
            Self::Outstanding(ping) | Self::OutstandingDue(ping) => Some(ping),
        }
    }

    fn is_due(&self) -> bool {
        matches!(self, Self::Due | Self::OutstandingDue(_))
    }

    fn request(&mut self) {
        *self = match *self {
            Self::Idle | Self::Due => Self::Due,
            Self::Outstanding(ping) | Self::OutstandingDue(ping) => Self::OutstandingDue(ping),
        };
    }

    fn on_pong(&mut self) {
        *self = if self.is_due() { Self::Due } else { Self::Idle };
    }
}

/// How far before SND.UNA the number of a segment without data lies, segments.
pub(crate) const PING_DISTANCE: u32 = 1 << 30;
/// Set in a ping's `sn` if its sender has accepted the connection.
const ACCEPTED: u32 = 1;

/// How the connection was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// This side opened the connection. Entered at construction; left on [`Self::accept`].
    #[default]
    Active,
    /// This side accepted an initial segment from the peer's address. Left on a ping of a passive
    /// peer.
    Passive,
    /// Simultaneous passive open: both sides have accepted and neither has opened. Never left.
    BothPassive,
}

impl Role {
    /// This side accepts the connection.
    pub(crate) fn accept(&mut self) {
        if *self == Self::Active {
            *self = Self::Passive;
        }
    }

    /// A ping with this number arrived from an unvalidated peer. Returns whether both sides are
    /// passive.
    pub(crate) fn on_ping(&mut self, sn: Sn) -> bool {
        if *self == Self::Passive && !is_of_opener(sn) {
            *self = Self::BothPassive;
        }
        *self == Self::BothPassive
    }

    /// The number of a ping; `una` is the least that its pong has to acknowledge. Never 0, see [`dataless_sn`].
    pub(crate) fn ping_sn(self, una: Sn) -> Sn {
        let Sn(sn) = dataless_sn(una);
        match (self, sn & !ACCEPTED) {
            (Self::Active, 0) => Sn(!ACCEPTED),
            (Self::Active, even) => Sn(even),
            (Self::Passive | Self::BothPassive, even) => Sn(even | ACCEPTED),
        }
    }
}

/// Whether a ping with this number comes from the side that opened the connection.
pub(crate) fn is_of_opener(sn: Sn) -> bool {
    sn.0 & ACCEPTED == 0
}

/// The ACK of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pong {
    /// The pong's `una` is below the least one of the ping: the peer has lost the state of the connection.
    pub(crate) state_lost: bool,
    /// RTT sample, microseconds; `None` if the ping was retransmitted (Karn's algorithm, RFC 6298
    /// 3).
    pub(crate) rtt: Option<u64>,
    /// The ping asked a silent peer for the state of the connection, earlier than the dead-peer
    /// timeout requires.
    pub(crate) is_early: bool,
}

/// Sequence number of a segment without data: 2^30 segments before `una`, outside every window.
/// Never 0: other implementations take number 0 for an initial segment and replace the session of
/// that address.
pub(crate) fn dataless_sn(una: Sn) -> Sn {
    match una.back(PING_DISTANCE) {
        Sn(0) => Sn(u32::MAX),
        sn => sn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeepaliveInterval;

    const SECOND: u64 = 1_000_000;

    fn keepalive() -> Keepalive {
        Keepalive::new(&KcpConfig::default(), Micros(0), 7)
    }

    #[test]
    fn cookies_are_upper_halves_of_splitmix64_before_its_last_step() {
        let mut keepalive = Keepalive::new(&KcpConfig::default(), Micros(0), 1_234_567);
        // Numbers of the reference implementation (Vigna, 2015) with this seed.
        let numbers: [u64; 5] = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let expected = numbers.map(|n| ((n ^ (n >> 31) ^ (n >> 62)) >> 32) as u32);
        assert_eq!(numbers.map(|_| keepalive.next_cookie().0), expected);
    }

    #[test]
    fn ping_during_validation_is_prompted_by_duplicates_each_100_ms() {
        let mut keepalive = keepalive();
        keepalive.start_validation(Micros(0));
        let ping = keepalive.poll_ping(Micros(0), Sn(0), Role::Active).unwrap();
        let mut pings = 0;
        for ms in 0..1_000 {
            let now = Micros(ms * 1_000);
            keepalive.on_duplicate_received(now);
            pings += usize::from(keepalive.poll_ping(now, Sn(0), Role::Active).is_some());
        }
        assert_eq!(pings, 9);
        keepalive.on_pong(Micros(SECOND), ping, Sn(0)).unwrap();
        keepalive.on_duplicate_received(Micros(2 * SECOND));
        assert!(!keepalive.is_due(), "the peer is validated");
    }

    /// Rule: W-19.
    #[test]
    fn keepalive_of_an_idle_connection_pings_each_period_and_takes_the_pong() {
        let mut keepalive = keepalive();
        assert_eq!(keepalive.deadline(true, None), Some(Micros(15 * SECOND)));
        keepalive.handle_timeout(Micros(15 * SECOND), true, None).unwrap();
        let ping = keepalive.poll_ping(Micros(15 * SECOND), Sn(5), Role::Active).unwrap();
        assert_eq!(ping.sn, Sn(4_u32.wrapping_sub(1 << 30)));
        let other = PingId { cookie: Ts(ping.cookie.0 ^ 1), ..ping };
        assert_eq!(keepalive.on_pong(Micros(16 * SECOND), other, Sn(5)), None);
        let pong = keepalive.on_pong(Micros(16 * SECOND), ping, Sn(5));
        assert_eq!(pong.map(|pong| pong.state_lost), Some(false));
        keepalive.on_received(Micros(16 * SECOND), true);
        assert_eq!(keepalive.deadline(true, None), Some(Micros(31 * SECOND)));
    }

    #[test]
    fn deferred_keepalive_leaves_time_for_the_pong_before_the_idle_timeout() {
        // Milliseconds: keepalive, idle timeout, and the deferred keepalive of the active and of
        // the passive side.
        for (period, idle, active, passive) in [
            (15_000, Some(60_000), 15_937, 30_000),
            (15_000, None, 15_937, 30_000),
            (29_000, Some(60_000), 30_812, 30_812),
            (55_000, Some(60_000), 55_000, 55_000),
        ] {
            let mut config = KcpConfig::default();
            let keepalive = KeepaliveInterval::After(Duration::from_millis(period));
            (config.keepalive, config.idle_timeout) = (keepalive, idle.map(Duration::from_millis));
            let millis = |defer: fn(&mut Keepalive)| {
                let mut keepalive = Keepalive::new(&config, Micros(0), 7);
                defer(&mut keepalive);
                keepalive.period.unwrap() / 1_000
            };
            assert_eq!(millis(Keepalive::defer), active);
            assert_eq!(millis(Keepalive::defer_by_a_period), passive);
        }
    }

    #[test]
    fn ping_received_at_the_time_of_the_data_before_it_draws_a_ping_after_the_idle_timeout() {
        let mut keepalive = keepalive();
        keepalive.on_received(Micros(SECOND), true);
        keepalive.on_received(Micros(SECOND), false);
        keepalive.handle_timeout(Micros(100 * SECOND), true, None).unwrap();
        assert!(keepalive.is_due());
        let ping = keepalive.poll_ping(Micros(100 * SECOND), Sn(0), Role::Active).unwrap();
        keepalive.on_pong(Micros(101 * SECOND), ping, Sn(0)).unwrap();
        keepalive.on_received(Micros(101 * SECOND), true);
        assert_eq!(keepalive.handle_timeout(Micros(150 * SECOND), true, None), Ok(()));
        let error = keepalive.handle_timeout(Micros(250 * SECOND), true, None);
        assert_eq!(error, Err(ConnectionError::IdleTimeout), "the latest datagram was new");
    }

    #[test]
    fn answered_pings_are_a_second_apart_as_others_are() {
        let mut keepalive = keepalive();
        let mut pings = 0;
        for ms in 0..10_000 {
            let now = Micros(ms * 1_000);
            keepalive.request_ping(now);
            if let Some(ping) = keepalive.poll_ping(now, Sn(0), Role::Active) {
                pings += 1;
                keepalive.on_pong(now, ping, Sn(0)).unwrap();
            }
        }
        assert_eq!(pings, 10);
    }

    /// Rule: W-25.
    #[test]
    fn pong_after_the_lifetime_of_its_cookie_is_ignored() {
        let mut keepalive = keepalive();
        keepalive.request_ping(Micros(0));
        let ping = keepalive.poll_ping(Micros(0), Sn(5), Role::Active).unwrap();
        assert_eq!(keepalive.on_pong(Micros(11 * SECOND), ping, Sn(5)), None);
    }

    /// Rule: W-25.
    #[test]
    fn ping_is_retransmitted_unchanged_while_its_cookie_lives() {
        let mut keepalive = keepalive();
        let mut ping = |second: u32| {
            let now = Micros(u64::from(second) * SECOND);
            keepalive.request_ping(now);
            keepalive.poll_ping(now, Sn(5 + second), Role::Active).unwrap()
        };
        let first = ping(0);
        assert_eq!((ping(1), ping(10)), (first, first));
        assert_ne!(ping(11), first);
    }

    #[test]
    fn latest_two_pings_are_known_however_old() {
        let mut keepalive = keepalive();
        let mut ping = |second: u64| {
            let now = Micros(second * SECOND);
            keepalive.request_ping(now);
            let ping = keepalive.poll_ping(now, Sn(5), Role::Active).unwrap();
            (ping, keepalive.is_ping(ping), keepalive.is_recent_ping(now, ping))
        };
        let pings = [ping(0), ping(11), ping(22)].map(|(ping, known, recent)| {
            assert!(known && recent);
            ping
        });
        assert_eq!(pings.map(|ping| keepalive.is_ping(ping)), [false, true, true]);
        let now = Micros(22 * SECOND);
        let recent = pings.map(|ping| keepalive.is_recent_ping(now, ping));
        assert_eq!(recent, [false, false, true]);
    }

    /// Rule: W-24.
    #[test]
    fn pong_is_compared_with_what_was_acknowledged_when_the_ping_left() {
        for (una, state_lost) in [(4, true), (5, false), (9, false)] {
            let mut keepalive = keepalive();
            keepalive.request_ping(Micros(0));
            let ping = keepalive.poll_ping(Micros(0), Sn(5), Role::Active).unwrap();
            let pong = keepalive.on_pong(Micros(SECOND), ping, Sn(una));
            assert_eq!(pong.map(|pong| pong.state_lost), Some(state_lost));
        }
    }

    #[test]
    fn ping_requested_again_while_outstanding_survives_the_pong() {
        let mut keepalive = keepalive();
        keepalive.request_ping(Micros(0));
        let ping = keepalive.poll_ping(Micros(0), Sn(5), Role::Active).unwrap();
        keepalive.request_ping(Micros(SECOND));
        keepalive.on_pong(Micros(SECOND), ping, Sn(5)).unwrap();
        assert!(keepalive.is_due());
        assert!(keepalive.is_recent_ping(Micros(SECOND), ping), "a RST may still name it");
        assert_ne!(keepalive.poll_ping(Micros(SECOND), Sn(5), Role::Active), Some(ping));
    }

    /// Rule: W-29.
    #[test]
    fn dead_peer_is_pinged_each_second_and_given_up_after_the_timeout() {
        let mut config = KcpConfig::default();
        (config.keepalive, config.idle_timeout) = (KeepaliveInterval::Never, None);
        let mut keepalive = Keepalive::new(&config, Micros(0), 7);
        assert_eq!(keepalive.deadline(true, None), None, "nothing is outstanding");
        keepalive.update_outstanding(Micros(3_600 * SECOND), true, true);
        let mut now;
        let mut pings = 0;
        let error = loop {
            now = keepalive.deadline(true, None).unwrap();
            match keepalive.handle_timeout(now, true, None) {
                Err(error) => break error,
                Ok(()) => {
                    pings += u32::from(keepalive.poll_ping(now, Sn(0), Role::Active).is_some())
                }
            }
        };
        assert_eq!(error, ConnectionError::DeadPeer(TimeoutCause::Nothing));
        assert_eq!((now, pings), (Micros(3_660 * SECOND), 59));
    }

    /// Requests and answers a ping at each second of `range`.
    fn pongs(keepalive: &mut Keepalive, range: std::ops::Range<u64>) {
        for now in range.map(|second| Micros(second * SECOND)) {
            keepalive.request_ping(now);
            let ping = keepalive.poll_ping(now, Sn(0), Role::Active).unwrap();
            keepalive.on_pong(now, ping, Sn(0)).unwrap();
            keepalive.on_received(now, true);
        }
    }

    #[test]
    fn peer_without_a_dead_peer_timeout_is_asked_for_a_minute() {
        let config = KcpConfig {
            keepalive: KeepaliveInterval::Never,
            idle_timeout: None,
            dead_peer_timeout: None,
            ..KcpConfig::default()
        };
        let mut keepalive = Keepalive::new(&config, Micros(0), 7);
        keepalive.update_outstanding(Micros(0), true, true);
        let mut pings = 0;
        while let Some(now) = keepalive.deadline(true, keepalive.ask_at(SECOND)) {
            keepalive.handle_timeout(now, true, keepalive.ask_at(SECOND)).unwrap();
            pings += u32::from(keepalive.poll_ping(now, Sn(0), Role::Active).is_some());
            assert!(now <= Micros(61 * SECOND) && pings <= 61, "{now:?}, {pings} pings");
        }
        assert_eq!(pings, 60);
    }

    #[test]
    fn ping_is_early_only_if_its_latest_transmission_was() {
        let mut keepalive = keepalive();
        keepalive.update_outstanding(Micros(0), true, true);
        for (now, is_early) in [(1, true), (5, true), (25, false), (26, false)] {
            let now = Micros(now * SECOND);
            keepalive.handle_timeout(now, true, keepalive.ask_at(SECOND)).unwrap();
            keepalive.poll_ping(now, Sn(0), Role::Active).unwrap();
            assert_eq!(keepalive.ping.outstanding().unwrap().is_early, is_early, "{now:?}");
        }
        // The same cookie, first early and then at the regular time.
        let mut keepalive = self::keepalive();
        keepalive.update_outstanding(Micros(0), true, true);
        for (now, is_early) in [(15, true), (19, true), (21, false)] {
            let now = Micros(now * SECOND);
            keepalive.handle_timeout(now, true, keepalive.ask_at(SECOND)).unwrap();
            keepalive.poll_ping(now, Sn(0), Role::Active).unwrap();
            let ping = keepalive.ping.outstanding().unwrap();
            assert_eq!((ping.is_early, ping.first_sent), (is_early, Micros(15 * SECOND)));
        }
    }

    #[test]
    fn pongs_without_acks_double_the_wait_up_to_20_seconds() {
        for (count, wait) in [(1, 2), (2, 4), (4, 16), (5, 20), (60, 20)] {
            let mut keepalive = keepalive();
            keepalive.update_outstanding(Micros(0), true, true);
            pongs(&mut keepalive, 1..1 + count);
            let at = keepalive.ask_at(SECOND).unwrap();
            assert_eq!(at, Micros((count + wait) * SECOND), "{count} pongs");
            keepalive.on_acked();
            assert_eq!(keepalive.ask_at(SECOND), Some(Micros((count + 1) * SECOND)));
        }
    }

    #[test]
    fn pongs_behind_a_closed_window_do_not_delay_the_next_ping() {
        let mut keepalive = keepalive();
        keepalive.update_outstanding(Micros(0), true, false);
        pongs(&mut keepalive, 1..20);
        assert_eq!(keepalive.ask_at(SECOND), None, "window probes ask");
        for (time, wait) in [(0, 1), (2 * SECOND, 2)] {
            let at = keepalive.ask_after_probe(Micros(20 * SECOND), time);
            assert_eq!(at, Some(Micros((20 + wait) * SECOND)));
        }
        keepalive.request_ping(Micros(21 * SECOND));
        keepalive.poll_ping(Micros(21 * SECOND), Sn(0), Role::Active).unwrap();
        assert_eq!(keepalive.ask_at(SECOND), Some(Micros(20 * SECOND)), "no pong for it");
    }

    #[test]
    fn data_that_leaves_does_not_extend_the_dead_peer_timeout_of_a_ping() {
        let mut keepalive = keepalive();
        keepalive.request_ping(Micros(0));
        keepalive.poll_ping(Micros(0), Sn(0), Role::Active).unwrap();
        keepalive.update_outstanding(Micros(0), false, false);
        keepalive.update_outstanding(Micros(50 * SECOND), true, true);
        let dead = ConnectionError::DeadPeer(TimeoutCause::Nothing);
        assert_eq!(keepalive.handle_timeout(Micros(60 * SECOND), true, None), Err(dead));
    }

    /// Rules: W-19, W-20.
    #[test]
    fn role_is_in_the_lowest_bit_of_a_ping_and_its_number_is_never_zero() {
        for una in [0, 1, 2, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, u32::MAX] {
            for (role, bit) in [(Role::Active, 0), (Role::Passive, 1), (Role::BothPassive, 1)] {
                let Sn(sn) = role.ping_sn(Sn(una));
                assert!(sn != 0 && sn & 1 == bit, "{una}: {sn}");
                let behind = una.wrapping_sub(sn);
                assert!((1 << 30..=(1 << 30) + 4).contains(&(behind + 1)), "{una}: {behind}");
            }
        }
    }

    #[test]
    fn role_is_both_passive_only_after_a_ping_of_a_passive_peer() {
        let (mut active, mut passive) = (Role::Active, Role::Passive);
        assert!(!active.on_ping(Sn(1)) && !passive.on_ping(Sn(2)) && passive.on_ping(Sn(3)));
        passive.accept();
        assert!(passive == Role::BothPassive && passive.on_ping(Sn(2)));
        active.accept();
        assert!(active.on_ping(Sn(5)));
    }

    /// Rule: W-21.
    #[test]
    fn cookies_differ_in_every_bit_between_pings_and_connections() {
        let cookies = |seed| {
            let mut keepalive = Keepalive::new(&KcpConfig::default(), Micros(0), seed);
            (0..1_000).map(|_| keepalive.next_cookie().0).collect::<Vec<_>>()
        };
        let (one, other) = (cookies(7), cookies(8));
        let next: Vec<_> = one.windows(2).map(|pair| pair[0] ^ pair[1]).collect();
        let same: Vec<_> = one.iter().zip(&other).map(|(one, other)| one ^ other).collect();
        for changed in [next, same] {
            let flips = |bit: u32| changed.iter().filter(|change| **change >> bit & 1 == 1).count();
            assert!((0..32).map(flips).all(|flips| (400..600).contains(&flips)));
        }
    }
}
