//! What is measured, and with which settings: the command line and the names in it.

mod units;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use clap::{Parser, Subcommand, ValueEnum, value_parser};
use serde::Serialize;

/// The environment variable with the path of a program that is measured as `kcp-go`.
pub(crate) const EXTERNAL: &str = "KCPX_COMPARE_PEER";
/// MTU and windows of all KCP peers.
pub(crate) const MTU: u16 = 1_400;
pub(crate) const WINDOW: u16 = 1_024;
/// What those that take a size of their queue of new connections get.
#[cfg(feature = "together")]
pub(crate) const BACKLOG: u16 = 16_384;
pub(crate) const KEY: &[u8; 16] = b"sixteen key byte";
/// How long a client may take beyond its `--seconds` to get everything across.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// What a process may take to start and to answer.
pub(crate) const PROMPT: Duration = Duration::from_secs(10);

/// Measures kcpx and other transports side by side, with the same workloads in the same run.
///
/// Each measurement starts a server process on CPU 0 and a client process on CPU 1, one thread
/// each. The transports take turns within each run, so a slow moment of the machine meets all of
/// them, and the tables on stdout show medians over the runs, with ratios. What a transport cannot
/// do in time is an empty cell, and the reason is on stderr.
///
/// The workloads sink, echo, pingpong and many run over loopback; msg and bulk run across a path
/// with delay and loss between two network namespaces, which needs root or a user who may make
/// user namespaces.
///
/// Build with --release. Leave the machine alone meanwhile: two busy processes want two CPUs. Linux
/// only, whose /proc it reads.
#[derive(Debug, Parser)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "--help explains the workloads, the columns and the settings.",
    after_long_help = include_str!("help.txt")
)]
pub(crate) struct Args {
    /// What to do
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
    /// Seconds for which the connections of `many` do nothing, to see what that costs
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=60))]
    pub(crate) rest: u64,
    /// Write every single result into this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write charts into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
    // Last, since its heading is that of all that come after it.
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
    /// Time between two messages of msg, with us, ms or s
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = units::interval)]
    pub(crate) every: Duration,
    /// Bytes of a message of msg
    #[arg(long, value_name = "BYTES", default_value_t = 1_024,
          value_parser = number(MESSAGE_HEADER, 1 << 20))]
    pub(crate) size: usize,
}

/// The path that msg and bulk run across, the same in both directions.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Path of msg and bulk")]
pub(crate) struct PathOptions {
    /// Round trip of a packet, half of it each way
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = units::duration)]
    pub(crate) rtt: Duration,
    /// Percent of the packets that never arrive; each value is a row
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "0,1,5,10,20",
          value_parser = units::percent)]
    pub(crate) loss: Vec<f64>,
    /// Rate of a bottleneck in 10^6 bits per second of IP packets; without it there is none
    #[arg(long, value_name = "MBIT", requires = "queue")]
    pub(crate) rate: Option<f64>,
    /// Packets that the bottleneck's queue holds; packets beyond it are dropped
    #[arg(long, value_name = "PACKETS", requires = "rate")]
    pub(crate) queue: Option<usize>,
    /// What a packet needs more at most each way; packets overtake each other
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::duration)]
    pub(crate) jitter: Duration,
    /// Decides which packets are lost; each value is a run
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) seed: Vec<u64>,
}

/// Options that mean nothing over loopback, and the one that means nothing across a path.
const PATH_ONLY: [&str; 8] = ["rtt", "loss", "rate", "queue", "jitter", "seed", "every", "size"];
const LOOPBACK_ONLY: &str = "runs";

/// What a message holds at least: number and timestamp.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Peer {
    Kcpx,
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
    Quinn,
    Tcp,
}

