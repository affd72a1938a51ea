//! The end of a tunnel: connections that may finish, and what is done with the rest.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time for delivering the last bytes of what was closed.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for all tasks, aborts those that are left after `limit`, and waits for their ends.
pub(crate) async fn drain(tasks: &mut JoinSet<()>, limit: Duration) {
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(limit, all).await.is_err() {
        tasks.shutdown().await;
    }
}
