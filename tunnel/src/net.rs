//! TCP and unix sockets: listening, connecting, and the two halves of a stream.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, lookup_host, tcp};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream, unix};

use crate::macros::{impl_async_read, impl_async_write};
use crate::resolve::{Resolver, connect_first};
use crate::settings::LocalAddress;

/// Connections that the system queues until they are accepted.
const BACKLOG: i32 = 1_024;
/// TCP keepalive: idle time before the first probe, and time between probes, as in Go's `net`.
/// Without probes, a vanished peer would hold its stream and socket until the session ends.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// A socket on which users connect.
pub(crate) enum LocalListener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix {
        /// Declared before the listener, so dropped first: while the listener is bound, the file
        /// cannot belong to a successor.
        _path: UnixPath,
        listener: UnixListener,
    },
}

impl LocalListener {
    /// Binds the first address that can be bound. Replaces the socket file of a dead process.
    pub(crate) async fn bind(address: &LocalAddress) -> io::Result<Self> {
        match address {
            LocalAddress::Tcp { host, port } => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for addr in bind_addrs(host, *port).await? {
                    match bind_tcp(addr) {
                        Ok(listener) => return Ok(Self::Tcp(listener)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            #[cfg(unix)]
            LocalAddress::Unix(path) => {
                remove_dead_socket(path).await?;
                let listener = UnixListener::bind(path)?;
                Ok(Self::Unix { _path: UnixPath(path.clone()), listener })
            }
            #[cfg(not(unix))]
            LocalAddress::Unix(path) => Err(no_unix_sockets(path)),
        }
    }

    /// Waits for a connection.
    pub(crate) async fn accept(&self) -> io::Result<(LocalStream, PeerName)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                configure_tcp(&stream);
                Ok((LocalStream::Tcp(stream), PeerName::Tcp(peer)))
            }
            #[cfg(unix)]
            Self::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok((LocalStream::Unix(stream), PeerName::Unix))
            }
        }
    }

    /// Returns the TCP address, with the port that the system chose for port 0.
    pub(crate) fn tcp_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            #[cfg(unix)]
            Self::Unix { .. } => None,
        }
    }
}

/// Removes its file when it is dropped.
#[cfg(unix)]
pub(crate) struct UnixPath(std::path::PathBuf);

#[cfg(unix)]
impl Drop for UnixPath {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Removes a socket file without a listener.
#[cfg(unix)]
async fn remove_dead_socket(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;

    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).await.is_err_and(refused) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn no_unix_sockets(path: &std::path::Path) -> io::Error {
    let text = format!("{} is no host:port, and this system has no unix sockets", path.display());
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Returns the addresses of a host. The caller uses the first that it can bind: IPv4 comes first, as
/// in Go, so that `localhost` is 127.0.0.1. An empty host is all addresses, of both IP versions if the
/// system has both.
pub(crate) async fn bind_addrs(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if host.is_empty() {
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        return Ok(any.map(|ip| SocketAddr::new(ip, port)).to_vec());
    }
    Ok(ipv4_first(lookup_host((host, port)).await?))
}

fn ipv4_first(addrs: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addrs: Vec<_> = addrs.collect();
    addrs.sort_by_key(SocketAddr::is_ipv6);
    addrs
}

fn bind_tcp(addr: SocketAddr) -> io::Result<TcpListener> {
    let domain = if addr.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
    let socket = Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Configures every TCP connection: no delay, and probes while idle.
fn configure_tcp(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    #[cfg(not(any(
        target_os = "haiku",
        target_os = "openbsd",
        target_os = "redox",
        target_os = "solaris"
    )))]
    let keepalive = keepalive.with_interval(TCP_KEEPALIVE);
    // An error means that the connection has already ended, which the first read returns.
    drop(stream.set_nodelay(true));
    drop(SockRef::from(stream).set_tcp_keepalive(&keepalive));
}

/// Remote end of a local connection, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerName {
    Tcp(SocketAddr),
    #[cfg(unix)]
    Unix,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            #[cfg(unix)]
            Self::Unix => f.write_str("unix socket"),
        }
    }
}

/// The target of a server, and the lookups of its name.
pub(crate) struct Target {
    pub(crate) address: LocalAddress,
    resolver: Resolver,
}

impl Target {
    pub(crate) fn new(address: LocalAddress) -> Self {
        Self { address, resolver: Resolver::default() }
    }

