//! Configuration: validation errors, and settings that change with data in flight.

mod common;

use std::error::Error;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::time::Duration;

use common::{
    Pair, assert_same, bytes, guarded, is_pending, on_both_runtimes, one_thread, pair, read, until,
};
use kcpx::{
    AckPolicy, Algorithm, AutoRedundancy, Backoff, Cipher, Config, ConfigError, CongestionControl,
    Endpoint, FecConfig, KcpListener, KcpStream, KeepaliveInterval, Migration, Mode, Redundancy,
    Timing, WritePolicy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Invalid settings with the text of their error.
fn invalid() -> Vec<(Config, &'static str)> {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::new();
        change(&mut config);
        config
    };
    let day = Duration::from_secs(24 * 60 * 60);
    vec![
        (Config::new().mtu(24), "mtu (bytes) must be between 25 and 65507, got 24"),
        (Config::new().mtu(65_508), "mtu (bytes) must be between 25 and 65507, got 65508"),
        (Config::new().windows(0, 1), "send_window (segments) must be between 1 and 65535, got 0"),
        (Config::new().windows(1, 0), "recv_window (segments) must be between 1 and 65535, got 0"),
        (
            Config::new().keepalive(Some(Duration::ZERO)),
            "keepalive (ms) must be between 1000 and 86400000, got 0",
        ),
        (
            Config::new().idle_timeout(Some(2 * day)),
            "idle_timeout (ms) must be between 1000 and 86400000, got 172800000",
        ),
        (
            Config::new().linger(2 * day),
            "linger (ms) must be between 0 and 86400000, got 172800000",
        ),
        (
            with(|c| c.kcp.pacing_interval = Duration::from_millis(11)),
            "pacing_interval (us) must be between 0 and 10000, got 11000",
        ),
        (with(|c| c.duplicates = 9), "duplicates must be between 0 and 8, got 9"),
        (
            with(|c| c.send_buffer = 0),
            "send_buffer (bytes) must be between 1 and 1073741824, got 0",
        ),
        (
            with(|c| c.recv_buffer = 0),
            "recv_buffer (bytes) must be between 1 and 1073741824, got 0",
        ),
        (with(|c| c.limits.backlog = 0), "backlog must be between 1 and 65536, got 0"),
        (
            with(|c| c.limits.max_connections = 0),
            "max_connections must be between 1 and 16777216, got 0",
        ),
    ]
}

#[test]
fn config_error_names_field_value_and_range() {
    on_both_runtimes(|| async {
        for (config, text) in invalid() {
            let errors = [
                KcpListener::bind_with("127.0.0.1:0", config.clone()).await.err(),
                Endpoint::bind_with("127.0.0.1:0", config.clone()).await.err(),
                KcpStream::connect_with("127.0.0.1:9", config.clone()).await.err(),
            ];
            for error in errors {
                let error = error.unwrap();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert_eq!(error.to_string(), text);
                let inner: &(dyn Error + Send + Sync) = error.get_ref().unwrap();
                let inner = inner.downcast_ref::<ConfigError>().unwrap();
                let ConfigError::OutOfRange { field, value, min, max } = inner else {
                    panic!("{inner:?}")
                };
                assert!(text.starts_with(field) && !(min..=max).contains(&value));
            }
        }
    });
}

/// Combinations of valid settings with the text of their error, which is empty if they work together.
fn pairs() -> Vec<(Config, &'static str)> {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::new();
        change(&mut config);
        config
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let sealed = |algorithm| {
        let mut config = Config::new().cipher(Cipher::new(algorithm, &[7; 32]).unwrap());
        config.replay_window = 64;
        config
    };
    let keepalive = |after, idle| Config::new().keepalive(seconds(after)).idle_timeout(idle);
    vec![
        (
            keepalive(60, seconds(30)),
            "keepalive (ms) must be at most 29000 when idle_timeout (ms) is 30000, got 60000",
        ),
        (
            keepalive(60, seconds(60)),
            "keepalive (ms) must be at most 59000 when idle_timeout (ms) is 60000, got 60000",
        ),
        (keepalive(59, seconds(60)), ""),
        (keepalive(86_400, None), ""),
        (Config::new().idle_timeout(seconds(1)), ""),
        (Config::new().keepalive(None).idle_timeout(seconds(1)), ""),
        (with(|c| c.replay_window = 64), "replay_window requires a cipher that has a nonce"),
        (sealed(Algorithm::ChaCha20Poly1305), ""),
        (sealed(Algorithm::Aes256), ""),
        (with(|c| c.migration = Migration::Authenticated), "migration requires an AEAD cipher"),
        (
            with(|c| c.migration = Migration::AnyCipher),
            "migration requires a cipher that has a key",
        ),
        (
            Config::new().redundancy(Redundancy::Auto(AutoRedundancy::new())).close_notify(false),
            "Redundancy::Auto requires close_notify",
        ),
        // The shorter of two timeouts decides.
        (with(|c| c.kcp.dead_peer_timeout = Some(Duration::from_secs(5))), ""),
        (with(|c| c.limits.max_connections = 10), ""),
    ]
}

