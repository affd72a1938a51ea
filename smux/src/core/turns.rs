//! Sending order of streams: they take turns, one frame each. Streams with little to send come
//! first, so that a ping does not wait for a frame of every bulk sender. Streams with a finished
//! writer are sent one after the other and get half of the rest: a peer that reads streams in the
//! order of writing should not have to buffer the later ones.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use super::batch::MAX_BATCH;
use super::stream::{Class, SharedStream};

/// A stream with at most this many queued bytes is sparse.
pub(crate) const MAX_SPARSE: usize = 2_048;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    sparse: VecDeque<Arc<SharedStream>>,
    /// In the order of their ends.
    finishing: BTreeMap<u64, Arc<SharedStream>>,
    bulk: VecDeque<Arc<SharedStream>>,
    /// Its frame did not fit into the last batch and begins the next. Its SYN and all other
    /// preceding frames have been sent.
    deferred: Option<(Arc<SharedStream>, Class)>,
    /// Bytes including headers by which finishing streams are ahead of bulk streams; at most a
    /// batch either way, since waiting streams are not owed bytes that others did not need.
    finishing_lead: isize,
    /// Streams finished so far.
    finished: u64,
}

impl Turns {
    /// Returns the number of a stream that has just finished.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.finished += 1;
        self.finished
    }

    /// `number` is the number of a finishing stream.
    pub(crate) fn push(&mut self, stream: Arc<SharedStream>, class: Class, number: u64) {
        match class {
            Class::Sparse => self.sparse.push_back(stream),
            Class::Finishing => drop(self.finishing.insert(number, stream)),
            Class::Bulk => self.bulk.push_back(stream),
        }
    }

    /// Keeps a stream for the next batch, since its frame did not fit.
    pub(crate) fn defer(&mut self, stream: Arc<SharedStream>, class: Class) {
        self.deferred = Some((stream, class));
    }

    pub(crate) fn take_deferred(&mut self) -> Option<(Arc<SharedStream>, Class)> {
        self.deferred.take()
    }

    /// Returns the next stream and its class, for a batch of `limit` bytes. Sparse streams, with
    /// `sparse_bytes` so far, get half of it while others wait. A stream that finished while
    /// waiting is in two queues.
    pub(crate) fn pop(
        &mut self,
        sparse_bytes: usize,
        limit: usize,
    ) -> Option<(Arc<SharedStream>, Class)> {
        let is_alone = self.bulk.is_empty() && self.finishing.is_empty();
        if (is_alone || sparse_bytes < limit / 2)
            && let Some(stream) = self.sparse.pop_front()
        {
            return Some((stream, Class::Sparse));
        }
        if (self.finishing_lead <= 0 || self.bulk.is_empty())
            && let Some((_, stream)) = self.finishing.pop_first()
        {
            return Some((stream, Class::Finishing));
        }
        Some((self.bulk.pop_front()?, Class::Bulk))
    }

    /// Counts `len` bytes sent by a stream, including headers.
    pub(crate) fn on_sent(&mut self, class: Class, len: usize) {
        let lead = match class {
            Class::Sparse => return,
            Class::Finishing => self.finishing_lead + len.cast_signed(),
            Class::Bulk => self.finishing_lead - len.cast_signed(),
        };
        self.finishing_lead = lead.clamp(-MAX_BATCH.cast_signed(), MAX_BATCH.cast_signed());
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = self.sparse.is_empty() && self.finishing.is_empty() && self.bulk.is_empty();
        is_empty && self.deferred.is_none()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Most answers that wait. Further SYNs are not answered, since the peer does not take the answers.
const MAX_REFUSALS: usize = 65_536;

/// Unsent answers to refused SYNs.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    order: VecDeque<u32>,
    /// The ids in `order`.
    ids: HashSet<u32>,
}

impl Refusals {
    /// Queues the answer to the SYN of `id`. One answer covers all its earlier SYNs.
    pub(crate) fn push(&mut self, id: u32) {
        if self.order.len() < MAX_REFUSALS && self.ids.insert(id) {
            self.order.push_back(id);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        let id = self.order.pop_front()?;
        self.ids.remove(&id);
        Some(id)
    }

    /// Whether an answer for `id` waits: it would close a new stream of that id.
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
