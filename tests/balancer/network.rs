//! The hosts: a client, servers, and a balancer that is the gateway of both sides.

use std::fs;
use std::net::SocketAddr;

use kcpx_skip::skip;

use crate::common::host::Host;

pub(crate) const CLIENT: &str = "10.8.0.9";
pub(crate) const BALANCER: &str = "10.8.0.1:4000";
/// The balancer's address on the side of the servers.
pub(crate) const GATEWAY: &str = "10.9.0.1";
pub(crate) const SERVERS: usize = 4;

/// Address of a server, numbered from 0.
pub(crate) fn address(server: usize) -> SocketAddr {
    format!("10.9.0.{}:4000", 11 + server).parse().unwrap()
}

pub(crate) struct Network {
    pub(crate) client: Host,
    pub(crate) balancer: Host,
    pub(crate) servers: Vec<Host>,
}

impl Network {
    /// Returns `None` and prints the reason if the system lacks something or forbids it. `probe` tries the
    /// needs of the test, except the network, on a separate host. Later failures panic.
    pub(crate) fn new(probe: impl FnOnce(&Host) -> Result<(), String>) -> Option<Self> {
        let probed = Host::probe(&[]).and_then(|host| {
            forward(&host)?;
            probe(&host)
        });
        if let Err(reason) = probed {
            skip(reason);
            return None;
        }
        Some(Self::make().unwrap())
    }

    fn make() -> Result<Self, String> {
        let (client, balancer) = (Host::new()?, Host::new()?);
        balancer.run("ip link set lo up")?;
        link(&balancer, "clients", &client)?;
        balancer.run("ip address add 10.8.0.1/24 dev clients")?;
        client.run(&format!("ip address add {CLIENT}/24 dev end"))?;
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let (server, name) = (Host::new()?, format!("servers{number}"));
            link(&balancer, &name, &server)?;
            let ip = address(number).ip();
            balancer.run(&format!("ip address add {GATEWAY} peer {ip} dev {name}"))?;
            server.run(&format!("ip address add {ip}/24 dev end"))?;
            server.run(&format!("ip route add default via {GATEWAY}"))?;
            servers.push(server);
        }
        forward(&balancer)?;
        Ok(Self { client, balancer, servers })
    }
}

fn forward(host: &Host) -> Result<(), String> {
    let write = || fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    host.start(write).recv().unwrap().map_err(|error| format!("ip_forward: {error}"))
}

/// Connects the balancer to another host by virtual Ethernet.
fn link(balancer: &Host, name: &str, other: &Host) -> Result<(), String> {
    let (type_, peer) = ("type veth", format!("peer name end netns {}", other.id()?));
    balancer.run(&format!("ip link add {name} {type_} {peer}"))?;
    balancer.run(&format!("ip link set {name} up"))?;
    other.run("ip link set lo up")?;
    other.run("ip link set end up")?;
    Ok(())
}
