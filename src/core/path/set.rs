//! The paths of a connection with several (draft-ietf-quic-multipath): one carries the data, the others are kept
//! warm by pings and take over when it falls silent. If a transfer uses all of them, the active one is the path of
//! the next datagram.
//!
//! Each side chooses the path of its own data. ACKs leave on the path on which data came last, since the peer
//! listens there, and a ping is answered on the path on which it came. If a path is dead in either direction, the
//! sender of data on it gets no answer, and leaves it.

use std::mem;

use crate::core::clock::Micros;
use crate::core::keepalive::{COOKIE_LIFE, PingId};
use crate::core::path::mtu::MtuDiscovery;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent::{MAX_SLOTS, Slot};
use crate::core::recv::acks::PendingAcks;
use crate::core::send::path::SendPath;
use crate::util::earliest;

/// Most paths of a connection.
pub(crate) const MAX_PATHS: u8 = MAX_SLOTS;
/// Interval of pings on a path without data, while the connection is in use, microseconds.
const WARM_INTERVAL: u64 = 5_000_000;
/// The same while it is not: the default interval of keepalive.
const IDLE_INTERVAL: u64 = 15_000_000;
/// Interval of pings that a silent path answers again, microseconds.
const RETURN_INTERVAL: u64 = 100_000;
/// Least wait for a pong, microseconds.
const MIN_PONG_WAIT: u64 = 100_000;
/// Longest wait once a ping is unanswered, microseconds: the RTO of a path without data may be out of date.
const MAX_REPEATED_WAIT: u64 = 250_000;
/// Longest wait for a pong because the latest one took long, microseconds.
const MAX_PATIENCE: u64 = 2_000_000;
/// Divisor of the time that a path has been silent: the interval of its pings.
const SILENCE_DIVISOR: u64 = 8;
/// A ping that never leaves.
const NEVER: Micros = Micros(u64::MAX);
/// Unanswered pings after which a path is silent: at 10 % loss both ways, three in a row are lost too often.
const MAX_PINGS: u8 = 5;
/// Transmissions of a ping that show that one was not answered in time.
const UNANSWERED: u8 = 2;
/// Pongs after which a silent path may carry data again; a lost one takes [`LOST_PONG`] of them, so that a path
/// that loses 10 % each way still returns. The number doubles with each silence, up to the second one, and halves
/// after a minute without silence.
const PONGS_AFTER_SILENCE: u8 = 3;
const MAX_PONGS_AFTER_SILENCE: u8 = 48;
const LOST_PONG: u8 = 2;
const FORGIVEN_AFTER: u64 = 60_000_000;
/// A path is better if its smoothed RTT is this much shorter, microseconds, and by a quarter.
const BETTER_BY: u64 = 5_000;
/// Wait for the answer to a copy beyond its round trip, microseconds.
const COPY_MARGIN: u64 = 2_000;
/// Pings of the peer that wait for their answer.
const MAX_ANSWERS: usize = 4;

/// A path of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
#[non_exhaustive]
pub enum PathState {
    /// No ping was answered yet. Entered when the path is added; left when a ping is answered.
    Validating,
    /// The peer answers. Entered on a pong; left when five pings in a row are unanswered.
    Usable,
    /// The peer does not answer. Entered when five pings in a row are unanswered, or when an answer is overdue
    /// while transfers use all paths; left after several pongs, or after one while data leaves on a silent path.
    Silent,
}

/// A ping that was sent on a path.
#[derive(Clone, Copy, Debug)]
struct SentPing {
    id: PingId,
    first_sent: Micros,
    sent: Micros,
}

