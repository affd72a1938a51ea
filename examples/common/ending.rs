//! The end of an example whose streams are owned elsewhere, as by a pool of HTTP connections.

use std::time::Duration;

use anyhow::{Result, ensure};
use kcpx::Endpoint;
use tokio::time::{Instant, sleep};

/// A connection that lost its peer without a word takes longer; here both sides are there.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until the endpoint has no connection any more and has delivered everything.
pub(crate) async fn closed(endpoint: &Endpoint) -> Result<()> {
    let start = Instant::now();
    while endpoint.stats().connections.current > 0 {
        let left = endpoint.stats().connections.current;
        ensure!(start.elapsed() < TIMEOUT, "still has {left} connection(s)");
        sleep(Duration::from_millis(5)).await;
    }
    endpoint.wait_idle().await;
    Ok(())
}
