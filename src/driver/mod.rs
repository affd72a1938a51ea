//! Driver of one UDP socket: one task that owns every connection, timer and buffer of an endpoint.
//!
//! [`Driver::turn`] does everything except waiting. In this order it flushes what the last turn
//! left over, receives, takes the requests of handles, expires timers, serves ready connections,
//! flushes, publishes the statistics and wakes tasks. A turn is synchronous and takes the time as
//! an argument, so the tests run whole endpoints on a simulated network (tests/sim_world.rs). The
//! waiting is in [`task`].
//!
//! A turn is bounded: a fixed number of datagrams is received and sent, the rest waits for the next
//! turn. Connections are served in the order in which they became ready, each with a quota
//! (tests/fairness.rs).
//!
//! `accept`, `after_panic`, `exit`, `invariants`, `migration`, `port_release`, `receive`, `requests`,
//! `serve`, `shard_state`, `socket_time_wait`, `stateless_reset`, `stats`, `timers`, `unknown` and `unusable`
//! hold the methods of [`Driver`] by concern. All other modules of the folder are types that do not depend on [`Driver`].

mod accept;
mod ack_delay;
mod admission;
mod connection;
mod exit;
mod expiring_map;
pub(crate) mod fec;
mod input;
#[cfg(feature = "_testkit")]
mod invariants;
mod memory;
mod migration;
pub(crate) mod output;
mod receive;
mod requests;
mod routing;
mod scratch;
mod serve;
pub(crate) mod shard_state;
mod stateless_reset;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod timer_wheel;
mod waiters;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use slab::Slab;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::core::segment::CONTROL_CAPABLE;
use crate::driver::ack_delay::AckDelay;
use crate::driver::admission::ConnectPacer;
use crate::driver::admission::ConnectionsBySource;
use crate::driver::admission::UnvalidatedPeers;
use crate::driver::admission::replay::{KnownInitial, ReplayFilter};
use crate::driver::admission::retry::Retry;
use crate::driver::connection::Conn;
use crate::driver::exit::state::ExitClock;
use crate::driver::exit::state::PortRelease;
use crate::driver::exit::state::SocketTimeWait;
use crate::driver::input::RecvBackoff;
use crate::driver::input::Unusable;
use crate::driver::memory::Memory;
use crate::driver::output::PacketCodec;
use crate::driver::output::send_batch::SendBatch;
use crate::driver::routing::Demux;
use crate::driver::routing::PeerTable;
use crate::driver::scratch::Scratch;
use crate::driver::stateless_reset::ResetLimiter;
use crate::driver::timer_wheel::TimerWheel;
use crate::driver::waiters::DrainWaiters;
use crate::error::ConnectionError;
use crate::shared::accept_queue::AcceptQueue;
use crate::shared::notifier::{ConnId, Notifier};
use crate::shared::requests::RequestQueue;
use crate::stats::EndpointStats;
use crate::sys::{Socket, prefetch};
use crate::trace;
use crate::util::earliest;
use crate::util::path::LocalIp;
use crate::util::sync::{Arc, Mutex, lock};
use crate::util::task::wake_all;

/// Datagrams sent per turn, duplicates and parity included: six GSO batches of 46 datagrams. A
/// batch is at most 65,000 bytes (`send_batch`), which is 46 datagrams of the default 1,400 bytes.
/// Not to be confused with `MAX_FULL_DATAGRAMS_BEFORE_ACK` of `core`: 44, for 1,472-byte datagrams.
const TURN_PACKETS: usize = 276;
/// Least interval between two turns that a timer starts while the socket is blocked. Most of what a
/// timer makes due cannot be sent then.
const BLOCKED_TIMER_INTERVAL: Duration = Duration::from_millis(10);

