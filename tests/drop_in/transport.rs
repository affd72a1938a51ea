//! The API of `TcpStream` as traits. One macro implements them for TCP and KCP, so it compiles only while
//! names, arguments and results agree.

use std::fmt::Debug;
use std::future::Future;
use std::io::{IoSlice, IoSliceMut, Result};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use kcpx::{Config, KcpListener, KcpStream, KeepaliveInterval};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpListener, TcpStream};

/// Opens connections. The other traits cover their use.
pub(crate) trait Transport: Sized + 'static {
    type Stream: Stream;
    type Listener: Listener<Stream = Self::Stream>;

    fn bind() -> impl Future<Output = Self::Listener> + Send;
    /// A listener that gives up on a silent peer after a second, if the transport has such a setting.
    fn bind_hastily() -> impl Future<Output = Self::Listener> + Send;
    /// Connects with the default settings.
    fn connect(addr: SocketAddr) -> impl Future<Output = Result<Self::Stream>> + Send;
    /// Connects with a timeout of a second for a silent peer, if the transport has such a setting.
    fn connect_hastily(addr: SocketAddr) -> impl Future<Output = Result<Self::Stream>> + Send;
    /// Connects to the first address that answers.
    fn connect_any(addrs: &[SocketAddr]) -> impl Future<Output = Result<Self::Stream>> + Send;
    /// Connects to a host name.
    fn connect_name(name: &str, port: u16) -> impl Future<Output = Result<Self::Stream>> + Send;
    /// Waits until the listener has the connection.
    fn known(stream: &Self::Stream) -> impl Future<Output = Result<()>> + Send;
    /// Waits until the socket at `addr` is closed. Returns at once if the kernel owns the connection.
    fn gone(addr: SocketAddr) -> impl Future<Output = ()> + Send;
}

pub(crate) struct Tcp;
pub(crate) struct Kcp;

impl Transport for Tcp {
    type Stream = TcpStream;
    type Listener = TcpListener;

    async fn bind() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").await.expect("a listener")
    }

    async fn bind_hastily() -> TcpListener {
        Self::bind().await
    }

    async fn connect(addr: SocketAddr) -> Result<TcpStream> {
        TcpStream::connect(addr).await
    }

    async fn connect_hastily(addr: SocketAddr) -> Result<TcpStream> {
        TcpStream::connect(addr).await
    }

    async fn connect_any(addrs: &[SocketAddr]) -> Result<TcpStream> {
        TcpStream::connect(addrs).await
    }

    async fn connect_name(name: &str, port: u16) -> Result<TcpStream> {
        TcpStream::connect((name, port)).await
    }

    async fn known(_: &TcpStream) -> Result<()> {
        Ok(())
    }

    async fn gone(_: SocketAddr) {}
}

/// A dead-peer timeout of a second, with a shorter linger: the socket is closed when the peer pings it.
fn hasty() -> Config {
    let second = Some(Duration::from_secs(1));
    Config::new()
        .idle_timeout(second)
        .keepalive(KeepaliveInterval::Never)
        .connect_timeout(Duration::from_secs(1))
        .linger(Duration::from_millis(250))
        .dead_peer_timeout(second)
}

impl Transport for Kcp {
    type Stream = KcpStream;
    type Listener = KcpListener;

    async fn bind() -> KcpListener {
        KcpListener::bind("127.0.0.1:0").await.expect("a listener")
    }

    async fn bind_hastily() -> KcpListener {
        KcpListener::bind_with("127.0.0.1:0", hasty()).await.expect("a listener")
    }

    async fn connect(addr: SocketAddr) -> Result<KcpStream> {
        KcpStream::connect(addr).await
    }

    async fn connect_hastily(addr: SocketAddr) -> Result<KcpStream> {
        KcpStream::connect_with(addr, hasty()).await
    }

    async fn connect_any(addrs: &[SocketAddr]) -> Result<KcpStream> {
        KcpStream::connect(addrs).await
    }

    async fn connect_name(name: &str, port: u16) -> Result<KcpStream> {
        KcpStream::connect((name, port)).await
    }

    async fn known(stream: &KcpStream) -> Result<()> {
        stream.established().await
    }

