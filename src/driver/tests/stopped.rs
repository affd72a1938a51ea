//! An endpoint whose process was stopped (SIGSTOP, a frozen container, a debugger), on real sockets in
//! virtual time: the runtime has not reported the datagrams of that time yet, and all timers have run out.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::config::{Config, KeepaliveInterval};
use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::sys::UdpSocket;
use crate::util::sync::Arc;

const SECOND: Duration = Duration::from_secs(1);
/// Lets the runtime see the datagrams that have arrived.
const MOMENT: Duration = Duration::from_millis(2);

/// A server and clients. The test takes their turns.
struct Side {
    driver: Driver<UdpSocket>,
    endpoint: Endpoint,
}

impl Side {
    fn new(now: Instant, config: Config, seed: u8, accept: Option<Arc<AcceptQueue>>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &config.socket).unwrap();
        let requests = RequestQueue::new();
        let driver =
            Driver::new(socket, config, requests.clone(), accept, [seed; 32], now).unwrap();
        Self { driver, endpoint: Endpoint::attach(requests) }
    }

    /// Turns until nothing is ready, as far as the runtime has seen.
    fn run(&mut self, now: Instant) {
        while self.driver.turn(now).runs_again() {}
    }
}

#[tokio::test]
async fn peers_that_were_not_silent_are_kept_after_the_process_was_stopped() {
    let mut now = Instant::now();
    let queue = AcceptQueue::new();
    let idle = Config::new().idle_timeout(Some(5 * SECOND));
    let mut server = Side::new(now, idle, 1, Some(queue.clone()));
    let listener = KcpListener::new(AcceptHandle::new(queue), server.endpoint.clone());
    let pinging = Config::new().keepalive(KeepaliveInterval::After(SECOND));
    // More than one receive takes, and more than one turn.
    let mut clients: Vec<_> =
        (2..42).map(|seed| Side::new(now, pinging.clone(), seed, None)).collect();
    let (addr, mut streams, mut accepted) =
        (listener.local_addr().unwrap(), Vec::new(), Vec::new());
    for client in &mut clients {
        let endpoint = client.endpoint.clone();
        let mut connecting = Box::pin(endpoint.connect(addr));
        streams.push(loop {
            client.run(now);
            server.run(now);
            if let Ok(stream) = timeout(MOMENT, &mut connecting).await {
                break stream.unwrap();
            }
        });
        accepted.push(listener.accept().await.unwrap().0);
    }
    for _ in 0..8 {
        now += SECOND;
        clients.iter_mut().for_each(|client| client.run(now));
    }
    // The runtime has not polled the sockets since.
    server.run(now);
    let ended: Vec<_> = accepted.iter().filter_map(|stream| stream.error()).collect();
    println!("{} of {} connections ended", ended.len(), accepted.len());
    assert_eq!(ended, []);
    // Their answers count.
    sleep(MOMENT).await;
    clients.iter_mut().for_each(|client| client.run(now));
    sleep(MOMENT).await;
    now += 3 * SECOND;
    server.run(now);
    assert!(accepted.iter().all(|stream| stream.error().is_none()));
    assert!(streams.iter().all(|stream| stream.error().is_none()));
    // Without a datagram they end nevertheless. Their latest datagram was a ping, which may be a recorded
    // one, so they are asked once more, and have a third of the timeout.
    for seconds in [6, 2] {
        now += seconds * SECOND;
        server.run(now);
    }
    assert!(accepted.iter().all(|stream| stream.error().is_some()));
}
