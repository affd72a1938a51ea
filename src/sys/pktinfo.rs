//! The local address of datagrams on a socket that is bound to all (`IP_PKTINFO`,
//! `IPV6_RECVPKTINFO`; RFC 3542 6.1): which one a datagram came to, and which one it leaves from.
//!
//! quinn-udp reads and writes these control messages. It asks the system for them; on Linux
//! `SavedOptions` undoes that, and [`enable`] asks again where the socket is bound to all.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::util::path::LocalIp;

/// Asks the system for the local address of each datagram. Without it answers leave from the address
/// that the system's routes choose.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn enable(socket: &UdpSocket, local: SocketAddr) {
    let (level, name) = match local {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        // It covers IPv4 datagrams too.
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    drop(super::options::set(socket, level, name, 1));
}

/// On other systems quinn-udp has asked already.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn enable(_: &UdpSocket, _: SocketAddr) {}

/// Whether a datagram to `peer`, in the form that the socket takes, can state its source.
///
/// An IPv6 socket cannot state one for IPv4 peers on systems other than Linux and Windows.
pub(super) fn can_state_source(peer: SocketAddr) -> bool {
    let has_both = cfg!(any(target_os = "linux", target_os = "android", windows));
    has_both || peer.is_ipv4() || peer.ip().to_canonical().is_ipv6()
}

/// The source to state for a datagram to `destination`, in the form that the socket takes.
pub(super) fn source(destination: SocketAddr, local: LocalIp) -> Option<IpAddr> {
    let is_v4 = destination.ip().to_canonical().is_ipv4();
    local.get().filter(|local| local.is_ipv4() == is_v4 && can_state_source(destination))
}

/// Whether a send may have failed because the source is no address of this host any more.
pub(super) fn may_be_source(error: &io::Error) -> bool {
    use ErrorKind::{AddrNotAvailable, InvalidInput, NetworkUnreachable};
    matches!(error.kind(), AddrNotAvailable | InvalidInput | NetworkUnreachable)
}

/// The control message that states the source of a datagram: level and type, data (`in_pktinfo`,
/// `in6_pktinfo`, the interface left open), and the length of that.
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
