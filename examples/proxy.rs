//! Carries TCP connections over KCP: a tunnel for any TCP service.
//!
//! One proxy stands beside the users of a service, the other beside the service. Each TCP
//! connection becomes a KCP conversation of its own, so none of them waits for what another one
//! lost; all of them share one socket.
//!
//! ```sh
//! proxy server --listen 0.0.0.0:4006 --target 127.0.0.1:80 --key "a passphrase"
//! proxy client --listen 127.0.0.1:8388 --remote HOST:4006 --key "a passphrase"
//! ```
//!
//! where `proxy` is `cargo run --release --example proxy --`. Its options have the names and most
//! of the defaults of kcptun's, whose multiplexing and compression this proxy does not have: the
//! other side must be this one, too. Without a command it carries data between two proxies in this
//! process.

#[path = "common/hash.rs"]
mod hash;
#[path = "common/tunnel.rs"]
mod tunnel;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use kcpx::{Cipher, Config, Endpoint, FecConfig, KcpListener, Key, NoDelay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, lookup_host};

use self::hash::{pseudo_random, sha256};

/// Carries TCP connections over KCP.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Takes TCP connections and carries them to a proxy server
    Client {
        /// Where to take TCP connections, as HOST:PORT; port 0 picks a free one
        #[arg(long, short, default_value = "127.0.0.1:8388")]
        listen: String,
        /// Where the proxy server is, as HOST:PORT
        #[arg(long, short)]
        remote: String,
        #[command(flatten)]
        link: Link,
    },
    /// Takes KCP conversations and carries each to the target
    Server {
        /// Where to take KCP conversations, as HOST:PORT; port 0 picks a free one
        #[arg(long, short, default_value = "0.0.0.0:4006")]
        listen: String,
        /// The TCP service behind the proxy, as HOST:PORT
        #[arg(long, short)]
        target: String,
        #[command(flatten)]
        link: Link,
    },
}

/// The link between the proxies. Both sides need the same key and crypt; the rest each chooses for
/// what it sends, and for its own windows.
#[derive(ClapArgs)]
struct Link {
    /// Passphrase that both sides share
    #[arg(long)]
    key: Option<String>,
    /// Cipher, by kcptun's names: aes-128-gcm, chacha20-poly1305, aes, salsa20, none, null, ...
    #[arg(long, default_value = "aes-128-gcm")]
    crypt: String,
    /// Timing preset
    #[arg(long, value_enum, default_value_t = Mode::Fast)]
    mode: Mode,
    /// Largest datagram in bytes
    #[arg(long, default_value_t = 1350)]
    mtu: u16,
    /// Send window in datagrams
    #[arg(long, default_value_t = 1024)]
    sndwnd: u16,
    /// Receive window in datagrams
    #[arg(long, default_value_t = 1024)]
    rcvwnd: u16,
    /// Forward error correction: data packets of a group; with --parityshard 0 there is none
    #[arg(long, default_value_t = 10)]
    datashard: u8,
    /// Forward error correction: redundant packets of a group
    #[arg(long, default_value_t = 3)]
    parityshard: u8,
    /// Buffers of the UDP socket in bytes
    #[arg(long, default_value_t = 4_194_304)]
    sockbuf: usize,
    /// Class of service of what is sent, 0 to 63 (46: expedited forwarding)
    #[arg(long, default_value_t = 0)]
    dscp: u8,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Normal,
    Fast,
    Fast2,
    Fast3,
}

