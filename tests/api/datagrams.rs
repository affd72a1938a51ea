//! Unreliable datagrams beside the stream, read in the same task or another one.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::time::Duration;

use crate::common::{
    self, ACK, PUSH, Pair, assert_same, bytes, cause, is_pending, on_both_runtimes, one_thread,
    pair, read, segment, silent_peer, turns, until,
};
use kcpx::{
    AutoRedundancy, Cipher, Config, ConnectionError, Datagrams, FecConfig, KcpStream, Key,
    Redundancy,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_util::codec::{Framed, LinesCodec};

/// Repeats `datagram`, which may be lost, until `arrived` holds.
async fn send_until(datagrams: &Datagrams, datagram: &[u8], arrived: impl Fn() -> bool) {
    while !arrived() {
        datagrams.send(datagram).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn datagrams_need_no_fec_between_peers_of_this_crate() {
    let key = Key::derive("a passphrase", Key::KCPTUN_SALT);
    let gcm = Cipher::from_name("aes-128-gcm", &key).unwrap();
    for (cipher, largest) in [(Cipher::null(), 1_388), (gcm, 1_360)] {
        on_both_runtimes(|| async {
            let config = Config::new().cipher(cipher.clone());
            let Pair { client, server, listener: _listener } = pair(config).await;
            let (client, server) = (client.datagrams(), (server.datagrams(), server));
            assert_eq!(client.max_size(), Some(largest));
            for size in [0, 1, 500, largest] {
                client.send(&bytes(3, size)).unwrap();
                assert_same(&server.0.recv().await.unwrap(), &bytes(3, size));
                server.0.send(&bytes(4, size)).unwrap();
                assert_same(&client.recv().await.unwrap(), &bytes(4, size));
            }
        });
    }
}

#[test]
fn datagrams_sent_before_the_peer_has_shown_that_it_takes_them_arrive() {
    on_both_runtimes(|| async {
        let listener = common::listener(Config::new()).await;
        let client = KcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let to_server = client.datagrams();
        (0..10).for_each(|i| to_server.send(&[i]).unwrap());
        let (server, _) = listener.accept().await.unwrap();
        let from_client = server.datagrams();
        for i in 0..10 {
            assert_eq!(from_client.recv().await.unwrap()[..], [i]);
        }
    });
}

#[test]
fn datagrams_and_reads_share_a_select() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(Config::new()).await;
        let (to_server, from_client) = (client.datagrams(), server.datagrams());
        let (mut stream, mut seen) = (Vec::new(), BTreeSet::new());
        let sends = async {
            for i in 0..100_u8 {
                to_server.send(&[i]).unwrap();
                client.write_all(&[i]).await.unwrap();
                turns(3).await;
            }
            client.shutdown().await.unwrap();
        };
        let receives = async {
            let mut buffer = [0; 16];
            let mut ended = false;
            while !ended || seen.is_empty() {
                tokio::select! {
                    count = server.read(&mut buffer) => {
                        let count = count.unwrap();
                        stream.extend_from_slice(&buffer[..count]);
                        ended = count == 0;
                    }
                    datagram = from_client.recv() => assert!(seen.insert(datagram.unwrap()[0])),
                }
            }
        };
        tokio::join!(sends, receives);
        assert_eq!(stream, (0..100).collect::<Vec<u8>>());
    });
}

