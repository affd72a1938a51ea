//! Reading and writing, over loopback sockets.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::time::Duration;

use crate::common::{
    assert_same, bytes, cause, is_pending, listener, on_both_runtimes, open, pair, read,
    silent_peer, until,
};
use kcpx::{Config, ConnectionError, KcpListener, KcpStream, Mode, TimeoutCause};
use kcpx_skip::has_ipv6;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

#[test]
fn stream_is_send_sync_and_unpin() {
    fn check<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    check::<KcpStream>();
    check::<KcpListener>();
    check::<kcpx::Endpoint>();
    check::<kcpx::OwnedReadHalf>();
    check::<kcpx::OwnedWriteHalf>();
    check::<kcpx::Datagrams>();
}

#[test]
fn echo_returns_what_was_sent() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        pair.client.write_all(b"hello").await.unwrap();
        assert_eq!(read(&mut pair.server, 5).await, b"hello");
        pair.server.write_all(b"world!").await.unwrap();
        assert_eq!(read(&mut pair.client, 6).await, b"world!");
    });
}

#[test]
fn addresses_and_conv_agree_on_both_ends() {
    on_both_runtimes(|| async {
        let pair = pair(Config::new()).await;
        let (client, server) = (&pair.client, &pair.server);
        assert_eq!(client.conv(), server.conv());
        assert_eq!(client.peer_addr().unwrap(), pair.listener.local_addr().unwrap());
        assert_eq!(server.local_addr().unwrap(), pair.listener.local_addr().unwrap());
        assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
        let bound = client.endpoint().local_addr().unwrap();
        assert_eq!(bound.port(), client.local_addr().unwrap().port());
        assert!(client.error().is_none());
        assert!(format!("{client:?}").contains(&client.conv().to_string()));
    });
}

#[test]
fn large_transfers_run_in_both_directions_at_once() {
    on_both_runtimes(|| async {
        let pair = pair(Config::new()).await;
        let (up, down) = (bytes(1, 8 << 20), bytes(2, 8 << 20));
        let (mut client_reads, mut client_writes) = pair.client.into_split();
        let (mut server_reads, mut server_writes) = pair.server.into_split();
        let (sent_up, got_up, sent_down, got_down) = tokio::join!(
            client_writes.write_all(&up),
            read(&mut server_reads, up.len()),
            server_writes.write_all(&down),
            read(&mut client_reads, down.len()),
        );
        sent_up.unwrap();
        sent_down.unwrap();
        assert_same(&got_up, &up);
        assert_same(&got_down, &down);
        client_writes.shutdown().await.unwrap();
        let stats = client_writes.stats();
        assert_eq!(stats.sent.payload_bytes, up.len() as u64 + 1);
        assert_eq!(stats.received.payload_bytes, down.len() as u64);
        assert!(stats.retransmit_percent() <= 100.0);
        assert!(stats.path.srtt > Duration::ZERO);
    });
}

#[test]
fn empty_buffers_wait_for_data_and_take_none() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        assert_eq!(pair.server.try_read(&mut []).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(pair.client.write(&[]).await.unwrap(), 0);
        pair.client.write_all(b"x").await.unwrap();
        assert_eq!(pair.server.read(&mut []).await.unwrap(), 0);
        assert_eq!(pair.server.peek(&mut []).await.unwrap(), 0);
        assert_eq!(pair.server.try_read(&mut []).unwrap(), 0);
        assert_eq!(read(&mut pair.server, 1).await, b"x");
    });
}

#[test]
fn vectored_io_keeps_the_order() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        assert!(pair.client.is_write_vectored());
        let data = bytes(3, 3_000);
        let slices = [&data[..1], &[], &data[1..1_500], &data[1_500..]].map(IoSlice::new);
        let mut client = Pin::new(&mut pair.client);
        let count = poll_fn(|cx| client.as_mut().poll_write_vectored(cx, &slices)).await.unwrap();
        assert_eq!(count, data.len());
        assert_eq!(pair.client.try_write_vectored(&slices).unwrap(), data.len());

        let mut got = Vec::new();
        while got.len() < 2 * data.len() {
            pair.server.readable().await.unwrap();
            let (mut one, mut two) = ([0; 7], [0; 700]);
            let mut bufs =
                [IoSliceMut::new(&mut one), IoSliceMut::new(&mut []), IoSliceMut::new(&mut two)];
            match pair.server.try_read_vectored(&mut bufs) {
                Ok(count) => {
                    got.extend_from_slice(&one[..count.min(7)]);
                    got.extend_from_slice(&two[..count.saturating_sub(7)]);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert_same(&got, &[&data[..], &data[..]].concat());
    });
}

