//! `Shutdown::Drain` of a listener: the connections that it rejects and waits for, and its limits of time.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, cause, is_about, micros, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;
use crate::listener::{KcpListener, Shutdown};
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

const NEWCOMER: u8 = 9;

/// Begins to drain. The cell is true once the drain is done.
fn begin(world: &mut World, listener: &Rc<KcpListener>) -> Rc<Cell<bool>> {
    let done = Rc::new(Cell::new(false));
    let (listener, drained) = (Rc::clone(listener), Rc::clone(&done));
    world.spawn(async move {
        drained.set(listener.shutdown(Shutdown::Drain).await);
    });
    world.run_for(SECOND / 100);
    done
}

/// Runs until the drain is done, and returns the microseconds that it took.
fn finish(world: &mut World, done: &Cell<bool>) -> u64 {
    let began = world.elapsed();
    while !done.get() {
        assert!(world.elapsed() - began < 100_000_000, "drains for ever");
        world.run_for(SECOND / 100);
    }
    world.elapsed() - began
}

#[test]
fn drain_rejects_newcomers_and_waits_for_open_connections() {
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    let listener = Rc::new(listener);
    let done = begin(&mut world, &listener);
    let newcomer = world.waiting_endpoint(NEWCOMER, &Config::new());
    let error = world.finish(2 * SECOND, newcomer.connect(addr(SERVER))).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Refused));
    let error = world.finish(SECOND, listener.accept()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    world.run_for(2 * MINUTE);
    world.finish(SECOND, async {
        client.write_all(b"still").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
    });
    assert_eq!((done.get(), listener.endpoint().open_connections()), (false, 1));
    drop((client, server));
    assert!(finish(&mut world, &done) < 200_000);
    assert_eq!(listener.endpoint().open_connections(), 0);
}

#[test]
fn drain_aborts_connections_that_were_not_accepted() {
    let Pair { mut world, listener, client, server, endpoint } = Pair::plain();
    let mut second = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    world.finish(SECOND, second.write_all(b"hello")).unwrap();
    world.run_for(SECOND / 10);
    let listener = Rc::new(listener);
    let done = begin(&mut world, &listener);
    let error = world.finish(SECOND, second.read(&mut [0; 1])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    drop((client, server));
    finish(&mut world, &done);
}

fn read_end_and_shut_down(world: &mut World, server: &mut KcpStream) {
    world.finish(SECOND, async {
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        server.shutdown().await.unwrap();
    });
}

#[test]
fn drain_is_done_within_a_second_of_the_exit_of_the_last_client() {
    let Pair { mut world, listener, client: _client, mut server, .. } = Pair::plain();
    let listener = Rc::new(listener);
    let done = begin(&mut world, &listener);
    world.exit(CLIENT);
    read_end_and_shut_down(&mut world, &mut server);
    let rto = u64::try_from(server.stats().path.rto.as_micros()).unwrap();
    drop(server);
    let took = finish(&mut world, &done);
    let expected = 500_000.max(8 * rto);
    assert!((expected - 20_000..expected + 20_000).contains(&took), "{took}, RTO {rto}");
    assert!(took < 1_000_000);
}

#[test]
fn drain_waits_eight_rtos_for_the_last_acknowledgement_but_not_beyond_linger() {
    for (delay, linger) in [(100, 30 * SECOND), (100, SECOND), (10, SECOND / 5)] {
        let mut config = Config::new();
        config.linger = linger;
        let world = World::new(1, LinkConfig::delay(delay * 1_000));
        let Pair { mut world, listener, client: _client, mut server, .. } =
            Pair::on(world, &Config::new(), &config);
        let listener = Rc::new(listener);
        let done = begin(&mut world, &listener);
        world.exit(CLIENT);
        read_end_and_shut_down(&mut world, &mut server);
        let rto = server.stats().path.rto;
        drop(server);
        let expected = micros((8 * rto).max(SECOND / 2).min(linger));
        let took = finish(&mut world, &done);
        let around = expected - 20_000..expected + 20_000;
        assert!(around.contains(&took), "{took} for {expected}, RTO {rto:?}");
    }
}

/// A RST is valid only with a number of the peer. A silent peer gives it in answer to the first RST.
#[test]
fn drain_waits_until_silent_clients_are_reset_on_a_lossy_path() {
    for seed in 0..20 {
        let lossy = LinkConfig { loss: 50_000, ..LinkConfig::delay(10_000) };
        let mut world = World::new(seed, lossy);
        let listener = Rc::new(world.listener(SERVER, &Config::new()));
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        let mut client = world.finish(MINUTE, endpoint.connect(addr(SERVER))).unwrap();
        // It is sent no RST until its address is validated.
        world.run_for(5 * SECOND);
        let done = begin(&mut world, &listener);
        finish(&mut world, &done);
        // The process of the listener ends.
        world.crash(SERVER);
        let error = world.finish(SECOND, client.read(&mut [0; 1])).unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::Reset), "seed {seed}");
    }
}

