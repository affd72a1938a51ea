//! The table of options: every name, alias and default, in every form.

use std::num::NonZeroU64;
use std::time::Duration;

use kcpx::{
    AckPolicy, AutoRedundancy, Cipher, Config, CongestionControl, FecConfig, Key, Mode, Redundancy,
    Timing,
};
use kcpx_smux::Version;

use super::super::table::{Kind, OPTIONS};
use super::*;
use crate::session::smux_config;
use crate::settings::{Common, Mux, Process, SmuxVersion};

/// One option of kcptun or of this program.
struct Row {
    name: &'static str,
    alias: &'static str,
    /// Defaults in the form of [`shown`]; empty if the role lacks the option.
    client: &'static str,
    server: &'static str,
    /// A value other than the default, and its shown form.
    written: &'static str,
    shown: &'static str,
}

const fn row(
    name: &'static str,
    alias: &'static str,
    client: &'static str,
    server: &'static str,
    written: &'static str,
    shown: &'static str,
) -> Row {
    Row { name, alias, client, server, written, shown }
}

/// Written by hand from kcptun's table, independent of `OPTIONS`.
const ROWS: &[Row] = &[
    row("localaddr", "l", ":12948", "", "127.0.0.1:1", "127.0.0.1:1"),
    row("remoteaddr", "r", "vps:29900", "", "[::1]:2-3", "[::1]:2-3"),
    row("listen", "l", "", ":29900", "192.0.2.1:4-5", "192.0.2.1:4-5"),
    row("target", "t", "", "127.0.0.1:12948", "/run/t.sock", "/run/t.sock"),
    row("key", "", "it's a secrect", "it's a secrect", "-another key", "-another key"),
    row("crypt", "", "aes-256", "aes-256", "xtea", "xtea"),
    row("mode", "", "fast", "fast", "normal", "normal"),
    row("conn", "", "1", "", "7", "7"),
    row("autoexpire", "", "None", "", "600", "Some(600s)"),
    row("scavengettl", "", "Some(600s)", "", "-1", "None"),
    row("mtu", "", "1350", "1350", "0x400", "1024"),
    row("ratelimit", "", "None", "None", "1048576", "Some(1048576)"),
    row("sndwnd", "", "128", "1024", "2048", "2048"),
    row("rcvwnd", "", "512", "1024", "4096", "4096"),
    row("datashard", "ds", "Some(10)", "Some(10)", "20", "Some(20)"),
    row("parityshard", "ps", "Some(3)", "Some(3)", "0", "None"),
    row("dscp", "", "0", "0", "46", "46"),
    row("nocomp", "", "true", "auto", "true", "false"),
    row("acknodelay", "", "PerBatch", "PerBatch", "true", "Immediate"),
    row("nodelay", "", "fast", "fast", "1", "fast"),
    row("interval", "", "fast", "fast", "20", "fast"),
    row("resend", "", "fast", "fast", "2", "fast"),
    row("nc", "", "fast", "fast", "1", "fast"),
    row("sockbuf", "", "4194304", "4194304", "16777217", "16777217"),
    row("smuxver", "", "V2", "auto", "1", "V1"),
    row("smuxbuf", "", "4194304", "4194304", "16777217", "16777217"),
    row("framesize", "", "8192", "8192", "32768", "32768"),
    row("streambuf", "", "2097152", "2097152", "65536", "65536"),
    row("keepalive", "", "10s", "10s", "2", "2s"),
    row("closewait", "", "None", "None", "30", "Some(30s)"),
    row("snmplog", "", "None", "None", "./snmp-20060102.log", "Some(\"./snmp-20060102.log\")"),
    row("snmpperiod", "", "60s", "60s", "5", "5s"),
    row("log", "", "None", "None", "/var/log/k.log", "Some(\"/var/log/k.log\")"),
    row("quiet", "", "false", "false", "true", "true"),
    row("QPP", "", "", "", "false", ""),
    row("QPPCount", "", "", "", "61", ""),
    row("tcp", "", "", "", "false", ""),
    row("pprof", "", "", "", "true", ""),
    row("c", "", "", "", "", ""),
    row("mux", "", "Smux", "Smux", "none", "None"),
    row("redundancy", "", "false", "false", "auto", "true"),
    row("halfclosetimeout", "", "300s", "300s", "60", "60s"),
    row("metrics", "", "None", "None", "127.0.0.1:9464", "Some(127.0.0.1:9464)"),
    row("drain", "", "5s", "5s", "0", "0ns"),
];

