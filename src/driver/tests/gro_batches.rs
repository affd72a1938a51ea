//! Datagrams of a GRO batch that are taken together leave traffic and statistics the same.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, pattern, read_pattern};
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, Config, Redundancy};
use crate::crypto::{Algorithm, Cipher};
use crate::fec::{FecConfig, FecFlag, fec_flag};
use crate::listener::KcpListener;
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;
use crate::util::sync::Arc;

/// Bytes that a client sends, and gets back if the connection lives long enough.
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

/// Settings of both sides.
fn stages(rng: &mut Rng) -> Config {
    let ciphers = [Algorithm::Null, Algorithm::Aes128Gcm, Algorithm::Aes128, Algorithm::None];
    let key = [7; 16];
    let mut config = Config::new().cipher(Cipher::new(rng.pick(&ciphers), &key).unwrap());
    config.replay_window = rng.pick(&[0, 10_000]);
    let layout = rng.pick(&[None, None, Some((10, 3)), Some((3, 2))]);
    match layout {
        Some((data, parity)) => {
            config.redundancy(Redundancy::Fec(FecConfig::new(data, parity).unwrap()))
        }
        None => config,
    }
}

fn config(rng: &mut Rng, stages: &Config, singly: bool) -> Config {
    let config = stages
        .clone()
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

/// Runs several connections of one socket with one server. Returns a hash of all traffic, the time of its
/// end, and the statistics of the server; whether there is a cipher; and the datagrams that the server has
/// taken together, without FEC and with.
fn run(seed: u64, singly: bool) -> ((u64, u64, String), bool, [usize; 2]) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed, path(&mut rng));
    let stages = stages(&mut rng);
    let server = config(&mut rng, &stages, singly);
    let listener = Arc::new(world.listener(1, &server));
    let endpoint = world.endpoint(2, &config(&mut rng, &stages, singly));
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
    let together = world.driver_of(1).counts.taken_together;
    let outcome = (world.hash(), world.elapsed(), format!("{:?}", listener.stats()));
    (outcome, stages.cipher.packet_cipher().is_some(), together)
}

#[test]
fn gro_batches_taken_together_change_nothing() {
    // Datagrams taken together: without and with a cipher, and each without and with FEC.
    let mut all = [[0; 2]; 2];
    for seed in 0..120 {
        let ((together, has_cipher, counts), (singly, _, none)) =
            (run(seed, false), run(seed, true));
        assert_eq!(together, singly, "seed {seed}");
        assert_eq!(none, [0, 0], "seed {seed}");
        for (sum, count) in all[usize::from(has_cipher)].iter_mut().zip(counts) {
            *sum += count;
        }
    }
    assert!(all.as_flattened().iter().all(|count| *count > 1_000), "{all:?}");
}

/// Sends a window from client to server. Copies that `alter` changes arrive in the same GRO batch. Returns
/// the statistics of the server before and after, and the datagrams of data.
fn with_altered_copies(
    config: &Config,
    alter: impl Fn(&mut Vec<u8>),
) -> (EndpointStats, EndpointStats, usize) {
    let len = 100_000;
    let Pair { mut world, mut client, mut server, listener, .. } = Pair::new(config, config);
    world.finish(MINUTE, async {
        client.write_all(&pattern(len)).await.unwrap();
        read_pattern(&mut server, len).await;
    });
    world.run_for(SECOND);
    let before = listener.stats();
    // Recorded, and lost.
    world.log();
    world.set_path(LinkConfig { loss: 1_000_000, ..LinkConfig::delay(1_000) });
    client.try_write(&pattern(len)[..30_000]).unwrap();
    world.run_ready();
    let mut sent = world.log();
    sent.retain(|sent| sent.from == addr(CLIENT) && sent.datagram.len() > 1_000);
    assert!(sent.len() >= 20, "{}", sent.len());
    // Nothing arrives before the batch.
    world.set_path(LinkConfig::delay(1_000));
    for (at, sent) in sent.iter().enumerate() {
        world.inject(addr(CLIENT), SERVER, &sent.datagram);
        if at % 5 == 3 {
            let mut copy = sent.datagram.clone();
            alter(&mut copy);
            world.inject(addr(CLIENT), SERVER, &copy);
        }
    }
    world.finish(SECOND, read_pattern(&mut server, 28_000));
    (before, listener.stats(), sent.len())
}

