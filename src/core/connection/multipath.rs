//! Connections with several paths: adding and removing them, the segments that leave on a path without data, and
//! the change to another path. [`PathSet`] decides.

use std::time::{Duration, Instant};

use crate::core::clock::{self, Micros};
use crate::core::connection::Kcp;
use crate::core::connection::output::{Transmitted, emit_acks};
use crate::core::keepalive::{PingId, Role};
use crate::core::path::mtu::MtuDiscovery;
use crate::core::path::set::{Change, MAX_PATHS, PathId, PathSegment, PathSet, PathState};
use crate::core::segment::{Command, ControlType, Header};
use crate::core::seq::{Sn, Ts};
use crate::util::earliest;
use crate::util::path::Path;

/// ACKs of a datagram that leaves on another path than data, whose size counts for the path of data only.
const MAX_ACKS: usize = 16;

/// A path in the eyes of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathInfo {
    /// Its number.
    pub id: PathId,
    /// Whether the peer answers on it.
    pub state: PathState,
    /// Whether data leaves on it.
    pub is_active: bool,
    /// Smoothed RTT; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// Size of the largest KCP datagram that leaves on it now, bytes.
    pub current_mtu: u32,
    /// How often it fell silent.
    pub silences: u32,
}

/// Why a connection takes no further path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddPathError {
    /// The peer opened the connection: only the side that opened it adds paths.
    #[error("only the side that opened the connection adds paths")]
    OpenedByPeer,
    /// The peer takes no further path: it is no peer of this crate, or an older version.
    #[error("the peer does not support several paths")]
    NotSupported,
    /// The connection has four paths.
    #[error("the connection has {MAX_PATHS} paths: remove one first")]
    TooMany,
}

impl Kcp {
    /// Lets the peer announce further paths. Only for connections under an AEAD cipher: others would follow a
    /// forged datagram. To be called before the first datagram.
    pub fn accept_paths(&mut self) {
        self.accepts_paths = true;
        if let Some(repair) = &mut self.repair {
            repair.hello.accept_paths();
        }
    }

    /// Sets that messages leave on all paths: the caller copies datagrams to [`Kcp::copy_paths`].
    pub fn copy_on_paths(&mut self) {
        self.copies_on_paths = true;
    }

