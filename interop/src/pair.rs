//! Ours and a peer, two links between them, and the clock.

use std::collections::VecDeque;

use anyhow::{Context as _, ensure};

use crate::implementation::Implementation;
use crate::link::{Link, Path, Rng};
use crate::ours::Ours;
use crate::peer::{Peer, Settings};

/// An application that reads.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// Chunks or messages it takes at a time.
    pub burst: usize,
    /// Milliseconds between.
    pub pause: u64,
}

impl Reader {
    /// Takes everything at once.
    pub const QUICK: Self = Self { burst: usize::MAX, pause: 0 };
}

/// One side's application.
#[derive(Debug)]
struct App {
    writes: VecDeque<Vec<u8>>,
    /// Bytes of the first write that were taken.
    taken: usize,
    reader: Reader,
    next_read: u64,
    received: Vec<Vec<u8>>,
    bytes: usize,
}

impl App {
    fn new() -> Self {
        Self {
            writes: VecDeque::new(),
            taken: 0,
            reader: Reader::QUICK,
            next_read: 0,
            received: Vec::new(),
            bytes: 0,
        }
    }

    fn run(&mut self, now: u64, peer: &mut dyn Peer) {
        while let Some(write) = self.writes.front() {
            let Some(taken) = peer.send(now, &write[self.taken..]) else { break };
            self.taken += taken;
            if self.taken == write.len() {
                self.writes.pop_front();
                self.taken = 0;
            }
        }
        if now < self.next_read {
            return;
        }
        for _ in 0..self.reader.burst {
            let Some(data) = peer.recv() else { break };
            self.bytes += data.len();
            self.received.push(data);
        }
        self.next_read = now + self.reader.pause;
    }

    /// When it reads next, if that is not a matter of arrivals alone.
    fn next(&self, now: u64) -> Option<u64> {
        Some(self.next_read).filter(|&at| at > now)
    }
}

/// Both sides of one connection.
#[derive(Debug)]
pub struct Pair {
    /// Our side.
    pub ours: Ours,
    /// The other side.
    pub theirs: Box<dyn Peer>,
    /// Milliseconds since the start.
    pub now: u64,
    /// Datagrams that we sent and they sent, in order.
    pub captured: [Vec<Vec<u8>>; 2],
    out: Link,
    back: Link,
    apps: [App; 2],
}

/// The conversation id of every run.
pub const CONV: u32 = 0x1234_5678;

impl Pair {
    /// A new connection.
    ///
    /// # Errors
    ///
    /// When a side rejects its settings.
    pub fn new(
        implementation: Implementation,
        (ours, theirs): (&Settings, &Settings),
        path: Path,
        rng: &mut Rng,
    ) -> anyhow::Result<Self> {
        let ours = Ours::new(CONV, ours, rng, |config| config)?;
        let theirs = implementation.build(CONV, theirs, rng)?;
        Ok(Self::of(ours, theirs, path, rng))
    }

    /// A connection of two given sides.
    #[must_use]
    pub fn of(ours: Ours, theirs: Box<dyn Peer>, path: Path, rng: &mut Rng) -> Self {
        let (out, back) = (Link::new(path, rng.next()), Link::new(path, rng.next()));
        let (apps, captured) = ([App::new(), App::new()], [Vec::new(), Vec::new()]);
        Self { ours, theirs, now: 0, captured, out, back, apps }
    }

    /// How our application and theirs read.
    pub fn set_readers(&mut self, ours: Reader, theirs: Reader) {
        self.apps[0].reader = ours;
        self.apps[1].reader = theirs;
    }

    /// Has our application write these, from now on as fast as it may.
    pub fn we_write(&mut self, writes: &[Vec<u8>]) {
        self.apps[0].writes.extend(writes.iter().cloned());
    }

    /// Has their application write these.
    pub fn they_write(&mut self, writes: &[Vec<u8>]) {
        self.apps[1].writes.extend(writes.iter().cloned());
    }

    /// The messages that our application has read.
    #[must_use]
    pub fn we_got(&self) -> &[Vec<u8>] {
        &self.apps[0].received
    }

    /// The messages that their application has read.
    #[must_use]
    pub fn they_got(&self) -> &[Vec<u8>] {
        &self.apps[1].received
    }

    /// Bytes read by our application and by theirs.
    #[must_use]
    pub fn bytes_read(&self) -> (usize, usize) {
        (self.apps[0].bytes, self.apps[1].bytes)
    }

    /// Everything that happens at this moment.
    fn turn(&mut self) {
        let now = self.now;
        while let Some(datagram) = self.back.arrive(now) {
            self.ours.input(now, &datagram);
        }
        while let Some(datagram) = self.out.arrive(now) {
            self.theirs.input(now, &datagram);
        }
        let [our_app, their_app] = &mut self.apps;
        our_app.run(now, &mut self.ours);
        their_app.run(now, &mut *self.theirs);
        let mut datagrams = Vec::new();
        self.ours.update(now, &mut datagrams);
        for datagram in datagrams.drain(..) {
            self.out.send(now, &datagram);
            self.captured[0].push(datagram);
        }
        self.theirs.update(now, &mut datagrams);
        for datagram in datagrams {
            self.back.send(now, &datagram);
            self.captured[1].push(datagram);
        }
    }

    /// When something happens next.
    fn next(&self) -> Option<u64> {
        let now = self.now;
        let events =
            [self.out.next(), self.back.next(), self.ours.next(now), self.theirs.next(now)];
        let reads = self.apps.iter().map(|app| app.next(now));
        events.into_iter().chain(reads).flatten().min()
    }

    /// Lets time pass until `done`, at most until `limit`.
    ///
    /// # Errors
    ///
    /// When our side ends, or it is not done by then.
    pub fn run_until(&mut self, limit: u64, done: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        loop {
            self.turn();
            if done(self) {
                return Ok(());
            }
            let ended = self.ours.kcp().close_reason();
            ensure!(ended.is_none(), "ended at {} ms: {ended:?}\n{}", self.now, self.state());
            let next = self.next().with_context(|| format!("nothing to do\n{}", self.state()))?;
            ensure!(next <= limit, "not done at {} ms of {limit} ms\n{}", self.now, self.state());
            self.now = next;
        }
    }

    /// Lets `millis` pass.
    ///
    /// # Errors
    ///
    /// When our side ends.
    pub fn run_for(&mut self, millis: u64) -> anyhow::Result<()> {
        let end = self.now + millis;
        loop {
            self.turn();
            let ended = self.ours.kcp().close_reason();
            ensure!(ended.is_none(), "ended at {} ms: {ended:?}\n{}", self.now, self.state());
            match self.next() {
                Some(next) if next <= end => self.now = next,
                _ => break,
            }
        }
        self.now = end;
        Ok(())
    }

    /// Whether everything that was written has arrived, been read, and been acknowledged.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.apps.iter().all(|app| app.writes.is_empty())
            && self.ours.is_drained()
            && self.theirs.is_drained()
    }

    fn state(&self) -> String {
        let [ours, theirs] = &self.apps;
        format!(
            "writes left {} and {}, bytes read {} and {}\nours: {:#?}\ntheirs: {:?}",
            ours.writes.len(),
            theirs.writes.len(),
            ours.bytes,
            theirs.bytes,
            self.ours.kcp().stats(),
            self.theirs,
        )
    }
}
