//! The client that sends numbers, and the server that notes when they arrive.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kcpx::{Algorithm, Cipher, Config, KcpListener, KcpStream, PathState, PathStatus};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval_at, sleep, timeout};

use super::INTERVAL;
use super::report::Case;

/// How long a path may take until it is usable.
const PATH: Duration = Duration::from_secs(10);
/// How long the last numbers may take after the last one was sent: more than the back-off of TCP after the
/// longest cut.
const REST: Duration = Duration::from_secs(130);

/// The addresses on which the server listens.
#[derive(Clone, Copy)]
pub(crate) struct Addrs {
    pub(crate) kcp: SocketAddr,
    /// `None` where TCP does not cross the cables.
    pub(crate) tcp: Option<SocketAddr>,
}

/// The moment at which the first number leaves, and the paths of the connection that has two.
pub(crate) struct Started {
    pub(crate) at: Instant,
    pub(crate) paths: Vec<PathStatus>,
}

/// Several paths need an AEAD cipher on both sides.
fn config() -> Result<Config> {
    // The server and the client of this process have it alone.
    let key = [7; 16];
    Ok(Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &key)?))
}

// ----- the server -----

/// When each number arrived on the connection of a case.
pub(crate) type Arrivals = (Case, Vec<Instant>);

/// Accepts a connection for each case and notes its numbers until they end.
pub(crate) async fn serve(
    ip: IpAddr,
    with_tcp: bool,
    addrs: Sender<Addrs>,
    most: Duration,
) -> Result<Vec<Arrivals>> {
    let kcp = KcpListener::bind_with((ip, 0), config()?).await?;
    let tcp = if with_tcp { Some(TcpListener::bind((ip, 0)).await?) } else { None };
    let tcp_addr = tcp.as_ref().map(TcpListener::local_addr).transpose()?;
    // The receiver ends with an error of its own.
    let _ = addrs.send(Addrs { kcp: kcp.local_addr()?, tcp: tcp_addr });

    let (first, _) = kcp.accept().await?;
    let (second, _) = kcp.accept().await?;
    let over_tcp = async {
        let Some(tcp) = tcp else { return Ok(None) };
        receive(tcp.accept().await?.0).await.map(Some)
    };
    let all = async { tokio::try_join!(receive(first), receive(second), over_tcp) };
    let all = timeout(most + REST, all).await.context("the numbers do not end in time")?;
    let (first, second, over_tcp) = all?;
    Ok([first, second].into_iter().chain(over_tcp).collect())
}

/// Reads which case it is, and its numbers from 0 without a gap.
async fn receive(mut stream: impl AsyncRead + Unpin) -> Result<Arrivals> {
    let case = stream.read_u8().await?;
    let case = Case::from_number(case).context("the connection begins with an unknown case")?;
    let mut arrivals = Vec::new();
    loop {
        match stream.read_u32().await {
            Ok(number) => ensure!(
                number as usize == arrivals.len(),
                "{}: {number} arrived instead of {}",
                case.name(),
                arrivals.len()
            ),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok((case, arrivals)),
            Err(error) => return Err(error).with_context(|| format!("{} ended", case.name())),
        }
        arrivals.push(Instant::now());
    }
}

// ----- the client -----

/// When each number left on the connection of a case.
pub(crate) type Sendings = (Case, Vec<Instant>);

/// Opens the connections, adds the path, and sends the numbers.
///
/// `second`: the client's address on the second cable.
pub(crate) async fn send(
    server: Addrs,
    second: IpAddr,
    length: Duration,
    started: Sender<Started>,
) -> Result<Vec<Sendings>> {
    // Bound to all addresses, as a second path requires.
    let two_paths = KcpStream::connect_with(server.kcp, config()?).await?;
    let one_path = KcpStream::connect_with(server.kcp, config()?).await?;
    two_paths.add_path(second).await.with_context(|| format!("cannot add a path from {second}"))?;
    let paths = usable(&two_paths).await?;
    let tcp = match server.tcp {
        Some(addr) => Some(TcpStream::connect(addr).await?),
        None => None,
    };

    let at = Instant::now();
    drop(started.send(Started { at, paths }));
    let over_tcp = async {
        let Some(tcp) = tcp else { return Ok(None) };
        tcp.set_nodelay(true)?;
        count(tcp, Case::Tcp, at, length).await.map(Some)
    };
    let (two_paths, one_path, over_tcp) = tokio::try_join!(
        count(two_paths, Case::TwoPaths, at, length),
        count(one_path, Case::OnePath, at, length),
        over_tcp
    )?;
    Ok([two_paths, one_path].into_iter().chain(over_tcp).collect())
}

/// Waits until the peer has answered on all paths.
async fn usable(stream: &KcpStream) -> Result<Vec<PathStatus>> {
    let all_usable = async {
        loop {
            let paths = stream.paths().await?;
            if paths.len() > 1 && paths.iter().all(|path| path.state == PathState::Usable) {
                return anyhow::Ok(paths);
            }
            sleep(INTERVAL).await;
        }
    };
    match timeout(PATH, all_usable).await {
        Ok(paths) => paths,
        Err(_) => bail!(
            "the server does not answer on the second path: check the rule for its source address"
        ),
    }
}

async fn count(
    mut stream: impl AsyncWrite + Unpin,
    case: Case,
    start: Instant,
    length: Duration,
) -> Result<Sendings> {
    let failed = || format!("{} ended", case.name());
    stream.write_u8(case as u8).await.with_context(failed)?;
    let mut ticks = interval_at(start.into(), INTERVAL);
    let mut sendings = Vec::new();
    // A number waits while the connection has no room for it; those behind it then leave at once.
    for number in 0..u32::try_from(length.as_millis() / INTERVAL.as_millis())? {
        ticks.tick().await;
        sendings.push(Instant::now());
        stream.write_all(&number.to_be_bytes()).await.with_context(failed)?;
    }
    stream.shutdown().await.with_context(failed)?;
    Ok((case, sendings))
}
