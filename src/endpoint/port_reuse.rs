//! Ports that a new endpoint may take over from an endpoint of this process, if that only keeps its socket for
//! the peers (`driver/exit`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::config::SocketConfig;
use crate::shared::requests::{Request, RequestQueue, TimeWaitEntry};
use crate::sys::UdpSocket;
use crate::util::path::canonical;
use crate::util::sync::{Arc, Mutex, lock};

/// Wait for an endpoint that still delivers data, or has a runtime that does not run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The endpoints of this process with UDP sockets; some may have ended.
static ENDPOINTS: Mutex<Vec<(Weak<RequestQueue>, Bound)>> = Mutex::new(Vec::new());

/// Options of a binding that decide which addresses it takes.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    /// Whether an IPv6 socket leaves out the IPv4 addresses.
    only_v6: bool,
    device: Option<String>,
}

impl Bound {
    pub(super) fn new(socket: &UdpSocket, config: &SocketConfig) -> Self {
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        Self { only_v6: socket.check_peer(v4).is_err(), device: config.device.clone() }
    }

    /// Whether sockets at the two addresses exclude each other in bind(2).
    fn collides(&self, addr: SocketAddr, other: &Self, other_addr: SocketAddr) -> bool {
        let (one, two) = (canonical(addr).ip(), canonical(other_addr).ip());
        let covers = |bound: &Self, wildcard: IpAddr, ip: IpAddr| {
            let same_version = wildcard.is_ipv4() == ip.is_ipv4();
            wildcard.is_unspecified() && (same_version || (ip.is_ipv4() && !bound.only_v6))
        };
        let devices = (&self.device, &other.device);
        addr.port() == other_addr.port()
            && (one == two || covers(self, one, two) || covers(other, two, one))
            && (devices.0.is_none() || devices.1.is_none() || devices.0 == devices.1)
    }
}

pub(super) fn register(requests: &Arc<RequestQueue>, bound: Bound) {
    let mut endpoints = lock(&ENDPOINTS);
    if endpoints.len() == endpoints.capacity() {
        // Amortised: the list has doubled since the last cleanup.
        endpoints.retain(|(endpoint, _)| endpoint.strong_count() > 0);
        let left = endpoints.len();
        endpoints.reserve(left.max(16));
    }
    endpoints.push((Arc::downgrade(requests), bound));
}

/// Asks the endpoints that occupy `addr` whether they can close their sockets, then to do so if all can.
/// Returns their connections in TIME-WAIT.
pub(super) async fn release(addr: SocketAddr, config: &SocketConfig) -> Vec<TimeWaitEntry> {
    let bound = Bound { only_v6: config.only_v6, device: config.device.clone() };
    let endpoints = in_the_way_of(addr, &bound);
    if endpoints.is_empty() {
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

/// Endpoints with a socket that collides with `addr` in bind(2).
fn in_the_way_of(addr: SocketAddr, bound: &Bound) -> Vec<Arc<RequestQueue>> {
    let endpoints = lock(&ENDPOINTS).clone();
    let colliding = |(requests, other): (Weak<RequestQueue>, Bound)| {
        let requests = requests.upgrade()?;
        bound.collides(addr, &other, requests.notifier().local()).then_some(requests)
    };
    endpoints.into_iter().filter_map(colliding).collect()
}

/// The replies of the drivers, except of those that have ended. `None` if one does not reply in time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_that_bind_collides_with_are_in_the_way() {
        let parse = |text: &str| {
            let (text, device) = match text.split_once('%') {
                Some((text, device)) => (text, Some(device.to_owned())),
                None => (text, None),
            };
            let (text, only_v6) = text.strip_prefix("only ").map_or((text, false), |t| (t, true));
            (Bound { only_v6, device }, text.parse::<SocketAddr>().unwrap())
        };
        for (one, two, collide) in [
            ("127.0.0.1:5", "127.0.0.1:5", true),
            ("127.0.0.1:5", "127.0.0.1:6", false),
            ("127.0.0.1:5", "127.0.0.2:5", false),
            ("127.0.0.1:5", "0.0.0.0:5", true),
            ("127.0.0.1:5", "[::ffff:127.0.0.1]:5", true),
            ("127.0.0.1:5", "[::]:5", true),
            ("0.0.0.0:5", "[::]:5", true),
            ("127.0.0.1:5", "only [::]:5", false),
            ("0.0.0.0:5", "only [::]:5", false),
            ("0.0.0.0:5", "[::1]:5", false),
            ("[::1]:5", "[::1]:5", true),
            ("[::1]:5", "only [::]:5", true),
            ("[::]:5", "only [::]:5", true),
            ("0.0.0.0:5%eth0", "0.0.0.0:5%eth1", false),
            ("0.0.0.0:5%eth0", "0.0.0.0:5%eth0", true),
            ("0.0.0.0:5%eth0", "127.0.0.1:5", true),
        ] {
            let ((first, a), (second, b)) = (parse(one), parse(two));
            assert_eq!(first.collides(a, &second, b), collide, "{one} and {two}");
            assert_eq!(second.collides(b, &first, a), collide, "{two} and {one}");
        }
    }
}
