//! The thread that carries packets in one direction.
//!
//! It owns a [`Link`] and the only clock. Under load it wakes up every [`TICK`] and takes and hands
//! on whatever there is; otherwise it sleeps until a packet comes or is due. A packet arrives at
//! most [`GRAIN`] early, and late by a tick and what the system's scheduler adds.

use std::io::{self, ErrorKind, PipeReader};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use nix::sys::time::TimeSpec;
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};
use tun_rs::SyncDevice;

use crate::link::{Counts, Link, QueueDelays};

/// How long it sleeps while packets keep coming.
const TICK: Duration = Duration::from_micros(100);
/// What is due so soon is handed on now, rather than waking up again for it.
pub(crate) const GRAIN: Duration = Duration::from_micros(50);
/// Packets taken before those that are due get their turn.
const BATCH: usize = 256;

/// A direction at work, until the writing end of its pipe is closed.
#[derive(Debug)]
pub(crate) struct Pump {
    thread: JoinHandle<()>,
    shared: Arc<Mutex<Shared>>,
    queue_delays: QueueDelays,
}

/// The clock that both directions of a path have in common.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// When the first packet of either direction was taken, which steps count from.
    first_packet: Arc<OnceLock<Duration>>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), first_packet: Arc::default() }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

#[derive(Debug, Default)]
struct Shared {
    counts: Counts,
    failed: Option<(ErrorKind, String)>,
}

impl Pump {
    pub(crate) fn start(
        mut link: Link,
        from: Arc<SyncDevice>,
        to: Arc<SyncDevice>,
        stop: PipeReader,
        clock: Clock,
        name: &str,
    ) -> io::Result<Self> {
        let queue_delays = link.queue_delays();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let state = shared.clone();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let publish = |counts| lock(&state).counts = counts;
            if let Err(error) = run(&mut link, &from, &to, &stop, &clock, publish) {
                lock(&state).failed = Some((error.kind(), error.to_string()));
            }
        })?;
        Ok(Self { thread, shared, queue_delays })
    }

    /// What happened so far, or why nothing happens any more.
    pub(crate) fn counts(&self) -> io::Result<Counts> {
        let shared = lock(&self.shared);
        match &shared.failed {
            None => Ok(Counts { queue_delay: self.queue_delays.summary(), ..shared.counts }),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    /// Waits for the thread; the pipe is closed by now.
    pub(crate) fn join(self) {
        // A panic there has been printed, and no caller is left to report it to.
        let _ = self.thread.join();
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(
    link: &mut Link,
    from: &SyncDevice,
    to: &SyncDevice,
    stop: &PipeReader,
    clock: &Clock,
    publish: impl Fn(Counts),
) -> io::Result<()> {
    be_prompt();
    let mut packet = vec![0; usize::from(u16::MAX)];
    loop {
        let taken = take(link, from, &mut packet, clock)?;
        let now = clock.now();
        while let Some(due) = link.pop_due_within(now, GRAIN) {
            if to.send(&due).is_err() {
                link.refused(due.len());
            }
        }
        publish(link.counts_without_delay());
        if taken == BATCH {
            continue;
        }
        let now = clock.now();
        let due = link.next_due().map(|due| due.saturating_sub(now));
        // While packets keep coming, taking them in groups costs fewer wake-ups than one by one.
        let (busy, sleep) = match due {
            due if taken > 0 => (true, Some(due.map_or(TICK, |due| due.min(TICK)))),
            due => (false, due),
        };
        let watched = if busy { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds =
            [PollFd::new(stop.as_fd(), PollFlags::empty()), PollFd::new(from.as_fd(), watched)];
        match ppoll(&mut fds, sleep.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The pipe is never written to; that it has no writer shows without being asked for.
        if fds[0].revents().is_some_and(|events| !events.is_empty()) {
            return Ok(());
        }
    }
}

/// Has the system wake this thread when it asked for it: by default it rounds sleeps up by 50 us,
/// and lets a busy program finish its turn of some milliseconds, whose packets then come in a burst
/// beyond the conditions. Without the right to this, the relay is only less precise, and says so in
/// its count of late packets.
fn be_prompt() {
    let _ = set_timerslack(1);
    let realtime = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, realtime);
}

/// Takes the packets that wait at `from`, at most a batch; how many.
fn take(link: &mut Link, from: &SyncDevice, packet: &mut [u8], clock: &Clock) -> io::Result<usize> {
    for taken in 0..BATCH {
        match from.recv(packet) {
            Ok(len) => {
                let packet = packet.get(..len).unwrap_or_default();
                // The path is one of IPv4. What the kernel says by itself in IPv6 belongs to no path.
                if packet.first().is_some_and(|byte| byte >> 4 == 4) {
                    let now = clock.now();
                    if link.is_unused() {
                        link.set_start(*clock.first_packet.get_or_init(|| now));
                    }
                    link.push(now, packet);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(BATCH)
}