/// Visits of other connections between the prefetch of one part of a connection and that of the next
/// part, or its visit.
const PREFETCH_DISTANCE: usize = 3;

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// More is ready to be received or sent: run again after other tasks had a chance.
    Again,
    /// Nothing is left, but ACKs wait until woken readers had a chance to answer, or would if that took no
    /// time ([`AckDelay`]): run again then.
    DelaysAcks,
    /// Nothing is ready: wait for the socket, the notifier or [`Driver::deadline`].
    Idle,
    /// Nothing needs the socket: no connection, handle, TIME-WAIT state or unsent datagram, or these are left
    /// to another endpoint. Or the socket has failed for good.
    Finished,
}

impl Turn {
    /// Whether the driver runs again without being woken.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn runs_again(self) -> bool {
        matches!(self, Self::Again | Self::DelaysAcks)
    }
}

#[derive(Debug)]
pub(crate) struct Driver<S: Socket> {
    socket: S,
    config: Arc<Config>,
    notifier: Arc<Notifier>,
    requests: Arc<RequestQueue>,
    /// Where passively opened connections are queued; `None` until the first `listen`.
    accept: Option<Arc<AcceptQueue>>,
    conns: Slab<Box<Conn>>,
    unvalidated: UnvalidatedPeers,
    memory: Memory,
    retry: Retry,
    resets: ResetLimiter,
    unusable: Unusable,
    connect_pacer: ConnectPacer,
    ack_delay: AckDelay,
    demux: Demux,
    peers: PeerTable,
    sources: ConnectionsBySource,
    codec: PacketCodec,
    /// Replay filter of the initial datagrams that passed admission or hint at a restart, shared by
    /// the shards of a listener (SO_REUSEPORT). No other lock is taken while this one is held.
    initial_nonces: Arc<Mutex<ReplayFilter>>,
    /// The nonces of the last `replay_window` datagrams of this socket.
    replay_filter: ReplayFilter,
    timers: TimerWheel,
    /// Connections to serve. Invariant: a connection is in it at most once (`Conn::mark_ready`).
    ready: VecDeque<ConnId>,
    tx: SendBatch,
    /// True while datagrams of `Endpoint::send_raw` wait that did not leave in the last turn.
    raw_pending: bool,
    /// True from a send that would block until a flush succeeds.
    blocked: bool,
    /// The runtime cannot say any more when the socket is ready, which ends the endpoint.
    readiness_error: Option<io::Error>,
    socket_time_wait: SocketTimeWait,
    /// The error of connections and waiting tasks when the driver is dropped: that its runtime was, unless
    /// it has ended before.
    end_error: ConnectionError,
    /// See [`Self::on_exit`].
    exit_clock: Option<ExitClock>,
    last_turn: Instant,
    recv_backoff: RecvBackoff,
    /// The last turn has received for as long as it may, see [`Self::receive_after`].
    has_caught_up: bool,
    /// The local IP of the datagram that is being handled.
    local_ip: LocalIp,
    /// Datagrams that may still be sent in this turn.
    budget: usize,
    /// Generation of the last connection: distinguishes connections that used the same slot.
    generations: u32,
    rng: ChaCha8Rng,
    /// Connections for which `Conn::is_lingering` holds; `wait_idle` waits until this is 0.
    lingering: usize,
    /// Connections with segments in flight that are larger than the path MTU.
    oversized_connections: usize,
    /// True while the socket permits IP fragmentation, which oversized segments in flight need.
    ip_fragmentation: bool,
    idle_waiters: Vec<oneshot::Sender<()>>,
    drain_waiters: DrainWaiters,
    stats: EndpointStats,
    /// Errors of `stats` that say that a peer's port is closed, up to the last turn.
    refused: u64,
    scratch: Scratch,
    /// Behind `socket`, since fields are dropped in this order.
    release: PortRelease,
    #[cfg(test)]
    counts: tests::Counts,
}

