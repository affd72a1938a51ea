//! IP fragmentation of a socket's datagrams (`IP_MTU_DISCOVER`, `IPV6_MTU`).
//!
//! Linux sets Don't Fragment on datagrams within the cached path MTU, and fragments larger
//! ones itself. Where ICMP messages about a smaller path MTU are filtered, Linux does not learn of
//! it and datagrams above it vanish (a PMTU black hole, RFC 2923). Other systems leave Don't
//! Fragment off unless asked, so nothing is done there.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use self::linux::allow;

/// Bytes of the largest UDP payload that every IPv6 path carries without fragments: the least MTU
/// of IPv6 (RFC 8200 section 5) less IP and UDP headers.
pub(super) const MAX_UNFRAGMENTED_V6: usize = 1_280 - 40 - 8;

/// Does nothing on this system. Returns whether IPv6 datagrams are fragmented by the sender.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn allow<S>(_: &S, _: bool) -> bool {
    false
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::net::UdpSocket;

    use crate::sys::options::{get, set};

    /// The least MTU of IPv6 in bytes. Only the sender fragments there.
    const MIN_MTU_V6: libc::c_int = 1_280;

    /// Allows IP fragmentation of a socket's datagrams, or restores the system's default.
    /// Returns whether IPv6 datagrams above `MAX_UNFRAGMENTED_V6` are fragmented from now on.
    ///
    /// An option that the application set itself stays.
    pub(in super::super) fn allow(socket: &UdpSocket, allow: bool) -> bool {
        allow_v4(socket, allow);
        allow_v6(socket, allow)
    }

    fn allow_v4(socket: &UdpSocket, allow: bool) {
        let (level, name) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        let (default, off) = (libc::IP_PMTUDISC_WANT, libc::IP_PMTUDISC_DONT);
        let (from, to) = if allow { (default, off) } else { (off, default) };
        if get(socket, level, name).is_ok_and(|mode| mode == from) {
            // On failure oversized segments stay in flight until the path carries them, or the
            // connection times out.
            drop(set(socket, level, name, to));
        }
    }

    fn allow_v6(socket: &UdpSocket, allow: bool) -> bool {
        let level = libc::IPPROTO_IPV6;
        let is = |name, value| get(socket, level, name).is_ok_and(|mode| mode == value);
        let default = is(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT);
        let default = default && is(libc::IPV6_DONTFRAG, 0);
        let size = if allow { MIN_MTU_V6 } else { 0 };
        default && set(socket, level, libc::IPV6_MTU, size).is_ok() && allow
    }
}
