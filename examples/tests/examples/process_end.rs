//! The last words of a process, and how many arrive.

use std::time::Duration;

use kcpx::{Config, KcpListener};
use tokio::io::AsyncReadExt;

use super::ANYWHERE;
use super::common::{guarded, one_thread};
use super::process::Example;

/// Bytes that the process sends.
const SIZE: usize = 1 << 20;

/// Runs it against a listener that has enough of a silent peer after a second. Returns what it
/// printed last, what arrived, and whether the stream ended as its sender wanted.
fn last_words(options: &[&str]) -> (String, Vec<u8>, bool) {
    one_thread().block_on(guarded(async {
        let config = Config::new()
            .keepalive(kcpx::KeepaliveInterval::Never)
            .idle_timeout(Some(Duration::from_secs(1)));
        let listener = KcpListener::bind_with(ANYWHERE, config).await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let program = Example::start("last_words", &[&[addr.as_str()], options].concat());
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut got = Vec::new();
        let ended = stream.read_to_end(&mut got).await.is_ok();
        let said = program.succeed().pop().unwrap_or_default();
        (said, got, ended)
    }))
}

fn is_part(got: &[u8]) -> bool {
    got.iter().copied().eq((0..=250).cycle().take(got.len()))
}

#[test]
fn wait_idle_before_process_exit_loses_nothing() {
    let (said, got, ended) = last_words(&[]);
    assert_eq!((said.as_str(), got.len(), ended), ("delivered", SIZE, true));
    assert!(is_part(&got));
}

#[test]
fn exit_without_wait_idle_may_lose_the_tail_and_never_looks_complete() {
    let (said, got, ended) = last_words(&["--in-a-hurry"]);
    println!("{} of {SIZE} bytes arrived, and the end: {ended}", got.len());
    assert_eq!(said, "left at once");
    assert!(!got.is_empty() && got.len() <= SIZE && is_part(&got));
    assert!(!ended || got.len() == SIZE, "an end stands for every byte");
}