    /// The paths on which a copy of each datagram with data is to leave now, and the largest datagram of each.
    pub fn copy_paths(&mut self) -> impl Iterator<Item = (PathId, usize)> + '_ {
        let copies = self.copies_on_paths && self.send.is_latency_bound();
        self.update_copy_wait(copies);
        let paths = self.send.paths.iter().filter(move |_| copies);
        paths.flat_map(|paths| paths.others())
    }

    /// Sets that transfers use all paths: each datagram leaves on the path that [`Kcp::active_path`] names before it.
    pub fn aggregate_paths(&mut self) {
        self.send.aggregates = true;
    }

    /// Makes the first path the active one, if transfers use all paths. Returns whether it is active.
    pub(crate) fn at_first_path(&mut self) -> bool {
        if self.send.is_aggregating() {
            self.send.use_path(self.last_poll_transmit, PathId::FIRST);
        }
        self.active_path() == PathId::FIRST
    }

    /// Whether transfers use all paths.
    pub(crate) fn aggregates_paths(&self) -> bool {
        self.send.is_aggregating()
    }

    /// Loss detection waits for the answer to the slowest copy.
    fn update_copy_wait(&mut self, copies: bool) {
        let paths = self.send.paths.as_ref().filter(|_| copies);
        let wait = paths.map_or(0, |paths| paths.copy_wait(&self.send.path.rtt));
        self.send.path.loss.set_copy_wait(wait);
    }

    /// Asks the peer whether it accepts further paths; the answer comes after a round trip.
    pub fn ask_for_paths(&mut self) {
        self.repair_state().hello.start_for_datagrams();
    }

    /// Whether the peer accepts further paths; `None` while unknown.
    #[must_use]
    pub fn peer_accepts_paths(&self) -> Option<bool> {
        if !self.close_state.is_enabled() || self.close_state.peer_lacks_control() {
            return Some(false);
        }
        self.repair.as_ref()?.hello.peer_accepts_paths()
    }

    /// Adds a path and begins to validate it: datagrams of [`Kcp::poll_transmit_on_path`] with its id leave on it.
    ///
    /// # Errors
    ///
    /// If the peer opened the connection, accepts no further path, or four paths exist.
    pub fn add_path(&mut self, now: Instant) -> Result<PathId, AddPathError> {
        if self.role != Role::Active {
            return Err(AddPathError::OpenedByPeer);
        }
        if self.peer_accepts_paths() != Some(true) {
            return Err(AddPathError::NotSupported);
        }
        let now = self.clock.at(now);
        let (send, slot) = (self.send.path.another(), self.send.free_slot());
        let paths = self.send.paths.get_or_insert_with(|| Box::new(PathSet::new(now, true)));
        slot.and_then(|slot| paths.add(now, slot, send)).ok_or(AddPathError::TooMany)
    }

    /// The number that the peer has announced for a path that has just been validated, and its round trip, if
    /// only one challenge was sent.
    pub(crate) fn announced_path(
        &self,
        now: Instant,
        path: Path,
    ) -> Option<(PathId, Option<Duration>)> {
        let validator = self.path_validator.as_ref()?;
        let (id, rtt) = validator.announced(self.clock.at(now), path)?;
        Some((id, rtt.map(Duration::from_micros)))
    }

    /// The peer has answered a PATH_CHALLENGE on the path that it announced, after `rtt` if that is known. Returns
    /// whether the connection takes the path.
    pub(crate) fn add_peer_path(
        &mut self,
        now: Instant,
        id: PathId,
        rtt: Option<Duration>,
    ) -> bool {
        let now = self.clock.at(now);
        if self.role == Role::Active || !self.accepts_paths {
            return false;
        }
        let mut send = self.send.path.another();
        if let Some(rtt) = rtt {
            send.rtt.on_sample(now, clock::micros(rtt));
        }
        self.path_validator = None;
        // What is in flight on the path that it replaces counts as its own.
        let known = self.send.paths.as_ref().filter(|paths| paths.has(id));
        let slot = known.map(|paths| paths.slot_of(id)).or_else(|| self.send.free_slot());
        let Some(slot) = slot else { return false };
        let paths = self.send.paths.get_or_insert_with(|| Box::new(PathSet::new(now, false)));
        let is_added = paths.add_validated(now, id, slot, send).is_some();
        if self.send.aggregates {
            self.update_mss();
        }
        is_added
    }

    /// Removes a path. Data that left on it leaves again on another one. Returns false if it is unknown, or the
    /// last one that answers.
    pub fn remove_path(&mut self, now: Instant, id: PathId) -> bool {
        let now = self.clock.at(now);
        let change = self.send.paths.as_mut().and_then(|paths| paths.remove(now, id));
        let Some(change) = change else { return false };
        self.change_path(now, change);
        if let Some(paths) = &mut self.send.paths {
            paths.forget(id);
        }
        true
    }

    /// The system sends nothing on the path any more, for example since its local address is gone: another path
    /// takes over at once.
    pub fn on_path_lost(&mut self, now: Instant, id: PathId) {
        let now = self.clock.at(now);
        let change = self.send.paths.as_mut().map(|paths| paths.on_lost(now, id));
        self.change_path(now, change.unwrap_or(Change::None));
    }

    /// The paths; one if none was ever added.
    pub fn paths(&self) -> impl Iterator<Item = PathInfo> + '_ {
        let (active, rtt) = (self.active_path(), &self.send.path.rtt);
        let only =
            self.send.paths.is_none().then(|| (PathId::FIRST, PathState::Usable, rtt.srtt()));
        let several = self.send.paths.iter().flat_map(|paths| paths.states(rtt));
        several.chain(only).map(move |(id, state, srtt)| {
            let srtt = srtt.map(Duration::from_micros);
            let other = self.send.paths.as_ref().and_then(|paths| paths.mtu(id));
            let current_mtu =
                u32::try_from(other.unwrap_or_else(|| self.current_mtu())).unwrap_or(0);
            let silences = self.send.paths.as_ref().map_or(0, |paths| paths.silences(id));
            PathInfo { id, state, is_active: id == active, srtt, current_mtu, silences }
        })
    }

    /// The path of the next [`Kcp::poll_transmit`].
    #[must_use]
    pub fn active_path(&self) -> PathId {
        self.send.paths.as_ref().map_or(PathId::FIRST, |paths| paths.active())
    }

    /// The path on which the next datagrams for [`Kcp::input`] came.
    #[inline]
    pub fn set_arrival(&mut self, path: PathId) {
        self.arrival = path;
    }

    /// The path of [`Kcp::set_arrival`].
    pub(crate) fn arrival(&self) -> PathId {
        self.arrival
    }

    /// The path of the next datagram that need not leave with data: a ping, its answer, or ACKs. Append it with
    /// [`Kcp::poll_transmit_on_path`] until this returns `None`, then call [`Kcp::poll_transmit`].
    #[must_use]
    pub fn next_transmit_path(&self, now: Instant) -> Option<PathId> {
        let paths = self.send.paths.as_ref()?;
        let now = self.clock.at(now);
        let segment = if self.may_ping_paths() { paths.next(now) } else { None };
        segment.or_else(|| self.next_ack_path(now))
    }

    /// The path of ACKs that leave without data now.
    fn next_ack_path(&self, now: Micros) -> Option<PathId> {
        let paths = self.send.paths.as_ref().filter(|_| self.may_ack_on_paths())?;
        let elsewhere = paths.acks_leave_elsewhere().filter(|_| self.acks_due(now));
        elsewhere.or_else(|| paths.next_waiting_acks())
    }

    /// Appends the datagram of [`Kcp::next_transmit_path`].
    pub fn poll_transmit_on_path(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Option<Transmitted> {
        self.send.paths.as_ref()?;
        let now = self.clock.tick(now);
        let (start, mut sent) = (out.len(), Transmitted::default());
        if !self.write_path_segment(now, out) && self.may_ack_on_paths() {
            if self.acks_leave_elsewhere().is_some() && self.acks_due(now) {
                self.append_acks(MAX_ACKS, out, &mut sent);
            } else {
                self.append_waiting_acks(out, &mut sent);
            }
        }
        let len = out.len() - start;
        if len == 0 {
            return None;
        }
        self.qlog.on_sent(now, out.get(start..));
        Some(self.on_datagram_sent(now, len, sent))
    }

    /// Appends ACKs that wait although data comes on another path now.
    fn append_waiting_acks(&mut self, out: &mut Vec<u8>, sent: &mut Transmitted) {
        let template = self.header(Command::Ack, self.close_state.capability(), Sn(0), Ts(0), 0);
        let waiting = self.send.paths.as_mut().and_then(|paths| paths.waiting_acks());
        if let Some(acks) = waiting {
            emit_acks(acks, &mut self.recv, template, MAX_ACKS, out, sent);
        }
    }

    /// Appends a ping or an answer, if one is due.
    fn write_path_segment(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        if !self.may_ping_paths() {
            return false;
        }
        let (sn, keepalive) = (self.role.ping_sn(self.send.una()), &mut self.keepalive);
        let new = || PingId { sn, cookie: keepalive.next_cookie() };
        let rtt = &self.send.path.rtt;
        let segment = self.send.paths.as_mut().and_then(|paths| paths.poll(now, rtt, new));
        let Some((path, segment, announces)) = segment else { return false };
        match segment {
            PathSegment::Answer(PingId { sn, cookie }) => {
                self.announce(path, announces, out);
                let capability = self.close_state.capability();
                self.header(Command::Ack, capability, sn, cookie, 0).emit(out);
            }
            PathSegment::Ping(ping) => {
                self.announce(path, announces, out);
                self.new_ping(ping).emit(out);
            }
        }
        true
    }

    /// Appends the number of the path, before a ping or the answer to one: a NAT may have changed the address.
    fn announce(&mut self, path: PathId, announces: bool, out: &mut Vec<u8>) {
        if announces {
            let kind = ControlType::Path as u8;
            self.header(Command::Control, kind, Sn(path.0.into()), Ts(0), 0).emit(out);
        }
    }

    /// As [`Kcp::on_message_too_big`], on any path.
    pub(crate) fn on_message_too_big_on(&mut self, id: PathId, size: usize) -> Option<u16> {
        let mtu = self.mtu_on(id)?;
        if !mtu.on_message_too_big(size) {
            return None;
        }
        let max_mtu = mtu.max_mtu();
        self.update_mss();
        Some(max_mtu)
    }

    /// As [`Kcp::on_message_too_big_on`], if the operating system may have the MTU from an ICMP message.
    pub(crate) fn on_packet_too_big_on(&mut self, now: Instant, id: PathId, size: usize) {
        let now = self.clock.at(now);
        if self.mtu_on(id).is_some_and(|mtu| mtu.on_packet_too_big(now, size)) {
            self.update_mss();
        }
    }

    fn mtu_on(&mut self, id: PathId) -> Option<&mut MtuDiscovery> {
        if id == self.active_path() {
            return Some(&mut self.send.path.mtu);
        }
        self.send.paths.as_mut()?.mtu_mut(id)
    }

    /// The path of ACKs, if data leaves on another one.
    #[inline]
    pub(super) fn acks_leave_elsewhere(&self) -> Option<PathId> {
        self.send.paths.as_ref()?.acks_leave_elsewhere()
    }

    /// Whether [`Self::poll_transmit_on_path`] would append a ping or an answer.
    #[inline]
    pub(super) fn has_path_work_at(&self, at: Micros) -> bool {
        let paths = self.send.paths.as_ref();
        paths.is_some_and(|paths| {
            (self.may_ping_paths() && paths.next(at).is_some())
                || (self.may_ack_on_paths() && paths.next_waiting_acks().is_some())
        })
    }

    /// Whether ACKs leave without data. Those to an unvalidated peer leave within its limit, on the path of data.
    fn may_ack_on_paths(&self) -> bool {
        self.close_reason.is_none() && !self.withholds_acks() && self.send_budget().is_unlimited()
    }

    fn may_ping_paths(&self) -> bool {
        self.close_reason.is_none() && self.is_established()
    }

    /// When a path has something to do: a ping, an answer, or a change because an answer is overdue.
    pub(super) fn paths_deadline(&self) -> Option<Micros> {
        let paths = self.send.paths.as_ref().filter(|_| self.may_ping_paths())?;
        earliest([paths.deadline(), self.answer_overdue_at(paths)])
    }

    /// When an overdue answer changes something next.
    fn answer_overdue_at(&self, paths: &PathSet) -> Option<Micros> {
        if self.send.aggregates {
            let may_grow = !self.send.is_latency_bound();
            return paths.may_doubt().then(|| self.send.overdue_at(may_grow))?;
        }
        let leaves_at_once = self.leaves_at_once();
        // The ping leaves early, so that its answer is known when data may move.
        let may_grow = paths.is_doubted(paths.active()) && !leaves_at_once;
        paths.awaits_answers(leaves_at_once).then(|| self.send.overdue_at(may_grow))?
    }

    /// An ACK arrived that no segment in flight matches. Returns whether it answers a ping on its path.
    pub(super) fn on_path_pong(&mut self, now: Micros, header: &Header) -> bool {
        let Some(paths) = &mut self.send.paths else { return false };
        let rtt = &mut self.send.path.rtt;
        if !paths.on_pong(now, self.arrival, PingId::named_by(header), rtt) {
            return false;
        }
        let change = paths.prefer_better(rtt);
        if !self.send.aggregates {
            self.change_path(now, change);
        } else {
            // A path that answers again may have a smaller MTU.
            self.update_mss();
            self.choose_path(now);
        }
        true
    }

    /// Whether an answer on the path was overdue, and no ping was answered since.
    #[cfg(feature = "tracing")]
    pub(crate) fn is_path_doubted(&self, id: PathId) -> bool {
        self.send.paths.as_ref().is_some_and(|paths| paths.is_doubted(id))
    }

    /// Whether data leaves a path as soon as an answer is overdue. A transfer loses its rate with the path,
    /// and messages with a copy on each path lose nothing by waiting for a ping.
    fn leaves_at_once(&self) -> bool {
        self.send.is_latency_bound() && !self.copies_on_paths
    }

    /// Leaves a path that is silent.
    pub(super) fn check_paths(&mut self, now: Micros) {
        let Some(paths) = &mut self.send.paths else { return };
        let mut change = paths.handle_timeout(now);
        if paths.is_active_silent() && change == Change::None {
            change = paths.prefer_better(&self.send.path.rtt);
        }
        if change == Change::None && paths.may_doubt() {
            let fin_at = self.close_state.fin_deadline();
            let overdue_at =
                self.send.paths.as_ref().and_then(|paths| self.answer_overdue_at(paths));
            let is_past = |at: Micros| at <= now;
            let is_fin_overdue = fin_at.is_some_and(is_past);
            if is_fin_overdue || overdue_at.is_some_and(is_past) {
                change = self.leave_overdue_path(now, is_fin_overdue);
            }
        }
        self.change_path(now, change);
        self.choose_path(now);
    }

    /// An answer is overdue, on the active path or on any that carries data.
    fn leave_overdue_path(&mut self, now: Micros, is_fin_overdue: bool) -> Change {
        let moves = is_fin_overdue || self.leaves_at_once();
        if self.send.aggregates {
            self.send.leave_overdue_paths(now, is_fin_overdue);
            return Change::None;
        }
        let paths = self.send.paths.as_mut();
        paths.map_or(Change::None, |paths| paths.on_answer_overdue(now, moves))
    }

    /// Chooses the path of the next datagram, if transfers use all paths.
    #[inline]
    pub(super) fn choose_path(&mut self, now: Micros) {
        if self.send.is_aggregating() && self.close_reason.is_none() {
            self.send.settle_paths(now);
            self.send.choose_path(now);
        }
    }

    /// A RST is unanswered: it leaves on another path next time.
    pub(super) fn rotate_reset(&mut self, now: Micros) {
        // 0 before the first one.
        let is_due = |at: Micros| at > Micros(0) && at <= now;
        let is_due = self.close_state.reset_deadline().is_some_and(is_due);
        let change = self.send.paths.as_ref().filter(|_| is_due).map(|paths| paths.rotate());
        self.change_path(now, change.unwrap_or(Change::None));
    }

    fn change_path(&mut self, now: Micros, change: Change) {
        let Change::Switch { to, resend } = change else { return };
        if self.send.aggregates {
            self.send.use_path(now, to);
        } else {
            self.send.switch_path(now, to, resend);
        }
        self.update_mss();
        self.update_timers(now);
    }
}
