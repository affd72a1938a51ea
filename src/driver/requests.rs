//! Requests of the endpoint's handles: connect, listen, rebind, wait until idle, raw datagrams.

use std::io;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Instant;

use rand_core::Rng;
use tokio::sync::oneshot;

use crate::config::Setting;
use crate::driver::Driver;
use crate::driver::connection::DrainState;
use crate::driver::input::RecvBackoff;
use crate::error::unresolved;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::conn_id::ConnId;
use crate::shared::requests::{Drain, Rebind, Request};
use crate::sys::{Socket, UdpSocket};
use crate::util::path::Path;

/// Raw datagrams that leave per turn, at most.
const TURN_RAW: usize = 64;

impl<S: Socket> Driver<S> {
    /// Acts on what handles have queued since the last turn: ids of connections whose queues
    /// changed, then settings, then requests, then raw datagrams.
    pub(super) fn drain_requests(&mut self, now: Instant) {
        let mut requests = std::mem::take(&mut self.scratch.requests);
        let mut ids = std::mem::take(&mut self.scratch.ids);
        let mut settings = std::mem::take(&mut self.scratch.settings);
        // Requests before ids: every write made before a request is then covered by the ids.
        self.requests.drain(&mut requests);
        self.notifier.drain(&mut ids, &mut settings);
        for id in ids.drain(..) {
            self.schedule(id);
        }
        for (id, setting) in settings.drain(..) {
            self.apply(id, setting);
        }
        for request in requests.drain(..) {
            self.on_request(now, request);
        }
        self.scratch.requests = requests;
        (self.scratch.ids, self.scratch.settings) = (ids, settings);
        self.send_raw();
    }

    /// Registers the waker of the driver's task. Returns true if handles have queued anything: the
    /// task takes another turn instead of parking.
    pub(super) fn register(&self, waker: &Waker) -> bool {
        self.notifier.register(waker) || self.requests.has_pending()
    }

    /// Changes a setting of a running connection.
    fn apply(&mut self, id: ConnId, setting: Setting) {
        let Some(conn) = self.get_mut(id) else { return };
        conn.apply(setting);
        if let Setting::Fec(fec) = setting {
            let (peer, decodes_any) = (conn.peer(), conn.peer_decodes_any_fec());
            self.peers.set_fec(peer, fec, decodes_any, &mut self.memory);
            for slot in self.peers.slots(peer) {
                if let Some(conn) = self.conns.get(slot) {
                    conn.publish_max_fec_shards(self.peers.max_fec_shards(peer));
                }
            }
        }
        self.schedule(id);
    }

    fn on_request(&mut self, now: Instant, request: Request) {
        match request {
            Request::Connect { peer, conv, reply } => {
                let opened = self.connect(now, peer, conv);
                // The caller may be gone; the handle is then dropped like any other.
                drop(reply.send(opened));
            }
            // Likewise the listener. A rebind is not undone if its caller is gone.
            Request::Listen(reply) => drop(reply.send(self.listen())),
            Request::Rebind(rebind, reply) => drop(reply.send(self.rebind(now, rebind))),
            Request::WaitIdle(reply) => {
                self.exchange_ready(now);
                self.idle_waiters.push(reply);
            }
            Request::Drain(drain, reply) => self.on_drain(now, drain, reply),
            Request::CanReleasePort(reply) => self.on_can_release_port(now, reply),
            Request::ReleasePort(reply) => self.release_port(now, reply),
        }
    }

    /// Exchanges queues with all ready connections, so that connections whose handles left data to
    /// deliver count as lingering. The ready list is not waited for to become empty: with busy
    /// connections it may never be.
    pub(super) fn exchange_ready(&mut self, now: Instant) {
        for id in &self.ready {
            if let Some(conn) = self.conns.get_mut(id.slot as usize).filter(|c| c.id() == *id) {
                conn.exchange_queues(now, &mut self.scratch);
                conn.count_lingering(now, false, &mut self.lingering);
            }
        }
    }

    /// Replies to `wait_idle` once no connection lingers and the last datagrams have left.
    pub(super) fn answer_idle_waiters(&mut self) {
        if self.idle_waiters.is_empty() || !self.tx.is_empty() || self.lingering > 0 {
            return;
        }
        for waiter in self.idle_waiters.drain(..) {
            // The caller may be gone.
            let _ = waiter.send(());
        }
    }