#[test]
fn forged_datagram_within_a_gro_batch_is_dropped_alone() {
    for algorithm in [Algorithm::Aes128Gcm, Algorithm::Aes128] {
        for fec in [None, Some(FecConfig::new(10, 3).unwrap())] {
            let mut config = Config::new().cipher(Cipher::new(algorithm, &[7; 16]).unwrap());
            config.kcp.redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
            let (before, after, sent) = with_altered_copies(&config, |copy| copy[300] ^= 1);
            let forged = (sent / 5) as u64;
            let dropped = after.dropped.checksum - before.dropped.checksum;
            assert!((forged..=forged + 1).contains(&dropped), "{dropped} of {forged}");
            assert_eq!(after.dropped.malformed, 0);
            let received = after.received.datagrams - before.received.datagrams;
            assert!(received >= sent as u64 + dropped);
        }
    }
}

#[test]
fn replayed_datagram_within_a_gro_batch_is_dropped_alone() {
    for fec in [None, Some(FecConfig::new(10, 3).unwrap())] {
        let aes = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
        let mut config = Config::new().cipher(aes);
        config.kcp.redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
        config.replay_window = 1_000;
        let (before, after, sent) = with_altered_copies(&config, |_| {});
        let replayed = (sent / 5) as u64;
        let dropped = after.dropped.replayed - before.dropped.replayed;
        assert!((replayed..=replayed + 1).contains(&dropped), "{dropped} of {replayed}");
        assert_eq!((after.dropped.checksum, after.dropped.malformed), (0, 0));
    }
}

#[test]
fn parity_recovers_the_loss_behind_datagrams_of_its_group_that_were_taken_together() {
    const DATA: usize = 10;
    let mut config = Config::new().windows(1_024, 1_024);
    config.kcp.redundancy = Redundancy::Fec(FecConfig::new(DATA, 3).unwrap());
    let Pair { mut world, mut client, mut server, listener, .. } = Pair::new(&config, &config);
    let len = 100_000;
    world.finish(MINUTE, async {
        client.write_all(&pattern(len)).await.unwrap();
        read_pattern(&mut server, len).await;
    });
    world.run_for(SECOND);
    let recovered = listener.stats().fec.recovered_shards;
    let together = world.driver_of(SERVER).counts.taken_together[1];
    // Recorded, and lost.
    world.log();
    world.set_path(LinkConfig { loss: 1_000_000, ..LinkConfig::delay(1_000) });
    client.try_write(&pattern(60_000)).unwrap();
    world.run_ready();
    let sent = world.log().into_iter().filter(|sent| sent.from == addr(CLIENT));
    let burst: Vec<_> = sent.map(|sent| sent.datagram).collect();
    world.set_path(LinkConfig::delay(1_000));
    // The last data of each group is lost for good.
    let kinds: Vec<_> = burst.iter().map(|datagram| fec_flag(datagram)).collect();
    let is_last = |at: usize| kinds[at..].starts_with(&[FecFlag::Data, FecFlag::Parity]);
    for (at, datagram) in burst.iter().enumerate().filter(|(at, _)| !is_last(*at)) {
        world.inject(addr(CLIENT), SERVER, datagram);
        assert!(matches!(kinds[at], FecFlag::Data | FecFlag::Parity));
    }
    let groups = (0..burst.len()).filter(|at| is_last(*at)).count();
    assert!(groups >= 3, "{kinds:?}");
    world.run_for(Duration::from_millis(2));
    assert_eq!(listener.stats().fec.recovered_shards - recovered, groups as u64, "{kinds:?}");
    // The first of a batch is taken alone.
    let together = world.driver_of(SERVER).counts.taken_together[1] - together;
    assert!(together >= groups * (DATA - 3), "{together} in {groups} groups");
    world.finish(SECOND, read_pattern(&mut server, 60_000));
}
