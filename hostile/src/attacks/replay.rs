//! Recorded datagrams, each alone and in order, from the same and from other addresses, during and
//! after the connection: no byte is delivered twice.

use std::net::SocketAddr;
use std::time::Duration;

use kcpx::KcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use super::observer::Observer;
use super::report::Row;
use crate::forwarder::{Conditions, Direction, Forwarder, Injector};
use crate::honest::echo;
use crate::server::{Process, Profile};
use crate::sources::Sources;

/// Messages before and after the first replay.
const MESSAGES: usize = 30;
/// Bytes of a message; each is echoed before the next one.
const MESSAGE: usize = 2_000;

/// The connection loses some, initial segments too, so that transmissions are recorded that the server
/// has not seen.
pub(super) async fn everything(cipher: &'static str) -> anyhow::Result<Row> {
    let mut server = Process::start(Profile::sealed(cipher))?;
    let conditions = Conditions { loss_permille: 100, lose_first: 2, ..Conditions::recording() };
    let path = Forwarder::start(server.addr, conditions).await?;
    let mut observer = Observer::start(&server, false)?;
    let mut replayer = Replayer {
        injector: path.injector(),
        sources: Sources::at_addresses(10, 4)?,
        server: server.addr,
        injected: 0,
    };
    let mut client = KcpStream::connect_with(path.addr()?, server.profile.config()?).await?;
    for _ in 0..MESSAGES {
        echo(&mut client, MESSAGE).await?;
    }
    replayer.replay_all().await;
    for _ in 0..MESSAGES {
        echo(&mut client, MESSAGE).await?;
    }
    client.shutdown().await?;
    let ended = client.read(&mut [0; 16]).await? == 0;
    drop(client);
    observer.watch(&mut server, Duration::from_millis(300)).await?;
    let before = replayer.injector.passed();
    let (replayed, injected) = (replayer.sources.traffic(), replayer.injected);
    replayer.replay_all().await;
    observer.watch(&mut server, Duration::from_millis(100)).await?;
    let after = replayer.injector.passed();
    let counters = server.counters()?;
    let traffic = replayer.sources.traffic();
    let sent = traffic.sent - replayed.sent + replayer.injected - injected;
    let received = traffic.received - replayed.received + after.1 - before.1;
    let row = Row::new(
        format!("{} recorded datagrams replayed, {cipher}", traffic.sent + replayer.injected),
        "replayed_datagrams_deliver_nothing_again_under_any_cipher",
    )
    .datagrams(received as f64 / sent as f64, 1.0)
    .exactly("bytes delivered", counters.delivered, (2 * MESSAGES * MESSAGE) as u64)
    .exactly("connections accepted", counters.accepted, 1)
    .exactly("closed", u64::from(ended), 1);
    observer.finish(&server, row, 16).await
}

/// Sends recorded datagrams again.
struct Replayer {
    injector: Injector,
    sources: Sources,
    server: SocketAddr,
    /// Datagrams that were sent again to the server from the client's address.
    injected: u64,
}

impl Replayer {
    /// Each alone, then all in order; to both ends from each other's address, and to the server from
    /// four others.
    async fn replay_all(&mut self) {
        let recording = self.injector.recording();
        for alone in [true, false] {
            for recorded in &recording {
                self.injector.inject(recorded.direction, &recorded.datagram);
                if recorded.direction == Direction::ToServer {
                    self.injected += 1;
                    self.sources.send(&recorded.datagram, self.server);
                }
                if alone {
                    sleep(Duration::from_millis(1)).await;
                } else {
                    tokio::task::yield_now().await;
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
