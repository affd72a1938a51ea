//! The whole path: conditions of both directions between two ends.

use std::io;

use kcpx_netem::End;

use crate::link::{Counts, Directions, Link, QueueDelays};

/// A path between two network namespaces, which ends with its value.
///
/// The namespaces have no names and belong to threads and processes alone; paths exist side by side
/// without knowing of each other.
#[derive(Debug)]
pub struct Path {
    path: kcpx_netem::Path<Link>,
    /// Client to server, server to client.
    queue_delays: [QueueDelays; 2],
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
        let [up, down] = Self::links(directions, seed);
        let queue_delays = [up.queue_delays(), down.queue_delays()];
        Ok(Self { path: kcpx_netem::Path::new(up, down)?, queue_delays })
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
        self.path.server()
    }

    /// The end with the address 10.77.0.2.
    #[must_use]
    pub fn client(&self) -> &End {
        self.path.client()
    }

    /// Counters from client to server so far.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn client_to_server(&self) -> io::Result<Counts> {
        self.path.client_to_server().map(|counts| self.with_delay(counts, 0))
    }

    /// Counters from server to client so far.
    ///
    /// # Errors
    ///
    /// When this direction failed and carries nothing any more.
    pub fn server_to_client(&self) -> io::Result<Counts> {
        self.path.server_to_client().map(|counts| self.with_delay(counts, 1))
    }

    fn with_delay(&self, counts: Counts, direction: usize) -> Counts {
        Counts { queue_delay: self.queue_delays[direction].summary(), ..counts }
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
