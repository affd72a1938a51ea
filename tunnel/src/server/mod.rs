//! The server: accepts sessions of clients and carries their streams to a target.

mod clients;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kcpx::{KcpListener, KcpStream, Limits};
use kcpx_smux::{Error, Session, Stream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

pub use self::clients::Clients;
use self::clients::Place;
use crate::carrier::{Link, LinkedStream};
use crate::connection::{DirectConnection, Policy, carry};
use crate::detect::detect;
use crate::net::{LocalStream, Target};
use crate::process::Control;
use crate::session::{CLOSE_TIMEOUT, close, drain, failure, smux_config};
use crate::settings::{Mux, ServerSettings};
use crate::stats::{Registration, TunnelStats};
use crate::transport;

/// Limit for the target to accept a connection.
const TARGET_TIMEOUT: Duration = Duration::from_secs(10);

/// A server that listens.
///
/// ```no_run
/// use kcpx_tunnel::process::Control;
/// use kcpx_tunnel::server::{Clients, Server};
/// use kcpx_tunnel::settings::ServerSettings;
///
/// async fn run(control: Control<ServerSettings>) -> std::io::Result<()> {
///     let server = Server::bind(control, Clients::of_process()).await?;
///     println!("listening on {:?}", server.local_addrs());
///     server.run().await;
///     Ok(())
/// }
/// ```
pub struct Server {
    listeners: Vec<(KcpListener, Registration)>,
    tunnel: Arc<Tunnel>,
}

/// State shared by all sessions.
struct Tunnel {
    control: Control<ServerSettings>,
    clients: Clients,
    /// The target of new sessions. Sessions from before a reload keep their own.
    target: Mutex<Arc<Target>>,
    next_number: AtomicU64,
    stats: Arc<TunnelStats>,
}

impl Server {
    /// Binds a UDP socket for each port and registers the counters. `clients` limits the sessions
    /// and connections of each client over all servers of the process.
    ///
    /// # Errors
    ///
    /// If a port cannot be bound, or a setting is out of its range.
    pub async fn bind(control: Control<ServerSettings>, clients: Clients) -> io::Result<Self> {
        let settings = control.settings();
        // A socket rejects these by itself, without a task for each.
        let per_source = match settings.common.mux {
            Mux::Smux => clients.max_sessions(),
            Mux::None => clients.max_connections(),
        };
        let limits = Limits::new().max_per_source(Some(per_source));
        let config = transport::config(&settings.common)?.limits(limits);
        let listeners = transport::listen(&settings.listen, &config).await?;
        let stats = Arc::new(TunnelStats::default());
        let register = |listener: KcpListener| {
            let registration = stats.register(None, Some(listener.endpoint().clone()));
            (listener, registration)
        };
        let listeners = listeners.into_iter().map(register).collect();
        let (name, counters) = (format!("server {}", settings.listen), stats.clone());
        control.counters().register(move || counters.report(&name));
        let target = Mutex::new(Arc::new(Target::new(settings.target)));
        let tunnel = Tunnel { control, clients, target, next_number: AtomicU64::new(1), stats };
        Ok(Self { listeners, tunnel: Arc::new(tunnel) })
    }

    /// Returns the listening UDP addresses.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|(listener, _)| listener.local_addr().ok()).collect()
    }

    /// Carries streams until the [`Control`] ends it. Then accepts no more, waits for open streams
    /// for at most [`Control::drain`], resets the rest, and closes the sessions.
    ///
    /// Reloaded settings apply to new sessions, except settings of the sockets: key, cipher,
    /// windows and other KCP settings keep the values of the start.
    pub async fn run(self) {
        let mut listening = JoinSet::new();
        for (listener, registration) in self.listeners {
            let tunnel = self.tunnel.clone();
            listening.spawn(async move {
                tunnel.listen(listener).await;
                drop(registration);
            });
        }
        while listening.join_next().await.is_some() {}
    }
}

