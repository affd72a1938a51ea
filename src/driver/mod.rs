//! The driver: one task per socket that owns everything with protocol meaning.
//!
//! [`Driver::turn`] does everything except waiting: it sends what was left over, receives, looks
//! into the mailbox, lets expired timers act, serves each conversation that something happened to,
//! and sends. It is synchronous and takes the time as an argument, so whole endpoints run on a
//! simulated network. The waiting is in [`task`].
//!
//! A turn is bounded: so many datagrams in, so many out, the rest in the next turn. Conversations
//! take turns in the order in which they became ready, each with a quota.

mod accept;
mod connect_pacer;
mod connection;
mod demux;
mod migration;
pub(crate) mod packet_codec;
mod packet_writer;
mod peer_table;
mod receive;
pub(crate) mod replay_filter;
mod requests;
pub(crate) mod send_batch;
mod serve;
mod stats;
mod task;
#[cfg(test)]
mod tests;
mod timer_wheel;
mod unvalidated;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use slab::Slab;
use tokio::sync::oneshot;

use crate::config::{Config, KcpConfig, Setting};
use crate::driver::connect_pacer::ConnectPacer;
use crate::driver::connection::Conn;
use crate::driver::demux::Demux;
use crate::driver::packet_codec::PacketCodec;
use crate::driver::peer_table::PeerTable;
use crate::driver::replay_filter::ReplayFilter;
use crate::driver::send_batch::{Flushed, SendBatch};
pub(crate) use crate::driver::task::DriverTask;
use crate::driver::timer_wheel::TimerWheel;
use crate::driver::unvalidated::UnvalidatedPeers;
use crate::error::ConnectionError;
use crate::listener::AcceptQueue;
use crate::shared::connection::Outgoing;
use crate::shared::notifier::{ConnId, Mailbox, Request};
use crate::stats::EndpointStats;
use crate::sys::{RxBatch, Socket};
use crate::trace;
use crate::util::sync::{Arc, Mutex, lock};

/// Receive calls per turn; each fills several wide buffers.
const RECV_CALLS: usize = 2;
/// Datagrams that leave per turn, copies included; how many of them may be answers that do not
/// wait for their conversation to be served; and how many are one conversation's. Whole trains,
/// which are 46 datagrams of 1,400 bytes.
const TURN_PACKETS: usize = 276;
const TURN_ANSWERS: usize = 138;
const CONN_PACKETS: usize = 138;
/// How long a socket outlives its last conversation at most: the last answer may be lost, and peers
/// repeat what was not answered after a second at the latest.
const TIME_WAIT: Duration = Duration::from_secs(2);
/// How often a blocked socket lets timers be looked at: most of what is due cannot leave anyway.
const BLOCKED_REST: Duration = Duration::from_millis(10);

/// What a turn ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// More is waiting; let others run first.
    Again,
    /// Nothing to do until something happens.
    Idle,
    /// Nobody needs this driver any more, or its socket is gone.
    Finished,
}

/// Working memory that only a turn needs.
#[derive(Debug, Default)]
struct Scratch {
    wakers: Vec<Waker>,
    outgoing: VecDeque<Outgoing>,
    chunks: VecDeque<Bytes>,
}

thread_local! {
    /// Receive buffers are wide and a turn never yields, so the drivers of a thread share one set:
    /// a process with thousands of sockets has as many sets as threads.
    static RX: RefCell<Option<RxBatch>> = const { RefCell::new(None) };
}

#[derive(Debug)]
pub(crate) struct Driver<S> {
    socket: S,
    config: Config,
    /// Its part for the state machines, which see what the stages leave of a datagram.
    core: KcpConfig,
    mailbox: Arc<Mailbox>,
    /// Where conversations opened by peers go, while somebody listens.
    accept: Option<Arc<AcceptQueue>>,
    conns: Slab<Box<Conn>>,
    strangers: UnvalidatedPeers,
    connect_pacer: ConnectPacer,
    demux: Demux,
    peers: PeerTable,
    codec: PacketCodec,
    /// Of datagrams that opened a conversation, at any socket of a group. Its lock is a leaf.
    initial_nonces: Arc<Mutex<ReplayFilter>>,
    /// Of the latest ones.
    replay_filter: ReplayFilter,
    /// Working memory: what FEC recovered.
    recovered: Vec<(ConnId, Vec<u8>)>,
    timers: TimerWheel,
    /// Conversations that something happened to, each once.
    ready: VecDeque<ConnId>,
    tx: SendBatch,
    /// Datagrams of other protocols are left over.
    raw_pending: bool,
    blocked: bool,
    /// Until when it answers peers that may not know yet that a conversation is over.
    time_wait_until: Option<Instant>,
    /// When the last turn was.
    last_turn: Instant,
    /// Receive errors since the last datagram, and until when that is reason enough to wait.
    recv_failures: u32,
    recv_backoff_until: Option<Instant>,
    /// Datagrams that may still leave in this turn.
    budget: usize,
    generations: u32,
    rng: ChaCha8Rng,
    /// Conversations that still deliver what a dropped handle or a shutdown left behind.
    lingering: usize,
    /// Conversations that need fragments, and whether the socket was told.
    oversized_connections: usize,
    fragments: bool,
    idle_waiters: Vec<oneshot::Sender<()>>,
    stats: EndpointStats,
    published: EndpointStats,
    scratch: Scratch,
    ids: Vec<ConnId>,
    commands: Vec<Request>,
    expired: Vec<usize>,
    /// Conversations looked at so far.
    #[cfg(test)]
    served: usize,
}

