//! Client and server of this crate, in one process.

use std::net::SocketAddr;
use std::time::Duration;

use kcpx_tunnel::settings::{Mux, ServerSettings, SmuxVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::common::*;

/// Bytes of a large transfer.
const LARGE: usize = 100_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_carried_both_ways_with_every_framing() {
    let echo = echo().await;
    for version in [SmuxVersion::V1, SmuxVersion::V2] {
        for compression in [false, true] {
            let tunnel = tunnel(echo.addr, 0.0, |client, _| {
                (client.smux_version, client.compression) = (version, compression);
            })
            .await;
            within("echo", echoes(tunnel.addr, 1, 1_000_000)).await.unwrap();
            tunnel.client.metric_becomes("tunnel_current_connections", 0).await;
            assert_eq!(tunnel.client.metric("tunnel_sent_bytes"), 1_000_000);
            assert_eq!(tunnel.client.metric("tunnel_received_bytes"), 1_000_000);
            assert_eq!(tunnel.server.metric("tunnel_sessions"), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_arrive_exactly() {
    let echo = echo().await;
    for loss in [0.0, 0.1] {
        let tunnel = tunnel(echo.addr, loss, |_, _| {}).await;
        within("echo", echoes(tunnel.addr, 2, LARGE)).await.unwrap();
        let lost = tunnel.path.lost.load(std::sync::atomic::Ordering::Relaxed);
        println!("{LARGE} bytes each way, {lost} datagrams lost");
        assert_eq!(lost > 0, loss > 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_smux_are_carried_one_for_one() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |client, server| {
        (client.common.mux, server.common.mux) = (Mux::None, Mux::None);
    })
    .await;
    let mut users = JoinSet::new();
    for number in 0..20 {
        users.spawn(echoes(tunnel.addr, number, 100_000));
    }
    while let Some(user) = within("users", users.join_next()).await {
        user.unwrap().unwrap();
    }
    assert_eq!(tunnel.server.metric("tunnel_connections"), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn living_connections_without_smux_are_in_the_counters() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |client, server| {
        (client.common.mux, server.common.mux) = (Mux::None, Mux::None);
    })
    .await;
    let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
    user.write_all(b"first").await.unwrap();
    within("answer", user.read_exact(&mut [0; 5])).await.unwrap();
    assert!(tunnel.client.metric("kcp_sent_segments") > 0);
    assert!(tunnel.server.metric("kcp_received_segments") > 0);
    assert_eq!(tunnel.server.metric("tunnel_current_connections"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_connections_share_their_sessions() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |client, _| client.sessions = 4).await;
    let mut users = JoinSet::new();
    for number in 0..1_000 {
        users.spawn(echoes(tunnel.addr, number, 10_000));
    }
    while let Some(user) = within("users", users.join_next()).await {
        user.unwrap().unwrap();
    }
    assert_eq!(tunnel.server.metric("tunnel_sessions"), 4);
    assert_eq!(tunnel.server.metric("tunnel_connections"), 1_000);
    assert_eq!(tunnel.server.metric("tunnel_reset_connections"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closed_user_reads_the_whole_answer() {
    // Answers with 500,000 bytes after the end of the request, and closes.
    let target = target(|mut stream| async move {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        stream.write_all(&sample(u64::from(request[0]), 500_000)).await.unwrap();
    })
    .await;
    let tunnel = tunnel(target.addr, 0.0, |_, _| {}).await;
    for number in 0..10 {
        let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
        user.write_all(&[number]).await.unwrap();
        user.shutdown().await.unwrap();
        let mut answer = Vec::new();
        within("answer", user.read_to_end(&mut answer)).await.unwrap();
        assert!(answer == sample(number.into(), 500_000), "{} bytes", answer.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_after_a_half_close_is_not_delayed_between_two_of_this_program() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |_, _| {}).await;
    // Towards kcptun FIN is delayed by a second, so each connection would take longer.
    within("end without delay", async {
        loop {
            let start = std::time::Instant::now();
            echoes(tunnel.addr, 1, 100).await.unwrap();
            if start.elapsed() < Duration::from_secs(1) {
                break;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_behind_the_targets_is_not_delayed_between_two_of_this_program() {
    let (end, mut ends) = tokio::sync::mpsc::unbounded_channel();
    // The target ends first, then reports when the user ended.
    let target = target(move |mut stream| {
        let end = end.clone();
        async move {
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
            end.send(std::time::Instant::now()).unwrap();
        }
    })
    .await;
    let tunnel = tunnel(target.addr, 0.0, |_, _| {}).await;
    // Towards kcptun FIN is delayed by a second, so each end would take longer.
    within("end without delay", async {
        loop {
            let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
            user.read_to_end(&mut Vec::new()).await.unwrap();
            let start = std::time::Instant::now();
            drop(user);
            let end: std::time::Instant = ends.recv().await.unwrap();
            if end.duration_since(start) < Duration::from_secs(1) {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn refused_target_is_an_end_without_bytes() {
    let refusing = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let tunnel = tunnel(refusing, 0.0, |_, _| {}).await;
    let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
    let mut nothing = Vec::new();
    within("end", user.read_to_end(&mut nothing)).await.unwrap();
    assert_eq!(nothing, b"");
    drop(user);
    assert_eq!(tunnel.server.metric("tunnel_rejected_connections"), 1);
    tunnel.client.metric_becomes("tunnel_current_connections", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_that_resets_a_stalled_upload_is_noticed() {
    // Never reads.
    let target = target(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    for mux in [Mux::Smux, Mux::None] {
        let tunnel = tunnel(target.addr, 0.0, |client, server| {
            (client.common.mux, server.common.mux) = (mux, mux);
        })
        .await;
        let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
        let block = vec![0; 1 << 16];
        let stalled = tokio::time::timeout(Duration::from_millis(500), async {
            loop {
                user.write_all(&block).await.unwrap();
            }
        });
        stalled.await.unwrap_err();
        assert!(tunnel.client.metric("tunnel_sent_bytes") > 0);
        user.set_zero_linger().unwrap();
        drop(user);
        tunnel.client.metric_becomes("tunnel_current_connections", 0).await;
    }
}

/// Receives the end of the user, and never ends itself.
async fn receive_the_end(mut stream: TcpStream) {
    drop(stream.read_to_end(&mut Vec::new()).await);
    std::future::pending::<()>().await;
}

/// A user sends a request and its end. It is reset, since the rest of the target's bytes is unknown.
async fn half_closed_user_is_reset(tunnel: SocketAddr) -> TcpStream {
    let mut user = TcpStream::connect(tunnel).await.unwrap();
    user.write_all(b"request").await.unwrap();
    user.shutdown().await.unwrap();
    let error = within("reset", user.read_to_end(&mut Vec::new())).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    user
}

#[tokio::test]
async fn half_close_timeout_ends_what_the_target_keeps_open() {
    let target = target(receive_the_end).await;
    let tunnel = tunnel(target.addr, 0.0, |_, server| {
        server.common.half_close_timeout = Duration::from_millis(200);
    })
    .await;
    let _user = half_closed_user_is_reset(tunnel.addr).await;
    tunnel.server.metric_becomes("tunnel_current_connections", 0).await;
}

#[tokio::test]
async fn half_close_timeout_of_both_sides_resets_the_user_too() {
    let target = target(receive_the_end).await;
    let tunnel = tunnel(target.addr, 0.0, |client, server| {
        // The client's timeout expires before the server's FIN.
        client.common.half_close_timeout = Duration::from_millis(200);
        server.common.half_close_timeout = Duration::from_secs(2);
    })
    .await;
    let _user = half_closed_user_is_reset(tunnel.addr).await;
    tunnel.server.metric_becomes("tunnel_current_connections", 0).await;
    assert_eq!(tunnel.client.metric("tunnel_reset_connections"), 1);
    assert_eq!(tunnel.server.metric("tunnel_reset_connections"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_is_used_again() {
    let echo = echo().await;
    let mut settings = server_settings(local(echo.addr), common());
    let (server, addr) = start_server(settings.clone(), Duration::ZERO).await;
    settings.listen.ports = addr.port()..=addr.port();
    let (client, user) = start_client(client_settings(addr, common()), Duration::ZERO).await;
    let user = user.unwrap();
    within("first answer", answers(user, 1, 1_000)).await.unwrap();
    server.shutdown().await;
    let _server = restart_server(settings, Duration::ZERO).await;
    let time = time_until_answered(user).await;
    println!("recovery after an orderly restart: {time:.2?}");
    assert_eq!(client.metric("tunnel_sessions"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_server_rejects_new_sessions_and_the_next_one_takes_them() {
    let echo = echo().await;
    let mut settings = server_settings(local(echo.addr), common());
    let (server, addr) = start_server(settings.clone(), LIMIT).await;
    settings.listen.ports = addr.port()..=addr.port();
    let (_first, user) = start_client(client_settings(addr, common()), Duration::ZERO).await;
    let mut old = TcpStream::connect(user.unwrap()).await.unwrap();
    old.write_all(b"first").await.unwrap();
    within("first answer", old.read_exact(&mut [0; 5])).await.unwrap();
    server.controller.as_ref().unwrap().shutdown();
    // Until the server notices its end, it still accepts sessions.
    let (second, user) = within("a refused session", async {
        loop {
            let (client, user) =
                start_client(client_settings(addr, common()), Duration::ZERO).await;
            let attempt = tokio::spawn(answers(user.unwrap(), 1, 1_000));
            while client.metric("tunnel_failed_dials") + client.metric("tunnel_sessions") == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            attempt.abort();
            if client.metric("tunnel_sessions") == 0 {
                break (client, user.unwrap());
            }
        }
    })
    .await;
    old.write_all(b"again").await.unwrap();
    within("second answer", old.read_exact(&mut [0; 5])).await.unwrap();
    drop(old);
    server.shutdown().await;
    let _server = restart_server(settings, Duration::ZERO).await;
    let time = time_until_answered(user).await;
    println!("served by the next server after {time:.2?}");
    assert_eq!(second.metric("tunnel_sessions"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_is_replaced_and_its_connections_are_reset() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |_, _| {}).await;
    let mut old = TcpStream::connect(tunnel.addr).await.unwrap();
    old.write_all(b"first").await.unwrap();
    within("first answer", old.read_exact(&mut [0; 5])).await.unwrap();
    let settings = server_settings(local(echo.addr), common());
    let (_server, addr) = start_server(settings, Duration::ZERO).await;
    *tunnel.path.server.lock().unwrap() = addr;
    let time = time_until_answered(tunnel.addr).await;
    println!("recovery after a server was killed: {time:.2?}");
    let error = within("reset", old.read(&mut [0; 1])).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(tunnel.client.metric("tunnel_failed_sessions"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_sessions_are_replaced_and_their_connections_last() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |client, _| {
        client.auto_expire = Some(Duration::from_millis(300));
        client.sessions = 2;
    })
    .await;
    let mut old = TcpStream::connect(tunnel.addr).await.unwrap();
    old.write_all(b"first").await.unwrap();
    within("first answer", old.read_exact(&mut [0; 5])).await.unwrap();
    // Connections that begin before and after each session expires.
    let mut number = 0;
    within("sessions", async {
        while tunnel.client.metric("tunnel_sessions") < 8 {
            let mut users = JoinSet::new();
            for _ in 0..4 {
                number += 1;
                users.spawn(echoes(tunnel.addr, number, 50_000));
            }
            while let Some(user) = users.join_next().await {
                user.unwrap().unwrap();
            }
        }
    })
    .await;
    println!("{number} connections, {} sessions", tunnel.client.metric("tunnel_sessions"));
    old.write_all(b"again").await.unwrap();
    within("second answer", old.read_exact(&mut [0; 5])).await.unwrap();
    assert_eq!(tunnel.client.metric("tunnel_reset_connections"), 0);
    // Sessions without connections are closed: two sessions and the one of `old` remain.
    within("closing", async {
        while tunnel.client.metric("tunnel_current_sessions") > 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scavenge_ttl_ends_what_an_expired_session_still_carries() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |client, _| {
        client.auto_expire = Some(Duration::from_millis(1));
        client.scavenge_ttl = Some(Duration::from_millis(1));
    })
    .await;
    let mut old = TcpStream::connect(tunnel.addr).await.unwrap();
    old.write_all(b"first").await.unwrap();
    within("first answer", old.read_exact(&mut [0; 5])).await.unwrap();
    // An expired session is replaced when the next connection arrives.
    within("another session", async {
        while tunnel.client.metric("tunnel_sessions") == 1 {
            echoes(tunnel.addr, 1, 1_000).await.unwrap();
        }
    })
    .await;
    let error = within("reset", old.read(&mut [0; 1])).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_are_carried_and_removed() {
    use kcpx_tunnel::settings::LocalAddress;
    use tokio::net::{UnixListener, UnixStream};

    let folder = tempfile::tempdir().unwrap();
    let (near, far) = (folder.path().join("near.sock"), folder.path().join("far.sock"));
    let target = UnixListener::bind(&far).unwrap();
    let echo = tokio::spawn(async move {
        let (mut stream, _) = target.accept().await.unwrap();
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    });
    let (server, addr) =
        start_server(server_settings(LocalAddress::Unix(far), common()), Duration::ZERO).await;
    let mut settings = client_settings(addr, common());
    settings.listen = LocalAddress::Unix(near.clone());
    let (client, none) = start_client(settings.clone(), Duration::ZERO).await;
    assert_eq!(none, None);
    let mut user = UnixStream::connect(&near).await.unwrap();
    let sent = sample(1, 300_000);
    let (mut reader, mut writer) = user.split();
    let sending = async {
        writer.write_all(&sent).await?;
        writer.shutdown().await
    };
    let mut back = Vec::new();
    within("echo", async { tokio::try_join!(sending, reader.read_to_end(&mut back)) })
        .await
        .unwrap();
    assert!(back == sent);
    within("target", echo).await.unwrap();
    client.shutdown().await;
    assert!(!near.exists(), "the file of a socket that is closed");
    // The socket file of a killed process does not block a bind.
    drop(std::os::unix::net::UnixListener::bind(&near).unwrap());
    assert!(near.exists());
    drop(start_client(settings, Duration::ZERO).await);
    drop(server);
}

/// Starts servers on consecutive ports: one for each element that `settings` returns for the first
/// port.
async fn start_on_ports(
    settings: impl Fn(u16) -> Vec<ServerSettings>,
) -> (Vec<Running<ServerSettings>>, SocketAddr) {
    within("ports", async {
        'ports: loop {
            // Any of them may be taken.
            let first = fastrand::u16(20_000..30_000);
            let mut servers = Vec::new();
            for settings in settings(first) {
                let Ok((server, _)) = try_start_server(settings, Duration::ZERO).await else {
                    continue 'ports;
                };
                servers.push(server);
            }
            break (servers, SocketAddr::from(([127, 0, 0, 1], first)));
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_spread_over_a_range_of_ports() {
    let echo = echo().await;
    let (servers, first) = start_on_ports(|first| {
        let one = |port| {
            let mut settings = server_settings(local(echo.addr), common());
            settings.listen.ports = port..=port;
            settings
        };
        (first..first + 4).map(one).collect()
    })
    .await;
    let mut settings = client_settings(first, common());
    settings.sessions = 16;
    settings.remote.ports = first.port()..=first.port() + 3;
    let (client, addr) = start_client(settings, Duration::ZERO).await;
    for number in 0..16 {
        within("echo", echoes(addr.unwrap(), number, 1_000)).await.unwrap();
    }
    assert_eq!(client.metric("tunnel_sessions"), 16);
    let sessions: Vec<_> = servers.iter().map(|one| one.metric("tunnel_sessions")).collect();
    println!("sessions of each port: {sessions:?}");
    assert_eq!(sessions.iter().sum::<u64>(), 16);
    // All 16 on one port: once in 10^9 runs.
    assert!(sessions.iter().filter(|&&sessions| sessions > 0).count() > 1, "{sessions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_listens_on_each_port_of_its_range() {
    let echo = echo().await;
    let (servers, first) = start_on_ports(|first| {
        let mut settings = server_settings(local(echo.addr), common());
        settings.listen.ports = first..=first + 3;
        vec![settings]
    })
    .await;
    for port in first.port()..=first.port() + 3 {
        let settings = client_settings(SocketAddr::new(first.ip(), port), common());
        let (_client, addr) = start_client(settings, Duration::ZERO).await;
        within("echo", echoes(addr.unwrap(), 1, 1_000)).await.unwrap();
    }
    assert_eq!(servers[0].metric("tunnel_sessions"), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_sessions_of_a_client_go_to_the_server_that_was_read_again() {
    let echo = echo().await;
    let settings = server_settings(local(echo.addr), common());
    let (first, addr) = start_server(settings.clone(), Duration::ZERO).await;
    let (second, other) = start_server(settings, Duration::ZERO).await;
    let mut settings = client_settings(addr, common());
    settings.auto_expire = Some(Duration::from_millis(1));
    let (client, user) = start_client(settings.clone(), Duration::ZERO).await;
    within("echo", echoes(user.unwrap(), 1, 1_000)).await.unwrap();
    assert_eq!(first.metric("tunnel_sessions"), 1);
    settings.remote.ports = other.port()..=other.port();
    client.controller.as_ref().unwrap().reload(settings);
    within("the other server", async {
        while second.metric("tunnel_sessions") == 0 {
            echoes(user.unwrap(), 1, 1_000).await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_waits_for_connections_and_resets_what_is_left() {
    for (side, finishes) in
        [("client", true), ("client", false), ("server", true), ("server", false)]
    {
        let echo = echo().await;
        let drain = if finishes { LIMIT } else { Duration::from_millis(100) };
        let settings = server_settings(local(echo.addr), common());
        let (server, addr) = start_server(settings, drain).await;
        let (client, user) = start_client(client_settings(addr, common()), drain).await;
        let user = user.unwrap();
        let mut old = TcpStream::connect(user).await.unwrap();
        old.write_all(b"first").await.unwrap();
        within("first answer", old.read_exact(&mut [0; 5])).await.unwrap();
        let (keep_server, keep_client, ending) = if side == "client" {
            (Some(server), None, tokio::spawn(client.shutdown()))
        } else {
            (None, Some(client), tokio::spawn(server.shutdown()))
        };
        if side == "client" {
            within("no new ones", async {
                while TcpStream::connect(user).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
        }
        if finishes {
            old.write_all(b"again").await.unwrap();
            within("second answer", old.read_exact(&mut [0; 5])).await.unwrap();
            old.shutdown().await.unwrap();
            assert_eq!(within("end", old.read(&mut [0; 1])).await.unwrap(), 0, "{side}");
        } else {
            let error = within("reset", old.read(&mut [0; 1])).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{side}");
        }
        within("shutdown", ending).await.unwrap();
        drop((keep_server, keep_client));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_differ_from_explicit_settings_are_rejected() {
    let echo = echo().await;
    for (compression, version) in [(Some(false), None), (None, Some(SmuxVersion::V1))] {
        let tunnel = tunnel(echo.addr, 0.0, |_, server| {
            (server.compression, server.smux_version) = (compression, version);
        })
        .await;
        let ended = within("reset", answers(tunnel.addr, 1, 1)).await;
        assert!(ended.is_err(), "{ended:?}");
        assert_eq!(tunnel.server.metric("tunnel_rejected_sessions"), 1);
        assert_eq!(echo.accepted.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_wait_for_a_server_that_starts() {
    let echo = echo().await;
    let nowhere = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let path = LossyPath::new(nowhere.local_addr().unwrap(), 0.0, seed()).await;
    let (client, user) = start_client(client_settings(path.addr, common()), Duration::ZERO).await;
    let waiting = tokio::spawn(echoes(user.unwrap(), 1, 1_000));
    within("a datagram", tokio::task::spawn_blocking(move || nowhere.recv(&mut [0; 2_000])))
        .await
        .unwrap()
        .unwrap();
    let settings = server_settings(local(echo.addr), common());
    let (_server, addr) = start_server(settings, Duration::ZERO).await;
    *path.server.lock().unwrap() = addr;
    within("echo", waiting).await.unwrap().unwrap();
    assert_eq!(client.metric("tunnel_sessions"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_server_are_reset() {
    let nowhere = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let settings = client_settings(nowhere.local_addr().unwrap(), common());
    let (client, user) = start_client(settings, Duration::ZERO).await;
    let mut users = JoinSet::new();
    for _ in 0..10 {
        users.spawn(answers(user.unwrap(), 1, 1_000));
    }
    while let Some(user) = within("reset", users.join_next()).await {
        assert_eq!(user.unwrap().unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(client.metric("tunnel_rejected_connections"), 10);
    assert!(client.metric("tunnel_failed_dials") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_reset_ends_the_stream_and_is_counted() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |_, _| {}).await;
    let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
    user.write_all(b"first").await.unwrap();
    within("first answer", user.read_exact(&mut [0; 5])).await.unwrap();
    user.set_zero_linger().unwrap();
    drop(user);
    tunnel.client.metric_becomes("tunnel_reset_connections", 1).await;
    tunnel.server.metric_becomes("tunnel_current_connections", 0).await;
    within("others", echoes(tunnel.addr, 1, 1_000)).await.unwrap();
}
