//! The paths of a connection with several (draft-ietf-quic-multipath): one carries the data, the others are kept
//! warm by pings and take over when it falls silent.
//!
//! Each side chooses the path of its own data. ACKs leave on the path on which data came last, since the peer
//! listens there, and a ping is answered on the path on which it came. So a path that is dead in one direction is
//! dead for whoever sends data over it, and nobody waits for it.

use crate::core::clock::Micros;
use crate::core::keepalive::{COOKIE_LIFE, PingId};
use crate::core::recovery::rtt::RttEstimator;
use crate::core::send::path::SendPath;
use crate::util::earliest;

/// Most paths of a connection.
pub(crate) const MAX_PATHS: usize = 4;
/// Interval of pings on a path without data, while the connection is in use, microseconds.
const WARM_INTERVAL: u64 = 5_000_000;
/// The same while it is not: the default interval of keepalive.
const IDLE_INTERVAL: u64 = 15_000_000;
/// Interval of pings that a silent path answers again, microseconds.
const RETURN_INTERVAL: u64 = 100_000;
/// Least wait for a pong, microseconds.
const MIN_PONG_WAIT: u64 = 100_000;
/// Longest interval of pings on a silent path, microseconds.
const MAX_SILENT_INTERVAL: u64 = 2_000_000;
/// Unanswered pings after which a path is silent.
const MAX_PINGS: u8 = 3;
/// Pongs in a row after which a silent path may carry data again. They double with each silence, up to the
/// second number, and halve after a minute without one.
const PONGS_AFTER_SILENCE: u8 = 3;
const MAX_PONGS_AFTER_SILENCE: u8 = 48;
const FORGIVEN_AFTER: u64 = 60_000_000;
/// A path is better if its smoothed RTT is this much shorter, microseconds, and by a quarter.
const BETTER_BY: u64 = 5_000;
/// Pings of the peer that wait for their answer.
const MAX_ANSWERS: usize = 4;

/// A path of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub(crate) u8);

impl PathId {
    /// The path on which the connection opened.
    pub const FIRST: Self = Self(0);

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// No ping was answered yet. Entered when the path is added; left when a ping is answered.
    Validating,
    /// The peer answers. Entered on a pong; left when an answer is overdue.
    Usable,
    /// The peer does not answer. Entered when an answer is overdue; left after pongs in a row.
    Silent,
}

/// A ping that was sent on a path.
#[derive(Clone, Copy, Debug)]
struct SentPing {
    id: PingId,
    first_sent: Micros,
    sent: Micros,
    /// Transmissions, 1 at least.
    count: u8,
}

#[derive(Debug)]
struct Entry {
    id: PathId,
    state: PathState,
    ping: Option<SentPing>,
    /// When a ping leaves. It leaves again then if it is unanswered.
    next_ping: Micros,
    /// Pongs in a row since the path was silent.
    pongs: u8,
    /// Pongs in a row that make a silent path usable.
    needed: u8,
    silent_since: Micros,
    /// What the sender knows of the path; `None` while it is the active one.
    send: Option<Box<SendPath>>,
}

/// A change of the paths that the connection acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// Data leaves on this path from now on. What is in flight leaves again if the last one fell silent.
    Switch {
        to: PathId,
        resend: bool,
    },
}

/// The paths of one connection.
#[derive(Debug)]
pub(crate) struct PathSet {
    entries: Vec<Entry>,
    active: PathId,
    /// The path on which data came last.
    ack_path: PathId,
    /// Pings of the peer, and the path of each.
    answers: Vec<(PathId, PingId)>,
    /// Whether this side announces further paths: it has opened the connection.
    announces: bool,
    /// When data last left or arrived.
    last_used: Micros,
    /// How often data has changed its path.
    switches: u64,
}

impl PathSet {
    /// The set with the path on which the connection opened.
    pub(crate) fn new(now: Micros, announces: bool) -> Self {
        let mut set = Self {
            entries: Vec::new(),
            active: PathId::FIRST,
            ack_path: PathId::FIRST,
            answers: Vec::new(),
            announces,
            last_used: now,
            switches: 0,
        };
        set.push(PathId::FIRST, now, PathState::Usable, None);
        set
    }

