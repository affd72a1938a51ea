//! Options that a handle reads back, and the driver with it. They are no commands: what was set
//! before a stream is dropped has to hold for the drop.

use std::time::Duration;

use crate::config::{Config, Setting, WritePolicy};
use crate::error::{ConfigError, ConnectionError};
use crate::shared::connection::Shared;
use crate::util::sync::{AtomicBool, AtomicUsize, Ordering};

/// In `Options::linger`: the configured time holds.
const CONFIGURED: usize = usize::MAX;

pub(super) struct Options {
    /// Milliseconds, or `CONFIGURED`.
    linger: AtomicUsize,
    configured_linger: Duration,
    nodelay: AtomicBool,
    /// `take_error` has reported the end of the conversation.
    told: AtomicBool,
}

impl Options {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            linger: AtomicUsize::new(CONFIGURED),
            configured_linger: config.linger,
            nodelay: AtomicBool::new(config.kcp.write_policy == WritePolicy::Immediate),
            told: AtomicBool::new(false),
        }
    }
}

impl Shared {
    /// How long closing goes on without success.
    pub(crate) fn linger(&self) -> Duration {
        self.own_linger().unwrap_or(self.options.configured_linger)
    }

    /// The same, if it was set for this conversation.
    pub(crate) fn own_linger(&self) -> Option<Duration> {
        let millis = self.options.linger.load(Ordering::Relaxed);
        (millis != CONFIGURED).then(|| Duration::from_millis(millis as u64))
    }

    /// Sets it for this conversation, in whole milliseconds.
    pub(crate) fn set_linger(&self, time: Option<Duration>) -> Result<(), ConfigError> {
        let millis = match time {
            // Upwards: only zero means zero.
            Some(time) => {
                let millis = time.as_nanos().div_ceil(1_000_000);
                ConfigError::check("linger (ms)", millis, 0, 24 * 60 * 60 * 1_000)?;
                usize::try_from(millis).unwrap_or(CONFIGURED)
            }
            None => CONFIGURED,
        };
        self.options.linger.store(millis, Ordering::Relaxed);
        // Closing may be under way, and a deadline depends on it.
        self.notify();
        Ok(())
    }

    pub(crate) fn nodelay(&self) -> bool {
        self.options.nodelay.load(Ordering::Relaxed)
    }

    pub(crate) fn set_write_policy(&self, policy: WritePolicy) {
        self.options.nodelay.store(policy == WritePolicy::Immediate, Ordering::Relaxed);
        self.set(Setting::WritePolicy(policy));
    }

    /// Why the conversation failed, once.
    pub(crate) fn take_error(&self) -> Option<ConnectionError> {
        let error = self.error().filter(|error| *error != ConnectionError::Closed)?;
        (!self.options.told.swap(true, Ordering::Relaxed)).then_some(error)
    }
}
