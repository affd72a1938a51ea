//! Programs that return from `main` after a write. The test starts its own executable again for each.

mod common;

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use common::{guarded, one_thread, two_threads};
use kcpx::{Config, KcpListener, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::runtime::Runtime;

/// Runs of each kind. KCPX_RUNS sets another number, for measurements.
fn runs(default: u32) -> u32 {
    let number = std::env::var("KCPX_RUNS").ok();
    number.map_or(default, |number| number.parse().expect("a number of runs"))
}

/// The role of the child process: its name, runtime and arguments.
const PART: &str = "KCPX_PART";

/// Starts this executable in the role `part`.
fn play(part: &str) -> Child {
    Command::new(std::env::current_exe().expect("the path of this test"))
        .args(["--exact", "other_process", "--nocapture", "--test-threads", "1"])
        .env(PART, part)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

#[test]
fn other_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let parts: Vec<_> = part.split(' ').collect();
    let runtime = if parts[1] == "one" { one_thread() } else { two_threads() };
    match parts[0] {
        "write" => write_and_leave(&runtime, parts[2].parse().unwrap(), parts[3], parts[4]),
        _ => answer_and_leave(&runtime, parts[2]),
    }
}

/// A minimal client: connects, writes and returns from `main`.
fn write_and_leave(runtime: &Runtime, addr: SocketAddr, bytes: &str, how: &str) {
    runtime.block_on(async {
        let mut stream = KcpStream::connect(addr).await.unwrap();
        stream.write_all(&pattern(bytes.parse().unwrap())).await.unwrap();
        if how == "flush" {
            stream.flush().await.unwrap();
        }
    });
}

/// A server of one request. It ends after it has read the request, or without.
fn answer_and_leave(runtime: &Runtime, how: &str) {
    runtime.block_on(async {
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("\nlistening on {}", listener.local_addr().unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        match how {
            "reads" => drop(stream.read_exact(&mut [0; 7]).await.unwrap()),
            _ => stream.readable().await.unwrap(),
        }
        stream.write_all(b"answer").await.unwrap();
        stream.shutdown().await.unwrap();
        drop(stream);
        listener.wait_idle().await;
    });
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

/// Starts a client that ends after it has written `bytes`. Returns the bytes that arrive, and whether the
/// stream ends without an error.
async fn last_words(
    listener: &KcpListener,
    runtime: &str,
    bytes: usize,
    how: &str,
) -> (usize, bool) {
    last_words_through(listener.local_addr().unwrap(), listener, runtime, bytes, how).await
}

/// Like [`last_words`], with a client that connects to `addr`.
async fn last_words_through(
    addr: SocketAddr,
    listener: &KcpListener,
    runtime: &str,
    bytes: usize,
    how: &str,
) -> (usize, bool) {
    let mut program = play(&format!("write {runtime} {addr} {bytes} {how}"));
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got).await;
    assert!(got == pattern(got.len()), "other bytes than were sent");
    if let Err(error) = &end {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    program.wait().unwrap();
    (got.len(), end.is_ok())
}

#[test]
fn bytes_of_a_program_that_returns_behind_its_write_arrive_with_the_end() {
    one_thread().block_on(guarded(async {
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        for (runtime, how) in
            [("one", "write"), ("one", "flush"), ("two", "write"), ("two", "flush")]
        {
            let mut whole = 0;
            for _ in 0..runs(3) {
                whole += u32::from(last_words(&listener, runtime, 5, how).await == (5, true));
            }
            println!("{runtime} {how}: {whole} of {}", runs(3));
            assert_eq!(whole, runs(3));
        }
    }));
}

/// Starts a path to `server` that drops the first datagram with data, and returns its address.
async fn lossy_path(server: SocketAddr) -> SocketAddr {
    const HEADER: usize = 24;
    let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addr = near.local_addr().unwrap();
    tokio::spawn(async move {
        let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        far.connect(server).await.unwrap();
        let (mut up, mut down) = ([0; 2_048], [0; 2_048]);
        let (mut client, mut is_lost) = (None, false);
        loop {
            tokio::select! {
                Ok((len, from)) = near.recv_from(&mut up) => {
                    client = Some(from);
                    if len > HEADER && !is_lost {
                        is_lost = true;
                    } else {
                        far.send(&up[..len]).await.unwrap();
                    }
                }
                Ok(len) = far.recv(&mut down) => {
                    // The client may have ended.
                    drop(near.send_to(&down[..len], client.unwrap()).await);
                }
            }
        }
    });
    addr
}

#[test]
fn bytes_of_a_program_that_returns_arrive_though_their_datagram_is_lost() {
    one_thread().block_on(guarded(async {
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut whole = 0;
        for _ in 0..runs(3) {
            let path = lossy_path(listener.local_addr().unwrap()).await;
            let got = last_words_through(path, &listener, "one", 5, "write").await;
            whole += u32::from(got == (5, true));
        }
        println!("{whole} of {}", runs(3));
        assert_eq!(whole, runs(3));
    }));
}

/// More than the initial window: everything with the end, or the beginning with a reset.
#[test]
fn large_write_of_a_program_that_returns_arrives_whole_or_is_reset() {
    const SIZE: usize = 100_000;
    one_thread().block_on(guarded(async {
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        for runtime in ["one", "two"] {
            let mut results = Vec::new();
            for _ in 0..runs(3) {
                results.push(last_words(&listener, runtime, SIZE, "write").await);
            }
            let whole = results.iter().filter(|result| **result == (SIZE, true)).count();
            println!("{runtime}: {whole} of {} whole, {results:?}", runs(3));
            for (bytes, ended) in results {
                assert!(bytes >= 32 * 1_376 && ended == (bytes == SIZE), "{bytes} {ended}");
            }
        }
    }));
}

/// Returns the result of `shutdown` after an exchange with a server that has ended.
async fn shutdown_behind(runtime: &str, how: &str) -> std::io::Result<()> {
    let mut server = play(&format!("answer {runtime} {how}"));
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut addr = lines.filter_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
    let config = Config::new().linger(std::time::Duration::from_secs(3));
    let mut stream = KcpStream::connect_with(addr.next().unwrap(), config).await.unwrap();
    stream.write_all(b"request").await.unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"answer");
    tokio::task::spawn_blocking(move || {
        addr.for_each(drop);
        server.wait().unwrap();
    })
    .await
    .unwrap();
    // Waits for the RST of the process.
    common::until(|| stream.error().is_some()).await;
    stream.shutdown().await
}

#[test]
fn shutdown_behind_an_exchange_is_ok_though_the_server_has_ended() {
    one_thread().block_on(guarded(async {
        for runtime in ["one", "two"] {
            let mut results = Vec::new();
            for _ in 0..runs(3) {
                results.push(shutdown_behind(runtime, "reads").await);
            }
            let ok = results.iter().filter(|result| result.is_ok()).count();
            println!("{runtime}: {ok} of {}", runs(3));
            assert!(ok == results.len(), "{results:?}");
            let error = shutdown_behind(runtime, "ignores").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }));
}