impl Link {
    fn config(&self) -> Result<Config> {
        let preset = match self.mode {
            Mode::Normal => NoDelay::NORMAL,
            Mode::Fast => NoDelay::FAST,
            Mode::Fast2 => NoDelay::FAST2,
            Mode::Fast3 => NoDelay::FAST3,
        };
        let mut config = Config::new()
            .no_delay(preset)
            .mtu(self.mtu)
            .windows(self.sndwnd, self.rcvwnd)
            .socket_buffers(Some(self.sockbuf), Some(self.sockbuf));
        config.socket.dscp = Some(self.dscp).filter(|dscp| *dscp > 0);
        if self.parityshard > 0 {
            let fec = FecConfig::new(self.datashard.into(), self.parityshard.into());
            config = config.fec(fec.context("--datashard and --parityshard")?);
        }
        let key = match &self.key {
            Some(passphrase) => Key::derive(passphrase, Key::KCPTUN_SALT),
            None => Key::new([]),
        };
        let cipher = Cipher::from_name(&self.crypt, &key).with_context(|| match self.key {
            Some(_) => "--crypt".to_owned(),
            None => format!("--crypt {} without a --key", self.crypt),
        })?;
        let config = config.cipher(cipher);
        config.validate()?;
        Ok(config)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().role {
        Some(Role::Client { listen, remote, link }) => {
            let config = link.config()?;
            let listener = TcpListener::bind(&listen).await.with_context(|| refused(&listen))?;
            println!("listening on {}", listener.local_addr()?);
            let endpoint = dialer(&remote, config).await?;
            until_interrupted(tunnel::client(&listener, &endpoint.0, endpoint.1)).await?;
            endpoint.0.wait_idle().await;
        }
        Some(Role::Server { listen, target, link }) => {
            let listener = KcpListener::bind_with(&listen, link.config()?)
                .await
                .with_context(|| refused(&listen))?;
            println!("listening on {}", listener.local_addr()?);
            until_interrupted(tunnel::server(&listener, &target)).await?;
            listener.wait_idle().await;
        }
        None => demo().await?,
    }
    Ok(())
}

fn refused(addr: &str) -> String {
    format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:8388")
}

/// An endpoint for conversations with the proxy server, and its address.
async fn dialer(remote: &str, config: Config) -> Result<(Endpoint, SocketAddr)> {
    let mut peers = lookup_host(remote).await.with_context(|| {
        format!("cannot find {remote:?}: expected HOST:PORT, as in example.org:4006")
    })?;
    let peer = peers.next().with_context(|| format!("{remote:?} has no address"))?;
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    // The service may be one that speaks first, as those of mail and databases do: then it has to
    // be connected to before its user has sent anything.
    Ok((Endpoint::bind_with(any, config.open_on_connect(true)).await?, peer))
}

async fn until_interrupted(proxy: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::select! {
        ended = proxy => ended,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

/// A TCP service, both proxies, and a client of the service: what it uploads comes back, over
/// several connections at once.
async fn demo() -> Result<()> {
    const CONNECTIONS: u64 = 4;
    const BYTES: usize = 16_000_000;

    let link = Args::try_parse_from(["proxy", "server", "--target", "-", "--key", "a passphrase"])?;
    let Some(Role::Server { link, .. }) = link.role else { unreachable!("it was parsed as such") };
    let service = TcpListener::bind("127.0.0.1:0").await?;
    let target = service.local_addr()?.to_string();
    let far = KcpListener::bind_with("127.0.0.1:0", link.config()?).await?;
    let remote = far.local_addr()?;
    let (endpoint, peer) = dialer(&remote.to_string(), link.config()?).await?;
    let near = TcpListener::bind("127.0.0.1:0").await?;
    let addr = near.local_addr()?;
    println!("client -> TCP {addr} -> KCP {remote}, {} with FEC -> TCP {target}", link.crypt);

    let echo = async {
        loop {
            let (mut tcp, _) = service.accept().await?;
            tokio::spawn(async move {
                let (mut reader, mut writer) = tcp.split();
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            });
        }
    };
    let clients = async {
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..CONNECTIONS {
            clients.spawn(async move {
                let data = pseudo_random(number, BYTES);
                let (mut reader, mut writer) = TcpStream::connect(addr).await?.into_split();
                let mut back = Vec::new();
                let upload = async {
                    writer.write_all(&data).await?;
                    writer.shutdown().await
                };
                tokio::try_join!(upload, reader.read_to_end(&mut back))?;
                let (sent, received) = (sha256(&data), sha256(&back));
                ensure!(sent == received, "sent sha256 {sent}, got back {received}");
                anyhow::Ok(())
            });
        }
        while let Some(client) = clients.join_next().await {
            client??;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        ended = echo => ended,
        ended = tunnel::server(&far, &target) => ended.context("the server's side"),
        ended = tunnel::client(&near, &endpoint, peer) => ended.context("the client's side"),
        done = clients => done,
    }?;
    println!("{CONNECTIONS} connections, {BYTES} bytes each way on each, every sha256 equal");
    let stats = far.stats();
    println!(
        "{} conversations from one socket, {} datagrams received, {} recovered by FEC",
        stats.opened_by_peers, stats.received_datagrams, stats.fec.recovered_shards,
    );
    Ok(())
}
