//! Sources of options: Go's forms, files, variables, and their precedence.

use super::*;

#[test]
fn role_is_the_first_argument_or_part_of_the_program_name() {
    for (program, args, role) in [
        ("kcpx-tunnel", &["client"][..], Role::Client),
        ("kcpx-tunnel", &["server"], Role::Server),
        ("/usr/bin/kcptun-client", &[], Role::Client),
        ("kcptun-server", &[], Role::Server),
        ("client_linux_amd64", &[], Role::Client),
        ("Server_Windows_amd64.exe", &[], Role::Server),
    ] {
        let settings = load_with(program, args, &[]).unwrap().settings;
        let found = match settings.tunnels[0] {
            Tunnel::Client(_) => Role::Client,
            Tunnel::Server(_) => Role::Server,
        };
        assert_eq!(found, role, "{program} {args:?}");
    }
    // The folder does not count.
    assert!(matches!(load_with("/srv/server/kcpx-tunnel", &[], &[]), Err(OptionsError::NoRole)));
}

#[test]
fn go_forms_of_flags_are_understood() {
    assert!(!client(&["-nocomp"]).compression);
    assert!(client(&["-nocomp=false"]).compression);
    assert!(client(&["-nocomp=F"]).compression);
    assert!(client(&["-nocomp", "-nocomp=0"]).compression);
    assert_eq!(client(&["-conn", "2", "--conn=0b11"]).sessions, 3);
    assert_eq!(client(&["-conn=0x10"]).sessions, 16);
    assert_eq!(client(&["-conn", "010"]).sessions, 8);
    // A value may begin with a dash, be empty, or contain an equals sign.
    assert_eq!(client(&["-key", "-conn", "-conn", "2"]).common.key.as_str(), "-conn");
    assert_eq!(client(&["-key", "--"]).common.key.as_str(), "--");
    assert_eq!(client(&["-key="]).common.key.as_str(), "");
    assert_eq!(client(&["-key=a=b", "-quiet"]).common.key.as_str(), "a=b");
    assert_eq!(client(&["-ratelimit", "-5"]).common.rate_limit, None);
    assert_eq!(client(&["-l=:1"]).listen.to_string(), ":1");
    assert_eq!(client(&["--l", ":1"]).listen.to_string(), ":1");
    assert!(client(&["-quiet", "--"]).common.quiet);
}

#[test]
fn malformed_command_lines_are_rejected_with_status_two() {
    for args in [
        &["client", "-nope", "1"][..],
        &["client", "-l:1"],
        &["client", "-ql"],
        &["client", "stray"],
        &["client", "-nocomp", "true"],
        &["client", "-conn"],
        &["client", "--", "-conn", "2"],
        &["client", "server"],
        &["-"],
    ] {
        let error = load(args).unwrap_err();
        let OptionsError::CommandLine(error) = error else { panic!("{args:?}: {error}") };
        assert_eq!(error.exit_code(), 2, "{args:?}");
    }
    let error = load(&["client", "-scavengetl", "5"]).unwrap_err().to_string();
    assert!(error.contains("--scavengettl"), "no suggestion in {error}");
}

#[cfg(unix)]
#[test]
fn argument_that_is_not_utf8_is_rejected() {
    use std::os::unix::ffi::OsStringExt;
    let argv = ["kcptun-client".into(), OsString::from_vec(vec![b'-', 0xff])];
    let error = Invocation::new(argv, Environment::new()).load().unwrap_err();
    assert_eq!(error.to_string(), "argument 1 is not UTF-8");
}

