//! One connection in the driver: the state machine of `core`, the queues it shares with the handles, and its
//! lifecycle.
//!
//! `closing`, `queues` and `routes` hold further methods of [`Conn`]; `lifecycle` is a type that does not depend on it.

mod closing;
mod lifecycle;
mod queues;
mod routes;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::config::{CONNECTION_COST, Config, Setting};
use crate::core::connection::{Kcp, PacketType};
use crate::core::open::{InitialHash, OpenedBy};
#[cfg(feature = "tracing")]
use crate::core::path::set::PathState;
use crate::core::path::set::{MAX_PATHS, PathId};
use crate::core::path::validation::{PathChallenge, PathValidation};
use crate::core::segment::InputError;
use crate::core::seq::Sn;
use crate::driver::connection::lifecycle::{Lifecycle, Reported};
use crate::driver::memory::{Holder, Memory, SHORT_QUOTA};
use crate::driver::output::PathCopies;
use crate::error::ConnectionError;
use crate::shared::connection::{Handle, Shared};
use crate::shared::notifier::ConnId;
use crate::shared::requests::PathTraffic;
use crate::trace::Span;
use crate::util::path::{LocalIp, Path};
use crate::util::sync::{Arc, Ordering};

pub(super) use self::closing::DrainState;

/// How long a simultaneous passive open drops datagrams after its end: the time that a datagram may take.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// How long an active open with early data waits for the first write before it sends an initial segment
/// without data.
const EARLY_DATA_WAIT: Duration = Duration::from_millis(20);

/// The name of a connection on the wire: the peer's address and the conversation id.
pub(super) type Key = (SocketAddr, u32);

/// Address validation (RFC 9000 8.1) of a connection that a peer opened. Boxed, since few connections have
/// it, and for a short time. The anti-amplification limit is in the core.
#[derive(Debug)]
pub(super) struct AddressValidation {
    /// When the connection ends if the peer is not validated (`validation_timeout`).
    deadline: Instant,
    /// The handle, if it is accepted only after validation (`require_validation`).
    pub(super) deferred: Option<Handle>,
    /// It has taken one of the allowances of its source.
    pub(super) has_allowance: bool,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) kcp: Kcp,
    shared: Arc<Shared>,
    span: Span,
    path: Path,
    /// `Some` with further paths.
    routes: Option<Box<Routes>>,
    /// Hashes of the peer's initial segments; empty for an active open.
    opened_by: OpenedBy,
    /// The latest initial segment of another connection from the peer's address: the peer may have restarted.
    restarted_by: Option<InitialHash>,
    /// True while the connection is on the driver's ready list, waits in the connect pacer or is being
    /// served.
    ready: bool,
    /// Extra copies of each datagram (kcp-go SetDUP).
    duplicates: u8,
    /// `Some` from a passive open until the peer is validated. Runs beside the lifecycle.
    validation: Option<Box<AddressValidation>>,
    /// Until when a simultaneous passive open is kept after its end.
    quiet_until: Option<Instant>,
    lifecycle: Lifecycle,
    /// Why this endpoint ends the connection. The next `advance_lifecycle` makes it the error of the handles.
    end_cause: Option<ConnectionError>,
    reported: Reported,
    /// A message from the send queue that exceeds the send window.
    blocked_message: Option<Bytes>,
    /// True while written data has not reached the state machine.
    has_unsent_writes: bool,
    /// The last datagram sent was out of band: segments of the stream come first next time.
    prefer_stream: bool,
    /// When the rate limit (kcp-go `SetRateLimit`) lets the next out-of-band datagram leave; `None` if none
    /// waits for it.
    rate_limited_until: Option<Instant>,
    /// Out-of-band datagrams sent and received.
    out_of_band: (u64, u64),
    /// SND.UNA as of the last `advance_lifecycle`.
    last_una: Sn,
    /// When the last datagram of the peer arrived; reconstructed ones do not count.
    last_received: Instant,
    /// Bytes of the endpoint's memory that this connection holds.
    held: usize,
    /// Bytes that each direction may hold, as of the last `account_memory`.
    quota: usize,
    /// When reclaimable memory is released, if the connection is idle by then.
    memory_release_at: Option<Instant>,
    /// True while this connection is counted in `Waiters::lingering`.
    counted_lingering: bool,
    /// True while this connection is counted in `Output::oversized_connections`.
    counted_oversized: bool,
}

