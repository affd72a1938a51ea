//! Two hosts in network namespaces, connected by virtual Ethernet.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kcpx_skip::skip;
use tokio::time::timeout;

use crate::common::host::{Host, run};
use crate::common::one_thread;

/// Limit for one exchange.
const GUARD: Duration = Duration::from_secs(30);

/// A server with two addresses of each IP version, and a client with one of each. Both also have a link-local
/// address.
pub(crate) struct Hosts {
    server: Host,
    client: Host,
}

impl Hosts {
    /// Returns `None` and prints the reason if the system lacks namespaces or forbids them. Later failures
    /// panic.
    pub(crate) fn new() -> Option<Self> {
        let of_link = ["ip link set end addrgenmode none", "ip addr add fd07::1/64 dev end nodad"];
        if let Err(reason) = Host::probe(&of_link) {
            skip(reason);
            return None;
        }
        Some(Self::make().unwrap())
    }

    fn make() -> Result<Self, String> {
        let (server, client) = (Host::new()?, Host::new()?);
        server.run(&format!("ip link add end type veth peer name end netns {}", client.id()?))?;
        let of_server = ["10.7.0.1/24", "10.7.0.2/24", "fd07::1/64", "fd07::2/64", "fe80::1/64"];
        for (host, addresses) in
            [(&server, &of_server[..]), (&client, &["10.7.0.9/24", "fd07::9/64", "fe80::9/64"])]
        {
            // The kernel adds no link-local address.
            host.run("ip link set end addrgenmode none")?;
            for address in addresses {
                host.run(&format!("ip {}", add(address)))?;
            }
            host.run("ip link set lo up")?;
            host.run("ip link set end up")?;
        }
        Ok(Self { server, client })
    }

    /// Runs `server` on one host, and `client` on the other once the server is ready.
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

/// Arguments of `ip` that add an address. Without duplicate address detection, it is usable at once.
pub(crate) fn add(address: &str) -> String {
    let nodad = if address.contains(':') { "nodad" } else { "" };
    format!("addr add {address} dev end {nodad}")
}

/// Runs `ip` in this thread's namespace and returns its output.
pub(crate) fn ip(arguments: &str) -> io::Result<String> {
    run(&format!("ip {arguments}"))
}

/// Index of the interface `end`.
pub(crate) fn scope() -> u32 {
    let links = ip("-o link show end").unwrap();
    links.split(':').next().unwrap().parse().unwrap()
}
