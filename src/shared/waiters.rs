//! Tasks that wait for an event of a connection.
//!
//! As in Tokio, a `poll_*` method has one task, the last caller, while each future waits for itself: any
//! number of tasks may be in `readable` or `accept` of one handle. An event wakes all of them; those that
//! find nothing wait again.

use std::fmt;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::task::{Poll, Waker};

use slab::Slab;

use crate::error::ConnectionError;
use crate::util::sync::{Mutex, lock};

/// Stores `waker` unless the stored one wakes the same task. Returns the replaced one, to be dropped
/// after the lock is released: dropping a task's last waker drops its handles, which take the same lock.
#[must_use]
pub(super) fn register_waker(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match slot {
        Some(stored) if stored.will_wake(waker) => None,
        _ => slot.replace(waker.clone()),
    }
}

/// Tasks that wait for one event. Every wake empties it.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The task of the last `poll_*` call.
    polled: Option<Waker>,
    /// The task of one future: most handles have one task per direction.
    first: Option<Waker>,
    /// Number of wakes: registrations from an earlier epoch are void.
    epoch: u64,
    /// Tasks of further futures, allocated on demand.
    rest: Option<Box<Slab<Waker>>>,
}

/// The place of a future in [`Waiters`] since its first `Pending`.
#[derive(Debug, Default)]
pub(crate) struct Registration(Option<Place>);

#[derive(Clone, Copy, Debug)]
struct Place {
    epoch: u64,
    /// Index into `Waiters::rest`; `None` is `Waiters::first`.
    index: Option<usize>,
}

/// How a call waits.
#[derive(Debug)]
pub(crate) enum Wait<'a> {
    /// It does not: `Pending` means "would block".
    No,
    /// As a `poll_*` call, which replaces the task of the previous one.
    Polled(&'a Waker),
    /// As a future, beside all others.
    Future(&'a mut Registration, &'a Waker),
}

impl<'a> Wait<'a> {
    /// As the future of `registration`, or as a `poll_*` call without one.
    pub(crate) fn new(waker: &'a Waker, registration: Option<&'a mut Registration>) -> Self {
        match registration {
            Some(registration) => Self::Future(registration, waker),
            None => Self::Polled(waker),
        }
    }
}

impl Waiters {
    /// Registers a task. Returns a waker to be dropped after the lock is released, see
    /// [`register_waker`].
    #[must_use]
    pub(super) fn register(&mut self, wait: &mut Wait<'_>) -> Option<Waker> {
        match wait {
            Wait::No => None,
            Wait::Polled(waker) => register_waker(&mut self.polled, waker),
            Wait::Future(Registration(place), waker) => {
                if let Some(current) = place.filter(|place| place.epoch == self.epoch) {
                    return self.replace(current, waker);
                }
                *place = Some(self.insert(waker));
                None
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let no_rest = self.rest.as_ref().is_none_or(|rest| rest.is_empty());
        self.polled.is_none() && self.first.is_none() && no_rest
    }

    fn insert(&mut self, waker: &Waker) -> Place {
        let epoch = self.epoch;
        if self.first.is_none() {
            self.first = Some(waker.clone());
            return Place { epoch, index: None };
        }
        let rest = self.rest.get_or_insert_default();
        Place { epoch, index: Some(rest.insert(waker.clone())) }
    }

    fn replace(&mut self, place: Place, waker: &Waker) -> Option<Waker> {
        let Some(index) = place.index else { return register_waker(&mut self.first, waker) };
        let stored = self.rest.as_mut()?.get_mut(index)?;
        if stored.will_wake(waker) { None } else { Some(mem::replace(stored, waker.clone())) }
    }

    /// A future was dropped. Returns its waker, to be dropped after the lock is released.
    #[must_use]
    pub(super) fn cancel(&mut self, registration: &Registration) -> Option<Waker> {
        let place = registration.0.filter(|place| place.epoch == self.epoch)?;
        match place.index {
            None => self.first.take(),
            Some(index) => self.rest.as_mut()?.try_remove(index),
        }
    }

    /// Takes all tasks, to be woken after the lock is released.
    pub(super) fn take_all(&mut self) -> WakeList {
        self.epoch += 1;
        let rest = self.rest.take().map(|rest| rest.into_iter());
        WakeList { polled: self.polled.take(), first: self.first.take(), rest }
    }
}

/// Tasks to wake.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct WakeList {
    polled: Option<Waker>,
    first: Option<Waker>,
    rest: Option<slab::IntoIter<Waker>>,
}

impl Iterator for WakeList {
    type Item = Waker;

