//! One side gives up a connection after the peer has closed its half, or while its reader pauses.

use std::cell::Cell;
use std::io::ErrorKind;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::fixtures::{MINUTE, Pair, SECOND, SERVER, cause, pattern};
use crate::config::Config;
use crate::error::ConnectionError;
use crate::stream::KcpStream;
use crate::testkit::link::{CERTAIN, LinkConfig};
use crate::testkit::rng::Rng;

fn lost() -> LinkConfig {
    LinkConfig { loss: CERTAIN, ..LinkConfig::delay(10_000) }
}

/// The client closes its half, then the path fails for a second longer than the server lingers.
fn outage_behind_a_half_close(has_data: bool, drops: bool) {
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    world.finish(SECOND, async {
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    });
    world.run_for(SECOND);
    world.set_path(lost());
    if has_data {
        server.try_write(b"answer").unwrap();
    }
    if drops {
        drop(server);
    } else {
        world.spawn(async move {
            let result = server.shutdown().await.map_err(|error| cause(&error));
            let given_up = Err(Some(ConnectionError::LingerTimeout));
            assert_eq!(result, if has_data { given_up } else { Ok(()) });
            std::future::pending::<()>().await;
            drop(server);
        });
    }
    world.run_for(Config::new().linger + SECOND);
    world.set_path(LinkConfig::delay(10_000));
    world.run_for(2 * SECOND);
    let end = client.try_read(&mut [0; 1]).map_err(|error| cause(&error));
    let gives_up = has_data || drops;
    assert_eq!(end, if gives_up { Err(Some(ConnectionError::Reset)) } else { Ok(0) });
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.current, 0, "{has_data} {drops}");
}

/// Rule: W-67.
#[test]
fn half_closed_side_learns_that_the_other_one_has_given_up() {
    for has_data in [true, false] {
        for drops in [true, false] {
            println!("data: {has_data}, drops: {drops}");
            outage_behind_a_half_close(has_data, drops);
        }
    }
}

/// The FIN left and was acknowledged, but no acknowledgement arrived.
/// Rules: W-68, W-96.
#[test]
fn time_wait_answers_the_pings_of_a_side_that_has_closed_until_it_has_our_fin() {
    let Pair { mut world, listener, mut client, server, .. } = Pair::plain();
    world.finish(SECOND, client.shutdown()).unwrap();
    world.run_for(SECOND);
    world.set_path(lost());
    drop(server);
    // Longer than the RST is retransmitted.
    world.run_for(Config::new().linger + 12 * SECOND);
    assert_eq!(listener.stats().connections.current, 0);
    world.set_path(LinkConfig::delay(10_000));
    // A keepalive comes each 16 s.
    world.run_for(17 * SECOND);
    let end = client.try_read(&mut [0; 1]).map_err(|error| cause(&error));
    assert_eq!(end, Err(Some(ConnectionError::Reset)));
}

/// The next action of one side's application.
fn step(rng: &mut Rng, stream: &mut Option<KcpStream>) {
    let Some(mut open) = stream.take() else { return };
    match rng.below(4) {
        0 => {}
        1 => {
            let mut data = vec![7; rng.below(20_000) as usize];
            while let Ok(1..) = open.try_read(&mut data) {}
            drop(open.try_write(&data));
        }
        2 => {
            // The test does not wait for it.
            let mut cx = Context::from_waker(Waker::noop());
            let _ = Pin::new(&mut open).poll_shutdown(&mut cx);
        }
        _ => return,
    }
    *stream = Some(open);
}

