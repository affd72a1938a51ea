//! Live connections through a relay that records, and the command of the README.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kcpx::{AutoRedundancy, Config, FecConfig, KcpListener, KcpStream, Redundancy, Timing};
use kcpx_interop::kcp_go::versions;
use kcpx_netem::{Conditions, Link, LossyLink, Relay};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use crate::capture::{Capture, Datagram, From};
use crate::tshark::{Row, Tshark, repository};

/// Connections until one has sent repair symbols: whether they pay is measured, and a busy machine is measured too.
const ATTEMPTS: usize = 10;
/// For one exchange, so that a stall ends.
const DEADLINE: Duration = Duration::from_secs(120);

/// A link that writes down what enters it, before it loses any.
struct Recording {
    link: LossyLink,
    from: From,
    log: Arc<Mutex<Vec<Datagram>>>,
}

impl Link for Recording {
    type Counts = ();

    fn push(&mut self, now: Duration, packet: &[u8]) {
        let datagram = Datagram { at: now, from: self.from, payload: packet.to_vec() };
        self.log.lock().unwrap().push(datagram);
        self.link.push(now, packet);
    }

    fn next_due(&self) -> Option<Duration> {
        self.link.next_due()
    }

    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        self.link.pop_due_within(now, grain)
    }

    fn refused(&mut self, len: usize) {
        self.link.refused(len);
    }

    fn counts(&self) {}
}

/// A relay, and its datagrams so far.
struct Recorder {
    relay: Relay,
    log: Arc<Mutex<Vec<Datagram>>>,
}

impl Recorder {
    async fn start(server: std::net::SocketAddr, loss: u64) -> Self {
        let conditions =
            Conditions { loss, delay: Duration::from_millis(10), ..Conditions::default() };
        let log = Arc::<Mutex<Vec<Datagram>>>::default();
        let [up, down] = LossyLink::pair(conditions, 7, &Arc::default());
        let recording = |link, from| Recording { link, from, log: log.clone() };
        let links = [recording(up, From::Client), recording(down, From::Server)];
        Self { relay: Relay::over(server, links).await.unwrap(), log }
    }

    fn capture(&self) -> Capture {
        let mut datagrams = self.log.lock().unwrap().clone();
        datagrams.sort_by_key(|datagram| datagram.at);
        Capture { datagrams, ..Capture::default() }
    }
}

/// How often each command, and each type of CONTROL, is shown.
fn counts(rows: &[Row], field: &str) -> [usize; 100] {
    let mut counts = [0; 100];
    for number in rows.iter().flat_map(|row| row.numbers(field)) {
        counts[number as usize] += 1;
    }
    counts
}

const FIELDS: [&str; 6] = [
    "kcp.cmd",
    "kcp.control.type",
    "kcp.datagram",
    "kcp.retransmission_of",
    "kcp.ack_rtt",
    "kcp.fec.type",
];

/// Messages with datagrams beside them, both ways, to the end of the stream.
async fn talk(config: Config, loss: u64) -> Capture {
    let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await.unwrap();
    let recorder = Recorder::start(listener.local_addr().unwrap(), loss).await;
    let mut client = KcpStream::connect_with(recorder.relay.addr(), config).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let echo = tokio::spawn(async move {
        let mut buffer = vec![0; 4_096];
        loop {
            let len = server.read(&mut buffer).await.unwrap();
            if len == 0 {
                return server.shutdown().await.unwrap();
            }
            server.write_all(&buffer[..len]).await.unwrap();
        }
    });
    for i in 0..150_u8 {
        client.write_all(&[i; 1_000]).await.unwrap();
        let mut echo = [0; 1_000];
        // Not in step: several messages are under way.
        if i >= 10 {
            client.read_exact(&mut echo).await.unwrap();
        }
        // Refused until the peer has said that it takes them.
        let _ = client.datagrams().send(&[i; 40]);
        sleep(Duration::from_millis(5)).await;
    }
    client.shutdown().await.unwrap();
    client.read_to_end(&mut Vec::new()).await.unwrap();
    echo.await.unwrap();
    let endpoint = client.endpoint();
    drop(client);
    endpoint.wait_idle().await;
    recorder.capture()
}

