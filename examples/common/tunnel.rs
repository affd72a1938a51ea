//! TCP connections and KCP connections, one for one.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use kcpx::{Endpoint, KcpListener, KcpStream};
use socket2::SockRef;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Bytes that each direction of a connection copies at once.
const BLOCK: usize = 64 * 1024;

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
                // Of one connection, or too many files are open, which passes.
                println!("cannot accept: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let kcp = endpoint.connect(peer).await.context("cannot open a connection")?;
        connections.spawn(async move { report(from, carry(tcp, kcp).await) });
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
                Ok(tcp) => report(from, carry(tcp, kcp).await),
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
async fn carry(mut tcp: TcpStream, kcp: KcpStream) -> io::Result<(u64, u64)> {
    tcp.set_nodelay(true)?;
    // Neither side must take what has arrived so far for the whole: until both directions have ended,
    // an error, the end of this task, and for TCP that of the process, are resets.
    tcp.set_zero_linger()?;
    let mut kcp = ResetOnDrop(Some(kcp));
    let Some(stream) = &mut kcp.0 else { unreachable!("it was put there") };
    let copied = copy_bidirectional_with_sizes(&mut tcp, stream, BLOCK, BLOCK).await?;
    SockRef::from(&tcp).set_linger(None)?;
    drop(kcp.0.take());
    Ok(copied)
}

/// Resets the connection unless it is taken out before.
struct ResetOnDrop(Option<KcpStream>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            stream.abort();
        }
    }
}

fn report(from: SocketAddr, copied: io::Result<(u64, u64)>) {
    match copied {
        Ok((up, down)) => println!("{from}: closed, {up} bytes from TCP to KCP, {down} back"),
        Err(error) => println!("{from}: reset: {error}"),
    }
}