#[test]
fn read_chunk_returns_the_bytes_in_order() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        let data = bytes(4, 1 << 20);
        let receive = async {
            let mut got = Vec::new();
            // The rest of a partly read chunk is the next chunk.
            got.push(pair.server.read_u8().await.unwrap());
            while got.len() < data.len() {
                let chunk = pair.server.read_chunk().await.unwrap();
                assert!(!chunk.is_empty());
                got.extend_from_slice(&chunk);
            }
            got
        };
        let (sent, got) = tokio::join!(pair.client.write_all(&data), receive);
        sent.unwrap();
        assert_same(&got, &data);
    });
}

#[test]
fn peek_consumes_nothing() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        pair.client.write_all(b"abc").await.unwrap();
        let mut buf = [0; 8];
        let count = pair.server.peek(&mut buf).await.unwrap();
        assert_eq!(&buf[..count], &b"abc"[..count]);
        // A later `peek` shows newly received bytes too.
        pair.client.write_all(b"def").await.unwrap();
        while pair.server.peek(&mut buf).await.unwrap() < 6 {
            tokio::task::yield_now().await;
        }
        assert_eq!(&buf[..6], b"abcdef");
        assert_eq!(pair.server.peek(&mut buf[..2]).await.unwrap(), 2);
        assert_eq!(read(&mut pair.server, 6).await, b"abcdef");
    });
}

#[test]
fn try_read_and_try_write_do_not_wait() {
    on_both_runtimes(|| async {
        let pair = pair(Config::new()).await;
        let mut buf = [0; 1024];
        let error = pair.client.try_read(&mut buf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);

        // Without a reader, every buffer on the path fills up.
        let data = bytes(5, 4 << 20);
        let mut written = 0;
        let error = loop {
            match pair.client.try_write(&data[written..]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(written > 0);

        let (mut got, mut rest) = (Vec::new(), &data[written..]);
        while got.len() < data.len() {
            tokio::select! {
                ready = pair.server.readable() => {
                    ready.unwrap();
                    if let Ok(count) = pair.server.try_read(&mut buf) {
                        got.extend_from_slice(&buf[..count]);
                    }
                }
                ready = pair.client.writable(), if !rest.is_empty() => {
                    ready.unwrap();
                    if let Ok(count) = pair.client.try_write(rest) {
                        rest = &rest[count..];
                    }
                }
            }
        }
        assert_same(&got, &data);
    });
}

#[test]
fn lines_of_a_half_use_the_buffer_of_the_stream() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        let long = "x".repeat(100_000);
        let text = format!("one\n\n{long}\nlast\n");
        let receive = async {
            let mut lines = Vec::new();
            let mut reader = pair.server.split().0.lines();
            while lines.len() < 4 {
                lines.push(reader.next_line().await.unwrap().unwrap());
            }
            lines
        };
        let (sent, lines) = tokio::join!(pair.client.write_all(text.as_bytes()), receive);
        sent.unwrap();
        assert_eq!(lines, ["one", "", &long, "last"]);
    });
}

#[test]
fn established_resolves_with_the_first_answer() {
    on_both_runtimes(|| async {
        let listener = listener(Config::new()).await;
        let (addr, early) = (listener.local_addr().unwrap(), Config::new().early_data(true));
        let mut client = KcpStream::connect_with(addr, early).await.unwrap();
        assert!(is_pending(client.established()).await);
        client.write_all(b"!").await.unwrap();
        client.established().await.unwrap();
        client.established().await.unwrap();
    });
}

