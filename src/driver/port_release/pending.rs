//! Who waits for the port of a driver.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;

use crate::shared::requests::{RequestQueue, TimeWaitEntry};
use crate::util::sync::Arc;

/// The last of a driver, dropped when the socket is closed: only then are the requests without an answer
/// rejected, since one may come from an endpoint that waits for the port.
#[derive(Debug)]
pub(in super::super) struct PortRelease {
    requests: Arc<RequestQueue>,
    /// Endpoints that want to know whether they may ask for the port, once that is decided.
    pub(super) undecided: Vec<oneshot::Sender<bool>>,
    pub(super) to: Option<oneshot::Sender<Vec<TimeWaitEntry>>>,
    pub(super) time_wait: Vec<TimeWaitEntry>,
}

impl PortRelease {
    pub(in super::super) fn new(requests: Arc<RequestQueue>) -> Self {
        Self { requests, undecided: Vec::new(), to: None, time_wait: Vec::new() }
    }

    /// Whether an endpoint waits for the port.
    pub(in super::super) fn is_requested(&self) -> bool {
        self.to.as_ref().is_some_and(|to| !to.is_closed())
    }
}

impl Drop for PortRelease {
    fn drop(&mut self) {
        let requests = self.requests.close();
        let (to, time_wait) = (self.to.take(), std::mem::take(&mut self.time_wait));
        let undecided = std::mem::take(&mut self.undecided);
        // These wake tasks, and nobody is left to report a waker that panics to. The endpoint that waits for
        // the port may have given up.
        drop(catch_unwind(AssertUnwindSafe(|| drop(to.map(|to| to.send(time_wait))))));
        drop(catch_unwind(AssertUnwindSafe(|| drop((undecided, requests)))));
    }
}
