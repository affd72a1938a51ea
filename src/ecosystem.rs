//! Traits of other crates for this crate's types, each behind a feature.
//!
//! The implementations use only public methods of listener and stream. They are here because of the
//! orphan rule.

#[cfg(feature = "hyper")]
pub use self::hyper::KcpConnector;
#[cfg(feature = "tonic")]
pub use self::tonic::KcpConnectInfo;

/// `axum::serve` on a `KcpListener`.
#[cfg(feature = "axum")]
mod axum {
    use std::future::pending;
    use std::io;
    use std::net::SocketAddr;

    use axum::serve::Listener;

    use crate::error::ConnectionError;
    use crate::listener::KcpListener;
    use crate::stream::KcpStream;

    /// `axum::serve(listener, app)` serves HTTP over KCP.
    ///
    /// # Panics
    ///
    /// `accept` panics once the endpoint has ended (its socket is unusable, or a cipher, filter or waker
    /// panicked), since the trait returns no error and `axum::serve` would wait forever. The cause is logged.
    /// After [`shutdown`](KcpListener::shutdown) and during runtime shutdown, `accept` stays pending.
    impl Listener for KcpListener {
        type Io = KcpStream;
        type Addr = SocketAddr;

        async fn accept(&mut self) -> (KcpStream, SocketAddr) {
            match Self::accept(self).await {
                Ok(accepted) => accepted,
                Err(error) if has_ended(&error) => panic!("the listener has ended: {error}"),
                Err(_drains) => pending().await,
            }
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Self::local_addr(self)
        }
    }

    fn has_ended(error: &io::Error) -> bool {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        cause == Some(&ConnectionError::EndpointClosed)
    }
}

/// A connector for the clients of hyper-util and tonic.
#[cfg(feature = "hyper")]
mod hyper {
    use std::future::Future;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::Uri;
    use hyper_util::client::legacy::connect::{Connected, Connection};
    use hyper_util::rt::TokioIo;
    use tower_service::Service;

    use crate::config::Config;
    use crate::endpoint::Endpoint;
    use crate::stream::KcpStream;

    /// Opens KCP connections to the host and port of a URI.
    ///
    /// Pass it to `hyper_util::client::legacy::Client` or tonic's `Endpoint::connect_with_connector`. The
    /// default port is 80 for `http` and 443 for `https`; wrap the connector for TLS.
    ///
    /// Connecting to an unreachable host fails after
    /// [`Config::connect_timeout`](crate::Config::connect_timeout). With
    /// [`Config::early_data`](crate::Config::early_data) connecting does not wait, and a request fails after
    /// [`Config::dead_peer_timeout`](crate::Config::dead_peer_timeout).
    ///
    /// ```
    /// use http_body_util::Empty;
    /// use hyper_util::client::legacy::Client;
    /// use hyper_util::rt::TokioExecutor;
    /// use kcpx::{Config, KcpConnector};
    ///
    /// let connector = KcpConnector::new(Config::new());
    /// let client = Client::builder(TokioExecutor::new()).build(connector);
    /// # let _: Client<_, Empty<bytes::Bytes>> = client;
    /// ```
    ///
    /// # Errors
    ///
    /// Connecting fails with [`InvalidInput`](io::ErrorKind::InvalidInput) when the URI has no host, or
    /// neither a port nor a scheme with a default port; otherwise as [`KcpStream::connect_with`] or
    /// [`Endpoint::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped future has sent no data.
    #[derive(Clone, Debug)]
    pub struct KcpConnector {
        via: Via,
    }

    #[derive(Clone, Debug)]
    enum Via {
        FreshSockets(Box<Config>),
        Endpoint(Endpoint),
    }

    impl KcpConnector {
        /// Creates a connector whose connections have this configuration and a socket each.
        #[must_use]
        pub fn new(config: Config) -> Self {
            Self { via: Via::FreshSockets(Box::new(config)) }
        }

        /// Creates a connector whose connections share an endpoint's socket. If a host has several addresses,
        /// they are tried as by [`KcpStream::connect`].
        ///
        /// A client owns its streams. A handle of the endpoint gives access to their
        /// [`stats`](Endpoint::stats), and [`Endpoint::wait_idle`] waits for the delivery of their data
        /// before exit. Hosts must have an address of an IP version that the socket supports.
        #[must_use]
        pub fn with_endpoint(endpoint: Endpoint) -> Self {
            Self { via: Via::Endpoint(endpoint) }
        }
    }

