//! SIP003: the environment variables that shadowsocks sets for a plugin.

use std::net::IpAddr;

use super::error::OptionsError;
use super::table::{self, Role};
use super::values::{Environment, Place, Values};

const REMOTE_HOST: &str = "SS_REMOTE_HOST";
const REMOTE_PORT: &str = "SS_REMOTE_PORT";
const LOCAL_HOST: &str = "SS_LOCAL_HOST";
const LOCAL_PORT: &str = "SS_LOCAL_PORT";
const OPTIONS: &str = "SS_PLUGIN_OPTIONS";

/// Names added by shadowsocks for Android and forks, without a meaning here.
const IGNORED: [&str; 2] = ["__android_vpn", "fast-open"];

/// Contents of the variables.
#[derive(Debug, Default)]
pub(super) struct Plugin {
    /// `role=server` in the options.
    pub(super) role: Option<Role>,
    /// Options, which override the command line.
    pub(super) options: Values,
    /// `host:port` of the network side, and of the local side.
    pub(super) remote: String,
    pub(super) local: String,
    /// Names that were ignored.
    pub(super) ignored: Vec<&'static str>,
}

impl Plugin {
    /// Reads the variables; `None` unless all four addresses are set.
    pub(super) fn from_environment(
        environment: &Environment,
        role: Option<Role>,
    ) -> Result<Option<Self>, OptionsError> {
        let get = |name: &str| environment.get(name).map(String::as_str);
        let (Some(remote_host), Some(remote_port), Some(local_host), Some(local_port)) =
            (get(REMOTE_HOST), get(REMOTE_PORT), get(LOCAL_HOST), get(LOCAL_PORT))
        else {
            return Ok(None);
        };
        let mut plugin = Self {
            role,
            remote: address(REMOTE_HOST, remote_host, REMOTE_PORT, remote_port)?,
            local: address(LOCAL_HOST, local_host, LOCAL_PORT, local_port)?,
            ..Self::default()
        };
        plugin.read_options(&split_options(get(OPTIONS).unwrap_or_default()))?;
        Ok(Some(plugin))
    }

    fn read_options(&mut self, options: &[(String, Option<String>)]) -> Result<(), OptionsError> {
        if let Some((_, name)) = options.iter().rev().find(|(name, _)| name == "role") {
            let place = Place::PluginOptions("role");
            let name = name.clone().unwrap_or_default();
            let role = Role::from_name(&name);
            self.role = Some(role.ok_or(OptionsError::Role(name, place))?);
        }
        let mut is_behind_key = false;
        for (index, (name, value)) in options.iter().enumerate() {
            if name == "role" {
                continue;
            }
            if let Some(ignored) = IGNORED.into_iter().find(|ignored| ignored == name) {
                self.ignored.push(ignored);
                continue;
            }
            let Some(option) = table::find(name, self.role) else {
                return Err(if is_behind_key {
                    OptionsError::UnknownPartBehindKey(index + 1)
                } else {
                    OptionsError::UnknownPluginOption(name.clone())
                });
            };
            is_behind_key |= option.name == "key";
            let text = value.as_deref().unwrap_or("true");
            self.options.set(option, text, Place::PluginOptions(option.name));
        }
        Ok(())
    }

    /// Sets the addresses, which override everything else.
    pub(super) fn set_addresses(&self, role: Role, values: &mut Values) {
        let (remote, local) = match role {
            Role::Client => ("remoteaddr", "localaddr"),
            Role::Server => ("listen", "target"),
        };
        for (name, address, variable) in
            [(remote, &self.remote, REMOTE_HOST), (local, &self.local, LOCAL_HOST)]
        {
            if let Some(option) = table::find(name, Some(role)) {
                values.set(option, address.as_str(), Place::Variable(variable));
            }
        }
    }
}

/// Joins host and port; IPv6 gets brackets.
fn address(
    host_name: &'static str,
    host: &str,
    port_name: &'static str,
    port: &str,
) -> Result<String, OptionsError> {
    let refuse = |name, value: &str, allowed| {
        Err(OptionsError::Variable { name, value: value.to_owned(), allowed })
    };
    let is_unspecified = |host: &str| host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    // `::0|0.0.0.0` is a shadowsocks server on all addresses of both IP versions. An empty host
    // means both, or IPv4 if the system has no IPv6.
    let is_all = host.contains('|') && host.split('|').all(is_unspecified);
    // Other lists, which SIP003 permits for servers, have no counterpart in kcptun.
    if !is_all && (host.is_empty() || host.contains(['|', '/', ' '])) {
        return refuse(host_name, host, "one name or address");
    }
    if !matches!(port.parse::<u16>(), Ok(1..)) {
        return refuse(port_name, port, "1 to 65535");
    }
    if is_all {
        return Ok(format!(":{port}"));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Ok(if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") })
}

/// Splits `name=value;flag;...`. A backslash escapes the next character.
fn split_options(text: &str) -> Vec<(String, Option<String>)> {
    let mut options = Vec::new();
    let mut name = String::new();
    let mut value: Option<String> = None;
    let mut chars = text.chars();
    loop {
        let next = chars.next();
        match next {
            None | Some(';') => {
                if !name.is_empty() || value.is_some() {
                    options.push((std::mem::take(&mut name), value.take()));
                }
                if next.is_none() {
                    return options;
                }
            }
            Some('=') if value.is_none() => value = Some(String::new()),
            Some(char) => {
                // A trailing backslash is literal.
                let char = if char == '\\' { chars.next().unwrap_or('\\') } else { char };
                value.as_mut().unwrap_or(&mut name).push(char);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<(String, String)> {
        let options = split_options(text).into_iter();
        options.map(|(name, value)| (name, value.unwrap_or_else(|| "(none)".into()))).collect()
    }

    #[test]
    fn plugin_options_are_split_at_semicolons_and_the_first_equals_sign() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        for (text, expected) in [
            ("", pairs(&[])),
            (";;", pairs(&[])),
            ("nocomp", pairs(&[("nocomp", "(none)")])),
            ("key=a=b;mode=fast3;", pairs(&[("key", "a=b"), ("mode", "fast3")])),
            (r"key=a\;b\=c\\d", pairs(&[("key", r"a;b=c\d")])),
            (r"k\=y=v", pairs(&[("k=y", "v")])),
            (r"key=end\", pairs(&[("key", r"end\")])),
            ("key=", pairs(&[("key", "")])),
            ("=v", pairs(&[("", "v")])),
        ] {
            assert_eq!(split(text), expected, "{text}");
        }
    }

    #[test]
    fn ipv6_hosts_of_plugin_variables_get_brackets() {
        let parse = |host, port| address(REMOTE_HOST, host, REMOTE_PORT, port);
        assert_eq!(parse("2001:db8::1", "80").unwrap(), "[2001:db8::1]:80");
        assert_eq!(parse("[::1]", "80").unwrap(), "[::1]:80");
        assert_eq!(parse("::0|0.0.0.0", "80").unwrap(), ":80");
        assert_eq!(parse("vps.example", "29900").unwrap(), "vps.example:29900");
        for (host, port) in
            [("", "80"), ("a|b", "80"), ("::0|::1", "80"), ("a", "0"), ("a", "65536"), ("a", "")]
        {
            assert!(parse(host, port).is_err(), "{host:?} {port:?}");
        }
    }
}
