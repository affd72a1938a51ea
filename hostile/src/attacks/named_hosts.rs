//! Initial segments in the name of a host that answers what it is sent: one that echoes UDP, the server
//! itself, the listener of another implementation. And a source whose clients answer on a lossy path.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use kcpx::proto::{Command, Header, Segments, Sn};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::sleep;

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forge;
use crate::rng::Rng;
use crate::running::Running;
use crate::server::{Process, Profile, Service};
use crate::sources::Traffic;

/// `Limits::validation_timeout` of the server.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after the last forged segment no connection is left: a busy server may read it late.
const NONE_LEFT_AFTER: Duration = Duration::from_secs(20);
/// Initial segments a second.
const RATE: u64 = 500;
/// The same where a connection may be validated, each of which sends 64 KiB.
const VALIDATED_RATE: u64 = 20;
/// The amplification limit (RFC 9000 8.1).
const LIMIT: f64 = 3.0;
/// One datagram to each of eight connections of a source, which leaves beyond the limit, bytes.
const ALLOWANCES: f64 = 8.0 * 1_400.0;
/// Tables, and what the application writes to 2,049 unvalidated peers.
const MEMORY_MIB: u64 = 208;

/// Bytes that may leave for each that was forged: the first eight connections have their allowance, the
/// others the limit.
fn most_bytes(traffic: Traffic) -> f64 {
    LIMIT + ALLOWANCES / traffic.sent_bytes.max(1) as f64
}

/// The answers of the named host to a datagram.
type Answers = Box<dyn FnMut(&[u8]) -> Vec<Vec<u8>> + Send>;

/// A host in whose name segments are forged. Both leave from one socket, which is the same to a server.
struct NamedHost {
    socket: UdpSocket,
    to: SocketAddr,
    answers: Answers,
    /// Forged, and what came for it.
    traffic: Traffic,
}

impl NamedHost {
    fn new(host: u8, to: SocketAddr, answers: Answers) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 7, 0, host), 0))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, to, answers, traffic: Traffic::default() })
    }

    fn forge(&mut self, datagram: &[u8]) {
        if self.socket.send_to(datagram, self.to).is_ok() {
            self.traffic.sent += 1;
            self.traffic.sent_bytes += datagram.len() as u64;
        }
        self.answer();
    }

    fn answer(&mut self) {
        let mut buffer = [0; 2_048];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            self.traffic.received += 1;
            self.traffic.received_bytes += len as u64;
            for answer in (self.answers)(&buffer[..len]) {
                let _ = self.socket.send_to(&answer, self.to);
            }
        }
    }
}

/// Forges what `next` returns in the name of a host that answers so, and lets it answer until no
/// connection is left, if they are to end.
async fn forge(
    setup: Setup,
    profile: Profile,
    (rate, answers, ends): (u64, Answers, bool),
    mut next: impl FnMut(&mut Rng) -> Vec<u8> + Send + 'static,
) -> anyhow::Result<(Process, Observer, Traffic, u64)> {
    let profile = Profile { validation_ms: VALIDATION_TIMEOUT.as_millis() as u64, ..profile };
    let mut server = Process::start(profile)?;
    let mut observer = Observer::start(&server, false)?;
    let host = Arc::new(Mutex::new(NamedHost::new(1, server.addr, answers)?));
    let (forging, mut rng) = (host.clone(), Rng::new(15));
    let running = Running::start(rate, move || {
        let datagram = next(&mut rng);
        forging.lock().unwrap_or_else(PoisonError::into_inner).forge(&datagram);
    });
    observer.watch(&mut server, setup.time).await?;
    running.stop()?;
    let answering = host.clone();
    let running = Running::start(1_000, move || {
        answering.lock().unwrap_or_else(PoisonError::into_inner).answer();
    });
    let left = if ends { connections_left(&mut server).await? } else { 0 };
    running.stop()?;
    let traffic = host.lock().unwrap_or_else(PoisonError::into_inner).traffic;
    Ok((server, observer, traffic, left))
}

