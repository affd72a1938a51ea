//! What handles ask of the endpoint as a whole: to dial, to listen, another socket, datagrams of
//! other protocols.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use rand_core::Rng;

use super::Driver;
use crate::endpoint::{Endpoint, unresolved};
use crate::listener::{AcceptQueue, KcpListener};
use crate::shared::notifier::Rebind;
use crate::sys::{Socket, UdpSocket};

/// Datagrams of other protocols that leave per turn.
const TURN_RAW: usize = 64;

impl<S: Socket> Driver<S> {
    /// The id of a new conversation with `peer`: `wanted`, the configured one, or any that is free.
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
            // What is still under way of the other one would get into this one.
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

    /// Lets peers open conversations, as long as the listener lives.
    pub(super) fn listen(&mut self) -> io::Result<KcpListener> {
        if self.accept.as_ref().is_some_and(|accept| accept.is_open()) {
            let text = format!("the endpoint {} has a listener already", self.local());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        let queue = AcceptQueue::new();
        self.accept = Some(queue.clone());
        Ok(KcpListener::new(queue, Endpoint::attach(self.mailbox.clone())))
    }

    /// Goes on with another socket, if it can reach everyone.
    pub(super) fn rebind(&mut self, now: Instant, rebind: Rebind) -> io::Result<()> {
        let socket = match rebind {
            Rebind::Socket(socket) => *socket,
            Rebind::Bind(addrs) => self.bind(&addrs)?,
        };
        for (_, conn) in &self.conns {
            socket.check_peer(conn.peer())?;
        }
        let local = socket.local_addr()?;
        self.socket.replace(socket)?;
        self.fragments = false;
        self.mailbox.set_local(local);
        // Whatever was wrong was so with the other one.
        (self.recv_failures, self.recv_backoff_until) = (0, None);
        // Peers that follow have to hear from the new address, also of who only listens.
        let mut ids = Vec::new();
        for (_, conn) in &mut self.conns {
            conn.on_rebound(now);
            ids.push(conn.id());
        }
        ids.into_iter().for_each(|id| self.schedule(id));
        Ok(())
    }

    /// Binds the first of `addrs` that can be.
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

    /// Exchanges queues with all ready connections, so that what their handles left to deliver counts
    /// as lingering. Waiting until none is ready would not do: beside busy connections that may
    /// never be.
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

    /// Puts datagrams of other protocols into the batch, past the stages. What does not fit waits.
    pub(super) fn send_raw(&mut self) {
        let (mut waiting, dropped) = self.mailbox.raw();
        self.stats.raw_dropped_datagrams = dropped;
        let mut room = TURN_RAW;
        while waiting && room > 0 && !self.blocked && !self.tx.is_full() {
            let Some((peer, datagram)) = self.mailbox.next_raw() else { break };
            room -= 1;
            self.codec.seal(&mut self.tx);
            self.tx.push_sealed(peer, &datagram);
            self.stats.raw_sent_datagrams += 1;
            self.budget = self.budget.saturating_sub(1);
            waiting = self.mailbox.raw().0;
        }
        self.raw_pending = waiting;
    }
}
