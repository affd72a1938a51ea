//! The command line: what to measure, the settings, and the names of both.

mod path;
mod units;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{CommandFactory as _, FromArgMatches as _};
use clap::{Parser, Subcommand, ValueEnum, value_parser};
use serde::Serialize;

pub(crate) use path::{BurstLength, PathOptions};

/// The environment variable with the path of a program that is measured as `kcp-go`.
pub(crate) const EXTERNAL: &str = "KCPX_COMPARE_PEER";
/// MTU and windows of all KCP peers.
pub(crate) const MTU: u16 = 1_400;
pub(crate) const WINDOW: u16 = 1_024;
/// New connections that a listener queues, if its transport has such a setting.
#[cfg(feature = "together")]
pub(crate) const BACKLOG: u16 = 16_384;
pub(crate) const KEY: &[u8; 16] = b"sixteen key byte";
/// How long a client may take beyond its `--seconds` to get everything across.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The time for a process to start and to answer.
pub(crate) const PROMPT: Duration = Duration::from_secs(10);

/// Measures kcpx and other transports side by side, with the same workloads in the same run.
///
/// Each measurement starts a server process on CPU 0 and a client process on CPU 1, one thread
/// each. The transports take turns within each run, so a slow moment of the machine meets all of
/// them, and the tables on stdout show medians over the runs, with ratios. If a transport cannot do
/// something in time, its cell is empty and the reason is on stderr.
///
/// The workloads sink, echo, pingpong and many run over loopback; msg and bulk run across a path
/// with delay and loss between two network namespaces, which needs root or a user who may make
/// user namespaces.
///
/// Build with --release. Leave the machine alone while it runs: two busy processes want two CPUs. It reads
/// /proc, so it needs Linux.
#[derive(Debug, Parser)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "--help explains the workloads, the columns and the settings.",
    after_long_help = include_str!("help.txt")
)]
pub(crate) struct Args {
    /// Workloads to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sink,echo,pingpong,many")]
    pub(crate) workload: Vec<Workload>,
    /// With which; kcp-go only where KCPX_COMPARE_PEER names a program [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) peers: Vec<Peer>,
    /// Cipher and FEC by kcptun's names; a peer that lacks one is left out [default: all for sink,
    /// plain for the rest]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) wires: Vec<Wire>,
    /// Runs of each measurement over loopback; across a path every --seed is one
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    #[command(flatten)]
    pub(crate) load: Load,
    /// Congestion control of tcp, also of --beside tcp [default: the system's]
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) tcp_congestion: Option<TcpCongestion>,
    /// Seconds for which the connections of `many` do nothing, to see what that costs
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=60))]
    pub(crate) rest: u64,
    /// Write every single result into this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write charts into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
    // Last, since its heading applies to all that follow.
    #[command(flatten)]
    pub(crate) path: PathOptions,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// How much a client does.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Load {
    /// Seconds that a client of sink, echo, msg and bulk writes, and after which pingpong ends
    /// early [default: 4 over loopback, 60 for msg, 12 for bulk]
    #[arg(long, value_parser = value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: Option<u64>,
    /// MiB after which a client of sink and echo stops before its time is over
    #[arg(long, default_value_t = 16_384, value_parser = value_parser!(u64).range(1..=1 << 20))]
    pub(crate) limit: u64,
    /// Round trips of pingpong
    #[arg(long, default_value_t = 20_000, value_parser = number(1, 10_000_000))]
    pub(crate) round_trips: usize,
    /// Connections of many
    #[arg(long, default_value_t = 10_000, value_parser = number(1, 50_000))]
    pub(crate) connections: usize,
    /// Connections of bulk, from one socket where the transport can
    #[arg(long, default_value_t = 1, value_parser = number(1, 64))]
    pub(crate) streams: usize,
    /// Time between two messages of msg, with us, ms or s
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = units::interval)]
    pub(crate) every: Duration,
    /// Bytes of a message of msg
    #[arg(long, value_name = "BYTES", default_value_t = 1_024,
          value_parser = number(MESSAGE_HEADER, 1 << 20))]
    pub(crate) size: usize,
}

/// The least bytes of a message: number and timestamp.
const MESSAGE_HEADER: u64 = 16;

fn number(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

impl Load {
    /// How long a client writes.
    pub(crate) fn time(self, workload: Workload) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(match workload {
            Workload::Msg => 60,
            Workload::Bulk => 12,
            _ => 4,
        }))
    }

    /// The most bytes a client writes.
    pub(crate) fn bytes(self) -> u64 {
        self.limit << 20
    }
}

/// The two processes of a measurement; help.txt has the protocol.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    #[command(hide = true)]
    Server {
        #[command(flatten)]
        case: Case,
        #[arg(long)]
        listen: SocketAddr,
        #[command(flatten)]
        load: Load,
    },
    #[command(hide = true)]
    Client {
        #[command(flatten)]
        case: Case,
        #[arg(long)]
        connect: SocketAddr,
        #[command(flatten)]
        load: Load,
    },
}

