//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap::{ValueEnum, value_parser};

use super::link::Link;
use super::meter::MAX_ROUND_TRIPS;

/// Measures KCP between two processes, or two machines
///
/// One server serves any number of clients and all workloads; each client measures one workload,
/// shows a line per second, and reports the cost on both sides.
#[derive(Parser)]
#[command(
    name = "perf",
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "`perf client --help` has the workloads, examples, and what the figures mean."
)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
pub(crate) enum Role {
    /// Serves clients of every workload, until Ctrl-C
    Server(ServerArgs),
    /// Measures one workload against a server
    #[command(after_long_help = CLIENT_HELP)]
    Client(Box<ClientArgs>),
}

#[derive(Args)]
pub(crate) struct ServerArgs {
    /// Address to listen on, as HOST:PORT; port 0 picks a free one
    #[arg(long, default_value = "0.0.0.0:4010")]
    pub(crate) listen: String,
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) link: Link,
}

#[derive(Args)]
pub(crate) struct ClientArgs {
    /// Address of the server, as HOST:PORT
    #[arg(long)]
    pub(crate) connect: String,
    /// The workload to measure
    #[arg(long, value_enum, default_value_t = Workload::Sink)]
    pub(crate) workload: Workload,
    /// How long: sink, source, echo 5 without --bytes; messages 10; idle 10; pingpong as long as
    /// --count takes; many: when to give up, 30
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// How much: sink, source, echo; with a unit of k, M, G (powers of 1,000) or Ki, Mi, Gi
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Bytes written at once: sink, echo 65,536; pingpong 64; messages, many 1,024
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u32).range(8..=1 << 20))]
    size: Option<u32>,
    /// Round trips of pingpong, 20,000 without --seconds; messages, without it all that fit into --seconds
    #[arg(long, value_name = "N",
        value_parser = value_parser!(u64).range(1..=MAX_ROUND_TRIPS))]
    count: Option<u64>,
    /// Connections of many and idle, 1,000
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=60_000))]
    connections: Option<u32>,
    /// Milliseconds from one of the messages to the next, 10
    #[arg(long, value_name = "MS", value_parser = value_parser!(u64).range(1..=10_000))]
    every: Option<u64>,
    /// Print the result as one line of JSON on standard output, the table on standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a time series, a row every 200 ms
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Draw goodput and round-trip time over time, CPU time for idle, or how latencies spread
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) link: Link,
}

/// How this process uses the machine.
#[derive(Args)]
pub(crate) struct Process {
    /// Threads that run tasks; 1 runs everything on one thread. Default: the number of CPUs
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1_024))]
    pub(crate) threads: Option<u16>,
    /// Use this CPU alone, counted from 0 (Linux)
    #[arg(long, value_name = "CPU")]
    pub(crate) pin: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// The client sends as fast as it can, and the server counts
    Sink,
    /// The server sends as fast as it can
    Source,
    /// The client sends as fast as it can, and checks what the server sends back
    Echo,
    /// One message goes there and back at a time
    Pingpong,
    /// Many connections begin at the same moment, each with one message there and back
    Many,
    /// Many connections do nothing
    Idle,
    /// A message goes there and back at a steady rate, however late the answers are
    Messages,
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sink => "sink",
            Self::Source => "source",
            Self::Echo => "echo",
            Self::Pingpong => "pingpong",
            Self::Many => "many",
            Self::Idle => "idle",
            Self::Messages => "messages",
        }
    }

    /// The options that mean something for it.
    fn takes(self) -> &'static [&'static str] {
        match self {
            Self::Sink | Self::Echo => &["--seconds", "--bytes", "--size"],
            Self::Source => &["--seconds", "--bytes"],
            Self::Pingpong => &["--seconds", "--count", "--size"],
            Self::Many => &["--seconds", "--connections", "--size"],
            Self::Idle => &["--seconds", "--connections"],
            Self::Messages => &["--seconds", "--count", "--size", "--every"],
        }
    }
}

/// The task of a client, with the defaults of its workload.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    /// How long at most.
    pub(crate) time: Option<Duration>,
    pub(crate) bytes: Option<u64>,
    pub(crate) size: usize,
    /// Samples of latency at most.
    pub(crate) count: u64,
    pub(crate) connections: u32,
    pub(crate) every: Duration,
}

