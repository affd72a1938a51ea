//! `Shutdown::HandOver` of a listener: the clients of a socket that another process reads next.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use super::fixtures::{MINUTE, Pair, SECOND, SERVER, cause, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;
use crate::listener::{KcpListener, Shutdown};
use crate::testkit::link::LinkConfig;

const NEWCOMER: u8 = 9;

/// For the timer of `HandOver`, which never expires, since the runtime does not run on virtual time.
fn timer() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// Begins to hand over. The cell has the result once there is one.
fn begin(world: &mut World, listener: &Rc<KcpListener>) -> Rc<Cell<Option<bool>>> {
    let done = Rc::new(Cell::new(None));
    let (listener, ended) = (Rc::clone(listener), Rc::clone(&done));
    let how = Shutdown::HandOver { timeout: MINUTE };
    world.spawn(async move { ended.set(Some(listener.shutdown(how).await)) });
    world.run_for(SECOND / 100);
    done
}

#[test]
fn newcomer_during_a_handover_connects_to_the_next_process_within_a_second() {
    let timer = timer();
    let _guard = timer.enter();
    for config in [Config::new(), Config::new().early_data(true)] {
        for began_ms in [1, 90, 250, 400, 480] {
            let Pair { mut world, listener, client, server, .. } = Pair::plain();
            let listener = Rc::new(listener);
            let done = begin(&mut world, &listener);
            let newcomer = world.waiting_endpoint(NEWCOMER, &config);
            world.run_for(SECOND * began_ms / 1_000);
            let began = world.elapsed();
            let answer = Rc::new(Cell::new(0));
            let answered = Rc::clone(&answer);
            let asks = async move {
                let mut stream = newcomer.connect(addr(SERVER)).await.unwrap();
                stream.write_all(b"ask").await.unwrap();
                stream.read_exact(&mut [0; 6]).await.unwrap();
                answered.set(1);
            };
            world.spawn(asks);
            // A handover with a limit of 0.4 s that aborts, which takes 0.1 s.
            world.run_for(SECOND * (500 - began_ms) / 1_000);
            assert_eq!((done.get(), answer.get()), (None, 0));
            let refused = listener.stats();
            assert_eq!(refused.stateless_resets_sent, 0);
            assert!(refused.refused.no_listener > 0 && refused.connections.passive_opens == 1);
            world.crash(SERVER);
            drop((listener, client, server));
            let next = world.listener(SERVER, &Config::new());
            world.finish(SECOND, async {
                let (mut stream, _) = next.accept().await.unwrap();
                stream.read_exact(&mut [0; 3]).await.unwrap();
                stream.write_all(b"answer").await.unwrap();
            });
            world.run_for(SECOND / 10);
            assert_eq!(answer.get(), 1);
            // Includes the last tenth of a second above.
            let took = (world.elapsed() - began) / 1_000;
            println!("began {began_ms} ms after: served in {took} ms");
            assert!(took < 1_100, "{took} ms");
        }
    }
}

/// Rule: W-85.
#[test]
fn handover_ends_connections_in_order_and_answers_no_unknown_ping() {
    let timer = timer();
    let _guard = timer.enter();
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    world.finish(SECOND, server.write_all(b"the last")).unwrap();
    let listener = Rc::new(listener);
    let done = begin(&mut world, &listener);
    world.port(7);
    let conv = client.conv().wrapping_add(1);
    let (sn, una, ts) = (Sn(0xC000_0000), Sn(9), Ts(77));
    let mut ping = Vec::new();
    let frg = CONTROL_CAPABLE;
    Header { conv, command: Command::Push, frg, wnd: 128, ts, sn, una, len: 0 }.emit(&mut ping);
    let initial = {
        let (mut probe, sn, una) = (Vec::new(), Sn(9), Sn(0));
        let command = Command::WindowProbe;
        Header { conv, command, frg, wnd: 128, ts, sn, una, len: 0 }.emit(&mut probe);
        probe
    };
    for datagram in [&ping, &initial, &push(conv, 0, b"first"), &push(conv, 3, b"later")] {
        world.inject(addr(7), SERVER, datagram);
    }
    let received = world.finish(SECOND, async {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        drop(server);
        received
    });
    assert_eq!((received.as_slice(), world.arrived(7).len()), (b"the last".as_slice(), 0));
    world.run_for(SECOND / 2);
    assert_eq!(done.get(), Some(true));
    // The same while the listener that hands over is dropped.
    let endpoint = listener.endpoint().clone();
    drop(listener);
    world.inject(addr(7), SERVER, &initial);
    world.run_for(SECOND / 10);
    assert_eq!((world.arrived(7).len(), endpoint.stats().stateless_resets_sent), (0, 0));
}

/// The next process resets a connection that was not closed in order, once it is pinged.
#[test]
fn connection_that_missed_the_handover_is_reset_by_the_next_process() {
    let timer = timer();
    let _guard = timer.enter();
    let Pair { mut world, listener, mut client, server, .. } = Pair::plain();
    let listener = Rc::new(listener);
    world.set_path(LinkConfig { loss: 1_000_000, ..LinkConfig::delay(10_000) });
    begin(&mut world, &listener);
    world.run_for(SECOND / 2);
    world.crash(SERVER);
    drop((listener, server));
    world.set_path(LinkConfig::delay(10_000));
    let _next = world.listener(SERVER, &Config::new());
    world.finish(SECOND, client.write_all(b"are you there?")).unwrap();
    let error = world.finish(3 * SECOND, client.read(&mut [0; 1])).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
}
