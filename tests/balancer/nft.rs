//! nftables and conntrack of a balancer, with docs/scaling/balancer.nft.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::host::Host;
use crate::network::address;

const RULES: &str = include_str!("../../docs/scaling/balancer.nft");

/// One of each kind of expression and chain in the rules, to detect missing support. Uses no line of the
/// rules, so a mistake there fails the test.
const PROBE: &str = "table ip probe {
    chain a {
        type nat hook prerouting priority dstnat;
        udp dport 1 dnat to jhash ip saddr . udp sport mod 2 seed 1 \
        map { 0 : 10.9.0.11, 1 : 10.9.0.12 }
    }
    chain b {
        type nat hook postrouting priority srcnat;
        ip saddr { 10.9.0.11, 10.9.0.12 } udp sport 1 snat to 10.8.0.1:1
    }
    chain c {
        type filter hook forward priority filter;
        ip saddr 10.9.0.0/24 ip saddr != { 10.9.0.11, 10.9.0.12 } ct state new drop
    }
}";

/// Conntrack settings: lifetime of the mapping of a short flow, and of any other flow.
const TIMEOUTS: [&str; 2] = ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"];

/// Checks that the system has nftables and conntrack and permits their use.
pub(crate) fn probe(host: &Host) -> Result<(), String> {
    nft(host, PROBE.to_owned())?;
    host.run("conntrack -L")?;
    set_timeouts(host, 100)
}

/// Sets the lifetime of mappings, in seconds.
pub(crate) fn set_timeouts(host: &Host, seconds: u32) -> Result<(), String> {
    let set = move |name: &str| {
        let file = format!("/proc/sys/net/netfilter/{name}");
        std::fs::write(file, seconds.to_string()).map_err(|error| format!("{name}: {error}"))
    };
    host.start(move || TIMEOUTS.into_iter().try_for_each(set)).recv().unwrap()
}

/// Loads rules with `nft`.
fn nft(host: &Host, rules: String) -> Result<(), String> {
    let load = move || {
        let mut command = Command::new("nft");
        command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut nft = command.spawn()?;
        nft.stdin.take().unwrap().write_all(rules.as_bytes())?;
        nft.wait_with_output()
    };
    let output = host.start(load).recv().unwrap().map_err(|error| format!("nft: {error}"))?;
    if !output.status.success() {
        return Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(())
}

/// The two lines of the rules that users edit: the servers in the map, and all servers.
fn lines(map: &[usize], all: &[usize]) -> [String; 2] {
    let element = |(place, &server): (usize, &usize)| format!("{place} : {}", address(server).ip());
    let elements: Vec<_> = map.iter().enumerate().map(element).collect();
    let all: Vec<_> = all.iter().map(|&server| address(server).ip().to_string()).collect();
    let dnat = format!(
        "ip daddr $address udp dport $kcp_port dnat to jhash ip saddr . udp sport mod {} \
         seed 0x4b4350 map {{ {} }}",
        map.len(),
        elements.join(", ")
    );
    [dnat, format!("define servers = {{ {} }}", all.join(", "))]
}

/// Loads the rules with the servers of `map` in the map and the list `all`.
pub(crate) fn load(balancer: &Host, map: &[usize], all: &[usize]) {
    let mut rules = RULES.to_owned();
    for (old, new) in lines(&[0, 1, 2], &[0, 1, 2]).iter().zip(lines(map, all)) {
        assert!(RULES.contains(old), "not a line of the file: {old}");
        rules = rules.replace(old, &new);
    }
    nft(balancer, rules).unwrap();
}