impl<S: Socket> Driver<S> {
    /// `seed` is secret: conversation ids, time stamp epochs and cookies come from it.
    pub(crate) fn new(
        socket: S,
        config: Config,
        mailbox: Arc<Mailbox>,
        accept: Option<Arc<AcceptQueue>>,
        seed: [u8; 32],
        now: Instant,
    ) -> io::Result<Self> {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let mut secret = [0; 32];
        rng.fill_bytes(&mut secret);
        mailbox.set_local(socket.local_addr()?);
        Ok(Self {
            socket,
            core: config.core(),
            peers: PeerTable::new(&config),
            codec: PacketCodec::new(&config, secret),
            initial_nonces: Arc::new(Mutex::new(ReplayFilter::of_openings())),
            replay_filter: ReplayFilter::of_latest(config.replay_window),
            recovered: Vec::new(),
            config,
            mailbox,
            accept,
            conns: Slab::new(),
            strangers: UnvalidatedPeers::default(),
            connect_pacer: ConnectPacer::new(now),
            demux: Demux::default(),
            timers: TimerWheel::new(now),
            ready: VecDeque::new(),
            tx: SendBatch::default(),
            raw_pending: false,
            blocked: false,
            time_wait_until: None,
            last_turn: now,
            recv_failures: 0,
            recv_backoff_until: None,
            budget: 0,
            generations: 0,
            rng,
            lingering: 0,
            oversized_connections: 0,
            fragments: false,
            idle_waiters: Vec::new(),
            stats: EndpointStats::default(),
            published: EndpointStats::default(),
            scratch: Scratch::default(),
            ids: Vec::new(),
            commands: Vec::new(),
            expired: Vec::new(),
            #[cfg(test)]
            served: 0,
        })
    }

    /// Shares with the other drivers of a group what they remember of openings: one that was
    /// recorded could be played to each of them otherwise.
    pub(crate) fn share_openings(&mut self, openings: Arc<Mutex<ReplayFilter>>) {
        self.initial_nonces = openings;
    }

    /// Whether an opening with this nonce is new.
    fn is_new_opening(&self, now: Instant, nonce: &[u8]) -> bool {
        lock(&self.initial_nonces).insert(now, nonce)
    }

    /// Everything except waiting.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        (self.budget, self.last_turn) = (TURN_PACKETS, now);
        let mut usable = self.flush();
        // Now, before the batch fills again: it may never be empty later while others are busy.
        self.settle_idle_waiters();
        let more = match self.receive(now) {
            Ok(more) => more,
            Err(error) => {
                usable = Err(error);
                false
            }
        };
        self.read_mailbox(now);
        self.expire(now);
        self.connect_pacer.release(now, &mut self.ready);
        usable = usable.and_then(|()| self.serve(now));
        usable = usable.and_then(|()| self.flush());
        // Before whoever waited looks at them.
        self.publish();
        self.settle_idle_waiters();
        self.scratch.wakers.drain(..).for_each(Waker::wake);
        match usable {
            Err(error) => {
                trace::socket_failed(self.local(), &error);
                self.mailbox.set_fault(error);
                Turn::Finished
            }
            Ok(()) if self.is_unused() && self.tx.is_empty() && !self.raw_pending => Turn::Finished,
            Ok(()) if more || (self.has_more() && !self.blocked) => Turn::Again,
            Ok(()) => Turn::Idle,
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.mailbox.local()
    }

    /// Whether this turn was cut short.
    fn has_more(&self) -> bool {
        !self.ready.is_empty() || self.raw_pending
    }