/// Shows the field of an option.
fn shown(settings: &Settings, name: &str) -> String {
    match (&settings.tunnels[0], name) {
        (Tunnel::Client(client), "localaddr") => client.listen.to_string(),
        (Tunnel::Client(client), "remoteaddr") => client.remote.to_string(),
        (Tunnel::Client(client), "conn") => client.sessions.to_string(),
        (Tunnel::Client(client), "autoexpire") => format!("{:?}", client.auto_expire),
        (Tunnel::Client(client), "scavengettl") => format!("{:?}", client.scavenge_ttl),
        (Tunnel::Client(client), "nocomp") => client.compression.to_string(),
        (Tunnel::Client(client), "smuxver") => format!("{:?}", client.smux_version),
        (Tunnel::Server(server), "listen") => server.listen.to_string(),
        (Tunnel::Server(server), "target") => server.target.to_string(),
        (Tunnel::Server(server), "nocomp") => {
            server.compression.map_or_else(|| "auto".into(), |compression| compression.to_string())
        }
        (Tunnel::Server(server), "smuxver") => {
            server.smux_version.map_or_else(|| "auto".into(), |version| format!("{version:?}"))
        }
        (tunnel, _) => shown_common(tunnel, &settings.process, name),
    }
}

fn layout(redundancy: Redundancy) -> Option<FecConfig> {
    match redundancy {
        Redundancy::Fec(fec) => Some(fec),
        Redundancy::Auto(auto) => {
            Some(FecConfig::SHORT).filter(|fec| auto == AutoRedundancy::new().stock(*fec))
        }
        _ => None,
    }
}

fn shown_common(tunnel: &Tunnel, process: &Process, name: &str) -> String {
    let common = tunnel.common();
    match name {
        "key" => common.key.as_str().to_owned(),
        "crypt" => common.algorithm.to_string(),
        "mode" | "nodelay" | "interval" | "resend" | "nc" => {
            let modes = [("normal", Timing::NORMAL), ("fast", Timing::FAST)].into_iter();
            let chosen = (common.timing, common.congestion_control);
            let mut modes = modes.filter(|(_, timing)| (*timing, CongestionControl::Bbr) == chosen);
            modes.next().map_or("other", |(name, _)| name).to_owned()
        }
        "mtu" => common.mtu.to_string(),
        "ratelimit" => format!("{:?}", common.rate_limit),
        "sndwnd" => common.send_window.to_string(),
        "rcvwnd" => common.recv_window.to_string(),
        "datashard" => format!("{:?}", layout(common.redundancy).map(|fec| fec.data_shards())),
        "parityshard" => format!("{:?}", layout(common.redundancy).map(|fec| fec.parity_shards())),
        "dscp" => common.dscp.to_string(),
        "acknodelay" => format!("{:?}", common.ack_policy),
        "sockbuf" => common.socket_buffer.to_string(),
        "smuxbuf" => common.smux_buffer.to_string(),
        "framesize" => common.frame_size.to_string(),
        "streambuf" => common.stream_buffer.to_string(),
        "keepalive" => format!("{:?}", common.keepalive),
        "closewait" => format!("{:?}", common.close_wait),
        "quiet" => common.quiet.to_string(),
        "mux" => format!("{:?}", common.mux),
        "redundancy" => matches!(common.redundancy, Redundancy::Auto(_)).to_string(),
        "halfclosetimeout" => format!("{:?}", common.half_close_timeout),
        "snmplog" => format!("{:?}", process.snmp.as_ref().map(|snmp| &snmp.path)),
        // Without snmplog there is no period: the rows are loaded with one.
        "snmpperiod" => format!("{:?}", process.snmp.as_ref().unwrap().period),
        "log" => format!("{:?}", process.log),
        "metrics" => format!("{:?}", process.metrics),
        "drain" => format!("{:?}", process.drain),
        _ => String::new(),
    }
}

