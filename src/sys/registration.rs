//! A socket's registration with Tokio's poller.
//!
//! A `tokio::net::UdpSocket` is registered for reading and writing, and Linux reports a UDP socket as
//! writable after each sent datagram: one process wake each. So on Unix a socket is registered for
//! reading, and for writing only while a send is blocked.

#[cfg(not(unix))]
pub(super) use other::Registration;
#[cfg(unix)]
pub(super) use unix::Registration;

/// The socket in a [`Registration`].
#[cfg(unix)]
pub(super) type Registered = std::net::UdpSocket;
/// The socket in a [`Registration`].
#[cfg(not(unix))]
pub(super) type Registered = tokio::net::UdpSocket;

#[cfg(unix)]
mod unix {
    use std::future::Future;
    use std::io::{self, ErrorKind};
    use std::net::UdpSocket;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::unix::AsyncFd;
    use tokio::io::{Interest, Ready};
    use tokio::runtime::Handle;

    use crate::util::sync::Arc;

    /// Errors arrive in the socket's error queue (`sys/refusal.rs`).
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const RECEIVING: Interest = Interest::READABLE.add(Interest::ERROR);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const RECEIVING: Interest = Interest::READABLE;

    /// A socket registered for reading, and for writing while a send is blocked.
    #[derive(Debug)]
    pub(in super::super) struct Registration {
        io: Arc<AsyncFd<UdpSocket>>,
        blocked: Blocked,
        /// True once nothing is registered, see [`Self::leave_runtime`].
        has_left: bool,
    }

    /// State of the socket's send buffer.
    #[derive(Debug)]
    enum Blocked {
        /// The last send did not block.
        No,
        /// It blocked. A second descriptor of the socket waits, since the poller takes each only once.
        Waits(AsyncFd<UdpSocket>),
        /// It blocked, but no descriptor or runtime was left: each send is tried.
        Unknown,
    }

    #[allow(
        deprecated,
        reason = "its successor is unsafe, for descriptors that may be closed meanwhile"
    )]
    fn register(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
        AsyncFd::with_interest(socket, interest)
    }

    impl Registration {
        /// Registers a non-blocking socket with the runtime.
        pub(in super::super) fn new(socket: UdpSocket) -> io::Result<Self> {
            let io = Arc::new(register(socket, RECEIVING)?);
            Ok(Self { io, blocked: Blocked::No, has_left: false })
        }

        pub(in super::super) fn socket(&self) -> &UdpSocket {
            self.io.get_ref()
        }

        /// The socket, for its error reports.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        pub(in super::super) fn shared(&self) -> Arc<AsyncFd<UdpSocket>> {
            self.io.clone()
        }

        /// Calls `recv` unless the socket is known to be empty.
        pub(in super::super) fn try_recv<T>(
            &self,
            recv: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            if self.has_left {
                return recv(self.socket());
            }
            self.io.try_io(Interest::READABLE, recv)
        }

        /// Calls `send` unless the last send blocked and the socket has not become writable since.
        pub(in super::super) fn try_send<T>(
            &mut self,
            send: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            let sent = match &self.blocked {
                Blocked::Waits(io) => io.try_io(Interest::WRITABLE, send),
                Blocked::No | Blocked::Unknown => send(self.socket()),
            };
            match &sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Tokio keeps "closed", which an ICMP report may have caused: waiting on it would
                    // spin.
                    if !matches!(&self.blocked, Blocked::Waits(io) if !is_write_closed(io)) {
                        let second = self.register_for_writing();
                        self.blocked = second.map_or(Blocked::Unknown, Blocked::Waits);
                    }
                }
                _ => self.blocked = Blocked::No,
            }
            sent
        }

        /// From now on each call is tried, whatever the runtime has seen. Returns whether that is
        /// possible.
        pub(in super::super) fn leave_runtime(&mut self) -> bool {
            (self.has_left, self.blocked) = (true, Blocked::Unknown);
            true
        }

        fn register_for_writing(&self) -> io::Result<AsyncFd<UdpSocket>> {
            // Without a runtime, or while one ends, `AsyncFd` panics.
            let runtime = Handle::try_current().ok().filter(|_| !self.has_left);
            runtime.ok_or(ErrorKind::NotConnected)?;
            register(self.socket().try_clone()?, Interest::WRITABLE)
        }

        pub(in super::super) fn poll_recv_ready(
            &self,
            cx: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.io.poll_read_ready(cx).map_ok(drop)
        }

        pub(in super::super) fn poll_send_ready(
            &self,
            cx: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            match &self.blocked {
                Blocked::No => Poll::Ready(Ok(())),
                Blocked::Waits(io) => io.poll_write_ready(cx).map_ok(drop),
                // Does not spin: unsent data has a timer, and each received datagram is another chance.
                Blocked::Unknown => Poll::Pending,
            }
        }

        /// Whether the runtime has seen the socket shut down for receiving.
        pub(in super::super) fn is_shut_down(&self) -> bool {
            readiness(&self.io, Interest::READABLE).is_read_closed()
        }

        /// Whether the runtime counts the socket as closed for writing while a send is blocked.
        #[cfg(test)]
        pub(in super::super) fn is_write_closed(&self) -> bool {
            matches!(&self.blocked, Blocked::Waits(io) if is_write_closed(io))
        }
    }

    fn is_write_closed(io: &AsyncFd<UdpSocket>) -> bool {
        readiness(io, Interest::WRITABLE).is_write_closed()
    }

    /// The readiness that the runtime has seen so far.
    fn readiness(io: &AsyncFd<UdpSocket>, interest: Interest) -> Ready {
        let ready = pin!(io.ready(interest));
        match ready.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(guard)) => guard.ready(),
            Poll::Ready(Err(_)) | Poll::Pending => Ready::EMPTY,
        }
    }
}

