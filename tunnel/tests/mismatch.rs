//! Two sides with options that differ: the log of the side that can know says which, in the words of
//! docs/troubleshooting.md.

#![cfg(unix)]

mod program;

use std::io::{Read, Write};
use std::net::SocketAddr;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use self::program::*;

/// What stands behind the time in the first line of the log that contains `text`, with names in place of
/// both addresses.
fn line(log: &str, text: &str, server: SocketAddr) -> String {
    let line = log.lines().find(|line| line.contains(text)).unwrap();
    let message = line.splitn(3, ' ').nth(2).unwrap().replace(&server.to_string(), "SERVER");
    let words = message.split(' ').map(|word| {
        let address: Option<SocketAddr> = word.trim_end_matches(':').parse().ok();
        match address {
            Some(address) => word.replace(&address.to_string(), "CLIENT"),
            None => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn is_documented(line: &str) -> bool {
    include_str!("../docs/troubleshooting.md").lines().any(|documented| documented == line)
}

struct Sides {
    server: Running,
    udp: SocketAddr,
    client: Running,
    user: std::net::TcpStream,
}

/// Starts both sides with further options, and connects a user.
fn start(dir: &TempDir, server: &[&str], client: &[&str]) -> Sides {
    let target = echo("").to_string();
    let args = [&["server", "-l", "127.0.0.1:0", "-t", &target, "-key", "a"], server].concat();
    let mut server = Running::start(&dir.path().join("server.log"), &args, &[]);
    let udp = server.address("listening on ");
    let remote = udp.to_string();
    let args = [&["client", "-l", "127.0.0.1:0", "-r", &remote, "-key", "a"], client].concat();
    let mut client = Running::start(&dir.path().join("client.log"), &args, &[]);
    let mut user = connect(client.address("listening on "));
    user.write_all(b"hello").unwrap();
    Sides { server, udp, client, user }
}

#[test]
fn explicit_framing_that_differs_is_named_by_the_server_and_hinted_by_the_client() {
    for (server, client) in [
        (&["-nocomp"][..], &[][..]),
        (&["-nocomp=false"], &["-nocomp"]),
        (&["-smuxver=1"], &["-smuxver=2"]),
    ] {
        let dir = TempDir::new().unwrap();
        let mut sides = start(&dir, server, client);
        let log = sides.server.wait_for(" rejected: ");
        let named = line(&log, " rejected: ", sides.udp);
        assert!(is_documented(&named), "{named}");
        let log = sides.client.wait_for(" ended: ");
        let hint = line(&log, " ended: ", sides.udp);
        assert!(is_documented(&hint), "{hint}");
        let error = sides.user.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{server:?}");
    }
}

#[test]
fn another_key_or_cipher_is_hinted_by_the_client_and_counted_by_the_server() {
    for client in [&["-key", "b"], &["-crypt", "salsa20"]] {
        let dir = TempDir::new().unwrap();
        let mut sides = start(&dir, &[], client);
        let log = sides.client.wait_for("no session with ");
        let hint = line(&log, "no session with ", sides.udp);
        assert!(is_documented(&hint), "{hint}");
        let log = sides.client.wait_for("no session within ");
        let closed = line(&log, "no session within ", sides.udp);
        assert!(is_documented(&closed), "{closed}");
        let error = sides.user.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{client:?}");
        sides.server.signal(Signal::SIGUSR1);
        let log = sides.server.wait_for(" kcp_dropped_checksum=");
        let counters = log.lines().find(|line| line.contains(" kcp_dropped_checksum=")).unwrap();
        assert!(!counters.contains(" kcp_dropped_checksum=0 "), "{counters}");
    }
}

#[test]
fn client_without_smux_is_named_by_a_server_with_smux() {
    let dir = TempDir::new().unwrap();
    let mut sides = start(&dir, &[], &["-mux", "none"]);
    let log = sides.server.wait_for(" rejected: ");
    let named = line(&log, " rejected: ", sides.udp);
    assert!(is_documented(&named), "{named}");
}