/// Delivery includes the end of the stream.
#[test]
fn drain_waits_until_the_last_client_has_everything_on_a_lossy_path() {
    for seed in 0..20 {
        let Pair { mut world, listener, mut client, mut server, .. } =
            Pair::seeded(seed, &Config::new(), &Config::new());
        world.set_path(LinkConfig { loss: 200_000, ..LinkConfig::delay(10_000) });
        let listener = Rc::new(listener);
        let done = begin(&mut world, &listener);
        let received = world.finish(MINUTE, async {
            let ask = async {
                client.shutdown().await.unwrap();
                let mut received = Vec::new();
                client.read_to_end(&mut received).await.map(|_| received)
            };
            let answer = async {
                assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
                server.write_all(&[7; 5_000]).await.unwrap();
                drop(server);
            };
            tokio::join!(ask, answer).0
        });
        assert_eq!(received.unwrap(), [7; 5_000], "seed {seed}");
        finish(&mut world, &done);
    }
}

#[test]
fn drain_waits_for_bytes_that_are_not_acknowledged() {
    let Pair { mut world, listener, client: _client, mut server, .. } = Pair::plain();
    let listener = Rc::new(listener);
    let done = begin(&mut world, &listener);
    world.crash(CLIENT);
    world.finish(SECOND, server.write_all(b"the end")).unwrap();
    drop(server);
    assert!(is_about(finish(&mut world, &done), Config::new().linger));
}

#[test]
fn cancelled_drain_can_be_called_again() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    world.finish(SECOND, async {
        let mut drain = pin!(listener.shutdown(Shutdown::Drain));
        assert!(poll_fn(|cx| Poll::Ready(drain.as_mut().poll(cx).is_pending())).await);
    });
    let listener = Rc::new(listener);
    let done = begin(&mut world, &listener);
    assert!(!done.get());
    drop((client, server));
    finish(&mut world, &done);
}

/// An attempt of a client that begins `began_ms` before the listener drains, while most admitted connections
/// wait for the validation of their peers. Returns how and after how many milliseconds it ends.
fn attempt_at_a_crowded_listener(config: &Config, began_ms: u32) -> (ConnectionError, u64) {
    let mut limited = Config::new();
    limited.limits.max_unvalidated = 8;
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = Rc::new(world.listener(SERVER, &limited));
    for host in 20..26 {
        world.port(host);
        world.inject(addr(host), SERVER, &push(7, 0, b"x"));
    }
    world.run_for(SECOND / 50);
    let retries = listener.stats().retry.sent;
    let endpoint = world.waiting_endpoint(NEWCOMER, config);
    let (sender, mut result) = tokio::sync::oneshot::channel();
    world.spawn(async move {
        let attempt = async {
            let mut stream = endpoint.connect(addr(SERVER)).await?;
            stream.write_all(b"hello").await?;
            stream.read(&mut [0; 1]).await
        };
        sender.send(cause(&attempt.await.unwrap_err())).unwrap();
    });
    world.run_for(SECOND * began_ms / 1_000);
    assert_eq!(listener.stats().retry.sent - retries, u64::from(began_ms > 0));
    let began = world.elapsed();
    let _done = begin(&mut world, &listener);
    let error = world.finish(MINUTE, &mut result).unwrap().expect("a connection error");
    (error, (world.elapsed() - began) / 1_000)
}

#[test]
fn drain_rejects_newcomers_whose_initial_segment_was_answered_with_a_retry() {
    for began_ms in [0, 25] {
        let (error, took) = attempt_at_a_crowded_listener(&Config::new(), began_ms);
        assert!(error == ConnectionError::Refused && took < 1_500, "{error} after {took} ms");
    }
    let (error, took) = attempt_at_a_crowded_listener(&Config::new().early_data(true), 25);
    assert!(error == ConnectionError::Reset && took < 4_000, "{error} after {took} ms");
}

/// Rules: W-83, W-84.
#[test]
fn crowded_listener_resets_unknown_connections_only_while_it_drains() {
    let mut config = Config::new();
    config.limits.max_unvalidated = 1;
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = Rc::new(world.listener(SERVER, &config));
    world.inject(addr(20), SERVER, &push(7, 0, b"x"));
    world.run_for(SECOND / 50);
    world.port(NEWCOMER);
    let (command, frg, sn) = (Command::Push, CONTROL_CAPABLE, Sn(0xC000_0000));
    let mut ping = Vec::new();
    Header { conv: 5, command, frg, wnd: 128, ts: Ts(77), sn, una: Sn(9), len: 0 }.emit(&mut ping);
    let answers = |world: &mut World| {
        world.inject(addr(NEWCOMER), SERVER, &ping);
        world.run_for(SECOND / 10);
        world.arrived(NEWCOMER).len()
    };
    assert_eq!((answers(&mut world), listener.stats().connections.unvalidated), (0, 1));
    let _done = begin(&mut world, &listener);
    assert_eq!((answers(&mut world), listener.stats().stateless_resets_sent), (1, 1));
}
