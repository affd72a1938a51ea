//! Options of a connection that its handle reads back: linger, nodelay, `take_error`.
//!
//! They are shared state and no requests: what was set before a stream is dropped has to hold for
//! the drop.

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
    /// True once `take_error` has returned the error of the connection.
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

    /// How long closing goes on without progress (SO_LINGER): the own linger time or the
    /// configured.
    pub(super) fn linger(&self) -> Duration {
        let configured = Duration::from_millis(self.configured_linger.into());
        self.own_linger().unwrap_or(configured)
    }

    /// The linger time set for this connection; `None` while `Config::linger` applies.
    pub(super) fn own_linger(&self) -> Option<Duration> {
        let millis = self.linger.load(Ordering::Relaxed);
        (millis != CONFIGURED).then(|| Duration::from_millis(millis as u64))
    }

    /// Sets the linger time of this connection, in whole milliseconds. The caller notifies the
    /// driver: if closing is under way, its deadline depends on the linger time.
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

    /// Whether the error of the connection has not been taken before.
    pub(super) fn take_error(&self, error: ConnectionError) -> Option<ConnectionError> {
        (!self.error_taken.swap(true, Ordering::Relaxed)).then_some(error)
    }
}

/// Whole milliseconds, rounded up: only zero means zero.
fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}
