//! Ports of this process that a new endpoint may bind although a socket of an old one is still open, which
//! waits for peers alone (`driver/port_release.rs`).

use std::net::SocketAddr;
use std::sync::Weak;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::shared::requests::{Request, RequestQueue, TimeWaitEntry};
use crate::sys::canonical;
use crate::util::sync::{Arc, Mutex, lock};

/// How long an endpoint is waited for that has something to deliver, or whose runtime does not run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The endpoints of this process, and some that are gone.
static ENDPOINTS: Mutex<Vec<Weak<RequestQueue>>> = Mutex::new(Vec::new());

/// Adds a new endpoint.
pub(super) fn register(requests: &Arc<RequestQueue>) {
    let mut endpoints = lock(&ENDPOINTS);
    if endpoints.len() == endpoints.capacity() {
        // As many entries have come since the last time as are left now.
        endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        let left = endpoints.len();
        endpoints.reserve(left.max(16));
    }
    endpoints.push(Arc::downgrade(requests));
}

/// Asks the endpoints of this process that are in the way of `addr` to close their sockets: all that are, if
/// all can, or none. Returns what they would have answered for connections in TIME-WAIT.
pub(super) async fn release(addr: SocketAddr) -> Vec<TimeWaitEntry> {
    let endpoints = in_the_way_of(addr);
    // Without a runtime there is no clock, and nothing can be bound.
    if endpoints.is_empty() || runtime::Handle::try_current().is_err() {
        return Vec::new();
    }
    let Some(can_release) = ask(&endpoints, Request::CanReleasePort).await else {
        return Vec::new();
    };
    if !can_release.into_iter().all(|can| can) {
        return Vec::new();
    }
    let released = ask(&endpoints, Request::ReleasePort).await;
    released.into_iter().flatten().flatten().collect()
}

/// Endpoints whose sockets bind(2) may collide with at `addr`.
fn in_the_way_of(addr: SocketAddr) -> Vec<Arc<RequestQueue>> {
    let is_in_the_way = |local: SocketAddr| {
        let (one, two) = (canonical(local).ip(), canonical(addr).ip());
        local.port() == addr.port() && (one == two || one.is_unspecified() || two.is_unspecified())
    };
    let endpoints: Vec<_> = lock(&ENDPOINTS).iter().filter_map(Weak::upgrade).collect();
    endpoints.into_iter().filter(|requests| is_in_the_way(requests.notifier().local())).collect()
}

/// The answers of the drivers; without those that have ended. `None` if one does not answer.
async fn ask<T>(
    endpoints: &[Arc<RequestQueue>],
    request: impl Fn(oneshot::Sender<T>) -> Request,
) -> Option<Vec<T>> {
    let answers: Vec<_> = endpoints
        .iter()
        .map(|endpoint| {
            let (reply, answer) = oneshot::channel();
            endpoint.push(request(reply));
            answer
        })
        .collect();
    let all = async {
        let mut received = Vec::new();
        for answer in answers {
            received.extend(answer.await.ok());
        }
        received
    };
    timeout(ANSWER_TIMEOUT, all).await.ok()
}
