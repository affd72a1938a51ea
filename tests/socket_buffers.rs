//! The event about kernel socket buffers smaller than requested. A test binary of its own, since the event is
//! logged once per process.

#![cfg(all(target_os = "linux", feature = "tracing"))]

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use common::{guarded, one_thread};
use kcpx::{Config, Endpoint, KcpListener};
use kcpx_skip::skip;
use tracing_subscriber::filter::LevelFilter;

/// Bytes, above the limit of any system.
const HUGE: usize = 1 << 30;
const SMALL: usize = 64 * 1024;

/// The text of all events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The system's limits for receive and send buffers, in bytes.
fn limits() -> [usize; 2] {
    ["rmem_max", "wmem_max"].map(|name| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}"));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(HUGE)
    })
}

#[test]
fn socket_buffer_shortfall_is_logged_once_with_the_granted_size() {
    let [recv, send] = limits();
    if recv >= HUGE || send >= HUGE {
        return skip("a limit of the system for socket buffers");
    }
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::INFO)
        .with_writer(move || writer.clone())
        .init();
    one_thread().block_on(guarded(async {
        let local = "127.0.0.1:0";
        let granted = Config::new().socket_buffers(Some(SMALL), Some(SMALL));
        let default = Config::new().socket_buffers(None, None);
        for config in [granted, default] {
            Endpoint::bind_with(local, config).await.unwrap();
        }
        assert_eq!(log.text(), "", "every request was granted");

        let config = Config::new().socket_buffers(Some(HUGE), Some(HUGE));
        let listener = KcpListener::bind_with(local, config.clone().shards(3)).await.unwrap();
        for _ in 0..3 {
            Endpoint::bind_with(local, config.clone()).await.unwrap();
        }
        drop(listener);
    }));
    let text = log.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [
        " INFO ",
        &format!("recv_requested={HUGE} recv_granted={recv} "),
        &format!("send_requested={HUGE} send_granted={send}"),
        "net.core.rmem_max",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
