//! Whether the peer has answered, and the task that waits for it.

use std::io;
use std::task::{Poll, Waker};

use crate::error::ConnectionError;
use crate::shared::wakers::register_waker;
use crate::util::sync::{Mutex, lock};

/// Backs `KcpStream::established`: KCP has no handshake, so the first valid answer establishes.
pub(super) struct Established(Mutex<State>);

enum State {
    /// The peer has acknowledged nothing. Initial state. Holds the task that waits.
    Waiting(Option<Waker>),
    /// The peer has answered. Final.
    Established,
    /// The connection ended before the peer had answered. Final.
    Failed(ConnectionError),
}

impl Established {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State::Waiting(None)))
    }

    /// Enters `state` from `Waiting`. Returns the task to wake.
    fn leave_waiting(&self, state: State) -> Option<Waker> {
        let mut current = lock(&self.0);
        let State::Waiting(waker) = &mut *current else { return None };
        let waker = waker.take();
        *current = state;
        waker
    }

    /// Driver: the peer has answered. Returns the task to wake.
    pub(super) fn set(&self) -> Option<Waker> {
        self.leave_waiting(State::Established)
    }

    /// Driver: the connection has ended. Returns the task to wake.
    pub(super) fn fail(&self, error: ConnectionError) -> Option<Waker> {
        self.leave_waiting(State::Failed(error))
    }

    /// The last handle is gone. Returns the waker of the cancelled wait, to be dropped.
    pub(super) fn detach(&self) -> Option<Waker> {
        self.leave_waiting(State::Waiting(None))
    }

    /// Ready once the peer has answered, or with the error that ended the connection first.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        let replaced = match &mut *state {
            State::Established => return Poll::Ready(Ok(())),
            State::Failed(error) => return Poll::Ready(Err((*error).into())),
            State::Waiting(slot) => register_waker(slot, waker),
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}
