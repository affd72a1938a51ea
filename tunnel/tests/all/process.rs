//! The program as users start it: status, log, signals, systemd, counters, several tunnels.

#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
#[cfg(target_os = "linux")]
use std::thread;
use std::time::Duration;

use kcpx_trace::live::{Options, watch};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::program::*;

fn get(address: SocketAddr) -> String {
    let mut stream = connect(address);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn received(socket: &UnixDatagram) -> String {
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut buffer = [0; 64];
    let len = socket.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..len].to_vec()).unwrap()
}

#[test]
fn refused_options_end_with_status_two_and_one_sentence() {
    for (args, sentence) in [
        (
            &["client", "-QPP"][..],
            "kcpx-tunnel: QPP is not supported: use --crypt aes-128-gcm on both sides\n",
        ),
        (
            &["server", "-tcp"],
            "kcpx-tunnel: tcp is not supported: use udp2raw or phantun in front\n",
        ),
        (
            &["client", "-keepalive", "0"],
            "kcpx-tunnel: --keepalive 0 is not allowed: use 1 to 28800 seconds\n",
        ),
        (
            &[],
            "kcpx-tunnel: the role is missing: write `kcpx-tunnel client` or `kcpx-tunnel server`, \
             each with --help for its options\n",
        ),
    ] {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), sentence);
        assert!(output.stdout.is_empty());
    }
    assert_eq!(output(&["client", "-nope"]).status.code(), Some(2));
}

#[test]
fn number_of_worker_threads_that_is_none_ends_with_status_two_and_one_sentence() {
    for value in ["0", "-1", "two", ""] {
        let mut command = command(&["client", "-key", "k"]);
        let output = command.env("TOKIO_WORKER_THREADS", value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{value:?}");
        let sentence = format!(
            "kcpx-tunnel: TOKIO_WORKER_THREADS must be a number from 1 on, got {value:?}\n"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), sentence);
    }
}

#[test]
fn help_goes_to_standard_output_and_a_link_sets_the_role() {
    let dir = TempDir::new().unwrap();
    let link = dir.path().join("kcptun-client");
    std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
    let output = Command::new(&link).arg("-h").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("Usage: kcpx-tunnel client [OPTIONS]"), "{help}");
}

#[test]
fn range_of_ports_is_one_line_of_the_log() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("server.log");
    let mut server = wait_until("range of free ports", || {
        let first = free_port().min(65_000);
        let range = format!("127.0.0.1:{first}-{}", first + 9);
        let args = ["server", "-l", &range, "-t", "127.0.0.1:9", "-key=k", "-drain=0"];
        let mut server = Running::start(&log, &args, &[]);
        let line = format!("listening on 127.0.0.1:{first} to port {}: ", first + 9);
        wait_until("start or end", || {
            let is_started = fs::read_to_string(&log).unwrap_or_default().contains(&line);
            (is_started || server.child.try_wait().unwrap().is_some()).then_some(is_started)
        })
        .then_some(server)
    });
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("listening on ").count(), 1, "{log}");
}

#[test]
fn address_in_use_ends_with_status_one() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = output(&["client", "-l", &address, "-key", "k"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("cannot listen on {address}: ")), "{error}");
}

