//! Carriers that multiplexers run over.

use std::io;

use kcpx::{Config, KcpListener, KcpStream, Timing};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A carrier's end.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static> Carrier for T {}

pub(crate) async fn tcp() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (client, server) = (client?, server?.0);
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

/// The listener has to be kept: it receives for its connections.
pub(crate) async fn kcp() -> io::Result<(KcpStream, KcpStream, KcpListener)> {
    let config = Config::new().timing(Timing::FAST3).windows(1_024, 1_024).mtu(1_400);
    let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await?;
    let address = listener.local_addr()?;
    let mut client = KcpStream::connect_with(address, config).await?;
    // The server learns of a client by what that sends.
    client.write_all(&[0]).await?;
    client.flush().await?;
    let (mut server, _) = listener.accept().await?;
    server.read_exact(&mut [0]).await?;
    Ok((client, server, listener))
}