/// One row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::Args)]
pub(crate) struct Case {
    #[arg(long)]
    pub(crate) workload: Workload,
    #[arg(long)]
    pub(crate) wire: Wire,
    #[arg(long)]
    pub(crate) peer: Peer,
    /// The peer of the server, if it is another
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<Peer>,
    /// Limit of `Redundancy::Auto` in bytes for 1,000 bytes of data
    #[arg(long, value_parser = units::per_mille)]
    #[serde(rename = "max_overhead_per_mille", skip_serializing_if = "Option::is_none")]
    pub(crate) max_overhead: Option<u16>,
    /// Congestion control of TCP
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tcp_congestion: Option<TcpCongestion>,
}

impl Case {
    /// With a server of the same peer.
    pub(crate) fn new(workload: Workload, wire: Wire, peer: Peer) -> Self {
        Self { workload, wire, peer, server: None, max_overhead: None, tcp_congestion: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    Sink,
    Echo,
    Pingpong,
    Many,
    Msg,
    Bulk,
}

impl Workload {
    /// Whether it runs across a path between network namespaces, not over loopback.
    pub(crate) fn is_across_path(self) -> bool {
        matches!(self, Self::Msg | Self::Bulk)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wire {
    Plain,
    #[value(name = "aes-128-gcm")]
    #[serde(rename = "aes-128-gcm")]
    Aes128Gcm,
    #[value(name = "aes-128")]
    #[serde(rename = "aes-128")]
    Aes128,
    #[value(name = "fec-10-3")]
    #[serde(rename = "fec-10-3")]
    Fec,
    #[value(name = "aes-128-fec-10-3")]
    #[serde(rename = "aes-128-fec-10-3")]
    Aes128Fec,
}

/// Without FEC there are no shards.
pub(crate) const SHARDS: (usize, usize) = (10, 3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Aes128,
    Aes128Gcm,
}

impl Wire {
    pub(crate) fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Plain | Self::Fec => None,
            Self::Aes128Gcm => Some(Algorithm::Aes128Gcm),
            Self::Aes128 | Self::Aes128Fec => Some(Algorithm::Aes128),
        }
    }

    /// Data and parity packets of a group.
    pub(crate) fn fec(self) -> Option<(usize, usize)> {
        matches!(self, Self::Fec | Self::Aes128Fec).then_some(SHARDS)
    }
}

/// Congestion control of the kernel's TCP, by its names there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TcpCongestion {
    Bbr,
    Cubic,
    Reno,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Peer {
    /// The machine itself: a copy in memory
    Memcpy,
    /// The machine itself: datagrams with nothing on top, one per system call
    Udp,
    /// The same in batches, with GSO and GRO
    #[serde(rename = "udp-gso")]
    UdpGso,
    Kcpx,
    /// The same with `Redundancy::Auto`, across a path; to a server of kcp-go with the layout of the wire
    #[serde(rename = "kcpx-auto")]
    KcpxAuto,
    /// The same with a log of each connection in a temporary folder, where it is asked for
    #[serde(rename = "kcpx-qlog")]
    KcpxQlog,
    #[value(name = "tokio_kcp")]
    TokioKcp,
    #[value(name = "rust_tokio_kcp")]
    RustTokioKcp,
    #[serde(rename = "kcp-tokio")]
    KcpTokio,
    #[serde(rename = "kcp-rs")]
    KcpRs,
    #[serde(rename = "kcp-go")]
    KcpGo,
    /// With its default congestion control, CUBIC
    Quinn,
    /// With the BBR of its own, across a path
    #[serde(rename = "quinn-bbr")]
    QuinnBbr,
    Tcp,
}

impl Peer {
    /// quinn is never plain: in the plain row it has its own choice of a cipher. kcpx-auto has the FEC of its
    /// server.
    pub(crate) fn has(self, wire: Wire, server: Option<Self>) -> bool {
        match self {
            Self::Kcpx | Self::KcpxQlog | Self::RustTokioKcp | Self::KcpGo => true,
            Self::Quinn | Self::QuinnBbr => matches!(wire, Wire::Plain | Wire::Aes128Gcm),
            Self::KcpxAuto if wire == Wire::Fec => server == Some(Self::KcpGo),
            Self::KcpxAuto | Self::TokioKcp | Self::KcpTokio | Self::KcpRs | Self::Tcp => {
                wire == Wire::Plain
            }
            Self::Memcpy | Self::Udp | Self::UdpGso => wire == Wire::Plain,
        }
    }

    /// Whether it differs from all others in this workload, or is asked for.
    fn has_workload(self, workload: Workload, is_asked_for: bool) -> bool {
        match self {
            // On loopback nothing is lost, and the host is the bottleneck, whatever the congestion control.
            Self::KcpxAuto => workload.is_across_path() || is_asked_for,
            Self::KcpxQlog => is_asked_for,
            Self::QuinnBbr => workload.is_across_path(),
            _ => !self.is_machine() || workload == Workload::Sink,
        }
    }

    /// Whether it is the machine itself, which others can be compared with, and no transport.
    pub(crate) fn is_machine(self) -> bool {
        matches!(self, Self::Memcpy | Self::Udp | Self::UdpGso)
    }
}

/// The name of a value on the command line.
pub(crate) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Args {
    /// Ends the program with what is wrong, or with the help that was asked for.
    pub(crate) fn from_command_line() -> Self {
        Self::from_arguments(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    pub(crate) fn from_arguments<T: Into<OsString> + Clone>(
        arguments: impl IntoIterator<Item = T>,
    ) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(arguments)?;
        let args = Self::from_arg_matches(&matches)?;
        if args.role.is_none() {
            path::reject_without_effect(&args, &matches)?;
        }
        Ok(args)
    }

    /// The measurements, in groups of rows that are compared with each other.
    pub(crate) fn groups(&self) -> anyhow::Result<Vec<Vec<Case>>> {
        let external = std::env::var_os(EXTERNAL).is_some();
        let peers: Vec<Peer> = if self.peers.is_empty() {
            let all = Peer::value_variants().iter().copied();
            all.filter(|peer| *peer != Peer::KcpGo || external).collect()
        } else {
            self.peers.clone()
        };
        if !external
            && peers
                .iter()
                .chain(&self.path.beside)
                .chain(&self.path.server)
                .any(|peer| *peer == Peer::KcpGo)
        {
            anyhow::bail!("kcp-go is measured where {EXTERNAL} names its program; see --help");
        }
        let mut groups = Vec::new();
        for &workload in &self.workload {
            for &wire in self.wires_of(workload) {
                let is_asked_for = !self.peers.is_empty();
                let has = |peer: &&Peer| {
                    peer.has(wire, self.path.server) && peer.has_workload(workload, is_asked_for)
                };
                let cases = peers.iter().filter(has);
                let case = |peer: &Peer| {
                    let tcp_congestion = self.tcp_congestion;
                    let case = Case { tcp_congestion, ..Case::new(workload, wire, *peer) };
                    if !workload.is_across_path() {
                        return case;
                    }
                    let PathOptions { server, max_overhead, .. } = self.path;
                    Case { server, max_overhead, ..case }
                };
                let group: Vec<_> = cases.map(case).collect();
                if !group.is_empty() {
                    groups.push(group);
                }
            }
        }
        anyhow::ensure!(!groups.is_empty(), "none of these peers has one of these wires");
        Ok(groups)
    }

    fn wires_of(&self, workload: Workload) -> &[Wire] {
        match workload {
            _ if !self.wires.is_empty() => &self.wires,
            Workload::Sink => Wire::value_variants(),
            _ => &[Wire::Plain],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(arguments: &[&str]) -> Vec<Vec<Case>> {
        let arguments = std::iter::once("compare").chain(arguments.iter().copied());
        Args::from_arguments(arguments).unwrap().groups().unwrap()
    }

    #[test]
    fn command_line_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn default_cases_are_all_wires_for_sink_and_plain_for_the_rest() {
        let groups = groups(&["--peers", "kcpx,tcp"]);
        let wires = |workload| {
            let groups = groups.iter().filter(move |group| group[0].workload == workload);
            groups.map(|group| (group[0].wire, group.len())).collect::<Vec<_>>()
        };
        let all = Wire::value_variants().iter();
        let expected: Vec<_> =
            all.map(|wire| (*wire, 1 + usize::from(*wire == Wire::Plain))).collect();
        assert_eq!(wires(Workload::Sink), expected);
        assert_eq!(wires(Workload::Many), [(Wire::Plain, 2)]);
    }

    #[test]
    fn requested_wire_selects_the_peers_that_support_it() {
        let groups = groups(&["--workload", "echo", "--wires", "aes-128-gcm"]);
        let mut peers: Vec<_> = groups[0].iter().map(|case| case.peer).collect();
        peers.retain(|peer| *peer != Peer::KcpGo);
        assert_eq!(peers, [Peer::Kcpx, Peer::RustTokioKcp, Peer::Quinn]);
    }

    #[test]
    fn fec_of_a_row_of_kcpx_auto_is_that_of_its_server() {
        for (server, has) in [(Some(Peer::KcpGo), true), (Some(Peer::Kcpx), false), (None, false)] {
            assert_eq!(Peer::KcpxAuto.has(Wire::Fec, server), has);
            assert!(Peer::KcpxAuto.has(Wire::Plain, server));
        }
    }

    #[test]
    fn json_names_equal_command_line_names() {
        fn same<T: ValueEnum + Serialize>() {
            for value in T::value_variants() {
                let json = serde_json::to_value(value).unwrap();
                assert_eq!(json, name(value.clone()), "in JSON and on the command line");
            }
        }
        same::<Workload>();
        same::<Wire>();
        same::<Peer>();
        same::<TcpCongestion>();
    }
}
