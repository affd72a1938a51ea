//! The table of options: names, defaults and help of both roles. Everything else reads it.

use std::fmt;

use self::DefaultValue::{Both, Client, Each, Server};
use self::Group::{Addresses, Equal, Hidden, Log, Loss, Mux, Process, Sessions, Speed};
use self::Kind::{Flag, Int, Text};

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

pub(super) const OPTIONS: &[Opt] = &[
    Opt::new(
        "localaddr",
        Text,
        Client(":12948"),
        "ADDRESS",
        Addresses,
        "Where TCP connections are accepted: host:port, :port for all addresses of this host, or \
         the path of a unix socket",
    )
    .alias("l"),
    Opt::new(
        "remoteaddr",
        Text,
        Client("vps:29900"),
        "ADDRESS",
        Addresses,
        "The server: host:port, or host:min-max for a random port of a range for each session; \
         the name is resolved again for each session",
    )
    .alias("r"),
    Opt::new(
        "listen",
        Text,
        Server(":29900"),
        "ADDRESS",
        Addresses,
        "UDP address to listen on: host:port, :port for all addresses of this host, or :min-max \
         for every port of a range",
    )
    .alias("l"),
    Opt::new(
        "target",
        Text,
        Server("127.0.0.1:12948"),
        "ADDRESS",
        Addresses,
        "Where connections of clients go: host:port, or the path of a unix socket",
    )
    .alias("t"),
    Opt::new(
        "key",
        Text,
        Both("it's a secrect"),
        "TEXT",
        Equal,
        "Passphrase from which the key is derived. The variable KCPTUN_KEY keeps it out of the \
         list of processes",
    ),
    Opt::new(
        "crypt",
        Text,
        Both("aes"),
        "NAME",
        Equal,
        "Cipher. aes-128-gcm is recommended with kcptun since 20251212; older ones have aes, \
         aes-128, aes-192, salsa20, blowfish, twofish, cast5, 3des, tea, xtea, xor, sm4, none; \
         null since 2024. Between two sides of this program also aes-192-gcm, aes-256-gcm, \
         chacha20-poly1305",
    ),
    Opt::new(
        "nocomp",
        Flag,
        Each("false", "auto"),
        "BOOL",
        Equal,
        "No Snappy compression. Compression costs CPU time, and 8 bytes for each write of data \
         that does not shrink. A server detects what each client does unless this is given",
    ),
    Opt::new(
        "smuxver",
        Int,
        Each("2", "auto"),
        "VERSION",
        Equal,
        "Version of smux, 1 or 2; kcptun of 2021 and before has 1 as its default. With 2 a \
         connection that is not read does not stop the others, until several of them fill \
         smuxbuf. A server detects it for each \
         client unless this is given",
    ),
    Opt::new(
        "mux",
        Text,
        Both("smux"),
        "NAME",
        Equal,
        "smux as kcptun, or none: a KCP connection for each TCP connection, so that none waits \
         for losses of another. With none the other side is this program, or one of kcp-go without \
         smux, such as frp",
    ),
    Opt::new(
        "conn",
        Int,
        Client("1"),
        "NUMBER",
        Sessions,
        "Sessions over which connections are distributed in turn, 1 to 65535, each with a UDP \
         socket",
    ),
    Opt::new(
        "autoexpire",
        Int,
        Client("0"),
        "SECONDS",
        Sessions,
        "Age at which a session is replaced by a new one; 0 for never",
    ),
    Opt::new(
        "scavengettl",
        Int,
        Client("600"),
        "SECONDS",
        Sessions,
        "How long a replaced session may live on for its connections; -1 for as long as they \
         last",
    ),
    Opt::new(
        "mode",
        Text,
        Both("fast"),
        "NAME",
        Speed,
        "normal, fast, fast2 or fast3, each faster to detect loss than the one before; manual \
         takes nodelay, interval, resend and nc",
    ),
    Opt::new(
        "mtu",
        Int,
        Both("1350"),
        "BYTES",
        Speed,
        "Largest UDP payload, all headers below UDP included",
    ),
    Opt::new(
        "sndwnd",
        Int,
        Each("128", "1024"),
        "PACKETS",
        Speed,
        "Send window. Throughput is at most window x mtu / round-trip time",
    ),
    Opt::new(
        "rcvwnd",
        Int,
        Each("512", "1024"),
        "PACKETS",
        Speed,
        "Receive window; the peer sends no more than this in a round trip",
    ),
    Opt::new(
        "ratelimit",
        Int,
        Both("0"),
        "BYTES",
        Speed,
        "Most bytes sent per second by each session, headers included; 0 for no limit",
    ),
    Opt::new(
        "acknodelay",
        Flag,
        Both("false"),
        "BOOL",
        Speed,
        "Acknowledge every datagram at once: lower latency, more datagrams. false, if it is \
         written: at the interval. Else what has arrived together, or each few segments of bulk",
    ),
    Opt::new("dscp", Int, Both("0"), "NUMBER", Speed, "DSCP of the UDP datagrams, 0 to 63"),
    Opt::new(
        "sockbuf",
        Int,
        Both("4194304"),
        "BYTES",
        Speed,
        "Kernel buffers of each UDP socket; the system may grant less",
    ),
    Opt::new(
        "nodelay",
        Int,
        Both("0"),
        "0|1",
        Speed,
        "With mode manual: 1 for a minimum retransmission timeout of 30 ms instead of 100 ms",
    ),
    Opt::new(
        "interval",
        Int,
        Both("50"),
        "MILLISECONDS",
        Speed,
        "With mode manual and acknodelay=false: interval of acknowledgements, 10 to 5000",
    ),
    Opt::new(
        "resend",
        Int,
        Both("0"),
        "NUMBER",
        Speed,
        "With mode manual: later packets acknowledged before one is sent again; 0 leaves that to \
         the timeout",
    ),
    Opt::new(
        "nc",
        Int,
        Both("0"),
        "0|1",
        Speed,
        "With mode manual: 0 for KCP's congestion window, 1 for the congestion control of the \
         other modes",
    ),
    Opt::new(
        "datashard",
        Int,
        Both("10"),
        "NUMBER",
        Loss,
        "Data packets of a group of forward error correction; 0 for none",
    )
    .alias("ds"),
    Opt::new(
        "parityshard",
        Int,
        Both("3"),
        "NUMBER",
        Loss,
        "Parity packets of a group; 0 for none. As many packets of a group may be lost without a \
         retransmission",
    )
    .alias("ps"),
    Opt::new(
        "redundancy",
        Text,
        Both("off"),
        "NAME",
        Loss,
        "off, or auto: repair symbols as the measured loss asks for, for interactive traffic. \
         Peers of this program get them instead of parity",
    ),
    Opt::new(
        "framesize",
        Int,
        Both("8192"),
        "BYTES",
        Mux,
        "Largest payload of a smux frame sent, 1 to 65535",
    ),
    Opt::new(
        "smuxbuf",
        Int,
        Both("4194304"),
        "BYTES",
        Mux,
        "Receive buffer of a session: bytes that connections have not taken yet",
    ),
    Opt::new(
        "streambuf",
        Int,
        Both("2097152"),
        "BYTES",
        Mux,
        "Window of each stream with smux version 2, at most smuxbuf",
    ),
    Opt::new(
        "keepalive",
        Int,
        Both("10"),
        "SECONDS",
        Mux,
        "Interval of keepalive frames, 1 to 28800. A session ends after three intervals without \
         a frame of the peer, and not before 30 seconds",
    ),
    Opt::new(
        "closewait",
        Int,
        Each("", ""),
        "SECONDS",
        Mux,
        "Delay between the end of one direction of a connection and passing it on. Without it \
         the end is passed on at once, and where the peer ended first, once it has all our bytes",
    ),
    Opt::new(
        "halfclosetimeout",
        Int,
        Both("300"),
        "SECONDS",
        Mux,
        "After one direction of a connection has ended, the other one ends after this time \
         without a byte",
    ),
    Opt::new(
        "log",
        Text,
        Both(""),
        "FILE",
        Log,
        "File to which the log is appended, opened again on SIGHUP; standard error without",
    ),
    Opt::new("quiet", Flag, Both("false"), "BOOL", Log, "No lines for each connection"),
    Opt::new(
        "snmplog",
        Text,
        Both(""),
        "FILE",
        Log,
        "CSV file of counters with kcp-go's columns; its name is a time layout of Go, such as \
         snmp-20060102.log for a file a day",
    ),
    Opt::new(
        "snmpperiod",
        Int,
        Both("60"),
        "SECONDS",
        Log,
        "Time between two lines of snmplog; 0 for none",
    ),
    Opt::new(
        "metrics",
        Text,
        Both(""),
        "ADDRESS",
        Log,
        "Serve counters for Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9464",
    ),
    Opt::new(
        "c",
        Text,
        Both(""),
        "FILE",
        Process,
        "Read options from a JSON file, which override the command line: an object with the \
         names of these options, or an array of objects, each with \"role\" and one tunnel of \
         this process",
    ),
    Opt::new(
        "drain",
        Int,
        Both("5"),
        "SECONDS",
        Process,
        "How long connections may last after SIGTERM or SIGINT; a second signal ends them at \
         once",
    ),
    Opt::new("QPP", Flag, Both("false"), "BOOL", Hidden, ""),
    Opt::new("QPPCount", Int, Both("61"), "NUMBER", Hidden, ""),
    Opt::new("tcp", Flag, Both("false"), "BOOL", Hidden, ""),
    Opt::new("pprof", Flag, Both("false"), "BOOL", Hidden, ""),
];
