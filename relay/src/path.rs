//! The whole path: two ends and what carries packets between them.

use std::io::{self, PipeWriter};
use std::net::Ipv4Addr;

use crate::end::End;
use crate::link::{Counts, Directions, Link};
use crate::pump::{Clock, Pump};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// A path between two network namespaces, which ends with its value.
///
/// The namespaces have no names and are those of threads and processes alone; paths exist side by
/// side without knowing of each other.
#[derive(Debug)]
pub struct Path {
    server: End,
    client: End,
    /// Client to server, server to client. Empty only while it ends.
    pumps: Option<[Pump; 2]>,
    stop: Option<PipeWriter>,
}

impl Path {
    /// Makes a path of these conditions: [`Directions`], or what makes them, such as
    /// [`Conditions`](crate::Conditions) for both. The seed decides what happens to the first, the
    /// second, ... packet of each direction.
    ///
    /// # Errors
    ///
    /// Conditions out of range; no permission, see [`allow`](crate::allow); no TUN device.
    pub fn new(directions: impl Into<Directions>, seed: u64) -> anyhow::Result<Self> {
        let directions = directions.into();
        directions.validate()?;
        let (server, client) = (End::new(SERVER)?, End::new(CLIENT)?);
        let [up, down] = Self::links(directions, seed);
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

    /// The two directions that a path of this seed has: client to server, server to client.
    #[must_use]
    pub fn links(directions: impl Into<Directions>, seed: u64) -> [Link; 2] {
        let Directions { up, down } = directions.into();
        // Directions must not share their losses; both seeds are a function of the one given.
        [Link::new(up, seed), Link::new(down, !seed)]
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

    /// What crossed from client to server so far.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn client_to_server(&self) -> io::Result<Counts> {
        self.counts(0)
    }

    /// What crossed from server to client so far.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn server_to_client(&self) -> io::Result<Counts> {
        self.counts(1)
    }

    fn counts(&self, direction: usize) -> io::Result<Counts> {
        let pump = self.pumps.as_ref().and_then(|pumps| pumps.get(direction));
        pump.map_or_else(|| Err(io::Error::other("the path is gone")), Pump::counts)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // The threads see that their pipe has no writer any more.
        self.stop = None;
        self.pumps.take().into_iter().flatten().for_each(Pump::join);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::link::{Conditions, Schedule};

    #[test]
    fn directions_have_their_own_conditions_and_draws() {
        let slow = Conditions { delay: Duration::from_millis(70), ..Conditions::default() };
        let lossy = Conditions { loss: 100.0, ..Conditions::default() };
        let both = Directions { up: slow.into(), down: Schedule::from(lossy) };
        let [mut up, mut down] = Path::links(both, 1);
        up.push(Duration::ZERO, &[0]);
        down.push(Duration::ZERO, &[0]);
        assert_eq!((up.next_due(), up.counts().lost), (Some(slow.delay), 0));
        assert_eq!((down.next_due(), down.counts().lost), (None, 1));

        // Conditions in common, but not the draws.
        let jitter = Duration::from_millis(20);
        let alike = Conditions { jitter, ..Conditions::default() };
        let [mut up, mut down] = Path::links(alike, 1);
        up.push(Duration::ZERO, &[0]);
        down.push(Duration::ZERO, &[0]);
        let range = alike.delay..=alike.delay + jitter;
        assert!(up.next_due().is_some_and(|due| range.contains(&due)));
        assert!(down.next_due().is_some_and(|due| range.contains(&due)));
        assert_ne!(up.next_due(), down.next_due());
    }
}
