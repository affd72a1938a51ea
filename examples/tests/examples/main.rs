//! The examples, as processes that are used from outside.

mod arguments;
#[cfg(target_os = "linux")]
mod behind_balancer;
#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../common/hash.rs"]
mod hash;
mod perf;
mod process;
mod process_end;
mod proxy;
#[path = "../../common/sums.rs"]
mod sums;
mod two_paths;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kcpx::{Config, KcpConnector, KcpStream};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use self::common::{bytes, guarded, one_thread, read};
use self::hash::sha256;
use self::process::Example;
use self::sums::SumsClient;

/// The address that servers listen on.
const ANYWHERE: &str = "127.0.0.1:0";

/// Without arguments each one plays all roles, checks the outcome, and ends.
mod demo {
    use super::Example;

    macro_rules! demos {
        ($($name:ident),*) => {$(
            #[test]
            fn $name() {
                Example::start(stringify!($name), &[]).succeed();
            }
        )*};
    }

    demos!(chat, grpc, http, metrics, proxy, push_server, tls);
}

const MANIFEST: &str = include_str!("../../Cargo.toml");

#[test]
fn each_example_explains_its_arguments() {
    arguments::check(MANIFEST);
}

#[test]
fn each_example_can_log() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    for name in arguments::names(MANIFEST) {
        let files = [format!("{folder}{name}.rs"), format!("{folder}{name}/main.rs")];
        let source = files.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap();
        // The state machine alone logs nothing.
        assert_eq!(source.contains("log::to_stderr()"), name != "sans_io", "{name}");
    }
    assert!(arguments::names(MANIFEST).len() >= 16);
}

#[test]
fn game_example_serves_clients_in_every_way() {
    let (_server, addr) = Example::serve("game", &["server", "--listen", ANYWHERE]);
    let addr = addr.to_string();
    for way in ["datagrams", "stream", "tcp-like"] {
        let args = ["client", &addr, "--way", way, "--snapshots", "60", "--loss", "10"];
        Example::start("game", &args).succeed();
    }
    Example::start("game", &["--snapshots", "60"]).succeed();
}

#[test]
fn http_example_serves_a_library_client_and_its_own() {
    let (_server, addr) = Example::serve("http", &["server", "--listen", ANYWHERE]);
    let url = format!("http://{addr}");
    one_thread().block_on(guarded(async {
        let connector = KcpConnector::new(Config::new());
        let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
        let response = client.get(url.parse().unwrap()).await.expect("a response");
        let greeting = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(greeting, "hello over KCP\n");

        let data = bytes(5, 1_500_000);
        let expected = sha256(&data);
        let request = hyper::Request::post(format!("{url}/sha256")).body(Full::from(data));
        let response = client.request(request.unwrap()).await.expect("a response");
        let answer = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(answer, expected);

        let response = client.get(format!("{url}/nowhere").parse().unwrap()).await;
        assert_eq!(response.expect("a response").status(), 404);
    }));
    Example::start("http", &["client", &url, "--uploads", "2"]).succeed();
    reach_over_ipv6("http");
    Example::start("http", &["client", "http//typo"]).reject_with("must be http://HOST:PORT");
}

#[test]
fn grpc_example_serves_a_library_client_and_its_own() {
    let (_server, addr) = Example::serve("grpc", &["server", "--listen", ANYWHERE]);
    let url = format!("http://{addr}");
    one_thread().block_on(guarded(async {
        let endpoint = tonic::transport::Endpoint::new(url.clone()).expect("a URI");
        let channel = endpoint.connect_with_connector(KcpConnector::new(Config::new())).await;
        let mut sums = SumsClient::new(channel.expect("a channel"));
        assert_eq!(sums.square(25).await.expect("an answer").get_ref().value, 625);

        let mut counted = sums.count(3).await.expect("a stream");
        for expected in 1..=3 {
            let number = counted.message().await.expect("a number").expect("not the end");
            assert_eq!(number.value, expected);
        }
        assert_eq!(counted.message().await.expect("the end"), None);

        let numbers = [5, -7].map(|value| sums::Number { value });
        let mut totals = sums.total(tokio_stream::iter(numbers)).await.expect("a stream");
        for expected in [5, -2] {
            let total = totals.message().await.expect("a total").expect("not the end");
            assert_eq!(total.value, expected);
        }
    }));
    Example::start("grpc", &["client", &url]).succeed();
    reach_over_ipv6("grpc");
    Example::start("grpc", &["client", "http//a b"]).reject_with("must be http://HOST:PORT");
}

/// Runs an example's own client against its server, where the system has IPv6.
fn reach_over_ipv6(name: &str) {
    if !kcpx_skip::has_ipv6() {
        return;
    }
    let (_server, addr) = Example::serve(name, &["server", "--listen", "[::1]:0"]);
    Example::start(name, &["client", &format!("http://{addr}")]).succeed();
}

