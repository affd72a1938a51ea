//! ICMP port unreachable (RFC 792; RFC 4443 3.1): the peer's host reports that the port is closed. Used
//! only while a connection is being opened on a socket with one peer: such reports are easy to forge for
//! an attacker who guesses the port.
//!
//! Linux reports it to an unconnected socket only on request (`IP_RECVERR`, `IPV6_RECVERR`), in a
//! separate queue, with the destination of the rejected datagram. Other systems report it only to
//! connected sockets, which receive from one address alone; there a watch never completes.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::RefusalWatch;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use other::RefusalWatch;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::future::pending;
    use std::io;
    use std::mem::MaybeUninit;
    use std::net::SocketAddr;
    use std::os::fd::AsRawFd;

    use socket2::{MsgHdrMut, SockAddr, SockRef};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use crate::sys::options;
    use crate::sys::udp::UdpSocket;
    use crate::util::path::{canonical, unspecified};
    use crate::util::sync::Arc;

    /// Bytes for a report's control messages: the report with the address of its sender, and others that
    /// the socket requests, such as the local address.
    const CONTROL_BYTES: usize = 256;

    /// Control messages, aligned as `cmsghdr`.
    #[repr(align(8))]
    struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

    /// Watches a socket for the report of a closed port.
    #[derive(Debug)]
    pub(crate) struct RefusalWatch {
        /// Shared with the driver, which reads datagrams.
        socket: Arc<AsyncFd<std::net::UdpSocket>>,
        peer: SocketAddr,
    }

    impl RefusalWatch {
        /// Requests reports from the system until the watch is dropped.
        pub(crate) fn new(socket: &UdpSocket, peer: SocketAddr) -> io::Result<Self> {
            let socket = socket.reports();
            set_reports(socket.get_ref(), peer, true)?;
            Ok(Self { socket, peer })
        }

        /// Waits until the peer's port is reported closed. Other reports, such as host unreachable, are
        /// taken off the queue and ignored.
        pub(crate) async fn refused(&self) {
            loop {
                let next = |socket: &std::net::UdpSocket| next_report(socket, self.peer);
                match self.socket.async_io(Interest::ERROR, next).await {
                    Ok((libc::ECONNREFUSED, Some(sent_to))) if self.is_peer(sent_to) => return,
                    Ok(_) => {}
                    // The runtime has ended, and this attempt with it.
                    Err(_) => return pending().await,
                }
            }
        }

        /// A report has no scope, and names an address of this host instead of the unspecified one.
        fn is_peer(&self, sent_to: SocketAddr) -> bool {
            let (sent_to, peer) = (canonical(sent_to), self.peer);
            sent_to.port() == peer.port()
                && (sent_to.ip() == peer.ip() || peer.ip().is_unspecified())
        }
    }

    impl Drop for RefusalWatch {
        /// The system discards waiting reports, but keeps the last one's error for the next call
        /// (`SO_ERROR`).
        fn drop(&mut self) {
            drop(set_reports(self.socket.get_ref(), self.peer, false));
            drop(self.socket.get_ref().take_error());
        }
    }

    fn set_reports(socket: &impl AsRawFd, peer: SocketAddr, wanted: bool) -> io::Result<()> {
        let (level, name) = match peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        options::set(socket, level, name, wanted.into())
    }

    /// Takes a report off the queue: its error code (0 without one) and the destination of the datagram.
    #[expect(unsafe_code, reason = "socket2 takes control buffers that may be uninitialised")]
    fn next_report(
        socket: &std::net::UdpSocket,
        peer: SocketAddr,
    ) -> io::Result<(i32, Option<SocketAddr>)> {
        // An address of the same family for the system to overwrite.
        let mut sent_to = SockAddr::from(unspecified(peer));
        let mut control = Control([MaybeUninit::new(0); CONTROL_BYTES]);
        let mut message = MsgHdrMut::new().with_addr(&mut sent_to).with_control(&mut control.0);
        SockRef::from(socket).recvmsg(&mut message, libc::MSG_ERRQUEUE)?;
        let written = message.control_len().min(CONTROL_BYTES);
        // SAFETY: every byte was initialised above, and a byte stays initialised when it is written.
        let control = control.0.map(|byte| unsafe { byte.assume_init() });
        let code = control.get(..written).and_then(error_code).unwrap_or(0);
        Ok((code, sent_to.as_socket()))
    }

    /// The error code of the report (`sock_extended_err`) among control messages (`cmsghdr`).
    fn error_code(mut control: &[u8]) -> Option<i32> {
        loop {
            let (len, rest) = control.split_first_chunk()?;
            let (level, rest) = rest.split_first_chunk()?;
            let (kind, data) = rest.split_first_chunk()?;
            let kind = (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind));
            if let (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) =
                kind
            {
                return i32::try_from(u32::from_ne_bytes(*data.first_chunk()?)).ok();
            }
            let len = usize::from_ne_bytes(*len);
            control = control.get(len.max(1).checked_next_multiple_of(size_of::<usize>())?..)?;
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod other {
    use std::future::pending;
    use std::io;
    use std::net::SocketAddr;

    use crate::sys::udp::UdpSocket;

    /// Never completes.
    #[derive(Debug)]
    pub(crate) struct RefusalWatch;

    impl RefusalWatch {
        #[expect(clippy::unnecessary_wraps, reason = "as the one of Linux")]
        pub(crate) fn new(_: &UdpSocket, _: SocketAddr) -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) async fn refused(&self) {
            pending().await
        }
    }
}
