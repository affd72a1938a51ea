//! The event for datagrams that fail the cipher. A test binary of its own, since the subscriber is global.

#![cfg(feature = "tracing")]

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{guarded, one_thread, until};
use kcpx::{Algorithm, Cipher, Config, KcpListener, KcpStream};
use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn with_key(byte: u8) -> Config {
    Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &[byte; 16]).unwrap())
}

#[test]
fn listener_reports_an_address_with_another_key_once() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::DEBUG)
        .with_writer(move || writer.clone())
        .init();
    one_thread().block_on(guarded(async {
        let listener = KcpListener::bind_with("127.0.0.1:0", with_key(1)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let config = with_key(2).connect_timeout(Duration::from_secs(20));
        let connecting = KcpStream::connect_with(addr, config);
        let retransmitted = until(|| listener.stats().dropped.checksum >= 3);
        tokio::select! {
            () = retransmitted => {}
            connected = connecting => panic!("{connected:?}"),
        }
    }));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let events: Vec<_> = text.lines().filter(|line| line.contains("unreadable datagram")).collect();
    let [event] = events[..] else { panic!("one event: {text}") };
    assert!(event.contains("DEBUG") && event.contains("from=127.0.0.1:"), "{event}");
}
