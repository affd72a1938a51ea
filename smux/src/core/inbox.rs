//! State passed from handles to the driver, and from the driver to handles that open and accept
//! streams.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use super::stream::SharedStream;
use crate::error::Error;
use crate::sync::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, register_waker,
};

/// Limit of streams with an unsent SYN. A further `open_stream` waits.
const MAX_UNSENT_OPENS: usize = 1_024;

/// State that the handles of a session and its driver share, except single streams.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) tokens: Tokens,
    /// The session's version; 0 while undecided.
    version: AtomicU8,
    /// The session is to be closed. Set together with [`Inbox::closing`], for writers.
    closing: AtomicBool,
    /// Number of the last batch that was written completely and flushed.
    pub(crate) flushed: AtomicU64,
    inbox: Mutex<Inbox>,
    accept_queue: Mutex<AcceptQueue>,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    /// Streams that a handle has changed.
    changed: Vec<Arc<SharedStream>>,
    /// Streams opened here, in order.
    opened: Vec<Arc<SharedStream>>,
    /// Unsent SYN frames: `opened`, and frames queued by the driver.
    unsent_opens: usize,
    /// Above `u32::MAX` when all ids are used up.
    next_id: u64,
    /// Ids of the peer's live streams that this side has yet to assign.
    taken_ids: HashSet<u32>,
    /// The session is to be closed.
    pub(crate) closing: bool,
    /// The session has ended.
    pub(crate) end: Option<Error>,
    /// The carrier takes no more bytes, but is still read.
    pub(crate) send_error: Option<Error>,
    /// Set by a change, cleared when the driver takes it.
    notified: bool,
    driver: Option<Waker>,
}

#[derive(Debug, Default)]
pub(crate) struct AcceptQueue {
    pub(crate) streams: VecDeque<Arc<SharedStream>>,
    /// Waker of the last `poll_accept`.
    pub(crate) waker: Option<Waker>,
}

/// Result of a request to open a stream.
pub(crate) enum Opened {
    Stream(Arc<SharedStream>),
    /// Too many SYN frames wait for the carrier.
    Full,
}

impl Mailbox {
    pub(crate) fn new(tokens: Tokens, version: Option<u8>, first_id: u32) -> Self {
        let inbox = Inbox {
            changed: Vec::new(),
            opened: Vec::new(),
            unsent_opens: 0,
            next_id: first_id.into(),
            taken_ids: HashSet::new(),
            closing: false,
            end: None,
            send_error: None,
            notified: false,
            driver: None,
        };
        Self {
            tokens,
            version: AtomicU8::new(version.unwrap_or(0)),
            closing: AtomicBool::new(false),
            flushed: AtomicU64::new(0),
            inbox: Mutex::new(inbox),
            accept_queue: Mutex::default(),
        }
    }

    pub(crate) fn version(&self) -> Option<u8> {
        Some(self.version.load(Ordering::Relaxed)).filter(|version| *version != 0)
    }

