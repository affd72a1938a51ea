//! Random sweep: up to 16 clients echo data over paths with loss, reordering, duplication and
//! partitions.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::sim_world::{World, addr};
use crate::config::{AckPolicy, Config, CongestionControl, Redundancy, Timing, WritePolicy};
use crate::crypto::{Algorithm, Cipher, Key};
use crate::fec::FecConfig;
use crate::testkit::link::{GilbertElliott, LinkConfig};
use crate::testkit::rng::Rng;
use crate::testkit::seeds::Seeds;

/// Limit of virtual time for one run: the worst plan sends 16 x 100 KB each way over a path that loses a
/// fifth and is partitioned for five seconds.
const LIMIT: Duration = Duration::from_secs(600);

fn path(rng: &mut Rng) -> LinkConfig {
    let cut = rng.below(3_000_000);
    LinkConfig {
        delay: rng.spread(50, 200_000),
        jitter: rng.spread(1, 30_000),
        keep_order: rng.chance(500_000),
        loss: rng.pick(&[0, 1_000, 10_000, 50_000, 200_000]),
        burst: rng.pick(&[None, None, Some(GilbertElliott { to_bad: 5_000, to_good: 200_000 })]),
        burst_by_time: None,
        reorder: rng.pick(&[0, 0, 20_000, 200_000]),
        reorder_by: rng.spread(1_000, 100_000),
        duplicate: rng.pick(&[0, 0, 50_000]),
        copies: 3,
        copy_delay: 2_000_000,
        corrupt: rng.pick(&[0, 10_000]),
        rate: rng.pick(&[None, None, Some(2_000_000)]),
        queue: 100_000,
        policer: rng.chance(300_000),
        trace: None,
        queue_packets: 0,
        delay_trace: None,
        mtu: 1_500,
        fragments: false,
        partitions: if rng.chance(200_000) { vec![(cut, cut + 5_000_000)] } else { Vec::new() },
    }
}

pub(super) fn config(rng: &mut Rng) -> Config {
    let presets = [
        (Timing::NORMAL, CongestionControl::Bbr),
        (Timing::FAST, CongestionControl::Bbr),
        (Timing::FAST2, CongestionControl::Bbr),
        (Timing::FAST3, CongestionControl::Bbr),
        (Timing::KCP_DEFAULT, CongestionControl::Reno),
    ];
    let windows = [8, 32, 128, 1_024];
    let (timing, congestion) = rng.pick(&presets);
    let mut config = Config::new()
        .timing(timing)
        .congestion_control(congestion)
        .windows(rng.pick(&windows), rng.pick(&windows))
        .mtu(rng.pick(&[200, 576, 1_400]))
        .ack_policy(rng.pick(&[AckPolicy::PerBatch, AckPolicy::Interval, AckPolicy::Immediate]))
        .write_policy(rng.pick(&[WritePolicy::Immediate, WritePolicy::Delayed]))
        .linger(Duration::from_secs(60));
    config.duplicates = rng.pick(&[0, 0, 1]);
    config.send_buffer = rng.pick(&[1_000, 65_536, 262_144]);
    config.recv_buffer = rng.pick(&[1_000, 65_536, 262_144]);
    config
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    std::iter::repeat_with(|| rng.next().to_le_bytes()).flatten().take(len).collect()
}

/// Adds a cipher to both sides, and FEC to none, one or both.
fn add_stages(rng: &mut Rng, server: &mut Config, client: &mut Config) {
    let key = Key::derive("a passphrase", "a salt");
    let cipher = Cipher::from_name(rng.pick(Algorithm::ALL).name(), &key).unwrap();
    (server.cipher, client.cipher) = (cipher.clone(), cipher);
    let shapes = [None, Some((10, 3)), Some((3, 1)), Some((1, 1)), Some((2, 4)), Some((30, 15))];
    let mut fec = || {
        let shape = rng.pick(&shapes);
        let fec = shape.map(|(data, parity)| FecConfig::new(data, parity).unwrap());
        fec.map_or(Redundancy::Off, Redundancy::Fec)
    };
    (server.kcp.redundancy, client.kcp.redundancy) = (fec(), fec());
    client.replay_window = rng.pick(&[0, 1_000]);
}

