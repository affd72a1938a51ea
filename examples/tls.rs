//! TLS over KCP: tokio-rustls around a `KcpStream`, with a certificate made at start.
//!
//! TLS gives a stream forward secrecy and a server that proves its identity. The packet ciphers cannot, since
//! all peers have the same key. The client uploads data, the server sends it back, both under TLS.

#[path = "common/hash.rs"]
mod hash;
#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::{Args as ClapArgs, Parser, Subcommand};
use kcpx::{Config, KcpListener, KcpStream, Timing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use self::hash::{pseudo_random, sha256};

/// The name in the certificate.
const NAME: &str = "kcpx.example";
/// Bytes read at once.
const BLOCK: usize = 64 * 1024;

/// TLS over KCP; without a command, both sides in this process.
#[derive(Parser)]
#[command(after_help = "\
Both sides in one process:
  cargo run --release -p kcpx-examples --example tls
In two terminals; the server writes its certificate where the client reads it:
  cargo run --release -p kcpx-examples --example tls -- server --listen 127.0.0.1:4003
  cargo run --release -p kcpx-examples --example tls -- client 127.0.0.1:4003

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Sends back what its clients send, until Ctrl-C
    Server {
        /// Address to listen on, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:4003")]
        listen: String,
        #[command(flatten)]
        file: CertificateFile,
    },
    /// Sends data and checks what comes back
    Client {
        /// Address of the server, as HOST:PORT
        addr: String,
        /// How much to send, in MB
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1_024))]
        megabytes: u16,
        #[command(flatten)]
        file: CertificateFile,
    },
}

#[derive(ClapArgs)]
struct CertificateFile {
    /// File of the server's certificate (DER), which the client trusts
    #[arg(long, value_name = "FILE",
        default_value_os_t = std::env::temp_dir().join("kcpx-tls-certificate.der"))]
    certificate: PathBuf,
}

fn config() -> Config {
    Config::new().timing(Timing::FAST3)
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    match Args::parse().role {
        Some(Role::Server { listen, file: CertificateFile { certificate: path } }) => {
            let (acceptor, certificate) = identity()?;
            std::fs::write(&path, &certificate)
                .with_context(|| format!("cannot write {}", path.display()))?;
            let interrupted = signals::interrupted();
            let listener = bind(&listen).await?;
            println!("listening on {}", listener.local_addr()?);
            println!("the certificate is in {}", path.display());
            tokio::select! {
                served = serve(&listener, acceptor) => served?,
                interrupted = interrupted => interrupted?,
            }
            listener.wait_idle().await;
            Ok(())
        }
        Some(Role::Client { addr, megabytes, file: CertificateFile { certificate: path } }) => {
            let certificate = std::fs::read(&path).with_context(|| {
                format!("cannot read {}: the server writes it at start", path.display())
            })?;
            transfer(&addr, certificate.into(), megabytes).await
        }
        None => demo().await,
    }
}

async fn bind(addr: &str) -> Result<KcpListener> {
    KcpListener::bind_with(addr, config()).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4003")
    })
}

async fn demo() -> Result<()> {
    let (acceptor, certificate) = identity()?;
    let listener = bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?.to_string();
    println!("TLS server at {addr} over KCP, certificate for {NAME:?}");
    let server = serve(&listener, acceptor);
    tokio::select! {
        served = server => served.context("the server"),
        done = transfer(&addr, certificate, 16) => done,
    }?;
    listener.wait_idle().await;
    Ok(())
}

/// A key, and a certificate for it that it signed itself.
fn identity() -> Result<(TlsAcceptor, CertificateDer<'static>)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

async fn serve(listener: &KcpListener, acceptor: TlsAcceptor) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        let acceptor = acceptor.clone();
        connections.spawn(async move {
            if let Err(error) = echo(stream, acceptor).await {
                println!("{peer}: {error}");
            }
        });
    }
}

async fn echo(stream: KcpStream, acceptor: TlsAcceptor) -> std::io::Result<()> {
    let mut tls = acceptor.accept(stream).await?;
    let mut block = vec![0; BLOCK];
    loop {
        let count = tls.read(&mut block).await?;
        if count == 0 {
            // The client has said that it is done, authenticated: the stream was not truncated.
            return tls.shutdown().await;
        }
        tls.write_all(&block[..count]).await?;
        tls.flush().await?;
    }
}

async fn transfer(addr: &str, trusted: CertificateDer<'static>, megabytes: u16) -> Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).context("the certificate is unusable")?;
    let config_tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config_tls));

    let stream = KcpStream::connect_with(addr, config()).await.with_context(|| {
        format!("cannot connect to {addr:?}: start the server there, or correct HOST:PORT")
    })?;
    let endpoint = stream.endpoint();
    let tls = connector
        .connect(ServerName::try_from(NAME)?, stream)
        .await
        .with_context(|| format!("no TLS with {addr}; is the server running there?"))?;
    let connection = tls.get_ref().1;
    let (version, suite) = (connection.protocol_version(), connection.negotiated_cipher_suite());
    let (version, suite) = (version.context("no version")?, suite.context("no cipher suite")?);
    println!("handshake done: {version:?}, {:?}", suite.suite());

    let data = Arc::new(pseudo_random(7, usize::from(megabytes) * 1_000_000));
    let (mut reader, mut writer) = tokio::io::split(tls);
    let upload = {
        let data = data.clone();
        async move {
            writer.write_all(&data).await?;
            writer.shutdown().await
        }
    };
    let download = async {
        let mut back = Vec::with_capacity(data.len());
        reader.read_to_end(&mut back).await.map(|_| back)
    };
    let ((), back) = tokio::try_join!(upload, download).context("the transfer failed")?;
    let (sent, received) = (sha256(&data), sha256(&back));
    ensure!(sent == received, "sent sha256 {sent}, got back {received}");
    println!("{megabytes} MB there and back, sha256 equal: {received}");
    drop(reader);
    endpoint.wait_idle().await;
    Ok(())
}
