//! Changes by a reloaded file, and which of them take effect without a restart.

use super::build;
use super::error::OptionsError;
use super::table::{OPTIONS, Role, find};
use super::values::parse_int;
use super::{Loaded, Values};

/// Options that take effect only at the start of the process.
const AT_START: [&str; 9] =
    ["localaddr", "listen", "conn", "mux", "log", "snmplog", "snmpperiod", "metrics", "drain"];
/// Further such options of a server: its sockets use them, and all sessions share the sockets.
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
    "redundancy",
    "dscp",
    "acknodelay",
    "sockbuf",
];
/// Options that a client reads for each connection.
const OF_CONNECTIONS_OF_CLIENT: [&str; 3] = ["closewait", "halfclosetimeout", "quiet"];

/// When a changed option takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// At the next start of the process.
    Restart,
    /// For sessions opened from now on.
    NextSession,
    /// For connections accepted from now on.
    NextConnection,
}

impl Effect {
    fn of(name: &str, role: Role, values: &Values) -> Self {
        let is_server = role == Role::Server;
        if AT_START.contains(&name) || (is_server && AT_START_OF_SERVER.contains(&name)) {
            Self::Restart
        } else if values.written("mux").is_some_and(|mux| mux.text.as_str() == "none")
            || (!is_server && OF_CONNECTIONS_OF_CLIENT.contains(&name))
        {
            Self::NextConnection
        } else {
            Self::NextSession
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Restart => "takes effect after a restart",
            Self::NextSession => "takes effect with the next session",
            Self::NextConnection => "takes effect with the next connection",
        }
    }
}

impl Loaded {
    /// Describes the differences to `new` and when they take effect, one line per option, and then
    /// the effect on open sessions. Values of the key are left out.
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
            let changes = match address_change(old, new).filter(|_| several) {
                Some(change) => vec![change],
                None => changes(old, new),
            };
            lines.extend(changes.into_iter().map(|line| format!("{tunnel}{line}")));
        }
        lines
    }

    /// Returns the settings after `new` was read: the values of `new`, but the values of `self` for
    /// options that need a restart. If the number or role of tunnels differs they stay unchanged,
    /// and so does, among several tunnels, each one whose listening address differs. Comparing the
    /// result with `new` by [`changes`](Self::changes) reports again each time what waits for a
    /// restart.
    ///
    /// # Errors
    ///
    /// If the combined values are not allowed together.
    pub fn without_restart(&self, new: &Self) -> Result<Self, OptionsError> {
        let warnings = new.warnings.clone();
        if self.tunnels.len() != new.tunnels.len() {
            return Ok(Self { warnings, ..self.clone() });
        }
        let several = self.tunnels.len() > 1;
        let pairs = self.tunnels.iter().zip(&new.tunnels);
        let tunnels: Vec<_> = pairs
            .map(|(old, new)| match address_change(old, new).filter(|_| several) {
                Some(_) => old.clone(),
                None => without_restart(old, new),
            })
            .collect();
        // Warnings are among the warnings of `new`, or were logged at the start.
        let settings = build::settings(&tunnels, &mut Vec::new())?;
        Ok(Self { settings, warnings, tunnels })
    }
}

/// Describes a changed listening address. Among several tunnels it identifies another tunnel, since
/// the file's order pairs them: the new target must not be reached with the key of `old`, which
/// stays until a restart.
fn address_change(old: &(Role, Values), new: &(Role, Values)) -> Option<String> {
    let ((role, old_values), (new_role, new_values)) = (old, new);
    if role != new_role {
        return None;
    }
    let name = match role {
        Role::Client => "localaddr",
        Role::Server => "listen",
    };
    let option = find(name, Some(*role))?;
    let (old, new) = (old_values.value(option, *role).text, new_values.value(option, *role).text);
    (old != new).then(|| {
        let (old, new) = (old.as_str(), new.as_str());
        format!("{name} {old:?} became {new:?}: all of this tunnel takes effect after a restart")
    })
}

fn without_restart(old: &(Role, Values), new: &(Role, Values)) -> (Role, Values) {
    let (role, old_values) = old;
    if *role != new.0 {
        return old.clone();
    }
    let mut values = new.1.clone();
    for option in OPTIONS.iter().filter(|option| option.is_for(Some(*role))) {
        if Effect::of(option.name, *role, old_values) == Effect::Restart {
            values.replace_from(old_values, option.name);
        }
    }
    (*role, values)
}

fn changes(old: &(Role, Values), new: &(Role, Values)) -> Vec<String> {
    let ((role, old_values), (new_role, new_values)) = (old, new);
    if role != new_role {
        return vec![format!("role {role} became {new_role}: takes effect after a restart")];
    }
    let (mut lines, mut is_for_sessions) = (Vec::new(), false);
    for option in OPTIONS.iter().filter(|option| option.is_for(Some(*role))) {
        let (old, new) =
            (old_values.value(option, *role).text, new_values.value(option, *role).text);
        if old == new {
            continue;
        }
        let name = option.name;
        let change = match name {
            "key" => "key changed".to_owned(),
            _ => format!("{name} {:?} became {:?}", old.as_str(), new.as_str()),
        };
        let effect = Effect::of(name, *role, old_values);
        is_for_sessions |= effect == Effect::NextSession;
        let exception = match (name, role) {
            ("keepalive", Role::Server) => ", in smux alone: KCP keeps the timeouts of the start",
            _ => "",
        };
        lines.push(format!("{change}: {}{exception}", effect.description()));
    }
    if is_for_sessions {
        lines.push(open_sessions(*role, old_values));
    }
    lines
}

/// How long open sessions keep their settings.
fn open_sessions(role: Role, values: &Values) -> String {
    let expire = values.written("autoexpire").and_then(|value| parse_int(&value.text));
    match (role, expire.unwrap_or(0)) {
        (Role::Client, 0) => "open sessions keep the old values until they end, and they do not \
                              expire (autoexpire 0): restart to replace them"
            .to_owned(),
        (Role::Client, seconds) => {
            format!("open sessions keep the old values until they expire, within {seconds} s")
        }
        (Role::Server, _) => "open sessions keep the old values until they end".to_owned(),
    }
}