#[test]
fn datagrams_are_received_in_one_task_and_the_halves_are_used_in_others() {
    on_both_runtimes(|| async {
        let Pair { client, server, listener: _listener } = pair(Config::new()).await;
        let (to_client, from_client) = (server.datagrams(), server.datagrams());
        let echo = tokio::spawn(async move {
            while let Ok(datagram) = from_client.recv().await {
                to_client.send(&datagram).unwrap();
            }
        });
        let (mut reader, mut writer) = server.into_split();
        let copy = tokio::spawn(async move {
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
            drop((reader, writer));
        });
        let datagrams = client.datagrams();
        let (mut reader, mut writer) = client.into_split();
        // Both halves have the datagram handle.
        let arrived = || reader.stats().out_of_band.received > 0;
        send_until(&writer.datagrams(), b"beside", arrived).await;
        assert_eq!(reader.datagrams().recv().await.unwrap(), "beside");
        drop(datagrams);
        writer.write_all(&bytes(1, 50_000)).await.unwrap();
        assert_same(&read(&mut reader, 50_000).await, &bytes(1, 50_000));
        writer.shutdown().await.unwrap();
        assert_eq!(reader.read(&mut [0]).await.unwrap(), 0);
        copy.await.unwrap();
        // The task ends with the server's stream.
        echo.await.unwrap();
    });
}

#[test]
fn datagrams_are_received_beside_lines() {
    on_both_runtimes(|| async {
        let Pair { mut client, server, listener: _listener } = pair(Config::new()).await;
        let (to_server, from_client) = (client.datagrams(), server.datagrams());
        let mut lines = BufReader::new(server).lines();
        client.write_all(b"one\ntwo\n").await.unwrap();
        let (mut text, mut datagrams) = (Vec::new(), 0);
        let mut again = tokio::time::interval(Duration::from_millis(20));
        while text.len() < 2 || datagrams == 0 {
            tokio::select! {
                line = lines.next_line() => text.push(line.unwrap().unwrap()),
                datagram = from_client.recv() => {
                    assert_eq!(datagram.unwrap(), "beside");
                    datagrams += 1;
                }
                _ = again.tick() => to_server.send(b"beside").unwrap(),
            }
        }
        assert_eq!(text, ["one", "two"]);
    });
}

#[test]
fn datagrams_are_received_beside_a_framed_stream() {
    on_both_runtimes(|| async {
        let Pair { mut client, server, listener: _listener } = pair(Config::new()).await;
        let (to_server, from_client) = (client.datagrams(), server.datagrams());
        let mut framed = Framed::new(server, LinesCodec::new());
        client.write_all(b"one\ntwo\n").await.unwrap();
        let (mut text, mut datagrams) = (Vec::new(), 0);
        let mut again = tokio::time::interval(Duration::from_millis(20));
        while text.len() < 2 || datagrams == 0 {
            tokio::select! {
                line = framed.next() => text.push(line.unwrap().unwrap()),
                datagram = from_client.recv() => {
                    assert_eq!(datagram.unwrap(), "beside");
                    datagrams += 1;
                }
                _ = again.tick() => to_server.send(b"beside").unwrap(),
            }
        }
        assert_eq!(text, ["one", "two"]);
    });
}

#[test]
fn each_datagram_goes_to_one_of_several_receivers() {
    const COUNT: u32 = 2_000;
    on_both_runtimes(|| async {
        let Pair { client, server, listener: _listener } = pair(Config::new()).await;
        let mut receivers = JoinSet::new();
        for i in 0..8 {
            let mut datagrams = server.datagrams();
            receivers.spawn(async move {
                let mut got = Vec::new();
                loop {
                    let next = match i % 2 {
                        0 => datagrams.recv().await,
                        _ => poll_fn(|cx| datagrams.poll_recv(cx)).await,
                    };
                    let Ok(datagram) = next else { return got };
                    got.push(u32::from_le_bytes(datagram[..].try_into().unwrap()));
                }
            });
        }
        // A receiver that is dropped while it waits loses no wake.
        let quitter = server.datagrams();
        assert!(is_pending(quitter.recv()).await);
        let datagrams = client.datagrams();
        for i in 0..COUNT {
            datagrams.send(&i.to_le_bytes()).unwrap();
            if i % 50 == 0 {
                turns(1).await;
                assert!(is_pending(client.datagrams().recv()).await);
            }
        }
        until(|| client.stats().out_of_band.sent + client.stats().out_of_band.dropped >= 2_000)
            .await;
        client.abort();
        let got = receivers.join_all().await.concat();
        let stats = server.stats();
        assert_eq!(got.len() as u64, stats.out_of_band.received - stats.out_of_band.dropped);
        assert!(!got.is_empty());
        let different: BTreeSet<_> = got.iter().collect();
        assert_eq!(different.len(), got.len(), "none goes to two receivers");
    });
}

