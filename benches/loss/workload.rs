//! The applications: messages at a fixed interval, and bulk transfer. The client writes; the server reads as
//! soon as data is readable.

use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use kcpx::proto::Kcp;

use crate::path::{MILLIS, SECOND};

/// Content of all writes: the figures depend only on the number of bytes.
static BLOCK: [u8; 64 * 1024] = [7; 64 * 1024];

/// Workload of one connection's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// One message of `size` bytes every `every` us into one ordered stream.
    Messages { size: usize, every: u64 },
    /// All data that the send window admits.
    Bulk,
}

impl Workload {
    /// One message of 1 KiB every 10 ms.
    pub(crate) const MESSAGES: Self = Self::Messages { size: 1_024, every: 10 * MILLIS };
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Messages { size, every } if size % 1_024 == 0 => {
                write!(f, "{} KiB per {} ms", size / 1_024, every / MILLIS)
            }
            Self::Messages { size, every } => write!(f, "{size} B per {} ms", every / MILLIS),
            Self::Bulk => f.write_str("bulk"),
        }
    }
}

/// One message, from the write at the client to the read at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// When it was written, in us.
    pub(crate) at: u64,
    /// One-way latency in us.
    pub(crate) latency: u64,
}

/// State of one workload. All times in us.
#[derive(Debug)]
pub(crate) struct Application {
    workload: Workload,
    start: u64,
    /// When the application next writes by itself: each message, and the first bytes of bulk.
    next: u64,
    end: u64,
    /// When each message was written.
    written: Vec<u64>,
    /// Bytes that the server has read.
    pub(crate) received: u64,
    /// Messages that the server has read completely, in order.
    pub(crate) messages: Vec<Message>,
}

impl Application {
    /// Writes from `start` to `end`.
    pub(crate) fn new(workload: Workload, start: u64, end: u64) -> Self {
        let (written, messages) = (Vec::new(), Vec::new());
        Self { workload, start, next: start, end, written, received: 0, messages }
    }

    /// When the application next writes without being woken by the state machine.
    pub(crate) fn due(&self) -> Option<u64> {
        Some(self.next).filter(|next| *next < self.end)
    }

    /// Writes what is due.
    pub(crate) fn write(&mut self, kcp: &mut Kcp, now: u64, instant: Instant) {
        match self.workload {
            Workload::Messages { size, every } => {
                while self.due().is_some_and(|next| next <= now) {
                    kcp.send(instant, Bytes::from_static(&BLOCK[..size]));
                    self.written.push(self.next);
                    self.next += every;
                }
            }
            Workload::Bulk => {
                if now < self.start || now >= self.end {
                    return;
                }
                self.next = self.end;
                while kcp.send_capacity() > 0 {
                    let len = kcp.send_capacity().min(BLOCK.len());
                    kcp.send(instant, Bytes::from_static(&BLOCK[..len]));
                }
            }
        }
    }

    /// Reads everything that is readable at the server.
    pub(crate) fn read(&mut self, kcp: &mut Kcp, now: u64) {
        while let Some(chunk) = kcp.recv() {
            self.received += chunk.len() as u64;
        }
        if let Workload::Messages { size, .. } = self.workload {
            let whole = self.received / size as u64;
            let new = self.written.iter().take(whole as usize).skip(self.messages.len());
            let new = new.map(|&at| Message { at, latency: now - at });
            self.messages.extend(new);
        }
    }

    /// Whether every written message has been read.
    pub(crate) fn is_delivered(&self) -> bool {
        self.messages.len() == self.written.len()
    }

    pub(crate) fn is_bulk(&self) -> bool {
        self.workload == Workload::Bulk
    }

    /// Progress, for errors.
    pub(crate) fn progress(&self) -> String {
        format!("{} of {} messages", self.messages.len(), self.written.len())
    }
}

/// Longest time that the last messages may take, us.
pub(crate) const MAX_DRAIN: u64 = 60 * SECOND;
