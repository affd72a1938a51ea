//! An endpoint ends because a callback of the application panics: it logs an event and ends the server on it.
//! A test binary of its own, since the subscriber is global.

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use axum::Router;
use common::{guarded, one_thread};
use kcpx::{Config, KcpListener};
use tokio::net::UdpSocket;
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

#[test]
fn end_of_an_endpoint_is_an_error_event_and_ends_its_server() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::ERROR)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    one_thread().block_on(guarded(async {
        let config = Config::new().packet_filter(|_, _| panic!("as the test asks"));
        let listener = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, Router::new()).await });
        let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        other.send_to(b"no more", addr).await.unwrap();
        assert!(serving.await.unwrap_err().is_panic(), "the server waits for ever");
    }));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let events: Vec<_> = text.lines().collect();
    let [event] = events[..] else { panic!("one event: {text}") };
    assert!(event.contains("ERROR") && event.contains("as the test asks"), "{event}");
    assert!(event.contains("local=127.0.0.1:"), "{event}");
}