#[test]
fn tunnel_of_two_processes_carries_bytes_and_obeys_signals() {
    let dir = TempDir::new().unwrap();
    let (one, two) = (echo("one:"), echo("two:"));
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let file = dir.path().join("server.json");
    let write = |target: SocketAddr| {
        fs::write(&file, format!("{{\"target\": \"{target}\", \"listen\": \"127.0.0.1:0\"}}"))
            .unwrap();
    };
    write(one);
    let notify = dir.path().join("notify");
    let variables = [("KCPTUN_KEY", "k"), ("NOTIFY_SOCKET", notify.to_str().unwrap())];
    let args = ["server", "-c", file.to_str().unwrap(), "-metrics", "127.0.0.1:0"];
    let log = dir.path().join("server.log");
    let mut server = Running::start(&log, &args, &variables);
    let udp = server.address("listening on ").to_string();
    let metrics = server.address("metrics at http://");
    assert_eq!(received(&socket), "READY=1");

    let csv = dir.path().join("snmp-2006.csv");
    let args = ["client", "-l", "127.0.0.1:0", "-r", &udp, "-conn=2", "-snmpperiod=1", "-snmplog"];
    let args: Vec<_> = args.into_iter().chain([csv.to_str().unwrap()]).collect();
    let mut client = Running::start(&dir.path().join("client.log"), &args, &[("KCPTUN_KEY", "k")]);
    let local = client.address("listening on ");
    let mut first = connect(local);
    exchange(&mut first, "hello", "one:");

    // The counters, in three ways.
    let label = "{tunnel=\"server 127.0.0.1:0\"}";
    // The session publishes its counters after the bytes are sent.
    let sent = format!("kcpx_smux_sent_payload_bytes_total{label} 9\n");
    let text = wait_until(&sent, || Some(get(metrics)).filter(|text| text.contains(&sent)));
    // One stream is open, and five bytes were sent and echoed, with a greeting of four.
    for (name, value) in [
        ("tunnel_current_connections", 1),
        ("kcp_current_connections", 1),
        ("smux_current_streams", 1),
        ("smux_unread_bytes", 0),
        ("smux_accepted_streams_total", 1),
        ("smux_received_syn_frames_total", 1),
        ("smux_received_payload_bytes_total", 5),
    ] {
        assert!(text.contains(&format!("kcpx_{name}{label} {value}\n")), "{name} in {text}");
    }
    client.signal(Signal::SIGUSR1);
    let dump = client.wait_for("counters of client 127.0.0.1:0: tunnel_sessions=1 ");
    assert!(dump.contains(" smux_opened_streams=1 "), "{dump}");
    let columns = wait_until("line in the CSV file", || {
        let csv = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut csv = csv.filter(|path| path.extension().is_some_and(|ext| ext == "csv"));
        let text = fs::read_to_string(csv.next()?).ok()?;
        (text.lines().count() >= 2).then_some(text)
    });
    assert!(columns.starts_with("Unix,BytesSent,"), "{columns}");

    // SIGHUP: another target, another log file.
    fs::rename(&log, dir.path().join("server.log.1")).unwrap();
    write(two);
    server.signal(Signal::SIGHUP);
    let change = format!("reload: target \"{one}\" became \"{two}\"");
    server.wait_for(&format!("{change}: takes effect with the next session"));
    server.wait_for("reload: open sessions keep the old values until they end");
    assert_eq!([received(&socket), received(&socket)], ["RELOADING=1", "READY=1"]);
    // A new session, since there are two; the first one keeps its target.
    exchange(&mut connect(local), "hello", "two:");
    exchange(&mut first, " again", "");

    // Both sessions are in the counters.
    let accepted = format!("kcpx_smux_accepted_streams_total{label} 2\n");
    wait_until(&accepted, || get(metrics).contains(&accepted).then_some(()));

    // SIGTERM waits for the connections.
    server.signal(Signal::SIGTERM);
    assert_eq!(received(&socket), "STOPPING=1");
    exchange(&mut first, "still", "");
    drop(first);
    assert_eq!(server.wait().code(), Some(0));
    client.signal(Signal::SIGINT);
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn metrics_of_a_tunnel_are_shown_by_kcpx_trace_live() {
    let dir = TempDir::new().unwrap();
    let target = echo("").to_string();
    let args = ["server", "-l", "127.0.0.1:0", "-t", &target];
    let key = [("KCPTUN_KEY", "k")];
    let mut server = Running::start(&dir.path().join("server.log"), &args, &key);
    let udp = server.address("listening on ").to_string();
    // Uncompressed, so that the data fills groups of FEC.
    let args = ["client", "-l", "127.0.0.1:0", "-r", &udp, "-nocomp", "-metrics", "127.0.0.1:0"];
    let mut client = Running::start(&dir.path().join("client.log"), &args, &key);
    let metrics = client.address("metrics at http://");
    exchange(&mut connect(client.address("listening on ")), &"x".repeat(100_000), "");
    for name in ["kcp_longest_srtt_microseconds", "kcp_redundant_bytes_total"] {
        let label = format!("kcpx_{name}{{tunnel=\"client 127.0.0.1:0\"}} ");
        wait_until(&label, || {
            let text = get(metrics);
            let value = text.lines().find_map(|line| line.strip_prefix(&label)).unwrap();
            (value != "0").then_some(())
        });
    }
    let options = Options { address: metrics.to_string(), seconds: Some(1) };
    let mut line = Vec::new();
    watch(&options, Duration::from_millis(1), false, &mut line).unwrap();
    let line = String::from_utf8(line).unwrap();
    assert!(line.starts_with("client 127.0.0.1:0  sent "), "{line}");
    assert!(line.contains("  RTT ") && line.ends_with("  queue 0 B\n"), "{line}");
}

#[test]
fn reload_of_a_client_keeps_its_session_and_changes_the_next_one() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("client.json");
    let mut servers = ["one", "two"].map(|name| {
        let target = echo(if name == "one" { "one:" } else { "two:" }).to_string();
        let key = format!("-key=secret {name}");
        let args = ["server", "-l", "127.0.0.1:0", "-t", &target, "-drain=0", &key];
        let mut server = Running::start(&dir.path().join(name), &args, &[]);
        let udp = server.address("listening on ");
        (server, udp)
    });
    let write = |udp: SocketAddr, key: &str, drain: u8| {
        let remote = format!("\"localaddr\": \"127.0.0.1:0\", \"remoteaddr\": \"{udp}\"");
        let rest = format!("\"key\": \"{key}\", \"drain\": {drain}");
        fs::write(&file, format!("{{{remote}, {rest}}}")).unwrap();
    };
    let [one, two] = [servers[0].1, servers[1].1];
    write(one, "secret one", 7);
    let args = ["client", "-c", file.to_str().unwrap()];
    let mut client = Running::start(&dir.path().join("client.log"), &args, &[]);
    let local = client.address("listening on ");
    exchange(&mut connect(local), "hello", "one:");

    // A file that is refused, or cannot be read, changes nothing.
    fs::write(&file, "{\"key\": \"secret three\", \"conn\": 0}").unwrap();
    client.signal(Signal::SIGHUP);
    client.wait_for("reload: settings stay as they are: \"conn\" in ");
    fs::remove_file(&file).unwrap();
    client.signal(Signal::SIGHUP);
    client.wait_for("reload: settings stay as they are: cannot read ");
    exchange(&mut connect(local), "hello", "one:");

    // Another server with another key: for the next session.
    write(two, "secret two", 9);
    client.signal(Signal::SIGHUP);
    let change = format!("reload: remoteaddr \"{one}\" became \"{two}\"");
    client.wait_for(&format!("{change}: takes effect with the next session"));
    client.wait_for("reload: key changed: takes effect with the next session");
    client.wait_for("reload: open sessions keep the old values until they end");
    exchange(&mut connect(local), "hello", "one:");
    servers[0].0.signal(Signal::SIGTERM);
    assert_eq!(servers[0].0.wait().code(), Some(0));
    wait_until("end of the first session", || {
        let log = fs::read_to_string(&client.log).unwrap();
        let ends = ["closed", "ended"].map(|end| format!("session 1 with {one} {end}"));
        ends.iter().any(|end| log.contains(end)).then_some(())
    });
    exchange(&mut connect(local), "hello", "two:");

    // Changes that wait for a restart are reported again, until they are reverted.
    client.signal(Signal::SIGHUP);
    let waits = "reload: drain \"7\" became \"9\": takes effect after a restart";
    wait_until("second report", || {
        (fs::read_to_string(&client.log).unwrap().matches(waits).count() == 2).then_some(())
    });
    write(two, "secret two", 7);
    client.signal(Signal::SIGHUP);
    client.wait_for("reload: nothing has changed");

    client.signal(Signal::SIGTERM);
    assert_eq!(client.wait().code(), Some(0));
    // The drain time of the start applies.
    let log = fs::read_to_string(&client.log).unwrap();
    assert_eq!(log.matches("reload: remoteaddr ").count(), 1, "{log}");
    assert!(log.contains("shutting down, within 7 s") && !log.contains("secret"), "{log}");
}