    fn push(&mut self, id: PathId, now: Micros, state: PathState, send: Option<Box<SendPath>>) {
        let (ping, next_ping, pongs, silent_since) = (None, now, 0, now);
        let needed = PONGS_AFTER_SILENCE;
        self.entries.push(Entry { id, state, ping, next_ping, pongs, needed, silent_since, send });
    }

    /// Adds a path that has to be validated. `None` if there are [`MAX_PATHS`].
    pub(crate) fn add(&mut self, now: Micros, send: SendPath) -> Option<PathId> {
        let free = |number: &u8| self.entries.iter().all(|entry| entry.id.0 != *number);
        let id = PathId((1..MAX_PATHS as u8).find(free)?);
        self.push(id, now, PathState::Validating, Some(Box::new(send)));
        Some(id)
    }

    /// Adds a path of the peer, which has answered a PATH_CHALLENGE on it, or replaces it. `None` if there are
    /// [`MAX_PATHS`].
    pub(crate) fn add_validated(&mut self, now: Micros, id: PathId, send: SendPath) -> Option<()> {
        if id == PathId::FIRST || usize::from(id.0) >= MAX_PATHS {
            return None;
        }
        if id == self.active {
            return Some(());
        }
        self.entries.retain(|entry| entry.id != id);
        self.push(id, now, PathState::Usable, Some(Box::new(send)));
        Some(())
    }

    /// What follows if a path is removed; `None` if it is unknown or no other one was ever usable. Call
    /// [`Self::forget`] afterwards.
    pub(crate) fn remove(&mut self, now: Micros, id: PathId) -> Option<Change> {
        let tried = |entry: &&Entry| entry.state != PathState::Validating;
        let mut others = self.entries.iter().filter(|entry| entry.id != id).filter(tried);
        let other = others.next()?.id;
        self.entry(id)?;
        if id != self.active {
            return Some(Change::None);
        }
        Some(match self.leave_active(now) {
            Change::None => Change::Switch { to: other, resend: true },
            change => change,
        })
    }

    /// Removes the entry of a path that carries no data.
    pub(crate) fn forget(&mut self, id: PathId) {
        self.entries.retain(|entry| entry.id != id);
        self.answers.retain(|(path, _)| *path != id);
        if self.ack_path == id {
            self.ack_path = self.active;
        }
    }

    pub(crate) fn active(&self) -> PathId {
        self.active
    }

    /// Whether ACKs leave on another path than data.
    pub(crate) fn acks_leave_elsewhere(&self) -> Option<PathId> {
        (self.ack_path != self.active).then_some(self.ack_path)
    }

    fn entry(&self, id: PathId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    fn entry_mut(&mut self, id: PathId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// State and smoothed RTT of each path, microseconds. `rtt`: of the active path.
    pub(crate) fn states<'a>(
        &'a self,
        rtt: &'a RttEstimator,
    ) -> impl Iterator<Item = (PathId, PathState, Option<u64>)> + 'a {
        self.entries.iter().map(move |entry| {
            let rtt = entry.send.as_deref().map_or(rtt, |send| &send.rtt);
            (entry.id, entry.state, rtt.srtt())
        })
    }
}

/// Events.
impl PathSet {
    /// Data of the peer arrived on `path`.
    pub(crate) fn on_data(&mut self, now: Micros, path: PathId) {
        self.ack_path = path;
        self.on_used(now);
    }

    /// Data leaves or arrives. After a pause the pings become frequent again.
    pub(crate) fn on_used(&mut self, now: Micros) {
        if now.since(self.last_used) >= WARM_INTERVAL {
            let latest = now.add_micros(WARM_INTERVAL);
            self.entries.iter_mut().for_each(|entry| entry.next_ping = entry.next_ping.min(latest));
        }
        self.last_used = now;
    }

    /// A datagram with something new arrived on `path`, which needs no ping for a while. The side that announces
    /// paths pings first.
    pub(crate) fn on_arrival(&mut self, now: Micros, path: PathId) {
        let interval = if self.announces { self.interval(now) } else { self.interval(now) / 2 * 3 };
        let Some(entry) = self.entry_mut(path) else { return };
        if entry.state == PathState::Usable && entry.ping.is_none() {
            entry.next_ping = now.add_micros(interval);
        }
    }