/// Waits until the server has no connection; returns how many it has after [`NONE_LEFT_AFTER`].
async fn connections_left(server: &mut Process) -> anyhow::Result<u64> {
    let start = Instant::now();
    loop {
        let left = server.counters()?.current_connections;
        if left == 0 || start.elapsed() > NONE_LEFT_AFTER {
            return Ok(left);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Initial segments of both kinds.
fn initial(rng: &mut Rng) -> Vec<u8> {
    match rng.below(2) {
        0 => forge::initial(rng.next_u32(), b"!"),
        _ => forge::initial_without_data(rng.next_u32(), rng.next_u32()),
    }
}

/// A host that echoes UDP, to a server that sends first.
pub(super) async fn echo(setup: Setup) -> anyhow::Result<Row> {
    let answers: Answers = Box::new(|datagram| vec![datagram.to_vec()]);
    let profile = Profile::new(Service::Greeting);
    let (server, observer, traffic, left) =
        forge(setup, profile, (RATE, answers, true), initial).await?;
    let row = Row::new(
        "initial segments in the name of a host that echoes, server sends first",
        "echo_host_is_never_validated_and_sent_at_most_three_times_what_was_forged",
    )
    .traffic(traffic, f64::INFINITY, most_bytes(traffic))
    .exactly("connections left", left, 0);
    observer.finish(&server, row, MEMORY_MIB).await
}

/// A listener of another implementation: it opens a session for any PUSH, acknowledges it and copies
/// its timestamp. Its application reads nothing.
fn stock_listener() -> Answers {
    Box::new(|datagram| {
        let mut answer = Vec::new();
        for (header, _) in Segments::new(datagram) {
            let command = match header.command {
                Command::Push => Command::Ack,
                Command::WindowProbe => Command::WindowUpdate,
                _ => continue,
            };
            Header { command, frg: 0, wnd: 32, una: Sn(0), len: 0, ..header }.emit(&mut answer);
        }
        if answer.is_empty() { Vec::new() } else { vec![answer] }
    })
}

/// In the name of a listener of another implementation. `capable`: the initial segment has the CONTROL
/// capability.
pub(super) async fn stock(setup: Setup, capable: bool, validates: bool) -> anyhow::Result<Row> {
    let profile = Profile { require_validation: validates, ..Profile::new(Service::Greeting) };
    let is_bounded = capable || validates;
    let rate = if is_bounded { RATE } else { VALIDATED_RATE };
    let next = move |rng: &mut Rng| match capable {
        true => forge::initial_without_data(rng.next_u32(), rng.next_u32()),
        false => forge::initial(rng.next_u32(), b"!"),
    };
    let (server, observer, traffic, left) =
        forge(setup, profile, (rate, stock_listener(), is_bounded), next).await?;
    let (kind, test) = match (capable, validates) {
        (true, _) => (
            "with the CONTROL capability",
            "initial_segment_with_the_control_capability_is_validated_by_no_stock_listener",
        ),
        (false, true) => (
            "without it, require_validation",
            "one_stock_initial_segment_under_require_validation_is_validated_by_no_stock_listener",
        ),
        (false, false) => (
            "without it",
            "one_stock_initial_segment_under_require_validation_is_validated_by_no_stock_listener",
        ),
    };
    let attack =
        format!("initial segments in the name of a listener of another implementation, {kind}");
    let limit = if is_bounded { most_bytes(traffic) } else { f64::INFINITY };
    let mut row = Row::new(attack, test).traffic(traffic, f64::INFINITY, limit);
    if is_bounded {
        row = row.exactly("connections left", left, 0);
    }
    observer.finish(&server, row, MEMORY_MIB).await
}

/// A UDP datagram with any source address, which needs a raw socket.
fn with_source(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend_from_slice(&from.ip().octets());
    packet.extend_from_slice(&to.ip().octets());
    packet.extend_from_slice(&from.port().to_be_bytes());
    packet.extend_from_slice(&to.port().to_be_bytes());
    packet.extend_from_slice(&length.to_be_bytes());
    // No checksum, which IPv4 permits.
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    packet
}

/// In the name of the server itself: its socket sends to itself.
pub(super) async fn own_address(setup: Setup) -> anyhow::Result<Row> {
    let row = Row::new(
        "initial segments in the name of the server itself, server sends first",
        "connection_with_the_own_address_ends_after_the_validation_timeout",
    );
    let Ok(raw) = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))) else {
        return Ok(row.skipped("a raw socket (CAP_NET_RAW)"));
    };
    let profile = Profile {
        validation_ms: VALIDATION_TIMEOUT.as_millis() as u64,
        ..Profile::new(Service::Greeting)
    };
    let mut server = Process::start(profile)?;
    let mut observer = Observer::start(&server, true)?;
    let SocketAddr::V4(addr) = server.addr else { anyhow::bail!("an IPv4 server") };
    let mut rng = Rng::new(16);
    let running = Running::start(RATE, move || {
        let _ = raw.send_to(&with_source(addr, addr, &initial(&mut rng)), &addr.into());
    });
    observer.watch(&mut server, setup.time).await?;
    let forged = running.stop()?;
    let row = observer.finish(&server, row, MEMORY_MIB).await?;
    let left = connections_left(&mut server).await?;
    Ok(row.at_least("forged", forged as f64, 1.0).exactly("connections left", left, 0))
}

