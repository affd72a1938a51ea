//! The table of options: names, defaults and help of both roles. Everything else reads it.

mod rows;

use std::fmt;

use self::DefaultValue::{Both, Client, Each, Server};
pub(super) use self::rows::OPTIONS;

/// The side of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Accepts TCP connections.
    Client,
    /// Connects to a target.
    Server,
}

impl Role {
    /// Returns the role of this name, `client` or `server`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "client" => Some(Self::Client),
            "server" => Some(Self::Server),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// Type of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Int,
    Flag,
}

/// Default of an option, as it would be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultValue {
    /// The same for both roles.
    Both(&'static str),
    /// Defaults of client and server.
    Each(&'static str, &'static str),
    /// Only clients have the option.
    Client(&'static str),
    /// Only servers have the option.
    Server(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opt {
    /// Long name, also the key in JSON.
    pub(super) name: &'static str,
    /// Second name: one letter, or two as in `-ds`.
    pub(super) alias: Option<&'static str>,
    pub(super) kind: Kind,
    pub(super) default: DefaultValue,
    /// Placeholder of the value in the help.
    pub(super) unit: &'static str,
    pub(super) group: Group,
    pub(super) help: &'static str,
}

/// Heading in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Addresses,
    Equal,
    Sessions,
    Speed,
    Loss,
    Mux,
    Log,
    Process,
    /// Accepted or rejected without a line in the help.
    Hidden,
}

impl Group {
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Addresses => "Addresses",
            Self::Equal => "Must be equal on both sides",
            Self::Sessions => "Sessions",
            Self::Speed => "Speed and latency, each side's own",
            Self::Loss => "Redundancy against loss, each side's own",
            Self::Mux => "Streams in a session, each side's own",
            Self::Log => "Log and counters",
            Self::Process => "Process",
            Self::Hidden => "",
        }
    }
}

impl Opt {
    const fn new(
        name: &'static str,
        kind: Kind,
        default: DefaultValue,
        unit: &'static str,
        group: Group,
        help: &'static str,
    ) -> Self {
        Self { name, alias: None, kind, default, unit, group, help }
    }

    const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    /// Whether `role` has the option; without a role, whether either has.
    pub(super) fn is_for(&self, role: Option<Role>) -> bool {
        match self.default {
            Both(_) | Each(..) => true,
            Client(_) => role != Some(Role::Server),
            Server(_) => role != Some(Role::Client),
        }
    }

    /// Returns the default for a role that has the option.
    pub(super) fn default_for(&self, role: Role) -> &'static str {
        match (self.default, role) {
            (Each(_, server), Role::Server) => server,
            (Both(text) | Each(text, _) | Client(text) | Server(text), _) => text,
        }
    }
}

/// Finds an option by its name or alias on the command line. `l` is `localaddr` for a client and
/// `listen` for a server.
pub(super) fn find(name: &str, role: Option<Role>) -> Option<&'static Opt> {
    let mut candidates = OPTIONS.iter().filter(|option| option.is_for(role));
    candidates.find(|option| option.name == name || option.alias == Some(name))
}

/// Finds an option by its key in JSON, ignoring case.
pub(super) fn find_key(key: &str, role: Option<Role>) -> Option<&'static Opt> {
    let key = if key.eq_ignore_ascii_case("qpp-count") { "QPPCount" } else { key };
    let mut candidates = OPTIONS.iter().filter(|option| option.is_for(role));
    candidates.find(|option| option.name.eq_ignore_ascii_case(key) && option.name != "c")
}
