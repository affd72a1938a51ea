//! Defaults, presets, and validation errors.

use std::num::{NonZeroU8, NonZeroU64};

use super::*;

#[test]
fn default_config_is_valid() {
    Config::default().validate().unwrap();
}

#[test]
fn timing_presets_equal_kcptuns() {
    let numbers = |p: Timing| {
        let resend = p.fast_resend.map_or(0, NonZeroU8::get);
        (p.nodelay, p.interval.as_millis(), resend)
    };
    assert_eq!(numbers(Timing::NORMAL), (false, 40, 2));
    assert_eq!(numbers(Timing::FAST), (false, 30, 2));
    assert_eq!(numbers(Timing::FAST2), (true, 20, 2));
    assert_eq!(numbers(Timing::FAST3), (true, 10, 2));
    assert_eq!(numbers(Timing::KCP_DEFAULT), (false, 100, 0));
}

#[test]
fn presets_are_valid_and_differ_from_the_defaults_in_what_they_document() {
    let interactive = Config::interactive();
    assert_eq!(interactive.validate(), Ok(()));
    let auto = interactive.kcp.redundancy.auto().unwrap();
    assert_eq!(auto, AutoRedundancy { max_overhead_per_mille: 2_000, stock: None });
    let rest = interactive.timing(Timing::FAST2).redundancy(Redundancy::Off);
    assert_eq!(rest, Config::new());

    let mut bulk = Config::bulk();
    assert_eq!(bulk.validate(), Ok(()));
    assert_eq!((bulk.send_buffer, bulk.recv_buffer), (4 << 20, 4 << 20));
    (bulk.send_buffer, bulk.recv_buffer) = (256 << 10, 256 << 10);
    assert_eq!(bulk, Config::new());
}

#[test]
fn windows_for_link_are_five_quarters_of_the_bdp() {
    for (bits, millis, window) in [
        (0, 0, 32),
        (1_000_000, 20, 32),
        (50_000_000, 50, 284),
        (1_000_000_000, 100, 11_356),
        (100_000_000_000, 1_000, 65_535),
        (u64::MAX, u64::MAX, 65_535),
    ] {
        let config = Config::for_link(bits, Duration::from_millis(millis));
        assert_eq!(config.kcp.send_window, window, "{bits} bit/s, {millis} ms");
        assert_eq!(config.validate(), Ok(()));
    }
}

/// Rows of the front page: setting and default.
fn documented_defaults() -> Vec<(&'static str, &'static str)> {
    let page = include_str!("../lib.rs");
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

/// `12345` as `12,345`.
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
    let whole = |bytes: usize, unit: usize| {
        assert_eq!(bytes % unit, 0, "{bytes} bytes");
        bytes / unit
    };
    let kib = |bytes| format!("{} KiB", whole(bytes, 1 << 10));
    let mib = |bytes| format!("{} MiB", whole(bytes, 1 << 20));
    assert_eq!(kcp.timing, Timing::FAST2);
    assert_eq!(
        (kcp.send_window, socket.send_buffer_size),
        (kcp.recv_window, socket.recv_buffer_size)
    );
    assert!(kcp.auto_windows);
    assert_eq!(kcp.keepalive, KeepaliveInterval::Auto);
    assert_eq!(kcp.keepalive_side, KeepaliveSide::Passive);
    assert_eq!((&config.cipher, kcp.redundancy), (&Cipher::null(), Redundancy::Off));
    let windows = format!("{} to 8,192 segments", grouped(kcp.send_window.into()));
    let expected = [
        ("Config::timing", String::from("FAST2")),
        ("Config::congestion_control", format!("{:?}", kcp.congestion_control)),
        ("Config::windows", windows),
        ("Config::mtu", format!("{} bytes", grouped(kcp.mtu.into()))),
        ("Config::send_buffer", kib(config.send_buffer)),
        ("Config::recv_buffer", kib(config.recv_buffer)),
        ("Config::socket_buffers", mib(socket.send_buffer_size.unwrap()) + " each"),
        ("Config::cipher", String::from("none")),
        ("Config::redundancy", String::from("off")),
        ("Config::connect_timeout", seconds(config.connect_timeout)),
        ("Config::keepalive", String::from("15 s")),
        ("Config::keepalive_side", String::from("passive")),
        ("Config::idle_timeout", seconds(kcp.idle_timeout.unwrap())),
        ("Config::dead_peer_timeout", seconds(kcp.dead_peer_timeout.unwrap())),
        ("Config::max_retransmit_interval", seconds(kcp.max_retransmit_interval)),
        ("Config::linger", seconds(config.linger)),
        ("TIME-WAIT", String::from("60 s")),
        ("Limits::max_connections", grouped(limits.max_connections)),
        ("Limits::max_per_source", String::from("the free places")),
        ("Limits::memory", mib(limits.memory)),
        ("Limits::backlog", grouped(limits.backlog)),
        ("Limits::max_unvalidated", grouped(limits.max_unvalidated)),
        ("Limits::validation_timeout", seconds(limits.validation_timeout)),
    ];
    let documented = documented_defaults();
    let expected: Vec<_> = expected.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(documented, expected);
}

#[test]
fn link_differs_from_the_defaults_in_what_it_documents() {
    let [short, long] = [(1_000_000, 20), (1_000_000_000, 100)]
        .map(|(bits, millis)| Config::for_link(bits, Duration::from_millis(millis)));
    let expected = Config::new().windows(32, 32).initial_rate(NonZeroU64::new(112_500));
    assert_eq!(short, expected);
    let window = 11_356 * 1_400;
    let expected = Config::new()
        .windows(11_356, 11_356)
        .initial_rate(NonZeroU64::new(112_500_000))
        .send_buffer(window)
        .recv_buffer(window)
        .socket_buffers(Some(2 * window), Some(2 * window));
    assert_eq!(long, expected);
}

