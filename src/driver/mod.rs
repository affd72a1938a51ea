//! Driver of one UDP socket: one task that owns every connection, timer and buffer of an endpoint.
//!
//! [`Driver::turn`] does everything except waiting, in this order: it flushes what the last turn left over,
//! receives, takes the requests of handles, expires timers, serves ready connections, flushes, publishes the
//! statistics and wakes tasks. A turn is synchronous and takes the time as an argument, so tests run whole
//! endpoints on a simulated network (tests/sim_world.rs). [`task`] does the waiting.
//!
//! A turn is bounded: it receives and sends a fixed number of datagrams and leaves the rest to the next turn.
//! It serves connections in the order of their readiness, each with a quota (tests/fairness.rs).
//!
//! `accept`, `exit`, `migration`, `receive`, `requests`, `roaming` and `serve` hold the methods of [`Driver`].
//! All other modules are types that do not depend on [`Driver`], so imports run one way.

mod accept;
mod admission;
mod connection;
mod exit;
mod expiring_map;
pub(crate) mod fec;
mod input;
mod memory;
mod migration;
pub(crate) mod output;
mod qlog;
mod receive;
mod requests;
mod roaming;
mod routing;
mod scratch;
mod serve;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod timer_wheel;
mod waiters;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::config::Config;
use crate::core::segment::CONTROL_CAPABLE;
use crate::driver::admission::Admission;
use crate::driver::admission::replay::ReplayFilter;
use crate::driver::exit::state::{ExitClock, PortRelease, SocketTimeWait};
use crate::driver::input::Input;
use crate::driver::memory::Memory;
use crate::driver::output::{Output, PacketCodec};
use crate::driver::qlog::Qlogs;
use crate::driver::routing::{LiveConvs, Routing};
use crate::driver::scratch::Scratch;
use crate::driver::timer_wheel::TimerWheel;
use crate::driver::waiters::Waiters;
use crate::error::ConnectionError;
use crate::shared::accept_queue::AcceptQueue;
use crate::shared::notifier::Notifier;
use crate::shared::requests::RequestQueue;
use crate::stats::EndpointStats;
use crate::sys::Socket;
use crate::trace;
use crate::util::earliest;
use crate::util::sync::{Arc, Mutex};
use crate::util::task::wake_all;

/// Shortest time between two turns that a timer starts while the socket is blocked: little that a timer makes
/// due can be sent then.
const BLOCKED_TIMER_INTERVAL: Duration = Duration::from_millis(10);

/// The next step after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// More is ready to be received or sent: run again after other tasks had a chance.
    Again,
    /// ACKs wait for the answers of woken readers, or a turn measures that wait
    /// ([`AckDelay`](output::AckDelay)): run again then.
    DelaysAcks,
    /// Nothing is ready: wait for the socket, the notifier or [`Driver::deadline`].
    Idle,
    /// The driver ends: the socket failed for good, or nothing needs it. A socket is needed by connections,
    /// handles, TIME-WAIT states and unsent datagrams that no other endpoint takes over.
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
    routing: Routing,
    admission: Admission,
    input: Input,
    output: Output,
    waiters: Waiters,
    /// The last known source address of datagrams to peers that this side has connected to; `None` if no route
    /// led there. Empty without the feature `netlink`. See `roaming.rs`.
    sources: HashMap<SocketAddr, Option<IpAddr>>,
    memory: Memory,
    timers: TimerWheel,
    scratch: Scratch,
    stats: EndpointStats,
    qlogs: Qlogs,
    rng: ChaCha8Rng,
    last_turn: Instant,
    /// The error of connections and waiting tasks when the driver is dropped. Until the driver ends by itself
    /// its runtime must have ended.
    end_error: ConnectionError,
    /// See [`Self::on_exit`].
    exit_clock: Option<ExitClock>,
    socket_time_wait: SocketTimeWait,
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
        let retry_key = [rng.next_u64(), rng.next_u64()];
        let seqids = rng.next_u64();
        Ok(Self {
            socket,
            routing: Routing::new(&config, accept.is_some(), seqids),
            admission: Admission::new(now, &config.limits, accept, retry_key, capability),
            input: Input::new(config.replay_window),
            output: Output::new(PacketCodec::new(&config, secret)),
            waiters: Waiters::default(),
            sources: HashMap::new(),
            memory: Memory::new(&config, notifier.memory().clone()),
            timers: TimerWheel::new(now),
            qlogs: Qlogs::new(&config)?,
            config,
            notifier,
            requests: requests.clone(),
            scratch: Scratch::default(),
            stats: EndpointStats::default(),
            rng,
            last_turn: now,
            end_error: ConnectionError::RuntimeShutdown,
            exit_clock: None,
            socket_time_wait: SocketTimeWait::default(),
            release: PortRelease::new(requests),
            #[cfg(test)]
            counts: tests::Counts::default(),
        })
    }

    /// Makes this driver one of several shards. To be called before the first connection.
    pub(crate) fn join_shards(&mut self, shared: ShardState) {
        self.admission.initial_nonces = shared.initial_nonces;
        self.routing.demux.share_convs(shared.live_convs);
    }

    /// Runs one turn: everything except waiting. The module documentation has the order.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        let last = std::mem::replace(&mut self.last_turn, now);
        self.output.begin_turn(now);
        let mut usable =
            self.input.readiness_error.take().map_or(Ok(()), Err).and_then(|()| self.flush());
        // The batch is empty here. With other connections sending it may never be empty later.
        self.waiters.answer_idle(self.output.tx.is_empty());
        let more = match self.receive_after(now.saturating_duration_since(last), now) {
            Ok(more) => more,
            Err(error) => {
                usable = Err(error);
                false
            }
        };
        self.drain_requests(now);
        self.expire_timers(now);
        self.admission.connect_pacer.release(now, &mut self.routing.ready);
        let served = usable.and_then(|()| self.serve(now));
        let delayed_acks = *served.as_ref().unwrap_or(&0);
        usable = served.and_then(|_| self.flush());
        // A woken task reads the statistics: publish before any task is woken.
        self.publish();
        let is_flushed = self.output.tx.is_empty();
        self.waiters.answer_idle(is_flushed);
        self.waiters.answer_drained(now, is_flushed, &self.routing);
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
            Ok(()) if self.is_unused() && self.output.is_empty() => {
                self.leave_time_wait(now);
                Turn::Finished
            }
            Ok(()) if more || (self.has_more() && !self.output.blocked) => {
                let only_acks =
                    !more && !self.output.raw_pending && self.routing.ready.len() == delayed_acks;
                if only_acks { Turn::DelaysAcks } else { Turn::Again }
            }
            Ok(()) if self.output.ack_delay.awaits_readers() => Turn::DelaysAcks,
            Ok(()) => Turn::Idle,
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.notifier.local()
    }

    /// Whether connections or raw datagrams are left over from this turn.
    fn has_more(&self) -> bool {
        !self.routing.ready.is_empty() || self.output.raw_pending
    }

    /// When the next turn is due if neither the socket nor a handle wakes the driver before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let blocked = self.output.blocked;
        let timer = self.timers.next().map(|next| {
            if blocked { next.max(self.last_turn + BLOCKED_TIMER_INTERVAL) } else { next }
        });
        let time_wait = self.time_wait_end().filter(|_| self.has_no_users());
        let connects = self.admission.connect_pacer.deadline().filter(|_| !blocked);
        let (receives, drains) = (self.input.backoff.deadline(), self.waiters.deadline());
        earliest([timer, connects, time_wait, receives, drains])
    }

    /// Whether receiving pauses after many receive errors in a row, see
    /// [`RecvBackoff`](input::RecvBackoff).
    pub(crate) fn is_in_recv_backoff(&self) -> bool {
        self.input.backoff.is_active()
    }

    /// Whether the last turn left something over or a handle has notified the driver.
    #[cfg(test)]
    fn has_pending_work(&self) -> bool {
        (self.has_more() && !self.output.blocked) || self.register(std::task::Waker::noop())
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
        self.output.blocked
    }

    /// The socket is ready, or the runtime failed to say so. The next turn handles both.
    pub(crate) fn on_socket_ready(&mut self, ready: io::Result<()>) {
        self.input.readiness_error = ready.err();
    }

    /// The endpoint has ended with `error`, and not with its runtime. To be dropped afterwards.
    fn fail(&mut self, error: io::Error) {
        self.notifier.set_error(error);
        self.end_error = ConnectionError::EndpointClosed;
    }
}