#[test]
fn second_signal_ends_connections_at_once() {
    let dir = TempDir::new().unwrap();
    let target = echo("").to_string();
    let server = ["server", "-l", "127.0.0.1:0", "-t", &target, "-key", "k"];
    let mut server = Running::start(&dir.path().join("server.log"), &server, &[]);
    let udp = server.address("listening on ").to_string();
    let client = ["client", "-l", "127.0.0.1:0", "-r", &udp, "-key", "k", "-drain", "80000"];
    let mut client = Running::start(&dir.path().join("client.log"), &client, &[]);
    let mut stream = connect(client.address("listening on "));
    exchange(&mut stream, "hello", "");
    client.signal(Signal::SIGTERM);
    client.wait_for("shutting down, within 80000 s");
    exchange(&mut stream, "still", "");
    client.signal(Signal::SIGTERM);
    assert_eq!(client.wait().code(), Some(0));
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)));
}

/// A lookup of a name without a dot reads the file `HOSTALIASES`, here a pipe that does not end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn lookup_that_takes_long_does_not_delay_the_end() {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    let dir = TempDir::new().unwrap();
    let (aliases, log) = (dir.path().join("aliases"), dir.path().join("client.log"));
    assert!(Command::new("mkfifo").arg(&aliases).status().unwrap().success());
    let args = ["client", "-l", "127.0.0.1:0", "-r", "server:1", "-key=k", "-drain=0"];
    let variables = [("HOSTALIASES", aliases.to_str().unwrap())];
    let mut client = Running::start(&log, &args, &variables);
    let _waiting = connect(client.address("listening on "));
    // Opening succeeds once the lookup reads.
    let mut pipe = OpenOptions::new();
    pipe.write(true).custom_flags(nix::libc::O_NONBLOCK);
    let _pipe = wait_until("lookup", || pipe.open(&aliases).ok());
    client.signal(Signal::SIGTERM);
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn closed_standard_error_does_not_end_the_program() {
    let dir = TempDir::new().unwrap();
    let (local, notify) = (dir.path().join("local"), dir.path().join("notify"));
    let socket = UnixDatagram::bind(&notify).unwrap();
    let local = local.to_str().unwrap();
    let mut command = command(&["client", "-l", local, "-r", "127.0.0.1:1", "-key", "k"]);
    let mut child = command.env("NOTIFY_SOCKET", &notify).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(received(&socket), "READY=1");
    drop(child.stderr.take());
    let mut client = Running { child, log: PathBuf::new() };
    client.signal(Signal::SIGHUP);
    assert_eq!([received(&socket), received(&socket)], ["RELOADING=1", "READY=1"]);
    client.signal(Signal::SIGUSR1);
    client.signal(Signal::SIGTERM);
    assert_eq!(received(&socket), "STOPPING=1");
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn standard_error_that_is_not_read_does_not_stop_connections_or_the_end() {
    let dir = TempDir::new().unwrap();
    let target = echo("").to_string();
    let args = ["server", "-l", "127.0.0.1:0", "-t", &target, "-key=k", "-quiet"];
    let mut server = Running::start(&dir.path().join("server.log"), &args, &[]);
    let udp = server.address("listening on ").to_string();
    let (mut client, mut before, mut unread) = wait_until("free port", || {
        let local = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let address = local.to_string();
        let mut command = command(&["client", "-l", &address, "-r", &udp, "-key=k", "-drain=0"]);
        let (unread, stderr) = full_stderr();
        let child = command.stderr(stderr).spawn().unwrap();
        let mut client = Running { child, log: PathBuf::new() };
        let connected = wait_until("listener or end", || {
            let connected = TcpStream::connect(local).ok();
            (connected.is_some() || client.child.try_wait().unwrap().is_some()).then_some(connected)
        });
        Some((client, connected?, unread))
    });
    let local = before.peer_addr().unwrap();
    before.set_read_timeout(Some(DEADLINE)).unwrap();
    exchange(&mut before, "hello", "");
    for _ in 0..2_000 {
        exchange(&mut connect(local), "short", "");
        exchange(&mut before, "long", "");
    }
    client.signal(Signal::SIGTERM);
    assert_eq!(client.wait().code(), Some(0));
    let mut read = String::new();
    unread.read_to_string(&mut read).unwrap();
    assert!(!read.is_empty() && read.bytes().all(|byte| byte == b'x'), "it was not full: {read}");
}

/// A standard error that accepts no byte, and its other end.
fn full_stderr() -> (UnixStream, Stdio) {
    let (unread, mut stderr) = UnixStream::pair().unwrap();
    stderr.set_nonblocking(true).unwrap();
    while stderr.write(b"x").is_ok() {}
    stderr.set_nonblocking(false).unwrap();
    (unread, OwnedFd::from(stderr).into())
}

/// The program under `ulimit`, with its log in `log`.
#[cfg(target_os = "linux")]
fn limited(ulimit: &str, log: &std::path::Path, args: &[&str]) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {ulimit} && exec \"$0\" \"$@\""), PROGRAM]).args(args);
    command.arg("-log").arg(log).stdin(Stdio::null());
    Running { child: command.spawn().unwrap(), log: log.to_owned() }
}

