//! The network paths of a connection with several: which addresses a path number stands for. The state machine
//! decides what leaves on which (`core/path/set.rs`).

use std::io;
#[cfg(feature = "qlog")]
use std::net::SocketAddr;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::core::connection::multipath::{AddPathError, PathInfo};
#[cfg(any(feature = "tracing", feature = "_testkit"))]
use crate::core::path::set::MAX_PATHS;
use crate::core::path::set::PathId;
#[cfg(feature = "tracing")]
use crate::core::path::set::PathState;
use crate::driver::connection::{Conn, Key, Routes};
use crate::driver::output::send_batch::SendBatch;
use crate::driver::output::{PacketWriter, SendExtras, Written};
use crate::shared::requests::{PathReport, PathTraffic};
use crate::stats::UdpStats;
use crate::util::path::{LocalIp, Path};

impl Conn {
    /// Whether the connection has, or had, further paths.
    #[inline]
    pub(in super::super) fn has_routes(&self) -> bool {
        self.routes.is_some()
    }

    /// Whether the connection has several paths.
    pub(in super::super) fn has_several_paths(&self) -> bool {
        self.routes.as_ref().is_some_and(|routes| !routes.further.is_empty())
    }

    /// The names of the further paths on the wire, as seen by a listener.
    pub(in super::super) fn further_keys(&self) -> impl Iterator<Item = Key> + '_ {
        let further = self.routes.iter().flat_map(|routes| &routes.further);
        further.map(|(_, path)| (path.peer, self.shared.conv))
    }

    fn path_of(&self, id: PathId) -> Path {
        let further = self.routes.as_deref().map_or(&[][..], |routes| &routes.further);
        let found = further.iter().find(|(known, _)| *known == id);
        found.map_or(self.path, |(_, path)| *path)
    }

    /// Address of the peer on the path that the log names.
    #[cfg(feature = "qlog")]
    pub(in super::super) fn qlog_peer(&self) -> SocketAddr {
        self.path_of(self.kcp.qlog_path()).peer
    }

    /// All paths.
    pub(in super::super) fn paths(&self) -> Vec<PathReport> {
        let traffic = |info: &PathInfo| {
            let all = self.routes.as_ref().map(|routes| routes.traffic);
            all.and_then(|all| all.get(usize::from(info.id.0)).copied()).unwrap_or_default()
        };
        let report = |info: PathInfo| {
            let (path, traffic) = (self.path_of(info.id), traffic(&info));
            PathReport { path, info, traffic }
        };
        self.kcp.paths().map(report).collect()
    }

    /// Counts the datagrams that [`Conn::transmit`] has appended to the batch after the first `before`.
    pub(super) fn count_sent(&mut self, tx: &SendBatch, before: usize) {
        let first = self.path;
        let Some(routes) = &mut self.routes else { return };
        let Routes { further, traffic, .. } = &mut **routes;
        for (path, len) in tx.appended(before) {
            let found = further.iter().find(|(_, known)| *known == path);
            let id = found.map_or(PathId::FIRST, |(id, _)| *id);
            if let Some(traffic) = traffic.get_mut(usize::from(id.0))
                && (found.is_some() || path == first)
            {
                traffic.sent += UdpStats { datagrams: 1, bytes: len as u64 };
            }
        }
    }

    /// Counts datagrams that came on the path of the latest [`Conn::set_arrival`].
    pub(in super::super) fn count_received(&mut self, datagrams: usize, bytes: usize) {
        let arrival = self.kcp.arrival();
        let routes = self.routes.as_deref_mut();
        let traffic = routes.and_then(|routes| routes.traffic.get_mut(usize::from(arrival.0)));
        if let Some(traffic) = traffic {
            traffic.received += UdpStats { datagrams: datagrams as u64, bytes: bytes as u64 };
        }
    }

    /// A path begins, or ends: it has no figures.
    fn forget_traffic(&mut self, id: PathId) {
        let routes = self.routes.as_deref_mut();
        let traffic = routes.and_then(|routes| routes.traffic.get_mut(usize::from(id.0)));
        if let Some(traffic) = traffic {
            *traffic = PathTraffic::default();
        }
    }

    /// The path on which data leaves.
    #[inline]
    pub(in super::super) fn active_path(&self) -> Path {
        if self.routes.is_none() { self.path } else { self.path_of(self.kcp.active_path()) }
    }

    /// The next datagrams for the state machine came on `path`.
    pub(in super::super) fn set_arrival(&mut self, path: Path) {
        let Some(routes) = &self.routes else { return };
        let is_it = |known: &Path| {
            known.peer == path.peer && (known.local == path.local || known.local == LocalIp::ANY)
        };
        let further = routes.further.iter().find(|(_, known)| is_it(known));
        self.kcp.set_arrival(further.map_or(PathId::FIRST, |(id, _)| *id));
    }

    /// The application wants a further path from `local`. `reply` tells whether the peer takes it.
    pub(in super::super) fn want_path(
        &mut self,
        now: Instant,
        local: LocalIp,
        reply: oneshot::Sender<io::Result<PathId>>,
    ) {
        if self.is_opened_by_peer() {
            drop(reply.send(Err(unsupported(AddPathError::OpenedByPeer))));
            return;
        }
        self.kcp.ask_for_paths();
        self.routes.get_or_insert_default().wanted.push((local, reply));
        self.open_wanted_paths(now);
    }

    /// Opens the paths that the application wants, once the peer has shown whether it takes them.
    pub(super) fn open_wanted_paths(&mut self, now: Instant) {
        let Some(accepts) = self.kcp.peer_accepts_paths() else { return };
        let Some(routes) = &mut self.routes else { return };
        for (local, reply) in routes.wanted.drain(..) {
            let path = Path { local, ..self.path };
            let has_first = self.kcp.paths().any(|path| path.id == PathId::FIRST);
            let is_known = (has_first && self.path.local == local)
                || routes.further.iter().any(|(_, known)| known.local == local);
            let added = if is_known {
                let text = "the connection has a path from this address already";
                Err(io::Error::new(io::ErrorKind::AddrInUse, text))
            } else if accepts {
                self.kcp.add_path(now).map_err(unsupported)
            } else {
                Err(unsupported(AddPathError::NotSupported))
            };
            if let Ok(id) = added {
                routes.further.push((id, path));
            }
            drop(reply.send(added));
        }
    }

    /// The peer has answered a PATH_CHALLENGE on a further path that it has announced. Returns `None` if the
    /// connection does not take it, otherwise the key of the path that it replaces, which is to be forgotten.
    pub(in super::super) fn add_peer_path(
        &mut self,
        now: Instant,
        path: Path,
    ) -> Option<Option<Key>> {
        let (id, rtt) = self.kcp.announced_path(now, path)?;
        if id == PathId::FIRST {
            return None;
        }
        if !self.kcp.add_peer_path(now, id, rtt) {
            return None;
        }
        let conv = self.shared.conv;
        let further = &mut self.routes.get_or_insert_default().further;
        let known = further.iter_mut().find(|(known, _)| *known == id);
        let replaced = match known {
            Some((_, known)) => Some((std::mem::replace(known, path).peer, conv)),
            None => {
                further.push((id, path));
                None
            }
        };
        Some(replaced.filter(|(peer, _)| *peer != path.peer))
    }

    /// Whether the peer has announced `path` as the new address of the first one.
    pub(in super::super) fn has_announced_first(&self, now: Instant, path: Path) -> bool {
        self.kcp.announced_path(now, path).is_some_and(|(id, _)| id == PathId::FIRST)
    }

    /// Removes a path. Returns `None` if it is unknown or the last one that answers, otherwise its key if it is
    /// a further one.
    pub(in super::super) fn remove_path(
        &mut self,
        now: Instant,
        id: PathId,
    ) -> Option<Option<Key>> {
        // The peer would announce it again.
        if self.is_opened_by_peer() || !self.kcp.remove_path(now, id) {
            return None;
        }
        self.forget_traffic(id);
        let further = &mut self.routes.as_mut()?.further;
        let index = further.iter().position(|(known, _)| *known == id);
        Some(index.map(|index| (further.swap_remove(index).1.peer, self.shared.conv)))
    }

    /// The system sends nothing from the local IP of `path` any more. Returns whether the connection has to be
    /// served.
    pub(in super::super) fn on_source_gone(&mut self, now: Instant, path: Path) -> bool {
        let further = self.routes.iter().flat_map(|routes| &routes.further);
        let gone = further.into_iter().find(|(_, known)| *known == path).map(|(id, _)| *id);
        if let Some(id) = gone {
            self.kcp.on_path_lost(now, id);
        } else if self.path == path {
            self.set_local_ip(LocalIp::ANY);
        }
        gone.is_some()
    }

    /// The number of `path`; `None` if the connection has no such path.
    pub(super) fn path_id(&self, path: Path) -> Option<PathId> {
        if path == self.path {
            return Some(PathId::FIRST);
        }
        let further = &self.routes.as_ref()?.further;
        further.iter().find(|(_, known)| *known == path).map(|(id, _)| *id)
    }

    /// Whether all data leaves on the path that opened the connection.
    #[inline]
    pub(in super::super) fn is_on_first_path(&self) -> bool {
        let is_on_it = || !self.kcp.aggregates_paths() && self.kcp.active_path() == PathId::FIRST;
        self.routes.is_none() || is_on_it()
    }

    /// Whether data leaves on the path that opened the connection: changes to it then concern the state machine.
    pub(super) fn at_first_path(&mut self) -> bool {
        self.routes.is_none() || self.kcp.at_first_path()
    }

    /// Chooses the other paths on which the next datagram with data leaves too.
    #[inline]
    pub(super) fn choose_copy_paths(&mut self) {
        let Some(routes) = &mut self.routes else { return };
        let Routes { copies, further, .. } = &mut **routes;
        copies.paths.clear();
        copies.paths.extend(self.kcp.copy_paths().map(|(id, mtu)| {
            let found = further.iter().find(|(known, _)| *known == id);
            (found.map_or(self.path, |(_, path)| *path), mtu)
        }));
    }

    /// Logs what has changed about the paths since the last call.
    #[cfg(feature = "tracing")]
    pub(super) fn report_paths(&mut self) {
        let Some((before, from)) = self.routes.as_ref().map(|routes| routes.reported) else {
            return;
        };
        // A transfer on all paths changes it with each datagram.
        let to = if self.kcp.aggregates_paths() { from } else { self.kcp.active_path() };
        let mut states = [None; MAX_PATHS as usize];
        for info in self.kcp.paths() {
            if let Some(state) = states.get_mut(usize::from(info.id.0)) {
                *state = Some(info.state);
            }
        }
        for (id, (was, is)) in (0..MAX_PATHS).map(PathId).zip(before.into_iter().zip(states)) {
            match is {
                // The first path is there from the beginning.
                Some(is) if id == PathId::FIRST && was.is_none() && is == PathState::Usable => {}
                Some(is) if was != Some(is) => {
                    if was.is_none() && id != PathId::FIRST {
                        self.span.path_added(id, self.path_of(id));
                    }
                    self.span.path_state(id, was, is);
                }
                _ => {}
            }
        }
        if from != to {
            let reason = match states.get(usize::from(from.0)).copied().flatten() {
                None => "removed",
                Some(PathState::Silent) => "silent",
                Some(_) if self.kcp.is_path_doubted(from) => "overdue",
                Some(_) => "round trip",
            };
            self.span.active_path_changed(from, to, reason);
        }
        for (id, (was, is)) in (0..MAX_PATHS).map(PathId).zip(before.into_iter().zip(states)) {
            if was.is_some() && is.is_none() {
                self.span.path_removed(id);
            }
        }
        if let Some(routes) = &mut self.routes {
            routes.reported = (states, to);
        }
    }

    /// Asserts that the state machine and the addresses agree on the paths.
    #[cfg(feature = "_testkit")]
    pub(super) fn check_routes(&self) {
        let Some(routes) = &self.routes else { return };
        let mut known: Vec<PathId> = self.kcp.paths().map(|path| path.id).collect();
        assert!(known.len() <= usize::from(MAX_PATHS), "{known:?}");
        assert_eq!(self.kcp.paths().filter(|path| path.is_active).count(), 1);
        known.retain(|id| *id != PathId::FIRST);
        let mut further: Vec<PathId> = routes.further.iter().map(|(id, _)| *id).collect();
        known.sort_unstable();
        further.sort_unstable();
        assert_eq!(known, further, "paths and addresses");
    }

    /// Appends what leaves on other paths than data. Returns the number of datagrams.
    pub(super) fn transmit_on_paths(&mut self, now: Instant, out: &mut PacketWriter<'_>) -> usize {
        let mut count = 0;
        while !out.tx.is_full()
            && let Some(id) = self.kcp.next_transmit_path(now)
        {
            let (path, kcp) = (self.path_of(id), &mut self.kcp);
            let (before, mut len) = (out.tx.bytes(), 0);
            let write = |tail: &mut Vec<u8>| match kcp.poll_transmit_on_path(now, tail) {
                Some(sent) => {
                    len = sent.len;
                    Written::Other
                }
                None => Written::Nothing,
            };
            let sent = out.codec.encode(now, out.tx, path, SendExtras::default(), write);
            if sent == 0 {
                break;
            }
            self.kcp.on_out_of_band_sent(now, out.tx.bytes() - before - len);
            count += sent;
        }
        count
    }
}

fn unsupported(error: AddPathError) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, error)
}
