//! A listener in a thread of its own, or in a process of its own; the process has the memory and CPU time
//! of the server alone.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use kcpx::crypto::{Algorithm, Cipher};
use kcpx::fec::FecConfig;
use kcpx::{
    Config, Endpoint, EndpointStats, KcpListener, KcpStream, Limits, Migration, Redundancy,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

use crate::os;

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Defaults of [`Limits`].
const MEMORY: usize = 1 << 30;
const MAX_CONNECTIONS: usize = 65_536;

/// The task of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Sends back what comes.
    Echo,
    /// Sends [`GREETING`] bytes before it reads anything, and then drops what comes.
    Greeting,
    /// Sends as fast as it can and never reads.
    Pour,
}

/// Bytes that a greeting server sends.
pub(crate) const GREETING: usize = 64 * 1024;
/// The value of each.
pub(crate) const GREETING_BYTE: u8 = 0x5A;

/// The counters of a server's application.
#[derive(Debug, Default)]
struct Seen {
    accepted: AtomicU64,
    delivered: AtomicU64,
    ended: AtomicU64,
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    endpoint: Endpoint,
    seen: Arc<Seen>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(config: Config, service: Service) -> anyhow::Result<Self> {
        Self::start_at(LOCALHOST, config, service)
    }

    fn start_at(ip: IpAddr, config: Config, service: Service) -> anyhow::Result<Self> {
        let (report, bound) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let seen = Arc::<Seen>::default();
        let count = seen.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                let listener = KcpListener::bind_with((ip, 0), config).await;
                let Ok(listener) = listener else { return };
                let Ok(addr) = listener.local_addr() else { return };
                let _ = report.send((addr, listener.endpoint().clone()));
                tokio::select! {
                    () = accept(&listener, service, &count) => {}
                    _ = stopped => {}
                }
            });
        });
        let (addr, endpoint) = bound.recv().context("the server did not start")?;
        Ok(Self { addr, endpoint, seen, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: &KcpListener, service: Service, seen: &Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        seen.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(serve(stream, service, seen.clone()));
    }
}

/// Without a buffer of its own: what is measured is what the library keeps.
async fn serve(mut stream: KcpStream, service: Service, seen: Arc<Seen>) {
    match service {
        Service::Echo => {}
        Service::Greeting => {
            if stream.write_all(&vec![GREETING_BYTE; GREETING]).await.is_err() {
                return;
            }
        }
        Service::Pour => while stream.write_all(&[GREETING_BYTE; 4_096]).await.is_ok() {},
    }
    while let Ok(chunk) = stream.read_chunk().await {
        seen.delivered.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        if chunk.is_empty() {
            seen.ended.fetch_add(1, Ordering::Relaxed);
            break;
        }
        if service == Service::Echo && stream.write_all(&chunk).await.is_err() {
            break;
        }
    }
}

// ----- a process of its own -----

/// How a server in a process of its own is configured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Profile {
    #[arg(long, value_enum, default_value_t = Service::Echo)]
    pub(crate) service: Service,
    /// Name of a cipher; its key is fixed.
    #[arg(long, default_value = "null")]
    pub(crate) cipher: String,
    /// FEC of 10 data and 3 parity packets.
    #[arg(long)]
    pub(crate) fec: bool,
    /// Connections migrate.
    #[arg(long)]
    pub(crate) migration: bool,
    #[arg(long, default_value_t = LOCALHOST)]
    pub(crate) ip: IpAddr,
    /// The application sees validated peers alone.
    #[arg(long)]
    pub(crate) require_validation: bool,
    /// `Limits::validation_timeout`, milliseconds.
    #[arg(long, default_value_t = 30_000)]
    pub(crate) validation_ms: u64,
    /// `Limits::memory`.
    #[arg(long, default_value_t = MEMORY)]
    pub(crate) memory: usize,
    /// `Limits::max_connections`.
    #[arg(long, default_value_t = MAX_CONNECTIONS)]
    pub(crate) max_connections: usize,
}

