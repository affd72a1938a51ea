//! Two hosts in network namespaces, with a virtual cable between them.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use tokio::time::timeout;

use crate::common::one_thread;

/// What one exchange takes at most.
const GUARD: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own.
struct Host(Sender<Job>);

impl Host {
    fn new() -> Result<Self, String> {
        let ((jobs, queue), (result, made)) = (channel::<Job>(), channel());
        thread::spawn(move || {
            let entered = unshare(CloneFlags::CLONE_NEWNET);
            result.send(entered.map_err(|error| format!("a network namespace: {error}"))).unwrap();
            queue.into_iter().for_each(|job| job());
        });
        made.recv().unwrap()?;
        Ok(Self(jobs))
    }

    /// Begins a job on this host.
    fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (result, done) = channel();
        self.0.send(Box::new(move || drop(result.send(job())))).unwrap();
        done
    }

    /// Runs `ip` on this host.
    fn ip(&self, arguments: &str) -> Result<(), String> {
        let arguments = arguments.to_owned();
        let ran = self.start(move || ip(&arguments)).recv().unwrap();
        ran.map(drop).map_err(|error| error.to_string())
    }

    /// The number of the thread, which names its namespace.
    fn id(&self) -> Result<String, String> {
        let link = self.start(|| fs::read_link("/proc/thread-self")).recv().unwrap();
        let link = link.map_err(|error| format!("/proc/thread-self: {error}"))?;
        Ok(link.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// A server with two addresses of each IP version and a client with one of each, both with one of the
/// link too.
pub(crate) struct Hosts {
    server: Host,
    client: Host,
}

impl Hosts {
    /// `None`, and why, where the system has no network namespaces or does not let the test have them.
    /// Whatever else fails does not pass for that.
    pub(crate) fn new() -> Option<Self> {
        let entered = thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET)).join().unwrap();
        if entered == Err(Errno::EPERM) || !Path::new("/proc/self/ns/net").exists() {
            println!("SKIPPED: a network namespace: {entered:?}");
            return None;
        }
        Some(Self::make().unwrap())
    }

    fn make() -> Result<Self, String> {
        let (server, client) = (Host::new()?, Host::new()?);
        server.ip(&format!("link add end type veth peer name end netns {}", client.id()?))?;
        let of_server = ["10.7.0.1/24", "10.7.0.2/24", "fd07::1/64", "fd07::2/64", "fe80::1/64"];
        for (host, addresses) in
            [(&server, &of_server[..]), (&client, &["10.7.0.9/24", "fd07::9/64", "fe80::9/64"])]
        {
            // No address of the link but these.
            host.ip("link set end addrgenmode none")?;
            for address in addresses {
                host.ip(&add(address))?;
            }
            host.ip("link set lo up")?;
            host.ip("link set end up")?;
        }
        Ok(Self { server, client })
    }

    /// Runs `client` on one host once `server`, on the other one, has said that it is ready.
    pub(crate) fn run<S: Future<Output = io::Result<()>>, C: Future<Output = io::Result<()>>>(
        &self,
        server: impl FnOnce(Sender<()>) -> S + Send + 'static,
        client: impl FnOnce() -> C + Send + 'static,
    ) -> Result<(), String> {
        let (ready, is_ready) = channel();
        let server = self.server.start(move || guarded(server(ready)));
        if is_ready.recv().is_err() {
            return Err(format!("the server has failed: {:?}", server.recv()));
        }
        let client = self.client.start(move || guarded(client()));
        let end = |result: Receiver<_>, who| result.recv().map_err(|_| format!("{who}: panic"));
        let (client, server) = (end(client, "client"), end(server, "server"));
        client?.map_err(|error| format!("client: {error}"))?;
        server?.map_err(|error| format!("server: {error}"))
    }
}

fn guarded(future: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    one_thread().block_on(async { timeout(GUARD, future).await? })
}

/// How `ip` gives this host an address: without the test for duplicates, in which it cannot be used.
pub(crate) fn add(address: &str) -> String {
    let nodad = if address.contains(':') { "nodad" } else { "" };
    format!("addr add {address} dev end {nodad}")
}

/// Runs `ip` in the namespace of this thread, and returns what it prints.
pub(crate) fn ip(arguments: &str) -> io::Result<String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(io::Error::other(format!("ip {arguments}: {}", text(&output.stderr))))
}

/// The number of the interface at the end of the cable.
pub(crate) fn scope() -> u32 {
    let links = ip("-o link show end").unwrap();
    links.split(':').next().unwrap().parse().unwrap()
}
