//! Two cables between client and server, in network namespaces if the system permits them.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use kcpx_netem::{InFlight, Link, Path};
use tokio::runtime::Builder;

use super::counter::{self, Arrivals, Sendings};
use super::report::{self, Case, Outcome, Run};
use super::{Args, loopback};

/// A cable that is cut while this is true. Neither end is told.
pub(crate) type Cut = Arc<AtomicBool>;

/// One direction of a cable.
pub(crate) struct Direction {
    delay: Duration,
    cut: Cut,
    in_flight: InFlight,
}

impl Link for Direction {
    type Counts = ();

    fn push(&mut self, now: Duration, packet: &[u8]) {
        if !self.cut.load(Relaxed) {
            self.in_flight.push(now + self.delay, packet);
        }
    }

    fn next_due(&self) -> Option<Duration> {
        self.in_flight.next_due()
    }

    /// A cut also loses what is in flight.
    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        loop {
            let (_, packet) = self.in_flight.pop_due(now + grain)?;
            if !self.cut.load(Relaxed) {
                return Some(packet);
            }
        }
    }

    fn refused(&mut self, _: usize) {}

    fn counts(&self) {}
}

/// Client, server, and the cables between them.
pub(crate) struct Network {
    /// The namespaces, or why there are none.
    path: Result<Path<Direction>>,
    first_cut: Cut,
    delays: [Duration; 2],
}

impl Network {
    /// To be called before other threads exist.
    pub(crate) fn new(args: &Args) -> Self {
        let delays = [args.first, args.second].map(|rtt| Duration::from_millis(rtt) / 2);
        let first_cut = Cut::default();
        let cuts = [first_cut.clone(), Cut::default()];
        let direction = |cable: usize| Direction {
            delay: delays[cable],
            cut: cuts[cable].clone(),
            in_flight: InFlight::default(),
        };
        let cables = [0, 1].map(|cable| [direction(cable), direction(cable)]);
        let path = kcpx_netem::allow().and_then(|()| Path::with_cables(cables));
        Self { path, first_cut, delays }
    }

    /// Why TCP does not take part, if so.
    pub(crate) fn without_tcp(&self) -> Option<String> {
        self.path.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// Runs all cases at once, over the same cables.
    pub(crate) fn run(&self, args: &Args) -> Result<Outcome> {
        let length = Duration::from_secs(args.seconds);
        let (addrs_to, addrs) = channel();
        let (started_to, started) = channel();
        let (server, second) = self.addresses();
        let serve = move |with_tcp| block_on(counter::serve(server, with_tcp, addrs_to, length));
        let serving = match &self.path {
            Ok(path) => path.server().start(move || serve(true))?,
            Err(_) => thread::spawn(move || serve(false)),
        };
        let Ok(addrs) = addrs.recv() else { return Err(failure(serving)) };
        let sending = match &self.path {
            Ok(path) => path
                .client()
                .start(move || block_on(counter::send(addrs, second, length, started_to)))?,
            Err(_) => {
                let (delays, cut) = (self.delays, self.first_cut.clone());
                thread::spawn(move || {
                    block_on(async {
                        let relay = loopback::start(addrs.kcp, delays, cut).await?;
                        let addrs = counter::Addrs { kcp: relay, tcp: None };
                        counter::send(addrs, second, length, started_to).await
                    })
                })
            }
        };
        let Ok(started) = started.recv() else { return Err(failure(sending)) };
        report::print_paths(&started.paths);

        // A number that left after the first of these and arrived before the second took the other cable.
        sleep_until(started.at + Duration::from_secs(args.cut_at));
        self.first_cut.store(true, Relaxed);
        let cut = Instant::now();
        sleep_until(cut + Duration::from_secs(args.cut_for));
        let healed = Instant::now();
        self.first_cut.store(false, Relaxed);

        let sent = join(sending)?;
        let arrived = join(serving)?;
        let runs = Case::ALL.into_iter().filter_map(|case| run_of(case, &sent, &arrived));
        let runs = runs.collect();
        Ok(Outcome { started: started.at, cut, healed, runs })
    }

    /// The server's, and the client's on the second cable.
    fn addresses(&self) -> (IpAddr, IpAddr) {
        match &self.path {
            Ok(path) => {
                let client = path.client();
                let second = client.addresses().last().copied().unwrap_or_else(|| client.address());
                (path.server().address().into(), second.into())
            }
            Err(_) => (Ipv4Addr::LOCALHOST.into(), loopback::SECOND.into()),
        }
    }
}

fn run_of(case: Case, sent: &[Sendings], arrived: &[Arrivals]) -> Option<Run> {
    let of_case = |all: &[(Case, Vec<Instant>)]| {
        all.iter().find(|(of, _)| *of == case).map(|(_, moments)| moments.clone())
    };
    Some(Run { case, sent: of_case(sent)?, arrived: of_case(arrived)? })
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    Builder::new_current_thread().enable_all().build()?.block_on(work)
}

fn join<T>(side: JoinHandle<Result<T>>) -> Result<T> {
    side.join().map_err(|_| anyhow!("a thread panicked, see above"))?
}

/// The error of a side that ended too early.
fn failure<T>(side: JoinHandle<Result<T>>) -> anyhow::Error {
    join(side).err().unwrap_or_else(|| anyhow!("one side ended too early"))
}

fn sleep_until(time: Instant) {
    thread::sleep(time.saturating_duration_since(Instant::now()));
}
