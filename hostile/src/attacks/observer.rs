//! Memory and CPU time of a server during an attack, and the honest clients beside it.

use std::time::{Duration, Instant};

use crate::honest::Clients;
use crate::os;
use crate::server::Process;

use super::report::Row;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_millis(25);

/// Watches a server from its construction on, with honest clients that connect to it.
#[derive(Debug)]
pub(super) struct Observer {
    clients: Option<Clients>,
    start: Instant,
    cpu_before: Duration,
    before_kib: u64,
    peak_kib: u64,
    /// The most bytes that all peers held.
    pub(super) peak_memory: u64,
    /// The most bytes that unvalidated peers held.
    pub(super) peak_unvalidated: u64,
}

impl Observer {
    /// With honest clients, unless what the server's application reads is counted.
    pub(super) fn start(server: &Process, with_clients: bool) -> anyhow::Result<Self> {
        let resident = os::resident_kib_of(&server.proc_dir());
        let config = server.profile.config()?;
        Ok(Self {
            clients: with_clients
                .then(|| Clients::start(server.addr, config, server.profile.service)),
            start: Instant::now(),
            cpu_before: server.cpu_time(),
            before_kib: resident,
            peak_kib: resident,
            peak_memory: 0,
            peak_unvalidated: 0,
        })
    }

    /// Lets time pass.
    pub(super) async fn watch(
        &mut self,
        server: &mut Process,
        time: Duration,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep(INTERVAL.min(end.saturating_duration_since(Instant::now()))).await;
            self.peak_kib = self.peak_kib.max(os::resident_kib_of(&server.proc_dir()));
            let counters = server.counters()?;
            self.peak_memory = self.peak_memory.max(counters.memory_bytes);
            self.peak_unvalidated = self.peak_unvalidated.max(counters.unvalidated_bytes);
        }
        Ok(())
    }

    /// Memory, CPU time and clients, in a row of the table.
    pub(super) async fn finish(
        self,
        server: &Process,
        row: Row,
        most_mib: u64,
    ) -> anyhow::Result<Row> {
        let cpu = server.cpu_time().saturating_sub(self.cpu_before);
        let cores = cpu.as_secs_f64() / self.start.elapsed().as_secs_f64();
        let peak_kib = self.peak_kib.max(os::resident_kib_of(&server.proc_dir()));
        let row = row.memory(peak_kib.saturating_sub(self.before_kib), most_mib).cpu(cores);
        Ok(match self.clients {
            Some(clients) => row.clients(clients.stop().await?),
            None => row,
        })
    }
}
