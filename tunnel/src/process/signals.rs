//! Signals of the process as values.

use std::io;

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, SIGINT or Ctrl-C: end.
    Shutdown,
    /// SIGHUP: reopen the log, and read the file of `-c` again.
    Reload,
    /// SIGUSR1: write the counters into the log.
    Dump,
}

/// Receives signals from its creation on, in place of their default actions.
#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    unix: unix::Streams,
}

impl Signals {
    /// Begins to receive signals. Needs a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the system denies it.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            unix: unix::Streams::new()?,
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    ///
    /// No signal is lost when the future is dropped, but several of a kind may count as one.
    pub async fn next(&mut self) -> Signal {
        #[cfg(unix)]
        return self.unix.next().await;
        #[cfg(not(unix))]
        {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            Signal::Shutdown
        }
    }
}

#[cfg(unix)]
mod unix {
    use std::io;

    use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

    use super::Signal;

    #[derive(Debug)]
    pub(super) struct Streams {
        terminate: Stream,
        interrupt: Stream,
        hangup: Stream,
        user: Stream,
    }

    impl Streams {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                hangup: signal(SignalKind::hangup())?,
                user: signal(SignalKind::user_defined1())?,
            })
        }

        pub(super) async fn next(&mut self) -> Signal {
            // The streams do not end while the runtime exists.
            tokio::select! {
                _ = self.terminate.recv() => Signal::Shutdown,
                _ = self.interrupt.recv() => Signal::Shutdown,
                _ = self.hangup.recv() => Signal::Reload,
                _ = self.user.recv() => Signal::Dump,
            }
        }
    }
}