    /// When the next turn is due if nothing else happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timer = self
            .timers
            .next()
            .map(|next| if self.blocked { next.max(self.last_turn + BLOCKED_REST) } else { next });
        let leaves = self.stays().filter(|_| self.has_no_users());
        let knocks = self.connect_pacer.deadline().filter(|_| !self.blocked);
        [timer, knocks, self.recv_backoff_until, leaves].into_iter().flatten().min()
    }

    /// Whether the socket is left alone for a while: it has only failed of late.
    pub(crate) fn is_resting(&self) -> bool {
        self.recv_backoff_until.is_some()
    }

    /// Whether a turn was cut short or a handle has something to say.
    #[cfg(test)]
    fn has_mail(&self) -> bool {
        (self.has_more() && !self.blocked) || self.mailbox.register(Waker::noop())
    }

    #[cfg(feature = "_testkit")]
    pub(crate) fn check_invariants(&self) {
        self.conns.iter().for_each(|(_, conn)| conn.check_invariants());
    }

    #[cfg(feature = "_testkit")]
    pub(crate) fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    #[cfg(test)]
    fn socket(&self) -> &S {
        &self.socket
    }

    /// Whether the socket takes no more datagrams now.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    fn is_unused(&self) -> bool {
        self.has_no_users() && self.stays().is_none()
    }

    /// Whether there is no conversation, and nobody who could open one from here.
    fn has_no_users(&self) -> bool {
        self.conns.is_empty() && self.mailbox.handles() == 0
    }

    /// Until when it stays for what peers may repeat, as long as that lies ahead.
    fn stays(&self) -> Option<Instant> {
        self.time_wait_until.filter(|until| self.last_turn < *until)
    }

    /// Sends the batch. An error means that the socket cannot be used any more.
    fn flush(&mut self) -> io::Result<()> {
        if self.tx.is_empty() {
            return Ok(());
        }
        let fragments = self.oversized_connections > 0;
        if fragments != self.fragments {
            self.socket.set_ip_fragmentation(fragments);
            self.fragments = fragments;
        }
        self.codec.seal(&mut self.tx);
        let flushed = self.tx.flush(&mut self.socket, &mut self.stats);
        self.blocked = matches!(flushed, Flushed::Blocked);
        for (dst, size) in self.tx.take_too_large() {
            self.on_message_too_big(dst, size);
        }
        if let Some(error) = self.tx.take_fault() {
            self.mailbox.set_fault(error);
        }
        if let Flushed::Fatal(error) = flushed { Err(error) } else { Ok(()) }
    }

    /// The path to `dst` refuses datagrams of this size: new segments get smaller.
    fn on_message_too_big(&mut self, dst: SocketAddr, size: usize) {
        for slot in self.peers.slots(dst) {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.lower_mtu(size);
            }
        }
    }

    // ----- mailbox and timers -----

    fn read_mailbox(&mut self, now: Instant) {
        let (mut ids, mut commands) =
            (std::mem::take(&mut self.ids), std::mem::take(&mut self.commands));
        self.mailbox.drain(&mut ids, &mut commands);
        for id in ids.drain(..) {
            self.schedule(id);
        }
        for command in commands.drain(..) {
            self.on_command(now, command);
        }
        (self.ids, self.commands) = (ids, commands);
        self.send_raw();
    }

    fn on_command(&mut self, now: Instant, command: Request) {
        match command {
            Request::Set(id, setting) => {
                if let Some(conn) = self.get_mut(id) {
                    conn.apply(setting);
                    if let Setting::Fec(fec) = setting {
                        let peer = conn.peer();
                        self.peers.set_fec(peer, fec);
                    }
                    self.schedule(id);
                }
            }
            Request::Connect { peer, conv, reply } => {
                let stream = self.connect(now, peer, conv);
                // Whoever asked may be gone; the stream is then dropped like any other.
                drop(reply.send(stream));
            }
            // The same goes for a listener, and a socket that was replaced stays so.
            Request::Listen(reply) => drop(reply.send(self.listen())),
            Request::Rebind(rebind, reply) => drop(reply.send(self.rebind(now, rebind))),
            Request::WaitIdle(reply) => {
                self.look_at_ready(now);
                self.idle_waiters.push(reply);
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        let mut expired = std::mem::take(&mut self.expired);
        self.timers.expire(now, &mut expired);
        for slot in expired.drain(..) {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.on_timeout(now);
                let id = conn.id();
                self.schedule(id);
            }
        }
        self.expired = expired;
    }

    // ----- conversations -----

    fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.slot as usize)?;
        (conn.id() == id).then_some(&mut **conn)
    }

    /// Puts a conversation on the list of those to serve.
    fn schedule(&mut self, id: ConnId) {
        if self.get_mut(id).is_some_and(Conn::mark_ready) {
            self.ready.push_back(id);
        }
    }
}

impl<S> Drop for Driver<S> {
    /// However the driver ends, a panic or the end of the runtime included, nobody is left asleep.
    fn drop(&mut self) {
        let mut commands = Vec::new();
        self.mailbox.close(&mut self.ids, &mut commands);
        drop(commands);
        let mut wakers: Vec<Waker> = Vec::new();
        for mut conn in self.conns.drain() {
            conn.deliver_rest(&mut self.scratch);
            wakers.extend(conn.shared().end(ConnectionError::EndpointClosed).into_iter().flatten());
        }
        if let Some(accept) = &self.accept {
            wakers.extend(accept.close());
        }
        wakers.drain(..).chain(self.scratch.wakers.drain(..)).for_each(Waker::wake);
    }
}