    pub(crate) fn set_version(&self, version: u8) {
        self.version.store(version, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// A leaf lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A leaf lock.
    pub(crate) fn accept_queue(&self) -> MutexGuard<'_, AcceptQueue> {
        self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the driver inspect `stream`, see [`StreamState::enter_inbox`]. Without a driver the
    /// stream ends with the session.
    ///
    /// [`StreamState::enter_inbox`]: super::stream::StreamState::enter_inbox
    pub(crate) fn push_changed(&self, stream: &Arc<SharedStream>) {
        let mut inbox = self.lock();
        if let Some(error) = inbox.end.clone() {
            drop(inbox);
            let wakers = stream.lock().fail(&error);
            wakers.into_iter().for_each(wake);
            return;
        }
        inbox.changed.push(Arc::clone(stream));
        let waker = inbox.notify();
        drop(inbox);
        wake(waker);
    }

    pub(crate) fn wake_driver(&self) {
        let waker = self.lock().notify();
        wake(waker);
    }

    /// Requests the end of the session.
    pub(crate) fn close(&self) {
        let mut inbox = self.lock();
        inbox.closing = true;
        self.closing.store(true, Ordering::Relaxed);
        let waker = inbox.notify();
        drop(inbox);
        wake(waker);
    }

    pub(crate) fn open(&self) -> Result<Opened, Error> {
        let mut inbox = self.lock();
        if let Some(error) = inbox.end.as_ref().or(inbox.send_error.as_ref()) {
            return Err(error.clone());
        }
        if inbox.closing {
            return Err(Error::Closed);
        }
        if inbox.unsent_opens >= MAX_UNSENT_OPENS {
            return Ok(Opened::Full);
        }
        let id = inbox.take_id().ok_or(Error::IdsExhausted)?;
        let stream = SharedStream::new(id);
        inbox.opened.push(Arc::clone(&stream));
        inbox.unsent_opens += 1;
        let waker = inbox.notify();
        drop(inbox);
        wake(waker);
        Ok(Opened::Stream(stream))
    }
}

impl Inbox {
    #[must_use]
    fn notify(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.notified, true) {
            return None;
        }
        self.driver.clone()
    }

    /// Takes the changes of handles. Later changes wake `driver`.
    pub(crate) fn take(
        &mut self,
        changed: &mut Vec<Arc<SharedStream>>,
        opened: &mut Vec<Arc<SharedStream>>,
    ) {
        self.notified = false;
        std::mem::swap(&mut self.changed, changed);
        std::mem::swap(&mut self.opened, opened);
    }

    /// Returns the previous waker, to be dropped after the lock is released, see
    /// [`register_waker`].
    #[must_use]
    pub(crate) fn set_driver(&mut self, waker: &Waker) -> Option<Waker> {
        register_waker(&mut self.driver, waker)
    }

    /// Counts sent SYN frames. Returns whether a handle may be waiting for it.
    pub(crate) fn on_syns_sent(&mut self, syns: usize) -> bool {
        let was_full = self.unsent_opens >= MAX_UNSENT_OPENS;
        self.unsent_opens = self.unsent_opens.saturating_sub(syns);
        was_full && self.unsent_opens < MAX_UNSENT_OPENS
    }

    /// Reserves `id`, which a stream of the peer has. Returns false if it was assigned or reserved
    /// before.
    pub(crate) fn reserve_id(&mut self, id: u32) -> bool {
        u64::from(id) >= self.next_id && self.taken_ids.insert(id)
    }

    pub(crate) fn release_ids(&mut self, ids: &mut Vec<u32>) {
        for id in ids.drain(..) {
            self.taken_ids.remove(&id);
        }
    }

    fn take_id(&mut self) -> Option<u32> {
        loop {
            let id = u32::try_from(self.next_id).ok()?;
            self.next_id += 2;
            if !self.taken_ids.contains(&id) {
                return Some(id);
            }
        }
    }
}

pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The unread bytes of all streams of a session (smux `bucket`).
#[derive(Debug)]
pub(crate) struct Tokens {
    unread: AtomicUsize,
    /// At this many unread bytes, the carrier is not read.
    max: usize,
}

impl Tokens {
    pub(crate) fn new(max: usize) -> Self {
        Self { unread: AtomicUsize::new(0), max }
    }

    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Ordering::SeqCst)
    }

    pub(crate) fn are_used_up(&self) -> bool {
        self.unread() >= self.max
    }

    pub(crate) fn add(&self, len: usize) {
        self.unread.fetch_add(len, Ordering::SeqCst);
    }

    /// Notes that bytes were read or discarded. Returns whether the driver waits for this and must
    /// be woken.
    #[must_use]
    pub(crate) fn release(&self, len: usize) -> bool {
        let before = self.unread.fetch_sub(len, Ordering::SeqCst);
        before >= self.max && before.saturating_sub(len) < self.max
    }
}
