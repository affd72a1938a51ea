//! The sockets of this process that wait for peers alone.

use std::time::Instant;

use crate::util::sync::{AtomicUsize, Ordering};

/// Sockets of this process that wait at a time, as Linux bounds its own (`tcp_max_tw_buckets`,
/// `tcp_max_orphans`): a quarter of the descriptors that a process usually has. One more closes at once.
const MAX_SOCKETS: usize = 256;
static SOCKETS: AtomicUsize = AtomicUsize::new(0);

/// The TIME-WAIT of one socket.
#[derive(Debug, Default)]
pub(in super::super) struct SocketTimeWait {
    /// Its end, as far as connections have ended (RFC 9293 3.3.2).
    pub(super) until: Option<Instant>,
    /// Held while the socket waits for peers alone.
    place: Option<Place>,
    /// There was none left.
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
    /// Takes a place if the socket waits for peers alone, and else gives it back.
    pub(super) fn set_waiting(&mut self, waits: bool) {
        self.place = if waits { self.place.take().or_else(Place::take) } else { None };
        self.is_refused = waits && self.place.is_none();
    }

    /// Whether the socket closes at once, since too many others wait.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }
}
