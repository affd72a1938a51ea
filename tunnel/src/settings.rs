//! Settings of tunnels after their options have been read: plain typed data.
//!
//! The boundary between the two halves of this crate. One half reads the command line, files and
//! the environment, and only produces [`Settings`]; the other half opens sockets, and reads no
//! option or environment variable itself. Every value here has been checked: it is in its range,
//! and [`Common::config`] does not fail for it.

mod address;
mod common;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use self::address::{AddressError, ListenAddress, LocalAddress, RemoteAddress};
pub use self::common::{Common, Mux, Passphrase, SmuxVersion};

/// Settings of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The tunnels: one, or the objects of an array in the file of `-c`.
    pub tunnels: Vec<Tunnel>,
    /// Settings of the process, shared by its tunnels.
    pub process: Process,
}

/// One tunnel, by its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// Accepts TCP connections and carries them to a server.
    Client(ClientSettings),
    /// Accepts connections of clients and carries them to a target.
    Server(ServerSettings),
}

/// Settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Address that accepts TCP (or unix) connections (`localaddr`).
    pub listen: LocalAddress,
    /// The server (`remoteaddr`). Resolved again for every session.
    pub remote: RemoteAddress,
    /// Number of sessions, over which connections are distributed in turn (`conn`), at least 1.
    pub sessions: u16,
    /// Age at which a session is replaced (`autoexpire`); `None` for never.
    pub auto_expire: Option<Duration>,
    /// How long a replaced session may continue for its connections (`scavengettl`); `None` for as
    /// long as they last.
    pub scavenge_ttl: Option<Duration>,
    /// Snappy framing in both directions (no `nocomp`).
    pub compression: bool,
    /// Version of smux (`smuxver`).
    pub smux_version: SmuxVersion,
    /// Settings of both roles.
    pub common: Common,
}

/// Settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// UDP addresses to listen on, one socket for each port (`listen`).
    pub listen: ListenAddress,
    /// Destination of the clients' connections (`target`).
    pub target: LocalAddress,
    /// Snappy framing: `None` detects it for each session by its first byte, `Some` rejects
    /// sessions that differ.
    pub compression: Option<bool>,
    /// Version of smux: `None` detects it for each session by its first byte, `Some` rejects
    /// sessions that differ.
    pub smux_version: Option<SmuxVersion>,
    /// Settings of both roles.
    pub common: Common,
}

/// Settings of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// File to which the log is appended (`log`); `None` for standard error.
    pub log: Option<PathBuf>,
    /// Counters as CSV (`snmplog`, `snmpperiod`); `None` for no file.
    pub snmp: Option<SnmpLog>,
    /// Address of the Prometheus counters (`metrics`); `None` for no server.
    pub metrics: Option<SocketAddr>,
    /// How long connections may last after the signal to end (`drain`).
    pub drain: Duration,
}

/// Path and period of the counters as CSV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnmpLog {
    /// Path; its file name is a time layout of Go, its directories are not.
    pub path: String,
    /// Time between two lines, at least 1 s.
    pub period: Duration,
}

impl Tunnel {
    /// Returns the settings of both roles.
    #[must_use]
    pub fn common(&self) -> &Common {
        match self {
            Self::Client(client) => &client.common,
            Self::Server(server) => &server.common,
        }
    }
}

/// One line for the log: role, addresses, and options that must be equal on both sides, without the
/// key.
impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |version: SmuxVersion| version.number().to_string();
        let compression = |snappy: bool| if snappy { "snappy" } else { "no compression" };
        let (compression, version) = match self {
            Self::Client(client) => {
                write!(f, "client {} to {}", client.listen, client.remote)?;
                (compression(client.compression), version(client.smux_version))
            }
            Self::Server(server) => {
                write!(f, "server {} to {}", server.listen, server.target)?;
                let detected = || "detected".to_owned();
                let snappy = server.compression.map_or("compression detected", compression);
                (snappy, server.smux_version.map_or_else(detected, version))
            }
        };
        let common = self.common();
        write!(f, ", {}, ", common.algorithm)?;
        match common.mux {
            Mux::Smux => write!(f, "{compression}, smux version {version}"),
            Mux::None => write!(f, "a KCP connection for each TCP connection"),
        }
    }
}
