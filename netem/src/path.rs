//! The whole path: two ends and what carries packets between them.

use std::io::{self, PipeWriter};
use std::net::Ipv4Addr;

use crate::end::End;
use crate::link::Link;
use crate::pump::{Clock, Pump};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// A path between two network namespaces, which ends with its value.
///
/// The namespaces have no names and belong to threads and processes alone; paths exist side by side without
/// knowing of each other.
#[derive(Debug)]
pub struct Path<L: Link> {
    server: End,
    client: End,
    /// Client to server, server to client. Empty only while it ends.
    pumps: Option<[Pump<L::Counts>; 2]>,
    stop: Option<PipeWriter>,
}

impl<L: Link> Path<L> {
    /// Makes a path: `up` carries packets from client to server, `down` from server to client.
    ///
    /// # Errors
    ///
    /// No permission, see [`allow`](crate::allow); no TUN device.
    pub fn new(up: L, down: L) -> anyhow::Result<Self> {
        let (server, client) = (End::new(SERVER)?, End::new(CLIENT)?);
        let (stopped, stop) = io::pipe()?;
        let (at_server, at_client) = (server.device(), client.device());
        let clock = Clock::new();
        let pump = |link, from, to, stopped, name| {
            Pump::start(link, from, to, stopped, clock.clone(), name)
        };
        let up = pump(up, at_client.clone(), at_server.clone(), stopped.try_clone()?, "up")?;
        let down = pump(down, at_server, at_client, stopped, "down")?;
        Ok(Self { server, client, pumps: Some([up, down]), stop: Some(stop) })
    }

    /// The end with the address 10.77.0.1.
    #[must_use]
    pub fn server(&self) -> &End {
        &self.server
    }

    /// The end with the address 10.77.0.2.
    #[must_use]
    pub fn client(&self) -> &End {
        &self.client
    }

    /// Counters from client to server so far.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn client_to_server(&self) -> io::Result<L::Counts> {
        self.counts(0)
    }

    /// Counters from server to client so far.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn server_to_client(&self) -> io::Result<L::Counts> {
        self.counts(1)
    }

    fn counts(&self, direction: usize) -> io::Result<L::Counts> {
        let pump = self.pumps.as_ref().and_then(|pumps| pumps.get(direction));
        pump.map_or_else(|| Err(io::Error::other("the path is gone")), Pump::counts)
    }
}

impl<L: Link> Drop for Path<L> {
    fn drop(&mut self) {
        // The threads see that their pipe has no writer any more.
        self.stop = None;
        self.pumps.take().into_iter().flatten().for_each(Pump::join);
    }
}
