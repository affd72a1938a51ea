//! Whether routers may cut a socket's datagrams into fragments.
//!
//! Linux sets Don't Fragment on whatever fits what it knows of the path, and cuts up itself what
//! does not. Where a router's word about a narrower path is filtered, it knows nothing, and what is
//! too large disappears. The other systems leave the bit off unless asked, so there is nothing to
//! do.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use crate::sys::ip_fragmentation::linux::allow;

/// Largest IPv6 datagram that every path carries whole, as UDP payload in bytes.
pub(super) const WHOLE_V6: usize = 1_280 - 40 - 8;

/// Nothing to do; the socket keeps sending trains.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn allow(_: &tokio::net::UdpSocket, _: bool) -> bool {
    false
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use crate::sys::bind::option::{get, set};

    /// The least MTU of IPv6, where only the sender fragments.
    const LEAST_V6: libc::c_int = 1_280;

    /// Lets datagrams of a socket be fragmented on their way, or leaves that to the system again.
    /// Returns whether IPv6 datagrams above [`WHOLE_V6`](crate::sys::ip_fragmentation::WHOLE_V6) are fragmented now.
    ///
    /// A choice of the application's own stays.
    pub(in super::super) fn allow(socket: &tokio::net::UdpSocket, allow: bool) -> bool {
        // The options belong to the socket, whichever descriptor they are set through.
        let Ok(socket) = socket.as_fd().try_clone_to_owned().map(UdpSocket::from) else {
            return false;
        };
        allow_v4(&socket, allow);
        allow_v6(&socket, allow)
    }

    fn allow_v4(socket: &UdpSocket, allow: bool) {
        let (level, name) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        let (usual, off) = (libc::IP_PMTUDISC_WANT, libc::IP_PMTUDISC_DONT);
        let (from, to) = if allow { (usual, off) } else { (off, usual) };
        if get(socket, level, name).is_ok_and(|mode| mode == from) {
            // Without it the segments wait until the path is whole, or the conversation ends.
            drop(set(socket, level, name, to));
        }
    }

    fn allow_v6(socket: &UdpSocket, allow: bool) -> bool {
        let level = libc::IPPROTO_IPV6;
        let is = |name, value| get(socket, level, name).is_ok_and(|mode| mode == value);
        let usual = is(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT);
        let usual = usual && is(libc::IPV6_DONTFRAG, 0);
        let size = if allow { LEAST_V6 } else { 0 };
        usual && set(socket, level, libc::IPV6_MTU, size).is_ok() && allow
    }
}
