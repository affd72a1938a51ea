//! Servers behind a balancer: drain, restart by handover, and the client's exit status.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kcpx::{Endpoint, KcpListener, KcpStream};
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::sleep;

use super::ANYWHERE;
use super::common::{guarded, read, segment, two_threads};
use super::process::Example;

const NAME: &str = "behind_balancer";
const BLOCK: [u8; 64] = [7; 64];
/// KCP's PUSH.
const PUSH: u8 = 81;

/// Starts a server. Returns where it listens and where it serves HTTP.
fn serve(options: &[&str]) -> (Example, SocketAddr, String) {
    let server = ["server", "--id", "one", "--listen", ANYWHERE, "--health", ANYWHERE];
    let (server, addr) = Example::serve(NAME, &[&server, options].concat());
    let health = server.line_after("health at ");
    (server, addr, health.trim_end_matches("/healthz").to_owned())
}

async fn get(url: &str) -> (u16, String) {
    let client =
        Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(HttpConnector::new());
    let response = client.get(url.parse().unwrap()).await.expect("a response");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8(body.to_vec()).expect("text"))
}

/// Waits until the counter of the server "one" has this value or more.
async fn until_counted(http: &str, name: &str, least: u64) {
    let line = format!("kcpx_{name}_total{{server=\"one\"}} ");
    loop {
        let (status, text) = get(&format!("{http}/metrics")).await;
        assert_eq!(status, 200);
        let value = text.lines().find_map(|found| found.strip_prefix(&line));
        let value = value.unwrap_or_else(|| panic!("no {line} in {text}"));
        if value.parse::<u64>().expect("a number") >= least {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Sends a block and reads the answer: the length of the id, the id, the block, and their CRC.
async fn ask(stream: &mut KcpStream) {
    stream.write_all(&BLOCK).await.expect("capacity");
    let answer = read(stream, 1 + 3 + BLOCK.len() + 4).await;
    let (text, crc) = answer.split_at(1 + 3 + BLOCK.len());
    assert_eq!((&text[..4], &text[4..]), (b"\x03one".as_slice(), BLOCK.as_slice()));
    assert_eq!(crc, crc32fast::hash(text).to_le_bytes());
}

#[test]
fn server_that_drains_serves_its_clients_and_ends_with_the_last() {
    let (server, addr, http) = serve(&["--drain-timeout", "600"]);
    let runtime = two_threads();
    let endpoint = runtime.block_on(guarded(async {
        let health = format!("{http}/healthz");
        let endpoint = Endpoint::bind("127.0.0.1:0").await.unwrap();
        let mut stream = endpoint.connect(addr).await.expect("a stream");
        ask(&mut stream).await;
        assert_eq!(get(&health).await, (200, "serving\n".to_owned()));
        server.signal(Signal::SIGTERM);
        server.line_after("draining: 1 connections are open");
        while get(&health).await != (503, "draining\n".to_owned()) {
            sleep(Duration::from_millis(10)).await;
        }
        let refused = KcpStream::connect(addr).await.expect_err("a server that drains");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // A connection of another server, which the balancer had before.
        let stray = UdpSocket::bind(ANYWHERE).await.unwrap();
        stray.send_to(&segment(77, PUSH, 5, 3, b"data"), addr).await.unwrap();
        until_counted(&http, "dropped_no_connection", 1).await;
        until_counted(&http, "refused_no_listener", 1).await;
        until_counted(&http, "stateless_resets_sent", 1).await;
        ask(&mut stream).await;
        endpoint
    }));
    let began = Instant::now();
    runtime.block_on(guarded(endpoint.wait_idle()));
    server.succeed();
    println!("the process has ended {:?} after its last client", began.elapsed());
}

#[test]
fn server_ends_streams_at_its_drain_timeout_and_at_a_second_signal() {
    let connect = async |addr| {
        let mut stream = KcpStream::connect(addr).await.expect("a stream");
        ask(&mut stream).await;
        stream
    };
    two_threads().block_on(guarded(async {
        let (server, addr, _) = serve(&["--drain-timeout", "1"]);
        let mut stream = connect(addr).await;
        server.signal(Signal::SIGTERM);
        assert_eq!(stream.read(&mut [0; 1]).await.expect("the end of the stream"), 0);
        server.line_after("still open after 1s, and ended now: 1 connections");
        drop(stream);
        server.succeed();

        let (server, addr, _) = serve(&["--drain-timeout", "600"]);
        let _stream = connect(addr).await;
        // No other process has its socket.
        server.signal(Signal::SIGHUP);
        server.line_after("SIGHUP ignored");
        server.signal(Signal::SIGTERM);
        server.line_after("draining: 1 connections are open");
        server.signal(Signal::SIGTERM);
        let (succeeded, lines) = server.end();
        assert!(!succeeded, "{lines:?}");
    }));
}

/// `name=value` of the next line of a client of which `is_expected` holds.
fn report(
    client: &Example,
    is_expected: impl Fn(&HashMap<String, String>) -> bool,
) -> HashMap<String, String> {
    loop {
        let line = client.line();
        let fields = fields(&line);
        if is_expected(&fields) {
            return fields;
        }
    }
}

fn fields(line: &str) -> HashMap<String, String> {
    let fields = line.split(' ').filter_map(|field| field.split_once('='));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn number(fields: &HashMap<String, String>, name: &str) -> u64 {
    let value = fields.get(name).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {fields:?}"))
}

#[test]
fn restart_by_handover_rejects_no_client_under_200_connections_and_newcomers() {
    for sockets in ["1", "3"] {
        let supervise = ["supervise", "--listen", ANYWHERE, "--sockets", sockets, "--"];
        // Longer than a client that is refused takes to believe it; a connection that stays lets it last.
        let server = ["--id", "one", "--health", ANYWHERE, "--handover-timeout", "1500"];
        let (supervisor, addr) = Example::serve(NAME, &[&supervise[..], &server[..]].concat());
        supervisor.line_after("health at ");
        let options = ["--connections", "200", "--newcomers", "20", "--for", "600"];
        let target = addr.to_string();
        let client = Example::start(NAME, &[&["client", &target], &options[..]].concat());
        let all = |fields: &HashMap<String, String>| {
            fields.get("connected").is_some_and(|connected| connected == "200")
        };
        let runtime = two_threads();
        let mut newcomers = number(&report(&client, all), "newcomers");
        for restarts in 1..=2 {
            // It never shuts down its side.
            let mut stays = runtime.block_on(guarded(KcpStream::connect(addr))).expect("a stream");
            runtime.block_on(guarded(ask(&mut stays)));
            supervisor.signal(Signal::SIGHUP);
            let handed_over = supervisor.line_after("handed over in ");
            assert!(handed_over.ends_with("some by a reset"), "{handed_over}");
            supervisor.line_after("the next server runs");
            let restarted = report(&client, |fields| {
                all(fields)
                    && number(fields, "reconnects") >= restarts * 200
                    && number(fields, "newcomers") > newcomers
            });
            newcomers = number(&restarted, "newcomers");
        }
        client.interrupt();
        let lines = client.succeed();
        let total = lines.iter().find(|line| line.starts_with("total ")).expect("a last line");
        println!("{sockets} sockets: {total}");
        let total = fields(total);
        assert_eq!((number(&total, "refused"), number(&total, "bad_checksums")), (0, 0));
        // Who was answered and not yet asked when the handover began; others wait for the next server.
        let resets = number(&total, "resets");
        assert!(resets <= 10, "{resets} newcomers were reset");
        assert_eq!(total["servers"], "one");
        supervisor.signal(Signal::SIGTERM);
        supervisor.succeed();
    }
}

/// Starts a supervisor of one server, with options of the server.
fn supervise(options: &[&str]) -> (Example, SocketAddr) {
    let supervise = ["supervise", "--listen", ANYWHERE, "--", "--id", "one", "--health", ANYWHERE];
    Example::serve(NAME, &[&supervise, options].concat())
}

async fn answer(addr: SocketAddr) -> std::io::Result<()> {
    let mut stream = KcpStream::connect(addr).await?;
    stream.write_all(&BLOCK).await?;
    stream.read_exact(&mut [0; 1 + 3 + BLOCK.len() + 4]).await.map(drop)
}

#[test]
fn supervisor_signalled_before_its_server_listens_restarts_it() {
    let (supervisor, addr) = supervise(&[]);
    for _ in 0..5 {
        // The first server, and each next one, has just begun.
        supervisor.signal(Signal::SIGHUP);
        supervisor.line_after("handing over");
        supervisor.signal(Signal::SIGHUP);
        supervisor.line_after("the next server runs");
    }
    two_threads().block_on(guarded(async {
        // The last signal may end one more server.
        while answer(addr).await.is_err() {}
    }));
    supervisor.signal(Signal::SIGTERM);
    supervisor.succeed();
}

#[test]
fn supervisor_passes_a_second_signal_on_to_a_server_that_drains() {
    let (supervisor, addr) = supervise(&["--drain-timeout", "600"]);
    two_threads().block_on(guarded(async {
        let mut stream = KcpStream::connect(addr).await.expect("a stream");
        ask(&mut stream).await;
        supervisor.signal(Signal::SIGTERM);
        supervisor.line_after("draining: 1 connections are open");
        supervisor.interrupt();
        supervisor.fail_with("the server has ended with exit status: 1");
    }));
}

#[test]
fn server_ends_when_its_supervisor_is_killed() {
    let (supervisor, addr) = supervise(&[]);
    supervisor.line_after("listening on ");
    // Killed.
    drop(supervisor);
    two_threads().block_on(guarded(async {
        while UdpSocket::bind(addr).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    }));
}

#[test]
fn client_fails_on_wrong_answers_and_without_any() {
    two_threads().block_on(guarded(async {
        let listener = KcpListener::bind(ANYWHERE).await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let wrong = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut answer = b"\x03two".to_vec();
            answer.extend(read(&mut stream, BLOCK.len()).await);
            // The CRC belongs to another block.
            answer[20] ^= 1;
            let crc = crc32fast::hash(&answer);
            answer[20] ^= 1;
            answer.extend(crc.to_le_bytes());
            stream.write_all(&answer).await.unwrap();
            stream
        };
        let options = ["--connections", "1", "--for", "600"];
        let client = Example::start(NAME, &[&["client", &addr], &options[..]].concat());
        let _stream = wrong.await;
        report(&client, |fields| fields.get("bad_checksums").is_some_and(|bad| bad == "1"));
        client.interrupt();
        client.fail_with("1 answers were wrong");
    }));
    // The port is bound, so that no other program gets it, and answers nothing.
    let silent = std::net::UdpSocket::bind(ANYWHERE).unwrap();
    let addr = silent.local_addr().unwrap().to_string();
    Example::start(NAME, &["client", &addr, "--for", "1"]).fail_with("no answer from");
    let options = ["server", "--listen", ANYWHERE, "--health", ANYWHERE, "--id", ""];
    Example::start(NAME, &options).reject_with("--id must have 1 to 255 bytes, got 0");
}
