//! Ciphers, FEC and out-of-band datagrams through the public API, on real sockets.

use std::io::ErrorKind;
use std::time::Duration;

use crate::common::{
    Pair, assert_same, bytes, cause, guarded, listener, on_both_runtimes, pair, read, until,
};
use kcpx::crypto::{Key, OpenError, Overhead, PacketCipher};
use kcpx::{
    Algorithm, Cipher, Config, ConnectionError, FecConfig, KcpStream, KeepaliveInterval, Redundancy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

fn fec(data: usize, parity: usize) -> FecConfig {
    FecConfig::new(data, parity).unwrap()
}

/// Both ends share a process and a key: neither may take the other's packets for its own.
#[test]
fn every_cipher_carries_a_connection() {
    for algorithm in Algorithm::ALL {
        for fec in [None, Some(fec(3, 1))] {
            on_both_runtimes(|| async {
                let key = Key::derive("a passphrase", Key::KCPTUN_SALT);
                let config = Config::new()
                    .cipher(Cipher::from_name(algorithm.name(), &key).unwrap())
                    .redundancy(fec.map_or(Redundancy::Off, Redundancy::Fec));
                let Pair { mut client, mut server, .. } = pair(config).await;
                let data = bytes(1, 100_000);
                let (there, back) = (data.clone(), data.clone());
                let echo = tokio::spawn(async move {
                    let got = read(&mut server, 100_000).await;
                    server.write_all(&got).await.unwrap();
                    server.shutdown().await.unwrap();
                    server
                });
                client.write_all(&there).await.unwrap();
                assert_same(&read(&mut client, 100_000).await, &back);
                let server = echo.await.unwrap();
                for stats in [client.endpoint().stats(), server.endpoint().stats()] {
                    assert_eq!((stats.dropped.checksum, stats.dropped.reflected), (0, 0));
                    let sealed =
                        if *algorithm == Algorithm::Null { 0 } else { stats.sent.datagrams };
                    assert_eq!(stats.sealed_datagrams, sealed, "{algorithm}");
                }
            });
        }
    }
}

/// Shows how to implement `PacketCipher`; not a secure cipher.
#[derive(Debug)]
struct Stamp;

impl PacketCipher for Stamp {
    fn overhead(&self) -> Overhead {
        Overhead { nonce: 8, header_len: 10, trailer_len: 1 }
    }

    fn seal(&self, packets: &mut [&mut [u8]]) {
        for packet in packets {
            packet[8..10].copy_from_slice(b"ok");
            *packet.last_mut().unwrap() = packet[0];
        }
    }

    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError> {
        let genuine =
            datagram.len() > 11 && datagram[8..10] == *b"ok" && datagram.last() == datagram.first();
        genuine.then_some(()).ok_or(OpenError)
    }
}

#[test]
fn custom_cipher_carries_a_connection() {
    on_both_runtimes(|| async {
        let config =
            Config::new().cipher(Cipher::custom(Stamp)).redundancy(Redundancy::Fec(fec(2, 1)));
        let Pair { mut client, mut server, listener } = pair(config).await;
        let unknown = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        unknown.send_to(&[0; 100], listener.local_addr().unwrap()).await.unwrap();
        until(|| listener.stats().dropped.checksum == 1).await;
        client.write_all(&bytes(2, 50_000)).await.unwrap();
        assert_same(&read(&mut server, 50_000).await, &bytes(2, 50_000));
    });
}

#[test]
fn invalid_codec_config_is_rejected_by_name() {
    let refused = |config: Config| config.validate().unwrap_err().to_string();
    assert_eq!(
        FecConfig::new(0, 3).unwrap_err().to_string(),
        "fec data shards must be between 1 and 255, got 0"
    );
    assert!(FecConfig::new(200, 57).is_err());
    assert!(FecConfig::new(200, 56).is_ok());
    let key = Key::derive("a passphrase", Key::KCPTUN_SALT);
    let gcm = Cipher::from_name("aes-128-gcm", &key).unwrap();
    assert_eq!(
        refused(Config::new().cipher(gcm).redundancy(Redundancy::Fec(fec(10, 3))).mtu(60)),
        "mtu (bytes) must be between 61 and 65507, got 60"
    );
    let config = Config::new().replay_window(1 << 21);
    assert_eq!(
        refused(config),
        "replay_window (datagrams) must be between 0 and 1048576, got 2097152"
    );
    let error = Cipher::from_name("aes-1024", &key).unwrap_err().to_string();
    assert!(error.contains("aes-128-gcm"), "{error}");
}

#[test]
fn datagrams_are_carried_out_of_band() {
    on_both_runtimes(|| async {
        let Pair { client, server, listener: _listener } =
            pair(Config::new().redundancy(Redundancy::Fec(fec(10, 3)))).await;
        let largest = client.datagrams().max_size().unwrap();
        for size in [0, 1, 500, largest] {
            client.datagrams().send(&bytes(3, size)).unwrap();
            assert_same(&server.datagrams().recv().await.unwrap(), &bytes(3, size));
            server.datagrams().send(&bytes(4, size)).unwrap();
            assert_same(&client.datagrams().recv().await.unwrap(), &bytes(4, size));
        }
        assert_eq!(server.datagrams().try_recv().unwrap_err().kind(), ErrorKind::WouldBlock);
        let error = client.datagrams().send(&vec![0; largest + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "the datagram has 1389 bytes, at most 1388 fit into the MTU");

        // Both halves have the datagram handle.
        let (reader, writer) = server.into_split();
        writer.datagrams().send(b"to the client").unwrap();
        assert_eq!(client.datagrams().recv().await.unwrap(), "to the client");
        client.datagrams().send(b"to the server").unwrap();
        assert_eq!(reader.datagrams().recv().await.unwrap(), "to the server");
    });
}

#[test]
fn set_fec_without_fec_is_rejected() {
    on_both_runtimes(|| async {
        let Pair { client, server: _server, listener: _listener } = pair(Config::new()).await;
        assert_eq!(client.set_fec(fec(3, 1)).unwrap_err().kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn connection_end_fails_datagram_calls() {
    on_both_runtimes(|| async {
        let config = Config::new()
            .redundancy(Redundancy::Fec(fec(10, 3)))
            .keepalive(KeepaliveInterval::Never)
            .idle_timeout(Some(Duration::from_secs(1)));
        let Pair { client, server, listener: _listener } = pair(config).await;
        server.datagrams().send(b"read me first").unwrap();
        until(|| client.stats().out_of_band.received == 1 && client.error().is_some()).await;
        assert_eq!(client.datagrams().recv().await.unwrap(), "read me first");
        // The end that times out second pings the first, and may get a reset for an answer.
        let error = client.error().unwrap();
        assert!(matches!(error, ConnectionError::IdleTimeout | ConnectionError::Reset), "{error}");
        assert_eq!(cause(client.datagrams().recv().await), error);
        assert_eq!(cause(client.datagrams().send(b"x")), error);
    });
}

/// Plays recorded datagrams of kcp-go into a listener and reads the stream.
#[test]
fn recorded_kcp_go_sessions_pass_through_a_listener() {
    #[derive(serde::Deserialize)]
    struct Datagram {
        from: String,
        #[serde(default)]
        lost: bool,
        wire: String,
    }
    #[derive(serde::Deserialize)]
    struct Session {
        cipher: String,
        key: String,
        bytes: usize,
        datagrams: Vec<Datagram>,
    }
    let unhex = |text: &str| -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");
    let mut played = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // Skips sessions with losses: their client retransmitted only segments that FEC had not recovered,
        // and this listener has no FEC peer to ask.
        if !name.starts_with("session-") || name.contains("loss") {
            continue;
        }
        let session: Session =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let cipher = if session.cipher.is_empty() { "null" } else { &session.cipher };
        let Ok(algorithm) = Algorithm::from_name(cipher) else { continue };
        let cipher = Cipher::new(algorithm, &unhex(&session.key)).unwrap();
        println!("{name}");
        on_both_runtimes(|| async {
            let listener = listener(Config::new().cipher(cipher.clone())).await;
            let wire = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            wire.connect(listener.local_addr().unwrap()).await.unwrap();
            let sent = session.datagrams.iter().filter(|d| d.from == "client" && !d.lost);
            for (count, datagram) in (1..).zip(sent) {
                wire.send(&unhex(&datagram.wire)).await.unwrap();
                if count % 16 == 0 {
                    // 16 datagrams fit into the socket buffer of any system.
                    until(|| listener.stats().received.datagrams >= count).await;
                }
            }
            let (mut stream, _): (KcpStream, _) = listener.accept().await.unwrap();
            let mut got = vec![0; session.bytes];
            guarded(stream.read_exact(&mut got)).await.unwrap();
            let pattern = |i: usize| (i * 31 + (i >> 8) * 7 + (i >> 16) * 3) as u8;
            assert_same(&got, &(0..session.bytes).map(pattern).collect::<Vec<u8>>());
            let stats = listener.stats();
            assert_eq!((stats.dropped.checksum, stats.dropped.reflected), (0, 0));
            assert_eq!(stats.dropped.replayed, 0);
        });
        played += 1;
    }
    assert!(played >= 9, "{played} sessions");
}
