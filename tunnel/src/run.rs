//! `run`: the tunnels of a process from their start to the signal that ends them.

use std::io;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::client::Client;
use crate::options::{Invocation, Loaded};
use crate::process::{
    Controller, Counters, Log, MetricsServer, Notifier, Signal, Signals, raise_descriptor_limit,
    snmp,
};
use crate::server::{Clients, Server};
use crate::settings::{ClientSettings, ServerSettings, Tunnel};

/// Raises the limit of descriptors, starts all tunnels and carries connections until SIGTERM or
/// SIGINT, then for the `drain` time, or until a second signal. Reloads `invocation` on SIGHUP.
///
/// # Errors
///
/// If an address cannot be bound, or a tunnel ends by itself.
pub async fn run(invocation: Invocation, loaded: Loaded, log: Log) -> io::Result<()> {
    let mut process = Process {
        notifier: Notifier::new(invocation.variable("NOTIFY_SOCKET").map(str::to_owned)),
        drain: loaded.settings.process.drain,
        invocation,
        loaded,
        log,
        counters: Counters::default(),
        tunnels: Vec::new(),
        running: JoinSet::new(),
        helpers: JoinSet::new(),
    };
    let mut signals = Signals::new()?;
    process.start().await?;
    process.notify(Notifier::READY);
    process.serve(&mut signals).await?;
    process.notify(Notifier::STOPPING);
    process.shutdown(&mut signals).await;
    Ok(())
}

struct Process {
    invocation: Invocation,
    /// Current values: options that need a restart have the values of the start.
    loaded: Loaded,
    log: Log,
    notifier: Notifier,
    /// Value of the start: a reload does not change it.
    drain: Duration,
    counters: Counters,
    /// In the order of the settings.
    tunnels: Vec<Running>,
    running: JoinSet<()>,
    /// The metrics server and the CSV file; they end with the process.
    helpers: JoinSet<()>,
}

/// The other end of a tunnel's control.
enum Running {
    Client(Controller<ClientSettings>),
    Server(Controller<ServerSettings>),
}

impl Process {
    async fn start(&mut self) -> io::Result<()> {
        let settings = self.loaded.settings.clone();
        info!("kcpx-tunnel {}", env!("CARGO_PKG_VERSION"));
        for warning in &self.loaded.warnings {
            warn!("{warning}");
        }
        if let Err(error) = raise_descriptor_limit() {
            warn!("the limit of descriptors (ulimit -n) stays as it is: {error}");
        }
        let clients = Clients::of_process();
        for tunnel in settings.tunnels {
            self.start_tunnel(tunnel, &clients).await?;
        }
        if let Some(address) = settings.process.metrics {
            let server = MetricsServer::bind(address, self.counters.clone()).await?;
            info!("metrics at http://{}/metrics", server.local_addr()?);
            self.helpers.spawn(server.run());
        }
        if let Some(settings) = settings.process.snmp {
            self.helpers.spawn(snmp::write_periodically(settings, self.counters.clone()));
        }
        Ok(())
    }

    async fn start_tunnel(&mut self, tunnel: Tunnel, clients: &Clients) -> io::Result<()> {
        let (drain, counters) = (self.drain, self.counters.clone());
        let summary = tunnel.to_string();
        match tunnel {
            Tunnel::Client(settings) => {
                let (controller, control) = Controller::new(settings, drain, counters);
                let client = Client::bind(control).await?;
                if let Some(address) = client.local_addr() {
                    info!("listening on {address}: {summary}");
                } else {
                    info!("{summary}");
                }
                self.running.spawn(client.run());
                self.tunnels.push(Running::Client(controller));
            }
            Tunnel::Server(settings) => {
                let (controller, control) = Controller::new(settings, drain, counters);
                let server = Server::bind(control, clients.clone()).await?;
                match server.local_addrs()[..] {
                    [first, .., last] => {
                        info!("listening on {first} to port {}: {summary}", last.port());
                    }
                    [only] => info!("listening on {only}: {summary}"),
                    [] => {}
                }
                self.running.spawn(server.run());
                self.tunnels.push(Running::Server(controller));
            }
        }
        Ok(())
    }

