//! A whole path, where the system lets this user make one.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kcpx_relay::{Conditions, Directions, Path, Schedule, Step};
use kcpx_skip::skip;

/// Few enough for any socket's receive buffer, all at once.
const PACKETS: u32 = 200;
const TIMEOUT: Duration = Duration::from_secs(4);

/// A path, or `None`, reported as skipped, if namespaces or devices are not permitted.
fn path(directions: impl Into<Directions>, seed: u64) -> Option<Path> {
    match Path::new(directions, seed) {
        Ok(path) => Some(path),
        Err(error) => {
            skip(format!("namespaces and devices: {error:#}"));
            None
        }
    }
}

/// Which packets a simulated path of this seed lets through, and back again.
fn survivors(conditions: Conditions, seed: u64) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let [mut up, mut down] = Path::links(conditions, seed);
    let late = Duration::from_secs(60);
    let (mut there, mut back) = (BTreeSet::new(), BTreeSet::new());
    (0..PACKETS).for_each(|number| up.push(Duration::ZERO, &number.to_be_bytes()));
    while let Some(packet) = up.pop_due(late) {
        there.insert(number(&packet));
        down.push(Duration::ZERO, &packet);
    }
    while let Some(packet) = down.pop_due(late) {
        back.insert(number(&packet));
    }
    (there, back)
}

fn number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet.try_into().expect("four bytes"))
}

/// Echoes `count` packets, and returns their numbers.
fn echo_packets(socket: &UdpSocket, count: usize) -> BTreeSet<u32> {
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let mut buffer = [0; 4];
    let mut received = BTreeSet::new();
    while received.len() < count {
        let (len, peer) = socket.recv_from(&mut buffer).expect("those that are not lost");
        received.insert(number(&buffer[..len]));
        socket.send_to(&buffer[..len], peer).expect("an echo");
    }
    received
}

#[test]
fn loss_follows_the_seed_and_delay_is_kept() {
    let conditions =
        Conditions { delay: Duration::from_millis(40), loss: 10.0, ..Conditions::default() };
    let seed = 5;
    let Some(path) = path(conditions, seed) else { return };
    let (there, back) = survivors(conditions, seed);
    assert!(back.len() < there.len() && there.len() < PACKETS as usize);

    let address = path.server().address();
    let bind = move || UdpSocket::bind((address, 0)).expect("a socket at the server's end");
    let echo = path.server().start(bind).expect("a thread").join().expect("its socket");
    let server = echo.local_addr().expect("its address");
    let expected = there.len();
    // A socket stays where it was made, so any thread can use it.
    let echoing = std::thread::spawn(move || echo_packets(&echo, expected));

    let address = path.client().address();
    let expected = back.len();
    let asking = path.client().start(move || {
        let socket = UdpSocket::bind((address, 0)).expect("a socket at the client's end");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        socket.connect(server).expect("a peer");
        let began = Instant::now();
        (0..PACKETS).for_each(|number| {
            socket.send(&number.to_be_bytes()).expect("capacity in the send buffer");
        });
        let (mut heard, mut first) = (BTreeSet::new(), None);
        let mut buffer = [0; 4];
        while heard.len() < expected {
            let len = socket.recv(&mut buffer).expect("those that are not lost");
            first.get_or_insert_with(|| began.elapsed());
            heard.insert(number(&buffer[..len]));
        }
        (heard, first)
    });
    let (heard, first) = asking.expect("a thread").join().expect("the echoes");
    assert_eq!(echoing.join().expect("the packets"), there);
    assert_eq!(heard, back);
    // Each direction may hand on a moment early, to wake up less often.
    let least = 2 * (conditions.delay - Duration::from_micros(50));
    assert!(first.is_some_and(|first| first >= least), "{first:?} instead of {least:?}");

    let up = path.client_to_server().expect("counters");
    let down = path.server_to_client().expect("counters");
    let lost = |all: usize, left: usize| (all - left) as u64;
    assert_eq!((up.packets, up.lost), (u64::from(PACKETS), lost(PACKETS as usize, there.len())));
    assert_eq!((down.packets, down.lost), (there.len() as u64, lost(there.len(), back.len())));
    // Four bytes, and the headers of UDP and IP.
    assert_eq!((up.bytes, down.delivered_bytes), (up.packets * 32, back.len() as u64 * 32));
    assert_eq!((up.relay_drops, down.relay_drops), (0, 0));
    for end in [path.server(), path.client()] {
        assert_eq!(end.kernel().expect("the kernel's counters"), Default::default());
    }
}