impl Profile {
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            cipher: "null".to_owned(),
            fec: false,
            migration: false,
            ip: LOCALHOST,
            require_validation: false,
            validation_ms: 30_000,
            memory: MEMORY,
            max_connections: MAX_CONNECTIONS,
        }
    }

    pub(crate) fn sealed(cipher: &str) -> Self {
        Self { cipher: cipher.to_owned(), ..Self::new(Service::Echo) }
    }

    /// For both ends.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let algorithm = Algorithm::from_name(&self.cipher)?;
        let key = vec![7; algorithm.key_len()];
        let limits = Limits::new()
            .memory(self.memory)
            .max_connections(self.max_connections)
            .require_validation(self.require_validation)
            .validation_timeout(Duration::from_millis(self.validation_ms));
        let mut config = Config::new().cipher(Cipher::new(algorithm, &key)?).limits(limits);
        if self.fec {
            config = config.redundancy(Redundancy::Fec(FecConfig::SHORT));
        }
        if self.migration {
            config = config.migration(Migration::Authenticated);
        }
        Ok(config)
    }
}

/// The counters of a server's endpoint and application.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Connections that the application got.
    pub(crate) accepted: u64,
    /// Bytes that the application read.
    pub(crate) delivered: u64,
    /// Connections whose end of stream it read.
    pub(crate) ended: u64,
    pub(crate) current_connections: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) unvalidated_bytes: u64,
    pub(crate) refused_conv_in_use: u64,
    pub(crate) recovered_shards: u64,
    pub(crate) migrations: u64,
}

impl Counters {
    fn of(server: &Server) -> Self {
        let stats = server.stats();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            accepted: load(&server.seen.accepted),
            delivered: load(&server.seen.delivered),
            ended: load(&server.seen.ended),
            current_connections: stats.connections.current,
            memory_bytes: stats.memory.total_bytes,
            unvalidated_bytes: stats.memory.unvalidated_bytes,
            refused_conv_in_use: stats.refused.conv_in_use,
            recovered_shards: stats.fec.recovered_shards,
            migrations: stats.connections.migrations,
        }
    }

    fn to_line(self) -> String {
        format!(
            "{} {} {} {} {} {} {} {} {}",
            self.accepted,
            self.delivered,
            self.ended,
            self.current_connections,
            self.memory_bytes,
            self.unvalidated_bytes,
            self.refused_conv_in_use,
            self.recovered_shards,
            self.migrations
        )
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().map(|field| field.parse().ok());
        let mut next = || fields.next().flatten();
        Some(Self {
            accepted: next()?,
            delivered: next()?,
            ended: next()?,
            current_connections: next()?,
            memory_bytes: next()?,
            unvalidated_bytes: next()?,
            refused_conv_in_use: next()?,
            recovered_shards: next()?,
            migrations: next()?,
        })
    }
}

/// The server's side: prints its address, then its counters for each line of input, to its end.
pub(crate) fn run(profile: &Profile) -> anyhow::Result<()> {
    let server = Server::start_at(profile.ip, profile.config()?, profile.service)?;
    println!("{}", server.addr);
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", Counters::of(&server).to_line());
    }
    // Ends the tasks with the process.
    std::process::exit(0)
}

/// A server in a process of its own, which ends with it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) addr: SocketAddr,
    pub(crate) profile: Profile,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(profile: Profile) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let service = profile.service.to_possible_value().context("a service without a name")?;
        command.args(["serve", "--service", service.get_name(), "--cipher", &profile.cipher]);
        command.args(profile.fec.then_some("--fec"));
        command.args(profile.migration.then_some("--migration"));
        command.args(["--ip", &profile.ip.to_string()]);
        command.args(profile.require_validation.then_some("--require-validation"));
        command.args(["--validation-ms", &profile.validation_ms.to_string()]);
        command.arg("--memory").arg(profile.memory.to_string());
        command.arg("--max-connections").arg(profile.max_connections.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("no standard input")?;
        let mut output = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let addr = line.trim().parse().context("the server did not start")?;
        Ok(Self { addr, profile, child, input, output })
    }

    pub(crate) fn counters(&mut self) -> anyhow::Result<Counters> {
        self.input.write_all(b"\n")?;
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the server has ended");
        Counters::from_line(&line).context("no counters")
    }

    /// For a thread that watches it.
    pub(crate) fn proc_dir(&self) -> PathBuf {
        os::proc_dir(self.child.id())
    }

    /// CPU time of all its threads so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        os::cpu_time(&self.proc_dir())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