impl ClientArgs {
    pub(crate) fn plan(&self) -> Result<Plan> {
        let workload = self.workload;
        for (given, option) in [
            (self.seconds.is_some(), "--seconds"),
            (self.bytes.is_some(), "--bytes"),
            (self.size.is_some(), "--size"),
            (self.count.is_some(), "--count"),
            (self.connections.is_some(), "--connections"),
            (self.every.is_some(), "--every"),
        ] {
            let (takes, name) = (workload.takes(), workload.name());
            if given && !takes.contains(&option) {
                bail!("{option} means nothing for {name}, which takes {}", takes.join(", "));
            }
        }
        if let Some(seconds) = self.seconds {
            let range = 0.1..=86_400.0;
            ensure!(
                range.contains(&seconds),
                "--seconds must be between 0.1 and 86400, got {seconds}"
            );
        }
        let default = match workload {
            Workload::Sink | Workload::Source | Workload::Echo if self.bytes.is_none() => Some(5.0),
            Workload::Messages if self.count.is_none() => Some(10.0),
            Workload::Idle => Some(10.0),
            Workload::Many => Some(30.0),
            _ => None,
        };
        let seconds = self.seconds.or(default);
        let most = match (workload, seconds) {
            (Workload::Pingpong, None) => 20_000,
            _ => MAX_ROUND_TRIPS,
        };
        let size = match workload {
            Workload::Sink | Workload::Source | Workload::Echo => 64 * 1024,
            Workload::Pingpong | Workload::Idle => 64,
            Workload::Many | Workload::Messages => 1_024,
        };
        Ok(Plan {
            workload,
            time: seconds.map(Duration::from_secs_f64),
            bytes: self.bytes,
            size: self.size.unwrap_or(size) as usize,
            count: self.count.unwrap_or(most),
            connections: match workload {
                Workload::Many | Workload::Idle => self.connections.unwrap_or(1_000),
                _ => 1,
            },
            every: Duration::from_millis(self.every.unwrap_or(10)),
        })
    }
}

/// Reads the command line. Ends the process if it is wrong or asks for help.
pub(crate) fn parse() -> Role {
    let command = Cli::command().mut_subcommand("server", plain).mut_subcommand("client", plain);
    let mut matches: ArgMatches = command.get_matches();
    Cli::from_arg_matches_mut(&mut matches).map_or_else(|error| error.exit(), |cli| cli.role)
}

/// Defaults for measurements: KCP alone, with its fastest preset.
fn plain(command: Command) -> Command {
    command
        .mut_arg("crypt", |arg| arg.default_value("null"))
        .mut_arg("mode", |arg| arg.default_value("fast3"))
        .mut_arg("mtu", |arg| arg.default_value("1400"))
        .mut_arg("parityshard", |arg| arg.default_value("0"))
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => 0,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        "expected a number above 0, alone or with k, M, G, Ki, Mi or Gi, as in 64Mi".to_owned()
    })
}

const CLIENT_HELP: &str = "\
Examples:
  perf server --listen 0.0.0.0:4010
  perf client --connect HOST:4010                          how fast a stream is
  perf client --connect HOST:4010 --workload pingpong      how fast an answer is
  perf client --connect HOST:4010 --workload messages --size 200 --every 20 --plot game.svg
  perf client --connect HOST:4010 --workload many --connections 10000
  perf client --connect HOST:4010 --workload idle --keepalive 0
  perf client --connect HOST:4010 --bytes 1G --json
  with --crypt aes-128-gcm --key SECRET --datashard 10 --parityshard 3 on both sides

Workloads:
  sink       Writes of --size until --seconds or --bytes is reached; the clock stops when the
             server's count of what arrived is back, which must be what was sent.
  source     The same from the server to the client, in writes of 64 KiB.
  echo       As sink; the server sends everything back, which is read at the same time and compared.
  pingpong   100 round trips to warm up, then --count of them; the next one begins when the one
             before has ended.
  many       --connections of one socket begin at once; each sends 16 + --size bytes and reads
             --size bytes back. A connection that has not finished after --seconds has failed.
  idle       --connections send 64 bytes, read them back, and rest: 1 s to drain, then --seconds
             in which CPU time is measured.
  messages   After the same warm-up --size bytes are sent every --every ms and come back. Latency
             is the whole round trip; half of it approximates one way if both directions are alike.
             It begins when the message is handed over; a message that waits for capacity behind
             earlier ones counts from the time it was due.

Lines per second, on standard error: goodput, or round trips; smoothed round-trip time; resent share
of the segments that this side sent; CPU time of this process, 100 % being one core.

Keys of --json, null where there is no value. CPU is user and system time. The server's values
concern its whole process: measure with one client at a time, and memory per connection with a
server that was just started, since a process keeps memory that it has used once.
  workload                    as given
  interrupted                 whether it was ended by Ctrl-C
  bytes                       payload that went all the way: to the server, the client, or back
  wall_s                      time measured, in seconds
  mb_per_s                    bytes / wall_s / 10^6; not for idle
  operations                  round trips; connections of many
  p50_us p99_us p999_us max_us
                              of the latencies in microseconds: pingpong, messages, many (from the
                              common beginning to the end of each)
  connections failed          how many succeeded, and how many did not
  client_cpu_s server_cpu_s   CPU time of both processes during wall_s (Unix)
  cpu_s_per_gib               both together per 2^30 bytes: sink, source, echo
  rss_kib client_rss_kib      resident memory of the server, and of the client, at the end (Linux)
  kib_per_connection client_kib_per_connection
                              its growth since the beginning, by connections: many, idle
  retransmit_pct              segments sent again, of all segments with data that both sides sent
  wire_bytes_out datagrams_out
                              UDP payload that the client sent, with everything that is overhead
  wire_bytes_in               the same, received by the client
  server_wire_bytes_out       the same, sent by the server
  drops                       datagrams that found the socket's buffer full, both sides (Linux)
  discarded                   datagrams that KCP, FEC or cipher did not take, both sides

Columns of --csv: seconds, bytes, mb_per_s, srtt_us, retransmit_pct, cpu_pct, operations. bytes and
operations are sums since the beginning, the others are of the row's time; empty where there is
no value.";
