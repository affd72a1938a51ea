//! nftables and conntrack of a balancer, with docs/scaling/balancer.nft.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::host::Host;
use crate::network::address;

const RULES: &str = include_str!("../../docs/scaling/balancer.nft");

/// Each kind of expression and chain that the rules have, to see whether the system has it. Not the
/// rules themselves, in which a fault must not pass for a system that lacks something.
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

/// How long conntrack keeps a mapping: one of a short flow, and one of any other.
const TIMEOUTS: [&str; 2] = ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"];

/// Whether the system has nftables and conntrack, and lets the test use them.
pub(crate) fn probe(host: &Host) -> Result<(), String> {
    nft(host, PROBE.to_owned())?;
    host.run("conntrack -L")?;
    set_timeouts(host, 100)
}

/// Sets how long mappings last, in seconds.
pub(crate) fn set_timeouts(host: &Host, seconds: u32) -> Result<(), String> {
    let set = move |name: &str| {
        let file = format!("/proc/sys/net/netfilter/{name}");
        std::fs::write(file, seconds.to_string()).map_err(|error| format!("{name}: {error}"))
    };
    host.start(move || TIMEOUTS.into_iter().try_for_each(set)).recv().unwrap()
}

/// Has nft read these rules.
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

/// The two lines of the rules that a user edits, with these servers in the map and all of these.
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

/// Loads the rules with these servers in the map, and all of these.
pub(crate) fn load(balancer: &Host, map: &[usize], all: &[usize]) {
    let mut rules = RULES.to_owned();
    for (old, new) in lines(&[0, 1, 2], &[0, 1, 2]).iter().zip(lines(map, all)) {
        assert!(RULES.contains(old), "not a line of the file: {old}");
        rules = rules.replace(old, &new);
    }
    nft(balancer, rules).unwrap();
}