/// Connects `count` times, and returns the connections that are answered.
#[cfg(target_os = "linux")]
fn answered(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let served = |_| {
        let mut stream = connect(address);
        let is_served = stream.write_all(b"x").is_ok() && matches!(stream.read(&mut [0]), Ok(1));
        is_served.then_some(stream)
    };
    (0..count).filter_map(served).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    let dir = TempDir::new().unwrap();
    let target = echo("").to_string();
    let args = ["server", "-l", "127.0.0.1:0", "-t", &target, "-key=k"];
    let mut server = limited("-S -n 40", &dir.path().join("server.log"), &args);
    let udp = server.address("listening on ").to_string();
    let args = ["client", "-l", "127.0.0.1:0", "-r", &udp, "-key=k"];
    let mut client = limited("-S -n 40", &dir.path().join("client.log"), &args);
    assert_eq!(answered(client.address("listening on "), 100).len(), 100);
}

#[cfg(target_os = "linux")]
#[test]
fn one_client_does_not_get_the_descriptors_of_all() {
    let dir = TempDir::new().unwrap();
    let target = echo("").to_string();
    let args = ["server", "-l", "127.0.0.1:0", "-t", &target, "-key=k"];
    let mut server = limited("-n 256", &dir.path().join("server.log"), &args);
    let udp = server.address("listening on ");
    // The other client comes from another address.
    let [near, far] =
        ["127.0.0.1:0", "127.0.0.2:0"].map(|addr| std::net::UdpSocket::bind(addr).unwrap());
    let other = near.local_addr().unwrap();
    thread::spawn(move || forward(&near, &far, udp));
    let [greedy, other] = [udp, other].map(|remote| {
        let (log, remote) = (dir.path().join(remote.to_string()), remote.to_string());
        let args = ["client", "-l", "127.0.0.1:0", "-r", &remote, "-key=k"];
        let mut client = Running::start(&log, &args, &[]);
        let address = client.address("listening on ");
        (client, address)
    });
    let held = answered(greedy.1, 300);
    assert_eq!(held.len(), 64);
    assert_eq!(answered(other.1, 10).len(), 10);
    server.wait_for(" refused: its client has 64 connections, a quarter of ulimit -n");
    drop(held);
    wait_until("a place", || (answered(greedy.1, 1).len() == 1).then_some(()));
}

