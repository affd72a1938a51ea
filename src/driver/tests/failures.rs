//! Endpoints whose socket is shut down, or whose application code panics, on real sockets: the endpoint ends,
//! its peers are reset, and no task waits for it.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::UdpSocket as TokioSocket;
use tokio::time::timeout;

use crate::config::Config;
use crate::crypto::{Cipher, OpenError, Overhead, PacketCipher};
use crate::endpoint::Endpoint;
use crate::error::ConnectionError;
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::{RecvBatch, Transmit, Transport};

const LOOPBACK: &str = "127.0.0.1:0";
/// Content that makes a part panic.
const TRIGGER: &[u8] = b"panic, please, in the endpoint that receives this";
/// Far beyond what any step takes, and far below every timeout of a connection.
const LONG: Duration = Duration::from_secs(10);

fn is_trigger(datagram: &[u8]) -> bool {
    datagram == TRIGGER
}

/// An established connection to `addr`, and the stream that `listener` accepted.
async fn connected(listener: &KcpListener, config: Config) -> (KcpStream, KcpStream) {
    let addr = listener.local_addr().unwrap();
    let mut client = KcpStream::connect_with(addr, config).await.unwrap();
    client.write_all(b"hello").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    server.read_exact(&mut [0; 5]).await.unwrap();
    // The client learns that the server supports RST.
    server.write_all(b"hello").await.unwrap();
    client.read_exact(&mut [0; 5]).await.unwrap();
    (client, server)
}

/// The endpoint of `listener` and `server` ends, and `client` is reset.
async fn expect_end(listener: &KcpListener, mut server: KcpStream, mut client: KcpStream) {
    let reset = timeout(LONG, client.read(&mut [0; 1])).await.expect("the peer is reset");
    assert_eq!(reset.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let ended = timeout(LONG, server.read(&mut [0; 1])).await.expect("the handle does not wait");
    assert!(ended.is_err());
    assert_eq!(server.error(), Some(ConnectionError::EndpointClosed));
    assert!(timeout(LONG, listener.accept()).await.expect("nor does accept").is_err());
    let error = listener.endpoint().take_error().unwrap().expect("the reason");
    assert!(error.to_string().contains("panicked: as the trigger asks"), "{error}");
}

async fn expect_end_by_datagram(config: Config, client_config: Config) {
    let listener = KcpListener::bind_with(LOOPBACK, config).await.unwrap();
    let (client, server) = connected(&listener, client_config).await;
    let other = UdpSocket::bind(LOOPBACK).unwrap();
    other.send_to(TRIGGER, listener.local_addr().unwrap()).unwrap();
    expect_end(&listener, server, client).await;
}

#[tokio::test]
async fn packet_filter_that_panics_ends_its_endpoint() {
    let config = Config::new().packet_filter(|_, datagram| {
        assert!(!is_trigger(datagram), "as the trigger asks");
        false
    });
    expect_end_by_datagram(config, Config::new()).await;
}

#[derive(Debug)]
struct PanickingCipher;

impl PacketCipher for PanickingCipher {
    fn overhead(&self) -> Overhead {
        Overhead::ZERO
    }

    fn seal(&self, _: &mut [&mut [u8]]) {}

    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError> {
        assert!(!is_trigger(datagram), "as the trigger asks");
        Ok(())
    }
}

#[tokio::test]
async fn cipher_that_panics_ends_its_endpoint() {
    let config = Config::new().cipher(Cipher::custom(PanickingCipher));
    expect_end_by_datagram(config.clone(), config).await;
}

#[tokio::test]
async fn accept_filter_that_panics_ends_its_endpoint() {
    let armed = Arc::new(AtomicBool::new(false));
    let is_armed = Arc::clone(&armed);
    let config = Config::new().accept_filter(move |_, _| {
        assert!(!is_armed.load(Ordering::Relaxed), "as the trigger asks");
        true
    });
    let listener = KcpListener::bind_with(LOOPBACK, config).await.unwrap();
    let (client, server) = connected(&listener, Config::new()).await;
    armed.store(true, Ordering::Relaxed);
    let (addr, early) = (listener.local_addr().unwrap(), Config::new().early_data(true));
    let mut other = KcpStream::connect_with(addr, early).await.unwrap();
    other.write_all(b"hello").await.unwrap();
    expect_end(&listener, server, client).await;
}

/// A UDP socket behind the transport interface, which panics at the trigger.
struct PanickingTransport(TokioSocket);

impl Transport for PanickingTransport {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffer = [0; 2_048];
        let mut buffer = ReadBuf::new(&mut buffer);
        let from = ready!(self.0.poll_recv_from(cx, &mut buffer))?;
        assert!(!is_trigger(buffer.filled()), "as the trigger asks");
        batch.push(from, buffer.filled());
        Poll::Ready(Ok(()))
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        transmit: &Transmit<'_>,
    ) -> Poll<io::Result<usize>> {
        let first = transmit.datagrams().next().unwrap_or_default();
        self.0.poll_send_to(cx, first, transmit.dst).map_ok(|_| 1)
    }
}

