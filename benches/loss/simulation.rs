//! Discrete-event simulation of the connections of one cell over its paths, in virtual time: no socket, no
//! clock. Deterministic for its seed.
//!
//! Datagrams that arrive in the same microsecond form one received batch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use kcpx::proto::SharedPath;
use kcpx::testkit::link::{Link, LinkConfig, Waits};
use kcpx::testkit::rng::Rng;
use kcpx::testkit::transmitter;
use kcpx::{Config, ConnectionStats, FecConfig};

use crate::endpoint::{Endpoint, Mode};
use crate::path::{IP_OVERHEAD, MILLIS, Path, SECOND};
use crate::workload::{Application, MAX_DRAIN, Message, Workload};

/// Index of an end of a connection, and of the link that leaves it.
pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

/// Segments of a default window before it grows.
const DEFAULT_WINDOW: u16 = 1_024;

/// One run. All times in us.
pub(crate) struct Setup<'a> {
    pub(crate) seed: u64,
    /// Every connection has all of them, and opens on the first.
    pub(crate) paths: &'a [Path],
    /// How several paths are used.
    pub(crate) mode: Mode,
    pub(crate) config: Config,
    /// Segments of both windows of both ends; `None`: the windows of `config`.
    pub(crate) window: Option<u16>,
    pub(crate) fec: Option<FecConfig>,
    /// Repair symbols, bytes per million bytes of data.
    pub(crate) repair_rate: u32,
    /// Copies in datagrams with newer segments, bytes per million bytes of data.
    pub(crate) bundling_rate: u32,
    /// The server is a stock receiver.
    pub(crate) stock_server: bool,
    /// Tick at which the stock receiver acknowledges, us; `None`: at once.
    pub(crate) ack_tick: Option<u64>,
    /// Timers fire at whole milliseconds, as Tokio's do, and are up to this much late, us. `None`: they are
    /// exact.
    pub(crate) late_timers: Option<u64>,
    /// Changes and their times, ascending.
    pub(crate) changes: Vec<(u64, Change)>,
    /// Workload and start of each connection.
    pub(crate) flows: Vec<(Workload, u64)>,
    /// Whether the connections belong to different hosts, which share nothing.
    pub(crate) separate: bool,
    /// Additional one-way delay of the last connection, us.
    pub(crate) farther: u64,
    /// When the applications stop writing.
    pub(crate) end: u64,
    /// Measured time: when counters count, and the messages that count are written.
    pub(crate) measured: Range<u64>,
    /// Messages written before this are the first ones, which have figures of their own.
    pub(crate) early_until: u64,
}

impl Setup<'_> {
    /// The link of a path that leaves an end, as it is at the beginning.
    pub(crate) fn link(&self, path: usize, end: usize) -> Link {
        let seed = Rng::keyed(self.seed, (4 * path + end) as u64).next();
        Link::new(self.paths[path].links[end].clone(), seed)
    }
}

/// A change during a run.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Both links of the path with this index.
    Links(usize, Box<[LinkConfig; 2]>),
    /// Uniform loss of all links, ppm.
    Loss(u32),
    /// Windows of both ends, segments.
    Windows(u16),
    /// Whether the server reads.
    Reads(bool),
    /// Whether this end runs. A suspended end receives what fits its socket buffer.
    Runs(usize, bool),
}

/// Result of one run.
pub(crate) struct Outcome {
    /// Messages of all connections.
    pub(crate) messages: Vec<Message>,
    pub(crate) before: Counters,
    pub(crate) after: Counters,
    /// Waits in the queue from client to server on each path, from the start of the measured time on.
    pub(crate) waits: Vec<Waits>,
    /// Largest memory in the measured time, bytes: of unacknowledged data at a client, and of received data at a
    /// server, which reads all that is in order.
    pub(crate) memory: [usize; 2],
    /// Bytes that the servers had read, with the time, at most every 50 ms.
    pub(crate) progress: Vec<(u64, u64)>,
    /// The first client at the beginning of each second.
    pub(crate) timeline: Vec<Second>,
}

/// The first connection at one time.
#[derive(Clone, Debug)]
pub(crate) struct Second {
    pub(crate) at: u64,
    pub(crate) read: u64,
    pub(crate) ip_bytes: u64,
    /// Datagrams dropped because the queue was full.
    pub(crate) queue_full: u64,
    /// Wait in the longest queue, us.
    pub(crate) wait: u64,
    /// Number of the path on which the client sends data.
    pub(crate) path: u8,
    pub(crate) stats: ConnectionStats,
}

