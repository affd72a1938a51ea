//! The driver's interface to a socket, implemented for the UDP socket.
//!
//! Implementors: [`UdpSocket`], the application's transport (`transport_socket.rs`), and in tests a
//! scripted socket and a simulated network.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use super::recv_batch::RxBatch;
use super::transport::Transmit;
use super::udp::UdpSocket;

/// A non-blocking datagram socket for the driver.
pub(crate) trait Socket: Send + 'static {
    /// Returns the address that the socket is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Checks that datagrams for `peer` can leave from this socket.
    ///
    /// # Errors
    ///
    /// When they cannot: port 0, or an IP version that the socket does not support.
    fn check_peer(&self, _peer: SocketAddr) -> io::Result<()> {
        Ok(())
    }

    /// Returns the address that datagrams to `peer` leave from now, without sending one. `None`: none can
    /// leave, or the system does not say; only asked where [`WATCHES_NETWORK`](super::WATCHES_NETWORK).
    fn source_for(&self, _peer: SocketAddr) -> Option<IpAddr> {
        None
    }

    /// Replaces the UDP socket.
    ///
    /// # Errors
    ///
    /// On a transport, which cannot be replaced; nothing changes then.
    fn replace(&mut self, _socket: UdpSocket) -> io::Result<()> {
        let text = "rebind requires a UDP socket, this endpoint runs on a transport";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    /// Allows IP fragmentation of datagrams above the path MTU, or restores the default, see
    /// `sys/options.rs`.
    fn set_ip_fragmentation(&mut self, _allow: bool) {}

    /// Returns the most datagrams per GSO batch: 1 if the system does not segment. May fall to 1 at run
    /// time.
    fn max_gso_segments(&self) -> usize;

    /// Known readiness may be outdated: [`Self::recv`] asks the system until the socket is empty.
    fn bypass_readiness(&mut self) {}

    /// Receives into the free buffers of the batch, until none is left or the socket is empty.
    ///
    /// # Errors
    ///
    /// When nothing was received: [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket was empty,
    /// otherwise see [`classify_recv`](super::classify_recv).
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()>;

    /// Sends a GSO batch, in several system calls if one does not take it.
    ///
    /// Returns the bytes sent, always whole datagrams. If there are fewer, the rest would block or
    /// failed: send it again when [`Self::poll_send_ready`] is ready; that call then blocks or fails with
    /// nothing sent.
    ///
    /// # Errors
    ///
    /// When nothing was sent, see [`classify_send`](super::classify_send).
    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize>;

    /// Returns whether the system refused the local IP of the last send. The datagrams then left from an
    /// address of the system's choice, or failed.
    fn take_source_gone(&mut self) -> bool {
        false
    }

    /// Returns whether datagrams of the last send exceed the route's MTU: the system took them one by one
    /// and fragments them.
    fn take_above_route_mtu(&mut self) -> bool {
        false
    }

    /// Polls for readability. After [`Self::recv`] returned `WouldBlock`, and for a new socket, it is
    /// ready only once a datagram has arrived.
    ///
    /// # Errors
    ///
    /// When the runtime's I/O driver is gone.
    fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Polls for writability. After [`Self::send`] returned `WouldBlock`, it is ready only once the
    /// socket has capacity again. A new socket counts as blocked until the runtime's I/O driver reports
    /// it writable.
    ///
    /// # Errors
    ///
    /// When the runtime's I/O driver is gone.
    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The runtime ends: from now on every send and receive is tried. Returns false if only the runtime
    /// knows when the socket is ready.
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

    #[cfg(all(feature = "netlink", target_os = "linux"))]
    fn source_for(&self, peer: SocketAddr) -> Option<IpAddr> {
        Self::source_for(self, peer)
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
