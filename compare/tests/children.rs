//! The processes of a measurement end when the program that started them is gone.
#![cfg(feature = "together")]

use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Generous: the client would work for 600 s.
const LIMIT: Duration = Duration::from_secs(60);

/// Killed with the test, should it fail.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        // Both fail when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(client: &mut Client) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        if let Some(status) = client.0.try_wait().expect("a child") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

#[test]
fn client_ends_when_its_parent_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let client = Command::new(env!("CARGO_BIN_EXE_kcpx-compare"))
        .args(["client", "--workload", "bulk", "--wire", "plain", "--peer", "tcp"])
        .args(["--connect", &address, "--seconds", "600"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program");
    let mut client = Client(client);
    let (_stream, _) = listener.accept().expect("its connection");
    assert!(client.0.try_wait().expect("a child").is_none(), "it works");
    // As the system does when the parent ends.
    drop(client.0.stdin.take());
    let status = wait(&mut client).expect("still there");
    assert!(!status.success(), "it had no result: {status}");
}
