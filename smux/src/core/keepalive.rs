//! Keepalive: when to send NOP, and when the peer counts as gone.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Keepalive {
    interval: Duration,
    timeout: Duration,
    last_sent: Instant,
    last_header: Instant,
    /// The carrier is not read, so the peer cannot be heard.
    paused: bool,
}

/// The due action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Nop,
    Timeout,
}

impl Keepalive {
    pub(crate) fn new(interval: Duration, timeout: Duration, now: Instant) -> Self {
        Self { interval, timeout, last_sent: now, last_header: now, paused: false }
    }

    pub(crate) fn on_header(&mut self, now: Instant) {
        self.last_header = now;
    }

    pub(crate) fn on_sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// Sets whether reading the carrier is paused.
    pub(crate) fn set_paused(&mut self, paused: bool, now: Instant) {
        if self.paused && !paused {
            self.last_header = now;
        }
        self.paused = paused;
    }

    /// `None` if the time is too far away to represent.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let nop = self.last_sent.checked_add(self.interval);
        let timeout = self.last_header.checked_add(self.timeout).filter(|_| !self.paused);
        [nop, timeout].into_iter().flatten().min()
    }

    pub(crate) fn on_timer(&self, now: Instant) -> Due {
        let since = |then: Instant| now.saturating_duration_since(then);
        if !self.paused && since(self.last_header) >= self.timeout {
            Due::Timeout
        } else if since(self.last_sent) >= self.interval {
            Due::Nop
        } else {
            Due::Nothing
        }
    }
}