impl Peer {
    /// quinn is never plain: in that row it has the cipher that it chooses by itself.
    pub(crate) fn has(self, wire: Wire) -> bool {
        match self {
            Self::Kcpx | Self::RustTokioKcp | Self::KcpGo => true,
            Self::Quinn => matches!(wire, Wire::Plain | Wire::Aes128Gcm),
            Self::TokioKcp | Self::KcpTokio | Self::KcpRs | Self::Tcp => wire == Wire::Plain,
        }
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
            args.reject_without_effect(&matches)?;
        }
        Ok(args)
    }

    /// An option for other workloads than those asked for would silently do nothing.
    fn reject_without_effect(&self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let given = |option: &str| {
            matches.value_source(option).is_some_and(|source| source == ValueSource::CommandLine)
        };
        let reject = |text: String| Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        let across = |workload: &Workload| workload.is_across_path();
        let of_path = PATH_ONLY.into_iter().find(|option| given(option));
        if let (Some(option), false) = (of_path, self.workload.iter().any(across)) {
            return reject(format!("--{option} is for the workloads msg and bulk; add one"));
        }
        if self.workload.iter().all(across) && given(LOOPBACK_ONLY) {
            return reject(
                "--runs is for workloads over loopback; msg and bulk take a list of \
                           seeds, as in --seed 1,2,3"
                    .into(),
            );
        }
        Ok(())
    }

    /// What is measured, in groups of rows that are compared with each other.
    pub(crate) fn groups(&self) -> anyhow::Result<Vec<Vec<Case>>> {
        let external = std::env::var_os(EXTERNAL).is_some();
        let peers: Vec<Peer> = if self.peers.is_empty() {
            let all = Peer::value_variants().iter().copied();
            all.filter(|peer| *peer != Peer::KcpGo || external).collect()
        } else {
            self.peers.clone()
        };
        if !external && peers.contains(&Peer::KcpGo) {
            anyhow::bail!("kcp-go is measured where {EXTERNAL} names its program; see --help");
        }
        let mut groups = Vec::new();
        for &workload in &self.workload {
            for &wire in self.wires_of(workload) {
                let cases = peers.iter().filter(|peer| peer.has(wire));
                let group: Vec<_> =
                    cases.map(|peer| Case { workload, wire, peer: *peer }).collect();
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

    fn error(arguments: &str) -> String {
        let arguments = std::iter::once("compare").chain(arguments.split(' '));
        Args::from_arguments(arguments).expect_err("accepted").to_string()
    }

    #[test]
    fn path_options_are_lists_with_units() {
        let line =
            "compare --workload msg --rtt 80ms --loss 0,2.5 --seed 3,4 --every 2ms --size 64";
        let args = Args::from_arguments(line.split(' ')).unwrap();
        assert_eq!(args.path.rtt, Duration::from_millis(80));
        assert_eq!(
            (args.path.loss.as_slice(), args.path.seed.as_slice()),
            (&[0.0, 2.5][..], &[3, 4][..])
        );
        assert_eq!((args.load.every, args.load.size), (Duration::from_millis(2), 64));
        let default = Args::from_arguments(["compare", "--workload", "msg,bulk"]).unwrap();
        assert_eq!(default.path.loss, [0.0, 1.0, 5.0, 10.0, 20.0]);
        let seconds = |workload| default.load.time(workload).as_secs();
        assert_eq!((seconds(Workload::Msg), seconds(Workload::Bulk)), (60, 12));
        assert_eq!(default.groups().unwrap().len(), 2, "plain alone");
    }

    #[test]
    fn path_option_errors_name_the_option_and_what_is_allowed() {
        let cases = [
            ("--workload msg --every 10", ["--every", "allowed are us, ms and s"]),
            ("--workload msg --every 50us", ["--every", "100us to 10s"]),
            ("--workload msg --size 8", ["--size", "16.."]),
            ("--workload bulk --loss 0,101", ["--loss", "0 to 100"]),
            ("--workload bulk --rtt fast", ["--rtt", "as in 10ms"]),
            ("--workload bulk --rate 20", ["--queue", "required"]),
            ("--workload bulk --queue 20", ["--rate", "required"]),
            ("--workload sink --loss 5", ["--loss", "msg and bulk"]),
            ("--every 2ms", ["--every", "msg and bulk"]),
            ("--workload msg --runs 3", ["--runs", "--seed 1,2,3"]),
        ];
        for (arguments, expected) in cases {
            let error = error(arguments);
            assert!(expected.iter().all(|part| error.contains(part)), "{arguments}: {error}");
        }
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
    }
}