#[derive(Debug)]
struct Entry {
    id: PathId,
    state: PathState,
    /// The unanswered ping.
    ping: Option<SentPing>,
    /// The latest ping and its first transmission, answered or not.
    last_ping: Option<(PingId, Micros)>,
    /// Unanswered transmissions in a row.
    unanswered: u8,
    /// The answer to data was overdue. Entered then, and a ping leaves; left when it is answered.
    is_doubted: bool,
    /// How often the path fell silent.
    silences: u32,
    /// When a ping leaves. It leaves again then if it is unanswered.
    next_ping: Micros,
    /// Least wait for the next pong, microseconds: the latest one answered a ping that had left again, so its
    /// round trip is unknown, and may be longer than before (Karn's algorithm). 0 otherwise.
    patience: u64,
    /// Pongs since the path was silent; a lost one takes [`LOST_PONG`] of them.
    pongs: u8,
    /// Pongs that make a silent path usable.
    needed: u8,
    silent_since: Micros,
    /// What the sender knows of the path; `None` while it is the active one.
    send: Option<Box<SendPath>>,
    /// The place of its segments in flight.
    slot: Slot,
    /// ACKs of data that arrived on the path before data came on another one.
    acks: PendingAcks,
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
        };
        set.push(PathId::FIRST, now, PathState::Usable, Slot::FIRST, None);
        set
    }

    fn push(
        &mut self,
        id: PathId,
        now: Micros,
        state: PathState,
        slot: Slot,
        send: Option<Box<SendPath>>,
    ) {
        self.entries.push(Entry {
            id,
            state,
            ping: None,
            last_ping: None,
            unanswered: 0,
            is_doubted: false,
            silences: 0,
            next_ping: now,
            patience: 0,
            pongs: 0,
            needed: PONGS_AFTER_SILENCE,
            silent_since: now,
            send,
            slot,
            acks: PendingAcks::default(),
        });
    }

    /// A place for the segments of another path. `is_empty`: whether none is in flight there.
    pub(crate) fn free_slot(&self, is_empty: impl Fn(Slot) -> bool) -> Option<Slot> {
        let is_free = |slot: &Slot| self.entries.iter().all(|entry| entry.slot != *slot);
        (0..MAX_SLOTS).map(Slot).filter(is_free).find(|slot| is_empty(*slot))
    }

    /// Adds a path that has to be validated. `None` if there are [`MAX_PATHS`].
    pub(crate) fn add(&mut self, now: Micros, slot: Slot, send: SendPath) -> Option<PathId> {
        let free = |number: &u8| self.entries.iter().all(|entry| entry.id.0 != *number);
        let id = PathId((1..MAX_PATHS).find(free)?);
        self.push(id, now, PathState::Validating, slot, Some(Box::new(send)));
        Some(id)
    }

    /// Adds a path of the peer, which has answered a PATH_CHALLENGE on it, or replaces it. `None` if there are
    /// [`MAX_PATHS`].
    pub(crate) fn add_validated(
        &mut self,
        now: Micros,
        id: PathId,
        slot: Slot,
        send: SendPath,
    ) -> Option<()> {
        if id == PathId::FIRST || id.0 >= MAX_PATHS {
            return None;
        }
        if id == self.active {
            return Some(());
        }
        let kept = self.entry_mut(id).map(|entry| (entry.silences, mem::take(&mut entry.acks)));
        self.entries.retain(|entry| entry.id != id);
        self.push(id, now, PathState::Usable, slot, Some(Box::new(send)));
        if let Some((kept, entry)) = kept.zip(self.entry_mut(id)) {
            (entry.silences, entry.acks) = kept;
        }
        Some(())
    }

    /// How often a path fell silent; 0 if it is unknown.
    pub(crate) fn silences(&self, id: PathId) -> u32 {
        self.entry(id).map_or(0, |entry| entry.silences)
    }

    /// Largest datagram of a path that is not the active one, bytes.
    pub(crate) fn mtu(&self, id: PathId) -> Option<usize> {
        Some(self.entry(id)?.send.as_deref()?.mtu.current_mtu())
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
        self.move_acks(id, self.active);
        // A doubt compares with another path.
        if let [only] = &mut self.entries[..] {
            only.is_doubted = false;
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
    /// Data of the peer arrived on `path`. ACKs that wait for another one are kept for it: they tell its round
    /// trip.
    pub(crate) fn on_data(&mut self, now: Micros, path: PathId, acks: &mut PendingAcks) {
        let last = self.ack_path;
        if path != last && self.entry(path).is_some() {
            for id in [last, path] {
                if let Some(entry) = self.entry_mut(id) {
                    mem::swap(acks, &mut entry.acks);
                }
            }
            self.ack_path = path;
        }
        self.on_used(now);
    }

    /// Data that had arrived before arrived on `path`. Its ACK leaves there.
    pub(crate) fn on_duplicate(&mut self, now: Micros, path: PathId) {
        if self.entry(path).is_some() {
            self.ack_path = path;
        }
        self.on_used(now);
    }

    /// Frees what an idle connection does not need.
    pub(crate) fn release_memory(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.acks.release_memory());
    }

    /// The path of ACKs that wait although data comes on another path now, and the ACKs.
    pub(crate) fn waiting_acks(&mut self) -> Option<&mut PendingAcks> {
        self.entries.iter_mut().map(|entry| &mut entry.acks).find(|acks| !acks.is_empty())
    }

    /// The path of [`Self::waiting_acks`].
    pub(crate) fn next_waiting_acks(&self) -> Option<PathId> {
        self.entries.iter().find(|entry| !entry.acks.is_empty()).map(|entry| entry.id)
    }

    /// Data leaves or arrives. After a pause the pings become frequent again.
    pub(crate) fn on_used(&mut self, now: Micros) {
        if now.since(self.last_used) >= WARM_INTERVAL {
            let latest = now.add_micros(WARM_INTERVAL);
            let usable = self.entries.iter_mut().filter(|entry| entry.state == PathState::Usable);
            usable.for_each(|entry| entry.next_ping = entry.next_ping.min(latest));
        }
        self.last_used = now;
    }

    /// A datagram with something new arrived on `path`. The active one needs no ping for a while; pings measure
    /// the others.
    pub(crate) fn on_arrival(&mut self, now: Micros, path: PathId) {
        let next = now.add_micros(self.interval(now));
        if path == self.active
            && let Some(entry) = self.entry_mut(path)
            && entry.state == PathState::Usable
            && entry.ping.is_none()
            && !entry.is_doubted
        {
            entry.next_ping = next;
        }
    }

    /// Interval of pings on a usable path.
    fn interval(&self, now: Micros) -> u64 {
        if now.since(self.last_used) < WARM_INTERVAL { WARM_INTERVAL } else { IDLE_INTERVAL }
    }

    /// A ping of the peer arrived on `path`.
    pub(crate) fn on_ping(&mut self, now: Micros, path: PathId, ping: PingId) {
        let announces = self.announces;
        // A path that was removed answers nothing.
        let Some(entry) = self.entry_mut(path) else { return };
        // It may be a PATH_CHALLENGE, and the peer has to learn which path it is about.
        let may_be_challenge = match entry.state {
            PathState::Usable => false,
            PathState::Validating => announces,
            PathState::Silent => announces && entry.ping.is_none(),
        };
        if may_be_challenge || entry.next_ping == NEVER {
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
        self.entries.iter().any(|entry| entry.last_ping.is_some_and(|(sent, _)| sent == ping))
    }

    /// The same, if the ping was first sent within [`COOKIE_LIFE`].
    pub(crate) fn has_sent_lately(&self, now: Micros, ping: PingId) -> bool {
        let is_it = |(sent, at): (PingId, Micros)| sent == ping && now.since(at) <= COOKIE_LIFE;
        self.entries.iter().any(|entry| entry.last_ping.is_some_and(is_it))
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
        // Any path that answers is better than one that does not.
        let any_is_better = !self.entries.iter().any(Entry::answers_pings);
        let Some(entry) = self.entry_mut(path) else { return false };
        let Some(sent) = entry.ping.take_if(|sent| sent.id == ping) else { return false };
        (entry.unanswered, entry.is_doubted) = (0, false);
        let waited = now.since(sent.first_sent);
        entry.patience = if sent.sent == sent.first_sent {
            match entry.send.as_deref_mut() {
                Some(send) => send.rtt.on_rare_sample(now, waited),
                None => rtt.on_sample(now, waited),
            }
            0
        } else {
            (waited / 4 * 5).min(MAX_PATIENCE)
        };
        entry.pongs = entry.pongs.saturating_add(1);
        let is_steady = entry.state != PathState::Silent || entry.pongs >= entry.needed;
        let is_back = is_steady || any_is_better;
        if is_back {
            entry.state = PathState::Usable;
        }
        if now.since(entry.silent_since) >= FORGIVEN_AFTER && entry.needed > PONGS_AFTER_SILENCE {
            (entry.needed, entry.silent_since) = (entry.needed / 2, now);
        }
        let is_silent = entry.state == PathState::Silent;
        let wait = if is_silent { RETURN_INTERVAL } else { interval };
        entry.next_ping = if entry.patience == 0 { now.add_micros(wait) } else { now };
        true
    }

    /// What follows if another path is better than the active one. `rtt`: of the active path.
    pub(crate) fn prefer_better(&self, rtt: &RttEstimator) -> Change {
        let resend = self.is_active_silent();
        let srtt = rtt.srtt().unwrap_or(u64::MAX);
        let is_better = |other: &Other| {
            let limit = other.srtt.saturating_add(other.srtt / 4 + BETTER_BY);
            resend || (!other.is_in_doubt && limit < srtt)
        };
        self.best_other()
            .filter(is_better)
            .map_or(Change::None, |other| Change::Switch { to: other.id, resend })
    }

    /// The usable path with the shortest smoothed RTT, except for the active one, and rather one without doubt.
    fn best_other(&self) -> Option<Other> {
        let others = self.entries.iter().filter(|entry| entry.id != self.active);
        let usable = others.filter(|entry| entry.state == PathState::Usable);
        let others = usable.map(|entry| Other {
            is_in_doubt: entry.is_doubted || !entry.answers_pings(),
            srtt: entry
                .send
                .as_deref()
                .and_then(|send| send.rtt.srtt())
                .map_or(u64::MAX, |srtt| srtt.max(entry.patience)),
            id: entry.id,
        });
        others.min()
    }

    /// The active path is silent: the best of the usable paths takes over.
    pub(crate) fn leave_active(&mut self, now: Micros) -> Change {
        let active = self.active;
        if let Some(entry) = self.entry_mut(active) {
            entry.on_silent(now);
        }
        self.take_over()
    }

    fn take_over(&self) -> Change {
        let best = self.best_other();
        best.map_or(Change::None, |other| Change::Switch { to: other.id, resend: true })
    }

    /// The answer to data on the active path is overdue: a ping tells whether the path is dead. Data moves at once
    /// if `moves`, else when the ping is unanswered too.
    pub(crate) fn on_answer_overdue(&mut self, now: Micros, moves: bool) -> Change {
        let (active, may_move) = (self.active, self.may_leave(moves));
        if let Some(entry) = self.entry_mut(active) {
            entry.on_doubt(now);
        }
        if may_move { self.take_over() } else { Change::None }
    }

    /// Whether [`Self::on_answer_overdue`] would change something now.
    pub(crate) fn awaits_answers(&self, moves: bool) -> bool {
        let is_doubted = self.entry(self.active).is_some_and(|entry| entry.is_doubted);
        self.may_doubt() && (!is_doubted || self.may_leave(moves))
    }

    /// Whether an overdue answer moves data to another path.
    fn may_leave(&self, moves: bool) -> bool {
        let is_dead = || self.entry(self.active).is_some_and(|entry| !entry.answers_pings());
        (moves || is_dead()) && self.best_other().is_some_and(|other| !other.is_in_doubt)
    }

    /// Whether an answer on the path was overdue, and no ping was answered since.
    pub(crate) fn is_doubted(&self, id: PathId) -> bool {
        self.entry(id).is_some_and(|entry| entry.is_doubted)
    }

    /// The usable paths that are not the active one, and the largest datagram of each.
    pub(crate) fn others(&self) -> impl Iterator<Item = (PathId, usize)> + '_ {
        self.usable_others().map(|(id, _, path)| (id, path.mtu.current_mtu()))
    }

    /// How much longer than on the active path the answer to a copy may take, microseconds. `rtt`: of the active
    /// path.
    pub(crate) fn copy_wait(&self, rtt: &RttEstimator) -> u64 {
        // With one sample in seconds its variation is unknown; the reordering window grows if this is too short.
        let round_trips = self.usable_others().filter_map(|(.., path)| path.rtt.srtt());
        let waits = round_trips.map(|srtt| srtt + COPY_MARGIN);
        waits.max().unwrap_or(0).saturating_sub(rtt.srtt().unwrap_or(0))
    }

    /// Whether an overdue answer may say something new: the active path counts as usable, and there is another.
    pub(crate) fn may_doubt(&self) -> bool {
        self.entries.len() > 1 && !self.is_active_silent()
    }

    /// Whether the active path is silent.
    pub(crate) fn is_active_silent(&self) -> bool {
        self.entry(self.active).is_none_or(|entry| entry.state != PathState::Usable)
    }

    /// The next path in turn that has ever answered.
    pub(crate) fn rotate(&self) -> Change {
        let tried =
            |entry: &&Entry| entry.state != PathState::Validating && entry.id != self.active;
        let later = self.entries.iter().filter(tried).filter(|entry| entry.id > self.active);
        let next = later.chain(self.entries.iter().filter(tried)).next();
        next.map_or(Change::None, |entry| Change::Switch { to: entry.id, resend: false })
    }

    /// Makes `to` the active path: gives `swap` its state, which then holds the state of the last one.
    pub(crate) fn switch(&mut self, to: PathId, swap: impl FnOnce(&mut SendPath)) {
        let Some(mut send) = self.entry_mut(to).and_then(|entry| entry.send.take()) else { return };
        swap(&mut send);
        let last = self.active;
        if let Some(entry) = self.entry_mut(last) {
            entry.send = Some(send);
        }
        self.active = to;
    }

    /// Until data comes on another path, ACKs leave with the data.
    pub(crate) fn move_acks(&mut self, from: PathId, to: PathId) {
        if self.ack_path == from {
            self.ack_path = to;
        }
    }
}