#[test]
fn tls_example_trusts_only_the_certificate_of_its_server() {
    let directory = std::env::temp_dir();
    let file = |who: &str| {
        let path = directory.join(format!("kcpx-{}-{who}.der", std::process::id()));
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let (own, other) = (file("own"), file("other"));
    let serve = |path: &str| {
        Example::serve("tls", &["server", "--listen", ANYWHERE, "--certificate", path])
    };
    let ((_server, addr), _other) = (serve(&own), serve(&other));
    let client = |path: &str| {
        let addr = addr.to_string();
        Example::start("tls", &["client", &addr, "--megabytes", "2", "--certificate", path])
    };
    let lines = client(&own).succeed();
    assert!(lines.iter().any(|line| line.starts_with("handshake done: TLSv1_3")), "{lines:?}");
    client(&other).fail_with("invalid peer certificate");
    for path in [own, other] {
        std::fs::remove_file(path).expect("a certificate");
    }
}

#[test]
fn push_server_example_pushes_to_a_library_client_and_its_own() {
    let args = ["server", "--listen", ANYWHERE, "--rate", "200"];
    let (_server, addr) = Example::serve("push_server", &args);
    one_thread().block_on(guarded(async {
        let mut stream = KcpStream::connect(addr).await.expect("a stream");
        let mut numbers = Vec::new();
        while numbers.len() < 20 {
            let mut line = String::new();
            stream.split().0.read_line(&mut line).await.expect("a line");
            let number = line.strip_prefix("tick ").and_then(|rest| rest.split(' ').next());
            numbers.push(number.expect("a tick").parse::<u64>().expect("its number"));
        }
        assert!(numbers.is_sorted_by(|one, next| one + 1 == *next), "{numbers:?}");
        stream.shutdown().await.expect("an acknowledgement");
    }));
    let client = Example::start("push_server", &["client", &addr.to_string(), "--ticks", "5"]);
    let lines = client.succeed();
    assert_eq!(lines.iter().filter(|line| line.starts_with("tick ")).count(), 5, "{lines:?}");
}

#[test]
fn chat_example_carries_lines_and_datagrams_between_processes() {
    let (_server, addr) = Example::serve("chat", &["server", "--listen", ANYWHERE]);
    let addr = addr.to_string();
    let join = |name: &str| Example::start("chat", &["client", &addr, "--name", name]);
    let mut alice = join("alice");
    assert_eq!(alice.line(), "joined as alice");
    let mut bob = join("bob");
    // A datagram is not kept back behind a line, so it may be the first of the two.
    alice.lines_after(&["* bob joined", "* bob is here"]);
    bob.line_after("* alice is here");
    bob.say("good morning");
    assert_eq!(alice.line_after("bob: "), "good morning");
    alice.say("and to you");
    assert_eq!(bob.line_after("alice: "), "and to you");
    bob.say("bye");
    bob.succeed();
    assert_eq!(alice.line_after("bob: "), "bye");
    alice.line_after("* bob left");
    alice.hang_up();
    alice.succeed();
    let name = "x".repeat(33);
    Example::start("chat", &["client", &addr, "--name", &name])
        .reject_with("must have 1 to 32 bytes");
}

#[test]
fn metrics_example_counts_the_echo_traffic() {
    let args = ["server", "--listen", ANYWHERE, "--metrics", ANYWHERE];
    let (server, addr) = Example::serve("metrics", &args);
    let url = server.line_after("metrics at ");
    one_thread().block_on(guarded(async {
        let mut stream = KcpStream::connect(addr).await.expect("a stream");
        stream.write_all(&[7; 5_000]).await.expect("capacity");
        assert_eq!(read(&mut stream, 5_000).await, [7; 5_000]);

        let client =
            Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(HttpConnector::new());
        let response = client.get(url.parse().unwrap()).await.expect("a response");
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(body.to_vec()).expect("text");
        let labels = format!("peer=\"127.0.0.1:{}\"", stream.local_addr().unwrap().port());
        let value = |name: &str, labels: &str| {
            let line = text.lines().find(|line| line.starts_with(name) && line.contains(labels));
            let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
            line.rsplit(' ').next().unwrap().parse::<f64>().expect("a number")
        };
        assert_eq!(value("kcpx_current_connections ", ""), 1.0);
        assert_eq!(value("kcpx_connection_received_bytes_total{", &labels), 5_000.0);
        assert_eq!(value("kcpx_connection_sent_bytes_total{", &labels), 5_000.0);
        assert!(value("kcpx_received_bytes_total ", "") > 5_000.0);
        assert!(text.ends_with("# EOF\n"));
    }));
    Example::start("metrics", &["client", &addr.to_string()]).succeed();
}