#[test]
fn stronger_sources_override_weaker_ones() {
    let file = TempFile::new(r#"{"key": "file", "mtu": 1000}"#);
    let common = |args: &[&str], variables: &[&str]| {
        let loaded = load_with("kcptun-client", args, variables).unwrap();
        loaded.settings.tunnels[0].common().clone()
    };
    let variable = "KCPTUN_KEY=variable";
    let plugin = [
        variable,
        "SS_REMOTE_HOST=r",
        "SS_REMOTE_PORT=1",
        "SS_LOCAL_HOST=l",
        "SS_LOCAL_PORT=2",
        "SS_PLUGIN_OPTIONS=key=plugin",
    ];
    for (args, variables, key) in [
        (&[][..], &[][..], "it's a secrect"),
        (&[], &[variable], "variable"),
        (&[], &["KCPTUN_KEY="], ""),
        (&["-key", "line"], &[variable], "line"),
        (&["-key", "line"], &plugin, "plugin"),
        (&["-key", "line", "-c", file.path()], &[variable], "file"),
        (&["-key", "line", "-c", file.path()], &plugin, "file"),
    ] {
        assert_eq!(common(args, variables).key.as_str(), key, "{args:?} {variables:?}");
    }
    let with_bom = TempFile::new("\u{feff}{\"key\": \"bom\"}");
    assert_eq!(common(&["-c", with_bom.path()], &[]).key.as_str(), "bom");
    // Options missing in the file keep their values.
    let both = common(&["-mtu", "1200", "-sndwnd", "99", "-c", file.path()], &[]);
    assert_eq!((both.mtu, both.send_window), (1000, 99));
}

/// All keys of the files in kcptun's dist folder.
const CLIENT_FILE: &str = r#"{
    "localaddr": ":2000", "remoteaddr": "192.0.2.1:2000", "key": "PASSWORD", "crypt": "aes-128",
    "qpp": false, "qpp-count": 61, "mode": "fast3", "mtu": 1400, "ratelimit": 1048576,
    "sndwnd": 128, "rcvwnd": 1024, "datashard": 10, "parityshard": 3, "dscp": 46, "nocomp": true,
    "acknodelay": false, "nodelay": 1, "interval": 40, "resend": 2, "nc": 1, "sockbuf": 16777217,
    "smuxver": 2, "smuxbuf": 16777217, "streambuf": 2097152, "keepalive": 10, "autoexpire": 300,
    "quiet": false, "tcp": false
}"#;
const SERVER_FILE: &str = r#"{
    "listen": ":2000", "target": "127.0.0.1:9999", "key": "PASSWORD", "crypt": "aes-128",
    "qpp": false, "qpp-count": 61, "mode": "fast3", "mtu": 1400, "sndwnd": 2048, "rcvwnd": 2048,
    "datashard": 10, "parityshard": 3, "dscp": 46, "nocomp": true, "acknodelay": false,
    "nodelay": 1, "interval": 40, "resend": 2, "nc": 1, "sockbuf": 16777217, "smuxver": 2,
    "smuxbuf": 16777217, "streambuf": 2097152, "keepalive": 10, "pprof": false, "quiet": false,
    "tcp": false
}"#;

#[test]
fn files_in_kcptuns_form_are_understood() {
    let (file, other) = (TempFile::new(CLIENT_FILE), TempFile::new(SERVER_FILE));
    let client = client(&["-c", file.path()]);
    assert_eq!(client.listen.to_string(), ":2000");
    assert_eq!(client.remote.to_string(), "192.0.2.1:2000");
    assert_eq!(client.auto_expire.map(|time| time.as_secs()), Some(300));
    assert!(!client.compression);
    assert_eq!((client.common.send_window, client.common.recv_window), (128, 1024));
    assert_eq!(client.common.rate_limit.map(|rate| rate.get()), Some(1_048_576));
    assert_eq!(client.common.timing, kcpx::Timing::FAST3);
    let server = server(&["-c", other.path()]);
    assert_eq!(
        (server.listen.to_string(), server.target.to_string()),
        (":2000".into(), "127.0.0.1:9999".into())
    );
    assert_eq!(
        (server.compression, server.smux_version.map(|version| version.number())),
        (Some(false), Some(2))
    );
    assert_eq!(server.common.socket_buffer, 16_777_217);
    assert_eq!(
        load(&["server", "-c", other.path()]).unwrap().warnings[1..],
        ["nodelay, interval, resend, nc ignored: mode fast3 sets them, use mode manual"]
    );
}

