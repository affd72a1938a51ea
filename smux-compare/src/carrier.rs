//! What multiplexers run over.

use kcpx::{Config, KcpListener, KcpStream, Timing};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A carrier's end.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static> Carrier for T {}

pub(crate) async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("it is bound");
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (client, server) = (client.expect("it listens"), server.expect("it listens").0);
    client.set_nodelay(true).expect("TCP has the option");
    server.set_nodelay(true).expect("TCP has the option");
    (client, server)
}

/// The listener has to be kept: it receives for its connections.
pub(crate) async fn kcp() -> (KcpStream, KcpStream, KcpListener) {
    let config = Config::new().timing(Timing::TURBO).windows(1_024, 1_024).mtu(1_400);
    let listener =
        KcpListener::bind_with("127.0.0.1:0", config.clone()).await.expect("loopback has ports");
    let address = listener.local_addr().expect("it is bound");
    let mut client = KcpStream::connect_with(address, config).await.expect("it listens");
    // The server learns of a client by what that sends.
    client.write_all(&[0]).await.expect("it is connected");
    client.flush().await.expect("it is connected");
    let (mut server, _) = listener.accept().await.expect("it listens");
    server.read_exact(&mut [0]).await.expect("it is connected");
    (client, server, listener)
}