/// Whether a side whose peer has closed or ended has read the end or an error.
fn has_read_end(stream: &mut Option<KcpStream>) -> bool {
    let Some(stream) = stream else { return true };
    let mut buf = [0; 4_096];
    loop {
        match stream.try_read(&mut buf) {
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Half closes, writes, outages of at most a second longer than `linger`, and drops, in any order. Two
/// seconds after the path is good again, each side whose peer has closed, dropped or given up has read the
/// end or an error.
#[test]
fn both_sides_have_the_end_two_seconds_after_the_path_is_good_again() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let Pair { mut world, listener: _listener, endpoint: _endpoint, client, server } =
            Pair::seeded(seed, &Config::new(), &Config::new());
        let mut sides = [Some(client), Some(server)];
        let mut closed = [false; 2];
        for round in 0..=1 + rng.below(5) {
            let is_lost = round > 0 && rng.below(2) == 0;
            if is_lost {
                world.set_path(lost());
            }
            for (side, closed) in sides.iter_mut().zip(&mut closed) {
                step(&mut rng, side);
                *closed |= side.is_none();
                world.run_for(SECOND / 1_000 * (rng.below(40) as u32));
            }
            let outage = rng.pick(&[300, 3_000, 10_100, 11_000]);
            let wait = if is_lost { outage } else { rng.below(3_000) as u32 };
            world.run_for(SECOND / 1_000 * wait);
            world.set_path(LinkConfig::delay(10_000));
            world.run_for(2 * SECOND);
            for index in 0..2 {
                let ended = closed[1 - index]
                    || sides[1 - index].as_ref().is_some_and(|peer| peer.error().is_some());
                // Or by its own error.
                let has_ended = sides[index].as_ref().is_some_and(|side| side.error().is_some());
                assert!(!ended || has_ended || has_read_end(&mut sides[index]), "side {index}");
            }
        }
    }
}

/// A peer whose window closes soon.
fn small_buffers() -> Config {
    let mut config = Config::new().windows(1_024, 64);
    config.recv_buffer = 64 * 1_024;
    config
}

/// A closed window is probed, and a peer that answers is alive.
#[test]
fn every_byte_reaches_a_reader_that_pauses_for_longer_than_linger() {
    for drops in [false, true] {
        let config = Config::new().linger(3 * SECOND);
        let Pair { mut world, listener, endpoint, mut client, mut server } =
            Pair::new(&config, &small_buffers());
        let size = 3_000_000;
        world.finish(SECOND, async {
            // Windows and queues take a part at once, and the rest once the reader reads.
            let data = pattern(size);
            let mut written = 0;
            while let Ok(count @ 1..) = client.try_write(&data[written..]) {
                written += count;
            }
            let rest = async { client.write_all(&data[written..]).await.unwrap() };
            let mut got = vec![0; size - written];
            tokio::join!(rest, server.read_exact(&mut got)).1.unwrap();
            assert!(got == data[..got.len()]);
        });
        let done = Rc::new(Cell::new(false));
        let is_done = done.clone();
        world.spawn(async move {
            if !drops {
                client.shutdown().await.unwrap();
            }
            drop(client);
            endpoint.wait_idle().await;
            is_done.set(true);
        });
        for pause in [10, 0, 4] {
            world.run_for(SECOND * pause);
            assert!(!done.get(), "{pause}");
            world.finish(MINUTE, server.read_exact(&mut [0; 10_000])).unwrap();
        }
        world.run_for(30 * SECOND);
        let mut rest = Vec::new();
        world.finish(MINUTE, server.read_to_end(&mut rest)).unwrap();
        assert!(pattern(size).ends_with(&rest), "drops: {drops}");
        drop((server, listener));
        world.run_for(5 * SECOND);
        assert!(done.get());
    }
}

/// A dropped connection ends at the linger timeout if its peer is gone, or neither reads nor answers.
#[test]
fn dropped_connection_with_a_closed_window_ends_when_the_peer_is_gone() {
    let config = Config::new().linger(3 * SECOND);
    let Pair { mut world, endpoint, client, server, listener } =
        Pair::new(&config, &small_buffers());
    while let Ok(1..) = client.try_write(&[7; 10_000]) {
        world.run_for(SECOND / 100);
    }
    drop(client);
    world.run_for(20 * SECOND);
    assert_eq!(endpoint.stats().connections.current, 1, "the peer answers");
    world.crash(SERVER);
    world.run_for(4 * SECOND);
    world.finish(SECOND, endpoint.wait_idle());
    drop((server, listener));
}
