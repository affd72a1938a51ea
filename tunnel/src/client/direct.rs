//! Direct mode, without smux: one KCP connection per TCP connection, all from one socket.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};

use kcpx::{Config, ConnectionError, Endpoint, KcpStream};
use tokio::sync::Mutex;

use crate::connection::DirectConnection;
use crate::resolve::{Resolver, connect_first};
use crate::session::CLOSE_TIMEOUT;
use crate::settings::ClientSettings;
use crate::stats::{Registration, TunnelStats};
use crate::transport;

/// Opens KCP connections from one socket for each IP version.
pub(super) struct Dialer {
    /// The last setup is for new connections, the others are of connections from before a reload.
    setups: SyncMutex<Vec<Arc<Setup>>>,
    stats: Arc<TunnelStats>,
}

/// Settings, and the sockets configured by them: IPv4 and IPv6.
pub(super) struct Setup {
    pub(super) settings: ClientSettings,
    config: Config,
    sockets: [Mutex<Option<(Endpoint, Registration)>>; 2],
    resolver: Resolver,
    stats: Arc<TunnelStats>,
}

impl Dialer {
    pub(super) fn new(settings: ClientSettings, stats: Arc<TunnelStats>) -> io::Result<Self> {
        let setups = SyncMutex::new(vec![Setup::new(settings, stats.clone())?]);
        Ok(Self { setups, stats })
    }

    /// Changes the settings of new connections. Counters of the earlier sockets stay registered.
    pub(super) fn reload(&self, settings: ClientSettings) -> io::Result<()> {
        let setup = Setup::new(settings, self.stats.clone())?;
        let mut setups = self.setups.lock().unwrap_or_else(PoisonError::into_inner);
        // Connections hold their own setup.
        setups.retain(|setup| Arc::strong_count(setup) > 1);
        setups.push(setup);
        Ok(())
    }

    fn setup(&self) -> Arc<Setup> {
        let setups = self.setups.lock().unwrap_or_else(PoisonError::into_inner);
        setups.last().expect("`new` and `reload` leave one").clone()
    }

    /// Opens a connection to the first address of the server that answers. Keep the setup as long
    /// as the connection: its sockets' counters are registered until then. Cancel safe.
    pub(super) async fn connect(&self) -> io::Result<(DirectConnection, Arc<Setup>)> {
        let setup = self.setup();
        let remote = &setup.settings.remote;
        let port = transport::choose_port(&remote.ports, None);
        let peers = setup.resolver.lookup(&remote.host, port).await?;
        let stream = setup.connect_first(peers).await?;
        Ok((DirectConnection::new(stream, &self.stats), setup))
    }

    /// Waits until the last bytes are delivered.
    pub(super) async fn close(&self) {
        let setups =
            std::mem::take(&mut *self.setups.lock().unwrap_or_else(PoisonError::into_inner));
        let endpoints = setups.iter().flat_map(|setup| &setup.sockets);
        let idle = async {
            for socket in endpoints {
                if let Some((endpoint, _)) = &*socket.lock().await {
                    endpoint.wait_idle().await;
                }
            }
        };
        drop(tokio::time::timeout(CLOSE_TIMEOUT, idle).await);
    }
}

impl Setup {
    fn new(settings: ClientSettings, stats: Arc<TunnelStats>) -> io::Result<Arc<Self>> {
        let config = transport::config(&settings.common)?;
        let (sockets, resolver) = Default::default();
        Ok(Arc::new(Self { settings, config, sockets, resolver, stats }))
    }

    async fn connect_first(self: &Arc<Self>, peers: Vec<SocketAddr>) -> io::Result<KcpStream> {
        connect_first(peers, |peer| {
            let setup = self.clone();
            async move { setup.connect_to(peer).await }
        })
        .await
    }

    async fn connect_to(&self, peer: SocketAddr) -> io::Result<KcpStream> {
        let endpoint = self.endpoint(peer, None).await?;
        match endpoint.connect(peer).await {
            // The socket has failed since: bind another.
            Err(error) if is_endpoint_closed(&error) => {
                let endpoint = self.endpoint(peer, Some(&endpoint)).await?;
                endpoint.connect(peer).await
            }
            connected => connected,
        }
    }

