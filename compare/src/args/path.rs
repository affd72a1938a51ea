//! The options for a path, and which options belong to which workloads.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgGroup;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _};

use super::{Args, Peer, Workload, name, units};

/// Options without a meaning over loopback, and the option without one across a path.
const PATH_ONLY: [&str; 20] = [
    "rtt",
    "loss",
    "rate",
    "queue",
    "trace_up",
    "trace_down",
    "trace_delay",
    "trace_offset",
    "jitter",
    "ordered",
    "reorder",
    "burst",
    "beside",
    "seed",
    "every",
    "size",
    "server",
    "streams",
    "max_overhead",
    "parallel",
];
const LOOPBACK_ONLY: &str = "runs";

/// Mean length of a burst of losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BurstLength {
    Packets(f64),
    Time(Duration),
}

/// The path that msg and bulk run across, the same in both directions.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Path of msg and bulk")]
#[command(group = ArgGroup::new("bottleneck").args(["rate", "trace_up", "trace_down"]).multiple(true))]
#[command(group = ArgGroup::new("traces").args(["trace_up", "trace_down", "trace_delay"])
    .multiple(true))]
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
    /// Packets that the bottleneck's queue holds; packets beyond it are dropped [default: 300 with
    /// a trace]
    #[arg(long, value_name = "PACKETS", requires = "bottleneck")]
    pub(crate) queue: Option<usize>,
    /// When packets may leave from client to server, which carries the data, instead of --rate: a
    /// mahimahi trace. Each line is a millisecond in which 1500 bytes of the queue may leave
    #[arg(long, value_name = "FILE", conflicts_with = "rate")]
    pub(crate) trace_up: Option<PathBuf>,
    /// The same from server to client
    #[arg(long, value_name = "FILE", conflicts_with = "rate")]
    pub(crate) trace_down: Option<PathBuf>,
    /// Delay of each packet each way, instead of --rtt: each line is a delay in whole milliseconds,
    /// for 10 ms
    #[arg(long, value_name = "FILE", conflicts_with = "rtt")]
    pub(crate) trace_delay: Option<PathBuf>,
    /// Beginning within the traces for seed 1; each further seed begins 7 s later
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration,
          requires = "traces")]
    pub(crate) trace_offset: Duration,
    /// Largest extra delay each way, drawn for each packet; packets overtake each other
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::duration)]
    pub(crate) jitter: Duration,
    /// Jitter reorders nothing: no packet is due before one that was sent before it
    #[arg(long, requires = "jitter")]
    pub(crate) ordered: bool,
    /// Percent of the packets that are held back by a quarter of the delay, so that later ones
    /// overtake them
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = units::percent)]
    pub(crate) reorder: f64,
    /// Losses come in bursts of this many packets on average, as in 3, or in bad periods of this length on
    /// average, as in 25ms. --loss stays the share that is lost
    #[arg(long, value_name = "PACKETS|TIME", value_parser = units::burst)]
    pub(crate) burst: Option<BurstLength>,
    /// A bulk transfer of this peer, plain, that shares the path during each measurement; wants a
    /// bottleneck
    #[arg(long, value_enum, value_name = "PEER", requires = "bottleneck")]
    pub(crate) beside: Option<Peer>,
    /// The clients of all peers connect to a server of this one, which must speak their protocol
    #[arg(long, value_enum, value_name = "PEER")]
    pub(crate) server: Option<Peer>,
    /// Limit of kcpx-auto: most bytes on the wire for a byte of data, 1.0 to 4.0 [default:
    /// kcpx's]
    #[arg(long, value_name = "RATIO", value_parser = units::per_mille)]
    pub(crate) max_overhead: Option<u16>,
    /// Decides which packets are lost and where traces begin; each value is a run
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) seed: Vec<u64>,
    /// Measurements at a time, each across a path of its own. For loads that hardly use a CPU: the
    /// line below a table says whether the relays kept up
    #[arg(long, default_value_t = 1, value_parser = super::number(1, 32))]
    pub(crate) parallel: usize,
}

