//! A flood in a thread of its own, at a steady rate until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;

/// How long the thread sleeps between two bursts.
const PAUSE: Duration = Duration::from_millis(1);

/// A flood that is being sent.
#[derive(Debug)]
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Running {
    /// Calls `send` at this rate per second.
    pub(crate) fn start(rate: u64, mut send: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let halt = stop.clone();
        let thread = std::thread::spawn(move || {
            let (start, mut sent) = (Instant::now(), 0);
            while !halt.load(Ordering::Relaxed) {
                let due = start.elapsed().as_micros() as u64 * rate / 1_000_000;
                while sent < due {
                    send();
                    sent += 1;
                }
                std::thread::sleep(PAUSE);
            }
            sent
        });
        Self { stop, thread }
    }

    /// Returns how many datagrams were sent.
    pub(crate) fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the flood failed")
    }
}
