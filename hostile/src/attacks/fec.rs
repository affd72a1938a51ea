//! Forged FEC packets with the address pair of a connection: recovery goes on.

use std::time::Duration;

use kcpx::fec::{FecFlag, fec_flag};

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forge;
use crate::forwarder::{Conditions, Direction, Forwarder, Injector};
use crate::honest::{self, Tally};
use crate::rng::Rng;
use crate::running::Running;
use crate::server::{Process, Profile, Service};

/// Forged packets per second; docs/threat-model.md, "Without a cipher".
const RATE: u64 = 10;
/// Bytes per second of the connection: parity comes before a retransmission.
const PACED: u64 = 2_500_000;

/// Recovered packets of 100 lost ones, with the forged packets and without.
pub(super) async fn forged_shards(setup: Setup) -> anyhow::Result<Row> {
    let profile = Profile { fec: true, ..Profile::new(Service::Echo) };
    let mut server = Process::start(profile)?;
    let delay = Duration::from_millis(20);
    let conditions =
        Conditions { loss_permille: 20, recording: 256, delay, ..Conditions::default() };
    let path = Forwarder::start(server.addr, conditions).await?;
    let mut observer = Observer::start(&server, true)?;
    let tally = Tally::new();
    let config = server.profile.config()?;
    let client =
        tokio::spawn(honest::paced("with FEC", path.addr()?, config, PACED, tally.clone()));
    let injector = path.injector();
    observer.watch(&mut server, Duration::from_secs(1)).await?;
    let clean = recovery(&mut observer, &mut server, &injector, setup.time).await?;
    let forging = injector.clone();
    let mut rng = Rng::new(13);
    let running = Running::start(RATE, move || {
        forging.inject(Direction::ToServer, &forged(&forging, &mut rng));
    });
    let attacked = recovery(&mut observer, &mut server, &injector, setup.time).await?;
    running.stop()?;
    client.abort();
    let count =
        |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    let row = Row::new(
        "10 forged FEC packets a second",
        "forged_shards_leave_four_fifths_of_the_recovery",
    )
    .at_least("% of lost packets recovered", attacked * 100.0, (clean.min(1.0) * 80.0).floor())
    .exactly("connections lost", count(&tally.lost), 0)
    .exactly("reads wrong", count(&tally.wrong), 0);
    observer.finish(&server, row, 16).await
}

/// Parity where data is due, data where parity is due, and either with any seqid.
fn forged(injector: &Injector, rng: &mut Rng) -> Vec<u8> {
    let current = injector.latest(Direction::ToServer, |datagram| {
        matches!(fec_flag(datagram), FecFlag::Data | FecFlag::Parity)
    });
    let current = current.and_then(|recorded| recorded.datagram.first_chunk().copied());
    let near = current.map(|seqid| u32::from_le_bytes(seqid).wrapping_add(rng.below(13) as u32));
    let seqid = near.filter(|_| rng.below(4) > 0).unwrap_or_else(|| rng.next_u32());
    // The layout is 10 and 3, groups begin with multiples of 13.
    let flag = if seqid % 13 < 10 { forge::FEC_PARITY } else { forge::FEC_DATA };
    let len = 24 + rng.below(1_300);
    forge::fec_packet(flag, seqid, &rng.bytes(len))
}

/// Recovered packets of those lost, over some time.
async fn recovery(
    observer: &mut Observer,
    server: &mut Process,
    injector: &Injector,
    time: Duration,
) -> anyhow::Result<f64> {
    let (lost, recovered) = (injector.lost_data_shards(), server.counters()?.recovered_shards);
    observer.watch(server, time).await?;
    let lost = injector.lost_data_shards() - lost;
    let recovered = server.counters()?.recovered_shards - recovered;
    Ok(recovered as f64 / lost.max(1) as f64)
}