#[tokio::test]
async fn transport_that_panics_ends_its_endpoint() {
    let socket = TokioSocket::bind(LOOPBACK).await.unwrap();
    let local = socket.local_addr().unwrap();
    let endpoint = Endpoint::from_transport(PanickingTransport(socket), Config::new()).unwrap();
    let listener = KcpListener::bind(LOOPBACK).await.unwrap();
    let mut stream = endpoint.connect(listener.local_addr().unwrap()).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    peer.write_all(b"hello").await.unwrap();
    stream.read_exact(&mut [0; 5]).await.unwrap();
    UdpSocket::bind(LOOPBACK).unwrap().send_to(TRIGGER, local).unwrap();
    peer.read_exact(&mut [0; 5]).await.unwrap();
    let reset = timeout(LONG, peer.read(&mut [0; 1])).await.expect("the peer is reset");
    assert_eq!(reset.unwrap_err().kind(), ErrorKind::ConnectionReset);
    timeout(LONG, stream.read(&mut [0; 1])).await.expect("no wait").unwrap_err();
    assert_eq!(stream.error(), Some(ConnectionError::EndpointClosed));
}

struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("as the trigger asks");
    }
}

#[tokio::test]
async fn waker_that_panics_ends_its_endpoint() {
    let listener = KcpListener::bind(LOOPBACK).await.unwrap();
    let (client, server) = connected(&listener, Config::new()).await;
    let (mut other, mut panicking) = connected(&listener, Config::new()).await;
    let waker = Waker::from(Arc::new(PanickingWaker));
    let mut buffer = [0; 8];
    let pending = std::pin::Pin::new(&mut panicking)
        .poll_read(&mut Context::from_waker(&waker), &mut ReadBuf::new(&mut buffer));
    assert!(pending.is_pending());
    other.write_all(b"wake up").await.unwrap();
    expect_end(&listener, server, client).await;
}

/// On a socket that is shut down the task ends; it must not spin, and its handles get the error.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn socket_that_is_shut_down_ends_its_endpoint() {
    for how in [std::net::Shutdown::Read, std::net::Shutdown::Both, std::net::Shutdown::Write] {
        let socket = UdpSocket::bind(LOOPBACK).unwrap();
        let same = socket.try_clone().unwrap();
        let listener = KcpListener::from_std(socket).unwrap();
        let (_client, mut server) = connected(&listener, Config::new()).await;
        // The system reports that it is not connected, and shuts it down.
        socket2::SockRef::from(&same).shutdown(how).unwrap_err();
        // If only the sending half is shut down, the first datagram that leaves fails.
        let _ = server.write_all(b"hello").await;
        let ended = timeout(LONG, async {
            let mut byte = [0; 1];
            while server.read(&mut byte).await.is_ok_and(|read| read > 0) {}
            while listener.accept().await.is_ok() {}
        });
        ended.await.unwrap_or_else(|_| panic!("{how:?}: the handles wait"));
        assert_eq!(server.error(), Some(ConnectionError::EndpointClosed), "{how:?}");
        let error = listener.endpoint().take_error().unwrap().expect("the reason");
        assert_eq!(error.raw_os_error(), Some(libc::ESHUTDOWN), "{how:?}");
    }
}
