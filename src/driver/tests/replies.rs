//! What leaves with what an application answers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pair::{CLIENT, Pair, SECOND, SERVER};
use super::world::addr;
use crate::config::{AckPolicy, Config};

/// Datagrams of the client and of the server for ten requests, with an answer if `answers`.
fn datagrams(policy: AckPolicy, answers: bool) -> [usize; 2] {
    let config = Config::new().ack_policy(policy);
    let Pair { mut world, mut client, mut server, endpoint: _endpoint, listener: _listener } =
        Pair::new(&config, &config);
    world.log();
    world.finish(SECOND, async {
        for _ in 0..10 {
            let mut bytes = [7; 64];
            client.write_all(&bytes).await.unwrap();
            server.read_exact(&mut bytes).await.unwrap();
            if answers {
                server.write_all(&bytes).await.unwrap();
                client.read_exact(&mut bytes).await.unwrap();
            }
        }
    });
    world.run_for(SECOND);
    let log = world.log();
    [CLIENT, SERVER].map(|host| log.iter().filter(|sent| sent.from.ip() == addr(host).ip()).count())
}

#[test]
fn an_answer_carries_the_acknowledgement() {
    // The client's last acknowledgement has nothing to go with.
    assert_eq!(datagrams(AckPolicy::EachTurn, true), [11, 10]);
    assert_eq!(datagrams(AckPolicy::EachTurn, false), [10, 10]);
}

#[test]
fn who_wants_each_datagram_acknowledged_at_once_gets_that() {
    assert_eq!(datagrams(AckPolicy::Immediate, true), [20, 20]);
}
