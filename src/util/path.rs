//! Network paths and canonical addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A path (RFC 9000 9): the two addresses of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// Address of the peer.
    pub(crate) peer: SocketAddr,
    /// The local address.
    pub(crate) local: LocalIp,
}

impl Path {
    /// A path to `peer` whose local address the system chooses.
    pub(crate) fn to(peer: SocketAddr) -> Self {
        Self { peer, local: LocalIp::ANY }
    }

    /// The local address with this port; `None` if the system chooses it. A link-local address gets the
    /// scope of the peer's, which is on the same link (RFC 4007 6).
    pub(crate) fn local_addr(self, port: u16) -> Option<SocketAddr> {
        Some(match (self.local.get()?, self.peer) {
            (IpAddr::V6(ip), SocketAddr::V6(peer)) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, peer.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, port),
        })
    }
}

/// The local IP of a path, on a socket that is bound to all addresses: the destination of received
/// datagrams and source of sent ones. [`LocalIp::ANY`] if the socket has one address or the system
/// chooses.
///
/// IPv4 addresses are stored IPv4-mapped to save memory: each connection has two of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalIp(Ipv6Addr);

impl LocalIp {
    pub(crate) const ANY: Self = Self(Ipv6Addr::UNSPECIFIED);

    /// The source of answers to a datagram sent to `dst`. No datagram can leave from a broadcast or
    /// multicast address; a subnet's broadcast address is detected when a send from it fails.
    pub(crate) fn of_destination(dst: IpAddr) -> Self {
        match dst.to_canonical() {
            ip if ip.is_multicast() || ip.is_unspecified() => Self::ANY,
            IpAddr::V4(ip) if ip.is_broadcast() => Self::ANY,
            IpAddr::V4(ip) => Self(ip.to_ipv6_mapped()),
            IpAddr::V6(ip) => Self(ip),
        }
    }

    /// The address, unless it is [`LocalIp::ANY`]. An IPv4 address is returned as such.
    pub(crate) fn get(self) -> Option<IpAddr> {
        (self != Self::ANY).then(|| IpAddr::V6(self.0).to_canonical())
    }
}

/// The unspecified address of `peer`'s IP version, with port 0.
pub(crate) fn unspecified(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// The canonical destination of a connection to `addr`. The unspecified address becomes the loopback
/// address, from which answers arrive, as for connect(2) on Linux.
pub(crate) fn destination(addr: SocketAddr) -> SocketAddr {
    let mut addr = canonical(addr);
    if addr.ip().is_unspecified() {
        addr.set_ip(match addr {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    addr
}

/// Canonical form of a peer's address for comparison and hashing: IPv4-mapped IPv6 (RFC 4291 2.5.5.2)
/// becomes IPv4, the flow label becomes 0. Link-local scopes stay.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    let mut addr = match addr {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(addr.ip().to_canonical(), addr.port())
        }
        other => other,
    };
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_flowinfo(0);
    }
    addr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_mapped_and_plain_addresses_have_one_canonical_form() {
        let v4 = SocketAddr::from(([192, 0, 2, 1], 7));
        let mapped = SocketAddr::new(Ipv6Addr::from(0xffff_c000_0201_u128).into(), 7);
        assert_eq!((canonical(v4), canonical(mapped)), (v4, v4));
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let labelled = SocketAddrV6::new(link_local, 7, 99, 3).into();
        assert_eq!(canonical(labelled), SocketAddrV6::new(link_local, 7, 0, 3).into());
        let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 7));
        assert_eq!(canonical(loopback), loopback);
    }

    #[test]
    fn destination_of_the_unspecified_address_is_loopback() {
        for (addr, expected) in [
            ("0.0.0.0:7", "127.0.0.1:7"),
            ("[::]:7", "[::1]:7"),
            ("[::ffff:0.0.0.0]:7", "127.0.0.1:7"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("[fe80::1%3]:7", "[fe80::1%3]:7"),
        ] {
            assert_eq!(destination(addr.parse().unwrap()), expected.parse().unwrap());
        }
    }

    #[test]
    fn address_of_a_link_has_the_scope_of_the_peer() {
        let path = |peer: &str, local: &str| {
            let local = LocalIp::of_destination(local.parse().unwrap());
            Path { peer: peer.parse().unwrap(), local }.local_addr(9).map(|addr| addr.to_string())
        };
        assert_eq!(path("[fe80::2%3]:7", "fe80::1").as_deref(), Some("[fe80::1%3]:9"));
        assert_eq!(path("[fe80::2%3]:7", "2001:db8::1").as_deref(), Some("[2001:db8::1]:9"));
        assert_eq!(path("192.0.2.2:7", "::ffff:192.0.2.1").as_deref(), Some("192.0.2.1:9"));
        assert_eq!(path("192.0.2.2:7", "255.255.255.255"), None);
    }

    #[test]
    fn path_back_leaves_from_addresses_of_one_host_only() {
        let local = |ip: &str| {
            let local = LocalIp::of_destination(ip.parse().unwrap());
            local.get().map(|ip| ip.to_string())
        };
        assert_eq!(local("192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(local("::ffff:192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(local("2001:db8::1").as_deref(), Some("2001:db8::1"));
        for none in ["255.255.255.255", "224.0.0.1", "ff02::1", "::ffff:224.0.0.1", "0.0.0.0"] {
            assert_eq!(local(none), None);
        }
    }
}
