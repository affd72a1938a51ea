//! How connections end, over loopback sockets.

use std::io::ErrorKind;
use std::time::Duration;

use crate::common::{
    Pair, assert_same, bytes, cause, guarded, is_pending, listener, on_both_runtimes, one_thread,
    open, pair, read, silent_peer, turns, two_threads, until,
};
use kcpx::{Config, ConnectionError, KcpStream, KeepaliveInterval, TimeoutCause};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

const SECOND: Duration = Duration::from_secs(1);

/// Gives up on a silent peer after a second.
fn hasty() -> Config {
    Config::new().linger(SECOND).dead_peer_timeout(Some(SECOND))
}

/// Opens a stream to a peer that never answers.
async fn to_silent_peer(config: Config) -> (KcpStream, UdpSocket) {
    let silent = silent_peer().await;
    let (addr, config) = (silent.local_addr().unwrap(), config.early_data(true));
    let stream = KcpStream::connect_with(addr, config).await.unwrap();
    (stream, silent)
}

#[test]
fn shutdown_waits_until_everything_is_acked() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(Config::new()).await;
        let data = bytes(1, 4 << 20);
        let send = async {
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
            client.shutdown().await.unwrap();
            let stats = client.stats();
            assert_eq!((stats.unsent_bytes, stats.path.in_flight_segments), (0, 0));
        };
        let ((), got) = tokio::join!(send, read(&mut server, data.len()));
        assert_same(&got, &data);
    });
}

#[test]
fn shutdown_is_ok_only_when_the_peer_has_everything() {
    on_both_runtimes(|| async {
        let Pair { mut client, server, listener: _listener } = pair(Config::new()).await;
        let data = bytes(2, 200_000);
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
        // `shutdown` returned, so all bytes are there.
        let mut got = vec![0; data.len()];
        let mut len = 0;
        while let Ok(count) = server.try_read(&mut got[len..]) {
            if count == 0 {
                break;
            }
            len += count;
        }
        assert_same(&got[..len], &data);
    });
}

#[test]
fn shutdown_closes_one_direction() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(Config::new()).await;
        client.write_all(b"bye").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(client.try_write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        client.writable().await.unwrap();
        client.flush().await.unwrap();

        assert_eq!(read(&mut server, 3).await, b"bye");
        server.write_all(b"not yet").await.unwrap();
        assert_eq!(read(&mut client, 7).await, b"not yet");
    });
}

#[test]
fn shutdown_without_data_is_ok_at_once() {
    on_both_runtimes(|| async {
        let (mut stream, _silent) = to_silent_peer(Config::new()).await;
        stream.shutdown().await.unwrap();
        // An ending connection without data still sends a segment.
        until(|| stream.stats().sent.datagrams > 0).await;
    });
}

#[test]
fn shutdown_to_a_silent_peer_fails_after_linger() {
    on_both_runtimes(|| async {
        let (mut stream, _silent) = to_silent_peer(Config::new().linger(SECOND)).await;
        stream.write_all(b"anyone?").await.unwrap();
        assert_eq!(cause(stream.shutdown().await), ConnectionError::LingerTimeout);
        assert_eq!(stream.error(), Some(ConnectionError::LingerTimeout));
        assert_eq!(cause(stream.read(&mut [0]).await), ConnectionError::LingerTimeout);
    });
}

#[test]
fn drop_during_a_write_delivers_what_was_accepted() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(Config::new()).await;
        let endpoint = client.endpoint();
        let data = bytes(3, 8 << 20);
        let mut taken = 0;
        // Without a reader, fills every buffer on the path. The last write is cancelled.
        while let Some(count) = tokio::select! {
            biased;
            count = client.write(&data[taken..]) => Some(count.unwrap()),
            () = until(|| endpoint.stats().connections.current == 1 && taken > 1 << 20) => None,
        } {
            taken += count;
        }
        assert!(taken < data.len());
        drop(client);

        let ((), got) = tokio::join!(endpoint.wait_idle(), read(&mut server, taken));
        assert_same(&got, &data[..taken]);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
        drop(server);
        until(|| endpoint.stats().connections.current == 0).await;
    });
}

#[test]
fn wait_idle_waits_for_dropped_streams_only() {
    on_both_runtimes(|| async {
        let (mut stream, _silent) = to_silent_peer(Config::new().linger(SECOND)).await;
        let endpoint = stream.endpoint();
        stream.write_all(b"anyone?").await.unwrap();
        // `wait_idle` ignores open streams.
        endpoint.wait_idle().await;
        drop(stream);
        assert!(is_pending(endpoint.wait_idle()).await);
        endpoint.wait_idle().await;
        assert_eq!(endpoint.stats().connections.current, 0);
    });
}