    /// Interval of pings on a usable path.
    fn interval(&self, now: Micros) -> u64 {
        if now.since(self.last_used) < WARM_INTERVAL { WARM_INTERVAL } else { IDLE_INTERVAL }
    }

    /// A ping of the peer arrived on `path`.
    pub(crate) fn on_ping(&mut self, now: Micros, path: PathId, ping: PingId) {
        if let Some(entry) = self.entry_mut(path)
            && entry.state == PathState::Validating
        {
            // The peer's PATH_CHALLENGE: a ping after its answer is answered too.
            entry.next_ping = now;
        }
        self.answers.retain(|known| *known != (path, ping));
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.remove(0);
        }
        self.answers.push((path, ping));
    }

    /// Whether this side has sent the ping, on any path.
    pub(crate) fn has_sent(&self, ping: PingId) -> bool {
        self.entries.iter().any(|entry| entry.ping.is_some_and(|sent| sent.id == ping))
    }

    /// An ACK arrived on `path` that may be a pong. Returns whether it is. `rtt`: of the active path.
    pub(crate) fn on_pong(
        &mut self,
        now: Micros,
        path: PathId,
        ping: PingId,
        rtt: &mut RttEstimator,
    ) -> bool {
        let interval = self.interval(now);
        let Some(entry) = self.entry_mut(path) else { return false };
        let Some(sent) = entry.ping.take_if(|sent| sent.id == ping) else { return false };
        if sent.count == 1 {
            let rtt = entry.send.as_deref_mut().map_or(rtt, |send| &mut send.rtt);
            rtt.on_sample(now, now.since(sent.sent));
        }
        entry.pongs = entry.pongs.saturating_add(1);
        let is_back = entry.state != PathState::Silent || entry.pongs >= entry.needed;
        if is_back {
            entry.state = PathState::Usable;
        }
        if now.since(entry.silent_since) >= FORGIVEN_AFTER && entry.needed > PONGS_AFTER_SILENCE {
            (entry.needed, entry.silent_since) = (entry.needed / 2, now);
        }
        let is_silent = entry.state == PathState::Silent;
        entry.next_ping = now.add_micros(if is_silent { RETURN_INTERVAL } else { interval });
        true
    }

    /// The path that is better than the active one, if any. `rtt`: of the active path.
    pub(crate) fn better(&self, rtt: &RttEstimator) -> Option<PathId> {
        let srtt = |entry: &Entry| entry.send.as_deref().and_then(|send| send.rtt.srtt());
        let usable = self.entries.iter().filter(|entry| entry.state == PathState::Usable);
        let best = usable.filter_map(|entry| Some((srtt(entry)?, entry.id))).min()?;
        let active = self.entry(self.active)?;
        let is_better = active.state != PathState::Usable
            || rtt.srtt().is_some_and(|srtt| best.0 / 4 * 5 + BETTER_BY < srtt);
        is_better.then_some(best.1)
    }

    /// The active path is silent: the best of the usable paths takes over.
    pub(crate) fn leave_active(&mut self, now: Micros) -> Change {
        let active = self.active;
        if let Some(entry) = self.entry_mut(active) {
            entry.on_silent(now);
        }
        let srtt = |entry: &Entry| {
            entry.send.as_deref().and_then(|send| send.rtt.srtt()).unwrap_or(u64::MAX)
        };
        let usable = self.entries.iter();
        let usable = usable.filter(|entry| entry.id != active && entry.state == PathState::Usable);
        let best = usable.min_by_key(|entry| srtt(entry)).map(|entry| entry.id);
        best.map_or(Change::None, |to| Change::Switch { to, resend: true })
    }

    /// Whether another path could take over.
    pub(crate) fn has_other(&self) -> bool {
        self.entries.iter().any(|entry| entry.id != self.active && entry.state == PathState::Usable)
    }

    /// Makes `to` the active path: gives `swap` its state, which then holds the state of the last one.
    pub(crate) fn switch(&mut self, to: PathId, swap: impl FnOnce(&mut SendPath)) {
        let Some(mut send) = self.entry_mut(to).and_then(|entry| entry.send.take()) else { return };
        swap(&mut send);
        let last = self.active;
        if let Some(entry) = self.entry_mut(last) {
            entry.send = Some(send);
        }
        if self.ack_path == last {
            // Until data comes on another path, ACKs leave with the data.
            self.ack_path = to;
        }
        self.active = to;
        self.switches += 1;
    }
}