impl Tunnel {
    /// Accepts sessions of one socket until the tunnel is to end, and waits for their ends.
    async fn listen(self: &Arc<Self>, listener: KcpListener) {
        let mut sessions = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let tunnel = self.clone();
                        sessions.spawn(async move { tunnel.serve(stream, peer).await });
                    }
                    Err(error) => {
                        warn!("the socket of {:?} has failed: {error}", listener.local_addr());
                        break;
                    }
                },
                Some(_) = sessions.join_next() => {}
                () = self.control.shutdown() => break,
            }
        }
        // Initial segments are refused from now on: a client that dials again reaches the next
        // server.
        let endpoint = listener.endpoint().clone();
        drop(listener);
        let limit = match self.control.settings().common.mux {
            // They end within the drain time by themselves, and are closed soon after.
            Mux::Smux => self.control.drain() + 2 * CLOSE_TIMEOUT,
            Mux::None => self.control.drain(),
        };
        drain(&mut sessions, limit).await;
        sessions.shutdown().await;
        drop(timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await);
    }

    async fn serve(self: Arc<Self>, stream: KcpStream, peer: SocketAddr) {
        let settings = Arc::new(self.control.settings());
        let target = self.target(&settings);
        match settings.common.mux {
            Mux::Smux => {
                let number = self.next_number.fetch_add(1, Ordering::Relaxed);
                let name = format!("session {number} of {peer}");
                let Some(_place) = self.clients.enter_session(peer) else {
                    TunnelStats::count(&self.stats.rejected_sessions);
                    let max = self.clients.max_sessions();
                    info!("{name} refused: its client has {max} sessions");
                    return;
                };
                Incoming { tunnel: self, settings, target, name, peer }.serve(stream).await;
            }
            Mux::None => {
                let mut connection = DirectConnection::new(stream, &self.stats);
                let name = format!("connection {} of {peer}", connection.conv());
                let Some(_place) = self.place(&settings, &name, peer) else { return };
                let connected = self.connect_target(&target, &settings, &name).await;
                let Some(mut target) = connected else { return };
                let policy = Policy::new(&settings.common, true);
                connection.carry(name, &mut target, policy, &self.stats).await;
            }
        }
    }

    /// Takes a place for a connection of a client; logs and returns `None` if the client has used
    /// up its own.
    fn place(&self, settings: &ServerSettings, name: &str, peer: SocketAddr) -> Option<Place> {
        let place = self.clients.enter_connection(peer);
        if place.is_none() {
            TunnelStats::count(&self.stats.rejected_connections);
            if !settings.common.quiet {
                let max = self.clients.max_connections();
                info!("{name} refused: its client has {max} connections, a quarter of ulimit -n");
            }
        }
        place
    }

    /// Returns the target of a session with these settings.
    fn target(&self, settings: &ServerSettings) -> Arc<Target> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if target.address != settings.target {
            *target = Arc::new(Target::new(settings.target.clone()));
        }
        target.clone()
    }

    /// Connects to the target; logs and returns `None` if it does not accept the connection.
    async fn connect_target(
        &self,
        target: &Target,
        settings: &ServerSettings,
        name: &str,
    ) -> Option<LocalStream> {
        match target.connect(TARGET_TIMEOUT).await {
            Ok(target) => Some(target),
            Err(error) => {
                TunnelStats::count(&self.stats.rejected_connections);
                if !settings.common.quiet {
                    info!("{name} refused: cannot connect to {}: {error}", target.address);
                }
                None
            }
        }
    }
}

/// An accepted session.
#[derive(Clone)]
struct Incoming {
    tunnel: Arc<Tunnel>,
    settings: Arc<ServerSettings>,
    target: Arc<Target>,
    /// Number of the session and address of the client.
    name: String,
    peer: SocketAddr,
}