#[test]
fn settings_that_contradict_each_other_are_refused_by_both_names() {
    for (config, refusal) in pairs() {
        match config.validate() {
            Ok(()) => assert_eq!(refusal, "", "{config:?}"),
            Err(error) => assert_eq!(error.to_string(), refusal),
        }
    }
}

/// Both peers are idle for twice their idle timeout, with the default keepalive.
#[test]
fn short_idle_timeout_alone_ends_no_healthy_connection() {
    let idle = Duration::from_secs(4);
    let config = Config::new().idle_timeout(Some(idle));
    one_thread().block_on(guarded(async {
        let Pair { mut client, mut server, listener: _listener } = pair(config).await;
        tokio::time::sleep(2 * idle).await;
        assert_eq!((client.error(), server.error()), (None, None));
        client.write_all(b"still here").await.unwrap();
        assert_eq!(read(&mut server, 10).await, b"still here");
    }));
}

#[test]
fn setters_reject_with_the_same_error_and_change_nothing() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(Config::new()).await;
        let refusals = [
            (client.set_windows(0, 9), "send_window (segments) must be between 1 and 65535, got 0"),
            (client.set_windows(9, 0), "recv_window (segments) must be between 1 and 65535, got 0"),
            (client.set_mtu(24), "mtu (bytes) must be between 25 and 65507, got 24"),
            (client.set_mtu(1_401), "mtu (bytes) must be between 25 and 1400, got 1401"),
            (client.set_duplicates(9), "duplicates must be between 0 and 8, got 9"),
        ];
        for (refusal, text) in refusals {
            assert_eq!(refusal.unwrap_err().to_string(), text);
        }
        client.set_mtu(600).unwrap();
        let error = client.set_mtu(601).unwrap_err();
        assert_eq!(error.to_string(), "mtu (bytes) must be between 25 and 600, got 601");
        client.set_mtu(600).unwrap();
        client.write_all(b"fine").await.unwrap();
        assert_eq!(read(&mut server, 4).await, b"fine");
    });
}

/// Transfers in both directions. Calls `change` on both streams from time to time, with the number of the
/// call.
async fn steady_through(config: Config, change: impl Fn(&KcpStream, usize)) -> Pair {
    const LEN: usize = 2 << 20;
    let pair = pair(config).await;
    let (up, down) = (bytes(1, LEN), bytes(2, LEN));
    tokio::join!(
        transfer(&pair.client, &up, &down, &change),
        transfer(&pair.server, &down, &up, &change),
    );
    pair
}