/// The further paths of a connection, boxed since most have none.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// All paths but [`PathId::FIRST`], which [`Conn`] has.
    further: Vec<(PathId, Path)>,
    /// The paths on which datagrams with data leave too.
    copies: PathCopies,
    /// Datagrams sent and received on each path, by its number. In here, so that a connection with one path has
    /// none.
    traffic: [PathTraffic; MAX_PATHS as usize],
    /// State of each path and the active one, as of the last event.
    #[cfg(feature = "tracing")]
    reported: ([Option<PathState>; MAX_PATHS as usize], PathId),
    /// Paths that the application wants, until the peer has shown whether it takes them.
    wanted: Vec<(LocalIp, oneshot::Sender<io::Result<PathId>>)>,
}

/// The work of the driver after a received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputOutcome {
    /// `AckPolicy::Immediate`: an ACK leaves before the next datagram is handled.
    pub(super) immediate_ack: bool,
    /// This datagram has validated the peer's address.
    pub(super) validated: bool,
    /// This datagram shows that the peer has accepted the connection too.
    pub(super) simultaneous_passive_open: bool,
}

/// How a connection responds to an apparent migration (RFC 9000 9.3): a datagram of its peer that came to
/// another IP of this host than the local IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApparentMigration {
    /// Take the local IP of the datagram: the peer is not validated, so an earlier datagram may have been
    /// forged, or there is no local IP yet and the datagram is no replay.
    Accept,
    /// Keep the local IP until the other path is validated (RFC 9000 8.2), since an observer can forward a
    /// datagram to another IP of this host first. `is_new`: the datagram is no replay.
    ValidatePath { is_new: bool },
}

impl Conn {
    pub(super) fn new(
        kcp: Kcp,
        shared: Arc<Shared>,
        opened_by: OpenedBy,
        config: &Config,
        now: Instant,
    ) -> Self {
        Self {
            last_una: kcp.una(),
            kcp,
            span: Span::open(shared.peer(), shared.conv, opened_by.is_by_peer()),
            path: shared.path(),
            routes: None,
            shared,
            opened_by,
            restarted_by: None,
            ready: false,
            duplicates: config.duplicates,
            validation: None,
            quiet_until: None,
            lifecycle: Lifecycle::Open,
            end_cause: None,
            reported: Reported::default(),
            blocked_message: None,
            has_unsent_writes: false,
            prefer_stream: false,
            rate_limited_until: None,
            out_of_band: (0, 0),
            last_received: now,
            held: 0,
            quota: usize::MAX,
            memory_release_at: None,
            counted_lingering: false,
            counted_oversized: false,
        }
    }

    pub(super) fn id(&self) -> ConnId {
        self.shared.id()
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.path.peer
    }

    pub(super) fn path(&self) -> Path {
        self.path
    }