// ----- clients of one source -----

/// Clients of one address, and the time in which each has its answer.
const CLIENTS: usize = 64;
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Time between two transmissions of data that is not acknowledged.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// A client of another implementation, with a request of one segment.
struct StockClient {
    socket: UdpSocket,
    request: Vec<u8>,
    sent: Option<Instant>,
    acked: bool,
    answered: Option<Duration>,
}

impl StockClient {
    /// Takes what arrived and sends what is due; `is_lost` decides of each datagram either way.
    fn update(&mut self, start: Instant, is_lost: &mut impl FnMut() -> bool) {
        let mut buffer = [0; 2_048];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            if is_lost() {
                continue;
            }
            let mut answer = Vec::new();
            for (header, _) in Segments::new(&buffer[..len]) {
                self.acked |=
                    header.una.0 == 1 || (header.command == Command::Ack && header.sn.0 == 0);
                if header.command == Command::Push {
                    if header.len > 0 {
                        self.answered.get_or_insert_with(|| start.elapsed());
                    }
                    let una = Sn(u32::from(self.answered.is_some()));
                    Header { command: Command::Ack, frg: 0, wnd: 32, una, len: 0, ..header }
                        .emit(&mut answer);
                }
            }
            if !answer.is_empty() && !is_lost() {
                let _ = self.socket.send(&answer);
            }
        }
        if !self.acked && self.sent.is_none_or(|at| at.elapsed() >= RETRANSMISSION) {
            self.sent = Some(Instant::now());
            if !is_lost() {
                let _ = self.socket.send(&self.request);
            }
        }
    }
}

/// Clients of one address that open at once, where a fifth of the datagrams is lost.
pub(super) async fn shared_source() -> anyhow::Result<Row> {
    let server = Process::start(Profile::new(Service::Echo))?;
    let observer = Observer::start(&server, true)?;
    let mut clients = Vec::new();
    for conv in 1..=CLIENTS as u32 {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 8, 0, 2), 0)).context("a client")?;
        socket.set_nonblocking(true)?;
        socket.connect(server.addr)?;
        let request = forge::initial(conv, b"request");
        clients.push(StockClient { socket, request, sent: None, acked: false, answered: None });
    }
    let (mut rng, start) = (Rng::new(17), Instant::now());
    let mut is_lost = || rng.below(5) == 0;
    while start.elapsed() < ANSWERED_WITHIN
        && clients.iter().any(|client| client.answered.is_none())
    {
        clients.iter_mut().for_each(|client| client.update(start, &mut is_lost));
        sleep(Duration::from_millis(5)).await;
    }
    let answered = clients.iter().filter_map(|client| client.answered);
    let (count, slowest) = (answered.clone().count() as u64, answered.max().unwrap_or_default());
    let row = Row::new(
        "64 clients of another implementation, of one address, a fifth of the datagrams lost",
        "clients_that_share_an_address_are_all_answered_on_a_lossy_path",
    )
    .exactly("answered", count, CLIENTS as u64)
    .at_most("milliseconds of the slowest", slowest.as_millis() as f64, 10_000.0);
    observer.finish(&server, row, 16).await
}