#[test]
fn full_receive_buffer_is_reported() {
    let Some(path) = path(Conditions { delay: Duration::ZERO, ..Conditions::default() }, 1) else {
        return;
    };
    let address = path.server().address();
    let bind = move || UdpSocket::bind((address, 0)).expect("a socket at the server's end");
    let idle = path.server().start(bind).expect("a thread").join().expect("its socket");
    let server = idle.local_addr().expect("its address");
    let address = path.client().address();
    let bind = move || UdpSocket::bind((address, 0)).expect("a socket at the client's end");
    let busy = path.client().start(bind).expect("a thread").join().expect("its socket");

    // Without a reader datagrams are dropped sooner or later, and only the kernel counts them.
    let deadline = Instant::now() + TIMEOUT;
    while path.server().kernel().expect("the kernel's counters").udp_receive_drops == 0 {
        assert!(Instant::now() < deadline, "no drop was counted");
        for _ in 0..100 {
            busy.send_to(&[0; 1_000], server).expect("capacity in the send buffer");
        }
    }
    assert_eq!(path.client().kernel().expect("the kernel's counters").udp_receive_drops, 0);
}

#[test]
fn steps_of_both_directions_count_from_the_first_packet_of_either() {
    let initial = Conditions { delay: Duration::ZERO, ..Conditions::default() };
    let at = Duration::from_millis(300);
    let step = Step { at, conditions: Conditions { loss: 100.0, ..initial } };
    let Some(path) = path(Schedule { initial, steps: vec![step], ..Schedule::default() }, 1) else {
        return;
    };
    // A step that counted from the beginning of the path would be over by now.
    std::thread::sleep(at);

    let bind = |end: &kcpx_relay::End| {
        let address = end.address();
        let bind = move || UdpSocket::bind((address, 0)).expect("a socket at this end");
        end.start(bind).expect("a thread").join().expect("its socket")
    };
    let (server, client) = (bind(path.server()), bind(path.client()));
    server.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let server_address = server.local_addr().expect("its address");
    client.send_to(&[0], server_address).expect("capacity in the send buffer");
    server.recv(&mut [0]).expect("the first packet");

    let deadline = Instant::now() + TIMEOUT;
    while path.client_to_server().expect("counters").lost == 0 {
        assert!(Instant::now() < deadline, "the step did not come");
        client.send_to(&[0], server_address).expect("capacity in the send buffer");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The first packet of the other direction is behind the step.
    let client_address = client.local_addr().expect("its address");
    server.send_to(&[0], client_address).expect("capacity in the send buffer");
    while path.server_to_client().expect("counters").packets == 0 {
        assert!(Instant::now() < deadline, "the packet did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(path.server_to_client().expect("counters").lost, 1);
}

#[test]
fn commands_run_at_their_end_of_independent_paths() {
    let Some(first) = path(Conditions::default(), 1) else { return };
    let second = path(Conditions::default(), 1).expect("as the first");
    let devices = |end: &kcpx_relay::End| {
        let mut cat = Command::new("cat");
        cat.arg("/proc/self/net/route").stdout(Stdio::piped());
        let child = end.spawn(cat).expect("a child");
        let output = child.wait_with_output().expect("its output");
        String::from_utf8(output.stdout).expect("text")
    };
    for end in [first.server(), first.client(), second.server(), second.client()] {
        // The namespace has a route to the other end, and no other.
        let routes = devices(end);
        assert_eq!(routes.lines().count(), 2, "{routes}");
        assert!(routes.contains("00004D0A") || routes.contains("0A4D0000"), "{routes}");
    }
    let own = std::fs::read_to_string("/proc/thread-self/net/route").expect("our own routes");
    assert_ne!(own, devices(first.server()), "this thread must stay where it was");

    // The same address at both paths, and the first ends without the second noticing.
    drop(first);
    second.client_to_server().expect("it goes on");
    assert!(!devices(second.client()).is_empty());
}

/// Runs the program itself, and gives its report and whether it ended with 0.
fn relay(arguments: &[&str]) -> (serde_json::Value, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_relay"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the relay");
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{errors}");
    (serde_json::from_slice(&output.stdout).expect("a report"), output.status.success())
}

#[test]
fn wrong_arguments_end_with_2_and_lead_to_the_help() {
    let ends = ["--server", "true", "--client", "true"];
    let bulk = ["bulk-client", "--connect", "127.0.0.1:1"];
    for (arguments, text) in [
        ([&ends[..], &["--loss", "x"]].concat(), "loss"),
        ([&ends[..], &["--queue", "5"]].concat(), "a queue needs a rate"),
        ([&bulk[..], &["--fec", "10"]].concat(), "--fec must be DATA/PARITY"),
        ([&bulk[..], &["--seconds", "0"]].concat(), "--seconds must be above 0, got 0"),
        ([&bulk[..], &["--over", "tcp", "--fec", "10/3"]].concat(), "--fec requires --over kcpx"),
    ] {
        let relay = Command::new(env!("CARGO_BIN_EXE_relay")).args(&arguments).output();
        let relay = relay.expect("the relay");
        let errors = String::from_utf8_lossy(&relay.stderr);
        assert_eq!(relay.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(text) && errors.contains("--help"), "{arguments:?}: {errors}");
    }
}

#[test]
fn two_clients_run_at_the_same_time_and_are_reported_each() {
    if path(Conditions::default(), 1).is_none() {
        return;
    }
    let pipe = format!("{}/pipe.{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let server = format!("sh -c 'rm -f {pipe}; mkfifo {pipe}; echo ready; cat'");
    // A pipe waits for its other end, so neither of them ends without the other.
    let reader = format!("cat {pipe}");
    let writer = format!("sh -c 'echo from the other > {pipe}; echo done; exit 3'");
    let (report, succeeded) =
        relay(&["--seconds=20", "--server", &server, "--client", &reader, "--client", &writer]);
    std::fs::remove_file(&pipe).expect("the pipe");

    assert!(!succeeded, "one of the clients ended with 3");
    assert_eq!(report["given_up"], false);
    let clients = report["clients"].as_array().expect("clients");
    assert_eq!(clients.len(), 2);
    assert_eq!(clients[0]["status"], "exit status: 0");
    assert_eq!(clients[0]["output"], serde_json::json!(["from the other"]));
    assert_eq!(clients[1]["status"], "exit status: 3");
    assert_eq!(clients[1]["output"], serde_json::json!(["done"]));
    assert_eq!(report["server"]["status"], "exit status: 0");
}

/// Over a bottleneck, bursts of loss and steps, with what they leave in the report.
#[test]
fn two_bulk_clients_share_a_bottleneck() {
    if path(Conditions::default(), 1).is_none() {
        return;
    }
    let relay_program = env!("CARGO_BIN_EXE_relay");
    let server = format!("{relay_program} bulk-server --listen {{server}}:4000 --seconds 0.5");
    let client = format!("{relay_program} bulk-client --connect {{server}}:4000 --seconds 0.5");
    let line = "--delay-ms=5 --rate-mbit=20 --queue=50 --loss=2 --burst=3 --seconds=40";
    let mut arguments: Vec<_> = line.split(' ').collect();
    arguments.extend(["--at=0.2 down-loss=0", "--at=0.4 up-loss=3", "--server", &server]);
    arguments.extend(["--client", &client, "--client", &client]);
    let (report, succeeded) = relay(&arguments);

    assert!(succeeded, "{report:#}");
    let counted = report["server"]["output"].as_array().expect("what the server printed");
    let bytes = counted.iter().filter_map(|line| line["bytes"].as_u64());
    assert_eq!(bytes.filter(|bytes| *bytes > 0).count(), 2, "{report:#}");
    let steps = &report["conditions"]["up"]["steps"];
    assert_eq!((&steps[0]["loss_percent"], &steps[1]["loss_percent"]), (&2.0.into(), &3.0.into()));

    let up = &report["client_to_server"];
    let delay = ["p50_ms", "p99_ms", "max_ms"].map(|name| up["queue_delay"][name].as_f64());
    assert!(delay.is_sorted() && delay[0].is_some(), "{report:#}");
    // 50 packets of 1500 bytes take 30 ms.
    assert!(delay[2] > Some(0.0) && delay[2] <= Some(30.0), "{report:#}");
    assert!(up["lost"].as_u64() > Some(0), "{report:#}");
}
