//! Configuration: validation errors, and settings that change with data in flight. `settings.rs` tests their effect
//! on the wire.

use std::error::Error;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::common::{
    Pair, assert_same, bytes, guarded, is_pending, on_both_runtimes, one_thread, pair, read, until,
};
use kcpx::{
    AckPolicy, Algorithm, AutoRedundancy, Cipher, Config, ConfigError, CongestionControl, Endpoint,
    FecConfig, KcpListener, KcpStream, KeepaliveInterval, Key, Limits, Migration, Mode, PathMode,
    Redundancy, Timing, WritePolicy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A row for each end of the range of a setting of the protocol that has one, with the error's text.
fn invalid_protocol() -> Vec<(Config, &'static str)> {
    let new = Config::new;
    let after = |time| new().keepalive(KeepaliveInterval::After(time));
    let auto =
        |ratio| new().redundancy(Redundancy::Auto(AutoRedundancy::new().max_overhead(ratio)));
    let above_day = DAY + millis(1);
    vec![
        (new().mtu(24), "mtu (bytes) must be between 25 and 65507, got 24"),
        (new().mtu(65_508), "mtu (bytes) must be between 25 and 65507, got 65508"),
        (new().windows(0, 1), "send_window (segments) must be between 1 and 65535, got 0"),
        (new().windows(1, 0), "recv_window (segments) must be between 1 and 65535, got 0"),
        (
            new().max_retransmit_interval(millis(999)),
            "max_retransmit_interval (ms) must be between 1000 and 60000, got 999",
        ),
        (
            new().max_retransmit_interval(millis(60_001)),
            "max_retransmit_interval (ms) must be between 1000 and 60000, got 60001",
        ),
        (
            new().dead_peer_timeout(Some(millis(999))),
            "dead_peer_timeout (ms) must be between 1000 and 86400000, got 999",
        ),
        (
            new().dead_peer_timeout(Some(above_day)),
            "dead_peer_timeout (ms) must be between 1000 and 86400000, got 86400001",
        ),
        (after(millis(999)), "keepalive (ms) must be between 1000 and 86400000, got 999"),
        (after(above_day), "keepalive (ms) must be between 1000 and 86400000, got 86400001"),
        (
            new().idle_timeout(Some(millis(999))),
            "idle_timeout (ms) must be between 1000 and 86400000, got 999",
        ),
        (
            new().idle_timeout(Some(above_day)),
            "idle_timeout (ms) must be between 1000 and 86400000, got 86400001",
        ),
        (
            new().pacing_interval(Duration::from_micros(10_001)),
            "pacing_interval (us) must be between 0 and 10000, got 10001",
        ),
        (auto(0.999), "max_overhead (per mille) must be between 1000 and 4000, got 999"),
        (auto(4.001), "max_overhead (per mille) must be between 1000 and 4000, got 4001"),
        (auto(-1.0), "max_overhead (per mille) must be between 1000 and 4000, got 0"),
        (auto(f64::NAN), "max_overhead (per mille) must be between 1000 and 4000, got 0"),
    ]
}

/// As [`invalid_protocol`], settings of endpoints.
fn invalid_endpoint() -> Vec<(Config, &'static str)> {
    let new = Config::new;
    let above_day = DAY + millis(1);
    let above_gib = (1 << 30) + 1;
    vec![
        (
            new().replay_window((1 << 20) + 1),
            "replay_window (datagrams) must be between 0 and 1048576, got 1048577",
        ),
        (
            new().connect_timeout(Duration::ZERO),
            "connect_timeout (ms) must be between 1 and 86400000, got 0",
        ),
        (
            new().connect_timeout(above_day),
            "connect_timeout (ms) must be between 1 and 86400000, got 86400001",
        ),
        (new().send_buffer(0), "send_buffer (bytes) must be between 1 and 1073741824, got 0"),
        (
            new().send_buffer(above_gib),
            "send_buffer (bytes) must be between 1 and 1073741824, got 1073741825",
        ),
        (new().recv_buffer(0), "recv_buffer (bytes) must be between 1 and 1073741824, got 0"),
        (
            new().recv_buffer(above_gib),
            "recv_buffer (bytes) must be between 1 and 1073741824, got 1073741825",
        ),
        (new().linger(above_day), "linger (ms) must be between 0 and 86400000, got 86400001"),
        (new().duplicates(9), "duplicates must be between 0 and 8, got 9"),
        (
            new().socket_buffers(Some(0), None),
            "send_buffer_size (bytes) must be between 1 and 1073741824, got 0",
        ),
        (
            new().socket_buffers(Some(above_gib), None),
            "send_buffer_size (bytes) must be between 1 and 1073741824, got 1073741825",
        ),
        (
            new().socket_buffers(None, Some(0)),
            "recv_buffer_size (bytes) must be between 1 and 1073741824, got 0",
        ),
        (
            new().socket_buffers(None, Some(above_gib)),
            "recv_buffer_size (bytes) must be between 1 and 1073741824, got 1073741825",
        ),
        (new().dscp(Some(64)), "dscp must be between 0 and 63, got 64"),
        (new().ttl(Some(0)), "ttl (hops) must be between 1 and 255, got 0"),
        (new().ttl(Some(256)), "ttl (hops) must be between 1 and 255, got 256"),
        (
            new().device(Some(String::new())),
            "length of device (bytes) must be between 1 and 15, got 0",
        ),
        (
            new().device(Some("x".repeat(16))),
            "length of device (bytes) must be between 1 and 15, got 16",
        ),
        #[cfg(target_os = "linux")]
        (new().shards(0), "shards (sockets) must be between 1 and 64, got 0"),
        #[cfg(target_os = "linux")]
        (new().shards(65), "shards (sockets) must be between 1 and 64, got 65"),
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        (new().shards(2), "shards (sockets) must be between 1 and 1, got 2"),
    ]
}

/// As [`invalid_protocol`], limits.
fn invalid_limits() -> Vec<(Config, &'static str)> {
    let limits = |limits: Limits| Config::new().limits(limits);
    let new = Limits::new;
    vec![
        (limits(new().max_connections(0)), "max_connections must be between 1 and 16777216, got 0"),
        (
            limits(new().max_connections((1 << 24) + 1)),
            "max_connections must be between 1 and 16777216, got 16777217",
        ),
        (
            limits(new().max_per_source(Some(0))),
            "max_per_source must be between 1 and 16777216, got 0",
        ),
        (
            limits(new().max_per_source(Some((1 << 24) + 1))),
            "max_per_source must be between 1 and 16777216, got 16777217",
        ),
        (limits(new().backlog(0)), "backlog must be between 1 and 65536, got 0"),
        (limits(new().backlog(65_537)), "backlog must be between 1 and 65536, got 65537"),
        (limits(new().max_unvalidated(0)), "max_unvalidated must be between 1 and 1048576, got 0"),
        (
            limits(new().max_unvalidated((1 << 20) + 1)),
            "max_unvalidated must be between 1 and 1048576, got 1048577",
        ),
        (
            limits(new().memory((16 << 20) - 1)),
            "memory (bytes) must be between 16777216 and 1099511627776, got 16777215",
        ),
        (
            limits(new().memory((1 << 40) + 1)),
            "memory (bytes) must be between 16777216 and 1099511627776, got 1099511627777",
        ),
        (
            limits(new().validation_timeout(millis(999))),
            "validation_timeout (ms) must be between 1000 and 3600000, got 999",
        ),
        (
            limits(new().validation_timeout(millis(3_600_001))),
            "validation_timeout (ms) must be between 1000 and 3600000, got 3600001",
        ),
    ]
}

#[test]
fn config_error_names_field_value_and_range() {
    on_both_runtimes(|| async {
        let invalid = [invalid_protocol(), invalid_endpoint(), invalid_limits()];
        for (config, text) in invalid.into_iter().flatten() {
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

/// The ends of each range, which are valid. A value in the other setting of a pair keeps the pair valid.
fn valid_limits() -> Vec<Config> {
    let new = Config::new;
    let auto =
        |ratio| new().redundancy(Redundancy::Auto(AutoRedundancy::new().max_overhead(ratio)));
    let after = |time| new().keepalive(KeepaliveInterval::After(time)).idle_timeout(None);
    let least = Limits::new()
        .max_connections(1)
        .max_per_source(Some(1))
        .backlog(1)
        .max_unvalidated(1)
        .memory(16 << 20)
        .validation_timeout(millis(1_000));
    let most = Limits::new()
        .max_connections(1 << 24)
        .max_per_source(Some(1 << 24))
        .backlog(1 << 16)
        .max_unvalidated(1 << 20)
        .memory(1 << 40)
        .validation_timeout(millis(3_600_000));
    vec![
        new().mtu(25),
        new().mtu(65_507),
        new().windows(1, 1),
        new().windows(65_535, 65_535),
        new().max_retransmit_interval(millis(1_000)),
        new().max_retransmit_interval(millis(60_000)),
        new().dead_peer_timeout(Some(millis(1_000))),
        new().dead_peer_timeout(Some(DAY)),
        after(millis(1_000)),
        after(DAY),
        new().idle_timeout(Some(millis(1_000))),
        new().idle_timeout(Some(DAY)),
        new().pacing_interval(Duration::ZERO),
        new().pacing_interval(millis(10)),
        auto(1.0),
        auto(4.0),
        with_cipher(Algorithm::Aes128Gcm).replay_window(1 << 20),
        new().connect_timeout(millis(1)),
        new().connect_timeout(DAY),
        new().send_buffer(1).recv_buffer(1),
        new().send_buffer(1 << 30).recv_buffer(1 << 30),
        new().linger(Duration::ZERO),
        new().linger(DAY),
        new().duplicates(8),
        new().socket_buffers(Some(1), Some(1)),
        new().socket_buffers(Some(1 << 30), Some(1 << 30)),
        new().dscp(Some(0)).ttl(Some(1)).device(Some("x".into())),
        new().dscp(Some(63)).ttl(Some(255)).device(Some("x".repeat(15))),
        #[cfg(target_os = "linux")]
        new().shards(64),
        new().limits(least),
        new().limits(most),
    ]
}

#[test]
fn ends_of_each_range_are_valid() {
    for config in valid_limits() {
        assert_eq!(config.validate(), Ok(()), "{config:?}");
    }
}

fn with_cipher(algorithm: Algorithm) -> Config {
    Config::new().cipher(Cipher::new(algorithm, &[7; 32][..algorithm.key_len()]).unwrap())
}

/// Pairs of settings, each in its range: the error's text, or nothing if they are valid together.
fn pairs() -> Vec<(Config, &'static str)> {
    let new = Config::new;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let keepalive = |after, idle| {
        let after = KeepaliveInterval::After(Duration::from_secs(after));
        new().keepalive(after).idle_timeout(idle)
    };
    let auto = Redundancy::Auto(AutoRedundancy::new());
    let (aead, keyed) = (Algorithm::ChaCha20Poly1305, Algorithm::Aes256);
    vec![
        (
            keepalive(60, seconds(30)),
            "keepalive (ms) must be at most 29000 when idle_timeout (ms) is 30000, got 60000",
        ),
        (
            keepalive(60, seconds(60)),
            "keepalive (ms) must be at most 59000 when idle_timeout (ms) is 60000, got 60000",
        ),
        (
            keepalive(1, seconds(1)),
            "KeepaliveInterval::After requires an idle_timeout of at least 2 s",
        ),
        (keepalive(1, seconds(2)), ""),
        (keepalive(59, seconds(60)), ""),
        (keepalive(86_400, None), ""),
        (new().idle_timeout(seconds(1)), ""),
        (new().keepalive(KeepaliveInterval::Never).idle_timeout(seconds(1)), ""),
        (new().replay_window(64), "replay_window requires a cipher that has a nonce"),
        (with_cipher(aead).replay_window(64), ""),
        (with_cipher(keyed).replay_window(64), ""),
        (new().migration(Migration::Authenticated), "migration requires an AEAD cipher"),
        (
            with_cipher(keyed).migration(Migration::Authenticated),
            "migration requires an AEAD cipher",
        ),
        (with_cipher(aead).migration(Migration::Authenticated), ""),
        (new().path_mode(PathMode::Duplicate), ""),
        #[cfg(target_os = "linux")]
        (with_cipher(aead).shards(2), ""),
        (new().migration(Migration::AnyCipher), "migration requires a cipher that has a key"),
        (with_cipher(keyed).migration(Migration::AnyCipher), ""),
        #[cfg(target_os = "linux")]
        (
            with_cipher(aead).migration(Migration::Authenticated).shards(2),
            "migration requires one shard",
        ),
        #[cfg(target_os = "linux")]
        (
            with_cipher(keyed).migration(Migration::AnyCipher).shards(2),
            "migration requires one shard",
        ),
        (new().redundancy(auto).close_notify(false), "Redundancy::Auto requires close_notify"),
        (new().redundancy(Redundancy::Fec(FecConfig::SHORT)).close_notify(false), ""),
        // The least datagram has the overhead of the cipher and of FEC.
        (
            with_cipher(Algorithm::Aes128Gcm).mtu(52),
            "mtu (bytes) must be between 53 and 65507, got 52",
        ),
        (with_cipher(Algorithm::Aes128Gcm).mtu(53), ""),
        (
            new().redundancy(Redundancy::Fec(FecConfig::SHORT)).mtu(32),
            "mtu (bytes) must be between 33 and 65507, got 32",
        ),
        (new().redundancy(Redundancy::Fec(FecConfig::SHORT)).mtu(33), ""),
        (
            with_cipher(Algorithm::Aes128Gcm).redundancy(Redundancy::Fec(FecConfig::SHORT)).mtu(60),
            "mtu (bytes) must be between 61 and 65507, got 60",
        ),
        // A short timeout beside a long one: the short one comes first.
        (new().dead_peer_timeout(seconds(5)), ""),
        (new().limits(Limits::new().max_connections(10)), ""),
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

/// Errors of values that never become a part of a configuration.
#[test]
fn values_name_what_they_take() {
    let timing = |ms| Timing::new(true, millis(ms), None).unwrap_err().to_string();
    let fec = |data, parity| FecConfig::new(data, parity).unwrap_err().to_string();
    let cipher = |name| Cipher::from_name(name, &Key::new([7; 3])).unwrap_err().to_string();
    let texts = [
        (timing(9), "interval (ms) must be between 10 and 5000, got 9"),
        (timing(5_001), "interval (ms) must be between 10 and 5000, got 5001"),
        (fec(0, 1), "fec data shards must be between 1 and 255, got 0"),
        (fec(256, 1), "fec data shards must be between 1 and 255, got 256"),
        (fec(1, 0), "fec parity shards must be between 1 and 255, got 0"),
        (fec(1, 256), "fec parity shards must be between 1 and 255, got 256"),
        (fec(200, 57), "fec data and parity shards must be between 2 and 256, got 257"),
        (cipher("aes-128-gcm"), "the key of aes-128-gcm must have 16 or more bytes, got 3"),
        (
            "fast33".parse::<Timing>().unwrap_err().to_string(),
            "unknown timing \"fast33\": use normal, fast, fast2 or fast3",
        ),
        (
            "cubic".parse::<CongestionControl>().unwrap_err().to_string(),
            "unknown congestion control \"cubic\": use bbr, reno or off",
        ),
    ];
    for (error, text) in texts {
        assert_eq!(error, text);
    }
    let unknown = cipher("rot13");
    assert!(unknown.starts_with("unknown cipher \"rot13\": use one of "), "{unknown}");
    assert!(unknown.contains("aes-128-gcm"), "{unknown}");
}

/// Two idle peers whose idle timeout alone was set outlive it.
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
    let custom = Timing::new(false, millis(50), None).unwrap();
    on_both_runtimes(|| async {
        let presets = [
            (Timing::FAST3, CongestionControl::Bbr),
            (Timing::KCP_DEFAULT, CongestionControl::Reno),
            (Timing::NORMAL, CongestionControl::Bbr),
            (custom, CongestionControl::Reno),
            (Timing::FAST2, CongestionControl::Bbr),
        ];
        steady_through(Config::new(), |stream, call| {
            let (timing, control) = presets[call % 5];
            stream.set_timing(timing);
            stream.set_congestion_control(control);
        })
        .await;
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
            assert!(stats.sent.segments > (1 << 20) / 76, "{}", stats.sent.segments);
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
        assert!(pair.client.stats().anomalies.duplicate_segments > 0);
        assert!(pair.server.stats().anomalies.duplicate_segments > 0);
    });
}

#[test]
fn any_valid_config_carries_data() {
    let mut choices = vec![
        Config::new().windows(1, 1),
        Config::new().mtu(25),
        Config::new().mtu(65_507).windows(8, 8),
        Config::new().timing(Timing::KCP_DEFAULT).congestion_control(CongestionControl::Reno),
        Config::new().mode(Mode::Message),
        Config::new().ack_policy(AckPolicy::Interval).write_policy(WritePolicy::Delayed),
        Config::new().keepalive(KeepaliveInterval::Never).idle_timeout(None),
        Config::new().socket_buffers(Some(1 << 20), Some(1 << 20)),
    ];
    choices.push(
        Config::new().dead_peer_timeout(None).rate_limit(NonZeroU64::new(50_000_000)).duplicates(1),
    );
    let tight = Config::new().send_buffer(1).recv_buffer(1).windows(1_024, 1);
    // Segments that exceed the receive memory; parity and repair symbols in small datagrams.
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
        let slow = Timing::new(true, Duration::from_secs(5), None).unwrap();
        let config = Config::new().timing(slow).congestion_control(CongestionControl::Off);
        let Pair { mut client, mut server, listener: _listener } = pair(config).await;
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
        until(|| client.stats().path.peer_window_segments > 255).await;
        let before = client.max_message_size();
        client.set_mtu(700).unwrap();
        until(|| client.max_message_size() < before).await;
        assert_eq!(client.max_message_size() % (700 - 24), 0);
    });
}
