//! A client whose address changes, as seen by the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kcpx::Algorithm;
use kcpx_tunnel::settings::Mux;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::paths::Nat;
use crate::common::*;

/// Changes of the client's address.
const CHANGES: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_survive_ten_changes_of_the_clients_address_with_an_aead_cipher() {
    let echo = echo().await;
    for mux in [Mux::Smux, Mux::None] {
        let mut common = common();
        (common.algorithm, common.mux) = (Algorithm::Aes128Gcm, mux);
        let settings = server_settings(local(echo.addr), common.clone());
        let (server, far) = start_server(settings, Duration::ZERO).await;
        let nat = Nat::new(far).await;
        let (client, addr) = start_client(client_settings(nat.addr, common), Duration::ZERO).await;
        let addr = addr.unwrap();
        let answered = Arc::new(AtomicU64::new(0));
        let count = answered.clone();
        // One connection for the whole time.
        let long = tokio::spawn(async move {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let (mut longest, mut answer) = (Duration::ZERO, [0; 64]);
            while count.load(Ordering::Relaxed) != u64::MAX {
                let began = Instant::now();
                stream.write_all(&[7; 64]).await.unwrap();
                stream.read_exact(&mut answer).await.unwrap();
                longest = longest.max(began.elapsed());
                // `u64::MAX` ends it.
                let add = |answered: u64| answered.checked_add(1);
                let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            longest
        });
        let answers_after = async |before: u64| {
            while answered.load(Ordering::Relaxed) <= before + 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("first answers", answers_after(0)).await;
        for change in 0..CHANGES {
            nat.rebind();
            let before = answered.load(Ordering::Relaxed);
            within("new connection", answers(addr, change, 1_000)).await.unwrap();
            within("answers", answers_after(before)).await;
        }
        answered.store(u64::MAX, Ordering::Relaxed);
        let longest = within("long connection", long).await.unwrap();
        println!("{mux:?}: longest gap {longest:.2?}");
        assert!(server.metric("kcp_migrations") >= CHANGES);
        assert_eq!(server.metric("tunnel_connections"), 1 + CHANGES);
        for side in
            [server.metric("tunnel_reset_connections"), client.metric("tunnel_reset_connections")]
        {
            assert_eq!(side, 0);
        }
        let sessions = if mux == Mux::Smux { 1 } else { 0 };
        assert_eq!(server.metric("tunnel_sessions"), sessions);
    }
}
