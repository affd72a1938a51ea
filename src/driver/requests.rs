//! Requests of the endpoint's handles: connect, listen, rebind, change of network, wait until idle, drain, release the port, raw
//! datagrams.

use std::io;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::config::Setting;
use crate::driver::Driver;
use crate::driver::connection::Conn;
use crate::driver::input::RecvBackoff;
use crate::error::unresolved;
use crate::shared::accept_queue::AcceptHandle;
use crate::shared::notifier::ConnId;
use crate::shared::requests::{Drain, Rebind, Request};
use crate::sys::{Socket, UdpSocket};

impl<S: Socket> Driver<S> {
    /// Acts on what handles have queued since the last turn: ids of connections whose queues changed, then
    /// settings, then requests, then raw datagrams.
    pub(super) fn drain_requests(&mut self, now: Instant) {
        let mut requests = std::mem::take(&mut self.scratch.requests);
        let mut ids = std::mem::take(&mut self.scratch.ids);
        let mut settings = std::mem::take(&mut self.scratch.settings);
        // Drained before the ids, which then cover every write made before a request.
        self.requests.drain(&mut requests);
        self.notifier.drain(&mut ids, &mut settings);
        for id in ids.drain(..) {
            self.routing.schedule(id);
        }
        for (id, setting) in settings.drain(..) {
            self.apply(now, id, setting);
        }
        for request in requests.drain(..) {
            self.on_request(now, request);
        }
        self.scratch.requests = requests;
        (self.scratch.ids, self.scratch.settings) = (ids, settings);
        self.output.send_raw(&self.requests, &mut self.stats);
    }

    /// Registers the waker of the driver's task. Returns true if handles have queued anything: the task then
    /// takes another turn instead of parking.
    pub(super) fn register(&self, waker: &Waker) -> bool {
        self.notifier.register(waker) || self.requests.has_pending()
    }

    /// Changes a setting of a running connection.
    fn apply(&mut self, now: Instant, id: ConnId, setting: Setting) {
        let Some(conn) = self.routing.get_mut(id) else { return };
        conn.apply(now, setting);
        if let Setting::Fec(fec) = setting {
            let (peer, decodes_any) = (conn.peer(), conn.peer_decodes_any_fec());
            let peers = &mut self.routing.peers;
            peers.set_fec(peer, fec, decodes_any, &mut self.memory);
            for slot in peers.slots(peer) {
                if let Some(conn) = self.routing.conns.get(slot) {
                    conn.publish_max_fec_shards(peers.max_fec_shards(peer));
                }
            }
        }
        self.routing.schedule(id);
    }

    /// Acts on a request. A caller that is gone needs no reply: the handle of a connection or listener is
    /// then dropped like any other, and a rebind is not undone.
    fn on_request(&mut self, now: Instant, request: Request) {
        match request {
            Request::Connect { peer, conv, reply } => {
                let opened = self.connect(now, peer, conv);
                drop(reply.send(opened));
            }
            Request::Listen(reply) => drop(reply.send(self.listen())),
            Request::Rebind(rebind, reply) => drop(reply.send(self.rebind(now, rebind))),
            Request::NetworkChanged => {
                self.for_each_connection(|conn| conn.on_network_changed(now))
            }
            Request::AddPath { id, local, reply } => {
                if let Some(conn) = self.routing.get_mut(id) {
                    conn.want_path(now, local, reply);
                    self.routing.schedule(id);
                }
            }
            Request::RemovePath { id, path, reply } => {
                let Some(conn) = self.routing.get_mut(id) else { return };
                let removed = conn.remove_path(now, path);
                if let Some(key) = removed.flatten() {
                    self.routing.demux.remove_further(key, id);
                }
                // A caller that is gone needs no reply.
                let _ = reply.send(removed.is_some());
                self.routing.schedule(id);
            }
            Request::Paths { id, reply } => {
                if let Some(conn) = self.routing.get(id) {
                    drop(reply.send(conn.paths()));
                }
            }
            Request::WaitIdle(reply) => {
                self.exchange_ready(now);
                self.waiters.wait_idle(reply);
            }
            Request::Drain(drain, reply) => self.drain(now, drain, reply),
            Request::CanReleasePort(reply) => {
                self.exchange_ready(now);
                self.release.undecided.push(reply);
            }
            Request::ReleasePort(reply) => self.release_port(now, reply),
            Request::RoutesChanged => self.on_routes_changed(now),
        }
    }

    /// Exchanges queues with all ready connections, so that connections whose handles left data to deliver
    /// count as lingering. This does not wait for an empty ready list: with busy connections it may never be
    /// empty.
    pub(super) fn exchange_ready(&mut self, now: Instant) {
        for id in &self.routing.ready {
            let conn = self.routing.conns.get_mut(id.slot as usize);
            if let Some(conn) = conn.filter(|conn| conn.id() == *id) {
                conn.exchange_queues(now, &mut self.scratch);
                conn.count_lingering(now, false, &mut self.waiters.lingering);
            }
        }
    }

    /// Ends connections as `drain` says (`KcpListener::shutdown`), and replies once none is left.
    fn drain(&mut self, now: Instant, drain: Drain, reply: oneshot::Sender<()>) {
        self.exchange_ready(now);
        for (_, conn) in &self.routing.conns {
            match drain {
                Drain::Wait => {}
                // It has no stream yet that could end.
                Drain::Close if conn.is_connecting() => conn.shared().send.abort(),
                Drain::Close => conn.shared().send.close(),
                Drain::Abort => conn.shared().send.abort(),
            }
        }
        self.waiters.wait_drained(reply);
    }

    /// Lets peers open connections, until the listener is dropped.
    fn listen(&mut self) -> io::Result<AcceptHandle> {
        if self.admission.is_listening() {
            let text =
                format!("the endpoint {} already has a listener: drop it first", self.local());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        self.routing.demux.track_convs();
        Ok(AcceptHandle::new(self.admission.listen()))
    }

    /// Replaces the socket, if the new one supports the IP version of every peer.
    fn rebind(&mut self, now: Instant, rebind: Rebind) -> io::Result<()> {
        let socket = match rebind {
            Rebind::Socket(socket) => UdpSocket::from_std(socket)?,
            Rebind::Bind(addrs) => self.bind(&addrs)?,
        };
        for (_, conn) in &self.routing.conns {
            socket.check_peer(conn.peer())?;
        }
        let local = socket.local_addr()?;
        self.socket.replace(socket)?;
        self.output.on_rebound();
        self.notifier.set_local(local);
        // The old socket had the receive errors.
        self.input.backoff = RecvBackoff::default();
        self.for_each_connection(|conn| conn.on_rebound(now));
        Ok(())
    }

    /// Changes all connections, whose network has changed, and serves them. Connections on one path share its
    /// new model.
    fn for_each_connection(&mut self, mut change: impl FnMut(&mut Conn)) {
        let mut ids = Vec::new();
        for (_, conn) in &mut self.routing.conns {
            change(conn);
            ids.push(conn.id());
        }
        for id in ids {
            self.routing.share_path(id);
            self.routing.schedule(id);
        }
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
}
