//! The end of a tunnel: connections that may finish.
//!
//! What is left after that is reset: sessions are closed before the tasks of their connections are
//! aborted, since those would send FIN, which the other side cannot distinguish from a complete stream.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time for delivering the last bytes of what was closed.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for all tasks, at most as long as `limit`.
pub(crate) async fn drain(tasks: &mut JoinSet<()>, limit: Duration) {
    let all = async { while tasks.join_next().await.is_some() {} };
    drop(timeout(limit, all).await);
}