/// Paths that carry data at the same time, by the slots of their segments.
impl PathSet {
    /// The path in `slot`.
    pub(crate) fn in_slot(&self, slot: Slot) -> Option<PathId> {
        self.entries.iter().find(|entry| entry.slot == slot).map(|entry| entry.id)
    }

    pub(crate) fn has(&self, id: PathId) -> bool {
        self.entry(id).is_some()
    }

    pub(crate) fn slot_of(&self, id: PathId) -> Slot {
        self.entry(id).map_or(Slot::FIRST, |entry| entry.slot)
    }

    /// Whether a path in `slot` answers.
    pub(crate) fn is_usable(&self, slot: Slot) -> bool {
        let is_it = |entry: &Entry| entry.slot == slot && entry.state == PathState::Usable;
        self.entries.iter().any(is_it)
    }

    /// The paths that answer, except for the active one.
    pub(crate) fn usable_others(&self) -> impl Iterator<Item = (PathId, Slot, &SendPath)> {
        let usable = self.entries.iter().filter(|entry| entry.state == PathState::Usable);
        usable.filter_map(|entry| Some((entry.id, entry.slot, entry.send.as_deref()?)))
    }

    /// The states of all paths but the active one.
    pub(crate) fn others_send(&self) -> impl Iterator<Item = &SendPath> {
        self.entries.iter().filter_map(|entry| entry.send.as_deref())
    }