    /// Connects to the first address that answers, within `limit`. An empty host is this host. A
    /// longer lookup continues and serves the next connection.
    pub(crate) async fn connect(&self, limit: Duration) -> io::Result<LocalStream> {
        let connect = async {
            match &self.address {
                LocalAddress::Tcp { host, port } => {
                    LocalStream::connect_tcp(self.resolver.lookup(host, *port).await?).await
                }
                #[cfg(unix)]
                LocalAddress::Unix(path) => Ok(LocalStream::Unix(UnixStream::connect(path).await?)),
                #[cfg(not(unix))]
                LocalAddress::Unix(path) => Err(no_unix_sockets(path)),
            }
        };
        tokio::time::timeout(limit, connect).await.unwrap_or_else(|_| {
            let text = format!("no answer within {} s", limit.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }
}

/// A connection with a user or with the target.
pub(crate) enum LocalStream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl LocalStream {
    async fn connect_tcp(addrs: Vec<SocketAddr>) -> io::Result<Self> {
        let stream = connect_first(addrs, TcpStream::connect::<SocketAddr>).await?;
        configure_tcp(&stream);
        Ok(Self::Tcp(stream))
    }

    /// Borrows both halves.
    pub(crate) fn split(&mut self) -> (LocalReadHalf<'_>, LocalWriteHalf<'_>) {
        match self {
            Self::Tcp(stream) => {
                let (read, write) = stream.split();
                (LocalReadHalf::Tcp(read), LocalWriteHalf::Tcp(write))
            }
            #[cfg(unix)]
            Self::Unix(stream) => {
                let (read, write) = stream.split();
                (LocalReadHalf::Unix(read), LocalWriteHalf::Unix(write))
            }
        }
    }

    /// Sets whether dropping the stream resets the connection (RST), so that a part does not pass
    /// for the whole. A unix socket has no reset.
    pub(crate) fn reset_on_drop(&self, reset: bool) {
        let linger = reset.then_some(Duration::ZERO);
        match self {
            // An error means that the connection has already ended.
            Self::Tcp(stream) => drop(SockRef::from(stream).set_linger(linger)),
            #[cfg(unix)]
            Self::Unix(_) => {}
        }
    }
}

/// The reading half of a [`LocalStream`].
pub(crate) enum LocalReadHalf<'a> {
    Tcp(tcp::ReadHalf<'a>),
    #[cfg(unix)]
    Unix(unix::ReadHalf<'a>),
    /// Endless bytes without a socket, for tests with a paused clock.
    #[cfg(test)]
    Endless(Endless),
}

impl LocalReadHalf<'_> {
    /// Waits until a read returns at once. Unlike a read, needs no buffer.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.readable().await,
            #[cfg(unix)]
            Self::Unix(half) => half.readable().await,
            #[cfg(test)]
            Self::Endless(_) => Ok(()),
        }
    }

    /// Whether the peer has ended its direction or reset the connection, even if bytes are still
    /// unread.
    pub(crate) async fn is_ended(&self) -> bool {
        let ready = match self {
            Self::Tcp(half) => poll_once(half.ready(Interest::READABLE)).await,
            #[cfg(unix)]
            Self::Unix(half) => poll_once(half.ready(Interest::READABLE)).await,
            #[cfg(test)]
            Self::Endless(_) => return false,
        };
        // An error comes from the runtime; reading returns it.
        ready.is_some_and(|ready| ready.map_or(true, |ready| ready.is_read_closed()))
    }
}

impl_async_read!(LocalReadHalf<'_>: Tcp, #[cfg(unix)] Unix, #[cfg(test)] Endless);

/// Fills each buffer.
#[cfg(test)]
pub(crate) struct Endless;

#[cfg(test)]
impl tokio::io::AsyncRead for Endless {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        buf.initialize_unfilled();
        buf.set_filled(buf.capacity());
        Poll::Ready(Ok(()))
    }
}

/// The writing half of a [`LocalStream`].
pub(crate) enum LocalWriteHalf<'a> {
    Tcp(tcp::WriteHalf<'a>),
    #[cfg(unix)]
    Unix(unix::WriteHalf<'a>),
}

impl LocalWriteHalf<'_> {
    /// Waits until the connection fails, for example by a reset. Unread bytes do not delay it.
    /// Cancel safe.
    pub(crate) async fn failed(&self) {
        let ready = match self {
            Self::Tcp(half) => half.ready(Interest::ERROR).await,
            #[cfg(unix)]
            Self::Unix(half) => half.ready(Interest::ERROR).await,
        };
        // An error means that the runtime ends, and the connection with it.
        drop(ready);
    }

    /// Takes the reason of the failure: later reads and writes do not return it.
    pub(crate) fn take_failure(&self) -> io::Error {
        let reason = match self {
            Self::Tcp(half) => half.as_ref().take_error(),
            #[cfg(unix)]
            Self::Unix(half) => half.as_ref().take_error(),
        };
        reason.unwrap_or_else(Some).unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
    }
}

impl_async_write!(LocalWriteHalf<'_>: Tcp, #[cfg(unix)] Unix);

/// Polls a future once: `None` if it is pending.
pub(crate) async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tcp_connections_send_keepalive_probes() {
        let address = LocalAddress::Tcp { host: "127.0.0.1".into(), port: 0 };
        let listener = LocalListener::bind(&address).await.unwrap();
        let port = listener.tcp_addr().unwrap().port();
        let target = Target::new(LocalAddress::Tcp { host: "127.0.0.1".into(), port });
        let (dialled, accepted) =
            tokio::join!(target.connect(Duration::from_secs(60)), listener.accept());
        for stream in [dialled.unwrap(), accepted.unwrap().0] {
            let stream = match stream {
                LocalStream::Tcp(stream) => stream,
                #[cfg(unix)]
                LocalStream::Unix(_) => unreachable!("the address is one of TCP"),
            };
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().unwrap());
            #[cfg(target_os = "linux")]
            {
                assert_eq!(socket.tcp_keepalive_time().unwrap(), TCP_KEEPALIVE);
                assert_eq!(socket.tcp_keepalive_interval().unwrap(), TCP_KEEPALIVE);
            }
            assert!(stream.nodelay().unwrap());
        }
    }

