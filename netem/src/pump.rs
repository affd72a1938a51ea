//! The thread that carries packets in one direction.
//!
//! It owns a [`Link`] and reads the clock. Under load it wakes up every [`TICK`] and takes and hands on
//! what there is; otherwise it sleeps until a packet comes or is due. A packet arrives at most [`GRAIN`]
//! early, and late by a tick and the delay of the system's scheduler.

use std::io::{self, ErrorKind, PipeReader};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use nix::sys::time::TimeSpec;

use crate::link::Link;
use crate::tun::Tun;

/// How long it sleeps while packets keep coming.
const TICK: Duration = Duration::from_micros(100);
/// A packet due this soon is handed on now, instead of waking up again for it.
const GRAIN: Duration = Duration::from_micros(50);
/// Packets taken before those that are due get their turn.
const BATCH: usize = 256;

/// A direction at work, until the writing end of its pipe is closed.
#[derive(Debug)]
pub(crate) struct Pump<C> {
    thread: JoinHandle<()>,
    shared: Arc<Mutex<Shared<C>>>,
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
struct Shared<C> {
    counts: C,
    failed: Option<(ErrorKind, String)>,
}

impl<C: Clone + Default + Send + 'static> Pump<C> {
    pub(crate) fn start(
        mut link: impl Link<Counts = C>,
        from: Arc<Tun>,
        to: Arc<Tun>,
        stop: PipeReader,
        clock: Clock,
        name: &str,
    ) -> io::Result<Self> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let state = shared.clone();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let publish = |counts: C| lock(&state).counts = counts;
            if let Err(error) = run(&mut link, &from, &to, &stop, &clock, publish) {
                lock(&state).failed = Some((error.kind(), error.to_string()));
            }
        })?;
        Ok(Self { thread, shared })
    }

    /// The counters so far, or why this direction failed.
    pub(crate) fn counts(&self) -> io::Result<C> {
        let shared = lock(&self.shared);
        match &shared.failed {
            None => Ok(shared.counts.clone()),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    /// Waits for the thread; the pipe is closed by now.
    pub(crate) fn join(self) {
        // A panic there has been printed, and no caller is left to report it to.
        let _ = self.thread.join();
    }
}

fn lock<C>(shared: &Mutex<Shared<C>>) -> MutexGuard<'_, Shared<C>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run<L: Link>(
    link: &mut L,
    from: &Tun,
    to: &Tun,
    stop: &PipeReader,
    clock: &Clock,
    publish: impl Fn(L::Counts),
) -> io::Result<()> {
    be_prompt();
    let mut packet = vec![0; usize::from(u16::MAX)];
    let mut started = false;
    loop {
        let taken = take(from, &mut packet, |packet| {
            let now = clock.now();
            if !started {
                started = true;
                link.start(*clock.first_packet.get_or_init(|| now));
            }
            link.push(now, packet);
        })?;
        let now = clock.now();
        while let Some(due) = link.pop_due_within(now, GRAIN) {
            if to.send(&due).is_err() {
                link.refused(due.len());
            }
        }
        publish(link.counts());
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

/// Has the system wake this thread on time: by default it rounds sleeps up by 50 us, and lets a busy
/// program finish its turn of some milliseconds, so that packets come out in bursts. Without permission
/// for this, more packets are late.
#[expect(unsafe_code, reason = "the standard library sets no priorities")]
fn be_prompt() {
    let _ = set_timerslack(1);
    // SAFETY: a structure of integers may be all 0; the calls read it, and concern this thread.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = libc::sched_get_priority_min(libc::SCHED_FIFO);
        libc::pthread_setschedparam(libc::pthread_self(), libc::SCHED_FIFO, &raw const param);
    }
}

/// Takes the packets that wait at `from`, at most a batch; how many.
fn take(from: &Tun, packet: &mut [u8], mut push: impl FnMut(&[u8])) -> io::Result<usize> {
    for taken in 0..BATCH {
        match from.recv(packet) {
            Ok(len) => {
                let packet = packet.get(..len).unwrap_or_default();
                // The kernel sends IPv6 of its own accord, which does not belong to the path.
                if packet.first().is_some_and(|byte| byte >> 4 == 4) {
                    push(packet);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(BATCH)
}