/// Arguments and variables that write `value` in every form.
fn forms(row: &Row, file: &TempFile, role: Role) -> Vec<(Vec<String>, Vec<String>)> {
    let Row { name, alias, written, .. } = row;
    let option = OPTIONS.iter().find(|option| option.name == *name).unwrap();
    let mut forms = Vec::new();
    for name in [name, alias].into_iter().filter(|name| !name.is_empty()) {
        for dashes in ["-", "--"] {
            forms.push((vec![format!("{dashes}{name}={written}")], vec![]));
            if option.kind == Kind::Flag && *written == "true" {
                forms.push((vec![format!("{dashes}{name}")], vec![]));
            } else if option.kind != Kind::Flag {
                forms.push((vec![format!("{dashes}{name}"), (*written).to_owned()], vec![]));
            }
        }
    }
    forms.push((vec!["-c".to_owned(), file.path().to_owned()], vec![]));
    if !["localaddr", "remoteaddr", "listen", "target"].contains(name) {
        let addresses =
            ["SS_REMOTE_HOST=h", "SS_REMOTE_PORT=1", "SS_LOCAL_HOST=h", "SS_LOCAL_PORT=2"];
        let mut variables: Vec<String> = addresses.iter().map(|&text| text.to_owned()).collect();
        variables.push(format!("SS_PLUGIN_OPTIONS={name}={written};role={role}"));
        forms.push((vec![], variables));
    }
    forms
}

fn json_of(row: &Row) -> String {
    let option = OPTIONS.iter().find(|option| option.name == row.name).unwrap();
    let key = if row.name == "QPPCount" { "qpp-count" } else { row.name };
    // Case does not matter.
    let key: String = key.chars().rev().collect::<String>().to_uppercase().chars().rev().collect();
    match option.kind {
        Kind::Text => format!("{{\"{key}\": {:?}}}", row.written),
        Kind::Flag => format!("{{\"{key}\": {}}}", row.written),
        Kind::Int => {
            format!("{{\"{key}\": {}}}", values::parse_int(row.written).unwrap())
        }
    }
}

fn load_role(role: Role, args: &[String], variables: &[String]) -> Loaded {
    let role = role.to_string();
    let mut all = vec![role.as_str(), "-snmplog", "x"];
    all.extend(args.iter().map(String::as_str));
    let variables: Vec<_> = variables.iter().map(String::as_str).collect();
    load_with("kcpx-tunnel", &all, &variables)
        .unwrap_or_else(|error| panic!("{all:?} {variables:?}: {error}"))
}

#[test]
fn every_option_of_the_table_is_tested() {
    for option in OPTIONS {
        let row = ROWS.iter().find(|row| row.name == option.name);
        let row = row.unwrap_or_else(|| panic!("no row for {}", option.name));
        assert_eq!(option.alias.unwrap_or_default(), row.alias, "{}", option.name);
    }
    assert_eq!(OPTIONS.len(), ROWS.len());
}

#[test]
fn defaults_of_both_roles_equal_kcptuns() {
    for role in [Role::Client, Role::Server] {
        let mut settings = load_role(role, &[], &[]).settings;
        for row in ROWS.iter().filter(|row| row.name != "snmplog") {
            let expected = if role == Role::Client { row.client } else { row.server };
            if !expected.is_empty() {
                assert_eq!(shown(&settings, row.name), expected, "{role} {}", row.name);
            }
        }
        settings = load(&[&role.to_string()]).unwrap().settings;
        assert_eq!(settings.process.snmp, None);
    }
}

#[test]
fn every_option_takes_effect_in_every_form() {
    for role in [Role::Client, Role::Server] {
        for row in ROWS.iter().filter(|row| row.name != "c") {
            let default = if role == Role::Client { row.client } else { row.server };
            if default.is_empty() && !row.shown.is_empty() {
                continue;
            }
            let file = TempFile::new(&json_of(row));
            for (args, variables) in forms(row, &file, role) {
                let settings = load_role(role, &args, &variables).settings;
                let name = row.name;
                assert_eq!(shown(&settings, name), row.shown, "{role}: {args:?} {variables:?}");
            }
        }
    }
}

/// Checks options, each with both ends of its range as [`shown`] has them.
fn check_ranges(args: &[&str], rows: &[(&str, [i64; 2], [&str; 2])]) {
    let load = |numbers: &[(&str, i64)]| {
        let numbers = numbers.iter().map(|(name, number)| format!("-{name}={number}"));
        let numbers: Vec<_> = numbers.collect();
        let numbers = numbers.iter().map(String::as_str);
        load(&args.iter().copied().chain(numbers).collect::<Vec<_>>())
    };
    for end in 0..2 {
        let numbers: Vec<_> = rows.iter().map(|(name, ends, _)| (*name, ends[end])).collect();
        let settings = load(&numbers).unwrap_or_else(|error| panic!("{error}")).settings;
        for (name, ends, shows) in rows {
            // A period of 0 is no file.
            let field = if (*name, ends[end]) == ("snmpperiod", 0) { "snmplog" } else { name };
            assert_eq!(shown(&settings, field), shows[end], "{name} {}", ends[end]);
        }
    }
    for (name, [min, max], _) in rows {
        for beyond in [min - 1, max + 1] {
            let error = load(&[(name, beyond)]).unwrap_err().to_string();
            let refused = format!("--{name} {beyond} is not allowed: use ");
            assert!(error.starts_with(&refused), "{error}");
        }
    }
}

