//! The command line.

use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::conditions::PathArgs;
use crate::{bulk, command, run};

/// Runs commands with a path between them that delays and loses packets.
///
/// It makes two network namespaces with one device each, starts the server in one and, once that
/// is ready, the client in the other, and carries packets between them: 25 ms each way unless set
/// otherwise, and whatever else the options say, in both directions alike or in one of them.
/// Packets are drawn from a seed, in order, so the same seed gives the same fate to the first, the
/// second, ... packet. All of IPv4 crosses it, the kernel's TCP included, in packets of at most
/// 1500 bytes.
///
/// {server} in the commands becomes the server's address, 10.77.0.1. Commands are split as a shell
/// splits them, but run without one; `sh -c '...'` gives one. Their output goes to the error output as
/// it comes, and with the counters into the JSON report at the end. When all
/// clients have ended, the server's input is closed; if it has not ended a second later, it is
/// killed. The clients' input is empty. The relay ends with 0 if all clients did, and with
/// 2 after wrong arguments.
///
/// In the report, `packets` and `bytes` of a direction are those sent into it, in whole IP
/// packets, and `queue_delay` is how long packets waited in the bottleneck's queue before they were
/// sent, those dropped left out. With `kept_up` false the relay itself lost packets, or the kernel
/// on the way to it, and what was measured does not count: give it more of the machine, or less to
/// carry. `late` packets came more than a millisecond after they were due, for the same reason.
/// `udp_receive_drops` of an end are what the receive buffers there could not hold. A summary of
/// each direction and of each client goes to the error output too.
///
/// It needs root, or a user who may make user namespaces and open /dev/net/tun. Nothing is left
/// behind, even if it is killed, but processes that a command starts and does not end.
///
/// Examples:
///
///   A file through the kernel's TCP, 1 % lost:
///     relay --loss 1 --server 'python3 -u -m http.server' \
///         --client 'curl -sSo /dev/null -w "%{speed_download}\n" http://{server}:8000/big.bin'
///
///   The same over a link of 100 Mbit/s whose queue holds 200 packets:
///     relay --rate-mbit 100 --queue 200 --server 'python3 -u -m http.server' \
///         --client 'curl -sSo /dev/null -w "%{speed_download}\n" http://{server}:8000/big.bin'
///
///   The echo example of this crate, 100 ms each way, 5 % lost, in some disorder:
///     relay --delay-ms 100 --loss 5 --jitter-ms 20 \
///         --server 'target/release/examples/echo_server {server}:4000' \
///         --client 'target/release/examples/echo_client {server}:4000'
///
///   The same, 5 % lost in bursts of 3 packets on average:
///     relay --loss 5 --burst 3 --server 'target/release/examples/echo_server {server}:4000' \
///         --client 'target/release/examples/echo_client {server}:4000'
///
///   Two clients that share 20 Mbit/s with a queue of 50 packets, for 10 s:
///     relay --rate-mbit 20 --queue 50 --server 'relay bulk-server --listen {server}:4000' \
///         --client 'relay bulk-client --connect {server}:4000' \
///         --client 'relay bulk-client --connect {server}:4000'
///
///   A recorded mobile network, from its 30th second on:
///     relay --trace-up LTE.up --trace-down LTE.down --trace-offset 30 \
///         --server 'relay bulk-server --listen {server}:4000' \
///         --client 'relay bulk-client --connect {server}:4000'
///
///   No loss, 10 % from the 3rd second on, none after the 6th:
///     relay --at '3 loss=10' --at '6 loss=0' \
///         --server 'relay bulk-server --listen {server}:4000' \
///         --client 'relay bulk-client --connect {server}:4000'
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(flatten)]
    path: PathArgs,
    /// Decides which packets are lost, late, and so on
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds after which clients are killed; the report comes all the same
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Text of the line that says that the server is ready; without it any line will do
    #[arg(long, value_name = "TEXT")]
    ready: Option<String>,
    /// The command at the first end
    #[arg(long, value_name = "COMMAND", required = true)]
    server: Option<String>,
    /// A command at the other end, started when the server is ready. Given several times, all
    /// run there at the same time
    #[arg(long, value_name = "COMMAND", required = true)]
    client: Vec<String>,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Roles of the processes that it starts from its own program.
#[derive(Debug, Subcommand)]
enum Role {
    /// Becomes a command that ends with its parent.
    #[command(hide = true)]
    Tied {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Counts what each client sends.
    #[command(hide = true)]
    BulkServer(bulk::ServerArgs),
    /// Sends at full speed for some time.
    #[command(hide = true)]
    BulkClient(bulk::ClientArgs),
}

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    match args.role {
        None => run::run(&checked(args.run())),
        Some(Role::Tied { command }) => Err(command::become_tied(&command)),
        Some(Role::BulkServer(args)) => bulk::serve(&args).map(|()| ExitCode::SUCCESS),
        Some(Role::BulkClient(args)) => bulk::send(&args).map(|()| ExitCode::SUCCESS),
    }
}

/// The value, or the end of the process as after any wrong argument: status 2, and the way to the help.
pub(crate) fn checked<T>(value: anyhow::Result<T>) -> T {
    value.unwrap_or_else(|error| {
        Args::command().error(ErrorKind::ValueValidation, format!("{error:#}")).exit()
    })
}

impl Args {
    fn run(self) -> anyhow::Result<run::Run> {
        Ok(run::Run {
            directions: self.path.directions()?,
            seed: self.seed,
            limit: Duration::from_secs(self.seconds),
            ready: self.ready,
            // The command line is refused without these two.
            server: self.server.unwrap_or_default(),
            clients: self.client,
        })
    }
}