#[test]
fn closed_waits_beside_reads_and_outlives_the_stream() {
    on_both_runtimes(|| async {
        let pair = pair(Config::new()).await;
        let (mut client, mut server) = (pair.client, pair.server);
        let delivered = client.closed();
        let ends = [server.closed(), server.closed()].map(tokio::spawn);
        client.write_all(&bytes(1, 200_000)).await.unwrap();
        drop(client);
        let (closed, mut got) = (server.closed(), Vec::new());
        tokio::pin!(closed);
        loop {
            let mut buffer = [0; 1_000];
            tokio::select! {
                biased;
                count = server.read(&mut buffer) => match count.unwrap() {
                    0 => break,
                    count => got.extend_from_slice(&buffer[..count]),
                },
                cause = &mut closed => panic!("{cause} before the end of the peer's stream"),
            }
        }
        assert_same(&got, &bytes(1, 200_000));
        assert!(is_pending(server.closed()).await, "this side goes on");
        server.shutdown().await.unwrap();
        // Both streams have ended.
        let (_reader, writer) = server.into_split();
        assert_eq!(writer.closed().await, ConnectionError::Closed);
        assert_eq!(delivered.await, ConnectionError::Closed);
        for end in ends {
            assert_eq!(end.await.unwrap(), ConnectionError::Closed);
        }
    });
}

#[test]
fn connect_without_close_notify_sends_nothing_and_does_not_wait() {
    on_both_runtimes(|| async {
        let silent = silent_peer().await;
        let listener = listener(Config::new()).await;
        // As everything did before `connect` waited: no segment opens a connection without data.
        let config = Config::new().close_notify(false);
        for addr in [silent.local_addr().unwrap(), listener.local_addr().unwrap()] {
            let quiet = KcpStream::connect_with(addr, config.clone()).await.unwrap();
            // Another connection completes in the meantime, and this one still has sent nothing.
            drop(open(&listener, listener.local_addr().unwrap(), Config::new()).await);
            assert_eq!(quiet.stats().sent.datagrams, 0);
        }
        assert_eq!(listener.stats().connections.passive_opens, 2);
    });
}