#[test]
fn numbers_of_a_client_may_be_both_ends_of_their_range_and_nothing_beyond() {
    let rows = [
        ("conn", [1, 65_535], ["1", "65535"]),
        ("autoexpire", [0, 86_400], ["None", "Some(86400s)"]),
        ("scavengettl", [-1, 86_400], ["None", "Some(86400s)"]),
        ("datashard", [0, 255], ["None", "Some(255)"]),
    ];
    check_ranges(&["client", "-ps", "1"], &rows);
}

#[test]
fn numbers_of_a_server_may_be_both_ends_of_their_range_and_nothing_beyond() {
    let buffer = ([1, i64::from(i32::MAX)], ["1", "2147483647"]);
    let rows = [
        ("mtu", [50, 65_507], ["50", "65507"]),
        ("sndwnd", [1, 65_535], ["1", "65535"]),
        ("rcvwnd", [1, 65_535], ["1", "65535"]),
        ("parityshard", [0, 255], ["None", "Some(255)"]),
        ("dscp", [0, 63], ["0", "63"]),
        ("resend", [0, 255], ["other", "other"]),
        ("sockbuf", [1, 1 << 30], ["1", "1073741824"]),
        ("framesize", [1, 65_535], ["1", "65535"]),
        ("smuxbuf", buffer.0, buffer.1),
        ("streambuf", buffer.0, buffer.1),
        ("keepalive", [1, 28_800], ["1s", "28800s"]),
        ("closewait", [0, 86_400], ["Some(0ns)", "Some(86400s)"]),
        ("halfclosetimeout", [1, 86_400], ["1s", "86400s"]),
        ("snmpperiod", [0, 86_400], ["None", "86400s"]),
        ("drain", [0, 86_400], ["0ns", "86400s"]),
    ];
    let args = ["server", "-ds", "1", "-mode", "manual", "-crypt", "null", "-snmplog", "x"];
    check_ranges(&args, &rows);
}

#[test]
fn options_of_the_other_role_are_not_options() {
    for (role, name) in [
        ("client", "listen"),
        ("client", "target"),
        ("client", "t"),
        ("server", "localaddr"),
        ("server", "remoteaddr"),
        ("server", "r"),
        ("server", "conn"),
        ("server", "autoexpire"),
        ("server", "scavengettl"),
    ] {
        let error = load(&[role, &format!("-{name}"), "1"]).unwrap_err();
        let OptionsError::CommandLine(error) = error else { panic!("{role} {name}: {error}") };
        assert_eq!(error.exit_code(), 2, "{role} {name}");
        assert!(error.to_string().contains("unexpected argument"), "{error}");
    }
}

#[test]
fn modes_and_manual_timing_equal_kcptuns() {
    let chosen = |common: Common| (common.timing, common.congestion_control);
    for (mode, timing) in [
        ("normal", Timing::NORMAL),
        ("fast", Timing::FAST),
        ("fast2", Timing::FAST2),
        ("fast3", Timing::FAST3),
    ] {
        let bbr = (timing, CongestionControl::Bbr);
        assert_eq!(chosen(client(&["-mode", mode]).common), bbr);
        assert_eq!(chosen(server(&["-mode", mode]).common), bbr);
    }
    let manual = |args: &[&str]| {
        let args: Vec<_> = ["-mode", "manual"].into_iter().chain(args.iter().copied()).collect();
        chosen(client(&args).common)
    };
    assert_eq!(
        manual(&["-nodelay", "1", "-interval", "10", "-resend", "2", "-nc", "1"]),
        (Timing::FAST3, CongestionControl::Bbr)
    );
    let interval = Duration::from_millis(50);
    let slow = Timing::new(false, interval, None).unwrap();
    assert_eq!(manual(&[]), (slow, CongestionControl::Reno));
}