    fn next(&mut self) -> Option<Waker> {
        let one = self.polled.take().or_else(|| self.first.take());
        one.or_else(|| self.rest.as_mut()?.next().map(|(_, waker)| waker))
    }
}

/// Owner of [`Waiters`] and their lock.
pub(crate) trait WaitQueue: Sync {
    /// [`Waiters::cancel`] under the lock. The caller drops the result.
    fn cancel(&self, registration: &Registration) -> Option<Waker>;
}

/// Registration of one future. Dropping it cancels the registration.
pub(crate) struct Waiter<'a> {
    queue: &'a dyn WaitQueue,
    registration: Registration,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(queue: &'a dyn WaitQueue) -> Self {
        Self { queue, registration: Registration::default() }
    }
}

impl Deref for Waiter<'_> {
    type Target = Registration;

    fn deref(&self) -> &Registration {
        &self.registration
    }
}

impl DerefMut for Waiter<'_> {
    fn deref_mut(&mut self) -> &mut Registration {
        &mut self.registration
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.registration.0.is_some() {
            drop(self.queue.cancel(&self.registration));
        }
    }
}

impl fmt::Debug for Waiter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("registration", &self.registration).finish_non_exhaustive()
    }
}

/// Backs `KcpStream::closed`. Allocated for the first task that waits: most connections have none.
pub(super) struct EndWaiters(Mutex<Option<Box<Waiters>>>);

impl EndWaiters {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Registers a task. The caller checks for the end afterwards and drops the result.
    pub(super) fn register(&self, wait: &mut Wait<'_>) -> Option<Waker> {
        lock(&self.0).get_or_insert_default().register(wait)
    }

    /// Driver: the connection has ended. Returns the tasks to wake.
    pub(super) fn take_all(&self) -> WakeList {
        lock(&self.0).as_mut().map(|waiters| waiters.take_all()).unwrap_or_default()
    }
}

impl WaitQueue for EndWaiters {
    fn cancel(&self, registration: &Registration) -> Option<Waker> {
        lock(&self.0).as_mut()?.cancel(registration)
    }
}

/// Backs `KcpStream::established`: KCP has no handshake, so the first valid answer establishes.
pub(crate) struct Established(Mutex<EstablishedState>);

enum EstablishedState {
    /// The peer has acknowledged nothing. Initial state. Holds the task that waits.
    Waiting(Option<Waker>),
    /// The peer has answered. Final.
    Established,
    /// The connection ended before the peer had answered. Final.
    Failed(ConnectionError),
}

impl Established {
    pub(super) fn new() -> Self {
        Self(Mutex::new(EstablishedState::Waiting(None)))
    }

    /// Enters `state` from `Waiting`. Returns the task to wake.
    fn leave_waiting(&self, state: EstablishedState) -> Option<Waker> {
        let mut current = lock(&self.0);
        let EstablishedState::Waiting(waker) = &mut *current else { return None };
        let waker = waker.take();
        *current = state;
        waker
    }

    /// Driver: the peer has answered. Returns the task to wake.
    pub(crate) fn set(&self) -> Option<Waker> {
        self.leave_waiting(EstablishedState::Established)
    }

    /// Driver: the connection has ended. Returns the task to wake.
    pub(super) fn fail(&self, error: ConnectionError) -> Option<Waker> {
        self.leave_waiting(EstablishedState::Failed(error))
    }