impl<S: Socket> Driver<S> {
    /// `seed` is secret: conversation ids, epochs of timestamps and cookies are derived from it.
    pub(crate) fn new(
        socket: S,
        config: impl Into<Arc<Config>>,
        requests: Arc<RequestQueue>,
        accept: Option<Arc<AcceptQueue>>,
        seed: [u8; 32],
        now: Instant,
    ) -> io::Result<Self> {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let (config, mut secret): (Arc<Config>, _) = (config.into(), [0; 32]);
        rng.fill_bytes(&mut secret);
        let notifier = requests.notifier().clone();
        notifier.set_local(socket.local_addr()?);
        let capability = if config.kcp.close_notify { CONTROL_CAPABLE } else { 0 };
        let retry = Retry::new(now, [rng.next_u64(), rng.next_u64()], capability);
        Ok(Self {
            socket,
            unvalidated: UnvalidatedPeers::new(&config.limits),
            memory: Memory::new(&config, notifier.memory().clone()),
            peers: PeerTable::new(&config),
            sources: ConnectionsBySource::default(),
            codec: PacketCodec::new(&config, secret),
            initial_nonces: Arc::new(Mutex::new(ReplayFilter::of_initials())),
            replay_filter: ReplayFilter::of_latest(config.replay_window),
            config,
            notifier,
            requests: requests.clone(),
            demux: Demux::new(accept.is_some()),
            accept,
            conns: Slab::new(),
            retry,
            resets: ResetLimiter::new(now),
            unusable: Unusable::default(),
            connect_pacer: ConnectPacer::new(now),
            ack_delay: AckDelay::default(),
            timers: TimerWheel::new(now),
            ready: VecDeque::new(),
            tx: SendBatch::default(),
            raw_pending: false,
            blocked: false,
            readiness_error: None,
            socket_time_wait: SocketTimeWait::default(),
            end_error: ConnectionError::RuntimeShutdown,
            exit_clock: None,
            last_turn: now,
            recv_backoff: RecvBackoff::default(),
            has_caught_up: false,
            local_ip: LocalIp::ANY,
            budget: 0,
            generations: 0,
            rng,
            lingering: 0,
            oversized_connections: 0,
            ip_fragmentation: false,
            idle_waiters: Vec::new(),
            drain_waiters: DrainWaiters::default(),
            stats: EndpointStats::default(),
            refused: 0,
            scratch: Scratch::default(),
            release: PortRelease::new(requests),
            #[cfg(test)]
            counts: tests::Counts::default(),
        })
    }

    /// Records a datagram that could open a connection, and returns what of it is known.
    fn remember_initial(&self, now: Instant, nonce: &[u8], datagram: &[u8]) -> KnownInitial {
        lock(&self.initial_nonces).insert_initial(now, nonce, datagram)
    }

    /// Runs one turn: everything except waiting. See the module documentation for the order.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        let last = std::mem::replace(&mut self.last_turn, now);
        self.budget = TURN_PACKETS;
        self.ack_delay.on_turn(now);
        let mut usable =
            self.readiness_error.take().map_or(Ok(()), Err).and_then(|()| self.flush());
        // The batch is empty here. With other connections sending it may never be empty later.
        self.answer_idle_waiters();
        let more = match self.receive_after(now.saturating_duration_since(last), now) {
            Ok(more) => more,
            Err(error) => {
                usable = Err(error);
                false
            }
        };
        self.drain_requests(now);
        self.expire_timers(now);
        self.connect_pacer.release(now, &mut self.ready);
        let served = usable.and_then(|()| self.serve(now));
        let delayed_acks = *served.as_ref().unwrap_or(&0);
        usable = served.and_then(|_| self.flush());
        // A woken task reads the statistics: publish before any task is woken.
        self.publish();
        self.answer_idle_waiters();
        self.answer_drain_waiters();
        self.answer_can_release_port();
        self.count_waiting();
        // A waker that panics ends the endpoint, after the others.
        wake_all(self.scratch.wakers.drain(..)).unwrap_or_else(|panic| resume_unwind(panic));
        match usable {
            Err(error) => {
                trace::endpoint_failed(self.local(), &error);
                self.fail(error);
                Turn::Finished
            }
            Ok(()) if self.is_unused() && self.tx.is_empty() && !self.raw_pending => {
                self.leave_time_wait(now);
                Turn::Finished
            }
            Ok(()) if more || (self.has_more() && !self.blocked) => {
                let is_rest = !more && !self.raw_pending && self.ready.len() == delayed_acks;
                if is_rest { Turn::DelaysAcks } else { Turn::Again }
            }
            Ok(()) if self.ack_delay.awaits_readers() => Turn::DelaysAcks,
            Ok(()) => Turn::Idle,
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.notifier.local()
    }