    impl Service<Uri> for KcpConnector {
        type Response = TokioIo<KcpStream>;
        type Error = io::Error;
        type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, uri: Uri) -> Self::Future {
            let via = self.via.clone();
            Box::pin(async move {
                let target = target(&uri)?;
                let stream = match via {
                    Via::FreshSockets(config) => KcpStream::connect_with(target, *config).await?,
                    Via::Endpoint(endpoint) => endpoint.connect(target).await?,
                };
                Ok(TokioIo::new(stream))
            })
        }
    }

    /// Connection properties for the pool of hyper-util's client.
    impl Connection for KcpStream {
        fn connected(&self) -> Connected {
            Connected::new()
        }
    }

    /// Host and port to resolve.
    fn target(uri: &Uri) -> io::Result<(&str, u16)> {
        let refused = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| refused(format!("the URI {uri} has no host")))?;
        // URIs enclose IPv6 addresses in brackets, lookups do not.
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = match (uri.port_u16(), uri.scheme_str()) {
            (Some(port), _) => port,
            (None, Some("http")) => 80,
            (None, Some("https")) => 443,
            (None, Some(scheme)) => {
                let text = "add one, since only http and https have a default port";
                return Err(refused(format!(
                    "the URI {uri} with the scheme {scheme} has no port: {text}"
                )));
            }
            (None, None) => {
                let text = "add one, or the scheme http or https";
                return Err(refused(format!("the URI {uri} has no port: {text}")));
            }
        };
        Ok((bare, port))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn host_and_port_come_from_the_uri() {
            for (uri, expected) in [
                ("http://example.org/a?b", ("example.org", 80)),
                ("https://example.org", ("example.org", 443)),
                ("http://127.0.0.1:4000/", ("127.0.0.1", 4000)),
                ("kcp://[::1]:4000", ("::1", 4000)),
                ("example.org:4000", ("example.org", 4000)),
            ] {
                assert_eq!(target(&Uri::from_static(uri)).unwrap(), expected, "{uri}");
            }
        }

        #[test]
        fn refusals_name_what_is_missing() {
            for (uri, expected) in [
                ("/path", "the URI /path has no host"),
                ("http://:80/", "the URI http://:80/ has no host"),
                (
                    "kcp://example.org/",
                    "the URI kcp://example.org/ with the scheme kcp has no port: add one, since only http and \
                     https have a default port",
                ),
                (
                    "example.org",
                    "the URI example.org has no port: add one, or the scheme http or https",
                ),
            ] {
                let Ok(uri) = uri.parse::<Uri>() else { panic!("{uri} does not parse") };
                let error = target(&uri).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                assert_eq!(error.to_string(), expected);
            }
        }
    }
}

/// `tokio_util::net::Listener` for `KcpListener`.
#[cfg(feature = "tokio-util")]
mod tokio_util {
    use std::io;
    use std::net::SocketAddr;
    use std::task::{Context, Poll};

    use tokio_util::net::Listener;

    use crate::listener::KcpListener;
    use crate::stream::KcpStream;

    /// For code that is generic over listeners.
    impl Listener for KcpListener {
        type Io = KcpStream;
        type Addr = SocketAddr;

        fn poll_accept(
            &mut self,
            cx: &mut Context<'_>,
        ) -> Poll<io::Result<(KcpStream, SocketAddr)>> {
            Self::poll_accept(self, cx)
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Self::local_addr(self)
        }
    }
}

/// Connection information of tonic servers.
#[cfg(feature = "tonic")]
mod tonic {
    use std::net::SocketAddr;

    use tonic::transport::server::Connected;

    use crate::stream::{KcpStream, source};

    /// The addresses of a gRPC connection over KCP.
    ///
    /// Services find it in the extensions of a request:
    /// `request.extensions().get::<KcpConnectInfo>()`.
    ///
    /// ```
    /// use std::net::SocketAddr;
    ///
    /// use kcpx::KcpConnectInfo;
    /// use tonic::{Request, Response, Status};
    ///
    /// /// A method of a service.
    /// async fn hello(request: Request<String>) -> Result<Response<String>, Status> {
    ///     let info = request.extensions().get::<KcpConnectInfo>();
    ///     let peer: Option<SocketAddr> = info.map(|info| info.peer_addr);
    ///     Ok(Response::new(format!("hello, {peer:?}")))
    /// }
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct KcpConnectInfo {
        /// The address that datagrams to the peer leave from, see [`KcpStream::local_addr`].
        pub local_addr: SocketAddr,
        /// The address of the peer.
        pub peer_addr: SocketAddr,
    }

    /// A tonic server runs on [`KcpListener::incoming`](crate::KcpListener::incoming) with the feature
    /// `stream`: `Server::builder().serve_with_incoming(service, listener.incoming())`.
    impl Connected for KcpStream {
        type ConnectInfo = KcpConnectInfo;

        fn connect_info(&self) -> KcpConnectInfo {
            let handle = self.handle();
            KcpConnectInfo { local_addr: source(handle), peer_addr: handle.peer() }
        }
    }
}
