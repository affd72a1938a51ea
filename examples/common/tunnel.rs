//! TCP connections and KCP connections, one for one.

use std::future::ready;
use std::io;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use kcpx::{Endpoint, KcpListener, KcpStream};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::task::JoinSet;

/// Takes TCP connections and opens a connection for each, all from one socket.
pub(crate) async fn client(
    listener: &TcpListener,
    endpoint: &Endpoint,
    peer: SocketAddr,
) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // One connection failed, or too many files are open, which passes.
                println!("cannot accept: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let endpoint = endpoint.clone();
        connections.spawn(async move { report(from, carry(tcp, endpoint.connect(peer)).await) });
    }
}

/// Takes connections and opens a TCP connection to the target for each.
pub(crate) async fn server(listener: &KcpListener, target: &str) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (kcp, from) = listener.accept().await.context("the endpoint has ended")?;
        while connections.try_join_next().is_some() {}
        let target = target.to_owned();
        connections.spawn(async move {
            match TcpStream::connect(&target).await {
                Ok(tcp) => report(from, carry(tcp, ready(Ok(kcp))).await),
                Err(error) => {
                    // As if the target had refused the user itself.
                    kcp.abort();
                    println!("{from}: cannot connect to {target}: {error}");
                }
            }
        });
    }
}

/// Copies both ways until both have ended. Returns the bytes from TCP to KCP, and back.
async fn carry(
    mut tcp: TcpStream,
    kcp: impl Future<Output = io::Result<KcpStream>>,
) -> io::Result<(u64, u64)> {
    tcp.set_nodelay(true)?;
    // An error, or the end of this task or process, resets the TCP connection: the user must not take a
    // part for the whole. Disarmed below, once both directions have ended.
    tcp.set_zero_linger()?;
    let mut kcp = ResetOnDrop { stream: kcp.await?, armed: true };
    let copied = {
        let (mut tcp_read, mut tcp_write) = tcp.split();
        let (mut kcp_read, mut kcp_write) = kcp.stream.split();
        tokio::try_join!(
            upload(&mut tcp_read, &mut kcp_write),
            download(&mut kcp_read, &mut tcp_write)
        )?
    };
    SockRef::from(&tcp).set_linger(None)?;
    kcp.armed = false;
    Ok(copied)
}

/// Copies from TCP to KCP until TCP ends, and ends KCP. Returns the number of bytes.
///
/// `tokio::io::copy_bidirectional` would do for both directions, with one more copy of each byte in each.
async fn upload(tcp: &mut tcp::ReadHalf<'_>, kcp: &mut kcpx::WriteHalf<'_>) -> io::Result<u64> {
    let mut total = 0;
    loop {
        match kcp.write_from(tcp).await? {
            0 => break,
            count => total += count as u64,
        }
    }
    kcp.shutdown().await?;
    Ok(total)
}

/// Copies from KCP to TCP until KCP ends, and ends TCP. Returns the number of bytes.
async fn download(kcp: &mut kcpx::ReadHalf<'_>, tcp: &mut tcp::WriteHalf<'_>) -> io::Result<u64> {
    let mut total = 0;
    loop {
        let chunk = kcp.read_chunk().await?;
        if chunk.is_empty() {
            break;
        }
        tcp.write_all(&chunk).await?;
        total += chunk.len() as u64;
    }
    tcp.shutdown().await?;
    Ok(total)
}

/// Resets the KCP connection when it is dropped while armed.
struct ResetOnDrop {
    stream: KcpStream,
    armed: bool,
}

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if self.armed {
            // An error says that the connection has ended already.
            drop(self.stream.set_zero_linger());
        }
    }
}

fn report(from: SocketAddr, copied: io::Result<(u64, u64)>) {
    match copied {
        Ok((up, down)) => println!("{from}: closed, {up} bytes from TCP to KCP, {down} back"),
        Err(error) => println!("{from}: reset: {error}"),
    }
}