    /// Whether connections or raw datagrams are left over from this turn.
    fn has_more(&self) -> bool {
        !self.ready.is_empty() || self.raw_pending
    }

    /// When the next turn is due if neither the socket nor a handle wakes the driver before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.next().map(|next| {
            if self.blocked { next.max(self.last_turn + BLOCKED_TIMER_INTERVAL) } else { next }
        });
        let time_wait = self.time_wait_end().filter(|_| self.has_no_users());
        let connects = self.connect_pacer.deadline().filter(|_| !self.blocked);
        let (receives, drains) = (self.recv_backoff.deadline(), self.drain_waiters.deadline());
        earliest([timer, connects, time_wait, receives, drains])
    }

    /// Whether receiving pauses after many receive errors in a row, see [`RecvBackoff`].
    pub(crate) fn is_in_recv_backoff(&self) -> bool {
        self.recv_backoff.is_active()
    }

    /// Whether the last turn left something over or a handle has notified the driver.
    #[cfg(test)]
    fn has_pending_work(&self) -> bool {
        (self.has_more() && !self.blocked) || self.register(std::task::Waker::noop())
    }

    #[cfg(feature = "_testkit")]
    pub(crate) fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    #[cfg(test)]
    fn socket(&self) -> &S {
        &self.socket
    }

    /// Whether the last send would have blocked.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The socket is ready, or the runtime cannot say: the next turn sees to either.
    pub(crate) fn on_socket_ready(&mut self, ready: io::Result<()>) {
        self.readiness_error = ready.err();
    }

    // ----- connections -----

    /// Prefetches connections that are visited soon: of thousands that are idle most are in no cache.
    #[inline]
    fn prefetch(&self, slots: impl Iterator<Item = usize> + Clone) {
        for conn in slots.clone().filter_map(|slot| self.conns.get(slot)) {
            prefetch(&**conn);
        }
        // Where these are, is known once the others have been loaded.
        for conn in slots.filter_map(|slot| self.conns.get(slot)) {
            prefetch(conn.shared());
        }
    }

    /// The same for a list that is visited in order. `slot_at`: the slot of the connection that comes so
    /// many visits later.
    #[inline]
    fn prefetch_ahead(&self, slot_at: impl Fn(usize) -> Option<usize>) {
        let conn = |ahead| self.conns.get(slot_at(ahead)?);
        if let Some(conn) = conn(2 * PREFETCH_DISTANCE) {
            prefetch(&**conn);
        }
        if let Some(conn) = conn(PREFETCH_DISTANCE) {
            prefetch(conn.shared());
        }
    }

    fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.slot as usize)?;
        (conn.id() == id).then_some(&mut **conn)
    }

    /// The endpoint has ended with `error`, and not with its runtime. To be dropped afterwards.
    fn fail(&mut self, error: io::Error) {
        self.notifier.set_error(error);
        self.end_error = ConnectionError::EndpointClosed;
    }

    /// Puts a connection on the ready list, unless it is marked ready already.
    fn schedule(&mut self, id: ConnId) {
        if self.get_mut(id).is_some_and(Conn::mark_ready) {
            self.ready.push_back(id);
        }
    }
}