impl Incoming {
    /// Serves the session until it has ended.
    async fn serve(self, stream: KcpStream) {
        let (settings, name, stats) = (&self.settings, &self.name, &self.tunnel.stats);
        TunnelStats::count(&stats.sessions);
        let _current = TunnelStats::gauge(&stats.current_sessions);
        let stream = LinkedStream::new(stream);
        let link = stream.link().clone();
        let registration = stats.register(Some(&link), None);
        let limit = settings.common.keepalive_timeout();
        let (compression, version) = (settings.compression, settings.smux_version);
        let (carrier, detected) = match detect(stream, compression, version, limit).await {
            Ok(detected) => detected,
            Err(rejected) => {
                TunnelStats::count(&stats.rejected_sessions);
                warn!("{name} rejected: {rejected}");
                return;
            }
        };
        // One more than the client's connections, so that the excess is logged.
        let max_streams = self.tunnel.clients.max_connections() + 1;
        let config = smux_config(&settings.common, detected.version, link.peer_is_kcpx())
            .max_streams(max_streams);
        let smux = match Session::server(carrier, config) {
            Ok(smux) => smux,
            Err(error) => {
                warn!("{name} rejected: {error}");
                return;
            }
        };
        registration.add_session(&smux);
        let compression = if detected.compression { "Snappy" } else { "no compression" };
        info!("{name} opened: smux version {}, {compression}", detected.version.number());
        let ended = self.serve_streams(&smux, &link).await;
        match ended.as_ref().and_then(failure) {
            None => info!("{name} closed"),
            Some(reason) => {
                TunnelStats::count(&stats.failed_sessions);
                warn!("{name} ended: {reason}");
            }
        }
    }

    /// Carries streams until the session has failed, and returns the reason, or until the tunnel has
    /// ended.
    async fn serve_streams(&self, smux: &Session, link: &Arc<Link>) -> Option<Error> {
        let control = &self.tunnel.control;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = smux.accept_stream() => match accepted {
                    Ok(stream) => {
                        let (session, link) = (self.clone(), link.clone());
                        connections.spawn(async move { session.serve_stream(stream, &link).await });
                    }
                    Err(error) => {
                        // Each has a minute to deliver received bytes, see `relay`.
                        while connections.join_next().await.is_some() {}
                        return Some(error);
                    }
                },
                Some(_) = connections.join_next() => {}
                () = control.shutdown() => break,
            }
        }
        let end = Instant::now() + control.drain();
        while !connections.is_empty() {
            tokio::select! {
                // Dropping a stream at once refuses it.
                accepted = smux.accept_stream() => match accepted {
                    Ok(refused) => drop(refused),
                    Err(error) => {
                        drain(&mut connections, end - Instant::now()).await;
                        return Some(error);
                    }
                },
                _ = connections.join_next() => {}
                () = sleep_until(end) => break,
            }
        }
        close(smux, link).await;
        connections.shutdown().await;
        None
    }

    async fn serve_stream(&self, stream: Stream, link: &Link) {
        let name = format!("stream {} of {}", stream.id(), self.name);
        let place = self.tunnel.place(&self.settings, &name, self.peer);
        let target = match &place {
            Some(_) => self.tunnel.connect_target(&self.target, &self.settings, &name).await,
            None => None,
        };
        let Some(mut target) = target else {
            // Dropping the stream ends it in order without bytes: the wire has no other refusal.
            // Nothing waits until it is sent, which a client that reads nothing could delay.
            return;
        };
        let policy = Policy::new(&self.settings.common, link.peer_is_kcpx());
        let name = format!("{name} to {}", self.target.address);
        let (reader, writer) = stream.into_split();
        let stats = &self.tunnel.stats;
        carry(name, &mut target, reader, writer, Some(link), policy, stats).await;
    }
}

