//! How sessions end: carriers that fail, wait or go on for ever, and peers that take nothing; the
//! clock is paused.

mod common;

use std::time::Duration;

use common::frames::{FIN, Peer, SYN};
use common::{VERSIONS, number};
use kcpx_smux::{Config, Error, Session};
use tokio::io::{AsyncWriteExt, duplex};

async fn idle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// A server over a carrier that holds `buffer` bytes.
fn server(buffer: usize, config: Config, version: u8) -> (Session, Peer) {
    let (ours, io) = duplex(buffer);
    (Session::server(ours, config).unwrap(), Peer { io, version })
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_fin_in_the_batch_returns_the_error_of_the_session() {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let (session, mut peer) = server(64, config, number(version));
        peer.send(SYN, 3, b"").await;
        peer.send(FIN, 3, b"").await;
        let mut stream = session.accept_stream().await.unwrap();
        idle().await;
        let shutdown = tokio::spawn(async move {
            stream.write_all(&[1; 100]).await.unwrap();
            stream.shutdown().await
        });
        idle().await;
        assert!(!shutdown.is_finished(), "the peer reads nothing");
        assert!(matches!(session.closed().await, Error::Timeout));
        let result = tokio::time::timeout(Duration::from_secs(1), shutdown).await;
        let error = result.expect("shutdown ends").unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    }
}