impl Entry {
    fn on_silent(&mut self, now: Micros) {
        if self.state != PathState::Silent {
            self.needed = match now.since(self.silent_since) < FORGIVEN_AFTER {
                true => self.needed.saturating_mul(2).min(MAX_PONGS_AFTER_SILENCE),
                false => self.needed,
            };
        }
        (self.state, self.pongs, self.silent_since) = (PathState::Silent, 0, now);
        self.next_ping = now;
    }

    fn rto(&self, rtt: &RttEstimator) -> u64 {
        self.send.as_deref().map_or(rtt, |send| &send.rtt).rto()
    }
}

/// A segment for a path that carries no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathSegment {
    /// Answers a ping of the peer.
    Answer(PingId),
    /// A ping; `announces`: a PATH segment precedes it, since a NAT may have changed the address.
    Ping { ping: PingId, announces: bool },
}

/// What leaves on the paths.
impl PathSet {
    /// The next segment that is due, and its path. `new`: number of a new ping, and its cookie. `rtt`: of the
    /// active path.
    pub(crate) fn poll(
        &mut self,
        now: Micros,
        rtt: &RttEstimator,
        new: impl FnOnce() -> PingId,
    ) -> Option<(PathId, PathSegment)> {
        if !self.answers.is_empty() {
            let (path, ping) = self.answers.remove(0);
            return Some((path, PathSegment::Answer(ping)));
        }
        let announces = self.announces;
        let entry = self.entries.iter_mut().find(|entry| entry.next_ping <= now)?;
        let wait = (2 * entry.rto(rtt)).max(MIN_PONG_WAIT);
        let fresh = entry.ping.filter(|ping| now.since(ping.first_sent) < COOKIE_LIFE);
        let mut sent =
            fresh.unwrap_or_else(|| SentPing { id: new(), first_sent: now, sent: now, count: 0 });
        sent.count = sent.count.saturating_add(1);
        sent.sent = now;
        if sent.count > 1 {
            entry.pongs = 0;
        }
        let interval = match entry.state {
            PathState::Usable => wait,
            PathState::Silent | PathState::Validating => {
                (wait << sent.count.min(5).saturating_sub(1)).min(MAX_SILENT_INTERVAL.max(wait))
            }
        };
        entry.ping = Some(sent);
        entry.next_ping = now.add_micros(interval);
        Some((entry.id, PathSegment::Ping { ping: sent.id, announces }))
    }

    /// The path of what [`Self::poll`] returns at `now`.
    pub(crate) fn next(&self, now: Micros) -> Option<PathId> {
        let answer = self.answers.first().map(|(path, _)| *path);
        let ping =
            || self.entries.iter().find(|entry| entry.next_ping <= now).map(|entry| entry.id);
        answer.or_else(ping)
    }

    /// A path has to be tried again at once: the network has changed.
    pub(crate) fn ping_all(&mut self, now: Micros) {
        self.entries.iter_mut().for_each(|entry| entry.next_ping = now);
    }

    /// The system sends nothing on the path. Returns what follows.
    pub(crate) fn on_lost(&mut self, now: Micros, id: PathId) -> Change {
        if id == self.active {
            return self.leave_active(now);
        }
        if let Some(entry) = self.entry_mut(id) {
            entry.on_silent(now);
            entry.next_ping = now.add_micros(MAX_SILENT_INTERVAL);
        }
        Change::None
    }

    /// When [`Self::poll`] has something to send next.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        let pings = self.entries.iter().map(|entry| entry.next_ping).min();
        let answers = (!self.answers.is_empty()).then_some(Micros(0));
        earliest([pings, answers])
    }

    /// Handles pings that stay unanswered: after [`MAX_PINGS`] the path is silent.
    pub(crate) fn handle_timeout(&mut self, now: Micros) -> Change {
        for entry in &mut self.entries {
            let is_unanswered =
                entry.ping.is_some_and(|ping| ping.count >= MAX_PINGS && now >= entry.next_ping);
            if is_unanswered && entry.state == PathState::Usable {
                if entry.id == self.active {
                    return self.leave_active(now);
                }
                entry.on_silent(now);
            }
        }
        Change::None
    }
}
