//! State shared by all handles of a session and the driver.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::config::Config;
use crate::core::inbox::Mailbox;
use crate::core::stream::{Fin, SharedStream};
use crate::error::Error;
use crate::stats::Stats;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// The handles' view of the state machine. Set as a whole, so that counters and streams agree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    pub(crate) stats: Stats,
    /// When the last header arrived.
    pub(crate) last_header: Instant,
    pub(crate) num_streams: usize,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Woken when a stream is accepted, and at the end.
    pub(crate) accepted: Notify,
    /// Woken when further streams may be opened, and at the end.
    pub(crate) may_open: Notify,
    /// Woken at the end, and when the carrier is shut down.
    pub(crate) ended: Notify,
    handles: AtomicUsize,
    /// As of the driver's last turn. A leaf lock.
    published: Mutex<Published>,
    /// Result of [`Session::close`](crate::Session::close), once the carrier is shut down. A leaf
    /// lock.
    close_result: Mutex<Option<Result<(), Error>>>,
}

impl Shared {
    pub(crate) fn new(config: Config, mailbox: Arc<Mailbox>, now: Instant) -> Self {
        Self {
            config,
            mailbox,
            accepted: Notify::new(),
            may_open: Notify::new(),
            ended: Notify::new(),
            handles: AtomicUsize::new(0),
            published: Mutex::new(Published {
                stats: Stats::default(),
                last_header: now,
                num_streams: 0,
            }),
            close_result: Mutex::new(None),
        }
    }

    /// Returns the reason for which the session has ended.
    pub(crate) fn end(&self) -> Option<Error> {
        self.mailbox.lock().end.clone()
    }

    pub(crate) fn published(&self) -> Published {
        *self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, published: Published) {
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = published;
    }

    /// `None` until the carrier is shut down.
    pub(crate) fn close_result(&self) -> Option<Result<(), Error>> {
        self.close_result.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the first result.
    pub(crate) fn set_close_result(&self, result: Result<(), Error>) {
        let mut lock = self.close_result.lock().unwrap_or_else(PoisonError::into_inner);
        lock.get_or_insert(result);
        drop(lock);
        self.ended.notify_waiters();
    }

    /// Returns tokens, and wakes the driver if it waits for them.
    pub(crate) fn release_tokens(&self, len: usize) {
        if self.mailbox.tokens.release(len) {
            self.mailbox.wake_driver();
        }
    }

    /// Notes that the application no longer reads `stream`.
    pub(crate) fn discard(&self, stream: &Arc<SharedStream>) {
        let mut state = stream.lock();
        #[expect(clippy::cast_possible_truncation, reason = "settings are below 2^31")]
        let unread = state.receive.discard(self.config.max_stream_buffer as u32);
        let inspect = state.enter_inbox();
        drop(state);
        self.release_tokens(unread);
        if inspect {
            self.mailbox.push_changed(stream);
        }
    }

    /// Notes that the application no longer writes: FIN follows the queued bytes. With `aborts`
    /// they are discarded first, and a reset precedes FIN.
    pub(crate) fn finish(&self, stream: &Arc<SharedStream>, aborts: bool) {
        let mut state = stream.lock();
        if aborts {
            state.send.queue.clear();
            state.aborted |= state.send.fin < Fin::Taken;
        }
        let is_first = state.send.fin == Fin::None;
        if is_first {
            state.send.fin = Fin::Queued;
        }
        let inspect = (is_first || aborts) && state.enter_inbox();
        drop(state);
        if inspect {
            self.mailbox.push_changed(stream);
        }
    }
}

/// Keeps the session alive: dropping the last handle closes the session.
#[derive(Debug)]
pub(crate) struct Handle(Arc<Shared>);

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl std::ops::Deref for Handle {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.mailbox.close();
        }
    }
}