    pub(super) fn key(&self) -> Key {
        (self.path.peer, self.shared.conv)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns true unless the connection is on the ready list already.
    pub(super) fn mark_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.ready, true)
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.lifecycle.connect_deadline().is_some()
    }

    pub(super) fn unmark_ready(&mut self) {
        self.ready = false;
    }

    pub(super) fn is_opened_by_peer(&self) -> bool {
        self.opened_by.is_by_peer()
    }

    /// Whether the next datagram would be the initial one of an active open.
    pub(super) fn would_connect(&self, now: Instant) -> bool {
        !self.kcp.has_started()
            && !self.opened_by.is_by_peer()
            && self.kcp.has_pending_transmit(now)
    }

    /// Ends the connection with `cause` at the next `advance_lifecycle`. The first cause counts.
    pub(super) fn end_early(&mut self, cause: ConnectionError) {
        self.end_cause.get_or_insert(cause);
    }

    pub(super) fn apply(&mut self, now: Instant, setting: Setting) {
        match setting {
            Setting::Duplicates(copies) => self.duplicates = copies,
            Setting::NetworkChanged => self.on_network_changed(now),
            // The path MTU may have fallen since the caller read it, so a setting never raises the MTU.
            Setting::Mtu(mtu) if mtu >= self.kcp.max_mtu() => return,
            _ => {}
        }
        self.kcp.apply(setting);
    }

    /// A datagram of `size` bytes was refused for its size (EMSGSIZE; RFC 8899 4.6). Over IPv6 an ICMP
    /// message may have set the MTU of the route; over IPv4 these messages are ignored (`sys/options.rs`).
    pub(super) fn on_message_too_big(&mut self, now: Instant, path: Path, size: usize) {
        let Some(id) = self.path_id(path) else { return };
        if path.peer.ip().to_canonical().is_ipv6() {
            self.kcp.on_packet_too_big_on(now, id, size);
        } else if let Some(mtu) = self.kcp.on_message_too_big_on(id, size) {
            self.shared.mtu.fetch_min(usize::from(mtu), Ordering::Relaxed);
        }
    }

    /// Starts address validation (RFC 9000 8.1) of a passive open: the peer is pinged, and the
    /// anti-amplification limit holds until the pong arrives. `allowance`: bytes that the peer may be sent
    /// even if three times what it sent is less. `deferred`: the handle, if it is accepted only after
    /// validation.
    pub(super) fn require_validation(
        &mut self,
        now: Instant,
        allowance: usize,
        deadline: Instant,
        deferred: Option<Handle>,
    ) {
        if deferred.is_some() {
            self.kcp.defer_accept();
        }
        let has_allowance = allowance > 0;
        let validation = AddressValidation { deadline, deferred, has_allowance };
        self.validation = Some(Box::new(validation));
        self.kcp.require_validation(now, allowance);
        if self.opened_by.is_without_data() {
            self.kcp.expect_capable_acks();
        }
    }

    /// Whether both peers have accepted this connection and neither has opened it.
    pub(super) fn is_simultaneous_passive_open(&self) -> bool {
        self.kcp.is_simultaneous_passive_open()
    }

    /// Whether the peer's endpoint answered the validation with "unknown connection": the initial segment was
    /// forged.
    pub(super) fn has_forged_initial(&self) -> bool {
        self.is_unvalidated() && self.kcp.is_unknown_to_peer()
    }

    /// Ends a simultaneous passive open. It is kept a moment longer, since data of the peer's application
    /// that is under way would open another connection.
    pub(super) fn on_simultaneous_passive_open(&mut self, now: Instant) {
        self.quiet_until = Some(now + QUIET_TIME);
    }

    pub(super) fn take_validation(&mut self) -> Option<Box<AddressValidation>> {
        self.validation.take()
    }

    /// Counts the memory of this connection, and limits each direction to its quota. Reads and writes since
    /// the last exchange of queues may be missing.
    pub(super) fn account_memory(&mut self, memory: &mut Memory) {
        let holder = if self.is_unvalidated() { Holder::Unvalidated } else { Holder::Validated };
        let received = self.kcp.recv_memory() + self.shared.recv.charged();
        let datagrams = self.shared.datagrams.unread_bytes();
        let held = CONNECTION_COST
            + received
            + datagrams
            + self.kcp.send_memory()
            + self.kcp.qlog_memory();
        memory.update(holder, self.held, held);
        (self.held, self.quota) = (held, memory.quota(holder));
        // An unvalidated peer may have more once it is validated.
        let opens = self.is_unvalidated() && self.quota > SHORT_QUOTA;
        self.kcp.limit_recv_memory(self.quota.saturating_sub(received), opens);
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether the peer's address is validated: it has acknowledged a segment or a ping of this connection. A
    /// simultaneous passive open is never validated.
    pub(super) fn is_validated(&self) -> bool {
        self.kcp.is_established() && !self.is_simultaneous_passive_open()
    }

    /// Whether `connect` waited, and the initial segment was answered; a ping is no answer. An active open
    /// needs no address validation.
    fn is_connected(&self) -> bool {
        self.is_connecting() && !self.is_unanswered() && !self.is_simultaneous_passive_open()
    }

    /// Whether the initial segment without data is unanswered.
    pub(super) fn is_unanswered(&self) -> bool {
        self.kcp.is_initial_outstanding()
    }

    /// Whether the peer has shown a sign of life within `time`.
    pub(super) fn is_alive(&self, now: Instant, time: Duration) -> bool {
        self.kcp.time_since_alive(now) < time
    }

    pub(super) fn is_unvalidated(&self) -> bool {
        self.validation.is_some()
    }

    /// Opens the connection at the peer before there is data, see [`Kcp::open`]: the initial segment is a
    /// window probe (IKCP_CMD_WASK). The connection ends if the peer does not answer by `deadline`.
    pub(super) fn connect(&mut self, now: Instant, deadline: Instant) {
        self.lifecycle = Lifecycle::Connecting { deadline };
        self.kcp.open(now);
    }

    /// Opens the connection with its first data, or without data after [`EARLY_DATA_WAIT`].
    pub(super) fn connect_early(&mut self, now: Instant) {
        self.kcp.open_after(now, EARLY_DATA_WAIT);
    }

    /// Whether `initial` is the hash of an initial segment of this connection.
    pub(super) fn was_opened_by(&self, initial: InitialHash) -> bool {
        self.opened_by.contains(initial)
    }

    /// Whether `initial`, the hash of the initial segment of `datagram`, belongs to another connection: it is
    /// neither a retransmission nor a reordered initial segment of this connection, nor a reflected datagram.
    pub(super) fn is_other_initial(&mut self, initial: InitialHash, datagram: &[u8]) -> bool {
        if !self.opened_by.is_by_peer() || self.opened_by.contains(initial) {
            return false;
        }
        if self.opened_by.was_overtaken(initial) {
            self.opened_by.add(initial);
            return false;
        }
        // After an open without data the first data belongs to this connection.
        let first = self.kcp.awaits_first_data() && matches!(initial, InitialHash::Data(_));
        (!first || self.lifecycle.is_ended()) && !self.kcp.is_reflection(datagram)
    }

    /// An initial segment of another connection came from the peer's address: the peer may have restarted. A
    /// ping leaves, and its answer shows whether the peer still has its state.
    pub(super) fn on_other_initial(&mut self, now: Instant, initial: InitialHash) {
        if self.lifecycle.is_ended() {
            // The RST of this connection would only delay the peer's new one.
            self.kcp.cancel_reset();
        } else {
            self.restarted_by = Some(initial);
            self.kcp.suspect_restart(now);
        }
    }

    /// Whether a peer opened the connection without data and has sent none yet.
    pub(super) fn awaits_first_data(&self) -> bool {
        self.opened_by.is_by_peer() && self.kcp.awaits_first_data()
    }

    /// Calls [`Self::on_first_data`] if `initial`, the hash of the initial segment of `datagram`, may be
    /// first data.
    pub(super) fn on_possible_first_data(&mut self, initial: InitialHash, datagram: &[u8]) {
        if self.awaits_first_data()
            && matches!(initial, InitialHash::Data(_))
            && !self.lifecycle.is_ended()
            && !self.kcp.is_reflection(datagram)
        {
            self.on_first_data(initial);
        }
    }

    /// Records the first data of a connection that was opened without data. Its retransmission then counts
    /// neither as another initial segment nor as a replay.
    pub(super) fn on_first_data(&mut self, first: InitialHash) {
        self.opened_by.add(first);
    }

    /// Whether `datagram` was sent by this connection and reflected to it. Counts a reflected datagram.
    pub(super) fn is_reflection(&mut self, datagram: &[u8]) -> bool {
        let reflected = self.kcp.is_reflection(datagram);
        if reflected {
            self.kcp.count_reflected();
        }
        reflected
    }

    #[cfg(test)]
    pub(super) fn data_memory(&self) -> usize {
        let (unread, unsent) = (self.shared.recv.charged(), self.shared.send.unsent_bytes());
        self.kcp.recv_memory() + self.kcp.send_memory() + unread + unsent
    }

    #[cfg(test)]
    pub(super) fn redundancy_stats(&self) -> crate::stats::RedundancyStats {
        self.kcp.stats().redundancy
    }

    #[cfg(feature = "_testkit")]
    pub(super) fn check_invariants(&self) {
        self.kcp.check_invariants();
        self.check_routes();
    }

    /// Handles the deadlines that have passed, see [`Self::deadline`]. Returns whether an idle connection has
    /// released memory.
    pub(super) fn on_timeout(&mut self, now: Instant) -> bool {
        self.kcp.handle_timeout(now);
        self.memory_release_at.is_some_and(|at| now >= at) && self.release_memory(now)
    }

    pub(super) fn input(
        &mut self,
        now: Instant,
        datagram: &[u8],
        packet_type: PacketType,
    ) -> Result<InputOutcome, InputError> {
        let was_validated = self.is_validated();
        self.kcp.input(now, datagram, packet_type)?;
        if packet_type == PacketType::Regular {
            self.last_received = now;
        }
        let validated = !was_validated && self.is_validated();
        let simultaneous_passive_open = self.is_simultaneous_passive_open()
            && !self.lifecycle.is_ended()
            && self.quiet_until.is_none();
        let immediate_ack = self.kcp.acks_at_once();
        Ok(InputOutcome { immediate_ack, validated, simultaneous_passive_open })
    }

    /// Whether [`Self::input_more`] may take datagrams after `previous`, the datagram fed last.
    pub(super) fn may_input_more(&self, local: LocalIp, previous: &[u8]) -> bool {
        // `AckPolicy::Immediate` wants an ACK for each datagram.
        !self.kcp.acks_at_once()
            && !self.is_unvalidated()
            && self.apparent_migration(local, previous).is_none()
            && self.kcp.may_input_more(previous)
    }

    /// Feeds the datagrams of a GRO batch that continue `previous`, the datagram fed last, to the state
    /// machine, see `Kcp::input_more`. Returns their number. To be called where [`Self::may_input_more`]
    /// holds.
    pub(super) fn input_more<'a>(
        &mut self,
        now: Instant,
        previous: &[u8],
        rest: impl Iterator<Item = &'a [u8]>,
    ) -> usize {
        let taken = self.kcp.input_more(now, previous, rest);
        if taken > 0 {
            self.last_received = now;
        }
        taken
    }

    /// Path validation (RFC 9000 8.2): a datagram with this conversation id came on `path`, from another
    /// address than the peer's. `cookie`: random, for a PATH_CHALLENGE.
    pub(super) fn validate_path(
        &mut self,
        now: Instant,
        path: Path,
        datagram: &[u8],
        cookie: u32,
    ) -> PathValidation {
        let is_new = self.kcp.has_something_new(datagram);
        self.kcp.validate_other_path(now, path, datagram, is_new, cookie)
    }

    /// The response to a datagram that came to the IP `local` of this host. `None` if it is the local IP
    /// already, or this side opened the connection, which leaves the choice to the system. To be asked before
    /// the connection takes the datagram.
    #[inline]
    pub(super) fn apparent_migration(
        &self,
        local: LocalIp,
        datagram: &[u8],
    ) -> Option<ApparentMigration> {
        if local == self.path.local || local == LocalIp::ANY || !self.is_opened_by_peer() {
            return None;
        }
        if !self.is_validated() {
            return Some(ApparentMigration::Accept);
        }
        let is_new = self.kcp.has_something_new(datagram);
        Some(if is_new && self.path.local == LocalIp::ANY {
            ApparentMigration::Accept
        } else {
            ApparentMigration::ValidatePath { is_new }
        })
    }

    /// The connection has taken a datagram that came to another IP of this host, `local`. Returns the
    /// PATH_CHALLENGE that is to leave from there.
    pub(super) fn on_apparent_migration(
        &mut self,
        now: Instant,
        local: LocalIp,
        response: ApparentMigration,
        datagram: &[u8],
        cookie: u32,
    ) -> Option<PathChallenge> {
        let ApparentMigration::ValidatePath { is_new } = response else {
            self.set_local_ip(local);
            return None;
        };
        let path = Path { local, ..self.path };
        match self.kcp.validate_other_path(now, path, datagram, is_new, cookie) {
            PathValidation::Unvalidated => None,
            PathValidation::Challenge(challenge) => Some(challenge),
            PathValidation::Validated => {
                self.at_first_path();
                self.kcp.on_path_validated(now);
                self.set_local_ip(local);
                None
            }
        }
    }

    pub(super) fn set_local_ip(&mut self, local: LocalIp) {
        if self.path.local != local && self.at_first_path() {
            self.kcp.leave_path();
        }
        self.path.local = local;
        self.shared.set_path(self.path);
    }

    /// Shares the model of the path with `other`, which is on the same path.
    pub(super) fn share_path(&mut self, other: &mut Self) {
        self.kcp.share_path(&other.kcp.shared_path());
    }

    /// The network of this host has changed: the system chooses the local IP, and a ping lets the peer migrate
    /// (RFC 9000 9.2). Peers of a connection that they opened know this host by its address, which stays.
    pub(super) fn on_network_changed(&mut self, now: Instant) {
        if !self.is_opened_by_peer() {
            self.set_local_ip(LocalIp::ANY);
        }
        self.kcp.network_changed(now);
    }

    /// The socket was replaced: no connection keeps its local IP.
    pub(super) fn on_rebound(&mut self, now: Instant) {
        self.set_local_ip(LocalIp::ANY);
        self.kcp.network_changed(now);
    }

    /// Changes the path to `path`, which is validated. A new port alone is a NAT rebinding, which keeps what
    /// was measured (RFC 9000 9.4).
    pub(super) fn migrate(&mut self, now: Instant, path: Path) {
        let is_rebinding = self.path.peer.ip() == path.peer.ip() && self.path.local == path.local;
        self.path = path;
        if self.at_first_path() {
            self.kcp.leave_path();
            if !is_rebinding {
                self.kcp.on_path_changed(now);
            }
            self.kcp.on_path_validated(now);
        }
        self.span.migrated(path.peer);
        self.shared.set_path(path);
    }
}