    /// As [`Self::others_send`], and whether each answers.
    pub(crate) fn others_mut(&mut self) -> impl Iterator<Item = (bool, &mut SendPath)> {
        let sends = self.entries.iter_mut();
        sends.filter_map(|entry| {
            Some((entry.state == PathState::Usable, entry.send.as_deref_mut()?))
        })
    }

    pub(crate) fn is_slot_doubted(&self, slot: Slot) -> bool {
        self.entries.iter().any(|entry| entry.slot == slot && entry.is_doubted)
    }

    /// Whether [`Self::on_overdue`] would change something: another path answers, and no answer to a ping is awaited.
    pub(crate) fn may_leave_slot(&self, slot: Slot) -> bool {
        let is_other = |entry: &Entry| entry.slot != slot && entry.answers_pings();
        let is_it = |entry: &Entry| {
            let is_open = !entry.is_doubted || !entry.answers_pings();
            entry.slot == slot && entry.state == PathState::Usable && is_open
        };
        self.entries.iter().any(is_other) && self.entries.iter().any(is_it)
    }

    /// The state of a path that is not the active one.
    pub(crate) fn send_mut(&mut self, id: PathId) -> Option<&mut SendPath> {
        self.entry_mut(id)?.send.as_deref_mut()
    }

    /// An answer of the path in `slot` is overdue: a ping tells whether the path is dead.
    pub(crate) fn on_overdue(&mut self, now: Micros, slot: Slot) {
        let entry = self.entries.iter_mut().find(|entry| entry.slot == slot);
        let Some(entry) = entry else { return };
        if entry.answers_pings() {
            entry.on_doubt(now);
        } else {
            entry.on_silent(now);
        }
    }
}

