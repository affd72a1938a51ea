//! `KcpListener::shutdown`.

use std::io::ErrorKind;
use std::time::Duration;

use crate::common::{Pair, on_both_runtimes, open, pair, read, until};
use kcpx::{Config, KcpListener, KcpStream, Shutdown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn drain_rejects_newcomers_and_ends_with_the_last_stream() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        let last = async {
            let error = KcpStream::connect(addr).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            client.write_all(b"still").await.unwrap();
            assert_eq!(read(&mut server, 5).await, b"still");
            assert_eq!(listener.accept().await.unwrap_err().kind(), ErrorKind::NotConnected);
            drop((client, server));
        };
        let (ended, ()) = tokio::join!(listener.shutdown(Shutdown::Drain), last);
        assert!(ended);
        until(|| listener.endpoint().open_connections() == 0).await;
    });
}

#[test]
fn drain_fails_tasks_that_accept() {
    on_both_runtimes(|| async {
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        let (accepted, ended) = tokio::join!(listener.accept(), listener.shutdown(Shutdown::Drain));
        assert!(ended);
        assert_eq!(accepted.unwrap_err().kind(), ErrorKind::NotConnected);
    });
}

#[test]
fn close_ends_every_stream() {
    on_both_runtimes(|| async {
        for shards in [1, 3] {
            if shards > 1 && !cfg!(target_os = "linux") {
                continue;
            }
            let config = Config::new().socket_buffers(Some(1 << 20), Some(1 << 20));
            let listener =
                KcpListener::bind_with("127.0.0.1:0", config.clone().shards(shards)).await.unwrap();
            let addr = listener.local_addr().unwrap();
            let mut streams = Vec::new();
            for _ in 0..10 {
                streams.push(open(&listener, addr, config.clone()).await);
            }
            until(|| listener.endpoint().open_connections() == 10).await;
            let serve = async {
                for (mut client, mut server) in streams {
                    // Writes succeed until the driver has taken its turn.
                    let error = loop {
                        match server.write(b"!").await {
                            Ok(_) => tokio::task::yield_now().await,
                            Err(error) => break error,
                        }
                    };
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                    client.read_to_end(&mut Vec::new()).await.unwrap();
                    client.write_all(b"bye").await.unwrap();
                    client.shutdown().await.unwrap();
                    assert_eq!(read(&mut server, 3).await, b"bye");
                    assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
                }
            };
            let close = Shutdown::Close { timeout: MINUTE };
            let (closed, ()) = tokio::join!(listener.shutdown(close), serve);
            assert!(closed);
        }
    });
}

#[test]
fn close_aborts_what_is_open_at_its_timeout() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let timeout = Duration::from_millis(50);
        assert!(!listener.shutdown(Shutdown::Close { timeout }).await);
        let error = server.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        // The end of the stream arrives before the reset.
        let mut received = Vec::new();
        while client.read_to_end(&mut received).await.is_ok() && client.error().is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

/// Two listeners read one socket in turn: the second takes the clients that the first left.
#[test]
#[cfg(unix)]
fn hand_over_leaves_newcomers_to_the_next_reader_of_the_socket() {
    on_both_runtimes(|| async {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        // The runtime of the process that ends.
        let process = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _context = process.enter();
            KcpListener::from_std(socket.try_clone().unwrap()).unwrap()
        };
        let (mut client, mut server) = open(&listener, addr, Config::new()).await;
        let newcomer = async {
            let mut stream = KcpStream::connect(addr).await.expect("no client is refused");
            stream.write_all(b"new").await.unwrap();
            assert_eq!(read(&mut stream, 2).await, b"ok");
        };
        let servers = async {
            // Times out, since the client keeps its side open.
            let timeout = Duration::from_millis(50);
            assert!(!listener.shutdown(Shutdown::HandOver { timeout }).await);
            assert_eq!(listener.accept().await.unwrap_err().kind(), ErrorKind::NotConnected);
            let error = server.read(&mut [0; 1]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap_or_default(), 0);
            let refused = listener.stats();
            assert_eq!((refused.stateless_resets_sent, refused.connections.passive_opens), (0, 1));
            drop((listener, client, server));
            process.shutdown_background();
            let next = KcpListener::from_std(socket).unwrap();
            let (mut stream, _) = next.accept().await.unwrap();
            assert_eq!(read(&mut stream, 3).await, b"new");
            stream.write_all(b"ok").await.unwrap();
            stream.shutdown().await.unwrap();
        };
        // Polls `servers` first: the listener stops accepting before the newcomer sends its first segment.
        tokio::join!(servers, newcomer);
    });
}