#[test]
fn dropped_stream_ends_its_receivers() {
    on_both_runtimes(|| async {
        let Pair { client, server: _server, listener: _listener } = pair(Config::new()).await;
        let (datagrams, mut polled) = (client.datagrams(), client.datagrams());
        let waiting = tokio::spawn(async move {
            let other = datagrams.clone();
            let ends = tokio::join!(datagrams.recv(), poll_fn(|cx| polled.poll_recv(cx)));
            (ends.0.unwrap_err(), ends.1.unwrap_err(), other)
        });
        turns(10).await;
        drop(client);
        let (recv, polled, datagrams) = waiting.await.unwrap();
        for error in [recv, polled, datagrams.send(b"x").unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
        }
    });
}

#[test]
fn end_of_the_connection_ends_receivers_behind_what_has_arrived() {
    on_both_runtimes(|| async {
        let Pair { client, server, listener: _listener } = pair(Config::new()).await;
        let datagrams = server.datagrams();
        send_until(&client.datagrams(), b"last", || server.stats().out_of_band.received > 0).await;
        client.abort();
        until(|| server.error().is_some()).await;
        assert_eq!(datagrams.recv().await.unwrap(), "last");
        let end = loop {
            // `send_until` may have delivered more than one.
            match datagrams.recv().await {
                Ok(datagram) => assert_eq!(datagram, "last"),
                end => break end,
            }
        };
        assert_eq!(cause(end), ConnectionError::Reset);
        assert_eq!(cause(datagrams.send(b"x")), ConnectionError::Reset);
    });
}

/// Rule: W-145.
#[test]
fn datagrams_to_another_implementation_need_fec() {
    one_thread().block_on(common::guarded(async {
        let wire = silent_peer().await;
        let config = Config::new().early_data(true);
        let mut client = KcpStream::connect_with(wire.local_addr().unwrap(), config).await.unwrap();
        let datagrams = client.datagrams();
        assert_eq!(datagrams.max_size(), Some(1_388), "not known yet");
        datagrams.send(b"waits").unwrap();
        client.write_all(b"!").await.unwrap();
        // An ACK without the CONTROL capability, as kcp-go sends it.
        let mut buffer = [0; 2_000];
        let (len, from) = wire.recv_from(&mut buffer).await.unwrap();
        assert_eq!((len, buffer[4]), (25, PUSH));
        let mut ack = segment(client.conv(), ACK, 0, 1, b"");
        ack[8..12].copy_from_slice(&buffer[8..12]);
        wire.send_to(&ack, from).await.unwrap();
        until(|| datagrams.max_size().is_none()).await;
        let error = datagrams.send(b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = "the peer takes no datagrams without FEC: set Redundancy::Fec, or try again in a \
                    minute if it has not answered yet";
        assert_eq!(error.to_string(), text);
        assert_eq!(client.stats().out_of_band.dropped, 1, "what waited");
    }));
}

#[test]
fn datagrams_without_close_notify_need_fec() {
    on_both_runtimes(|| async {
        let Pair { client, server: _server, listener: _listener } =
            pair(Config::new().close_notify(false)).await;
        assert_eq!(client.datagrams().max_size(), None);
        assert_eq!(client.datagrams().send(b"x").unwrap_err().kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn automatic_redundancy_keeps_datagrams_with_a_stock_layout_and_without() {
    let auto = AutoRedundancy::new().stock(FecConfig::new(10, 3).unwrap());
    on_both_runtimes(|| async {
        for config in [Config::new().redundancy(Redundancy::Auto(auto)), Config::interactive()] {
            let Pair { client, server, listener: _listener } = pair(config).await;
            client.datagrams().send(b"beside").unwrap();
            assert_eq!(server.datagrams().recv().await.unwrap(), "beside");
        }
    });
}
