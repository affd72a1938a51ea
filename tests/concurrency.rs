//! Many concurrent connections over loopback sockets.

mod common;

use common::{assert_same, bytes, guarded, listener, on_both_runtimes, open, read, until};
use kcpx::{Config, Endpoint, KcpStream};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// Echoes `len` bytes.
async fn echo(mut stream: KcpStream, len: usize) {
    let mut left = len;
    while left > 0 {
        let chunk = stream.read_chunk().await.unwrap();
        stream.write_all(&chunk).await.unwrap();
        left -= chunk.len();
    }
    stream.shutdown().await.unwrap();
}

/// Sends `data` and compares the echo.
async fn exchange(stream: KcpStream, data: Vec<u8>) {
    let (mut reader, mut writer) = stream.into_split();
    let (sent, got) = tokio::join!(writer.write_all(&data), read(&mut reader, data.len()));
    sent.unwrap();
    assert_same(&got, &data);
}

#[test]
fn thousand_connections_echo_concurrently() {
    const CONNECTIONS: usize = 1_000;
    const SOCKETS: usize = 4;
    const LEN: usize = 64 * 1024;
    on_both_runtimes(|| async {
        let config = Config::new().socket_buffers(Some(4 << 20), Some(4 << 20));
        let listener = listener(config.clone()).await;
        let addr = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let mut endpoints = Vec::new();
        for _ in 0..SOCKETS {
            let endpoint = Endpoint::bind_with("127.0.0.1:0", config.clone()).await.unwrap();
            endpoints.push(endpoint);
        }
        for number in 0..CONNECTIONS {
            let stream = endpoints[number % SOCKETS].connect(addr).await.unwrap();
            tasks.spawn(exchange(stream, bytes(number as u64, LEN)));
        }
        for _ in 0..CONNECTIONS {
            let (stream, _) = listener.accept().await.unwrap();
            tasks.spawn(echo(stream, LEN));
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        listener.wait_idle().await;
        let stats = listener.stats();
        assert_eq!(stats.connections.passive_opens, CONNECTIONS as u64);
        assert_eq!((stats.refused.max_connections, stats.dropped.malformed), (0, 0));
    });
}

#[test]
fn slow_reader_does_not_block_other_connections() {
    const LEN: usize = 1 << 20;
    on_both_runtimes(|| async {
        let config = Config::new().windows(64, 64).send_buffer(64 * 1024).recv_buffer(64 * 1024);
        let listener = listener(config.clone()).await;
        let addr = listener.local_addr().unwrap();

        let (client, mut slow) = open(&listener, addr, config.clone()).await;
        let data = bytes(1, LEN);
        let expected = data.clone();
        let (reader, mut writer) = client.into_split();
        let sending = tokio::spawn(async move {
            writer.write_all(&data).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        // The unread window closes and the writer waits.
        until(|| reader.stats().path.peer_window_segments == 0).await;

        let mut tasks = JoinSet::new();
        for seed in 2..10 {
            let (client, server) = open(&listener, addr, config.clone()).await;
            tasks.spawn(exchange(client, bytes(seed, LEN)));
            tasks.spawn(echo(server, LEN));
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        assert!(!sending.is_finished());
        let stats = reader.stats();
        assert_eq!(stats.path.peer_window_segments, 0);
        assert!(stats.unsent_bytes > 0);

        let got = read(&mut slow, LEN).await;
        assert_same(&got, &expected);
        guarded(sending).await.unwrap();
    });
}