#[test]
fn drop_of_an_accepted_stream_delivers() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let data = bytes(4, 1 << 20);
        let send = async {
            server.write_all(&data).await.unwrap();
            drop(server);
            listener.wait_idle().await;
        };
        let ((), got) = tokio::join!(send, read(&mut client, data.len()));
        assert_same(&got, &data);
        drop(client);
        until(|| listener.stats().connections.current == 0).await;
    });
}

#[test]
fn linger_0_delivers_nothing_after_drop() {
    on_both_runtimes(|| async {
        let (mut stream, _silent) = to_silent_peer(Config::new().linger(Duration::ZERO)).await;
        let endpoint = stream.endpoint();
        stream.write_all(&bytes(5, 100_000)).await.unwrap();
        drop(stream);
        endpoint.wait_idle().await;
        assert_eq!(endpoint.stats().connections.current, 0);
    });
}

#[test]
fn set_linger_applies_at_drop() {
    on_both_runtimes(|| async {
        // The configured linger of an hour would exceed the test's limit.
        for time in [SECOND, Duration::ZERO] {
            let (mut stream, _silent) = to_silent_peer(Config::new().linger(3_600 * SECOND)).await;
            let endpoint = stream.endpoint();
            stream.write_all(b"anyone?").await.unwrap();
            stream.set_linger(Some(time)).unwrap();
            assert_eq!(stream.linger().unwrap(), Some(time));
            drop(stream);
            endpoint.wait_idle().await;
            assert_eq!(endpoint.stats().connections.current, 0);
        }
    });
}

#[test]
fn linger_of_more_than_a_day_is_rejected() {
    on_both_runtimes(|| async {
        let (stream, _silent) = to_silent_peer(Config::new()).await;
        let error = stream.set_linger(Some(90_000 * SECOND)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "linger (ms) must be between 0 and 86400000, got 90000000");
        // A positive time below 1 ms is rounded up: 0 means a reset.
        stream.set_linger(Some(Duration::from_nanos(1))).unwrap();
        assert_eq!(stream.linger().unwrap(), Some(Duration::from_millis(1)));
        stream.set_linger(None).unwrap();
        assert_eq!(stream.linger().unwrap(), None);
    });
}

/// The paused clock advances only while every task waits.
#[tokio::test(start_paused = true)]
async fn abort_ends_the_connection_at_once() {
    let (mut stream, _silent) = to_silent_peer(Config::new()).await;
    let endpoint = stream.endpoint();
    stream.write_all(&bytes(6, 100_000)).await.unwrap();
    let before = tokio::time::Instant::now();
    stream.abort();
    until(|| endpoint.stats().connections.current == 0).await;
    endpoint.wait_idle().await;
    assert!(before.elapsed() <= Duration::from_millis(1), "{:?}", before.elapsed());
}

#[test]
fn dead_peer_wakes_every_waiter_with_an_error() {
    on_both_runtimes(|| async {
        let config = hasty().send_buffer(1_000);
        let (stream, _silent) = to_silent_peer(config).await;
        let (mut reader, mut writer) = stream.into_split();
        let data = bytes(7, 4 << 20);
        let (written, got) = tokio::join!(writer.write_all(&data), reader.read_u8());
        assert_eq!(cause(written), ConnectionError::DeadPeer(TimeoutCause::Nothing));
        assert_eq!(cause(got), ConnectionError::DeadPeer(TimeoutCause::Nothing));

        // Later calls fail in the same way.
        assert_eq!(writer.error(), Some(ConnectionError::DeadPeer(TimeoutCause::Nothing)));
        let error = writer.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(
            cause(reader.read_chunk().await),
            ConnectionError::DeadPeer(TimeoutCause::Nothing)
        );
        assert_eq!(
            cause(reader.try_read(&mut [0])),
            ConnectionError::DeadPeer(TimeoutCause::Nothing)
        );
        assert_eq!(
            cause(writer.shutdown().await),
            ConnectionError::DeadPeer(TimeoutCause::Nothing)
        );
        reader.readable().await.unwrap();
        writer.writable().await.unwrap();
    });
}