/// The order in which another path is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Other {
    /// An answer was overdue, or a ping is unanswered.
    is_in_doubt: bool,
    srtt: u64,
    id: PathId,
}

impl Entry {
    /// Whether the path is usable and no ping is unanswered.
    fn answers_pings(&self) -> bool {
        self.state == PathState::Usable && self.unanswered < UNANSWERED
    }

    /// The answer to data is overdue. Only a ping that leaves from now on tells whether the path is dead.
    fn on_doubt(&mut self, now: Micros) {
        if !self.is_doubted {
            (self.is_doubted, self.ping) = (true, None);
            self.ping_soon(now);
        }
    }

    /// A ping leaves, at most each [`RETURN_INTERVAL`].
    fn ping_soon(&mut self, now: Micros) {
        let earliest = self.last_ping.map_or(now, |(_, sent)| sent.add_micros(RETURN_INTERVAL));
        (self.next_ping, self.unanswered) = (now.max(earliest), 0);
    }

    /// Whether enough pings of a usable path are unanswered.
    fn is_overdue(&self) -> bool {
        self.state == PathState::Usable && self.ping.is_some() && self.unanswered >= MAX_PINGS
    }

    /// Whether a ping leaves; not before [`PathSet::handle_timeout`] has seen that the last one is overdue.
    fn is_ping_due(&self, now: Micros) -> bool {
        self.next_ping <= now && !self.is_overdue()
    }