/// Whether the capture of a connection has repair symbols; it has everything else.
fn has_repair(tshark: &Tshark, capture: &Capture) -> bool {
    let rows = tshark.rows(capture, &FIELDS);
    rows.iter().for_each(Row::assert_well_formed);
    let (commands, types) = (counts(&rows, "kcp.cmd"), counts(&rows, "kcp.control.type"));
    let with = |field| rows.iter().filter(|row| row.has(field)).count();
    let (again, timed) = (with("kcp.retransmission_of"), with("kcp.ack_rtt"));
    let summary = format!(
        "{} datagrams, {} PUSH, {} ACK, {} WASK, {} REPAIR, {} datagrams beside, {again} with PUSH again, \
         {timed} with a time, CONTROL {:?}",
        rows.len(),
        commands[81],
        commands[82],
        commands[83],
        commands[86],
        with("kcp.datagram"),
        &types[..8],
    );
    println!("{summary}");
    assert!(commands[81] >= 300 && commands[82] > 0 && commands[83] > 0, "{summary}");
    // FIN, FIN-ACK, HELLO, HELLO-ACK.
    assert!([1, 2, 5, 6].iter().all(|&kind| types[kind] > 0), "{summary}");
    assert!(again > 0 && timed > 50 && with("kcp.datagram") > 50, "{summary}");
    assert!(rows[0].info().starts_with("[OPEN]"), "{}", rows[0].info());
    commands[86] > 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_of_kcpx_shows_all_that_it_did() {
    let Some(tshark) = Tshark::find() else { return };
    for _ in 0..ATTEMPTS {
        let config = Config::new().redundancy(Redundancy::Auto(AutoRedundancy::new()));
        let capture = timeout(DEADLINE, talk(config, 10)).await.unwrap();
        if has_repair(&tshark, &capture) {
            return;
        }
    }
    panic!("no repair symbols in {ATTEMPTS} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_with_kcp_go_shows_all_that_it_did() {
    let Some(tshark) = Tshark::find() else { return };
    for version in versions() {
        for fec in ["0/0", "10/3"] {
            let (_program, server) = version.serve(["--fec", fec]).await.unwrap();
            let recorder = Recorder::start(server, 10).await;
            let redundancy = match fec {
                "0/0" => Redundancy::Off,
                _ => Redundancy::Fec(FecConfig::new(10, 3).unwrap()),
            };
            let config = Config::new().timing(Timing::FAST3).redundancy(redundancy);
            let mut client = KcpStream::connect_with(recorder.relay.addr(), config).await.unwrap();
            let exchange = async {
                for _ in 0..40 {
                    client.write_all(&[1; 4_000]).await.unwrap();
                    client.read_exact(&mut [0; 4_000]).await.unwrap();
                }
            };
            timeout(DEADLINE, exchange).await.unwrap();
            let capture = recorder.capture();
            let rows = tshark.rows(&capture, &FIELDS);
            rows.iter().for_each(Row::assert_well_formed);
            let (commands, types) = (counts(&rows, "kcp.cmd"), counts(&rows, "kcp.control.type"));
            let parity = rows.iter().filter(|row| row.numbers("kcp.fec.type") == [0xF2]).count();
            let again = rows.iter().filter(|row| row.has("kcp.retransmission_of")).count();
            println!(
                "{version}, FEC {fec}: {} datagrams, {} PUSH, {} ACK, {parity} parity, {again} with PUSH again",
                rows.len(),
                commands[81],
                commands[82],
            );
            assert!(commands[81] > 200 && commands[82] > 50 && again > 0);
            assert_eq!(parity > 0, fec == "10/3");
            // Such a peer never gets CONTROL or REPAIR.
            assert!(types.iter().all(|&count| count == 0) && commands[85] + commands[86] == 0);
        }
    }
}

/// The command that README.md names, run in a home folder of its own.
#[test]
#[cfg(unix)]
fn command_of_the_readme_installs_the_dissector() {
    let Some(tshark) = Tshark::find() else { return };
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let mut commands = readme.lines().filter(|line| line.contains("wireshark/kcp.lua"));
    let command = commands.next().expect("a line of README.md with wireshark/kcp.lua");
    let tshark = tshark.installed(command);
    let capture = Capture::of([crate::bytes::Segment::default().bytes()]);
    tshark.rows(&capture, &[])[0].assert_well_formed();
}
