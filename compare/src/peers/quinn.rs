//! quinn: QUIC with its default transport, or with BBR instead of CUBIC; one bidirectional stream per
//! connection.
//!
//! It is always encrypted: in the plain row with its own choice of a cipher, in the row of AES-128-GCM with
//! AES-128-GCM.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Context as _;
use quinn::congestion::BbrConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig, TransportConfig,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

use super::{Accept, Connect, Duplex, wildcard};
use crate::args::{BACKLOG, Case, Peer, Wire};

const NAME: &str = "localhost";

fn provider(wire: Wire) -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    if wire == Wire::Aes128Gcm {
        provider.cipher_suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
    }
    Arc::new(provider)
}

fn transport(case: Case) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    if case.peer == Peer::QuinnBbr {
        transport.congestion_controller_factory(Arc::new(BbrConfig::default()));
    }
    Arc::new(transport)
}

pub(crate) struct Stream {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
}

impl Duplex for Stream {
    fn retransmit_pct(&self) -> Option<f64> {
        let path = self.connection.stats().path;
        Some(path.lost_packets as f64 * 100.0 / path.sent_packets.max(1) as f64)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx)
    }
}

pub(crate) struct Server {
    endpoint: Endpoint,
    opened: mpsc::Receiver<Stream>,
}

impl Accept for Server {
    type Stream = Stream;
    const NOTE: fn(Case) -> Option<String> = |case| {
        let cipher = if case.wire == Wire::Aes128Gcm { "TLS, AES-128-GCM" } else { "TLS 1.3" };
        let congestion = if case.peer == Peer::QuinnBbr { "BBR" } else { "CUBIC" };
        Some(format!("{cipher}, {congestion}"))
    };

    async fn bind(case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        let certified = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der());
        let key = key.map_err(|reason| anyhow::anyhow!(reason))?;
        let tls = rustls::ServerConfig::builder_with_provider(provider(case.wire))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)?;
        let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
        config.transport_config(transport(case));
        let endpoint = Endpoint::server(config, addr)?;

        let (opener, opened) = mpsc::channel(usize::from(BACKLOG));
        let incoming = endpoint.clone();
        tokio::spawn(async move {
            while let Some(attempt) = incoming.accept().await {
                let opener = opener.clone();
                // Handshakes go on side by side.
                tokio::spawn(async move {
                    let Ok(connection) = attempt.await else { return };
                    let Ok((send, recv)) = connection.accept_bi().await else { return };
                    // An error means that the process is about to end.
                    let _ = opener.send(Stream { connection, send, recv }).await;
                });
            }
        });
        Ok(Self { endpoint, opened })
    }

    fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.endpoint.local_addr()?)
    }

    async fn accept(&mut self) -> anyhow::Result<Stream> {
        self.opened.recv().await.context("the endpoint is closed")
    }
}

/// All connections have one socket.
pub(crate) struct Client {
    endpoint: Endpoint,
    server: SocketAddr,
}

impl Connect for Client {
    type Stream = Stream;

    async fn new(case: Case, server: SocketAddr) -> anyhow::Result<Self> {
        let provider = provider(case.wire);
        let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        let mut endpoint = Endpoint::client(wildcard(server))?;
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(transport(case));
        endpoint.set_default_client_config(config);
        Ok(Self { endpoint, server })
    }

    async fn connect(&self) -> anyhow::Result<Stream> {
        let connection = self.endpoint.connect(self.server, NAME)?.await?;
        let (send, recv) = connection.open_bi().await?;
        Ok(Stream { connection, send, recv })
    }
}

/// Accepts any certificate: the server makes its own when it starts, so the client cannot know it. It still
/// verifies signatures.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
