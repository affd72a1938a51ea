//! Host names: their addresses, and a connection race between them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Time between the starts of two attempts (RFC 8305 5, Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Validity of a lookup result that no task has waited for.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Returns the addresses of a host, at least one, with port 0; an empty host is this host.
async fn lookup(host: &str) -> io::Result<Vec<SocketAddr>> {
    let name = if host.is_empty() { "localhost" } else { host };
    let addrs: Vec<_> = lookup_host((name, 0)).await?.collect();
    if addrs.is_empty() { Err(no_address(name)) } else { Ok(addrs) }
}

fn no_address(host: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{host:?} has no address"))
}

/// Connects to the first of `addrs` that answers. `start` begins an attempt; the next attempt
/// begins 250 ms later, or when the previous one has failed. The IP versions alternate. Cancel
/// safe.
///
/// # Errors
///
/// The error of the last failed attempt.
pub(crate) async fn connect_first<T, F>(
    addrs: Vec<SocketAddr>,
    start: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    if let [only] = addrs[..] {
        return start(only).await;
    }
    let mut addrs = interleave(addrs).into_iter();
    // Dropped with the first answer, which ends the other attempts.
    let mut attempts = JoinSet::new();
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    loop {
        if let Some(addr) = addrs.next() {
            attempts.spawn(start(addr));
        }
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failure = error,
                Some(Err(panicked)) => failure = io::Error::other(panicked),
                None => return Err(failure),
            },
            () = sleep(ATTEMPT_DELAY), if !addrs.as_slice().is_empty() => {}
        }
    }
}

/// Alternates the IP versions of the addresses, beginning with the first one's (RFC 8305 4).
fn interleave(addrs: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v4 = addrs.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) =
        addrs.into_iter().partition(|addr| addr.is_ipv4() == first_is_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = Vec::new();
    while first.len() + second.len() > 0 {
        turns.extend(first.next());
        turns.extend(second.next());
    }
    turns
}

/// Resolves one host for many tasks: waiting tasks share a lookup, which continues when they give
/// up.
#[derive(Default)]
pub(crate) struct Resolver {
    state: Mutex<Lookup>,
}

#[derive(Default)]
struct Lookup {
    /// At most one task.
    running: JoinSet<Ended>,
    latest: Option<Ended>,
}

/// Result of a lookup.
struct Ended {
    at: Instant,
    result: Result<Vec<SocketAddr>, (io::ErrorKind, String)>,
}

impl Ended {
    fn now(result: io::Result<Vec<SocketAddr>>) -> Self {
        let result = result.map_err(|error| (error.kind(), error.to_string()));
        Self { at: Instant::now(), result }
    }

