//! IP fragmentation of sent datagrams (`IP_MTU_DISCOVER`, `IPV6_MTU`).
//!
//! By default Linux remembers path MTUs reported by ICMP, fragments larger datagrams, and rejects GSO
//! batches. Such a report is easy to forge, since only the quoted addresses and ports are checked. So
//! IPv4 datagrams leave without Don't Fragment, whatever was reported (`IP_PMTUDISC_OMIT`, see
//! `SavedOptions`): a router in front of a smaller link fragments them, and the sender fragments those
//! above the MTU of its own link.
//! those above the MTU of its own link.
//! Routers do not fragment IPv6 (RFC 8200 section 5), so reports count there; the least they can claim is
//! 1,280. The driver then lowers the MTU (`Socket::take_above_route_mtu`), and earlier datagrams leave in
//! fragments. If reports are filtered, datagrams above the path MTU vanish (a PMTU black hole, RFC 2923)
//! until path MTU discovery allows fragments.
//!
//! Other systems leave Don't Fragment off by default, so nothing is done there.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use self::linux::allow;

/// Largest UDP payload in bytes that every IPv6 path carries without fragments: the minimum MTU of IPv6
/// (RFC 8200 section 5) less IP and UDP headers.
pub(super) const MAX_UNFRAGMENTED_V6: usize = 1_280 - 40 - 8;

/// Does nothing on this system. Returns whether the sender fragments IPv6 datagrams.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn allow<S>(_: &S, _: bool) -> bool {
    false
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::net::UdpSocket;

    use crate::sys::options::{get, set};

    /// Minimum MTU of IPv6 in bytes. Only the sender fragments there.
    const MIN_MTU_V6: libc::c_int = 1_280;

    /// Allows IP fragmentation, or restores the default. When allowed, the sender fragments IPv6
    /// datagrams above `MAX_UNFRAGMENTED_V6`, whatever was reported; IPv4 always allows it. Returns
    /// whether the sender fragments IPv6 datagrams from now on.
    ///
    /// An option set by the application stays.
    pub(in super::super) fn allow(socket: &UdpSocket, allow: bool) -> bool {
        let level = libc::IPPROTO_IPV6;
        let is = |name, value| get(socket, level, name).is_ok_and(|mode| mode == value);
        let default = is(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT);
        let default = default && is(libc::IPV6_DONTFRAG, 0);
        let size = if allow { MIN_MTU_V6 } else { 0 };
        // On failure oversized segments stay in flight until the path carries them or the connection
        // times out.
        default && set(socket, level, libc::IPV6_MTU, size).is_ok() && allow
    }
}
