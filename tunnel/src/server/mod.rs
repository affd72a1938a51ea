//! The server: takes sessions of clients and carries their streams to a target.

mod clients;
mod session;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kcpx::KcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use self::clients::{Clients, Place};
use self::session::Incoming;
use crate::connection::Policy;
use crate::direct::DirectConnection;
use crate::drain::{CLOSE_TIMEOUT, drain};
use crate::net::LocalStream;
use crate::process::{Control, descriptor_limit};
use crate::settings::{Mux, ServerSettings};
use crate::stats::{Registration, TunnelStats};
use crate::transport;

/// Time that the target has to take a connection.
const TARGET_TIMEOUT: Duration = Duration::from_secs(10);
/// Most sessions of a client: a source of [`kcpx::Limits::max_per_source`].
const MAX_SESSIONS: usize = 1_024;
/// Most connections of a client: this share of the descriptors, within this range.
const DESCRIPTOR_SHARE: u64 = 4;
const MIN_CONNECTIONS: u64 = 16;
const MAX_CONNECTIONS: u64 = 65_536;

/// A server that listens.
///
/// ```no_run
/// use kcpx_tunnel::process::Control;
/// use kcpx_tunnel::server::Server;
/// use kcpx_tunnel::settings::ServerSettings;
///
/// async fn run(control: Control<ServerSettings>) -> std::io::Result<()> {
///     let server = Server::bind(control).await?;
///     println!("listening on {:?}", server.local_addrs());
///     server.run().await;
///     Ok(())
/// }
/// ```
pub struct Server {
    listeners: Vec<(KcpListener, Registration)>,
    tunnel: Arc<Tunnel>,
}

/// What every session needs.
struct Tunnel {
    control: Control<ServerSettings>,
    clients: Arc<Clients>,
    next_number: AtomicU64,
    stats: Arc<TunnelStats>,
}

impl Server {
    /// Binds a UDP socket for each port and registers the counters. One client, an IPv4 address or the /64
    /// prefix of an IPv6 address, has at most 1,024 sessions and a quarter of the descriptors that the process
    /// may have now: what is more is refused.
    ///
    /// # Errors
    ///
    /// When a port cannot be bound, or a setting is out of its range.
    pub async fn bind(control: Control<ServerSettings>) -> io::Result<Self> {
        let settings = control.settings();
        let mut config = transport::config(&settings.common)?;
        let share = descriptor_limit() / DESCRIPTOR_SHARE;
        let clients = Clients::new(share.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS) as usize);
        config.limits.max_per_source = Some(match settings.common.mux {
            Mux::Smux => MAX_SESSIONS,
            Mux::None => clients.max_connections(),
        });
        let listeners = transport::listen(&settings.listen, &config).await?;
        let stats = Arc::new(TunnelStats::default());
        let register = |listener: KcpListener| {
            let registration = stats.register(None, Some(listener.endpoint().clone()));
            (listener, registration)
        };
        let listeners = listeners.into_iter().map(register).collect();
        let (name, counters) = (format!("server {}", settings.listen), stats.clone());
        control.counters().register(move || counters.report(&name));
        let tunnel = Tunnel { control, clients, next_number: AtomicU64::new(1), stats };
        Ok(Self { listeners, tunnel: Arc::new(tunnel) })
    }

    /// Returns the UDP addresses it listens on.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|(listener, _)| listener.local_addr().ok()).collect()
    }

    /// Carries streams until the [`Control`] ends it: then it takes no more, waits for those that
    /// there are as long as [`Control::drain`] says, resets the rest, and closes the sessions.
    ///
    /// Settings that were read again hold for new sessions, except those of the sockets: key, cipher,
    /// windows and what else KCP has are those of the start.
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
    /// Takes sessions of one socket until the tunnel is to end, and waits for their ends.
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
        // Initial segments are refused from now on: a client that dials again reaches the next server.
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

    async fn serve(self: Arc<Self>, stream: kcpx::KcpStream, peer: SocketAddr) {
        let settings = Arc::new(self.control.settings());
        match settings.common.mux {
            Mux::Smux => {
                let number = self.next_number.fetch_add(1, Ordering::Relaxed);
                let name = format!("session {number} of {peer}");
                Incoming { tunnel: self, settings, name, peer }.serve(stream).await;
            }
            Mux::None => {
                let mut connection = DirectConnection::new(stream, &self.stats);
                let name = format!("connection {} of {peer}", connection.conv());
                let Some(_place) = self.place(&settings, &name, peer) else { return };
                let Some(mut target) = self.connect_target(&settings, &name).await else { return };
                let policy = Policy::new(&settings.common, true);
                connection.carry(name, &mut target, policy, &self.stats).await;
            }
        }
    }

    /// Takes a place for a connection of a client; `None` if it has all of its own, which is logged.
    fn place(&self, settings: &ServerSettings, name: &str, peer: SocketAddr) -> Option<Place> {
        let place = self.clients.enter(peer);
        if place.is_none() {
            TunnelStats::count(&self.stats.rejected_connections);
            if !settings.common.quiet {
                let max = self.clients.max_connections();
                info!("{name} refused: its client has {max} connections, a quarter of ulimit -n");
            }
        }
        place
    }

    /// Connects with the target; `None` if it does not take the connection, which is logged.
    async fn connect_target(&self, settings: &ServerSettings, name: &str) -> Option<LocalStream> {
        match LocalStream::connect(&settings.target, TARGET_TIMEOUT).await {
            Ok(target) => Some(target),
            Err(error) => {
                TunnelStats::count(&self.stats.rejected_connections);
                if !settings.common.quiet {
                    info!("{name} refused: cannot connect to {}: {error}", settings.target);
                }
                None
            }
        }
    }
}
