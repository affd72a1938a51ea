//! Settings of tunnels after their options have been read: plain typed data.
//!
//! The boundary between the two halves of this crate. One half reads the command line, files and
//! the environment, and only produces [`Settings`]; the other half opens sockets, and reads no
//! option or environment variable itself. Every value here has been checked: it is in its range,
//! and [`Common::config`] does not fail for it.

mod address;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use kcpx::{
    AckPolicy, Algorithm, Cipher, Config, ConfigError, CongestionControl, Key, Mode, Redundancy,
    Timing,
};
use zeroize::Zeroizing;

pub use self::address::{AddressError, ListenAddress, LocalAddress, RemoteAddress};

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

/// Least time without a frame from the peer after which a session ends.
const MIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of both roles. Names follow [`kcpx::Config`] where it has the setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Common {
    /// Passphrase (`key`, `KCPTUN_KEY`).
    pub key: Passphrase,
    /// Encryption (`crypt`).
    pub algorithm: Algorithm,
    /// `mode`, or `nodelay`, `interval` and `resend`.
    pub timing: Timing,
    /// [`Bbr`](CongestionControl::Bbr), or with `mode` manual and `nc` 0 [`Reno`](CongestionControl::Reno).
    pub congestion_control: CongestionControl,
    /// Bytes of a datagram, including all headers below UDP (`mtu`).
    pub mtu: u16,
    /// Bytes per second of each session (`ratelimit`); `None` for no limit.
    pub rate_limit: Option<NonZeroU64>,
    /// Send window in segments (`sndwnd`).
    pub send_window: u16,
    /// Receive window in segments (`rcvwnd`).
    pub recv_window: u16,
    /// FEC of sent data (`datashard`, `parityshard`), or redundancy that follows the measured loss
    /// (`redundancy`).
    pub redundancy: Redundancy,
    /// DSCP of the datagrams, 0 to 63 (`dscp`).
    pub dscp: u8,
    /// When acknowledgements are sent (`acknodelay`).
    pub ack_policy: AckPolicy,
    /// Bytes of each kernel buffer of a UDP socket (`sockbuf`).
    pub socket_buffer: usize,
    /// Multiplexing of connections over one session (`mux`).
    pub mux: Mux,
    /// Largest payload of a sent frame, in bytes, 1 to 65,535 (`framesize`).
    pub frame_size: u16,
    /// Receive buffer of a session, in bytes (`smuxbuf`).
    pub smux_buffer: u32,
    /// Window of each stream, in bytes, at most [`smux_buffer`](Self::smux_buffer) (`streambuf`).
    pub stream_buffer: u32,
    /// Interval of NOP frames (`keepalive`), at least 1 s.
    pub keepalive: Duration,
    /// Delay between the end of one direction and passing it on (`closewait`); `None` if the option
    /// was not given.
    pub close_wait: Option<Duration>,
    /// Idle time after which the other direction ends once one has (`halfclosetimeout`).
    pub half_close_timeout: Duration,
    /// No log lines for each connection (`quiet`).
    pub quiet: bool,
}

impl Common {
    /// Time without a frame from the peer after which a session ends: three intervals of
    /// [`keepalive`](Self::keepalive), and at least 30 s.
    #[must_use]
    pub fn keepalive_timeout(&self) -> Duration {
        MIN_TIMEOUT.max(self.keepalive * 3)
    }

    /// Returns the configuration of a connection: stream mode, written data sent at once, and these
    /// settings. Derives the key, which takes some milliseconds.
    ///
    /// # Errors
    ///
    /// The first value that is out of its range.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let key = Key::derive(self.key.as_str(), Key::KCPTUN_SALT);
        let config = Config::new()
            .mode(Mode::Stream)
            .timing(self.timing)
            .congestion_control(self.congestion_control)
            .windows(self.send_window, self.recv_window)
            .mtu(self.mtu)
            .cipher(Cipher::from_name(self.algorithm.name(), &key)?)
            .redundancy(self.redundancy)
            .ack_policy(self.ack_policy)
            .socket_buffers(Some(self.socket_buffer), Some(self.socket_buffer))
            .rate_limit(self.rate_limit)
            .dscp((self.dscp > 0).then_some(self.dscp));
        config.validate()?;
        Ok(config)
    }
}

/// A passphrase. `Debug` does not show it, and its memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Makes a passphrase of any text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(..)")
    }
}

/// Multiplexing of connections over one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mux {
    /// smux, as in kcptun.
    Smux,
    /// None: each TCP connection has its own KCP connection, all on one UDP socket. Both sides must
    /// run this crate.
    None,
}

/// Version of smux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmuxVersion {
    /// One window for a session.
    V1,
    /// A window for each stream.
    V2,
}

impl SmuxVersion {
    /// Returns the version byte on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}
