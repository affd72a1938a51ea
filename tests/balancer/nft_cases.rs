//! nftables: DNAT by a hash, pinned by conntrack, with docs/scaling/balancer.nft.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use crate::crowd::{Connection, Crowd, Faults};
use crate::network::{CLIENT, Network, address};
use crate::nft::{load, probe, set_timeouts};
use crate::server::Server;
use crate::{CROWD, config, wait};

/// Puts three of four servers into the map and opens connections to each of them.
fn begin(dead_peer_timeout: Option<Duration>) -> Option<(Network, Vec<Server>, Crowd)> {
    let network = Network::new(probe)?;
    load(&network.balancer, &[0, 1, 2], &[0, 1, 2]);
    let servers = Server::start_all(&network.servers, false);
    let mut config = config(false);
    if dead_peer_timeout.is_some() {
        config = config.dead_peer_timeout(dead_peer_timeout);
    }
    let crowd = Crowd::new(&network.client, config, CROWD);
    let spread = crowd.at_servers(0..CROWD);
    println!("{CROWD} connections, by server: {spread:?}");
    assert!(spread[..3].iter().all(|&count| count > 0) && spread[3] == 0, "{spread:?}");
    Some((network, servers, crowd))
}

#[test]
fn nft_map_that_gains_loses_and_drains_servers_breaks_no_connection() {
    let Some((network, mut servers, crowd)) = begin(None) else { return };
    let sees_clients = |server: &Server| {
        let ports: HashSet<u16> = crowd
            .clients()
            .iter()
            .flat_map(|one| &one.connections)
            .map(|connection| connection.port)
            .collect();
        let addresses: Vec<_> = server.report().first_datagrams.into_keys().collect();
        let client: IpAddr = CLIENT.parse().unwrap();
        assert!(addresses.iter().all(|addr| addr.ip() == client && ports.contains(&addr.port())));
        addresses.len()
    };
    assert!(servers[..3].iter().map(sees_clients).all(|count| count > 0));

    load(&network.balancer, &[0, 1, 2, 3], &[0, 1, 2, 3]);
    crowd.go_on(5);
    assert_eq!(crowd.summary("nft, a server added"), Faults::default());
    let spread = crowd.at_servers(crowd.join(50));
    println!("50 newcomers, by server: {spread:?}");
    assert!(spread[3] > 0, "{spread:?}");

    load(&network.balancer, &[1, 2, 3], &[0, 1, 2, 3]);
    let spread = crowd.at_servers(crowd.join(50));
    assert_eq!(spread[0], 0, "{spread:?}");
    crowd.go_on(5);
    assert_eq!(crowd.summary("nft, a server out of the map"), Faults::default());

    load(&network.balancer, &[2, 3], &[0, 1, 2, 3]);
    servers[1].drain();
    let spread = crowd.at_servers(crowd.join(50));
    assert_eq!(spread[..2], [0, 0], "{spread:?}");
    crowd.go_on(5);
    let last = crowd.of(1);
    println!("{} connections at the server that drains", last.len());
    assert!(!last.is_empty());
    crowd.end(&last);
    assert!(servers.remove(1).drained().success());
    crowd.go_on(2);
    assert_eq!(crowd.summary("nft, a server drained"), Faults::default());
}

#[test]
fn nft_mappings_that_are_lost_or_shorter_than_keepalive_break_no_connection() {
    let Some((network, servers, crowd)) = begin(None) else { return };
    for _ in 0..3 {
        network.balancer.run("conntrack -F").unwrap();
        crowd.go_on(4);
    }
    assert_eq!(crowd.summary("nft, all mappings lost three times"), Faults::default());

    shorten_mappings(&network, &crowd);
    // The default keepalive is 15 s at a server, and a sixteenth longer at a client.
    crowd.rest(Duration::from_secs(18));
    crowd.go_on(4);
    assert_eq!(crowd.summary("nft, mappings of 3 s, 18 s idle"), Faults::default());
    for server in &servers {
        let report = server.report();
        assert_eq!(report.open_connections, report.first_datagrams.len(), "other ports");
    }
}

/// Limit from the first datagram at another server to the reset, on a busy machine. The timeouts for a silent
/// peer are longer.
const RESET_LIMIT: Duration = Duration::from_secs(10);

/// Sets the lifetime of idle mappings to 3 s.
fn shorten_mappings(network: &Network, crowd: &Crowd) {
    set_timeouts(&network.balancer, 3).unwrap();
    // A mapping takes the new lifetime with its next datagram.
    crowd.go_on(2);
}