    #[tokio::test]
    async fn name_is_bound_to_its_ipv4_address_first() {
        let addrs = ["[::1]:1", "127.0.0.2:1", "127.0.0.1:1"].map(|addr| addr.parse().unwrap());
        assert_eq!(ipv4_first(addrs.into_iter()), [addrs[1], addrs[2], addrs[0]]);
        // If this host has ::1 for the name, the lookup lists it first.
        let address = LocalAddress::Tcp { host: "localhost".into(), port: 0 };
        let listener = LocalListener::bind(&address).await.unwrap();
        assert_eq!(listener.tcp_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        let all = bind_addrs("", 1).await.unwrap();
        assert_eq!(all, ["[::]:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap()]);
    }

    #[tokio::test]
    async fn lookup_that_takes_longer_than_the_limit_serves_the_next_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let resolver = Resolver::looking_up(async move {
            ended.await.unwrap();
            Ok(vec![SocketAddr::new(addr.ip(), 0)])
        });
        // A second lookup would find this address, which has no listener.
        let address = LocalAddress::Tcp { host: "127.0.0.9".into(), port: addr.port() };
        let target = Target { address, resolver };
        let error = target.connect(Duration::from_millis(10)).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        end.send(()).unwrap();
        let connected = target.connect(Duration::from_secs(60)).await.unwrap();
        let LocalStream::Tcp(stream) = connected else { unreachable!("it is TCP") };
        assert_eq!(stream.peer_addr().unwrap(), addr);
    }

    /// A TCP address that does not answer while the sockets live.
    #[cfg(target_os = "linux")]
    fn silent_tcp() -> (SocketAddr, Vec<Socket>) {
        use socket2::{Domain, Type};

        let tcp = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let listener = tcp();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap();
        // Further connections are not answered, since nothing is accepted.
        let waiting = (0..4).map(|_| {
            let socket = tcp();
            socket.set_nonblocking(true).unwrap();
            drop(socket.connect(&addr));
            socket
        });
        let sockets = waiting.chain([listener.try_clone().unwrap()]).collect();
        (addr.as_socket().unwrap(), sockets)
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn target_with_an_address_that_does_not_answer_is_reached_by_another_one() {
        let (silent, _sockets) = silent_tcp();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connected = LocalStream::connect_tcp(vec![silent, silent, addr]);
        let connected = tokio::time::timeout(Duration::from_secs(60), connected).await.unwrap();
        let LocalStream::Tcp(stream) = connected.unwrap() else { unreachable!("it is TCP") };
        assert_eq!(stream.peer_addr().unwrap(), addr);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test(start_paused = true)]
    async fn target_that_does_not_answer_is_given_up_after_the_limit() {
        let (silent, _sockets) = silent_tcp();
        let target =
            Target::new(LocalAddress::Tcp { host: "127.0.0.1".into(), port: silent.port() });
        let start = tokio::time::Instant::now();
        let connected = target.connect(Duration::from_secs(10)).await;
        let error = connected.err().unwrap();
        assert_eq!(error.to_string(), "no answer within 10 s");
        assert!(start.elapsed() >= Duration::from_secs(10));
    }
}
