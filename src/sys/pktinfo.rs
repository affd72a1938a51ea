//! The local address of datagrams on a wildcard socket (`IP_PKTINFO`, `IPV6_RECVPKTINFO`; RFC 3542 6.1):
//! destination of received datagrams, source of sent ones.
//!
//! quinn-udp reads and writes these control messages and requests them. On Linux `SavedOptions` undoes
//! the request, and [`enable`] repeats it for wildcard sockets.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::util::path::LocalIp;

/// Requests the local address of each datagram. Otherwise answers leave from the address that the
/// system's routes choose.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn enable(socket: &UdpSocket, local: SocketAddr) {
    let (level, name) = match local {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        // Covers IPv4 datagrams too.
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    drop(super::options::set(socket, level, name, 1));
}

/// quinn-udp has requested it on other systems.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn enable(_: &UdpSocket, _: SocketAddr) {}

/// Whether a datagram to `peer`, in the form that the socket takes, can state its source. An IPv6 socket
/// can state one for IPv4 peers only on Linux and Windows.
pub(super) fn can_state_source(peer: SocketAddr) -> bool {
    let has_both = cfg!(any(target_os = "linux", target_os = "android", windows));
    has_both || peer.is_ipv4() || peer.ip().to_canonical().is_ipv6()
}

/// The source of a datagram to `destination`, in the form that the socket takes.
pub(super) fn source(destination: SocketAddr, local: LocalIp) -> Option<IpAddr> {
    let is_v4 = destination.ip().to_canonical().is_ipv4();
    local.get().filter(|local| local.is_ipv4() == is_v4 && can_state_source(destination))
}

/// Whether a send may have failed because the source is no longer an address of this host.
pub(super) fn may_be_source(error: &io::Error) -> bool {
    use ErrorKind::{AddrNotAvailable, InvalidInput, NetworkUnreachable};
    matches!(error.kind(), AddrNotAvailable | InvalidInput | NetworkUnreachable)
}

/// Control message that states a datagram's source: level and type, data (`in_pktinfo`, `in6_pktinfo`,
/// any interface), and data length.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn control_message(source: IpAddr) -> ((i32, i32), [u8; 20], usize) {
    let mut data = [0; 20];
    match source {
        // Interface, address to send from, address in the header.
        IpAddr::V4(ip) => {
            data[4..8].copy_from_slice(&ip.octets());
            ((libc::IPPROTO_IP, libc::IP_PKTINFO), data, 12)
        }
        // Address, interface.
        IpAddr::V6(ip) => {
            data[..16].copy_from_slice(&ip.octets());
            ((libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), data, 20)
        }
    }
}
