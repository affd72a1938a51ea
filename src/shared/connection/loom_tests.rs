//! Loom models of a handle against the driver. A lost wake deadlocks, which loom reports.

use std::io;
use std::net::Ipv4Addr;
use std::task::Poll;

use bytes::Bytes;
use loom::thread;

use super::*;
use crate::shared::recv_queue::ReadBuffer;
use crate::util::sync::Sleeper;

fn connection(buffer: usize) -> (Arc<Shared>, Arc<Notifier>) {
    let notifier = Notifier::new();
    let mut config = Config::new();
    (config.send_buffer, config.recv_buffer) = (buffer, buffer);
    let id = ConnId { slot: 0, generation: 0 };
    let addr = (Ipv4Addr::LOCALHOST, 1).into();
    (Shared::new(id, 1, Path::to(addr), &config, notifier.clone()), notifier)
}

/// Parks like the driver until the connection has notified, and begins an exchange.
fn notified(shared: &Shared, notifier: &Notifier) {
    let (mut ids, mut settings) = (Vec::new(), Vec::new());
    Sleeper::new().block_on(|waker| {
        if notifier.drain(&mut ids, &mut settings) {
            Poll::Ready(())
        } else if notifier.register(waker) {
            waker.wake_by_ref();
            Poll::Pending
        } else {
            Poll::Pending
        }
    });
    shared.notifier.begin_exchange();
}

fn write(shared: &Shared, waker: &Waker) -> Poll<io::Result<usize>> {
    shared
        .send
        .poll_write_with(&mut Wait::Polled(waker), 1, true, |_, out| out.extend_from_slice(b"x"))
}

fn read(shared: &Shared, queue: &mut ReadBuffer) -> io::Result<Bytes> {
    Sleeper::new().block_on(|waker| {
        if queue.front().is_none() {
            std::task::ready!(shared.recv.poll_refill(queue, &mut Wait::Polled(waker)))?;
        }
        let chunk = queue.pop().unwrap();
        shared.recv.report_read(queue);
        Poll::Ready(Ok(chunk))
    })
}

/// A writer needs the whole capacity for each of two bytes. The driver takes them and calls `transmit`.
fn write_two_bytes(backlog: Backlog, transmit: fn(&Shared)) {
    loom::model(move || {
        let (shared, notifier) = connection(1);
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let written = Sleeper::new().block_on(|waker| write(&shared, waker));
                    assert_eq!(written.unwrap(), 1);
                }
            })
        };
        let mut out = VecDeque::new();
        while out.len() < 2 {
            notified(&shared, &notifier);
            let taken = shared.take_writes(10, 1, backlog, &mut out);
            taken.writers.for_each(Waker::wake);
            transmit(&shared);
        }
        writer.join().unwrap();
    });
}

/// The driver takes every write, and a writer that waits for capacity gets it.
#[test]
fn loom_write_against_take() {
    write_two_bytes(Backlog::NONE, |_| ());
}

/// A writer blocked by the backlog is woken when it has left.
#[test]
fn loom_write_against_backlog() {
    const NOTHING: Backlog = Backlog { limit: 1, unsent: 0 };
    write_two_bytes(NOTHING, |shared| shared.send.set_backlog(NOTHING).for_each(Waker::wake));
}

/// Two writers neither exceed the capacity nor lose a byte.
#[test]
fn loom_write_against_write() {
    loom::model(|| {
        let (shared, _notifier) = connection(1);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, Waker::noop()).is_ready())
        };
        let one = write(&shared, Waker::noop()).is_ready();
        assert!(one != other.join().unwrap(), "there is capacity for one of them");
    });
}

/// Small writes that join a chunk while the driver takes it are taken exactly once.
#[test]
fn loom_joined_writes_against_take() {
    loom::model(|| {
        let (shared, notifier) = connection(100);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || assert!(write(&shared, Waker::noop()).is_ready()))
        };
        assert!(write(&shared, Waker::noop()).is_ready());
        let mut out = VecDeque::new();
        let bytes = |out: &VecDeque<Outgoing>| -> Vec<u8> {
            out.iter().flat_map(|chunk| chunk.data.to_vec()).collect()
        };
        while bytes(&out).len() < 2 {
            notified(&shared, &notifier);
            shared.take_writes(10, 1, Backlog::NONE, &mut out);
        }
        other.join().unwrap();
        assert!(!shared.take_writes(10, 1, Backlog::NONE, &mut out).more);
        assert_eq!(bytes(&out), b"xx");
    });
}

/// A reader about to wait gets delivered data, and a driver that holds data back is notified of capacity.
#[test]
fn loom_deliver_against_read() {
    loom::model(|| {
        let (shared, notifier) = connection(1);
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut queue = ReadBuffer::default();
                assert_eq!(read(&shared, &mut queue).unwrap(), "a");
                assert_eq!(read(&shared, &mut queue).unwrap(), "b");
            })
        };
        let deliver = |chunk: &'static [u8], held_back| {
            let mut chunks = VecDeque::from([Bytes::from_static(chunk)]);
            shared.recv.deliver(&mut chunks, held_back).for_each(Waker::wake);
        };
        deliver(b"a", true);
        notified(&shared, &notifier);
        assert_eq!(shared.recv.available(usize::MAX), 1);
        deliver(b"b", false);
        reader.join().unwrap();
    });
}

