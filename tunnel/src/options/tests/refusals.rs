//! Exact texts of errors and warnings.

use super::*;

fn refusal(args: &[&str]) -> String {
    load(args).map(|loaded| loaded.settings).unwrap_err().to_string()
}

#[test]
fn unsupported_options_name_the_alternative() {
    let qpp = "QPP is not supported: use --crypt aes-128-gcm on both sides";
    let tcp = "tcp is not supported: use udp2raw or phantun in front";
    for role in ["client", "server"] {
        assert_eq!(refusal(&[role, "-QPP"]), qpp);
        assert_eq!(refusal(&[role, "--QPP=true"]), qpp);
        assert_eq!(refusal(&[role, "-tcp"]), tcp);
        for (json, error) in [(r#"{"qpp": true}"#, qpp), (r#"{"tcp": true}"#, tcp)] {
            let file = TempFile::new(json);
            assert_eq!(refusal(&[role, "-c", file.path()]), error);
        }
        let file = TempFile::new(r#"{"qpp": false, "tcp": false, "qpp-count": 61}"#);
        assert!(load(&[role, "-QPPCount", "7", "-c", file.path()]).is_ok());
    }
}

#[test]
fn values_out_of_range_are_rejected_with_the_range() {
    let ciphers = "--crypt aes-512 is not allowed: use one of aes, null, none, aes-128, aes-192, \
                   aes-256, aes-128-gcm, aes-192-gcm, aes-256-gcm, chacha20-poly1305, salsa20, xor, \
                   3des, blowfish, cast5, sm4, tea, twofish, xtea";
    for (args, error) in [
        (&["client", "-crypt", "aes-512"][..], ciphers),
        (&["client", "-conn", "0"], "--conn 0 is not allowed: use 1 to 65535"),
        (&["client", "-conn", "65536"], "--conn 65536 is not allowed: use 1 to 65535"),
        (&["client", "-conn", "two"], "--conn two is not allowed: use 1 to 65535"),
        (&["client", "-conn", ""], "--conn \"\" is not allowed: use 1 to 65535"),
        (&["client", "-keepalive", "0"], "--keepalive 0 is not allowed: use 1 to 28800 seconds"),
        (
            &["server", "-keepalive=28801"],
            "--keepalive 28801 is not allowed: use 1 to 28800 seconds",
        ),
        (&["client", "-autoexpire=-1"], "--autoexpire -1 is not allowed: use 0 to 86400 seconds"),
        (
            &["client", "-scavengettl=-2"],
            "--scavengettl -2 is not allowed: use -1 to 86400 seconds",
        ),
        (&["client", "-smuxver", "3"], "--smuxver 3 is not allowed: use 1 or 2"),
        (&["client", "-smuxver", "auto"], "--smuxver auto is not allowed: use 1 or 2"),
        (&["server", "-smuxver", "0"], "--smuxver 0 is not allowed: use 1, 2 or auto"),
        (&["client", "-nocomp=auto"], "--nocomp auto is not allowed: use true or false"),
        (&["client", "-mtu", "49"], "--mtu 49 is not allowed: use 50 to 65507 bytes"),
        (&["server", "-sndwnd", "0"], "--sndwnd 0 is not allowed: use 1 to 65535 packets"),
        (&["server", "-rcvwnd", "65536"], "--rcvwnd 65536 is not allowed: use 1 to 65535 packets"),
        (&["server", "-dscp", "64"], "--dscp 64 is not allowed: use 0 to 63"),
        (&["server", "-ds", "256"], "--datashard 256 is not allowed: use 0 to 255"),
        (
            &["server", "-ds", "250", "-ps", "7"],
            "--parityshard 7 is not allowed: use at most 6 with 250 data packets",
        ),
        (&["server", "-sockbuf", "0"], "--sockbuf 0 is not allowed: use 1 to 1073741824 bytes"),
        (
            &["server", "-framesize", "65536"],
            "--framesize 65536 is not allowed: use 1 to 65535 bytes",
        ),
        (
            &["server", "-smuxbuf", "1000"],
            "--streambuf 2097152 is not allowed: use at most smuxbuf, 1000 bytes",
        ),
        (
            &["server", "-smuxbuf=2147483648"],
            "--smuxbuf 2147483648 is not allowed: use 1 to 2147483647 bytes",
        ),
        (&["server", "-closewait=-1"], "--closewait -1 is not allowed: use 0 to 86400 seconds"),
        (&["server", "-mux", "yamux"], "--mux yamux is not allowed: use smux or none"),
        (&["server", "-redundancy", "on"], "--redundancy on is not allowed: use off or auto"),
        (
            &["server", "-metrics", "9464"],
            "--metrics 9464 is not allowed: use address:port, such as 127.0.0.1:9464",
        ),
        (&["server", "-ratelimit", "fast"], "--ratelimit fast is not allowed: use an integer"),
        (&["client", "-r", "vps"], "--remoteaddr: \"vps\" has no port: write host:port"),
        (
            &["client", "-r", "vps:9-8"],
            "--remoteaddr: \"vps:9-8\" has a port range that ends before it begins",
        ),
        (
            &["server", "-l", "::1:29900"],
            "--listen: \"::1:29900\" needs brackets around its IPv6 address: [address]:port",
        ),
        (
            &["server", "-t", "host:http"],
            "--target: \"host:http\" has a port outside 0..=65535 or one that is not a number",
        ),
        (
            &[],
            "the role is missing: write `kcpx-tunnel client` or `kcpx-tunnel server`, each with --help \
             for its options",
        ),
    ] {
        assert_eq!(refusal(args), error, "{args:?}");
    }
}

#[test]
fn errors_name_the_place_of_the_value() {
    let error = load_with(
        "kcptun-client",
        &["-conn", "1"],
        &[
            "SS_REMOTE_HOST=h",
            "SS_REMOTE_PORT=1",
            "SS_LOCAL_HOST=h",
            "SS_LOCAL_PORT=2",
            "SS_PLUGIN_OPTIONS=conn=0",
        ],
    );
    let expected = "conn in SS_PLUGIN_OPTIONS 0 is not allowed: use 1 to 65535";
    assert_eq!(error.unwrap_err().to_string(), expected);
    let port = load_with(
        "kcptun-client",
        &[],
        &["SS_REMOTE_HOST=h", "SS_REMOTE_PORT=0", "SS_LOCAL_HOST=h", "SS_LOCAL_PORT=2"],
    );
    assert_eq!(
        port.unwrap_err().to_string(),
        "SS_REMOTE_PORT=\"0\" is not allowed: use 1 to 65535"
    );
}

#[test]
fn malformed_files_are_rejected() {
    for (text, wrong) in [
        ("[]", "PATH: the array is empty: each object in it is one tunnel"),
        ("[1]", "PATH: the array holds something else than objects"),
        ("3", "PATH: the file holds neither an object nor an array of objects"),
        ("{", "PATH is not JSON: EOF while parsing an object at line 1 column 1"),
        (r#"{"conn": "1"}"#, "\"conn\" in PATH \"1\" is not allowed: use an integer"),
        (r#"{"conn": 1.5}"#, "\"conn\" in PATH 1.5 is not allowed: use an integer"),
        (r#"{"conn": 0}"#, "\"conn\" in PATH 0 is not allowed: use 1 to 65535"),
        (r#"{"smuxver": "auto"}"#, "\"smuxver\" in PATH auto is not allowed: use 1 or 2"),
        (r#"{"nocomp": "auto"}"#, "\"nocomp\" in PATH auto is not allowed: use true or false"),
        (r#"{"nocomp": "yes"}"#, "\"nocomp\" in PATH \"yes\" is not allowed: use true or false"),
        (r#"{"quiet": 1}"#, "\"quiet\" in PATH 1 is not allowed: use true or false"),
        (r#"{"key": 7}"#, "\"key\" in PATH (a number) is not allowed: use a string"),
        (r#"{"Key": [7]}"#, "\"key\" in PATH (an array) is not allowed: use a string"),
        (
            r#"{"role": "peer"}"#,
            "\"role\" in PATH \"peer\" is not allowed: use \"client\" or \"server\"",
        ),
    ] {
        let file = TempFile::new(text);
        assert_eq!(
            refusal(&["client", "-c", file.path()]).replace(file.path(), "PATH"),
            wrong,
            "{text}"
        );
    }
    let error = refusal(&["client", "-c", "/nonexistent/x.json"]);
    assert!(error.starts_with("cannot read /nonexistent/x.json: "), "{error}");
    let null = TempFile::new(r#"{"conn": null}"#);
    assert_eq!(client(&["-conn", "3", "-c", null.path()]).sessions, 3);
}

#[test]
fn error_of_a_mistyped_word_says_what_to_write() {
    for (args, sentence) in [
        (
            &["client", "-mode", "fast33"][..],
            "--mode fast33 is not allowed: use normal, fast, fast2, fast3, or manual with nodelay, \
             interval, resend and nc",
        ),
        (
            &["client", "-l", "nonsense"],
            "--localaddr: \"nonsense\" has no port: write host:port, or ./nonsense for a unix socket",
        ),
        (&["serve"], "\"serve\" is not a role: did you mean `kcpx-tunnel server`?"),
        (&["clinet", "-l", ":1"], "\"clinet\" is not a role: did you mean `kcpx-tunnel client`?"),
        (&["run"], "\"run\" is not a role: write `kcpx-tunnel client` or `kcpx-tunnel server`"),
    ] {
        assert_eq!(refusal(args), sentence);
    }
}

#[test]
fn acknodelay_that_is_written_as_false_acknowledges_each_interval() {
    let policy = |args: &[&str]| client(args).common.ack_policy;
    assert_eq!(policy(&[]), kcpx::AckPolicy::PerBatch);
    assert_eq!(policy(&["-acknodelay=false"]), kcpx::AckPolicy::Interval);
    assert_eq!(policy(&["-acknodelay"]), kcpx::AckPolicy::Immediate);
    let file = TempFile::new(r#"{"acknodelay": false}"#);
    assert_eq!(policy(&["-c", file.path()]), kcpx::AckPolicy::Interval);
}

#[test]
fn warnings_say_what_is_probably_not_meant() {
    let key = "the key is kcptun's default, which is public: set KCPTUN_KEY or --key on both sides";
    let all = "localaddr :12948 accepts connections on all addresses of this host: write \
               127.0.0.1:PORT for this host alone";
    let cipher = "crypt aes accepts packets that were altered on the path, as kcptun does: set --crypt \
                  aes-128-gcm on both sides";
    let quiet = ["-key", "k", "-l", "127.0.0.1:1", "-crypt", "aes-128-gcm"];
    assert_eq!(load(&["client"]).unwrap().warnings, [key, cipher, all]);
    assert_eq!(load(&["server"]).unwrap().warnings, [key, cipher]);
    for (args, warning) in [
        (&["-key", ""][..], "the key is empty: set KCPTUN_KEY or --key on both sides"),
        (&["-pprof"], "pprof is ignored: use --metrics"),
        (&["-nodelay", "1"], "nodelay ignored: mode fast sets them, use mode manual"),
        (&["-nc", "1", "-mode", "fast3"], "nc ignored: mode fast3 sets them, use mode manual"),
        (&["-mode", "manual", "-interval", "9"], "interval 9 is outside 10 to 5000 ms: 10 is used"),
        (
            &["-mode", "manual", "-interval", "5001"],
            "interval 5001 is outside 10 to 5000 ms: 5000 is used",
        ),
        (&["-mtu", "1501"], "mtu 1501: kcptun receives at most 1500 bytes"),
        (&["-metrics", "0.0.0.0:9464"], "metrics 0.0.0.0:9464 is reachable from other hosts"),
    ] {
        let args: Vec<_> = ["client"].iter().chain(&quiet).chain(args).copied().collect();
        assert_eq!(load(&args).unwrap().warnings, [warning], "{args:?}");
    }
    for args in [
        &[][..],
        &["-mode", "manual", "-interval", "10"],
        &["-mode", "manual", "-interval", "5000"],
        &["-mtu", "1500"],
        &["-metrics", "127.0.0.1:9464"],
    ] {
        let args: Vec<_> = ["client"].iter().chain(&quiet).chain(args).copied().collect();
        assert_eq!(load(&args).unwrap().warnings, [""; 0], "{args:?}");
    }
}

#[test]
fn ciphers_that_accept_altered_packets_are_named_once() {
    for algorithm in kcpx::Algorithm::ALL {
        let name = algorithm.name();
        let warnings = load(&["server", "-key", "k", "-crypt", name]).unwrap().warnings;
        let count = warnings.iter().filter(|text| text.contains("altered")).count();
        // Without a key there is nothing for an attacker to alter unseen.
        let quiet = ["null", "none"].contains(&name) || algorithm.is_aead();
        assert_eq!(count, usize::from(!quiet), "{name}: {warnings:?}");
    }
}

#[test]
fn part_behind_a_key_with_a_semicolon_is_not_shown() {
    let refusal = |options: &str| {
        let options = format!("SS_PLUGIN_OPTIONS={options}");
        let addresses =
            ["SS_REMOTE_HOST=h", "SS_REMOTE_PORT=1", "SS_LOCAL_HOST=h", "SS_LOCAL_PORT=2"];
        load_with("kcptun-client", &[], &[&addresses[..], &[&options]].concat()).unwrap_err()
    };
    for (options, part) in [("key=abc;secret", 2), ("mode=fast;key=abc;quiet;sec=ret;conn=2", 4)] {
        let error = refusal(options);
        let expected = format!(
            "part {part} of SS_PLUGIN_OPTIONS is not an option: --help lists them; write \\; for \
             a semicolon in the key"
        );
        assert_eq!(error.to_string(), expected);
        assert!(!format!("{error:?}").contains("sec"), "{error:?}");
    }
    let typo = "\"kye\" in SS_PLUGIN_OPTIONS is not an option: --help lists them";
    assert_eq!(refusal("kye=abc;key=x").to_string(), typo);
}

#[test]
fn debug_output_has_no_key() {
    let file = TempFile::new(r#"{"key": "secret in a file"}"#);
    let argv = ["kcpx-tunnel", "client", "-key", "secret argument", "-c", file.path()];
    let variables = [("KCPTUN_KEY", "secret variable"), ("SS_PLUGIN_OPTIONS", "key=secret")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let invocation = Invocation::new(argv, variables.into());
    let loaded = invocation.load().unwrap();
    assert_eq!(loaded.settings.tunnels[0].common().key.as_str(), "secret in a file");
    for shown in [format!("{invocation:?}"), format!("{loaded:?}")] {
        assert!(!shown.contains("secret"), "{shown}");
    }
    // Everything else is shown.
    assert!(format!("{loaded:?}").contains("vps"));
}
