//! Datagrams of a GRO batch that are taken together: the traffic and the statistics are the same.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::SECOND;
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, Config};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;
use crate::util::sync::Arc;

/// Bytes that a client sends, and gets back if the connection lives so long.
const BYTES: usize = 300_000;

const CONNECTIONS: usize = 4;

/// A path on which the datagrams of one send arrive at one time.
fn path(rng: &mut Rng) -> LinkConfig {
    LinkConfig {
        delay: rng.pick(&[200, 2_000, 20_000]),
        loss: rng.pick(&[0, 1_000, 30_000]),
        duplicate: rng.pick(&[0, 20_000]),
        copies: 2,
        copy_delay: 5_000,
        corrupt: rng.pick(&[0, 10_000]),
        ..LinkConfig::default()
    }
}

fn config(rng: &mut Rng, singly: bool) -> Config {
    let config = Config::new()
        .windows(rng.pick(&[128, 1_024]), rng.pick(&[32, 128, 1_024]))
        .ack_policy(rng.pick(&[AckPolicy::PerBatch, AckPolicy::Interval]));
    // A filter sees each datagram by itself.
    if singly { config.packet_filter(|_, _| false) } else { config }
}

/// How a client ends its connection.
#[derive(Clone, Copy, Debug)]
enum End {
    Shutdown,
    Drop,
    Abort,
}

async fn client(mut stream: KcpStream, data: Vec<u8>, end: End) {
    let half = data.len() / 2;
    let (mut got, mut reader) = (vec![0; data.len()], vec![0; half]);
    let (mut read, mut write) = stream.split();
    let (written, read) =
        tokio::join!(write.write_all(&data[..half]), read.read_exact(&mut reader));
    written.unwrap();
    read.unwrap();
    assert!(reader == data[..half]);
    match end {
        End::Shutdown => {
            let (mut read, mut write) = stream.split();
            let send = async {
                write.write_all(&data[half..]).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let ((), read) = tokio::join!(send, read.read_exact(&mut got[half..]));
            read.unwrap();
            assert!(got[half..] == data[half..]);
        }
        // The rest is in flight.
        End::Drop => stream.write_all(&data[half..]).await.unwrap(),
        End::Abort => {
            stream.write_all(&data[half..]).await.unwrap();
            stream.abort();
        }
    }
}

/// Echoes until each connection has ended.
async fn serve(listener: Arc<KcpListener>) {
    let (mut handlers, mut accepted) = (Vec::new(), 0);
    poll_fn(|cx| {
        while let Poll::Ready(stream) = listener.poll_accept(cx) {
            accepted += 1;
            let (mut stream, _) = stream.unwrap();
            handlers.push(Box::pin(async move {
                let mut block = vec![0; 20_000];
                while let Ok(len @ 1..) = stream.read(&mut block).await
                    && stream.write_all(&block[..len]).await.is_ok()
                {}
            }));
        }
        handlers.retain_mut(|handler| handler.as_mut().poll(cx).is_pending());
        if accepted == CONNECTIONS && handlers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Runs several connections of one socket with one server. Returns a hash of all traffic, when it
/// has ended, and the statistics of the server.
fn run(seed: u64, singly: bool) -> (u64, u64, String) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed, path(&mut rng));
    let server = config(&mut rng, singly);
    let listener = Arc::new(world.listener(1, &server));
    let endpoint = world.endpoint(2, &config(&mut rng, singly));
    for _ in 0..CONNECTIONS {
        let (endpoint, end) = (endpoint.clone(), rng.pick(&[End::Shutdown, End::Drop, End::Abort]));
        let mut data = vec![0; BYTES];
        rng.fill(&mut data);
        world.spawn(async move {
            let stream = endpoint.connect(addr(1)).await.unwrap();
            client(stream, data, end).await;
        });
    }
    world.spawn(serve(listener.clone()));
    world.run(100 * SECOND);
    world.run_for(Duration::from_secs(5));
    (world.hash(), world.elapsed(), format!("{:?}", listener.stats()))
}

#[test]
fn gro_batches_taken_together_change_nothing() {
    for seed in 0..60 {
        assert_eq!(run(seed, false), run(seed, true), "seed {seed}");
    }
}
