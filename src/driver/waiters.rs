//! Who waits for the end of a drain.

use std::time::Instant;

use tokio::sync::oneshot;

use crate::shared::notifier::ConnId;

/// Calls that wait until no connection is left.
#[derive(Debug, Default)]
pub(super) struct DrainWaiters {
    pub(super) replies: Vec<oneshot::Sender<()>>,
    /// A connection that was waited for in the last turn. Most turns inspect it alone.
    pub(super) blocker: Option<ConnId>,
    /// When the last FIN or RST is given up, while nothing else is waited for.
    pub(super) deadline: Option<Instant>,
}

impl DrainWaiters {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}
