//! IP fragmentation of a socket's datagrams (`IP_MTU_DISCOVER`, `IPV6_MTU`).
//!
//! By default Linux remembers the path MTU that ICMP messages report, sends datagrams above it in
//! fragments, and rejects GSO batches. Anyone can forge such a message: it has to quote addresses and
//! ports, and nothing else is checked. So IPv4 datagrams leave without Don't Fragment and whatever was
//! reported (`IP_PMTUDISC_OMIT`, set with the other options in `options.rs`): a router in front of a smaller link fragments them, and the sender
//! those above the MTU of its own link.
//!
//! No router fragments IPv6 (RFC 8200 section 5), so reports count there; the least that one can say is
//! 1,280. The driver lowers the MTU then (`Socket::take_above_route_mtu`), and what was sent before leaves
//! in fragments. Where reports are filtered, Linux does not learn of a smaller path MTU and datagrams above
//! it vanish (a PMTU black hole, RFC 2923), until path MTU discovery allows fragments.
//!
//! Other systems leave Don't Fragment off unless asked, so nothing is done there.

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

    /// Allows IP fragmentation of a socket's datagrams, or restores the default: the sender fragments IPv6
    /// datagrams above `MAX_UNFRAGMENTED_V6`, whatever was reported. IPv4 always allows it. Returns whether
    /// IPv6 datagrams are fragmented from now on.
    ///
    /// An option that the application set itself stays.
    pub(in super::super) fn allow(socket: &UdpSocket, allow: bool) -> bool {
        let level = libc::IPPROTO_IPV6;
        let is = |name, value| get(socket, level, name).is_ok_and(|mode| mode == value);
        let default = is(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT);
        let default = default && is(libc::IPV6_DONTFRAG, 0);
        let size = if allow { MIN_MTU_V6 } else { 0 };
        // On failure oversized segments stay in flight until the path carries them, or the connection
        // times out.
        default && set(socket, level, libc::IPV6_MTU, size).is_ok() && allow
    }
}
