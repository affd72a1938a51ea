//! State of a driver that ends: the wait of its socket for peers, the request for its port, and the time that
//! it holds its thread. The process limits the first and the last.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::shared::requests::{RequestQueue, TimeWaitEntry};
use crate::util::sync::{Arc, AtomicUsize, Ordering};
use crate::util::task::{Replies, drop_each};

/// Most sockets of this process that wait for peers alone, as Linux bounds its own (`tcp_max_tw_buckets`,
/// `tcp_max_orphans`): a quarter of the descriptors that a process usually has. One more closes at once.
const MAX_SOCKETS: usize = 256;
static SOCKETS: AtomicUsize = AtomicUsize::new(0);

/// Longest time that a thread is held.
const MAX_EXIT_TIME: Duration = Duration::from_millis(50);
/// Endpoints that hold a thread within this time after the first one share its [`MAX_EXIT_TIME`]: a process
/// may have thousands, each with one connection.
const EXIT_PERIOD: Duration = Duration::from_secs(1);
/// When the first endpoint began to hold its thread.
static FIRST_HELD: Mutex<Option<Instant>> = Mutex::new(None);

/// The TIME-WAIT of one socket.
#[derive(Debug, Default)]
pub(in super::super) struct SocketTimeWait {
    /// Its end, as far as connections have ended (RFC 9293 3.3.2).
    pub(super) until: Option<Instant>,
    /// Held while the socket waits for peers alone.
    place: Option<Place>,
    /// The socket waits and there was no place left.
    is_refused: bool,
}

/// One of [`MAX_SOCKETS`].
#[derive(Debug)]
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let more = |sockets: usize| (sockets < MAX_SOCKETS).then_some(sockets + 1);
        SOCKETS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        SOCKETS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SocketTimeWait {
    /// Takes a place if the socket waits for peers alone, and otherwise returns it.
    pub(super) fn set_waiting(&mut self, waits: bool) {
        self.place = if waits { self.place.take().or_else(Place::take) } else { None };
        self.is_refused = waits && self.place.is_none();
    }

    #[cfg(test)]
    pub(in super::super) fn is_waiting(&self) -> bool {
        self.place.is_some()
    }

    /// Whether the socket closes at once, since too many others wait.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }
}

/// The last field of a driver, dropped when its socket is closed. Only then are unanswered requests rejected,
/// since one may come from an endpoint that waits for the port.
#[derive(Debug)]
pub(in super::super) struct PortRelease {
    requests: Arc<RequestQueue>,
    /// Endpoints that ask whether the port may be released, once that is decided.
    pub(in super::super) undecided: Replies<bool>,
    pub(super) to: Option<oneshot::Sender<Vec<TimeWaitEntry>>>,
    pub(super) time_wait: Vec<TimeWaitEntry>,
}

impl PortRelease {
    pub(in super::super) fn new(requests: Arc<RequestQueue>) -> Self {
        Self { requests, undecided: Replies::default(), to: None, time_wait: Vec::new() }
    }

    /// Whether an endpoint waits for the port.
    pub(super) fn is_requested(&self) -> bool {
        self.to.as_ref().is_some_and(|to| !to.is_closed())
    }
}

impl Drop for PortRelease {
    fn drop(&mut self) {
        let requests = self.requests.close().unwrap_or_default();
        let (to, time_wait) = (self.to.take(), std::mem::take(&mut self.time_wait));
        // These wake tasks, and a panic of a waker has no caller left to report to. The endpoint that waits
        // for the port may have given up.
        drop(catch_unwind(AssertUnwindSafe(|| drop(to.map(|to| to.send(time_wait))))));
        drop_each(requests);
    }
}

/// A clock that goes on while the thread is held, and its time when the end began.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ExitClock {
    clock: fn() -> Instant,
    start: Instant,
    /// Until when the thread may be held; `None` until it has to be.
    until: Option<Instant>,
}

impl ExitClock {
    pub(super) fn new(clock: fn() -> Instant) -> Self {
        Self { clock, start: clock(), until: None }
    }

    /// The time since the end began.
    pub(super) fn elapsed(&self) -> Duration {
        (self.clock)().saturating_duration_since(self.start)
    }

    /// Whether the thread may be held, or held on.
    pub(super) fn may_hold(&mut self) -> bool {
        let now = (self.clock)();
        now < *self.until.get_or_insert_with(|| {
            hold(now, &mut FIRST_HELD.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }
}

/// Until when a thread may be held that has to be held from `now` on. `first`: see [`FIRST_HELD`].
fn hold(now: Instant, first: &mut Option<Instant>) -> Instant {
    let is_shared = |first: &Instant| now.saturating_duration_since(*first) < EXIT_PERIOD;
    let begin = first.filter(is_shared).unwrap_or(now);
    *first = Some(begin);
    begin + MAX_EXIT_TIME
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::shared::requests::Request;
    use crate::util::task::tests::waits;

    #[test]
    fn endpoints_that_end_within_a_second_share_50_milliseconds() {
        let (start, mut first) = (Instant::now(), None);
        let mut until = |millis| {
            let now = start + Duration::from_millis(millis);
            hold(now, &mut first).saturating_duration_since(start).as_millis()
        };
        // The next second begins with the first endpoint after the last one.
        assert_eq!(
            [0, 20, 999, 1_000, 1_020, 1_999].map(&mut until),
            [50, 50, 50, 1_050, 1_050, 1_050]
        );
        assert_eq!([2_500, 3_499, 3_500].map(until), [2_550, 2_550, 3_550]);
    }

    #[test]
    fn wakers_that_panic_do_not_keep_a_released_port_from_others() {
        let requests = RequestQueue::new();
        let mut release = PortRelease::new(requests.clone());
        let (to, next) = oneshot::channel();
        let mut next = waits(next);
        release.to = Some(to);
        assert!(release.is_requested());
        let undecided = [(); 2].map(|()| {
            let (asks, asked) = oneshot::channel();
            release.undecided.push(asks);
            waits(asked)
        });
        let unanswered = [(); 2].map(|()| {
            let (idle, waiter) = oneshot::channel();
            requests.push(Request::WaitIdle(idle));
            waits(waiter)
        });
        assert!(catch_unwind(AssertUnwindSafe(|| drop(release))).is_ok());
        assert!(next.try_recv().unwrap().is_empty());
        let closed = TryRecvError::Closed;
        assert_eq!(
            undecided.map(|mut reply| reply.try_recv()),
            [Err(closed.clone()), Err(closed.clone())]
        );
        assert_eq!(
            unanswered.map(|mut reply| reply.try_recv()),
            [Err(closed.clone()), Err(closed)]
        );
    }
}