/// Forwards datagrams between one client of `near` and the server, which sees `far`.
#[cfg(target_os = "linux")]
fn forward(near: &std::net::UdpSocket, far: &std::net::UdpSocket, server: SocketAddr) {
    let mut buffer = vec![0; 65_536];
    let (len, client) = near.recv_from(&mut buffer).unwrap();
    far.send_to(&buffer[..len], server).unwrap();
    near.connect(client).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 65_536];
            while let Ok(len) = far.recv(&mut buffer) {
                drop(near.send(&buffer[..len]));
            }
        });
        while let Ok(len) = near.recv(&mut buffer) {
            drop(far.send_to(&buffer[..len], server));
        }
    });
}

#[test]
fn one_process_runs_the_tunnels_of_an_array() {
    let dir = TempDir::new().unwrap();
    let targets = [echo("a:"), echo("b:")];
    let servers = targets.map(|target| {
        format!("{{\"role\": \"server\", \"listen\": \"127.0.0.1:0\", \"target\": \"{target}\"}}")
    });
    let file = dir.path().join("servers.json");
    fs::write(&file, format!("[{}]", servers.join(","))).unwrap();
    let mut server = Running::start(
        &dir.path().join("server.log"),
        &["-c", file.to_str().unwrap(), "-key=k"],
        &[],
    );
    for (target, greeting) in targets.iter().zip(["a:", "b:"]) {
        let log = server.wait_for(&format!("to {target}"));
        let line = log.lines().find(|line| line.contains(&format!("to {target}"))).unwrap();
        let udp = line.split_whitespace().nth(4).unwrap().trim_end_matches(':');
        let log = dir.path().join(format!("client-{}.log", target.port()));
        let args = ["client", "-l", "127.0.0.1:0", "-r", udp, "-key=k"];
        let mut client = Running::start(&log, &args, &[]);
        exchange(&mut connect(client.address("listening on ")), "hello", greeting);
    }
}

