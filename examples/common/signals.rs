//! Ctrl-C, and SIGTERM where there is one.

use std::future::Future;
use std::io;

/// Exit status after the second signal.
const ENDED_AT_ONCE: i32 = 1;

/// A future that waits for one of them; they are caught from the call on. The next one, while what is left is
/// delivered, ends the process at once.
pub(crate) fn interrupted() -> impl Future<Output = io::Result<()>> {
    let signals = Signals::new();
    async move {
        let mut signals = signals?;
        signals.next().await?;
        tokio::spawn(async move {
            if signals.next().await.is_ok() {
                std::process::exit(ENDED_AT_ONCE);
            }
        });
        Ok(())
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: signal(interrupt)?, terminate: signal(terminate)? })
    }

    async fn next(&mut self) -> io::Result<()> {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        Ok(())
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> io::Result<()> {
        tokio::signal::ctrl_c().await
    }
}
