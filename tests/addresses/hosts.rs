//! Two hosts in network namespaces, with a virtual cable between them.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::time::timeout;

use crate::common::host::{Host, run, skip};
use crate::common::one_thread;

/// What one exchange takes at most.
const GUARD: Duration = Duration::from_secs(30);

/// A server with two addresses of each IP version and a client with one of each, both with one of the
/// link too.
pub(crate) struct Hosts {
    server: Host,
    client: Host,
}

impl Hosts {
    /// `None`, and why, where the system has no such hosts or does not let the test have them.
    /// Whatever fails later does not pass for that.
    pub(crate) fn new() -> Option<Self> {
        let of_link = ["ip link set end addrgenmode none", "ip addr add fd07::1/64 dev end nodad"];
        if let Err(reason) = Host::probe(&of_link) {
            skip(&reason);
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
            // No address of the link but these.
            host.run("ip link set end addrgenmode none")?;
            for address in addresses {
                host.run(&format!("ip {}", add(address)))?;
            }
            host.run("ip link set lo up")?;
            host.run("ip link set end up")?;
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
    run(&format!("ip {arguments}"))
}

/// The number of the interface at the end of the cable.
pub(crate) fn scope() -> u32 {
    let links = ip("-o link show end").unwrap();
    links.split(':').next().unwrap().parse().unwrap()
}