    async fn gone(addr: SocketAddr) {
        while std::net::UdpSocket::bind(addr).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

pub(crate) trait Listener: Debug + Send + Sync + 'static {
    type Stream: Stream;

    fn bind_to(addr: SocketAddr) -> impl Future<Output = Result<Self>> + Send
    where
        Self: Sized;
    fn accept(&self) -> impl Future<Output = Result<(Self::Stream, SocketAddr)>> + Send;
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<(Self::Stream, SocketAddr)>>;
    fn local_addr(&self) -> Result<SocketAddr>;
}

pub(crate) trait Stream:
    AsyncRead + AsyncWrite + AsRef<Self> + Debug + Send + Sync + Unpin + Sized + 'static
{
    type ReadHalf<'a>: AsyncRead + Debug + Send + Unpin;
    type WriteHalf<'a>: AsyncWrite + Debug + Send + Unpin;
    type OwnedReadHalf: OwnedReadHalf<Stream = Self, WriteHalf = Self::OwnedWriteHalf>;
    type OwnedWriteHalf: OwnedWriteHalf<Stream = Self, ReadHalf = Self::OwnedReadHalf>;

    fn split(&mut self) -> (Self::ReadHalf<'_>, Self::WriteHalf<'_>);
    fn into_split(self) -> (Self::OwnedReadHalf, Self::OwnedWriteHalf);

    fn peer_addr(&self) -> Result<SocketAddr>;
    fn local_addr(&self) -> Result<SocketAddr>;
    fn take_error(&self) -> Result<Option<std::io::Error>>;
    fn nodelay(&self) -> Result<bool>;
    fn set_nodelay(&self, nodelay: bool) -> Result<()>;
    fn linger(&self) -> Result<Option<Duration>>;
    fn set_linger(&self, time: Option<Duration>) -> Result<()>;
    fn set_zero_linger(&self) -> Result<()>;

    fn peek(&self, buf: &mut [u8]) -> impl Future<Output = Result<usize>> + Send;
    fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<usize>>;
    fn ready(&self, interest: Interest) -> impl Future<Output = Result<Ready>> + Send;
    fn readable(&self) -> impl Future<Output = Result<()>> + Send;
    fn writable(&self) -> impl Future<Output = Result<()>> + Send;
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>>;
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>>;
    fn try_read(&self, buf: &mut [u8]) -> Result<usize>;
    fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize>;
    fn try_read_buf(&self, buf: &mut Vec<u8>) -> Result<usize>;
    fn try_write(&self, buf: &[u8]) -> Result<usize>;
    fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<usize>;
}

pub(crate) trait OwnedReadHalf:
    AsyncRead + Debug + Send + Sync + Unpin + Sized + 'static
{
    type Stream;
    type WriteHalf;

    fn reunite(
        self,
        other: Self::WriteHalf,
    ) -> std::result::Result<Self::Stream, (Self, Self::WriteHalf)>;
    fn peer_addr(&self) -> Result<SocketAddr>;
    fn local_addr(&self) -> Result<SocketAddr>;
    fn peek(&mut self, buf: &mut [u8]) -> impl Future<Output = Result<usize>> + Send;
    fn poll_peek(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<usize>>;
    fn ready(&self, interest: Interest) -> impl Future<Output = Result<Ready>> + Send;
    fn readable(&self) -> impl Future<Output = Result<()>> + Send;
    fn try_read(&self, buf: &mut [u8]) -> Result<usize>;
    fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize>;
    fn try_read_buf(&self, buf: &mut Vec<u8>) -> Result<usize>;
}

pub(crate) trait OwnedWriteHalf:
    AsyncWrite + Debug + Send + Sync + Unpin + Sized + 'static
{
    type Stream;
    type ReadHalf;

    fn reunite(
        self,
        other: Self::ReadHalf,
    ) -> std::result::Result<Self::Stream, (Self::ReadHalf, Self)>;
    fn forget(self);
    fn peer_addr(&self) -> Result<SocketAddr>;
    fn local_addr(&self) -> Result<SocketAddr>;
    fn ready(&self, interest: Interest) -> impl Future<Output = Result<Ready>> + Send;
    fn writable(&self) -> impl Future<Output = Result<()>> + Send;
    fn try_write(&self, buf: &[u8]) -> Result<usize>;
    fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<usize>;
}

/// Calls the method of the same name. `<Type>::name` prefers inherent methods to trait methods.
macro_rules! forward {
    ($type:ty; $(fn $name:ident($($arg:ident: $arg_type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, $($arg: $arg_type),*) -> $result {
            <$type>::$name(self, $($arg),*)
        }
    )*};
}

/// The same for async methods.
macro_rules! forward_async {
    ($type:ty; $(fn $name:ident($($arg:ident: $arg_type:ty),*) -> $result:ty;)*) => {$(
        async fn $name(&self, $($arg: $arg_type),*) -> $result {
            <$type>::$name(self, $($arg),*).await
        }
    )*};
}

macro_rules! same_words {
    ($listener:ty, $stream:ty, $read:ty, $write:ty, $owned_read:ty, $owned_write:ty) => {
        impl Listener for $listener {
            type Stream = $stream;

            async fn bind_to(addr: SocketAddr) -> Result<Self> {
                <$listener>::bind(addr).await
            }

            forward_async!($listener;
                fn accept() -> Result<($stream, SocketAddr)>;
            );
            forward!($listener;
                fn poll_accept(cx: &mut Context<'_>) -> Poll<Result<($stream, SocketAddr)>>;
                fn local_addr() -> Result<SocketAddr>;
            );
        }

        impl Stream for $stream {
            type ReadHalf<'a> = $read;
            type WriteHalf<'a> = $write;
            type OwnedReadHalf = $owned_read;
            type OwnedWriteHalf = $owned_write;

            fn split(&mut self) -> (Self::ReadHalf<'_>, Self::WriteHalf<'_>) {
                <$stream>::split(self)
            }

            fn into_split(self) -> ($owned_read, $owned_write) {
                <$stream>::into_split(self)
            }

            #[allow(deprecated, reason = "it matters to TCP alone, and nothing is dropped so")]
            fn set_linger(&self, time: Option<Duration>) -> Result<()> {
                <$stream>::set_linger(self, time)
            }

            forward!($stream;
                fn peer_addr() -> Result<SocketAddr>;
                fn local_addr() -> Result<SocketAddr>;
                fn take_error() -> Result<Option<std::io::Error>>;
                fn nodelay() -> Result<bool>;
                fn set_nodelay(nodelay: bool) -> Result<()>;
                fn linger() -> Result<Option<Duration>>;
                fn set_zero_linger() -> Result<()>;
                fn poll_peek(cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<usize>>;
                fn poll_read_ready(cx: &mut Context<'_>) -> Poll<Result<()>>;
                fn poll_write_ready(cx: &mut Context<'_>) -> Poll<Result<()>>;
                fn try_read(buf: &mut [u8]) -> Result<usize>;
                fn try_read_vectored(bufs: &mut [IoSliceMut<'_>]) -> Result<usize>;
                fn try_read_buf(buf: &mut Vec<u8>) -> Result<usize>;
                fn try_write(buf: &[u8]) -> Result<usize>;
                fn try_write_vectored(bufs: &[IoSlice<'_>]) -> Result<usize>;
            );
            forward_async!($stream;
                fn peek(buf: &mut [u8]) -> Result<usize>;
                fn ready(interest: Interest) -> Result<Ready>;
                fn readable() -> Result<()>;
                fn writable() -> Result<()>;
            );
        }

        impl OwnedReadHalf for $owned_read {
            type Stream = $stream;
            type WriteHalf = $owned_write;

            fn reunite(
                self,
                other: $owned_write,
            ) -> std::result::Result<$stream, (Self, $owned_write)> {
                <$owned_read>::reunite(self, other).map_err(|error| (error.0, error.1))
            }

            async fn peek(&mut self, buf: &mut [u8]) -> Result<usize> {
                <$owned_read>::peek(self, buf).await
            }

            fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<Result<usize>> {
                <$owned_read>::poll_peek(self, cx, buf)
            }

            forward!($owned_read;
                fn peer_addr() -> Result<SocketAddr>;
                fn local_addr() -> Result<SocketAddr>;
                fn try_read(buf: &mut [u8]) -> Result<usize>;
                fn try_read_vectored(bufs: &mut [IoSliceMut<'_>]) -> Result<usize>;
                fn try_read_buf(buf: &mut Vec<u8>) -> Result<usize>;
            );
            forward_async!($owned_read;
                fn ready(interest: Interest) -> Result<Ready>;
                fn readable() -> Result<()>;
            );
        }

        impl OwnedWriteHalf for $owned_write {
            type Stream = $stream;
            type ReadHalf = $owned_read;

            fn reunite(
                self,
                other: $owned_read,
            ) -> std::result::Result<$stream, ($owned_read, Self)> {
                <$owned_write>::reunite(self, other).map_err(|error| (error.0, error.1))
            }

            fn forget(self) {
                <$owned_write>::forget(self);
            }

            forward!($owned_write;
                fn peer_addr() -> Result<SocketAddr>;
                fn local_addr() -> Result<SocketAddr>;
                fn try_write(buf: &[u8]) -> Result<usize>;
                fn try_write_vectored(bufs: &[IoSlice<'_>]) -> Result<usize>;
            );
            forward_async!($owned_write;
                fn ready(interest: Interest) -> Result<Ready>;
                fn writable() -> Result<()>;
            );
        }
    };
}

same_words!(
    TcpListener,
    TcpStream,
    tokio::net::tcp::ReadHalf<'a>,
    tokio::net::tcp::WriteHalf<'a>,
    tokio::net::tcp::OwnedReadHalf,
    tokio::net::tcp::OwnedWriteHalf
);
same_words!(
    KcpListener,
    KcpStream,
    kcpx::ReadHalf<'a>,
    kcpx::WriteHalf<'a>,
    kcpx::OwnedReadHalf,
    kcpx::OwnedWriteHalf
);
