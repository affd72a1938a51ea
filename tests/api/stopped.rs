//! A process is stopped for longer than its idle timeout (SIGSTOP, a frozen container, a debugger) while its
//! peer pings: the connection goes on. Linux.
#![cfg(target_os = "linux")]

use std::env;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{guarded, one_thread, read, two_threads};
use kcpx::{Config, KcpListener, KcpStream, KeepaliveInterval};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;

/// Set in the server process: its number of threads.
const VARIABLE: &str = "KCPX_STOPPED_SERVER";
const PREFIX: &str = "at ";
const IDLE: Duration = Duration::from_secs(2);
const PING: Duration = Duration::from_secs(1);

/// Echoes on one connection after the other, until the standard input ends.
#[test]
fn server_process_echoes() {
    let Ok(threads) = env::var(VARIABLE) else { return };
    std::thread::spawn(|| {
        drop(std::io::stdin().read_line(&mut String::new()));
        std::process::exit(0);
    });
    let runtime = if threads == "1" { one_thread() } else { two_threads() };
    runtime.block_on(async {
        let config = Config::new().idle_timeout(Some(IDLE));
        let listener = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
        println!("\n{PREFIX}{}", listener.local_addr().unwrap());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut reader, mut writer) = stream.into_split();
            drop(tokio::io::copy(&mut reader, &mut writer).await);
        }
    });
}

#[test]
fn connection_goes_on_after_its_process_was_stopped_for_longer_than_the_idle_timeout() {
    for threads in ["1", "2"] {
        let mut server = Command::new(env::current_exe().unwrap())
            .args(["--exact", "stopped::server_process_echoes", "--nocapture"])
            .env(VARIABLE, threads)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let addr = lines.find_map(|line| line.strip_prefix(PREFIX)?.parse::<SocketAddr>().ok());
        let pid = Pid::from_raw(server.id().try_into().unwrap());
        let went_on = one_thread().block_on(guarded(async {
            let config = Config::new().keepalive(KeepaliveInterval::After(PING));
            let mut client = KcpStream::connect_with(addr.unwrap(), config).await.unwrap();
            let mut went_on = 0;
            for round in 0..2_u8 {
                client.write_all(&[round]).await.unwrap();
                assert_eq!(read(&mut client, 1).await, [round]);
                kill(pid, Signal::SIGSTOP).unwrap();
                tokio::time::sleep(2 * IDLE).await;
                kill(pid, Signal::SIGCONT).unwrap();
                // Time for the timers of the continued process.
                tokio::time::sleep(2 * PING).await;
                went_on += usize::from(client.error().is_none());
            }
            went_on
        }));
        drop(server.stdin.take());
        drop(server.kill());
        drop(server.wait());
        println!("{threads} threads: goes on {went_on} of 2 times");
        assert_eq!(went_on, 2);
    }
}