/// Counters of all connections at one time.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// IP bytes from client to server.
    pub(crate) ip_bytes: u64,
    /// Bytes that the server of each connection has read, and whether they are bulk.
    pub(crate) received: Vec<(u64, bool)>,
    /// Segments that the clients sent for the first time.
    pub(crate) sent_segments: u64,
    pub(crate) retransmits: u64,
    /// Datagrams from client to server on each path: lost at random, and all.
    pub(crate) lost: Vec<[u64; 2]>,
}

/// A datagram in flight, ordered by its arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at: u64,
    rank: u64,
    flow: usize,
    to: usize,
    path: u8,
    datagram: Vec<u8>,
}

struct Flow {
    ends: [Endpoint; 2],
    /// Expiry of each end's timer.
    timeouts: [Option<u64>; 2],
    /// Whether an event of this end was handled at the current time.
    touched: [bool; 2],
    suspended: [bool; 2],
    /// Datagrams in the socket buffer of a suspended end.
    buffered: [Vec<(u8, Vec<u8>)>; 2],
    /// Whether the server reads.
    reads: bool,
    /// One-way delay in addition to the path's, us.
    farther: u64,
    application: Application,
}

/// Datagrams that the socket buffer of a suspended end holds.
const SOCKET_BUFFER: usize = 128;
/// Time between records of progress, us.
const PROGRESS: u64 = 50_000;

impl Flow {
    /// When the next timer or write is due.
    fn due(&self) -> Option<u64> {
        let running = |end: usize| self.timeouts[end].filter(|_| !self.suspended[end]);
        let writes = self.application.due().filter(|_| !self.suspended[CLIENT]);
        [running(CLIENT), running(SERVER), writes].into_iter().flatten().min()
    }
}

struct Simulation {
    origin: Instant,
    now: u64,
    /// Both links of each path.
    links: Vec<[Link; 2]>,
    /// In descending order, so the next one is last.
    changes: Vec<(u64, Change)>,
    late_timers: Option<u64>,
    /// How late each timer is.
    lateness: Rng,
    progress: Vec<(u64, u64)>,
    timeline: Vec<Second>,
    flows: Vec<Flow>,
    in_flight: BinaryHeap<Reverse<Arrival>>,
    /// Buffers of datagrams that have arrived.
    spare: Vec<Vec<u8>>,
    ip_bytes: u64,
    sent: u64,
    measured: Range<u64>,
    memory: [usize; 2],
}

/// Runs one setup.
///
/// # Errors
///
/// When messages are not delivered [`MAX_DRAIN`] after the last write.
///
/// # Panics
///
/// When a timer does not advance, or the state machine drops a datagram of its peer.
pub(crate) fn run(setup: &Setup<'_>) -> Result<Outcome, String> {
    let mut simulation = Simulation::new(setup);
    let (mut before, mut after) = (None, None);
    loop {
        let next = simulation.next_event();
        if next >= setup.measured.start && before.is_none() {
            before = Some(simulation.counters());
        }
        if next >= setup.measured.end && after.is_none() {
            after = Some(simulation.counters());
        }
        if next >= setup.end && simulation.flows.iter().all(|flow| flow.application.is_delivered())
        {
            break;
        }
        if next > setup.end + MAX_DRAIN {
            let progress = simulation.flows.iter().map(|flow| flow.application.progress());
            let progress = progress.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "{} s after the last write the server has read {progress}; seed {}",
                MAX_DRAIN / 1_000_000,
                setup.seed
            ));
        }
        simulation.step(next);
    }
    let Simulation { flows, links, progress, timeline, memory, .. } = simulation;
    let waits = links.iter().map(|links| links[CLIENT].waits()).collect();
    let flows = flows.into_iter();
    let messages = flows.flat_map(|flow| flow.application.messages).collect();
    let (before, after) = before.zip(after).expect("the measured time ends before the run does");
    Ok(Outcome { messages, before, after, waits, memory, progress, timeline })
}