#[test]
fn statistics_say_whether_the_peer_supports_control() {
    on_both_runtimes(|| async {
        let listener = listener(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        for supported in [true, false] {
            let config = Config::new().close_notify(supported);
            let mut client = KcpStream::connect_with(addr, config).await.unwrap();
            client.write_all(b"ping").await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            read(&mut server, 4).await;
            server.write_all(b"pong").await.unwrap();
            read(&mut client, 4).await;
            // Both sides have announced their support by the first acknowledgement.
            until(|| server.stats().path.in_flight_segments == 0).await;
            assert_eq!(server.stats().peer_supports_control, supported);
            assert_eq!(client.stats().peer_supports_control, supported);
        }
    });
}

#[test]
fn connect_fails_after_its_timeout() {
    on_both_runtimes(|| async {
        let silent = silent_peer().await;
        let config = Config::new().connect_timeout(Duration::from_millis(50));
        let addr = silent.local_addr().unwrap();
        let error = KcpStream::connect_with(addr, config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.starts_with("the peer did not answer within the connect timeout: "), "{text}");
        assert_eq!(cause::<()>(Err(error)), ConnectionError::ConnectTimeout(TimeoutCause::Nothing));
    });
}

#[test]
fn connect_takes_the_address_that_answers() {
    on_both_runtimes(|| async {
        let (silent, listener) = (silent_peer().await, listener(Config::new()).await);
        let good = listener.local_addr().unwrap();
        let stream = KcpStream::connect(&[silent.local_addr().unwrap(), good][..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
    });
}

#[test]
fn flush_does_not_wait_for_the_peer() {
    on_both_runtimes(|| async {
        let silent = silent_peer().await;
        let (addr, early) = (silent.local_addr().unwrap(), Config::new().early_data(true));
        let mut client = KcpStream::connect_with(addr, early).await.unwrap();
        client.write_all(b"anyone?").await.unwrap();
        assert!(!is_pending(client.flush()).await);
        let mut buf = [0; 64];
        let count = silent.recv(&mut buf).await.unwrap();
        assert_eq!(&buf[24..count], b"anyone?");
    });
}

#[test]
fn ipv6_carries_a_connection() {
    if !has_ipv6() {
        return;
    }
    on_both_runtimes(|| async {
        let listener = KcpListener::bind("[::1]:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (mut client, mut server) = open(&listener, addr, Config::new()).await;
        server.write_all(b"six").await.unwrap();
        assert_eq!(read(&mut client, 3).await, b"six");
    });
}

// ----- messages -----

fn messages() -> Config {
    Config::new().mode(Mode::Message)
}

#[test]
fn messages_keep_their_boundaries() {
    on_both_runtimes(|| async {
        let mut pair = pair(messages()).await;
        let mss = 1_400 - 24;
        let sizes = [0, 1, mss - 1, mss, mss + 1, 5 * mss, 0, 10 * mss + 7, 3];
        let sent: Vec<_> = (0..).zip(sizes).map(|(seed, size)| bytes(seed, size)).collect();
        // Empty messages are skipped.
        let expected: Vec<_> = sent.iter().filter(|message| !message.is_empty()).collect();
        let receive = async {
            let mut got = Vec::new();
            while got.len() < expected.len() {
                got.push(pair.server.recv_message().await.unwrap());
            }
            got
        };
        let send = async {
            for message in &sent {
                pair.client.send_message(message).await.unwrap();
            }
        };
        let ((), got) = tokio::join!(send, receive);
        for (got, expected) in got.iter().zip(expected) {
            assert_same(got, expected);
        }
    });
}

#[test]
fn small_messages_and_writes_beyond_the_window_arrive_in_order() {
    on_both_runtimes(|| async {
        let mut pair = pair(messages().windows(4, 4)).await;
        let send = async {
            // All writes fit into the send buffer: far more segments than the window, in few bytes.
            for number in 0..500_u16 {
                let text = number.to_be_bytes();
                match number % 3 {
                    0 => pair.client.send_message(&text).await.unwrap(),
                    1 => pair.client.send_message(&text.repeat(2_000)).await.unwrap(),
                    _ => pair.client.write_all(&text).await.unwrap(),
                }
            }
        };
        let receive = async {
            for number in 0..500_u16 {
                let message = pair.server.recv_message().await.unwrap();
                assert_eq!(message.len(), if number % 3 == 1 { 4_000 } else { 2 });
                assert_eq!(message[..2], number.to_be_bytes());
            }
        };
        tokio::join!(send, receive);
    });
}

#[test]
fn read_serves_one_message_and_keeps_its_rest() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new().mode(Mode::Message)).await;
        for message in [b"first", b"later"] {
            pair.client.send_message(message).await.unwrap();
        }
        until(|| pair.client.stats().path.in_flight_segments == 0).await;
        let mut buf = [0; 64];
        assert_eq!(pair.server.read(&mut buf[..2]).await.unwrap(), 2);
        assert_eq!(pair.server.read(&mut buf).await.unwrap(), 3);
        assert_eq!(&buf[..3], b"rst");
        assert_eq!(pair.server.recv_message().await.unwrap(), "later");
    });
}

#[test]
fn message_of_max_size_passes_and_a_larger_one_is_rejected() {
    on_both_runtimes(|| async {
        let mut pair = pair(messages()).await;
        // The limit grows with the first advertised window.
        pair.server.write_all(b"!").await.unwrap();
        assert_eq!(read(&mut pair.client, 1).await, b"!");
        let max = pair.client.max_message_size();
        assert!(max >= 32 * (1_400 - 24));
        let refused = pair.client.send_message(&vec![0; max + 255 * 1_400]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let text = refused.to_string();
        assert!(text.contains(&format!("{}", max + 255 * 1_400)), "{text}");
        assert!(text.contains(&format!("{max}")), "{text}");

        let largest = bytes(6, max);
        let (sent, got) =
            tokio::join!(pair.client.send_message(&largest), pair.server.recv_message());
        sent.unwrap();
        assert_same(&got.unwrap(), &largest);
    });
}

#[test]
fn message_calls_require_message_mode() {
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        for refused in [
            pair.client.send_message(b"x").await.unwrap_err(),
            pair.client.recv_message().await.unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            assert!(refused.to_string().contains("Mode::Message"), "{refused}");
        }
        pair.client.write_all(b"still there").await.unwrap();
        assert_eq!(read(&mut pair.server, 11).await, b"still there");
    });
}