    /// Serves until a signal requests the end.
    async fn serve(&mut self, signals: &mut Signals) -> io::Result<()> {
        loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::Shutdown => return Ok(()),
                    Signal::Reload => self.reload(),
                    Signal::Dump => self.dump(),
                },
                Some(ended) = self.running.join_next() => {
                    let reason = ended.err().map(|error| format!(": {error}")).unwrap_or_default();
                    return Err(io::Error::other(format!("a tunnel has ended by itself{reason}")));
                }
            }
        }
    }

    /// Ends all tunnels. A second signal ends the rest.
    async fn shutdown(&mut self, signals: &mut Signals) {
        info!("shutting down, within {} s", self.drain.as_secs());
        for tunnel in &self.tunnels {
            match tunnel {
                Running::Client(controller) => controller.shutdown(),
                Running::Server(controller) => controller.shutdown(),
            }
        }
        loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::Shutdown => {
                        info!("second signal: ending at once");
                        return;
                    }
                    Signal::Reload => self.reopen_log(),
                    Signal::Dump => self.dump(),
                },
                ended = self.running.join_next() => {
                    if ended.is_none() {
                        info!("ended");
                        return;
                    }
                }
            }
        }
    }

    /// Reopens the log, reads the options again, and passes on changes.
    fn reload(&mut self) {
        self.notify(Notifier::RELOADING);
        self.reopen_log();
        match self.invocation.load() {
            Ok(loaded) => self.apply(&loaded),
            Err(error) => warn!("reload: settings stay as they are: {error}"),
        }
        self.notify(Notifier::READY);
    }

    /// Applies changes that need no restart. Reports the others at each reload.
    fn apply(&mut self, new: &Loaded) {
        for warning in new.warnings.iter().filter(|new| !self.loaded.warnings.contains(new)) {
            warn!("{warning}");
        }
        let changes = self.loaded.changes(new);
        if changes.is_empty() {
            info!("reload: nothing has changed");
        }
        for change in changes {
            info!("reload: {change}");
        }
        let loaded = match self.loaded.without_restart(new) {
            Ok(loaded) => loaded,
            Err(error) => {
                warn!("reload: none of it takes effect before a restart: {error}");
                // The next reload is compared with what was logged now.
                self.loaded.warnings.clone_from(&new.warnings);
                return;
            }
        };
        let tunnels = self.loaded.settings.tunnels.iter().zip(&loaded.settings.tunnels);
        for (running, (old, new)) in self.tunnels.iter().zip(tunnels) {
            match (running, new) {
                _ if old == new => {}
                (Running::Client(controller), Tunnel::Client(settings)) => {
                    controller.reload(settings.clone());
                }
                (Running::Server(controller), Tunnel::Server(settings)) => {
                    controller.reload(settings.clone());
                }
                // Another role needs a restart, so the tunnel's settings have not changed.
                _ => {}
            }
        }
        self.loaded = loaded;
    }

    fn reopen_log(&self) {
        if let Err(error) = self.log.reopen() {
            warn!("the log cannot be opened again: {error}");
        }
    }

    /// Writes the counters into the log, one line per tunnel.
    fn dump(&self) {
        for report in self.counters.read() {
            let numbers: Vec<_> = report
                .metrics
                .iter()
                .map(|metric| format!("{}={}", metric.name, metric.value))
                .collect();
            info!("counters of {}: {}", report.tunnel, numbers.join(" "));
        }
    }

    fn notify(&self, state: &str) {
        if let Err(error) = self.notifier.notify(state) {
            warn!("systemd was not notified of {state}: {error}");
        }
    }
}