impl Simulation {
    fn new(setup: &Setup<'_>) -> Self {
        let origin = Instant::now();
        let link = |path: usize, end: usize| {
            let mut link = setup.link(path, end);
            link.count_waits_from(setup.measured.start);
            link
        };
        let paths = 0..setup.paths.len();
        let new_end = |i: usize, end: usize| {
            let cookie_seed = Rng::keyed(setup.seed, (10 + 2 * i + end) as u64).next();
            let conv = 1 + i as u32;
            if end == SERVER && setup.stock_server {
                let window = setup.window.unwrap_or(DEFAULT_WINDOW);
                let (config, tick) = (&setup.config, setup.ack_tick);
                return Endpoint::stock(conv, config, window, tick, cookie_seed, origin);
            }
            let plan = (setup.fec, setup.repair_rate, setup.bundling_rate);
            let endpoint = Endpoint::new(conv, &setup.config, plan, cookie_seed, origin);
            match setup.paths.len() {
                1 => endpoint,
                paths => endpoint.with_paths(paths, setup.mode, end == CLIENT),
            }
        };
        // All connections from either end share the path, as in the driver.
        let mut shared: [Option<SharedPath>; 2] = [None, None];
        let flow = |(i, &(workload, start)): (usize, &(Workload, u64))| Flow {
            ends: [CLIENT, SERVER].map(|end| {
                let mut endpoint = new_end(i, end);
                match &shared[end] {
                    Some(path) => endpoint.kcp.share_path(path),
                    None if setup.flows.len() > 1 && !setup.separate => {
                        shared[end] = Some(endpoint.kcp.shared_path());
                    }
                    None => {}
                }
                endpoint
            }),
            timeouts: [None; 2],
            touched: [true; 2],
            suspended: [false; 2],
            buffered: [Vec::new(), Vec::new()],
            reads: true,
            farther: if i + 1 == setup.flows.len() { setup.farther } else { 0 },
            application: Application::new(workload, start, setup.end),
        };
        let loss = setup.paths.iter().flat_map(|path| &path.loss_steps);
        let loss = loss.map(|&(part, loss)| (setup.end * part / 1_000_000, Change::Loss(loss)));
        let mut changes: Vec<_> = loss.chain(setup.changes.iter().cloned()).collect();
        changes.sort_by_key(|(at, _)| Reverse(*at));
        Self {
            origin,
            now: 0,
            links: paths.map(|path| [CLIENT, SERVER].map(|end| link(path, end))).collect(),
            changes,
            late_timers: setup.late_timers,
            lateness: Rng::keyed(setup.seed, 2),
            progress: Vec::new(),
            timeline: Vec::new(),
            flows: setup.flows.iter().enumerate().map(flow).collect(),
            in_flight: BinaryHeap::new(),
            spare: Vec::new(),
            ip_bytes: 0,
            sent: 0,
            measured: setup.measured.clone(),
            memory: [0; 2],
        }
    }

    fn instant(&self) -> Instant {
        self.origin + Duration::from_micros(self.now)
    }

    /// When the next event is due. Keepalive timers make sure that there is one.
    fn next_event(&self) -> u64 {
        let arrival = self.in_flight.peek().map(|Reverse(arrival)| arrival.at);
        let flows = self.flows.iter().filter_map(Flow::due);
        let change = self.changes.last().map(|(at, _)| *at);
        flows.chain(arrival).chain(change).min().unwrap_or(u64::MAX)
    }

    /// Advances the clock and handles all events of that time.
    fn step(&mut self, now: u64) {
        self.now = now;
        while let Some((_, change)) = self.changes.pop_if(|(at, _)| *at <= now) {
            self.change(change);
        }
        let instant = self.instant();
        while self.in_flight.peek().is_some_and(|Reverse(arrival)| arrival.at <= now) {
            let Some(Reverse(arrival)) = self.in_flight.pop() else { break };
            let flow = &mut self.flows[arrival.flow];
            if flow.suspended[arrival.to] {
                if flow.buffered[arrival.to].len() < SOCKET_BUFFER {
                    flow.buffered[arrival.to].push((arrival.path, arrival.datagram));
                }
                continue;
            }
            flow.ends[arrival.to].receive(instant, arrival.path, &arrival.datagram);
            flow.touched[arrival.to] = true;
            self.spare.push(arrival.datagram);
        }
        for i in 0..self.flows.len() {
            for end in [CLIENT, SERVER] {
                let flow = &mut self.flows[i];
                if flow.suspended[end] {
                    continue;
                }
                let writes = end == CLIENT && flow.application.due().is_some_and(|due| due <= now);
                let expired = flow.timeouts[end].is_some_and(|at| at <= now);
                if mem::take(&mut flow.touched[end]) || writes || expired {
                    self.service(i, end);
                }
            }
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Links(path, configs) => {
                self.links[path]
                    .iter_mut()
                    .zip(*configs)
                    .for_each(|(link, config)| link.set_config(config));
            }
            Change::Loss(loss) => {
                for link in self.links.iter_mut().flatten() {
                    let config = link.config().clone();
                    link.set_config(LinkConfig { loss, ..config });
                }
            }
            Change::Windows(segments) => {
                for end in self.flows.iter_mut().flat_map(|flow| &mut flow.ends) {
                    end.kcp.set_windows(segments, segments).expect("windows are valid");
                }
            }
            Change::Reads(reads) => {
                for flow in &mut self.flows {
                    (flow.reads, flow.touched[SERVER]) = (reads, true);
                }
            }
            Change::Runs(end, runs) => {
                let now = self.instant();
                for flow in &mut self.flows {
                    (flow.suspended[end], flow.touched[end]) = (!runs, true);
                    let buffered = mem::take(&mut flow.buffered[end]);
                    for (path, datagram) in buffered {
                        flow.ends[end].receive(now, path, &datagram);
                    }
                }
            }
        }
    }