    fn on_silent(&mut self, now: Micros) {
        if self.state == PathState::Usable {
            self.silences = self.silences.saturating_add(1);
            self.needed = match now.since(self.silent_since) < FORGIVEN_AFTER {
                true => self.needed.saturating_mul(2).min(MAX_PONGS_AFTER_SILENCE),
                false => self.needed,
            };
        }
        (self.state, self.pongs, self.silent_since) = (PathState::Silent, 0, now);
        self.is_doubted = false;
        // A path may fall silent again with each pong, while an ACK is overdue that its peer delays.
        self.ping_soon(now);
    }

    fn rto(&self, rtt: &RttEstimator) -> u64 {
        self.send.as_deref().map_or(rtt, |send| &send.rtt).rto()
    }

    fn srtt(&self, rtt: &RttEstimator) -> Option<u64> {
        self.send.as_deref().map_or(rtt, |send| &send.rtt).srtt()
    }
}

/// A segment for a path that carries no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathSegment {
    /// Answers a ping of the peer.
    Answer(PingId),
    Ping(PingId),
}

/// Datagram sizes.
impl PathSet {
    /// The datagram size of a path that is not the active one.
    pub(crate) fn mtu_mut(&mut self, id: PathId) -> Option<&mut MtuDiscovery> {
        self.entry_mut(id)?.send.as_deref_mut().map(|send| &mut send.mtu)
    }

