//! A process can bind a port again once its last endpoint there has nothing left to deliver.

mod common;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use common::{Pair, bytes, on_both_runtimes, one_thread, open, pair, read, until};
use kcpx::{Algorithm, Cipher, Config, Endpoint, KcpListener, KcpStream};
use kcpx_skip::has_ipv6;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ROUNDS: usize = 100;

/// Serves one connection to its end and returns the listener's address.
async fn serve_once(addr: SocketAddr, config: &Config) -> SocketAddr {
    let listener = KcpListener::bind_with(addr, config.clone()).await.expect("a free port");
    let addr = listener.local_addr().unwrap();
    let echo = async {
        let (mut server, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        server.write_all(&received).await.unwrap();
    };
    let ask = async {
        let one_socket = config.clone().shards(1);
        let mut client = KcpStream::connect_with(addr, one_socket).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"hello");
    };
    tokio::join!(echo, ask);
    addr
}

#[test]
fn bind_succeeds_once_both_ends_have_ended() {
    on_both_runtimes(|| async {
        let mut addr = "127.0.0.1:0".parse().unwrap();
        for _ in 0..ROUNDS {
            addr = serve_once(addr, &Config::new()).await;
        }
    });
}

#[test]
fn bind_succeeds_at_once_after_wait_idle() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        let mut listener = Some(listener);
        for _ in 0..ROUNDS {
            let old = listener.take().unwrap();
            server.write_all(&bytes(1, 20_000)).await.unwrap();
            drop(server);
            // The client reads to the end and keeps its own side open.
            tokio::join!(old.wait_idle(), async {
                client.read_to_end(&mut Vec::new()).await.unwrap();
            });
            drop(old);
            let next = KcpListener::bind(addr).await.expect("a free port");
            (client, server) = open(&next, addr, Config::new()).await;
            listener = Some(next);
        }
    });
}

#[test]
fn bind_succeeds_at_once_under_a_cipher() {
    let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    one_thread().block_on(common::guarded(async {
        let mut addr = "127.0.0.1:0".parse().unwrap();
        for _ in 0..ROUNDS {
            addr = serve_once(addr, &Config::new().cipher(cipher.clone())).await;
        }
    }));
}

#[cfg(target_os = "linux")]
#[test]
fn bind_succeeds_at_once_with_shards() {
    on_both_runtimes(|| async {
        let mut addr = "127.0.0.1:0".parse().unwrap();
        for round in 0..ROUNDS {
            // Alternates between one and several sockets.
            addr = serve_once(addr, &Config::new().shards(1 + round % 3)).await;
        }
    });
}

#[test]
fn wildcard_address_is_free_as_well() {
    on_both_runtimes(|| async {
        let mut addr = "127.0.0.1:0".parse().unwrap();
        addr = serve_once(addr, &Config::new()).await;
        let any = SocketAddr::from(([0, 0, 0, 0], addr.port()));
        drop(KcpListener::bind(any).await.expect("a free port"));
        drop(Endpoint::bind(addr).await.expect("a free port"));
    });
}

#[test]
fn port_with_undelivered_data_is_in_use() {
    on_both_runtimes(|| async {
        let config = Config::new().windows(32, 32);
        let Pair { mut client, mut server, listener } = pair(config).await;
        let addr = listener.local_addr().unwrap();
        let sent = bytes(1, 1_000_000);
        let mut written = 0;
        // The client accepts one window before it reads: the rest is undelivered.
        let has_rest = |server: &KcpStream| {
            let stats = server.stats();
            stats.path.peer_window_segments == 0 && stats.unsent_bytes > 0
        };
        while !has_rest(&server) {
            // The queue limit of a blocked stream depends on its measured rate.
            tokio::select! {
                more = server.write(&sent[written..]) => written += more.unwrap(),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        let sent = &sent[..written];
        drop((server, listener));
        let error = KcpListener::bind(addr).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert_eq!(read(&mut client, sent.len()).await, sent, "the old endpoint has gone on");
        // The last acknowledgement may still be on its way.
        while KcpListener::bind(addr).await.is_err() {}
    });
}

#[test]
fn listener_of_the_other_ip_version_is_not_asked() {
    if !has_ipv6() {
        return;
    }
    on_both_runtimes(|| async {
        // Another program may have the port for IPv4.
        let (_v6, v4, listener) = loop {
            let only_v6 = Config::new().only_v6(true);
            let v6 = KcpListener::bind_with("[::]:0", only_v6).await.unwrap();
            let v4 = SocketAddr::from(([0, 0, 0, 0], v6.local_addr().unwrap().port()));
            if let Ok(listener) = KcpListener::bind(v4).await {
                break (v6, v4, listener);
            }
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], v4.port()));
        let (mut client, server) = open(&listener, addr, Config::new()).await;
        drop((server, listener));
        client.read_to_end(&mut Vec::new()).await.unwrap();
        KcpListener::bind(v4).await.expect("a free port");
    });
}

#[test]
fn stream_that_is_open_keeps_its_port() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        drop(listener);
        for bind in [addr, client.local_addr().unwrap()] {
            let bind = SocketAddr::from(([127, 0, 0, 1], bind.port()));
            assert_eq!(Endpoint::bind(bind).await.unwrap_err().kind(), ErrorKind::AddrInUse);
        }
        client.write_all(b"still").await.unwrap();
        assert_eq!(read(&mut server, 5).await, b"still");
    });
}

#[test]
fn endpoint_of_a_runtime_that_stands_still_keeps_its_port() {
    let still = one_thread();
    let listener = still.block_on(KcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let runtime = one_thread();
    let error = runtime.block_on(KcpListener::bind(addr)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(still);
    runtime.block_on(async { until(|| std::net::UdpSocket::bind(addr).is_ok()).await });
}
