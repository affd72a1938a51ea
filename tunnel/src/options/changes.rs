//! What a file that was read again changes.

use super::table::{OPTIONS, Role};
use super::{Loaded, Values};

/// Options that hold from the start of the process on.
const AT_START: [&str; 9] =
    ["localaddr", "listen", "conn", "mux", "log", "snmplog", "snmpperiod", "metrics", "drain"];
/// Those of a server besides: what its sockets have, which all sessions share.
const AT_START_OF_SERVER: [&str; 17] = [
    "key",
    "crypt",
    "mode",
    "nodelay",
    "interval",
    "resend",
    "nc",
    "mtu",
    "ratelimit",
    "sndwnd",
    "rcvwnd",
    "datashard",
    "parityshard",
    "protection",
    "dscp",
    "acknodelay",
    "sockbuf",
];

impl Loaded {
    /// Describes what differs in `new`, one line for each option. Values of the key are left out.
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<String> {
        if self.tunnels.len() != new.tunnels.len() {
            let (old, new) = (self.tunnels.len(), new.tunnels.len());
            return vec![format!("{old} tunnels became {new}: takes effect after a restart")];
        }
        let several = self.tunnels.len() > 1;
        let mut lines = Vec::new();
        for (index, (old, new)) in self.tunnels.iter().zip(&new.tunnels).enumerate() {
            let tunnel = if several { format!("tunnel {}: ", index + 1) } else { String::new() };
            lines.extend(changes(old, new).into_iter().map(|line| format!("{tunnel}{line}")));
        }
        lines
    }
}

fn changes(old: &(Role, Values), new: &(Role, Values)) -> Vec<String> {
    let role = old.0;
    if role != new.0 {
        return vec![format!("role {role} became {}: takes effect after a restart", new.0)];
    }
    let mut lines = Vec::new();
    for option in OPTIONS.iter().filter(|option| option.is_for(Some(role))) {
        let (old, new) = (old.1.value(option, role).text, new.1.value(option, role).text);
        if old == new {
            continue;
        }
        let name = option.name;
        let change = match name {
            "key" => "key changed".to_owned(),
            _ => format!("{name} {old:?} became {new:?}"),
        };
        let restart = AT_START.contains(&name)
            || (role == Role::Server && AT_START_OF_SERVER.contains(&name));
        lines.push(if restart {
            format!("{change}: takes effect after a restart")
        } else {
            change
        });
    }
    lines
}
