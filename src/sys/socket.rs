//! The driver's interface to a socket, and its implementation by the UDP socket.
//!
//! Implementors: [`UdpSocket`], the application's transport (`transport_socket.rs`), and in tests a
//! scripted socket and a simulated network.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use super::recv_batch::RxBatch;
use super::transport::Transmit;
use super::udp::UdpSocket;

/// A non-blocking datagram socket as the driver uses it.
pub(crate) trait Socket: Send + 'static {
    /// Returns the address the socket is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Checks whether datagrams for `peer` can leave from this socket at all.
    ///
    /// # Errors
    ///
    /// The reason why they cannot: port 0, or an IP version that the socket does not have.
    fn check_peer(&self, _peer: SocketAddr) -> io::Result<()> {
        Ok(())
    }

    /// Replaces the UDP socket by `socket`.
    ///
    /// # Errors
    ///
    /// On a transport, which cannot be replaced; then nothing has changed.
    fn replace(&mut self, _socket: UdpSocket) -> io::Result<()> {
        let text = "the endpoint runs on a transport, only a UDP socket can be replaced";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    /// Allows IP fragmentation of datagrams above the path's MTU, or restores the default, see
    /// `sys/ip_fragmentation.rs`.
    fn set_ip_fragmentation(&mut self, _allow: bool) {}

    /// Returns the datagrams that one send may carry as a GSO batch: 1 where the system does not
    /// segment. May drop to 1 at run time, when segmentation fails.
    fn max_gso_segments(&self) -> usize;

    /// What is known of readability may be out of date: [`Self::recv`] asks the system, until the socket is
    /// empty.
    fn bypass_readiness(&mut self) {}

    /// Receives into the free buffers of the batch, until none is left or the socket is empty.
    ///
    /// # Errors
    ///
    /// When nothing was received: [`WouldBlock`](io::ErrorKind::WouldBlock) when the socket was
    /// empty, anything else goes to [`classify_recv`](super::classify_recv).
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()>;

    /// Sends a GSO batch, in several system calls where one does not take it.
    ///
    /// Returns the bytes sent, always whole datagrams. Fewer than all of them means that the rest
    /// would block or failed: send it again when [`Self::poll_send_ready`] is ready, and the call
    /// then blocks or fails with nothing sent.
    ///
    /// # Errors
    ///
    /// When nothing of `contents` was sent; [`classify_send`](super::classify_send) says what the
    /// error means.
    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize>;

    /// Returns whether the system did not take the local IP of the last send, whose datagrams left from
    /// one that the system chose, or failed with that too.
    fn take_source_gone(&mut self) -> bool {
        false
    }

    /// Returns whether the datagrams of the last send exceed the MTU of the route to their destination: the
    /// system took them one by one, and sends each in IP fragments.
    fn take_above_route_mtu(&mut self) -> bool {
        false
    }

    /// Polls for readability. After [`Self::recv`] returned `WouldBlock`, and for a new socket, it
    /// is ready only once a datagram arrived.
    ///
    /// # Errors
    ///
    /// When the runtime's I/O driver is gone, and the socket with it.
    fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Polls for writability. After [`Self::send`] returned `WouldBlock` it is ready only once the
    /// socket has capacity again. A new socket counts as blocked until the runtime's I/O driver has
    /// reported it writable.
    ///
    /// # Errors
    ///
    /// When the runtime's I/O driver is gone, and the socket with it.
    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The runtime ends: from now on every send and receive is tried, whatever was found before. Returns
    /// false where nothing but the runtime can say when the socket is ready.
    fn leave_runtime(&mut self) -> bool {
        false
    }
}

impl Socket for UdpSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }

    fn check_peer(&self, peer: SocketAddr) -> io::Result<()> {
        Self::check_peer(self, peer)
    }

    fn replace(&mut self, socket: UdpSocket) -> io::Result<()> {
        *self = socket;
        Ok(())
    }

    fn set_ip_fragmentation(&mut self, allow: bool) {
        Self::set_ip_fragmentation(self, allow);
    }

    #[inline]
    fn max_gso_segments(&self) -> usize {
        Self::max_gso_segments(self)
    }

    fn bypass_readiness(&mut self) {
        Self::bypass_readiness(self);
    }

    #[inline]
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        Self::recv(self, batch)
    }

    #[inline]
    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        Self::send(self, transmit)
    }

    #[inline]
    fn take_source_gone(&mut self) -> bool {
        Self::take_source_gone(self)
    }

    #[inline]
    fn take_above_route_mtu(&mut self) -> bool {
        Self::take_above_route_mtu(self)
    }

    #[inline]
    fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_recv_ready(self, cx)
    }

    #[inline]
    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_send_ready(self, cx)
    }

    fn leave_runtime(&mut self) -> bool {
        Self::leave_runtime(self)
    }
}