    /// The conversation id of a new connection with `peer`: `wanted`, the configured one, or a
    /// free one at random.
    pub(super) fn choose_conv(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        wanted: Option<u32>,
    ) -> io::Result<u32> {
        if let Some(conv) = wanted.or(self.config.conv) {
            let key = (peer, conv);
            self.demux.expire(now);
            if !self.demux.contains(&key) {
                return Ok(conv);
            }
            // Segments of the other connection that are still in flight would get into this one.
            let live = self.demux.find(&key).is_some();
            let when = if live { "is in use" } else { "was in use less than a minute ago" };
            let text = format!("conversation id {conv} {when} with {peer}");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        loop {
            let conv = self.rng.next_u32();
            if conv != 0 && !self.demux.contains(&(peer, conv)) {
                return Ok(conv);
            }
        }
    }

    /// Lets peers open connections, until the listener is dropped.
    fn listen(&mut self) -> io::Result<AcceptHandle> {
        if self.accept.as_ref().is_some_and(|accept| accept.is_open()) {
            let text = format!("the endpoint {} has a listener already", self.local());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        let queue = AcceptQueue::new();
        self.accept = Some(queue.clone());
        self.demux.track_convs();
        Ok(AcceptHandle::new(queue))
    }

    /// Replaces the socket, if the new one supports the IP version of every peer.
    fn rebind(&mut self, now: Instant, rebind: Rebind) -> io::Result<()> {
        let socket = match rebind {
            Rebind::Socket(socket) => UdpSocket::from_std(socket)?,
            Rebind::Bind(addrs) => self.bind(&addrs)?,
        };
        for (_, conn) in &self.conns {
            socket.check_peer(conn.peer())?;
        }
        let local = socket.local_addr()?;
        self.socket.replace(socket)?;
        self.ip_fragmentation = false;
        self.notifier.set_local(local);
        // The receive errors were those of the old socket.
        self.recv_backoff = RecvBackoff::default();
        // A peer migrates when a datagram comes from the new address (RFC 9000 9.2), so idle
        // connections send a ping.
        let mut ids = Vec::new();
        for (_, conn) in &mut self.conns {
            conn.on_rebound(now);
            ids.push(conn.id());
        }
        ids.into_iter().for_each(|id| self.schedule(id));
        Ok(())
    }

    /// Binds the first of `addrs` that can be bound.
    fn bind(&self, addrs: &[SocketAddr]) -> io::Result<UdpSocket> {
        let mut failure = None;
        for addr in addrs {
            match UdpSocket::bind(*addr, &self.config.socket) {
                Ok(socket) => return Ok(socket),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(unresolved))
    }

    /// Appends raw datagrams (`Endpoint::send_raw`) to the batch, without FEC and cipher. What
    /// exceeds [`TURN_RAW`] or the batch waits for the next turn.
    fn send_raw(&mut self) {
        let (mut waiting, dropped) = self.requests.raw();
        self.stats.raw_dropped_datagrams = dropped;
        let mut quota = TURN_RAW;
        while waiting && quota > 0 && !self.blocked && !self.tx.is_full() {
            let Some((peer, datagram)) = self.requests.next_raw() else { break };
            quota -= 1;
            self.codec.seal(&mut self.tx);
            self.tx.push_sealed(Path::to(peer), &datagram);
            self.stats.raw_sent_datagrams += 1;
            self.budget = self.budget.saturating_sub(1);
            waiting = self.requests.raw().0;
        }
        self.raw_pending = waiting;
    }
}

// The end of a listener that is to leave no connection behind: `KcpListener::drain`,
// `close_all` and `hand_over`.

impl<S: Socket> Driver<S> {
    /// Ends connections as `drain` says, and replies once none is left.
    pub(super) fn on_drain(&mut self, now: Instant, drain: Drain, reply: oneshot::Sender<()>) {
        self.exchange_ready(now);
        for (_, conn) in &self.conns {
            match drain {
                Drain::Wait => {}
                // It has no stream yet that could end.
                Drain::Close if conn.is_connecting() => conn.shared().abort(),
                Drain::Close => conn.shared().close_write(),
                Drain::Abort => conn.shared().abort(),
            }
        }
        self.drain_waiters.replies.push(reply);
    }

    /// Replies once no connection is in use and everything is delivered, or given up.
    pub(super) fn answer_drain_waiters(&mut self) {
        self.drain_waiters.deadline = None;
        // One that was cancelled is not answered.
        self.drain_waiters.replies.retain(|reply| !reply.is_closed());
        if self.drain_waiters.replies.is_empty() || !self.tx.is_empty() || self.is_drain_blocked() {
            return;
        }
        let mut last: Option<Instant> = None;
        for (_, conn) in &self.conns {
            match conn.drain_state(self.last_turn) {
                DrainState::Waits => {
                    self.drain_waiters.blocker = Some(conn.id());
                    return;
                }
                DrainState::WaitsUntil(until) => last = last.max(Some(until)),
                DrainState::Done => {}
            }
        }
        self.drain_waiters.deadline = last;
        if last.is_none() {
            for reply in self.drain_waiters.replies.drain(..) {
                // The caller may be gone.
                let _ = reply.send(());
            }
        }
    }

    fn is_drain_blocked(&mut self) -> bool {
        let now = self.last_turn;
        let blocker = self.drain_waiters.blocker.and_then(|id| self.get_mut(id));
        blocker.is_some_and(|conn| conn.drain_state(now) == DrainState::Waits)
    }
}
