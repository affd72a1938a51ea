//! Two sides with differing options: the log of the side that can detect it names the option, in
//! the words of docs/troubleshooting.md.

#![cfg(unix)]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use kcpx_skip::programs_in;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::program::*;

/// Returns the first log line that contains `text`, without its time, and with names in place of
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
    include_str!("../../docs/troubleshooting.md").lines().any(|documented| documented == line)
}

/// Whether a datagram to this address causes no immediate ICMP error.
fn is_bound(udp: SocketAddr) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(udp).unwrap();
    socket.send(b"x").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let error = socket.recv(&mut [0; 1]).unwrap_err();
    error.kind() != ErrorKind::ConnectionRefused
}

struct Sides {
    server: Running,
    udp: SocketAddr,
    client: Running,
    user: TcpStream,
    /// Result of writing the user's first bytes: an error if the client has already reset the
    /// connection.
    written: io::Result<()>,
}

/// The error that ends the user's connection.
fn end(user: &mut TcpStream, written: io::Result<()>) -> io::Error {
    written.and_then(|()| user.read(&mut [0; 1]).map(drop)).unwrap_err()
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
    let written = user.write_all(b"hello");
    Sides { server, udp, client, user, written }
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
        let error = end(&mut sides.user, sides.written);
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{server:?}");
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
        let error = end(&mut sides.user, sides.written);
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{client:?}");
        sides.server.signal(Signal::SIGUSR1);
        let log = sides.server.wait_for(" kcp_dropped_checksum=");
        let counters = log.lines().find(|line| line.contains(" kcp_dropped_checksum=")).unwrap();
        assert!(!counters.contains(" kcp_dropped_checksum=0 "), "{counters}");
    }
}

#[test]
fn server_of_kcptun_with_another_framing_is_hinted_by_the_client() {
    let Some(folder) = programs_in("KCPX_KCPTUN_DIR") else { return };
    let program = folder.join("kcptun-server");
    for client in [["-smuxver=2", "-nocomp=false"], ["-smuxver=1", "-nocomp"]] {
        let dir = TempDir::new().unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (address, target) = (udp.to_string(), echo("").to_string());
        let args = ["-l", &address, "-t", &target, "-key=a", "-smuxver=1"];
        let mut kcptun = Command::new(&program);
        kcptun.args(args).env_remove("KCPTUN_KEY").stdout(Stdio::null()).stderr(Stdio::null());
        // Killed on drop.
        let _kcptun = Running { child: kcptun.spawn().unwrap(), log: PathBuf::new() };
        wait_until("bound socket", || is_bound(udp).then_some(()));
        let args = ["client", "-l", "127.0.0.1:0", "-r", &address, "-key=a", client[0], client[1]];
        let mut client = Running::start(&dir.path().join("client.log"), &args, &[]);
        let mut user = connect(client.address("listening on "));
        let written = user.write_all(b"hello");
        // The session was open, so the server has answered: a failed attempt has another hint.
        let hint = "--smuxver and --mux the same on both sides?";
        let log = client.wait_for(hint);
        let hint = line(&log, hint, udp);
        assert!(is_documented(&hint), "{hint}");
        let error = end(&mut user, written);
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn client_without_smux_is_named_by_a_server_with_smux() {
    for server in [&[][..], &["-nocomp=false"]] {
        let dir = TempDir::new().unwrap();
        let mut sides = start(&dir, server, &["-mux", "none"]);
        let log = sides.server.wait_for(" rejected: ");
        let named = line(&log, " rejected: ", sides.udp);
        assert!(named.contains("--mux none") && is_documented(&named), "{named}");
    }
}

#[test]
fn client_with_smux_is_named_by_a_server_without_smux() {
    for client in [&[][..], &["-nocomp", "-smuxver=1"], &["-nocomp", "-smuxver=2"]] {
        let dir = TempDir::new().unwrap();
        let mut sides = start(&dir, &["-mux", "none"], client);
        let log = sides.server.wait_for("the first bytes are ");
        let named = line(&log, "the first bytes are ", sides.udp);
        // The number is random.
        let mut words: Vec<_> = named.split(' ').collect();
        assert_eq!(words[1], "connection", "{named}");
        words[2] = "7";
        let named = words.join(" ");
        assert!(is_documented(&named), "{named}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn port_without_a_server_is_named_by_the_client() {
    let dir = TempDir::new().unwrap();
    // Binds the port, but receives datagrams of another address only.
    let held = UdpSocket::bind("127.0.0.1:0").unwrap();
    held.connect("127.0.0.2:9").unwrap();
    let udp = held.local_addr().unwrap();
    let args = ["client", "-l", "127.0.0.1:0", "-r", &udp.to_string(), "-key", "a"];
    let mut client = Running::start(&dir.path().join("client.log"), &args, &[]);
    let _user = connect(client.address("listening on "));
    let log = client.wait_for("no session with ");
    let named = line(&log, "no session with ", udp);
    assert!(
        named.contains("nothing listens on the peer's port") && is_documented(&named),
        "{named}"
    );
}
