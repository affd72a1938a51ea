//! Two clients with one conversation id under one key.

use std::time::Duration;

use kcpx::KcpStream;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::Setup;
use super::observer::Observer;
use super::report::Row;
use crate::forwarder::{Conditions, Direction, Forwarder};
use crate::honest::echo;
use crate::server::{Process, Profile};
use crate::sources::Sources;

/// The second client is rejected, and what is recorded of the first one, sent from other addresses,
/// opens and delivers nothing.
pub(super) async fn shared(setup: Setup) -> anyhow::Result<Row> {
    let mut server = Process::start(Profile::sealed("aes-128-gcm"))?;
    let path = Forwarder::start(server.addr, Conditions::recording()).await?;
    let mut observer = Observer::start(&server, false)?;
    let config = server.profile.config()?.conv(Some(5));
    let mut first = KcpStream::connect_with(path.addr()?, config.clone()).await?;
    echo(&mut first, 3_000).await?;
    let second = timeout(Duration::from_secs(1), async {
        let mut second = KcpStream::connect_with(server.addr, config).await?;
        second.write_all(b"hello").await?;
        echo(&mut second, 100).await
    });
    let served = matches!(second.await, Ok(Ok(())));
    let mut sources = Sources::at_addresses(10, 4)?;
    for recorded in path.injector().recording() {
        if recorded.direction == Direction::ToServer {
            sources.send(&recorded.datagram, server.addr);
        }
    }
    observer.watch(&mut server, setup.time.min(Duration::from_secs(1))).await?;
    echo(&mut first, 3_000).await?;
    let counters = server.counters()?;
    drop(first);
    let row = Row::new(
        "one conversation id for two clients, and replay, aes-128-gcm",
        "conv_of_another_address_under_the_same_key_is_refused",
    )
    .traffic(sources.traffic(), 1.0, 1.0)
    .exactly("bytes delivered", counters.delivered, 6_000)
    .exactly("second client served", u64::from(served), 0)
    .at_least("its datagrams rejected", counters.refused_conv_in_use as f64, 1.0);
    observer.finish(&server, row, 16).await
}
