//! Connections opened and closed in turn, each with its own socket, in a process with few descriptors. Linux.
#![cfg(target_os = "linux")]

mod common;

use std::env;
use std::process::Command;

use common::{guarded, one_thread};
use kcpx::{KcpListener, KcpStream};
use tokio::io::AsyncReadExt;

/// Set in the process that has few descriptors.
const VARIABLE: &str = "KCPX_FEW_DESCRIPTORS";
const CONNECTIONS: usize = 2_000;

/// Connects and drops the stream 2,000 times. The server drops each stream at its end, or keeps all.
#[test]
fn process_with_few_descriptors_connects() {
    if env::var(VARIABLE).is_err() {
        return;
    }
    for keeps in [false, true] {
        one_thread().block_on(guarded(async {
            let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let serving = tokio::spawn(async move {
                let mut kept = Vec::new();
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    if keeps {
                        kept.push(stream);
                    } else {
                        tokio::spawn(async move { stream.read(&mut [0; 1]).await });
                    }
                }
            });
            for number in 0..CONNECTIONS {
                let stream = KcpStream::connect(addr).await;
                drop(stream.unwrap_or_else(|error| panic!("connection {number}: {error}")));
            }
            serving.abort();
        }));
    }
}

#[test]
fn closed_connections_do_not_exhaust_the_descriptors_of_the_process() {
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 320 && exec \"$0\" --exact process_with_few_descriptors_connects"])
        .arg(env::current_exe().unwrap())
        .env(VARIABLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