fn with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::new();
    change(&mut config);
    config
}

/// For each setter of the protocol a configuration that it has changed, and the same by hand.
fn protocol_setters() -> Vec<(Config, Config)> {
    let new = Config::new;
    let time = Duration::from_millis(2_500);
    let rate = NonZeroU64::new(5_000);
    let never = KeepaliveInterval::Never;
    let fec = Redundancy::Fec(FecConfig::SHORT);
    vec![
        (new().timing(Timing::FAST3), with(|it| it.kcp.timing = Timing::FAST3)),
        (
            new().congestion_control(CongestionControl::Off),
            with(|it| it.kcp.congestion_control = CongestionControl::Off),
        ),
        (
            new().windows(5, 7),
            with(|it| {
                (it.kcp.send_window, it.kcp.recv_window, it.kcp.auto_windows) = (5, 7, false);
            }),
        ),
        (new().mtu(777), with(|it| it.kcp.mtu = 777)),
        (new().mode(Mode::Message), with(|it| it.kcp.mode = Mode::Message)),
        (new().ack_policy(AckPolicy::Interval), with(|it| it.kcp.ack_policy = AckPolicy::Interval)),
        (
            new().write_policy(WritePolicy::Delayed),
            with(|it| it.kcp.write_policy = WritePolicy::Delayed),
        ),
        (new().redundancy(fec), with(|it| it.kcp.redundancy = fec)),
        (new().max_retransmit_interval(time), with(|it| it.kcp.max_retransmit_interval = time)),
        (new().dead_peer_timeout(Some(time)), with(|it| it.kcp.dead_peer_timeout = Some(time))),
        (new().keepalive(never), with(|it| it.kcp.keepalive = never)),
        (
            new().keepalive_side(KeepaliveSide::Active),
            with(|it| it.kcp.keepalive_side = KeepaliveSide::Active),
        ),
        (new().idle_timeout(None), with(|it| it.kcp.idle_timeout = None)),
        (new().close_notify(false), with(|it| it.kcp.close_notify = false)),
        (new().rate_limit(rate), with(|it| it.kcp.rate_limit = rate)),
        (new().initial_rate(rate), with(|it| it.kcp.initial_rate = rate)),
        (new().pacing_interval(time), with(|it| it.kcp.pacing_interval = time)),
    ]
}

/// As [`protocol_setters`], of connections and sockets.
fn endpoint_setters() -> Vec<(Config, Config)> {
    let new = Config::new;
    let time = Duration::from_millis(2_500);
    let cipher = Cipher::new(crate::crypto::Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    vec![
        (new().cipher(cipher.clone()), with(|it| it.cipher = cipher)),
        (new().replay_window(99), with(|it| it.replay_window = 99)),
        (new().conv(Some(4)), with(|it| it.conv = Some(4))),
        (new().assign_conv(true), with(|it| it.assign_conv = true)),
        (
            new().migration(Migration::Authenticated),
            with(|it| it.migration = Some(Migration::Authenticated)),
        ),
        (new().path_mode(PathMode::Duplicate), with(|it| it.path_mode = PathMode::Duplicate)),
        (new().early_data(true), with(|it| it.early_data = true)),
        (new().connect_timeout(time), with(|it| it.connect_timeout = time)),
        (new().send_buffer(5), with(|it| it.send_buffer = 5)),
        (new().recv_buffer(5), with(|it| it.recv_buffer = 5)),
        (new().linger(time), with(|it| it.linger = time)),
        (new().duplicates(3), with(|it| it.duplicates = 3)),
        (
            new().socket_buffers(Some(5), None),
            with(|it| {
                (it.socket.send_buffer_size, it.socket.recv_buffer_size) = (Some(5), None);
            }),
        ),
        (new().only_v6(true), with(|it| it.socket.only_v6 = true)),
        (new().dscp(Some(46)), with(|it| it.socket.dscp = Some(46))),
        (new().ttl(Some(3)), with(|it| it.socket.ttl = Some(3))),
        (new().device(Some("lo".into())), with(|it| it.socket.device = Some("lo".into()))),
        (new().shards(3), with(|it| it.socket.shards = 3)),
    ]
}

/// As [`protocol_setters`], of the limits.
fn limit_setters() -> Vec<(Config, Config)> {
    let new = |limits| Config::new().limits(limits);
    let time = Duration::from_millis(2_500);
    let limits = Limits::new;
    vec![
        (new(limits().max_connections(5)), with(|it| it.limits.max_connections = 5)),
        (new(limits().max_per_source(Some(5))), with(|it| it.limits.max_per_source = Some(5))),
        (new(limits().backlog(5)), with(|it| it.limits.backlog = 5)),
        (new(limits().max_unvalidated(5)), with(|it| it.limits.max_unvalidated = 5)),
        (new(limits().memory(5)), with(|it| it.limits.memory = 5)),
        (new(limits().validation_timeout(time)), with(|it| it.limits.validation_timeout = time)),
        (new(limits().require_validation(true)), with(|it| it.limits.require_validation = true)),
    ]
}

#[test]
fn setter_changes_its_setting_and_no_other() {
    for (set, expected) in [protocol_setters(), endpoint_setters(), limit_setters()].concat() {
        assert_eq!(set, expected);
        assert_ne!(set, Config::new());
    }
    let filtered = Config::new().packet_filter(|_, _| true).accept_filter(|_, _| true);
    assert!(filtered.packet_filter.is_some() && filtered.accept_filter.is_some());
}
