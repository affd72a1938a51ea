//! The end of a tunnel: connections that may finish.
//!
//! The rest is reset. Sessions are closed before the tasks of their connections are aborted: an
//! aborted task would send FIN, which the other side takes for a complete stream.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time for delivering the last bytes of closed connections.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for all tasks, at most `limit`.
pub(crate) async fn drain(tasks: &mut JoinSet<()>, limit: Duration) {
    let all = async { while tasks.join_next().await.is_some() {} };
    drop(timeout(limit, all).await);
}
