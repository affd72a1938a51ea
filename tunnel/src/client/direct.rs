//! Without smux: a KCP connection for each connection, all from one socket.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};

use kcpx::{Config, ConnectionError, Endpoint, KcpStream};
use tokio::sync::Mutex;

use crate::direct::DirectConnection;
use crate::drain::CLOSE_TIMEOUT;
use crate::settings::ClientSettings;
use crate::stats::{Registration, TunnelStats};
use crate::transport;

/// Opens KCP connections from one socket for each IP version.
pub(super) struct Dialer {
    setup: SyncMutex<Arc<Setup>>,
    stats: Arc<TunnelStats>,
}

/// Settings, and the sockets with the configuration made of them: IPv4 and IPv6.
struct Setup {
    settings: ClientSettings,
    config: Config,
    sockets: [Mutex<Option<(Endpoint, Registration)>>; 2],
}

impl Dialer {
    pub(super) fn new(settings: ClientSettings, stats: Arc<TunnelStats>) -> io::Result<Self> {
        let setup = SyncMutex::new(Arc::new(Setup::new(settings)?));
        Ok(Self { setup, stats })
    }

    /// Settings of new connections.
    pub(super) fn reload(&self, settings: ClientSettings) -> io::Result<()> {
        let setup = Arc::new(Setup::new(settings)?);
        *self.setup.lock().unwrap_or_else(PoisonError::into_inner) = setup;
        Ok(())
    }

    pub(super) fn settings(&self) -> ClientSettings {
        self.setup().settings.clone()
    }

    fn setup(&self) -> Arc<Setup> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a connection, to the first address of the server that answers. Cancel safe.
    pub(super) async fn connect(&self) -> io::Result<DirectConnection> {
        let setup = self.setup();
        let peers = transport::resolve(&setup.settings.remote).await?;
        let stream = self.connect_first(&setup, &peers).await?;
        Ok(DirectConnection::new(stream, &self.stats))
    }

    /// Tries one address after the other.
    async fn connect_first(&self, setup: &Setup, peers: &[SocketAddr]) -> io::Result<KcpStream> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for peer in peers {
            match self.connect_to(setup, *peer).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn connect_to(&self, setup: &Setup, peer: SocketAddr) -> io::Result<KcpStream> {
        let endpoint = self.endpoint(setup, peer, None).await?;
        match endpoint.connect(peer).await {
            // The socket has failed since: another one.
            Err(error) if is_endpoint_closed(&error) => {
                let endpoint = self.endpoint(setup, peer, Some(&endpoint)).await?;
                endpoint.connect(peer).await
            }
            connected => connected,
        }
    }

    /// The endpoint for a peer's IP version, bound if there is none, or if it is `closed`.
    async fn endpoint(
        &self,
        setup: &Setup,
        peer: SocketAddr,
        closed: Option<&Endpoint>,
    ) -> io::Result<Endpoint> {
        let mut socket = setup.sockets[usize::from(peer.is_ipv6())].lock().await;
        if let Some((endpoint, _)) = &*socket {
            let is_closed = closed.is_some_and(|closed| {
                // Another task may have bound one meanwhile.
                closed.local_addr().ok() == endpoint.local_addr().ok()
            });
            if !is_closed {
                return Ok(endpoint.clone());
            }
        }
        let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let endpoint = Endpoint::bind_with(any, setup.config.clone()).await?;
        let registration = self.stats.register(None, Some(endpoint.clone()));
        *socket = Some((endpoint.clone(), registration));
        Ok(endpoint)
    }

    /// Waits until the last bytes are delivered.
    pub(super) async fn close(&self) {
        for socket in &self.setup().sockets {
            if let Some((endpoint, _)) = &*socket.lock().await {
                drop(tokio::time::timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await);
            }
        }
    }
}

impl Setup {
    fn new(settings: ClientSettings) -> io::Result<Self> {
        let config = transport::config(&settings.common)?;
        Ok(Self { settings, config, sockets: Default::default() })
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

    /// A socket of which the descriptor is gone.
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
    async fn every_address_of_the_server_is_tried() {
        let settings = client_settings();
        let config = transport::config(&settings.common).unwrap();
        let server = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
        // An address that does not answer.
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let peers = [silent.local_addr().unwrap(), server.local_addr().unwrap()];
        let dialer = Dialer::new(settings, Arc::default()).unwrap();
        let setup = dialer.setup();
        let limit = std::time::Duration::from_secs(60);
        let connected = tokio::time::timeout(limit, dialer.connect_first(&setup, &peers)).await;
        assert!(connected.unwrap().is_ok());
        assert_eq!(server.stats().passive_opens, 1);
        let error = dialer.connect_first(&setup, &[]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
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
        let (connected, (accepted, _)) = (connected.unwrap().unwrap(), accepted.unwrap().unwrap());
        assert_eq!(connected.conv(), accepted.conv());
    }
}
