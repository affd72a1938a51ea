//! A client that changes its address in the middle of a connection.

use std::time::Duration;

use crate::common::{bytes, on_both_runtimes, until};
use kcpx::{Algorithm, Cipher, Config, ConfigError, Endpoint, KcpListener, Migration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn with_cipher(algorithm: Algorithm) -> Config {
    Config::new().cipher(Cipher::new(algorithm, &vec![7; algorithm.key_len()]).unwrap())
}

fn config(algorithm: Algorithm, migration: Migration) -> Config {
    with_cipher(algorithm).migration(migration)
}

#[test]
fn migration_keeps_the_connection() {
    on_both_runtimes(|| async {
        for config in [
            with_cipher(Algorithm::Aes128Gcm),
            config(Algorithm::Aes128Gcm, Migration::Authenticated),
            config(Algorithm::Aes128, Migration::AnyCipher),
        ] {
            let described = format!("{config:?}");
            let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await.unwrap();
            let endpoint = Endpoint::bind_with("127.0.0.1:0", config).await.unwrap();
            let mut client = endpoint.connect(listener.local_addr().unwrap()).await.unwrap();
            let data = bytes(1, 2 << 20);
            client.write_all(b"!").await.unwrap();
            let (server, first) = listener.accept().await.unwrap();
            let (mut reader, mut writer) = server.into_split();
            let echo = tokio::spawn(async move {
                tokio::io::copy_buf(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
                reader.peer_addr().unwrap()
            });
            client.established().await.unwrap();
            until(|| listener.stats().connections.unvalidated == 0).await;

            let (mut back, mut out) = client.into_split();
            let sent = data.clone();
            let migrating = endpoint.clone();
            let writing = tokio::spawn(async move {
                let (before, after) = sent.split_at(sent.len() / 2);
                out.write_all(before).await.unwrap();
                migrating.rebind("127.0.0.1:0").await.unwrap();
                out.write_all(after).await.unwrap();
                out.shutdown().await.unwrap();
            });
            let mut got = Vec::new();
            back.read_to_end(&mut got).await.unwrap();
            assert!(got[1..] == data, "{described}: other bytes than were sent");
            writing.await.unwrap();
            let last = echo.await.unwrap();
            assert_ne!(last, first);
            assert_eq!(last, endpoint.local_addr().unwrap());
            assert_eq!(listener.stats().connections.migrations, 1);
            assert_eq!(listener.stats().connections.passive_opens, 1);
        }
    });
}

#[test]
fn migration_off_ends_with_dead_peer() {
    on_both_runtimes(|| async {
        let config = config(Algorithm::Aes128Gcm, Migration::Off)
            .dead_peer_timeout(Some(Duration::from_secs(2)));
        let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await.unwrap();
        let endpoint = Endpoint::bind_with("127.0.0.1:0", config).await.unwrap();
        let mut client = endpoint.connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"!").await.unwrap();
        client.established().await.unwrap();
        endpoint.rebind("127.0.0.1:0").await.unwrap();
        client.write_all(b"lost").await.unwrap();
        until(|| client.error().is_some()).await;
        assert_eq!(listener.stats().connections.migrations, 0);
    });
}

#[test]
fn migration_requires_an_aead_cipher() {
    for (algorithm, migration, allowed) in [
        (Algorithm::Null, Migration::Authenticated, false),
        (Algorithm::Aes128, Migration::Authenticated, false),
        (Algorithm::Aes256Gcm, Migration::Authenticated, true),
        (Algorithm::Null, Migration::AnyCipher, false),
        (Algorithm::None, Migration::AnyCipher, false),
        (Algorithm::Salsa20, Migration::AnyCipher, true),
        (Algorithm::Null, Migration::Off, true),
    ] {
        let result = config(algorithm, migration).validate();
        assert_eq!(result.is_ok(), allowed, "{algorithm:?} {migration:?}");
        if let Err(error) = result {
            assert!(matches!(error, ConfigError::Requires { field: "migration", .. }), "{error}");
        }
    }
}
