//! A sender, a router and a receiver, connected by virtual Ethernet.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

use kcpx_skip::skip;
use socket2::{Domain, Protocol, Socket, Type};

use crate::common::host::Host;

pub(crate) const RECEIVER_V4: &str = "10.12.0.2";
pub(crate) const RECEIVER_V6: &str = "fd12::2";

/// The MTU of each link, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) own_link: u16,
    pub(crate) behind_router: u16,
}

pub(crate) struct Hosts {
    pub(crate) sender: Host,
    pub(crate) receiver: Host,
    router: Host,
}

impl Hosts {
    /// Returns `None` and prints the reason if the system lacks namespaces or forbids them. Later failures
    /// panic.
    pub(crate) fn new(network: Network) -> Option<Self> {
        let of_link = ["ip link set end addrgenmode none", "ip addr add fd11::2/64 dev end nodad"];
        let probed = Host::probe(&of_link).and_then(|host| forward(&host));
        if let Err(reason) = probed {
            skip(reason);
            return None;
        }
        Some(Self::make(network).unwrap())
    }

    fn make(Network { own_link, behind_router }: Network) -> Result<Self, String> {
        let hosts = Self { sender: Host::new()?, receiver: Host::new()?, router: Host::new()? };
        for (host, name, mtu, net) in
            [(&hosts.sender, "left", own_link, 11), (&hosts.receiver, "right", behind_router, 12)]
        {
            let router = &hosts.router;
            let peer = format!("peer name end mtu {mtu} netns {}", host.id()?);
            router.run(&format!("ip link add {name} mtu {mtu} type veth {peer}"))?;
            for (host, link, last) in [(router, name, 1), (host, "end", 2)] {
                host.run(&format!("ip link set {link} addrgenmode none"))?;
                host.run(&format!("ip addr add 10.{net}.0.{last}/24 dev {link}"))?;
                // Neighbour discovery of the router needs a link-local address.
                for net in [format!("fd{net}::"), "fe80::".to_owned()] {
                    host.run(&format!("ip addr add {net}{last}/64 dev {link} nodad"))?;
                }
                host.run(&format!("ip link set {link} up"))?;
            }
            host.run("ip link set lo up")?;
            host.run(&format!("ip route add default via 10.{net}.0.1"))?;
            host.run(&format!("ip route add default via fd{net}::1"))?;
        }
        forward(&hosts.router)?;
        Ok(hosts)
    }

    /// The router tells the socket at `from` that its datagram to `to` exceeded `mtu` bytes (RFC 1191, RFC
    /// 8201), which is not true.
    pub(crate) fn forge_packet_too_big(&self, from: SocketAddr, to: SocketAddr, mtu: u16) {
        let forging = self.router.start(move || packet_too_big(from, to, mtu));
        forging.recv().unwrap().expect("the forged message");
    }

    /// Clears the path MTUs that the sender has learned.
    pub(crate) fn forget_routes(&self) {
        self.sender.run("ip route flush cache").unwrap();
        self.sender.run("ip -6 route flush cache").unwrap();
    }
}

fn forward(host: &Host) -> Result<(), String> {
    let write = || {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
    };
    host.start(write).recv().unwrap().map_err(|error| format!("forwarding: {error}"))
}

fn packet_too_big(from: SocketAddr, to: SocketAddr, mtu: u16) -> io::Result<()> {
    let len = 1_400 + 8_u16;
    let mut packet = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![3, 4, 0, 0, 0, 0];
            packet.extend(mtu.to_be_bytes());
            packet.extend([0x45, 0]);
            packet.extend((20 + len).to_be_bytes());
            packet.extend([0, 1, 0x40, 0, 60, 17, 0, 0]);
            packet.extend(from.octets().into_iter().chain(to.octets()));
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut packet = vec![2, 0, 0, 0, 0, 0];
            packet.extend(mtu.to_be_bytes());
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([17, 60]);
            packet.extend(from.octets().into_iter().chain(to.octets()));
            packet
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    for word in [from.port(), to.port(), len, 0] {
        packet.extend(word.to_be_bytes());
    }
    let (domain, protocol) = match from {
        SocketAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        // The kernel writes the ICMPv6 checksum.
        SocketAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    if from.is_ipv4() {
        let words = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
        packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.send_to(&packet, &SocketAddr::new(from.ip(), 0).into()).map(drop)
}

/// UDP sends of both IP versions in this thread's namespace, and IP fragments created.
pub(crate) fn counted() -> io::Result<(u64, u64)> {
    let v4 = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let v6 = fs::read_to_string("/proc/thread-self/net/snmp6")?;
    let of_v4 = |table: &str, column: &str| -> Option<u64> {
        let mut lines = v4.lines().filter(|line| line.starts_with(table));
        let place = lines.next()?.split_whitespace().position(|name| name == column)?;
        lines.next()?.split_whitespace().nth(place)?.parse().ok()
    };
    let of_v6 = |name: &str| -> Option<u64> {
        let line = v6.lines().find(|line| line.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let sum = |v4: Option<u64>, v6: Option<u64>| Some(v4? + v6?);
    let sends = sum(of_v4("Udp:", "OutDatagrams"), of_v6("Udp6OutDatagrams"));
    let fragments = sum(of_v4("Ip:", "FragCreates"), of_v6("Ip6FragCreates"));
    sends.zip(fragments).ok_or_else(|| io::Error::other("no such counters"))
}
