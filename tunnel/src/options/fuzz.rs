//! Body of the fuzz target `tunnel_config`: options from any source. Private; see `fuzz/`.

use std::fmt::Display;
use std::str::FromStr;

use super::{Environment, Invocation, OptionsError};
use crate::session::smux_config;
use crate::settings::{Settings, SmuxVersion, Tunnel};
use crate::transport;

/// Loads an invocation from `data`: arguments, variables and a file, separated by zero bytes.
///
/// A part with an equals sign that begins with `SS_` or `KCPTUN_` is a variable, a part that begins
/// with a bracket or a brace is the file, and the others are arguments.
///
/// # Panics
///
/// If settings are out of their ranges.
pub fn tunnel_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut argv = vec!["kcpx-tunnel"];
    let (mut environment, mut file) = (Environment::new(), None);
    for part in text.split('\0') {
        match part.split_once('=') {
            Some((name, value)) if name.starts_with("SS_") || name.starts_with("KCPTUN_") => {
                environment.insert(name.to_owned(), value.to_owned());
            }
            _ if part.starts_with(['[', '{']) => file = Some(part),
            _ => argv.push(part),
        }
    }
    if file.is_some() {
        argv.extend(["-c", "file.json"]);
    }
    let invocation = Invocation::new(argv, environment);
    let file = file.unwrap_or_default();
    let load = || invocation.load_reading(|_| Ok(file.to_owned()));
    match load() {
        Ok(loaded) => {
            loaded.settings.tunnels.iter().for_each(check_tunnel);
            check_process(&loaded.settings);
            let again = load().expect("a valid invocation loads again");
            assert_eq!(loaded, again);
            assert_eq!(loaded.changes(&again), [""; 0]);
        }
        // clap writes several lines, and escapes nothing.
        Err(OptionsError::CommandLine(error)) => assert!([0, 2].contains(&error.exit_code())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn check_tunnel(tunnel: &Tunnel) {
    let common = tunnel.common();
    if let Err(error) = transport::config(common) {
        panic!("settings whose KCP configuration is refused: {error}");
    }
    for peer_is_kcpx in [false, true] {
        if let Err(error) = smux_config(common, SmuxVersion::V2, peer_is_kcpx).validate() {
            panic!("settings whose smux configuration is refused: {error}");
        }
    }
    assert!(common.stream_buffer <= common.smux_buffer && common.frame_size > 0);
    assert!(!common.keepalive.is_zero() && common.keepalive_timeout() >= common.keepalive);
    assert!(!tunnel.to_string().is_empty());
    match tunnel {
        Tunnel::Client(client) => {
            assert!(client.sessions > 0 && *client.remote.ports.start() > 0);
            check_address(&client.listen);
            check_address(&client.remote);
        }
        Tunnel::Server(server) => {
            assert!(server.listen.ports.start() <= server.listen.ports.end());
            check_address(&server.listen);
            check_address(&server.target);
        }
    }
}

fn check_process(settings: &Settings) {
    assert!(!settings.tunnels.is_empty());
    if let Some(snmp) = &settings.process.snmp {
        assert!(!snmp.path.is_empty() && !snmp.period.is_zero());
    }
}

/// A displayed address parses to the same address.
fn check_address<T: Display + FromStr + PartialEq>(address: &T) {
    let shown = address.to_string();
    assert!(shown.parse().is_ok_and(|parsed: T| parsed == *address), "{shown:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of random inputs.
    const PARTS: [&str; 40] = [
        "client",
        "server",
        "-c",
        "-l",
        "-r",
        "-t",
        "-conn",
        "--mode=fast3",
        "-mode=manual",
        "-interval=0x7fffffffffffffff",
        "-nocomp=auto",
        "-nocomp",
        "-smuxver=auto",
        "-key",
        "-mtu=50",
        "-mtu=65507",
        "-ds=255",
        "-ps=1",
        "-crypt=chacha20-poly1305",
        "-crypt=xor",
        "-smuxbuf=1",
        "-streambuf=1",
        "-keepalive=28800",
        "-sockbuf=0b1",
        ":0",
        "[::1]:1-2",
        "/run/a:1",
        "[::]:65535",
        "é:1",
        "-ratelimit=-9223372036854775808",
        "SS_REMOTE_HOST=::1",
        "SS_REMOTE_PORT=1",
        "SS_LOCAL_HOST=h",
        "SS_LOCAL_PORT=65535",
        r"SS_PLUGIN_OPTIONS=role=server;key=\;;nocomp;c=x",
        "KCPTUN_KEY=\n",
        r#"{"role":"client","qpp":null,"CONN":3}"#,
        r#"[{"role":"server","x":1},{"role":"client","listen":":1"}]"#,
        "--",
        "-h",
    ];

    #[test]
    fn random_invocations_make_valid_settings_or_an_error() {
        for seed in 0..400 {
            println!("seed {seed}");
            let mut random = fastrand::Rng::with_seed(seed);
            let mut parts = vec![["client", "server"][random.usize(..2)]];
            parts.extend((0..random.usize(..6)).map(|_| PARTS[random.usize(..PARTS.len())]));
            tunnel_config(parts.join("\0").as_bytes());
        }
    }

    /// All settings are checked before sockets are opened, so extreme values must yield valid
    /// configurations.
    #[test]
    fn longest_times_and_smallest_buffers_are_valid_configurations() {
        let times = "-keepalive=28800\0-closewait=86400\0-halfclosetimeout=86400\0-drain=86400";
        let buffers = "-smuxbuf=1\0-streambuf=1\0-framesize=1\0-sockbuf=1\0-sndwnd=1\0-rcvwnd=1";
        for role in ["client", "server"] {
            for options in [times, buffers] {
                tunnel_config(format!("{role}\0{options}").as_bytes());
                let argv = format!("kcpx-tunnel\0{role}\0{options}");
                let invocation = Invocation::new(argv.split('\0'), Environment::new());
                assert!(invocation.load().is_ok(), "{argv:?}");
            }
        }
    }

    #[test]
    fn malformed_bytes_do_not_panic() {
        for input in [
            &b""[..],
            b"\xff",
            b"\0\0",
            b"client\0-",
            b"[",
            b"{}",
            b"server\0{\"key\":\"\\ud800\"}",
        ] {
            tunnel_config(input);
        }
    }
}
