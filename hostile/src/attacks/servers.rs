//! Two servers that are made to talk to each other.

use std::time::Duration;

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forge;
use crate::forwarder::{Conditions, Direction, Forwarder};
use crate::rng::Rng;
use crate::running::Running;
use crate::server::{Process, Profile, Service};

/// Connections that are forged per second.
const RATE: u64 = 200;
/// After the last one, all have ended.
const QUIET_AFTER: Duration = Duration::from_millis(1_500);

/// Initial segments to both, each in the name of the other one.
pub(super) async fn talk(setup: Setup) -> anyhow::Result<Row> {
    let mut one = Process::start(Profile::new(Service::Echo))?;
    let mut other = Process::start(Profile::new(Service::Echo))?;
    let path = Forwarder::between(one.addr, other.addr, Conditions::default()).await?;
    let injector = path.injector();
    let mut observer = Observer::start(&one, false)?;
    let (mut rng, forging) = (Rng::new(10), injector.clone());
    let running = Running::start(RATE, move || {
        let datagram = match rng.below(2) {
            0 => forge::initial(rng.next_u32(), b"hello"),
            _ => forge::initial_without_data(rng.next_u32(), rng.next_u32()),
        };
        forging.inject(Direction::ToServer, &datagram);
        forging.inject(Direction::ToClient, &datagram);
    });
    observer.watch(&mut one, setup.time).await?;
    let forged = 2 * running.stop()?;
    observer.watch(&mut one, QUIET_AFTER).await?;
    let (to_one, to_other) = injector.passed();
    let left = one.counters()?.current_connections + other.counters()?.current_connections;
    observer.watch(&mut one, Duration::from_millis(500)).await?;
    let (later_to_one, later_to_other) = injector.passed();
    let test = "connection_that_both_ends_accepted_ends_at_once";
    let row = Row::new("initial segments to two servers in each other's name", test)
        .datagrams((to_one + to_other) as f64 / forged.max(1) as f64, 6.0)
        .exactly("connections left", left, 0)
        .exactly(
            "datagrams in the half second after that",
            later_to_one + later_to_other - to_one - to_other,
            0,
        );
    observer.finish(&one, row, 16).await
}