/// Waits until the connections of these clients have ended and the clients are served again. Asserts that
/// another server reset at least 99 in 100, within the limit. Prints the times.
fn recover(case: &str, crowd: &Crowd, victims: &[usize], since: SystemTime, others: &[&Server]) {
    let ended = |connections: &[Connection]| {
        let is_it = |connection: &Connection| connection.end.is_some_and(|end| end.at >= since);
        connections.iter().position(is_it)
    };
    wait("clients that are served again", || {
        let table = crowd.clients();
        victims.iter().all(|&one| {
            ended(&table[one].connections)
                .is_some_and(|place| table[one].connections.len() > place + 1)
        })
    });
    let (table, mut reset) = (crowd.clients(), 0);
    let reports: Vec<_> = others.iter().map(|server| server.report()).collect();
    let (mut until_reset, mut until_served) = (Vec::new(), Vec::new());
    for &one in victims {
        let place = ended(&table[one].connections).unwrap();
        let (connection, next) =
            (&table[one].connections[place], &table[one].connections[place + 1]);
        let (end, addr) =
            (connection.end.unwrap(), (CLIENT.parse::<IpAddr>().unwrap(), connection.port).into());
        let firsts = reports.iter().filter_map(|report| report.first_datagrams.get(&addr));
        let first = firsts.filter(|&&first| first >= since).min();
        if let (Some(ErrorKind::ConnectionReset), Some(&first)) = (end.error, first) {
            reset += 1;
            until_reset.push(end.at.duration_since(first).unwrap_or_default());
        }
        until_served.push(next.served.duration_since(end.at).unwrap_or_default());
    }
    let in_time = until_reset.iter().all(|&time| time <= RESET_LIMIT);
    let stateless: u64 = reports.iter().map(|report| report.stateless_resets).sum();
    println!("{case}: {reset} of {} reset; {stateless} RSTs without state", victims.len());
    println!("  first datagram to reset: {}", percentiles(until_reset));
    println!("  reset to the first answer of a server: {}", percentiles(until_served));
    assert!(reset * 100 >= victims.len() * 99, "{reset} of {}", victims.len());
    assert!(in_time, "not within {RESET_LIMIT:?}: see above");
    assert!(stateless > 0);
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at =
        |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
    let [median, p99, max] = [50, 99, 100].map(|share| at(share).copied().unwrap_or_default());
    format!("median {median:.2?}, 99 % {p99:.2?}, longest {max:.2?}")
}

/// The restarted server has no state and resets the connections. The timeouts for a silent peer are longer
/// than the test waits, so they end none.
#[test]
fn nft_server_that_is_killed_and_restarted_resets_its_clients() {
    let Some((network, mut servers, crowd)) = begin(None) else { return };
    let (victims, since) = (crowd.of(0), SystemTime::now());
    servers.remove(0).kill();
    // By now clients have sent data.
    sleep(Duration::from_secs(1));
    servers.insert(0, Server::start(&network.servers[0], 0, false));
    recover("nft, killed and restarted", &crowd, &victims, since, &[&servers[0]]);
    assert_eq!(crowd.broken(), victims.len(), "only those of the server that was killed");
    assert_eq!(crowd.summary("nft, killed and restarted").corrupt, 0);
}

/// Removes server 0 and deletes its flows, as the document describes. Expects that exactly its clients are
/// reset. Returns whether each command found flows.
fn delete_flows(case: &str, network: &Network, servers: &[Server], crowd: &Crowd) -> [bool; 2] {
    let (victims, since) = (crowd.of(0), SystemTime::now());
    load(&network.balancer, &[1, 2], &[1, 2]);
    let delete = |end: &str| {
        let command = format!("conntrack -D -p udp {end} {}", address(0).ip());
        network.balancer.run(&command).is_ok()
    };
    let found = ["--reply-src", "--orig-src"].map(delete);
    recover(case, crowd, &victims, since, &[&servers[1], &servers[2]]);
    assert_eq!(crowd.of(0), [0; 0]);
    assert_eq!(crowd.broken(), victims.len(), "only those of the server that was taken out");
    assert_eq!(crowd.summary(case).corrupt, 0);
    found
}

#[test]
fn nft_flows_that_are_deleted_are_reset_by_another_server() {
    let Some((network, servers, crowd)) = begin(None) else { return };
    assert_eq!(delete_flows("nft, flows deleted", &network, &servers, &crowd), [true, false]);
}

/// The server's keepalive has created these mappings, so their original direction starts at the server.
#[test]
fn nft_flows_that_are_deleted_after_a_lapse_are_reset_by_another_server() {
    let Some((network, servers, crowd)) = begin(None) else { return };
    shorten_mappings(&network, &crowd);
    load(&network.balancer, &[1, 2], &[0, 1, 2]);
    // The server's keepalive is sent after 15 s.
    crowd.rest(Duration::from_millis(16_500));
    set_timeouts(&network.balancer, 120).unwrap();
    crowd.go_on(4);
    let case = "nft, mappings of 3 s, 16.5 s idle, a server out of the map";
    assert_eq!(crowd.summary(case), Faults::default());
    let found = delete_flows("nft, flows deleted after a lapse", &network, &servers, &crowd);
    assert!(found[1], "no mapping of the server's own");
}

#[test]
fn nft_silent_server_is_given_up_after_the_dead_peer_timeout() {
    let timeout = Duration::from_secs(15);
    let Some((network, servers, crowd)) = begin(Some(timeout)) else { return };
    let (victims, since) = (crowd.of(0), SystemTime::now());
    servers[0].stop();
    load(&network.balancer, &[1, 2], &[1, 2]);
    wait("clients that are served elsewhere", || {
        let at = crowd.at_servers(0..CROWD);
        at[0] == 0 && at[1] + at[2] == CROWD
    });
    let (table, mut ended) = (crowd.clients(), Vec::new());
    for &one in &victims {
        let end = table[one].connections[0].end.unwrap();
        assert_eq!(end.error, Some(ErrorKind::TimedOut), "{:?}", table[one]);
        ended.push(end.at.duration_since(since).unwrap_or_default());
    }
    println!("nft, silent server: the end after {}", percentiles(ended));
    assert_eq!(crowd.broken(), victims.len(), "only those of the silent server");
    assert_eq!(crowd.summary("nft, silent server").corrupt, 0);
}