/// A recently free TCP and UDP port.
fn free_port() -> u16 {
    wait_until("free port", || {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok().then_some(port)
    })
}

#[test]
fn plugin_of_shadowsocks_carries_bytes_and_rejects_unknown_options() {
    let dir = TempDir::new().unwrap();
    let (remote, near) = (free_port().to_string(), free_port().to_string());
    let target = echo("").port().to_string();
    let variables = |local, options| {
        [
            ("SS_REMOTE_HOST", "127.0.0.1"),
            ("SS_REMOTE_PORT", remote.as_str()),
            ("SS_LOCAL_HOST", "127.0.0.1"),
            ("SS_LOCAL_PORT", local),
            ("SS_PLUGIN_OPTIONS", options),
        ]
    };
    let options =
        "role=server;key=semicolon\\; and space;crypt=aes-128-gcm;mode=fast3;nocomp;quiet";
    let log = dir.path().join("server.log");
    let mut server = Running::start(&log, &[], &variables(&target, options));
    server.wait_for("listening on ");
    let options = "key=semicolon\\; and space;crypt=aes-128-gcm;mode=fast3;nocomp;fast-open";
    let log = dir.path().join("client.log");
    let mut client = Running::start(&log, &[], &variables(&near, options));
    let mut user = connect(client.address("listening on "));
    assert_eq!(user.peer_addr().unwrap().port().to_string(), near);
    exchange(&mut user, "hello", "");
    drop(user);
    // Lines of each connection, but not with `quiet`.
    let log = client.wait_for("5 bytes sent, 5 received");
    assert!(log.contains("SS_PLUGIN_OPTIONS: fast-open ignored"), "{log}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    let log = fs::read_to_string(&server.log).unwrap();
    assert!(log.contains("session 1 of ") && !log.contains("stream "), "{log}");

    let output = command(&[]).envs(variables(&near, "nope=1")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("nope") && error.lines().count() == 1, "{error}");
}