/// One run. Returns a hash of all traffic and the virtual time in microseconds.
fn run(seed: u64, stages: bool) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let (path, mut server, mut client) = (path(&mut rng), config(&mut rng), config(&mut rng));
    if stages {
        add_stages(&mut rng, &mut server, &mut client);
    }
    let clients = u8::try_from(rng.range(1, 16)).unwrap();
    let mut world = World::new(seed, path);
    let listener = world.listener(1, &server);
    let done = Rc::new(RefCell::new(0));
    let lengths: Vec<usize> = (0..clients).map(|_| rng.spread(1, 100_000) as usize).collect();
    for (host, len) in (2..).zip(lengths.clone()) {
        let endpoint = world.endpoint(host, &client);
        let (data, done) = (pattern(seed ^ u64::from(host), len), done.clone());
        let step = rng.spread(1, 50_000) as usize;
        world.spawn(async move {
            let stream = endpoint.connect(addr(1)).await.unwrap();
            let (mut reader, mut writer) = stream.into_split();
            let mut got = vec![0; data.len()];
            let write = async {
                for piece in data.chunks(step) {
                    writer.write_all(piece).await.unwrap();
                }
                writer.flush().await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let read = async { reader.read_exact(&mut got).await.unwrap() };
            tokio::join!(write, read);
            assert!(got == data, "client {host} got other bytes than it sent");
            drop((reader, writer));
            endpoint.wait_idle().await;
            *done.borrow_mut() += 1;
        });
    }
    world.spawn(async move {
        let mut handlers: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        let mut accepted = 0;
        std::future::poll_fn(|cx| {
            while let std::task::Poll::Ready(stream) = listener.poll_accept(cx) {
                accepted += 1;
                let (mut stream, peer) = stream.unwrap();
                let host =
                    peer.ip().to_string().rsplit('.').next().unwrap().parse::<usize>().unwrap();
                let len = lengths[host - 2];
                handlers.push(Box::pin(async move {
                    let mut left = len;
                    while left > 0 {
                        let chunk = stream.read_chunk().await.unwrap();
                        left -= chunk.len();
                        stream.write_all(&chunk).await.unwrap();
                    }
                    // Dropped without `shutdown`: the endpoint delivers the rest.
                }));
            }
            handlers.retain_mut(|handler| handler.as_mut().poll(cx).is_pending());
            if accepted == lengths.len() && handlers.is_empty() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        assert_eq!(
            listener.stats().connections.passive_opens,
            lengths.len() as u64,
            "no connection is accepted twice"
        );
        listener.wait_idle().await;
    });
    world.run(LIMIT);
    assert_eq!(*done.borrow(), u64::from(clients));
    // No handle is left: every driver finishes after it has answered retransmissions in TIME-WAIT, or has
    // sent a RST for ten seconds because a FIN was not acknowledged.
    world.run_for(Duration::from_secs(13));
    assert!(world.drivers.iter().all(Option::is_none), "a driver outlived its users");
    (world.hash(), world.elapsed())
}

fn seeds(name: &str, range: std::ops::Range<u64>, stages: bool) {
    let seeds = Seeds::or(range);
    println!("{name}: {seeds:?}");
    for seed in seeds.iter() {
        let replay = format!(
            "KCP_TEST_SEED={seed} cargo test --lib driver::tests::lossy_network::{name} -- --nocapture"
        );
        let _guard = Replay(replay);
        run(seed, stages);
    }
}

/// Prints how to repeat a run that panics.
struct Replay(String);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("replay: {}", self.0);
        }
    }
}

#[test]
fn lossy_network_delivers_everything() {
    seeds("lossy_network_delivers_everything", 0..150, false);
}

#[test]
fn lossy_network_with_more_seeds_delivers_everything() {
    seeds("lossy_network_with_more_seeds_delivers_everything", 10_000..10_150, false);
}

#[test]
fn lossy_network_with_ciphers_and_fec_delivers_everything() {
    seeds("lossy_network_with_ciphers_and_fec_delivers_everything", 20_000..20_400, true);
}

#[test]
fn ping_before_an_mtu_probe_ends_no_unvalidated_connection() {
    run(30_172, true);
}

#[test]
fn simulation_with_one_seed_is_deterministic() {
    for (seed, stages) in [(3, false), (77, false), (10_020, false), (20_003, true)] {
        assert_eq!(run(seed, stages), run(seed, stages));
    }
}