#[cfg(not(unix))]
mod other {
    use std::future::Future;
    use std::io;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::Interest;
    use tokio::net::UdpSocket;

    /// A socket that is registered for reading and writing.
    #[derive(Debug)]
    pub(in super::super) struct Registration(UdpSocket);

    impl Registration {
        /// Registers a non-blocking socket with the runtime.
        pub(in super::super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
            UdpSocket::from_std(socket).map(Self)
        }

        pub(in super::super) fn socket(&self) -> &UdpSocket {
            &self.0
        }

        /// Calls `recv` unless the socket is known to be empty.
        pub(in super::super) fn try_recv<T>(
            &self,
            recv: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            self.0.try_io(Interest::READABLE, || recv(&self.0))
        }

        /// From now on each call is tried, whatever the runtime has seen. Returns whether that is
        /// possible.
        #[expect(
            clippy::needless_pass_by_ref_mut,
            clippy::unused_self,
            reason = "as the one of Unix"
        )]
        pub(in super::super) fn leave_runtime(&mut self) -> bool {
            false
        }

        /// Calls `send` unless the socket is known to be blocked.
        #[expect(clippy::needless_pass_by_ref_mut, reason = "as the one of Unix")]
        pub(in super::super) fn try_send<T>(
            &mut self,
            send: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> io::Result<T> {
            self.0.try_io(Interest::WRITABLE, || send(&self.0))
        }

        pub(in super::super) fn poll_recv_ready(
            &self,
            cx: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.0.poll_recv_ready(cx)
        }

        pub(in super::super) fn poll_send_ready(
            &self,
            cx: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.0.poll_send_ready(cx)
        }

        /// Whether the runtime has seen the socket shut down for receiving.
        pub(in super::super) fn is_shut_down(&self) -> bool {
            let ready = pin!(self.0.ready(Interest::READABLE));
            match ready.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(ready)) => ready.is_read_closed(),
                Poll::Ready(Err(_)) | Poll::Pending => false,
            }
        }
    }
}
