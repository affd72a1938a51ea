//! The runs that a server has open, and what the streams of each have done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use kcpx::ConnectionStats;
use tokio::sync::watch;

use super::wire::{Offer, Sample};

/// Most runs at once. Their streams are bounded by the endpoint's limits.
const MOST: usize = 64;

type Open = Arc<Mutex<HashMap<u64, Arc<State>>>>;

#[derive(Default)]
pub(crate) struct Runs {
    open: Open,
}

impl Runs {
    /// Opens a run under a number that the client drew.
    pub(crate) fn begin(&self, id: u64, offer: Offer) -> Result<Run, String> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MOST {
            return Err(format!("the server has {MOST} runs open, its limit: try again later"));
        }
        if open.contains_key(&id) {
            return Err("another run has the same number; try again".to_owned());
        }
        let state = Arc::new(State {
            offer,
            streams: watch::Sender::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            sent_segments: AtomicU64::new(0),
            retransmits: AtomicU64::new(0),
        });
        open.insert(id, state.clone());
        Ok(Run { id, state, open: self.open.clone() })
    }

    /// Adds a stream to a run, if it is open.
    pub(crate) fn join(&self, id: u64) -> Option<Member> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let state = open.get(&id)?.clone();
        state.streams.send_modify(|streams| *streams += 1);
        Some(Member { state })
    }
}

struct State {
    offer: Offer,
    /// Streams that have not ended.
    streams: watch::Sender<usize>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    sent_segments: AtomicU64,
    retransmits: AtomicU64,
}

/// A run, which is open until this is dropped.
pub(crate) struct Run {
    id: u64,
    state: Arc<State>,
    open: Open,
}

impl Run {
    /// Waits until all streams have ended.
    pub(crate) async fn emptied(&self) {
        // It fails when the sender is gone, which is here.
        drop(self.state.streams.subscribe().wait_for(|streams| *streams == 0).await);
    }

    pub(crate) fn totals(&self) -> Sample {
        Sample {
            bytes_in: self.state.bytes_in.load(Relaxed),
            bytes_out: self.state.bytes_out.load(Relaxed),
            sent_segments: self.state.sent_segments.load(Relaxed),
            retransmits: self.state.retransmits.load(Relaxed),
            ..Sample::default()
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// A stream's part in a run, until this is dropped.
pub(crate) struct Member {
    state: Arc<State>,
}

impl Member {
    pub(crate) fn offer(&self) -> &Offer {
        &self.state.offer
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.state.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.state.bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts what the stream did, at its end.
    pub(crate) fn ended(&self, stats: &ConnectionStats) {
        self.state.sent_segments.fetch_add(stats.sent.segments, Relaxed);
        self.state.retransmits.fetch_add(stats.retransmits(), Relaxed);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.state.streams.send_modify(|streams| *streams -= 1);
    }
}
