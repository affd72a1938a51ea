//! Whose frame is sent next: streams take turns, one frame each. Streams with little to send come
//! first, so that a ping does not wait for a frame of every bulk sender.

use std::collections::VecDeque;
use std::sync::Arc;

use super::stream::SharedStream;

/// A stream with at most this many queued bytes is sparse.
pub(crate) const MAX_SPARSE: usize = 2_048;

/// While bulk senders wait, frames of sparse streams have at most this many bytes of a batch.
const SPARSE_SHARE: usize = 32 << 10;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    sparse: VecDeque<Arc<SharedStream>>,
    bulk: VecDeque<Arc<SharedStream>>,
    /// Its frame did not fit into the last batch: begins the next one. Before that batch, its SYN
    /// and all else that had to come first have left. With the rest of its turn, bytes.
    deferred: Option<(Arc<SharedStream>, usize)>,
}

impl Turns {
    pub(crate) fn push(&mut self, stream: Arc<SharedStream>, queued: usize) {
        let queue = if queued <= MAX_SPARSE { &mut self.sparse } else { &mut self.bulk };
        queue.push_back(stream);
    }

    /// Keeps a stream whose frame did not fit for the next batch.
    pub(crate) fn defer(&mut self, stream: Arc<SharedStream>, allowance: usize) {
        self.deferred = Some((stream, allowance));
    }

    pub(crate) fn take_deferred(&mut self) -> Option<(Arc<SharedStream>, usize)> {
        self.deferred.take()
    }

    /// The next stream, and whether it was sparse, for a batch with `sparse_bytes` of sparse streams.
    pub(crate) fn pop(&mut self, sparse_bytes: usize) -> Option<(Arc<SharedStream>, bool)> {
        let may_be_sparse = sparse_bytes < SPARSE_SHARE || self.bulk.is_empty();
        let sparse = if may_be_sparse { self.sparse.pop_front() } else { None };
        match sparse {
            Some(stream) => Some((stream, true)),
            None => Some((self.bulk.pop_front()?, false)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sparse.is_empty() && self.bulk.is_empty() && self.deferred.is_none()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