#[test]
fn file_may_have_a_server_detect_what_the_command_line_fixes() {
    let file = TempFile::new(r#"{"nocomp": "auto", "smuxver": "auto"}"#);
    let fixed = ["-nocomp", "-smuxver", "1"];
    let detected = |server: ServerSettings| (server.compression, server.smux_version);
    assert_eq!(detected(server(&fixed)), (Some(false), Some(crate::settings::SmuxVersion::V1)));
    let both = [&fixed[..], &["-c", file.path()]].concat();
    assert_eq!(detected(server(&both)), (None, None));
}

#[test]
fn array_in_a_file_makes_several_tunnels() {
    let file = TempFile::new(
        r#"[{"role": "client", "localaddr": "127.0.0.1:1", "key": "a", "log": "x.log"},
            {"ROLE": "server", "listen": ":2", "key": "b", "conn": 5}]"#,
    );
    for args in
        [&["-c", file.path(), "-mtu", "1300"][..], &["client", "-c", file.path(), "-mtu=1300"]]
    {
        let loaded = load(args).unwrap();
        let [Tunnel::Client(client), Tunnel::Server(server)] = &loaded.settings.tunnels[..] else {
            panic!("{:?}", loaded.settings)
        };
        assert_eq!(
            (client.listen.to_string(), client.common.key.as_str()),
            ("127.0.0.1:1".into(), "a")
        );
        assert_eq!((server.listen.to_string(), server.common.key.as_str()), (":2".into(), "b"));
        assert_eq!((client.common.mtu, server.common.mtu), (1300, 1300));
        assert_eq!(loaded.settings.process.log, Some("x.log".into()));
        let unknown = "the file of -c has keys that are no options, ignored: [\"conn\"]";
        // The second warning is about the cipher, once for both.
        assert_eq!((loaded.warnings[0].as_str(), loaded.warnings.len()), (unknown, 2));
    }
    let without = TempFile::new(r#"[{"key": "a"}]"#);
    assert!(matches!(load(&["-c", without.path()]), Err(OptionsError::NoRole)));
    assert!(load(&["server", "-c", without.path()]).is_ok());
    let log = TempFile::new(r#"[{"role": "client", "log": "x"}, {"role": "client", "log": "y"}]"#);
    let error = load(&["-c", log.path()]).unwrap_err().to_string();
    let differs =
        "\"log\" differs between the tunnels: the process has it once, so write it in one of them";
    assert_eq!(error, differs);
}

#[test]
fn plugin_variables_of_shadowsocks_set_the_addresses() {
    let addresses = [
        "SS_REMOTE_HOST=2001:db8::1",
        "SS_REMOTE_PORT=8388",
        "SS_LOCAL_HOST=127.0.0.1",
        "SS_LOCAL_PORT=1984",
    ];
    let with = |options: &str| {
        let mut variables: Vec<_> = addresses.to_vec();
        let options = format!("SS_PLUGIN_OPTIONS={options}");
        variables.push(&options);
        load_with("kcpx-tunnel", &[], &variables)
    };
    let loaded =
        with(r"key=a\;b;crypt=aes-128-gcm;mode=fast3;nocomp;__android_vpn;fast-open").unwrap();
    let Tunnel::Client(client) = &loaded.settings.tunnels[0] else { panic!("a server") };
    assert_eq!(client.remote.to_string(), "[2001:db8::1]:8388");
    assert_eq!(client.listen.to_string(), "127.0.0.1:1984");
    assert_eq!(client.common.key.as_str(), "a;b");
    assert!(!client.compression);
    assert_eq!(loaded.warnings, ["SS_PLUGIN_OPTIONS: __android_vpn, fast-open ignored"]);

    let loaded = with("role=server;key=x").unwrap();
    let Tunnel::Server(server) = &loaded.settings.tunnels[0] else { panic!("a client") };
    assert_eq!(server.listen.to_string(), "[2001:db8::1]:8388");
    assert_eq!(server.target.to_string(), "127.0.0.1:1984");

    let error = with("kye=x").unwrap_err().to_string();
    assert_eq!(error, "\"kye\" in SS_PLUGIN_OPTIONS is not an option: --help lists them");
    let error = with("role=both").unwrap_err().to_string();
    assert_eq!(
        error,
        "role in SS_PLUGIN_OPTIONS \"both\" is not allowed: use \"client\" or \"server\""
    );
    // One variable less is no plugin.
    assert!(matches!(load_with("kcpx-tunnel", &[], &addresses[..3]), Err(OptionsError::NoRole)));
    // Addresses on the command line do not count.
    let loaded = load_with("kcptun-server", &["-l", ":1", "-t", ":2"], &addresses).unwrap();
    let Tunnel::Server(server) = &loaded.settings.tunnels[0] else { panic!("a client") };
    assert_eq!(server.target.to_string(), "127.0.0.1:1984");
}

#[test]
fn unit_files_start_the_program_with_options_that_it_has() {
    let folder = format!("{}/systemd", env!("CARGO_MANIFEST_DIR"));
    let file = TempFile::new("{}");
    for role in [Role::Client, Role::Server] {
        let path = format!("{folder}/kcpx-tunnel-{role}@.service");
        let unit = fs::read_to_string(path).unwrap();
        let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let argv: Vec<_> = command
            .split(' ')
            .map(|arg| if arg == "/etc/%p/%i.json" { file.path() } else { arg })
            .collect();
        assert_eq!(argv[..2], ["/usr/bin/kcpx-tunnel", &role.to_string()]);
        assert!(argv.contains(&file.path()), "{argv:?}");
        assert!(load(&argv[1..]).is_ok());
        // Instances and roles of the same name must not share files.
        for folder in ["LogsDirectory", "RuntimeDirectory"] {
            assert!(unit.contains(&format!("\n{folder}=%p/%i\n")), "{folder} in {unit}");
        }
        // A late address is retried forever, refused options are not.
        for line in ["Restart=on-failure", "StartLimitIntervalSec=0", "RestartPreventExitStatus=2"]
        {
            assert!(unit.contains(&format!("\n{line}\n")), "{line} in {unit}");
        }
    }
}
