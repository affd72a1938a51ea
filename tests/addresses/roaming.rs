//! Roaming with the feature `netlink`: a client loses the address that its datagrams leave from.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use kcpx::{Algorithm, Cipher, Config, KcpListener, KcpStream, KeepaliveInterval, Migration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use crate::common::{read, until};
use crate::hosts::{Hosts, add, ip};

/// Waits until this side sends nothing: then only a change makes it send.
async fn quiet(stream: &KcpStream) {
    let sent = || stream.endpoint().stats().sent.datagrams;
    let mut before = None;
    while before.replace(sent()) != Some(sent()) {
        sleep(Duration::from_millis(300)).await;
    }
}

#[test]
fn idle_connection_migrates_when_the_client_loses_its_address() {
    let Some(hosts) = Hosts::new() else { return };
    // The kernel prefers the route to the smaller network.
    for (addr, further, prefix) in
        [("10.7.0.2:4050", "10.7.0.8/25", 25), ("[fd07::2]:4051", "fd07::8/64", 64)]
    {
        let addr: SocketAddr = addr.parse().unwrap();
        let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
        let config = Config::new().cipher(cipher).migration(Migration::Authenticated);
        let config = config.keepalive(KeepaliveInterval::Never);
        let of_client = config.clone();
        let server = move |ready: Sender<()>| async move {
            let listener = KcpListener::bind_with(("::", addr.port()), config).await?;
            ready.send(()).unwrap();
            let (mut stream, before) = listener.accept().await?;
            let hello = read(&mut stream, 5).await;
            stream.write_all(&hello).await?;
            until(|| listener.stats().connections.migrations == 1).await;
            assert_ne!(stream.peer_addr()?.ip(), before.ip());
            stream.shutdown().await
        };
        let client = move || async move {
            ip(&add(further))?;
            let mut stream = KcpStream::connect_with(addr, of_client).await?;
            stream.write_all(b"hello").await?;
            assert_eq!(read(&mut stream, 5).await, b"hello");
            quiet(&stream).await;
            let lost = stream.local_addr()?.ip();
            ip(&format!("addr del {lost}/{prefix} dev end"))?;
            stream.read_to_end(&mut Vec::new()).await?;
            assert_ne!(stream.local_addr()?.ip(), lost);
            stream.shutdown().await
        };
        assert_eq!(hosts.run(server, client), Ok(()), "{addr}");
    }
}