    fn record_progress(&mut self) {
        if self.progress.last().is_none_or(|(at, _)| self.now >= at + PROGRESS) {
            let read = self.flows.iter().map(|flow| flow.application.received).sum();
            self.progress.push((self.now, read));
        }
        if self.timeline.last().is_none_or(|second| self.now >= second.at + SECOND) {
            let (kcp, links) = (&self.flows[0].ends[CLIENT].kcp, self.links.iter());
            let links = links.map(|links| &links[CLIENT]);
            self.timeline.push(Second {
                at: self.now,
                read: self.flows[0].application.received,
                ip_bytes: self.ip_bytes,
                queue_full: links.clone().map(|link| link.stats().queue_full).sum(),
                wait: links.map(|link| link.wait(self.now)).max().unwrap_or(0),
                path: kcp.active_path().number(),
                stats: kcp.stats(),
            });
        }
    }

    /// One turn of one end: timers, application, transmission.
    fn service(&mut self, i: usize, end: usize) {
        let (now, instant) = (self.now, self.instant());
        let Flow { ends, application, reads, .. } = &mut self.flows[i];
        let endpoint = &mut ends[end];
        endpoint.handle_timeout(instant);
        if end == CLIENT {
            application.write(&mut endpoint.kcp, now, instant);
        } else if *reads {
            application.read(&mut endpoint.kcp, now);
        }
        if self.measured.contains(&now) {
            let [sent, received] = transmitter::memory(&endpoint.kcp);
            let memory = if end == CLIENT { sent } else { received };
            self.memory[end] = self.memory[end].max(memory);
        }
        self.transmit(i, end);
        self.record_progress();
        if self.flows[i].ends[end].handle_timeout(instant) {
            self.transmit(i, end);
        }
        let flow = &mut self.flows[i];
        let timeout = flow.ends[end].poll_timeout();
        let timeout =
            timeout.map(|at| at.saturating_duration_since(self.origin).as_micros() as u64);
        let timeout = timeout.map(|at| match self.late_timers {
            Some(most) => at.next_multiple_of(MILLIS) + self.lateness.range(0, most),
            None => at,
        });
        assert!(timeout.is_none_or(|at| at > now), "a timer does not advance at {now} us");
        flow.timeouts[end] = timeout;
    }

    /// Sends all datagrams that an end may send now.
    fn transmit(&mut self, i: usize, end: usize) {
        let (now, instant) = (self.now, self.instant());
        let Self { flows, links, in_flight, spare, ip_bytes, sent, .. } = self;
        let farther = flows[i].farther;
        flows[i].ends[end].transmit(instant, |path, datagram| {
            let packet_len = datagram.len() + IP_OVERHEAD;
            if end == CLIENT {
                *ip_bytes += packet_len as u64;
            }
            links[usize::from(path)][end].send(now, packet_len, |at, _| {
                *sent += 1;
                let mut copy = spare.pop().unwrap_or_default();
                copy.clear();
                copy.extend_from_slice(datagram);
                let (rank, to) = (*sent, 1 - end);
                let at = at + farther;
                in_flight.push(Reverse(Arrival { at, rank, flow: i, to, path, datagram: copy }));
            });
        });
    }

    fn counters(&self) -> Counters {
        let stats = self.flows.iter().map(|flow| flow.ends[CLIENT].kcp.stats());
        let (mut sent_segments, mut retransmits) = (0, 0);
        for stats in stats {
            sent_segments += stats.sent.segments;
            retransmits += stats.retransmits();
        }
        let received = self.flows.iter().map(|flow| {
            let Flow { application, .. } = flow;
            (application.received, application.is_bulk())
        });
        let (ip_bytes, received) = (self.ip_bytes, received.collect());
        let links = self.links.iter().map(|links| links[CLIENT].stats());
        let lost = links.map(|link| [link.lost, link.offered]).collect();
        Counters { ip_bytes, received, sent_segments, retransmits, lost }
    }
}