    /// Returns the endpoint for a peer's IP version; binds one if there is none, or if it is
    /// `closed`.
    async fn endpoint(&self, peer: SocketAddr, closed: Option<&Endpoint>) -> io::Result<Endpoint> {
        let mut socket = self.sockets[usize::from(peer.is_ipv6())].lock().await;
        if let Some((endpoint, _)) = &*socket {
            let is_closed = closed.is_some_and(|closed| {
                // Another task may have bound one already.
                closed.local_addr().ok() == endpoint.local_addr().ok()
            });
            if !is_closed {
                return Ok(endpoint.clone());
            }
        }
        let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let endpoint = Endpoint::bind_with(any, self.config.clone()).await?;
        let registration = self.stats.register(None, Some(endpoint.clone()));
        *socket = Some((endpoint.clone(), registration));
        Ok(endpoint)
    }
}

fn is_endpoint_closed(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(ConnectionError::EndpointClosed))
}

#[cfg(all(test, unix))]
mod tests {
    use std::task::{Context, Poll};

    use kcpx::{KcpListener, RecvBatch, Transmit, Transport};

    use super::*;
    use crate::options::Invocation;
    use crate::settings::Tunnel;

    /// A socket without a descriptor.
    struct Failed;

    impl Transport for Failed {
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
        }

        fn poll_recv(
            &mut self,
            _: &mut Context<'_>,
            _: &mut RecvBatch<'_>,
        ) -> Poll<io::Result<()>> {
            // EBADF
            Poll::Ready(Err(io::Error::from_raw_os_error(9)))
        }

        fn poll_send(&mut self, _: &mut Context<'_>, _: &Transmit<'_>) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::Error::from_raw_os_error(9)))
        }
    }

    fn client_settings() -> ClientSettings {
        let invocation =
            Invocation::new(["kcpx-tunnel", "client", "-r", "127.0.0.1:1"], Default::default());
        let tunnel = invocation.load().unwrap().settings.tunnels.remove(0);
        let Tunnel::Client(settings) = tunnel else { panic!("{tunnel}") };
        settings
    }

    #[tokio::test]
    async fn addresses_that_do_not_answer_do_not_keep_a_connection_from_its_server() {
        let settings = client_settings();
        let config = transport::config(&settings.common).unwrap();
        let server = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
        let silent: [_; 3] =
            std::array::from_fn(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut peers: Vec<_> = silent.iter().map(|socket| socket.local_addr().unwrap()).collect();
        peers.push(server.local_addr().unwrap());
        let setup = Dialer::new(settings, Arc::default()).unwrap().setup();
        // Three consecutive timeouts take longer.
        let limit = crate::client::SESSION_TIMEOUT;
        let connected = tokio::time::timeout(limit, setup.connect_first(peers)).await;
        assert!(connected.unwrap().is_ok());
        assert_eq!(server.stats().connections.passive_opens, 1);
        let error = setup.connect_first(Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn reload_keeps_what_living_connections_count() {
        let mut settings = client_settings();
        let config = transport::config(&settings.common).unwrap();
        let server = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
        let port = server.local_addr().unwrap().port();
        settings.remote.ports = port..=port;
        let stats = Arc::new(TunnelStats::default());
        let current = || {
            let report = stats.report("");
            let named = |metric: &&crate::process::Metric| metric.name == "kcp_current_connections";
            report.metrics.iter().find(named).unwrap().value
        };
        let dialer = Dialer::new(settings.clone(), stats.clone()).unwrap();
        let connection = dialer.connect().await.unwrap();
        assert_eq!(current(), 1);
        for _ in 0..2 {
            dialer.reload(settings.clone()).unwrap();
            assert_eq!(current(), 1);
        }
        assert_eq!(dialer.setups.lock().unwrap().len(), 2);
        drop(connection);
        dialer.reload(settings).unwrap();
        assert_eq!(dialer.setups.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn socket_that_has_failed_is_replaced() {
        let mut settings = client_settings();
        let config = transport::config(&settings.common).unwrap();
        let server = KcpListener::bind_with("127.0.0.1:0", config.clone()).await.unwrap();
        let port = server.local_addr().unwrap().port();
        settings.remote.ports = port..=port;
        let stats = Arc::new(TunnelStats::default());
        let dialer = Dialer::new(settings, stats.clone()).unwrap();
        let failed = Endpoint::from_transport(Failed, config).unwrap();
        let registration = stats.register(None, Some(failed.clone()));
        *dialer.setup().sockets[0].lock().await = Some((failed, registration));
        let limit = std::time::Duration::from_secs(60);
        let (connected, accepted) = tokio::join!(
            tokio::time::timeout(limit, dialer.connect()),
            tokio::time::timeout(limit, server.accept())
        );
        let ((connected, _setup), (accepted, _)) =
            (connected.unwrap().unwrap(), accepted.unwrap().unwrap());
        assert_eq!(connected.conv(), accepted.conv());
    }
}
