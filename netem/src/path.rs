//! The whole path: two ends and what carries packets between them.

use std::io::{self, PipeWriter};
use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::end::End;
use crate::link::Link;
use crate::pump::{Clock, Pump};
use crate::tun::Tun;

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
    /// Client to server and server to client, of each cable. Empty only while it ends.
    pumps: Vec<[Pump<L::Counts>; 2]>,
    stop: Option<PipeWriter>,
}

impl<L: Link> Path<L> {
    /// Makes a path: `up` carries packets from client to server, `down` from server to client.
    ///
    /// # Errors
    ///
    /// No permission, see [`allow`](crate::allow); no TUN device.
    pub fn new(up: L, down: L) -> anyhow::Result<Self> {
        Self::with_cables([[up, down]])
    }

    /// The same with up to eight cables, each with two directions. On cable N the ends have the addresses
    /// 10.77.N.1 and 10.77.N.2, and packets with such a source leave on this cable. The client reaches each
    /// address of the server over each cable.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); no policy routing.
    pub fn with_cables<const N: usize>(cables: [[L; 2]; N]) -> anyhow::Result<Self> {
        const { assert!(0 < N && N <= 8) };
        let on_cables = |address: Ipv4Addr| {
            let [a, b, _, d] = address.octets();
            (1..N as u8).map(|cable| Ipv4Addr::new(a, b, cable, d)).collect::<Vec<_>>()
        };
        let server = End::new(SERVER, &on_cables(SERVER))?;
        let client = End::new(CLIENT, &on_cables(CLIENT))?;
        let (stopped, stop) = io::pipe()?;
        let clock = Clock::new();
        let pump = |link, from: &Arc<Tun>, to: &Arc<Tun>, name| {
            let stopped = stopped.try_clone()?;
            Pump::start(link, from.clone(), to.clone(), stopped, clock.clone(), name)
        };
        let mut pumps = Vec::new();
        for ([up, down], (at_server, at_client)) in
            cables.into_iter().zip(server.devices().iter().zip(client.devices()))
        {
            let up = pump(up, at_client, at_server, "up")?;
            pumps.push([up, pump(down, at_server, at_client, "down")?]);
        }
        Ok(Self { server, client, pumps, stop: Some(stop) })
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

    /// Counters from client to server so far, on the first cable.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn client_to_server(&self) -> io::Result<L::Counts> {
        self.counts(0)
    }

    /// Counters from server to client so far, on the first cable.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn server_to_client(&self) -> io::Result<L::Counts> {
        self.counts(1)
    }

    fn counts(&self, direction: usize) -> io::Result<L::Counts> {
        let pump = self.pumps.first().and_then(|pumps| pumps.get(direction));
        pump.map_or_else(|| Err(io::Error::other("the path is gone")), Pump::counts)
    }
}

impl<L: Link> Drop for Path<L> {
    fn drop(&mut self) {
        // The threads see that their pipe has no writer any more.
        self.stop = None;
        std::mem::take(&mut self.pumps).into_iter().flatten().for_each(Pump::join);
    }
}