/// State that the drivers of a sharded listener (SO_REUSEPORT) share.
#[derive(Clone, Debug)]
pub(crate) struct ShardState {
    /// A replayed initial datagram must not open a connection at each shard.
    initial_nonces: Arc<Mutex<ReplayFilter>>,
    /// A copy of a ping from an address of another shard must not draw a RST.
    live_convs: Arc<Mutex<LiveConvs>>,
}

impl ShardState {
    pub(crate) fn new() -> Self {
        let initial_nonces = Arc::new(Mutex::new(ReplayFilter::of_initials()));
        Self { initial_nonces, live_convs: Arc::default() }
    }
}

/// Checks after every turn of tests and fuzz targets.
#[cfg(feature = "_testkit")]
impl<S: Socket> Driver<S> {
    /// Panics unless the tables of the driver are consistent and within their limits.
    pub(crate) fn check_invariants(&self) {
        use crate::config::CONNECTION_COST;
        use crate::driver::memory::LEAST_QUOTA;

        /// The buffer that was allocated last may exceed the limit.
        const LAST_BUFFER: usize = 64 << 10;
        /// Bytes of one FEC reconstruction beside the packets that it recovers.
        const COEFFICIENTS: usize = 256 << 10;

        let conns = || self.routing.conns.iter().map(|(_, conn)| conn);
        conns().for_each(|conn| conn.check_invariants());
        let (count, limits) = (self.routing.conns.len(), &self.config.limits);
        let (ready, peers) = (self.routing.ready.len(), self.routing.peers.len());
        assert!(count <= limits.max_connections, "{count} connections");
        assert!(ready <= count, "{ready} of {count} are ready");
        assert!(self.waiters.lingering <= count && self.output.oversized_connections <= count);
        self.routing.demux.check_invariants(count);
        assert!(peers <= count, "{peers} addresses of {count}");
        let passive = conns().filter(|conn| conn.is_opened_by_peer()).count();
        let unvalidated = conns().filter(|conn| conn.is_unvalidated()).count();
        self.admission.check_invariants(passive, unvalidated);
        assert!(unvalidated <= limits.max_unvalidated / 2 + 1, "{unvalidated} unvalidated peers");
        let held: usize = conns().map(|conn| conn.held()).sum();
        let fec = self.routing.peers.memory();
        assert_eq!(self.memory.held(), held + fec, "memory of all holders");
        let used = self.memory.used();
        // Each connection has its state, the least quota of both directions and what its application has
        // written since the last turn.
        let least = CONNECTION_COST + 2 * LEAST_QUOTA + self.config.send_buffer;
        let beyond = count * least + peers * COEFFICIENTS + LAST_BUFFER;
        assert!(used <= limits.memory + beyond, "{used} bytes");
    }
}