#[test]
fn established_fails_after_the_dead_peer_timeout() {
    on_both_runtimes(|| async {
        let (mut stream, _silent) = to_silent_peer(hasty()).await;
        stream.write_all(b"anyone?").await.unwrap();
        assert_eq!(
            cause(stream.established().await),
            ConnectionError::DeadPeer(TimeoutCause::Nothing)
        );
    });
}

#[test]
fn idle_timeout_is_reported_after_the_buffered_bytes() {
    on_both_runtimes(|| async {
        let idle = Config::new().keepalive(KeepaliveInterval::Never).idle_timeout(Some(SECOND));
        let listener = listener(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        let mut client = KcpStream::connect_with(addr, idle).await.unwrap();
        client.write_all(b"!").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        server.write_all(b"read me first").await.unwrap();
        until(|| client.error().is_some()).await;

        assert_eq!(read(&mut client, 13).await, b"read me first");
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(cause::<()>(Err(error)), ConnectionError::IdleTimeout);
        assert_eq!(cause(client.write(b"x").await), ConnectionError::IdleTimeout);
    });
}

#[test]
fn keepalive_prevents_the_idle_timeout() {
    on_both_runtimes(|| async {
        let config = Config::new()
            .keepalive(KeepaliveInterval::After(SECOND))
            .idle_timeout(Some(2 * SECOND))
            .dead_peer_timeout(Some(2 * SECOND));
        let Pair { mut client, mut server, listener: _listener } = pair(config).await;
        // More pings than fit into the idle timeout.
        until(|| client.stats().probes.pings + server.stats().probes.pings >= 4).await;
        client.write_all(b"still here").await.unwrap();
        assert_eq!(read(&mut server, 10).await, b"still here");
        server.write_all(b"me too").await.unwrap();
        assert_eq!(read(&mut client, 6).await, b"me too");
    });
}

#[test]
fn runtime_shutdown_wakes_waiters_on_other_runtimes() {
    for driving in [one_thread(), two_threads()] {
        // The driver of a socket lives in the runtime that opened it; the waiting tasks do not. The listener
        // lives in a third one: its driver would reset the clients if it ended first.
        let serving = two_threads();
        // What one side writes is more than the other, which does not read, can hold.
        let config = Config::new().windows(4, 4).recv_buffer(1);
        let listener = serving.block_on(listener(config.clone()));
        let (client, unread, mut unfinished) = driving.block_on(guarded(async {
            let addr = listener.local_addr().unwrap();
            let (client, server) = open(&listener, addr, config.clone()).await;
            let (mut unfinished, unread) = open(&listener, addr, config).await;
            unfinished.write_all(&vec![0; 128 * 1024]).await.unwrap();
            (client, (server, unread), unfinished)
        }));
        let (mut reader, mut writer) = client.into_split();
        let waiting = two_threads();
        let clients = vec![
            waiting.spawn(async move { cause(reader.read_u8().await) }),
            waiting.spawn(async move {
                let error = loop {
                    if let Err(error) = writer.write(&[0; 4096]).await {
                        break error;
                    }
                };
                cause::<()>(Err(error))
            }),
            waiting.spawn(async move { cause(unfinished.shutdown().await) }),
        ];
        let servers = vec![waiting.spawn(async move { cause(listener.accept().await) })];
        for (runtime, tasks) in [(driving, clients), (serving, servers)] {
            drop(runtime);
            waiting.block_on(async {
                for task in tasks {
                    let cause = guarded(task).await.unwrap();
                    assert_eq!(cause, ConnectionError::RuntimeShutdown);
                }
            });
        }
        drop(unread);
    }
}

#[test]
fn runtime_drop_with_waiting_tasks_does_not_hang() {
    for runtime in [one_thread(), two_threads()] {
        let (started, waits) = std::sync::mpsc::channel();
        runtime.block_on(guarded(async {
            let Pair { mut client, server, listener } = pair(Config::new()).await;
            let endpoint = client.endpoint();
            let _guard = tokio::spawn(async move {
                let (mut reader, mut writer) = server.into_split();
                let data = vec![0; 64 << 20];
                started.send(()).unwrap();
                tokio::join!(
                    async { drop(reader.read_u8().await) },
                    async { drop(writer.write_all(&data).await) },
                    async { drop(listener.accept().await) },
                    async { drop(client.shutdown().await) },
                    endpoint.wait_idle(),
                )
            });
            turns(10).await;
        }));
        runtime.shutdown_timeout(Duration::from_secs(60));
        // The channel closes once the runtime has dropped its tasks.
        while waits.recv().is_ok() {}
    }
}