async fn transfer(
    stream: &KcpStream,
    mut out: &[u8],
    expected: &[u8],
    change: impl Fn(&KcpStream, usize),
) {
    let (mut got, mut buf, mut calls) = (Vec::new(), vec![0; 16 * 1024], 0);
    while !out.is_empty() || got.len() < expected.len() {
        let done = expected.len() - out.len() + got.len();
        if done / (256 * 1024) >= calls {
            change(stream, calls);
            calls += 1;
        }
        tokio::select! {
            ready = stream.writable(), if !out.is_empty() => {
                ready.unwrap();
                // Readiness for writing lasts until a write would block.
                match stream.try_write(&out[..out.len().min(10_000)]) {
                    Ok(count) => out = &out[count..],
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            ready = stream.readable() => {
                ready.unwrap();
                let count = stream.try_read(&mut buf).unwrap();
                got.extend_from_slice(&buf[..count]);
            }
        }
    }
    assert_same(&got, expected);
}

#[test]
fn windows_change_with_data_in_flight() {
    on_both_runtimes(|| async {
        steady_through(Config::new(), |stream, call| {
            let (send, recv) = [(4, 64), (1024, 1024), (64, 4), (1, 1), (65_535, 65_535)][call % 5];
            stream.set_windows(send, recv).unwrap();
        })
        .await;
    });
}

#[test]
fn timing_changes_with_data_in_flight() {
    let custom =
        Timing::new(false, Duration::from_millis(50), None, CongestionControl::Reno).unwrap();
    on_both_runtimes(|| async {
        let presets = [Timing::FAST3, Timing::KCP_DEFAULT, Timing::NORMAL, custom, Timing::FAST2];
        steady_through(Config::new(), |stream, call| stream.set_timing(presets[call % 5])).await;
    });
}

#[test]
fn policies_change_with_data_in_flight() {
    on_both_runtimes(|| async {
        steady_through(Config::new(), |stream, call| {
            stream.set_ack_policy(
                [AckPolicy::Interval, AckPolicy::Immediate, AckPolicy::PerBatch][call % 3],
            );
            stream.set_write_policy([WritePolicy::Delayed, WritePolicy::Immediate][call % 2]);
        })
        .await;
    });
}

#[test]
fn mtu_decreases_with_data_in_flight() {
    on_both_runtimes(|| async {
        let pair = steady_through(Config::new().mtu(9_000), |stream, call| {
            stream.set_mtu([9_000, 1_400, 1_399, 576, 100][call.min(4)]).unwrap();
        })
        .await;
        for stream in [&pair.client, &pair.server] {
            let stats = stream.stats();
            assert!(stats.sent_segments > (1 << 20) / 76, "{}", stats.sent_segments);
        }
    });
}

#[test]
fn rate_limit_changes_with_data_in_flight() {
    on_both_runtimes(|| async {
        steady_through(Config::new(), |stream, call| {
            stream.set_rate_limit([NonZeroU64::new(20_000_000), None][call % 2]);
        })
        .await;
    });
}

#[test]
fn duplicates_are_sent_and_delivered_once() {
    on_both_runtimes(|| async {
        let pair = steady_through(Config::new(), |stream, call| {
            stream.set_duplicates([2, 0, 1][call % 3]).unwrap();
        })
        .await;
        assert!(pair.client.stats().duplicate_segments > 0);
        assert!(pair.server.stats().duplicate_segments > 0);
    });
}

#[test]
fn any_valid_config_carries_data() {
    let mut choices = vec![
        Config::new().windows(1, 1),
        Config::new().mtu(25),
        Config::new().mtu(65_507).windows(8, 8),
        Config::new().timing(Timing::KCP_DEFAULT),
        Config::new().mode(Mode::Message),
        Config::new().ack_policy(AckPolicy::Interval).write_policy(WritePolicy::Delayed),
        Config::new().keepalive(None).idle_timeout(None),
        Config::new().socket_buffers(Some(1 << 20), Some(1 << 20)),
    ];
    let mut config = Config::new();
    config.kcp.backoff = Backoff::Exponential;
    config.kcp.early_retransmit = false;
    config.kcp.dead_peer_timeout = None;
    config.kcp.rate_limit = NonZeroU64::new(50_000_000);
    config.duplicates = 1;
    choices.push(config);
    let mut tight = Config::new();
    (tight.send_buffer, tight.recv_buffer) = (1, 1);
    tight.kcp.recv_memory = Some(1_540);
    // Segments that exceed the receive memory, and small datagrams with parity and repair symbols.
    choices.extend([tight.clone().mtu(9_000), tight]);
    choices.push(Config::interactive().mtu(60));
    choices.push(Config::new().mtu(40).redundancy(Redundancy::Fec(FecConfig::SHORT)));
    on_both_runtimes(|| async {
        for config in &choices {
            let Pair { mut client, mut server, listener: _listener } = pair(config.clone()).await;
            let data = bytes(7, 5_000);
            let (sent, got) = tokio::join!(client.write_all(&data), read(&mut server, data.len()));
            sent.unwrap();
            assert_same(&got, &data);
        }
    });
}

#[test]
fn delayed_writes_leave_with_a_flush() {
    on_both_runtimes(|| async {
        let slow =
            Timing::new(true, Duration::from_secs(5), None, CongestionControl::Disabled).unwrap();
        let Pair { mut client, mut server, listener: _listener } =
            pair(Config::new().timing(slow)).await;
        client.set_write_policy(WritePolicy::Delayed);
        client.write_all(b"together").await.unwrap();
        assert!(is_pending(server.read_u8()).await);
        client.flush().await.unwrap();
        assert_eq!(read(&mut server, 8).await, b"together");
    });
}

#[test]
fn max_message_size_follows_the_mtu() {
    on_both_runtimes(|| async {
        let Pair { client, server: _server, listener: _listener } =
            pair(Config::new().mode(Mode::Message)).await;
        // The limit depends on the peer's window, which is small until the peer has validated our address.
        until(|| client.stats().peer_window_segments > 255).await;
        let before = client.max_message_size();
        client.set_mtu(700).unwrap();
        until(|| client.max_message_size() < before).await;
        assert_eq!(client.max_message_size() % (700 - 24), 0);
    });
}

/// Rows of the table in the crate documentation: setting and default.
fn documented_defaults() -> Vec<(&'static str, &'static str)> {
    let page = include_str!("../src/lib.rs");
    let table = page.split_once("# Defaults and time-outs").unwrap().1;
    let rows = table.lines().skip_while(|line| !line.starts_with("//! |---"));
    let rows = rows.skip(1).map_while(|line| line.strip_prefix("//! | "));
    let cells = |row: &'static str| {
        let mut cells = row.split(" | ");
        let setting = cells.next().unwrap();
        (setting.trim_matches(['[', '`', ']']), cells.next().unwrap())
    };
    rows.map(cells).collect()
}

/// Formats `12345` as `12,345`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let lead = digits.len() % 3;
    let groups = digits.as_bytes()[lead..].chunks(3).map(|group| str::from_utf8(group).unwrap());
    let lead = (lead > 0).then_some(&digits[..lead]);
    lead.into_iter().chain(groups).collect::<Vec<_>>().join(",")
}