#[cfg(test)]
mod tests {
    use kcpx::KcpStream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::options::Invocation;
    use crate::process::{Controller, Counters};
    use crate::settings;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A server with smux version 1, without a target.
    async fn server(clients: &Clients) -> (Controller<ServerSettings>, Server) {
        let args = ["kcpx-tunnel", "server", "-l", "127.0.0.1:0", "-t", "127.0.0.1:9", "-quiet"];
        let loaded = Invocation::new(args, Default::default()).load().unwrap();
        let tunnel = loaded.settings.tunnels.into_iter().next();
        let Some(settings::Tunnel::Server(settings)) = tunnel else { panic!("{tunnel:?}") };
        let (controller, control) = Controller::new(settings, LIMIT, Counters::default());
        (controller, Server::bind(control, clients.clone()).await.unwrap())
    }

    /// A carrier to the server that has sent a NOP.
    async fn dial(addr: SocketAddr, config: kcpx::Config) -> KcpStream {
        let mut stream = KcpStream::connect_with(addr, config).await.unwrap();
        stream.write_all(&[1, 3, 0, 0, 0, 0, 0, 0]).await.unwrap();
        stream
    }

    async fn becomes(what: &str, condition: impl Fn() -> bool) {
        let condition = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, condition).await.unwrap_or_else(|_| panic!("no {what}"));
    }

    #[tokio::test]
    async fn client_has_its_sessions_at_all_servers_together() {
        let clients = Clients::new(2, 16);
        let (mut stats, mut streams) = (Vec::new(), Vec::new());
        let mut running = JoinSet::new();
        for _ in 0..3 {
            let (controller, server) = server(&clients).await;
            stats.push(server.tunnel.stats.clone());
            let config = transport::config(&server.tunnel.control.settings().common).unwrap();
            let addr = server.local_addrs()[0];
            running.spawn(async move {
                server.run().await;
                drop(controller);
            });
            streams.push(dial(addr, config).await);
            let (opened, refused) = (&stats[stats.len() - 1].sessions, &stats[stats.len() - 1]);
            becomes("session", || {
                let refused = refused.rejected_sessions.load(Ordering::Relaxed);
                opened.load(Ordering::Relaxed) + refused == 1
            })
            .await;
        }
        let refused = stats.iter().map(|stats| stats.rejected_sessions.load(Ordering::Relaxed));
        assert_eq!(refused.collect::<Vec<_>>(), [0, 0, 1]);
        let end = timeout(LIMIT, streams[2].read(&mut [0])).await.unwrap();
        assert!(!matches!(end, Ok(1..)), "{end:?}");
    }

    #[tokio::test]
    async fn refused_streams_of_a_client_that_reads_nothing_take_no_tasks() {
        const SYNS: u32 = 60_000;
        let clients = Clients::new(1, 16);
        let (_controller, server) = server(&clients).await;
        // No connection is left for the streams.
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let _places: Vec<_> = (0..16).map(|_| clients.enter_connection(peer).unwrap()).collect();
        let config = transport::config(&server.tunnel.control.settings().common).unwrap();
        let (addr, stats) = (server.local_addrs()[0], server.tunnel.stats.clone());
        let _running = JoinSet::from_iter([server.run()]);
        let mut stream = dial(addr, config).await;
        becomes("session", || stats.sessions.load(Ordering::Relaxed) == 1).await;
        let syn = |id: u32| {
            let [a, b, c, d] = (2 * id + 1).to_le_bytes();
            [1, 0, 0, 0, a, b, c, d]
        };
        let mut most = 0;
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        for first in (0..SYNS).step_by(100) {
            let syns: Vec<u8> = (first..first + 100).flat_map(syn).collect();
            // No time is left once the server no longer reads either.
            if timeout(LIMIT / 30, stream.write_all(&syns)).await.is_err() {
                break;
            }
            most = most.max(tasks());
        }
        assert!(stats.rejected_connections.load(Ordering::Relaxed) > 0);
        assert!(most < 200, "{most} tasks");
    }
}