    /// The last handle is gone. Returns the waker of the cancelled wait, to be dropped.
    pub(super) fn detach(&self) -> Option<Waker> {
        self.leave_waiting(EstablishedState::Waiting(None))
    }

    /// Ready once the peer has answered, or with the error that ended the connection first.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        let replaced = match &mut *state {
            EstablishedState::Established => return Poll::Ready(Ok(())),
            EstablishedState::Failed(error) => return Poll::Ready(Err((*error).into())),
            EstablishedState::Waiting(slot) => register_waker(slot, waker),
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn task() -> (Arc<Counting>, Waker) {
        let counting = Arc::<Counting>::default();
        (counting.clone(), counting.into())
    }

    fn wakes(task: &Counting) -> usize {
        task.0.load(Ordering::Relaxed)
    }

    #[test]
    fn all_futures_and_the_last_poll_are_woken() {
        let mut waiters = Waiters::default();
        let polled: Vec<_> = (0..2).map(|_| task()).collect();
        for (_, waker) in &polled {
            drop(waiters.register(&mut Wait::Polled(waker)));
        }
        let mut futures: Vec<_> = (0..5).map(|_| (task(), Registration::default())).collect();
        for round in 1..=2 {
            for ((_, waker), registration) in &mut futures {
                // A task that polls twice is woken once.
                drop(waiters.register(&mut Wait::Future(registration, waker)));
                drop(waiters.register(&mut Wait::Future(registration, waker)));
            }
            waiters.take_all().for_each(Waker::wake);
            assert!(futures.iter().all(|((count, _), _)| wakes(count) == round));
        }
        assert_eq!((wakes(&polled[0].0), wakes(&polled[1].0)), (0, 1));
        assert_eq!(waiters.take_all().count(), 0);
    }

    #[test]
    fn one_future_and_one_poll_allocate_nothing() {
        let (mut waiters, (_, waker)) = (Waiters::default(), task());
        let mut registration = Registration::default();
        drop(waiters.register(&mut Wait::Future(&mut registration, &waker)));
        drop(waiters.register(&mut Wait::Polled(&waker)));
        assert!(waiters.rest.is_none());
        assert_eq!(waiters.take_all().count(), 2);
    }

    #[test]
    fn dropped_future_leaves_its_place_to_the_next() {
        let (mut waiters, (count, waker)) = (Waiters::default(), task());
        let mut kept: Vec<_> = (0..3).map(|_| Registration::default()).collect();
        for registration in &mut kept {
            drop(waiters.register(&mut Wait::Future(registration, &waker)));
        }
        for _ in 0..100 {
            let mut registration = Registration::default();
            drop(waiters.register(&mut Wait::Future(&mut registration, &waker)));
            assert!(waiters.cancel(&registration).is_some());
            assert!(waiters.cancel(&registration).is_none(), "its waker is gone");
        }
        // Two of the three are in `rest`, and all dropped futures shared the place after them.
        assert_eq!(waiters.rest.as_ref().map(|rest| (rest.len(), rest.vacant_key())), Some((2, 2)));
        for registration in &kept {
            assert!(waiters.cancel(registration).is_some());
        }
        waiters.take_all().for_each(Waker::wake);
        assert_eq!(wakes(&count), 0);
        assert_eq!(Arc::strong_count(&count), 2, "no waker is kept");
    }

    #[test]
    fn registration_from_before_a_wake_is_void() {
        let (mut waiters, (_, waker)) = (Waiters::default(), task());
        let (mut old, mut new) = (Registration::default(), Registration::default());
        drop(waiters.register(&mut Wait::Future(&mut old, &waker)));
        drop(waiters.take_all());
        drop(waiters.register(&mut Wait::Future(&mut new, &waker)));
        assert!(waiters.cancel(&old).is_none(), "it must not take the place of the new one");
        assert_eq!(waiters.take_all().count(), 1);
    }
}