#[test]
fn front_page_has_the_defaults() {
    let config = Config::default();
    let (kcp, limits, socket) = (&config.kcp, &config.limits, &config.socket);
    let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
    let kib = |bytes: usize| format!("{} KiB", bytes as f64 / 1024.0);
    let mib = |bytes: usize| format!("{} MiB", bytes as f64 / f64::from(1 << 20));
    assert_eq!(kcp.timing, Timing::FAST2);
    assert_eq!(
        (kcp.send_window, socket.send_buffer_size),
        (kcp.recv_window, socket.recv_buffer_size)
    );
    assert!(kcp.auto_windows);
    assert_eq!(kcp.keepalive, KeepaliveInterval::Auto);
    assert_eq!(kcp.keepalive_side, kcpx::KeepaliveSide::Passive);
    assert_eq!((&config.cipher, kcp.redundancy), (&Cipher::null(), Redundancy::Off));
    let expected = [
        ("Config::timing", String::from("FAST2")),
        ("Config::windows", format!("{} segments", grouped(kcp.send_window.into()))),
        ("KcpConfig::auto_windows", String::from("up to 8,192 segments")),
        ("Config::mtu", format!("{} bytes", grouped(kcp.mtu.into()))),
        ("Config::send_buffer", kib(config.send_buffer)),
        ("Config::recv_buffer", kib(config.recv_buffer)),
        ("Config::socket_buffers", mib(socket.send_buffer_size.unwrap()) + " each"),
        ("Config::cipher", String::from("none")),
        ("Config::redundancy", String::from("off")),
        ("Config::connect_timeout", seconds(config.connect_timeout)),
        ("Config::keepalive", String::from("15 s")),
        ("KcpConfig::keepalive_side", String::from("the one that accepted")),
        ("Config::idle_timeout", seconds(kcp.idle_timeout.unwrap())),
        ("KcpConfig::dead_peer_timeout", seconds(kcp.dead_peer_timeout.unwrap())),
        ("KcpConfig::max_retransmit_interval", seconds(kcp.max_retransmit_interval)),
        ("Config::linger", seconds(config.linger)),
        ("TIME-WAIT", String::from("60 s")),
        ("Limits::max_connections", grouped(limits.max_connections)),
        ("Limits::max_per_source", String::from("as many as are free")),
        ("Limits::memory", mib(limits.memory)),
        ("Limits::backlog", grouped(limits.backlog)),
        ("Limits::max_unvalidated", grouped(limits.max_unvalidated)),
        ("Limits::validation_timeout", seconds(limits.validation_timeout)),
    ];
    let documented = documented_defaults();
    let expected: Vec<_> = expected.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(documented, expected);
}
