//! Recorded datagrams from other addresses, to keep a connection from migrating.

use std::time::Instant;

use kcpx::KcpStream;

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forwarder::{Conditions, Direction, Forwarder};
use crate::honest::echo;
use crate::rng::Rng;
use crate::running::Running;
use crate::server::{Process, Profile};
use crate::sources::Sources;

/// Replayed datagrams per second.
const RATE: u64 = 200;

/// The client's address changes during the attack.
pub(super) async fn candidates(setup: Setup) -> anyhow::Result<Row> {
    let profile = Profile { migration: true, ..Profile::sealed("aes-128-gcm") };
    let mut server = Process::start(profile)?;
    // The client sends to the first forwarder for ever, the server sees one of the other two.
    let one = Forwarder::start(server.addr, Conditions::recording()).await?;
    let other = Forwarder::start(server.addr, Conditions::default()).await?;
    let path = Forwarder::start(one.addr()?, Conditions::default()).await?;
    let mut observer = Observer::start(&server, false)?;
    let mut client = KcpStream::connect_with(path.addr()?, server.profile.config()?).await?;
    echo(&mut client, 3_000).await?;
    let (injector, to) = (one.injector(), server.addr);
    let (mut rng, mut sources) = (Rng::new(12), Sources::at_addresses(10, 4)?);
    let running = Running::start(RATE, move || {
        let recorded = injector.recorded(&mut rng);
        if let Some(recorded) = recorded.filter(|one| one.direction == Direction::ToServer) {
            sources.send(&recorded.datagram, to);
        }
    });
    observer.watch(&mut server, setup.time).await?;
    echo(&mut client, 3_000).await?;
    path.retarget(other.addr()?);
    let start = Instant::now();
    let migrated = echo(&mut client, 3_000).await;
    let took = start.elapsed();
    running.stop()?;
    let migrations = server.counters()?.migrations;
    drop(client);
    let row = Row::new(
        "recorded datagrams from four addresses while a client migrates, aes-128-gcm",
        "recorded_datagrams_from_many_addresses_keep_no_path_from_being_challenged",
    )
    .exactly("migrated and served", u64::from(migrated.is_ok()), 1)
    .exactly("migrations", migrations, 1)
    .at_most("milliseconds until its echo", took.as_secs_f64() * 1e3, 5_000.0);
    observer.finish(&server, row, 16).await
}