#[test]
fn every_cipher_of_kcptun_and_of_this_program_is_accepted() {
    for name in [
        "aes",
        "aes-128",
        "aes-192",
        "salsa20",
        "blowfish",
        "twofish",
        "cast5",
        "3des",
        "tea",
        "xtea",
        "xor",
        "sm4",
        "none",
        "null",
        "aes-128-gcm",
        "aes-256",
        "aes-192-gcm",
        "aes-256-gcm",
        "chacha20-poly1305",
    ] {
        let expected = if name == "aes" { "aes-256" } else { name };
        let common = client(&["-crypt", name]).common;
        assert_eq!(common.algorithm.name(), expected);
        let config = common.config().unwrap();
        let key = Key::derive(common.key.as_str(), Key::KCPTUN_SALT);
        let cipher = Cipher::from_name(expected, &key).unwrap();
        assert_eq!(settings(&config), settings(&config.clone().cipher(cipher)));
    }
}

/// All settings, the cipher by its name: ciphers are equal only if one is a clone of the other.
fn settings(config: &Config) -> String {
    format!("{config:?}")
}

#[test]
fn configuration_of_kcpx_has_what_the_options_say() {
    let common = server(&[
        "-mtu",
        "1400",
        "-sndwnd",
        "2000",
        "-rcvwnd",
        "3000",
        "-ds",
        "20",
        "-ps",
        "5",
        "-dscp",
        "46",
        "-sockbuf",
        "1000000",
        "-ratelimit",
        "500000",
        "-acknodelay",
        "-mode",
        "fast3",
    ])
    .common;
    let key = Key::derive(common.key.as_str(), Key::KCPTUN_SALT);
    let expected = Config::new()
        .mode(Mode::Stream)
        .timing(Timing::FAST3)
        .windows(2_000, 3_000)
        .mtu(1_400)
        .cipher(Cipher::from_name("aes-256", &key).unwrap())
        .redundancy(Redundancy::Fec(FecConfig::new(20, 5).unwrap()))
        .ack_policy(AckPolicy::Immediate)
        .socket_buffers(Some(1_000_000), Some(1_000_000))
        .rate_limit(NonZeroU64::new(500_000))
        .dscp(Some(46));
    assert_eq!(settings(&common.config().unwrap()), settings(&expected));
    let manual = client(&["-mode", "manual"]).common.config().unwrap();
    assert_eq!(manual, manual.clone().congestion_control(CongestionControl::Reno));
    let auto = client(&["-redundancy", "auto"]).common.config().unwrap();
    let with_stock = Redundancy::Auto(AutoRedundancy::new().stock(FecConfig::SHORT));
    assert_eq!(auto, auto.clone().redundancy(with_stock));
    let alone = client(&["-redundancy", "auto", "-ds", "0"]).common.config().unwrap();
    assert_eq!(alone, alone.clone().redundancy(Redundancy::Auto(AutoRedundancy::new())));
}

#[test]
fn configuration_of_smux_has_what_the_options_say() {
    let seconds = Duration::from_secs;
    let options = ["-framesize", "5000", "-smuxbuf", "700000", "-streambuf", "90000"];
    let common = |more: &[&str]| client(&[&options, more].concat()).common;
    let expected = kcpx_smux::Config::new()
        .keepalive(Some(seconds(20)))
        .timeout(seconds(60))
        .max_frame_size(5_000)
        .max_receive_buffer(700_000)
        .max_stream_buffer(90_000);
    for (version, of_smux) in [(SmuxVersion::V1, Version::V1), (SmuxVersion::V2, Version::V2)] {
        let expected = expected.clone().version(of_smux);
        let delayed = expected.clone().fin_delay(seconds(1));
        // An end is delayed for a peer that may be kcptun, unless `closewait` says otherwise.
        let plain = common(&["-keepalive", "20"]);
        assert_eq!(smux_config(&plain, version, true), expected);
        assert_eq!(smux_config(&plain, version, false), delayed);
        for close_wait in ["0", "30"] {
            let waits = common(&["-keepalive", "20", "-closewait", close_wait]);
            assert_eq!(smux_config(&waits, version, false), expected);
        }
    }
}

#[test]
fn keepalive_timeout_is_three_intervals_and_at_least_thirty_seconds() {
    for (keepalive, timeout) in [("1", 30), ("10", 30), ("11", 33), ("60", 180)] {
        let common = client(&["-keepalive", keepalive]).common;
        assert_eq!(common.keepalive_timeout().as_secs(), timeout);
    }
    assert_eq!(client(&["-mux", "none"]).common.mux, Mux::None);
}
