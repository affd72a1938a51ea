//! `Control`: a running tunnel's view of the process; `Controller`: its other end.

use std::time::Duration;

use tokio::sync::watch;

use super::counters::Counters;

/// Connects a tunnel to its process: when to end, changed settings, where to register counters.
///
/// Clones are independent: each sees every change of the settings once.
///
/// ```
/// use std::time::Duration;
///
/// use kcpx_tunnel::process::{Control, Controller, Counters};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (controller, mut control) = Controller::new("first", Duration::from_secs(5), Counters::default());
/// controller.reload("second");
/// assert_eq!(control.reloaded().await, "second");
/// controller.shutdown();
/// control.shutdown().await;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Control<S> {
    shutdown: watch::Receiver<bool>,
    settings: watch::Receiver<S>,
    drain: Duration,
    counters: Counters,
}

/// Ends one tunnel or changes its settings.
///
/// A dropped controller ends its tunnel like [`shutdown`](Self::shutdown).
#[derive(Debug)]
pub struct Controller<S> {
    shutdown: watch::Sender<bool>,
    settings: watch::Sender<S>,
}

impl<S: Clone> Control<S> {
    /// Waits until the tunnel is to end: it then accepts no new connections, and `run` returns
    /// within [`drain`](Self::drain).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn shutdown(&self) {
        // An error means that the controller was dropped.
        let mut shutdown = self.shutdown.clone();
        drop(shutdown.wait_for(|&shutdown| shutdown).await);
    }

    /// Whether the tunnel is to end.
    #[must_use]
    pub fn is_shutdown(&self) -> bool {
        *self.shutdown.borrow() || self.shutdown.has_changed().is_err()
    }

    /// How long connections may last after [`shutdown`](Self::shutdown).
    #[must_use]
    pub fn drain(&self) -> Duration {
        self.drain
    }

    /// Returns the current settings.
    #[must_use]
    pub fn settings(&self) -> S {
        self.settings.borrow().clone()
    }

    /// Waits for reloaded settings, and returns them. They apply to new sessions; listening
    /// addresses stay unchanged.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped: the next call returns the change.
    pub async fn reloaded(&mut self) -> S {
        if self.settings.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.settings.borrow_and_update().clone()
    }

    /// Returns the counters, with which the tunnel registers its own.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl<S: Clone> Controller<S> {
    /// Makes both ends, with the settings of the start.
    #[must_use]
    pub fn new(settings: S, drain: Duration, counters: Counters) -> (Self, Control<S>) {
        let (shutdown, shutdown_receiver) = watch::channel(false);
        let (settings, settings_receiver) = watch::channel(settings);
        let control =
            Control { shutdown: shutdown_receiver, settings: settings_receiver, drain, counters };
        (Self { shutdown, settings }, control)
    }

    /// Ends the tunnel.
    pub fn shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// Passes on reloaded settings.
    pub fn reload(&self, settings: S) {
        self.settings.send_replace(settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Controller<u8>, Control<u8>) {
        Controller::new(1, Duration::from_secs(5), Counters::default())
    }

    #[tokio::test]
    async fn shutdown_is_seen_by_every_clone_and_by_later_calls() {
        let (controller, control) = pair();
        let other = control.clone();
        assert!(!control.is_shutdown());
        controller.shutdown();
        tokio::join!(control.shutdown(), other.shutdown());
        control.shutdown().await;
        assert!(control.is_shutdown() && other.is_shutdown());
    }

    #[tokio::test]
    async fn dropped_controller_ends_the_tunnel() {
        let (controller, control) = pair();
        drop(controller);
        control.shutdown().await;
        assert!(control.is_shutdown());
    }

    #[tokio::test]
    async fn reload_is_seen_once_by_each_clone() {
        let (controller, mut control) = pair();
        let mut other = control.clone();
        controller.reload(2);
        assert_eq!((control.reloaded().await, other.reloaded().await), (2, 2));
        assert_eq!(control.settings(), 2);
        tokio::select! {
            biased;
            again = control.reloaded() => panic!("{again} for the second time"),
            () = std::future::ready(()) => {}
        }
    }
}