/// An option for other workloads than those asked for would silently do nothing.
pub(super) fn reject_without_effect(args: &Args, matches: &ArgMatches) -> Result<(), clap::Error> {
    let given = |option: &str| {
        matches.value_source(option).is_some_and(|source| source == ValueSource::CommandLine)
    };
    let reject = |text: String| Err(Args::command().error(ErrorKind::ArgumentConflict, text));
    let across = |workload: &Workload| workload.is_across_path();
    let of_path = PATH_ONLY.into_iter().find(|option| given(option));
    if let (Some(option), false) = (of_path, args.workload.iter().any(across)) {
        let option = option.replace('_', "-");
        return reject(format!("--{option} is for the workloads msg and bulk; add one"));
    }
    let measures = |peer| {
        args.peers.is_empty() || args.peers.contains(&peer) || args.path.beside == Some(peer)
    };
    if args.tcp_congestion.is_some() && !measures(Peer::Tcp) {
        return reject("--tcp-congestion is for the peer tcp; add it to --peers".into());
    }
    if args.path.max_overhead.is_some() && !measures(Peer::KcpxAuto) {
        return reject("--max-overhead is for the peer kcpx-auto; add it to --peers".into());
    }
    let on_path = args.path.server.into_iter().chain(args.path.beside);
    if let Some(peer) = on_path.into_iter().find(|peer| peer.is_machine()) {
        return reject(format!("{} is no transport, and runs over loopback alone", name(peer)));
    }
    if args.workload.iter().all(across) && given(LOOPBACK_ONLY) {
        return reject(
            "--runs is for workloads over loopback; msg and bulk take a list of \
                           seeds, as in --seed 1,2,3"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn path_option_errors_name_the_option_and_its_range() {
        let cases = [
            ("--workload msg --every 10", ["--every", "must be us, ms or s"]),
            ("--workload msg --every 50us", ["--every", "between 100us and 10s"]),
            ("--workload msg --size 8", ["--size", "16.."]),
            ("--workload bulk --loss 0,101", ["--loss", "between 0 and 100"]),
            ("--workload bulk --rtt fast", ["--rtt", "as in 10ms"]),
            ("--workload bulk --rate 20", ["--queue", "required"]),
            ("--workload bulk --queue 20", ["--rate", "required"]),
            ("--workload bulk --rate 20 --queue 9 --trace-up x", ["--trace-up", "--rate"]),
            ("--workload bulk --rtt 9ms --trace-delay x", ["--trace-delay", "--rtt"]),
            ("--workload bulk --trace-offset 9s", ["--trace-up", "required"]),
            ("--workload bulk --trace-up x --trace-offset 9", ["--trace-offset", "as in 10ms"]),
            ("--workload sink --trace-down x", ["--trace-down", "msg and bulk"]),
            ("--workload msg --ordered", ["--jitter", "required"]),
            ("--workload msg --burst many", ["--burst", "as in 25ms"]),
            ("--workload msg --beside quinn", ["--beside", "--rate"]),
            ("--workload sink --loss 5", ["--loss", "msg and bulk"]),
            ("--every 2ms", ["--every", "msg and bulk"]),
            ("--server tcp", ["--server", "msg and bulk"]),
            ("--workload msg --server udp", ["udp", "loopback"]),
            ("--workload msg --max-overhead 5", ["--max-overhead", "between 1.0 and 4.0"]),
            ("--workload msg --max-overhead 1.5 --peers kcpx", ["--max-overhead", "kcpx-auto"]),
            ("--tcp-congestion cubic --peers kcpx", ["--tcp-congestion", "peer tcp"]),
            ("--workload msg --parallel 0", ["--parallel", "1..=32"]),
            ("--workload msg --runs 3", ["--runs", "--seed 1,2,3"]),
        ];
        for (arguments, expected) in cases {
            let error = error(arguments);
            assert!(expected.iter().all(|part| error.contains(part)), "{arguments}: {error}");
        }
    }
}
