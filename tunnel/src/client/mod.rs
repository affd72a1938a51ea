//! The client: accepts TCP or unix connections and carries each to a server.

mod direct;
mod pool;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::direct::Dialer;
use self::pool::Pool;
use crate::connection::{Policy, carry};
use crate::net::{LocalListener, LocalStream, PeerName};
use crate::process::Control;
use crate::session::drain;
use crate::settings::{ClientSettings, Mux};
use crate::stats::TunnelStats;

/// How long a connection waits for a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client that listens.
///
/// ```no_run
/// use kcpx_tunnel::client::Client;
/// use kcpx_tunnel::process::Control;
/// use kcpx_tunnel::settings::ClientSettings;
///
/// async fn run(control: Control<ClientSettings>) -> std::io::Result<()> {
///     let client = Client::bind(control).await?;
///     println!("listening on {:?}", client.local_addr());
///     client.run().await;
///     Ok(())
/// }
/// ```
pub struct Client {
    listener: LocalListener,
    control: Control<ClientSettings>,
    tunnel: Arc<Tunnel>,
}

/// State shared by all connections.
struct Tunnel {
    carrier: Carrier,
    stats: Arc<TunnelStats>,
}

enum Carrier {
    Smux(Arc<Pool>),
    Direct(Dialer),
}

impl Client {
    /// Binds the listening socket and registers the counters. Opens no session before the first
    /// connection.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound, or a setting is out of its range.
    pub async fn bind(control: Control<ClientSettings>) -> io::Result<Self> {
        let settings = control.settings();
        let listener = LocalListener::bind(&settings.listen).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {}: {error}", settings.listen))
        })?;
        let stats = Arc::new(TunnelStats::default());
        let (name, counters) = (format!("client {}", settings.listen), stats.clone());
        control.counters().register(move || counters.report(&name));
        let carrier = match settings.common.mux {
            Mux::Smux => Carrier::Smux(Arc::new(Pool::new(settings, stats.clone())?)),
            Mux::None => Carrier::Direct(Dialer::new(settings, stats.clone())?),
        };
        Ok(Self { listener, control, tunnel: Arc::new(Tunnel { carrier, stats }) })
    }

    /// Returns the listening TCP address; `None` for a unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.tcp_addr()
    }

    /// Carries connections until the [`Control`] ends it. Then accepts no more connections, waits
    /// for open ones for at most [`Control::drain`], resets the rest, and closes the sessions.
    pub async fn run(self) {
        let Self { listener, mut control, tunnel } = self;
        let mut connections = JoinSet::new();
        let ending = control.clone();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((local, from)) => {
                        let tunnel = tunnel.clone();
                        connections.spawn(async move { tunnel.serve(local, from).await });
                    }
                    Err(error) => {
                        warn!("cannot accept a connection: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                settings = control.reloaded() => tunnel.reload(settings),
                () = ending.shutdown() => break,
            }
        }
        drop(listener);
        drain(&mut connections, ending.drain()).await;
        match &tunnel.carrier {
            Carrier::Smux(pool) => {
                pool.close().await;
                connections.shutdown().await;
            }
            Carrier::Direct(dialer) => {
                connections.shutdown().await;
                dialer.close().await;
            }
        }
    }
}

impl Tunnel {
    async fn serve(&self, mut local: LocalStream, from: PeerName) {
        // Until both directions have ended in order, a part must not pass for the whole.
        local.reset_on_drop(true);
        match &self.carrier {
            Carrier::Smux(pool) => self.serve_smux(&mut local, from, pool).await,
            Carrier::Direct(dialer) => self.serve_direct(&mut local, from, dialer).await,
        }
    }

    async fn serve_smux(&self, local: &mut LocalStream, from: PeerName, pool: &Pool) {
        let Ok((session, stream)) = timeout(SESSION_TIMEOUT, pool.open_stream()).await else {
            TunnelStats::count(&self.stats.rejected_connections);
            info!("{from}: closed, no session within {} s", SESSION_TIMEOUT.as_secs());
            return;
        };
        let policy = Policy::new(&pool.settings().common, session.link().peer_is_kcpx());
        let name = format_args!("{from} over stream {} of {session}", stream.id()).to_string();
        let (reader, writer) = stream.into_split();
        carry(name, local, reader, writer, Some(session.link()), policy, &self.stats).await;
    }

    async fn serve_direct(&self, local: &mut LocalStream, from: PeerName, dialer: &Dialer) {
        let opened = timeout(SESSION_TIMEOUT, dialer.connect()).await;
        let (mut connection, setup) = match opened {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                TunnelStats::count(&self.stats.rejected_connections);
                info!("{from}: closed, {error}");
                return;
            }
            Err(_) => {
                TunnelStats::count(&self.stats.rejected_connections);
                info!("{from}: closed, no answer within {} s", SESSION_TIMEOUT.as_secs());
                return;
            }
        };
        let policy = Policy::new(&setup.settings.common, true);
        let name = format!("{from} over connection {}", connection.conv());
        connection.carry(name, local, policy, &self.stats).await;
    }

    fn reload(&self, settings: ClientSettings) {
        let changed = match &self.carrier {
            Carrier::Smux(pool) => pool.reload(settings),
            Carrier::Direct(dialer) => dialer.reload(settings),
        };
        if let Err(error) = changed {
            warn!("new settings are not used: {error}");
        }
    }
}