    /// Limits the datagram size of all paths but the active one.
    pub(crate) fn limit_mtu(&mut self, mtu: u16) {
        for send in self.entries.iter_mut().filter_map(|entry| entry.send.as_deref_mut()) {
            if mtu < send.mtu.max_mtu() {
                send.mtu.on_max_mtu_changed(mtu);
            }
        }
    }
}

/// What leaves on the paths.
impl PathSet {
    /// The next segment that is due, its path, and whether the number of the path precedes it. `new`: number and
    /// cookie of a new ping. `rtt`: of the active path.
    pub(crate) fn poll(
        &mut self,
        now: Micros,
        rtt: &RttEstimator,
        new: impl FnOnce() -> PingId,
    ) -> Option<(PathId, PathSegment, bool)> {
        let announces = self.announces;
        if !self.answers.is_empty() {
            let (path, ping) = self.answers.remove(0);
            return Some((path, PathSegment::Answer(ping), announces));
        }
        let entry = self.entries.iter_mut().find(|entry| entry.is_ping_due(now))?;
        let fresh = entry.ping.filter(|ping| now.since(ping.first_sent) < COOKIE_LIFE);
        let mut sent = fresh.unwrap_or_else(|| SentPing { id: new(), first_sent: now, sent: now });
        sent.sent = now;
        (entry.ping, entry.last_ping) = (Some(sent), Some((sent.id, sent.first_sent)));
        if entry.unanswered > 0 {
            entry.pongs = entry.pongs.saturating_sub(LOST_PONG);
        }
        entry.unanswered = entry.unanswered.saturating_add(1);
        // A ping that is answered late does no harm while answers to data are overdue too.
        let rto = entry.rto(rtt);
        let expected =
            entry.srtt(rtt).filter(|_| entry.is_doubted).map_or(rto, |srtt| srtt / 4 * 5);
        let pong_wait = expected.max(MIN_PONG_WAIT).max(entry.patience);
        let wait = (2 * rto).max(MIN_PONG_WAIT).max(entry.patience);
        let silence = now.since(entry.silent_since);
        entry.next_ping = match entry.state {
            PathState::Usable if entry.unanswered < UNANSWERED => now.add_micros(pong_wait),
            PathState::Usable => now.add_micros(pong_wait.min(MAX_REPEATED_WAIT)),
            // The address may belong to another host by now.
            PathState::Silent if !announces && silence >= FORGIVEN_AFTER => NEVER,
            PathState::Silent | PathState::Validating => {
                now.add_micros((silence / SILENCE_DIVISOR).clamp(wait, IDLE_INTERVAL.max(wait)))
            }
        };
        Some((entry.id, PathSegment::Ping(sent.id), announces))
    }

    /// The path of what [`Self::poll`] returns at `now`.
    pub(crate) fn next(&self, now: Micros) -> Option<PathId> {
        let answer = self.answers.first().map(|(path, _)| *path);
        let due = || self.entries.iter().find(|entry| entry.is_ping_due(now));
        answer.or_else(|| due().map(|entry| entry.id))
    }

    /// A path has to be tried again at once: the network has changed.
    pub(crate) fn ping_all(&mut self, now: Micros) {
        self.entries.iter_mut().for_each(|entry| entry.next_ping = now);
    }

    /// The system sends nothing on the path. Returns what follows.
    pub(crate) fn on_lost(&mut self, now: Micros, id: PathId) -> Change {
        let is_usable = self.entry(id).is_some_and(|entry| entry.state == PathState::Usable);
        let change =
            if id == self.active && is_usable { self.leave_active(now) } else { Change::None };
        let Some(entry) = self.entry_mut(id) else { return change };
        if entry.state == PathState::Usable {
            entry.on_silent(now);
        }
        // Nothing leaves there now.
        entry.next_ping = entry.next_ping.max(now.add_micros(MIN_PONG_WAIT));
        change
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
            if entry.is_overdue() && now >= entry.next_ping {
                if entry.id == self.active {
                    return self.leave_active(now);
                }
                entry.on_silent(now);
            }
        }
        Change::None
    }
}

#[cfg(test)]
mod tests;
