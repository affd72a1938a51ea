//! nginx with two workers, with docs/scaling/nginx.conf and docs/scaling/nginx-transparent.conf.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::common::host::Host;
use crate::crowd::{Crowd, Faults};
use crate::network::{CLIENT, GATEWAY, Network, SERVERS};
use crate::nginx::{Nginx, Program};
use crate::server::Server;
use crate::{CROWD, config};

const CONFIG: &str = include_str!("../../docs/scaling/nginx.conf");
const TRANSPARENT: &str = include_str!("../../docs/scaling/nginx-transparent.conf");

/// Checks that the system routes by protocol and port, which the transparent case needs.
fn probe(host: &Host) -> Result<(), String> {
    host.run("ip rule add iif end ipproto udp sport 4000 lookup 100")?;
    host.run("ip route add local 0.0.0.0/0 dev lo table 100")?;
    Ok(())
}

struct Behind {
    crowd: Crowd,
    servers: Vec<Server>,
    nginx: Nginx,
    _network: Network,
}

impl Behind {
    /// Opens connections through nginx with this configuration.
    fn new(text: &str, migrates: bool, prepare: impl Fn(&Host)) -> Option<Self> {
        let (network, program) = (Network::new(probe)?, Program::find()?);
        prepare(&network.balancer);
        let servers = Server::start_all(&network.servers, migrates);
        let nginx = Nginx::start(&network.balancer, &program, text);
        let crowd = Crowd::new(&network.client, config(migrates), CROWD);
        let spread = crowd.at_servers(0..CROWD);
        println!("{CROWD} connections, by server: {spread:?}");
        assert!(spread[..3].iter().all(|&count| count > 0), "{spread:?}");
        Some(Self { crowd, servers, nginx, _network: network })
    }

    /// Asserts that the servers see only the address `ip`, with the ports of the clients or other ports.
    fn servers_see(&self, ip: &str, are_ports_of_clients: bool) {
        let ip: IpAddr = ip.parse().unwrap();
        let table = self.crowd.clients();
        let ports: HashSet<_> = table
            .iter()
            .flat_map(|one| &one.connections)
            .map(|connection| connection.port)
            .collect();
        let reports = self.servers.iter().map(Server::report);
        let seen: Vec<_> = reports.flat_map(|it| it.first_datagrams.into_keys()).collect();
        assert!(seen.iter().all(|addr| addr.ip() == ip), "{seen:?}");
        let same = seen.iter().filter(|addr| ports.contains(&addr.port())).count();
        println!("servers have seen {} ports of {ip}, {same} of them of clients", seen.len());
        assert_eq!(same == seen.len(), are_ports_of_clients);
    }
}

#[test]
fn nginx_with_reuseport_and_two_workers_breaks_no_connection() {
    let Some(behind) = Behind::new(CONFIG, false, |_| {}) else { return };
    behind.crowd.go_on(20);
    assert_eq!(behind.crowd.summary("nginx, reuseport, two workers"), Faults::default());
    behind.servers_see(GATEWAY, false);
}

#[test]
fn nginx_that_is_transparent_breaks_no_connection_at_a_reload() {
    // The commands of the configuration file, for the interface of each server.
    let hand_over = |balancer: &Host| {
        let command = |start| {
            let line =
                TRANSPARENT.lines().find_map(|line| line.strip_prefix("#   ")?.strip_prefix(start));
            format!("{start}{}", line.unwrap())
        };
        balancer.run(&command("ip route add")).unwrap();
        for number in 0..SERVERS {
            let rule = command("ip rule add").replace("servers", &format!("servers{number}"));
            balancer.run(&rule).unwrap();
        }
    };
    let Some(behind) = Behind::new(TRANSPARENT, false, hand_over) else { return };
    behind.crowd.go_on(5);
    behind.nginx.reload();
    behind.crowd.go_on(20);
    assert_eq!(behind.crowd.summary("nginx, transparent, reload"), Faults::default());
    behind.servers_see(CLIENT, true);
}

#[test]
fn nginx_reload_breaks_no_connection_that_migrates() {
    let Some(behind) = Behind::new(CONFIG, true, |_| {}) else { return };
    behind.crowd.go_on(5);
    behind.nginx.reload();
    behind.crowd.go_on(20);
    assert_eq!(behind.crowd.summary("nginx, migration, reload"), Faults::default());
    let migrations: u64 = behind.servers.iter().map(|server| server.report().migrations).sum();
    println!("{migrations} migrations");
    assert!(migrations > 0);
    behind.servers_see(GATEWAY, false);
}
