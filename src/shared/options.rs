//! Per-connection options that the handle reads back: linger, nodelay, `take_error`.
//!
//! Shared state instead of requests: an option set just before a stream is dropped applies to the drop.

use std::time::Duration;

use crate::config::{Config, WritePolicy};
use crate::error::{ConfigError, ConnectionError};
use crate::util::sync::{AtomicBool, AtomicUsize, Ordering};

/// Value of `Options::linger` while `Config::linger` applies.
const CONFIGURED: usize = usize::MAX;
/// Milliseconds in a day.
const MAX_LINGER_MILLIS: u64 = 24 * 60 * 60 * 1_000;

pub(super) struct Options {
    /// Milliseconds, or `CONFIGURED`.
    linger: AtomicUsize,
    /// Milliseconds of `Config::linger`, rounded up.
    configured_linger: u32,
    nodelay: AtomicBool,
    /// True once `take_error` has returned the connection's error.
    error_taken: AtomicBool,
}

impl Options {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            linger: AtomicUsize::new(CONFIGURED),
            configured_linger: millis(config.linger).try_into().unwrap_or(u32::MAX),
            nodelay: AtomicBool::new(config.kcp.write_policy == WritePolicy::Immediate),
            error_taken: AtomicBool::new(false),
        }
    }

    /// Linger time in effect (SO_LINGER).
    pub(super) fn linger(&self) -> Duration {
        let configured = Duration::from_millis(self.configured_linger.into());
        self.own_linger().unwrap_or(configured)
    }

    /// Linger time set for this connection; `None` while `Config::linger` applies.
    pub(super) fn own_linger(&self) -> Option<Duration> {
        let millis = self.linger.load(Ordering::Relaxed);
        (millis != CONFIGURED).then(|| Duration::from_millis(millis as u64))
    }

    /// Sets the linger time, rounded up to milliseconds. The caller notifies the driver, whose close
    /// deadline depends on it.
    pub(super) fn set_linger(&self, time: Option<Duration>) -> Result<(), ConfigError> {
        let millis = match time {
            Some(time) => {
                let millis = millis(time);
                ConfigError::check("linger (ms)", millis, 0, MAX_LINGER_MILLIS)?;
                usize::try_from(millis).unwrap_or(CONFIGURED)
            }
            None => CONFIGURED,
        };
        self.linger.store(millis, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn nodelay(&self) -> bool {
        self.nodelay.load(Ordering::Relaxed)
    }

    pub(super) fn set_write_policy(&self, policy: WritePolicy) {
        self.nodelay.store(policy == WritePolicy::Immediate, Ordering::Relaxed);
    }

    /// Returns `error` on the first call.
    pub(super) fn take_error(&self, error: ConnectionError) -> Option<ConnectionError> {
        (!self.error_taken.swap(true, Ordering::Relaxed)).then_some(error)
    }
}

/// Whole milliseconds, rounded up: only zero is zero.
fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}
