//! Changes by a reloaded file.

use super::*;

#[test]
fn reload_reports_what_changed_without_the_key() {
    let file = TempFile::new("");
    let loaded = |text: &str| {
        fs::write(file.path(), text).unwrap();
        load(&["server", "-c", file.path()]).unwrap()
    };
    let old = loaded(r#"{"key": "a", "target": "127.0.0.1:1", "listen": ":1"}"#);
    assert_eq!(old.changes(&old), [""; 0]);
    let new = loaded(r#"{"key": "b", "target": "127.0.0.1:2", "listen": ":2", "quiet": true}"#);
    assert_eq!(
        old.changes(&new),
        [
            "listen \":1\" became \":2\": takes effect after a restart",
            "target \"127.0.0.1:1\" became \"127.0.0.1:2\": takes effect with the next session",
            "key changed: takes effect after a restart",
            "quiet \"false\" became \"true\": takes effect with the next session",
            "open sessions keep the old values until they end",
        ]
    );
    let keepalive = loaded(
        r#"{"key": "b", "target": "127.0.0.1:2", "listen": ":2", "quiet": true,
                               "keepalive": 20}"#,
    );
    assert_eq!(
        new.changes(&keepalive),
        [
            "keepalive \"10\" became \"20\": takes effect with the next session, in smux alone: \
             KCP keeps the timeouts of the start",
            "open sessions keep the old values until they end",
        ]
    );
    let two = loaded(r#"[{"key": "a"}, {"key": "b"}]"#);
    assert_eq!(old.changes(&two), ["1 tunnels became 2: takes effect after a restart"]);
}

#[test]
fn reload_of_a_client_reports_when_open_sessions_end() {
    let file = TempFile::new("");
    let loaded = |text: &str| {
        fs::write(file.path(), text).unwrap();
        load(&["client", "-c", file.path()]).unwrap()
    };
    let next_session = "takes effect with the next session";
    let old = loaded(r#"{"key": "a", "remoteaddr": "a:1", "conn": 1}"#);
    assert_eq!(
        old.changes(&loaded(r#"{"key": "b", "remoteaddr": "b:1", "conn": 2, "drain": 9}"#)),
        [
            &format!("remoteaddr \"a:1\" became \"b:1\": {next_session}"),
            &format!("key changed: {next_session}"),
            "conn \"1\" became \"2\": takes effect after a restart",
            "drain \"5\" became \"9\": takes effect after a restart",
            "open sessions keep the old values until they end, and they do not expire \
             (autoexpire 0): restart to replace them",
        ]
    );
    let quiet = loaded(r#"{"key": "a", "remoteaddr": "a:1", "conn": 1, "quiet": true}"#);
    let line = "quiet \"false\" became \"true\": takes effect with the next connection";
    assert_eq!(old.changes(&quiet), [line]);

    let old = loaded(r#"{"key": "a", "autoexpire": 600}"#);
    assert_eq!(
        old.changes(&loaded(r#"{"key": "a", "autoexpire": 0}"#)),
        [
            &format!("autoexpire \"600\" became \"0\": {next_session}"),
            "open sessions keep the old values until they expire, within 600 s",
        ]
    );
    let old = loaded(r#"{"key": "a", "mux": "none"}"#);
    let new = loaded(r#"{"key": "b", "mux": "none"}"#);
    assert_eq!(old.changes(&new), ["key changed: takes effect with the next connection"]);
}

/// The tunnels of `settings`: log line, windows, and whether it is quiet.
fn held(loaded: &Loaded) -> Vec<(String, u16, bool)> {
    let tunnels = loaded.settings.tunnels.iter();
    let held =
        |tunnel: &Tunnel| (tunnel.to_string(), tunnel.common().send_window, tunnel.common().quiet);
    tunnels.map(held).collect()
}

#[test]
fn reload_keeps_values_of_the_start_until_the_restart_and_reports_them_each_time() {
    let file = TempFile::new("");
    let loaded = |text: &str| {
        fs::write(file.path(), text).unwrap();
        load(&["server", "-c", file.path()]).unwrap()
    };
    let start = loaded(r#"{"key": "a", "listen": ":1", "sndwnd": 7, "log": "old"}"#);
    let new = loaded(r#"{"key": "b", "listen": ":2", "quiet": true, "drain": 9, "log": "new"}"#);
    assert_eq!(start.changes(&new).len(), 7);
    let now = start.without_restart(&new).unwrap();
    // Settings that take effect: only `quiet` is new.
    let mut expected = start.settings.clone();
    let Tunnel::Server(server) = &mut expected.tunnels[0] else { panic!("a client") };
    server.common.quiet = true;
    assert_eq!(now.settings, expected);
    let waiting = [
        "listen \":1\" became \":2\": takes effect after a restart",
        "key changed: takes effect after a restart",
        "sndwnd \"7\" became \"1024\": takes effect after a restart",
        "log \"old\" became \"new\": takes effect after a restart",
        "drain \"5\" became \"9\": takes effect after a restart",
    ];
    for _ in 0..2 {
        assert_eq!(now.changes(&new), waiting);
        assert_eq!(now.without_restart(&new).unwrap(), now);
    }
    // Back to the values of the start: nothing waits for a restart.
    let back = loaded(r#"{"key": "a", "listen": ":1", "sndwnd": 7, "log": "old", "quiet": true}"#);
    assert_eq!(now.changes(&back), [""; 0]);
    assert_eq!(now.without_restart(&back).unwrap().settings, now.settings);
}

#[test]
fn reload_of_a_client_keeps_its_mux_and_takes_over_its_server() {
    let file = TempFile::new("");
    let loaded = |text: &str| {
        fs::write(file.path(), text).unwrap();
        load(&["client", "-c", file.path()]).unwrap()
    };
    let start = loaded(r#"{"key": "a", "mux": "none", "remoteaddr": "a:1"}"#);
    let new = loaded(r#"{"key": "b", "remoteaddr": "b:1", "conn": 4}"#);
    let now = start.without_restart(&new).unwrap();
    let Tunnel::Client(client) = &now.settings.tunnels[0] else { panic!("a server") };
    assert_eq!((client.remote.to_string(), client.sessions), ("b:1".to_owned(), 1));
    assert_eq!(client.common.mux, crate::settings::Mux::None);
    assert_eq!(
        now.changes(&new),
        [
            "mux \"none\" became \"smux\": takes effect after a restart",
            "conn \"1\" became \"4\": takes effect after a restart",
        ]
    );
}

#[test]
fn reload_with_another_number_or_role_of_tunnels_keeps_them() {
    let file = TempFile::new("");
    let loaded = |text: &str| {
        fs::write(file.path(), text).unwrap();
        load(&["-c", file.path()]).unwrap()
    };
    let start = loaded(r#"[{"role": "client", "key": "a"}, {"role": "server", "key": "b"}]"#);
    let one = loaded(r#"[{"role": "client", "key": "a", "quiet": true}]"#);
    let now = start.without_restart(&one).unwrap();
    assert_eq!(now.settings, start.settings);
    assert_eq!(now.changes(&one), ["2 tunnels became 1: takes effect after a restart"]);
    // The other tunnel applies what it can.
    let role = loaded(
        r#"[{"role": "server", "key": "a"}, {"role": "server", "key": "c", "quiet": true}]"#,
    );
    let now = start.without_restart(&role).unwrap();
    let mut expected = held(&start);
    expected[1].2 = true;
    assert_eq!(held(&now), expected);
    assert_eq!(
        now.changes(&role),
        [
            "tunnel 1: role client became server: takes effect after a restart",
            "tunnel 2: key changed: takes effect after a restart",
        ]
    );
}

#[test]
fn reload_with_tunnels_in_another_order_keeps_the_key_and_target_of_each() {
    let file = TempFile::new("");
    let loaded = |role: &str, tunnels: [&str; 2]| {
        fs::write(file.path(), format!("[{{{}}}, {{{}}}]", tunnels[0], tunnels[1])).unwrap();
        load(&[role, "-c", file.path()]).unwrap()
    };
    for (role, address, [a, b, c]) in [
        (
            "server",
            "listen",
            [
                r#""listen": ":1", "key": "a", "target": "x:1""#,
                r#""listen": ":2", "key": "b", "target": "y:1""#,
                r#""listen": ":3", "key": "c", "target": "z:1""#,
            ],
        ),
        (
            "client",
            "localaddr",
            [
                r#""localaddr": ":1", "key": "a", "remoteaddr": "x:1""#,
                r#""localaddr": ":2", "key": "b", "remoteaddr": "y:1""#,
                r#""localaddr": ":3", "key": "c", "remoteaddr": "z:1""#,
            ],
        ),
    ] {
        let start = loaded(role, [a, b]);
        let line = |tunnel: u8, old: u8, new: u8| {
            format!(
                "tunnel {tunnel}: {address} \":{old}\" became \":{new}\": all of this tunnel takes \
                 effect after a restart"
            )
        };
        for (new, lines) in [
            // Swapped.
            ([b, a], [line(1, 1, 2), line(2, 2, 1)]),
            // The first one deleted, another one appended.
            ([b, c], [line(1, 1, 2), line(2, 2, 3)]),
        ] {
            let new = loaded(role, new);
            let now = start.without_restart(&new).unwrap();
            assert_eq!(now.settings, start.settings, "{role}");
            assert_eq!(start.changes(&new), lines);
            assert_eq!(now.changes(&new), lines);
        }
        // A tunnel that keeps its address applies what it can.
        let quiet = format!("{b}, \"quiet\": true");
        let now = start.without_restart(&loaded(role, [c, &quiet])).unwrap();
        let mut expected = held(&start);
        expected[1].2 = true;
        assert_eq!(held(&now), expected, "{role}");
    }
}