    /// Returns the result, with `port`, for a task that has waited for it.
    fn share(&self, port: u16) -> io::Result<Vec<SocketAddr>> {
        match &self.result {
            Ok(addrs) => Ok(addrs.iter().map(|addr| SocketAddr::new(addr.ip(), port)).collect()),
            Err((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }
}

impl Resolver {
    /// Returns the addresses, with `port`, found by a lookup after the call, or its error. Cancel
    /// safe: the lookup continues without the task, and serves the tasks of the next 10 s.
    pub(crate) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let called = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(latest) = state.latest.as_ref().filter(|latest| latest.at > called) {
            return latest.share(port);
        }
        loop {
            if state.running.is_empty() {
                let host = host.to_owned();
                state.running.spawn(async move { Ended::now(lookup(&host).await) });
            }
            let Some(joined) = state.running.join_next().await else {
                return Err(no_address(host));
            };
            let ended = joined.unwrap_or_else(|error| Ended::now(Err(io::Error::other(error))));
            if ended.at + MAX_AGE >= called {
                return state.latest.insert(ended).share(port);
            }
        }
    }
}

#[cfg(test)]
impl Resolver {
    /// A resolver with `lookup` as its first lookup.
    pub(crate) fn looking_up(
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> Self {
        let mut running = JoinSet::new();
        running.spawn(async { Ended::now(lookup.await) });
        Self { state: Mutex::new(Lookup { running, latest: None }) }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::mpsc;
    use std::sync::{Arc, Mutex as SyncMutex};

    use tokio::time::timeout;

    use super::*;

    fn addrs<const N: usize>(list: [&str; N]) -> Vec<SocketAddr> {
        list.map(|addr| addr.parse().unwrap()).to_vec()
    }

    #[test]
    fn ip_versions_take_turns() {
        let list = addrs(["[::1]:1", "[::2]:1", "127.0.0.1:1"]);
        assert_eq!(interleave(list), addrs(["[::1]:1", "127.0.0.1:1", "[::2]:1"]));
        assert_eq!(interleave(Vec::new()), []);
    }

    #[tokio::test(start_paused = true)]
    async fn next_address_is_tried_after_250_ms_or_a_failure() {
        let list = addrs(["[::1]:1", "[::2]:1", "127.0.0.1:1", "127.0.0.2:1"]);
        let (start, starts) = (Instant::now(), Arc::new(SyncMutex::new(Vec::new())));
        let attempt = |addr: SocketAddr| {
            starts.lock().unwrap().push((addr, start.elapsed().as_millis()));
            async move {
                match addr.to_string().as_str() {
                    "[::2]:1" => Err(io::ErrorKind::ConnectionRefused.into()),
                    "127.0.0.2:1" => Ok(addr),
                    _ => pending().await,
                }
            }
        };
        let connected = timeout(Duration::from_secs(60), connect_first(list, attempt)).await;
        assert_eq!(connected.unwrap().unwrap(), "127.0.0.2:1".parse().unwrap());
        let times = [("[::1]:1", 0), ("127.0.0.1:1", 250), ("[::2]:1", 500), ("127.0.0.2:1", 500)];
        let times = times.map(|(addr, time)| (addr.parse().unwrap(), time));
        assert_eq!(*starts.lock().unwrap(), times);
    }

    #[tokio::test(start_paused = true)]
    async fn error_of_the_last_address_is_returned_once_all_have_failed() {
        let attempt =
            |addr: SocketAddr| async move { Err::<(), _>(io::Error::other(addr.ip().to_string())) };
        let error =
            connect_first(addrs(["127.0.0.1:1", "127.0.0.2:1"]), attempt).await.unwrap_err();
        assert_eq!(error.to_string(), "127.0.0.2");
        let error = connect_first(Vec::new(), attempt).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn result_without_a_waiting_task_is_valid_for_ten_seconds() {
        for (age, expected) in [(10, "192.0.2.1"), (11, "192.0.2.2")] {
            let old = addrs(["192.0.2.1:0"]);
            let resolver = Resolver::looking_up(async { Ok(old) });
            sleep(Duration::from_secs(age)).await;
            let found = resolver.lookup("192.0.2.2", 1).await.unwrap();
            assert_eq!(found, [SocketAddr::new(expected.parse().unwrap(), 1)], "{age} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_wait_share_an_error_too() {
        let resolver = Resolver::looking_up(async {
            sleep(Duration::from_secs(1)).await;
            Err(io::ErrorKind::TimedOut.into())
        });
        let (one, two) =
            tokio::join!(resolver.lookup("192.0.2.1", 1), resolver.lookup("192.0.2.1", 1));
        assert_eq!([one, two].map(|error| error.unwrap_err().kind()), [io::ErrorKind::TimedOut; 2]);
    }

    #[test]
    fn lookup_goes_on_when_a_task_gives_up_and_serves_the_next_one() {
        let (release, blocked) = mpsc::channel::<()>();
        // Lookups wait for the thread, which is busy.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let blocker = tokio::task::spawn_blocking(move || blocked.recv());
            let resolver = Resolver::default();
            for _ in 0..2 {
                let lookup = resolver.lookup("localhost", 1);
                assert!(timeout(Duration::from_millis(1), lookup).await.is_err());
                assert_eq!(resolver.state.lock().await.running.len(), 1);
            }
            drop(release);
            assert!(blocker.await.unwrap().is_err());
            let (one, two) =
                tokio::join!(resolver.lookup("localhost", 1), resolver.lookup("localhost", 1));
            assert!(one.unwrap().iter().all(|addr| addr.ip().is_loopback()));
            assert!(two.is_ok());
        });
    }
}
