//! The basic examples, as processes that are used from outside.

#[path = "../../tests/examples/arguments.rs"]
mod arguments;
#[path = "../../tests/examples/process.rs"]
mod process;

use std::path::PathBuf;

use self::process::Example;

const ANYWHERE: &str = "127.0.0.1:0";

#[test]
fn each_example_explains_its_arguments() {
    arguments::check(include_str!("../Cargo.toml"));
}

/// Wrong values, beside what `arguments` tries.
#[test]
fn wrong_values_end_with_2_and_one_sentence() {
    for (name, args, sentence) in [
        ("demo", &["--loss", "21"][..], "--loss must be a number between 0 and 20, got \"21\""),
        ("demo", &["--rtt=x"], "--rtt must be a number between 0 and 1000, got \"x\""),
        ("demo", &["--seed"], "--seed needs a value"),
        ("demo", &["now"], "unexpected argument \"now\""),
        ("echo_client", &[], "HOST:PORT of the server is missing"),
        ("file_transfer", &["receive", "a", "b", "--mode=slow"], "got \"slow\""),
        ("file_transfer", &["fetch", "a", "b"], "must be `receive` or `send`, got \"fetch\""),
    ] {
        let (code, lines) = Example::start(name, args).code();
        assert_eq!(code, Some(2), "{name} {args:?}: {lines:#?}");
        let [line] = &lines[..] else { panic!("{name} {args:?}: {lines:#?}") };
        assert!(line.contains(sentence) && line.contains("--help"), "{line}");
    }
}

#[test]
fn demo_compares_and_draws() {
    let lines = Example::start("demo", &["--messages", "100", "--rtt", "10"]).succeed();
    let tcp_left_out = lines.iter().any(|line| line.starts_with("TCP        is left out: "));
    for (name, there) in [("TCP", !tcp_left_out), ("plain KCP", true), ("kcpx", true)] {
        // A bar for each percentile, and the bytes.
        let rows = lines.iter().filter(|line| line.starts_with(&format!("  {name:<10} "))).count();
        assert_eq!(rows, if there { 4 } else { 0 }, "{name}: {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("timers     ")), "{lines:#?}");
    let path = lines.iter().find_map(|line| line.strip_prefix("picture    ")).expect("a path");
    let picture = std::fs::read_to_string(path).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.contains("kcpx: round trip"), "{picture}");
}

#[test]
fn echo_examples_log_what_rust_log_asks_for() {
    let (_server, addr) = Example::serve("echo_server", &[ANYWHERE]);
    for (log, expected) in [("kcpx=debug", true), ("debug", true), ("", false)] {
        let client = Example::start_with_log("echo_client", &[&addr.to_string(), "hello"], log);
        let lines = client.succeed();
        assert!(lines.contains(&"hello".to_owned()), "{lines:?}");
        assert_eq!(lines.iter().any(|line| line.starts_with("DEBUG kcpx")), expected, "{lines:?}");
        let named = format!("opened passive=false peer={addr} conv=");
        assert_eq!(lines.iter().any(|line| line.contains(&named)), expected, "{lines:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn echo_server_ends_with_0_on_ctrl_c() {
    let (server, _) = Example::serve("echo_server", &[ANYWHERE]);
    server.interrupt();
    server.succeed();
}

#[cfg(target_os = "linux")]
#[test]
fn echo_server_lets_clients_finish_after_ctrl_c() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let (server, addr) = Example::serve("echo_server", &[ANYWHERE]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut stream = kcpx::KcpStream::connect(addr).await.expect("a connection");
        stream.write_all(b"before").await.expect("a live server");
        let mut echo = [0; 6];
        stream.read_exact(&mut echo).await.expect("an echo");
        server.interrupt();
        server.line_after("ending ");
        stream.write_all(b"after").await.expect("a server that waits");
        stream.shutdown().await.expect("a server that waits");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.expect("a clean end");
        assert_eq!(rest, b"after");
        let endpoint = stream.endpoint();
        drop(stream);
        endpoint.wait_idle().await;
    });
    server.succeed();
}

#[test]
fn file_transfer_copies_a_file() {
    let file = |name: &str| -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
    };
    let (original, copy) = (file("original"), file("copy"));
    let data: Vec<u8> = (0..=250).cycle().take(3_000_000).collect();
    std::fs::write(&original, &data).expect("a file");
    let path = |file: &PathBuf| file.to_str().expect("a path in UTF-8").to_owned();
    let (receiver, addr) = Example::serve("file_transfer", &["receive", ANYWHERE, &path(&copy)]);
    Example::start("file_transfer", &["send", &addr.to_string(), &path(&original)]).succeed();
    let lines = receiver.succeed();
    assert!(lines.iter().any(|line| line.starts_with("received 3000000 bytes")), "{lines:?}");
    assert!(std::fs::read(&copy).expect("the copy") == data, "the copy differs");
    // It replaces nothing.
    Example::start("file_transfer", &["receive", ANYWHERE, &path(&copy)]).fail_with("exists");
    for file in [original, copy] {
        std::fs::remove_file(file).expect("a file of this test");
    }
}