/// The driver finds a full queue while the reader frees it.
#[test]
fn loom_available_against_read() {
    loom::model(|| {
        let (shared, notifier) = connection(1);
        drop(shared.recv.deliver(&mut VecDeque::from([Bytes::from_static(b"a")]), false));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut queue = ReadBuffer::default();
                assert_eq!(read(&shared, &mut queue).unwrap(), "a");
            })
        };
        if shared.recv.available(usize::MAX) == 0 {
            notified(&shared, &notifier);
            assert_eq!(shared.recv.available(usize::MAX), 1);
        }
        reader.join().unwrap();
    });
}

/// A write that succeeded comes before the close, and none after it.
#[test]
fn loom_close_against_write() {
    loom::model(|| {
        let (shared, notifier) = connection(100);
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, Waker::noop()).map(|result| result.is_ok()))
        };
        shared.send.close();
        let mut out = VecDeque::new();
        notified(&shared, &notifier);
        let taken = shared.take_writes(10, 1, Backlog::NONE, &mut out);
        assert!(taken.write_closed && !taken.more);
        let written = writer.join().unwrap() == Poll::Ready(true);
        assert!(!shared.take_writes(10, 1, Backlog::NONE, &mut VecDeque::new()).more);
        assert_eq!(out.len(), usize::from(written));
    });
}

/// A shutdown about to wait is woken when everything is acknowledged.
#[test]
fn loom_shutdown_against_drained() {
    loom::model(|| {
        let (shared, notifier) = connection(100);
        let closer = {
            let shared = shared.clone();
            thread::spawn(move || {
                Sleeper::new().block_on(|waker| shared.send.poll_shutdown(waker)).unwrap();
            })
        };
        notified(&shared, &notifier);
        assert!(shared.take_writes(10, 1, Backlog::NONE, &mut VecDeque::new()).write_closed);
        shared.send.set_drained().into_iter().for_each(Waker::wake);
        closer.join().unwrap();
    });
}

/// A delivery to handles that are being dropped leaves nothing behind, and the driver learns of the drop.
#[test]
fn loom_drop_against_deliver() {
    loom::model(|| {
        let (shared, notifier) = connection(100);
        let handles = [Handle::new(shared.clone()), Handle::new(shared.clone())];
        let droppers = handles.map(|handle| thread::spawn(move || drop(handle)));
        drop(shared.recv.deliver(&mut VecDeque::from([Bytes::from_static(b"a")]), false));
        notified(&shared, &notifier);
        assert!(shared.take_writes(10, 1, Backlog::NONE, &mut VecDeque::new()).detached);
        for dropper in droppers {
            dropper.join().unwrap();
        }
        assert!(shared.recv.clear().is_empty());
    });
}

/// An exchange that sees the drop has seen every write before it: otherwise a FIN could overtake the last
/// bytes.
#[test]
fn loom_write_and_drop_against_take() {
    loom::model(|| {
        let (shared, _notifier) = connection(100);
        let handle = Handle::new(shared.clone());
        let dropper = thread::spawn(move || {
            assert!(write(&handle, Waker::noop()).is_ready());
            drop(handle);
        });
        shared.notifier.begin_exchange();
        let mut out = VecDeque::new();
        let taken = shared.take_writes(10, 1, Backlog::NONE, &mut out);
        assert!(!taken.detached || out.len() == 1, "the write came before the drop");
        dropper.join().unwrap();
    });
}

/// The end of a connection wakes a reader and a writer about to wait.
#[test]
fn loom_end_against_waiting() {
    loom::model(|| {
        let (shared, _notifier) = connection(1);
        assert!(write(&shared, Waker::noop()).is_ready());
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || read(&shared, &mut ReadBuffer::default()).unwrap_err())
        };
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                Sleeper::new().block_on(|waker| write(&shared, waker)).unwrap_err()
            })
        };
        shared.end(ConnectionError::Reset, false).for_each(Waker::wake);
        assert_eq!(reader.join().unwrap().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(writer.join().unwrap().kind(), io::ErrorKind::ConnectionReset);
    });
}

/// Spawns a future that waits for the end of the peer's stream.
fn waits_for_the_end(shared: &Arc<Shared>) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || {
        let mut waiter = shared.recv.waiter();
        Sleeper::new().block_on(|waker| {
            let mut wait = Wait::Future(&mut waiter, waker);
            if shared.recv.is_closed(&mut wait) { Poll::Ready(()) } else { Poll::Pending }
        });
    })
}

/// The end of the stream wakes two futures of one handle, in any order of registration.
#[test]
fn loom_end_of_stream_against_two_futures() {
    loom::model(|| {
        let (shared, _notifier) = connection(100);
        let readers = [(); 2].map(|()| waits_for_the_end(&shared));
        shared.recv.set_eof().for_each(Waker::wake);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// Dropping a future during a wake leaves the wakes of other tasks alone.
#[test]
fn loom_drop_of_a_future_against_wake() {
    loom::model(|| {
        let (shared, _notifier) = connection(100);
        let stays = waits_for_the_end(&shared);
        let leaves = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut waiter = shared.recv.waiter();
                shared.recv.is_closed(&mut Wait::Future(&mut waiter, Waker::noop()));
            })
        };
        shared.recv.set_eof().for_each(Waker::wake);
        stays.join().unwrap();
        leaves.join().unwrap();
    });
}
