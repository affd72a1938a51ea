//! Every interleaving of a handle with the driver, by the model checker. A wake that gets lost
//! leaves a thread asleep for ever, which the model reports as a deadlock.

use std::io;
use std::net::Ipv4Addr;
use std::task::{Poll, Wake};

use bytes::Bytes;
use loom::sync::Notify;
use loom::thread;

use super::*;

/// A thread that waits for its waker.
pub(crate) struct Sleeper(std::sync::Arc<Flag>);

struct Flag(Notify);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(std::sync::Arc::new(Flag(Notify::new())))
    }

    pub(crate) fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    pub(crate) fn sleep(&self) {
        self.0.0.wait();
    }

    /// Polls until ready.
    fn block_on<T>(&self, mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
        let waker = self.waker();
        loop {
            match poll(&waker) {
                Poll::Ready(value) => return value,
                Poll::Pending => self.sleep(),
            }
        }
    }
}

fn conversation(buffer: usize) -> (Arc<Shared>, Arc<Mailbox>) {
    let mailbox = Mailbox::new();
    let mut config = Config::new();
    (config.send_buffer, config.recv_buffer) = (buffer, buffer);
    let id = ConnId { slot: 0, generation: 0 };
    let addr = (Ipv4Addr::LOCALHOST, 1).into();
    (Shared::new(id, 1, addr, &config, mailbox.clone()), mailbox)
}

/// Waits as the driver does until the conversation is in the mailbox, and begins to look at it.
fn called(shared: &Shared, mailbox: &Mailbox) {
    let (mut ids, mut commands) = (Vec::new(), Vec::new());
    Sleeper::new().block_on(|waker| {
        if mailbox.drain(&mut ids, &mut commands) {
            Poll::Ready(())
        } else if mailbox.register(waker) {
            waker.wake_by_ref();
            Poll::Pending
        } else {
            Poll::Pending
        }
    });
    shared.begin();
}

fn write(shared: &Shared, waker: &Waker) -> Poll<io::Result<usize>> {
    shared.poll_write_with(Some(waker), 1, |_| Bytes::from_static(b"x"))
}

/// Reads a chunk.
fn read(shared: &Shared, queue: &mut ReadQueue) -> io::Result<Bytes> {
    Sleeper::new().block_on(|waker| {
        if queue.front().is_none() {
            std::task::ready!(shared.poll_refill(queue, Some(waker)))?;
        }
        let chunk = queue.pop().unwrap();
        shared.settle(queue);
        Poll::Ready(Ok(chunk))
    })
}

/// The driver sees every write, and a writer that waits for room gets it.
#[test]
fn loom_write_against_take() {
    loom::model(|| {
        let (shared, mailbox) = conversation(1);
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
            called(&shared, &mailbox);
            let intake = shared.take_writes(10, 1, &mut out);
            intake.waker.into_iter().for_each(Waker::wake);
        }
        writer.join().unwrap();
    });
}

/// Two writers share the room without exceeding it or losing a byte.
#[test]
fn loom_write_against_write() {
    loom::model(|| {
        let (shared, _mailbox) = conversation(1);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, Waker::noop()).is_ready())
        };
        let one = write(&shared, Waker::noop()).is_ready();
        assert!(one != other.join().unwrap(), "there is room for one of them");
    });
}

/// A reader that is about to wait gets what is delivered, and a driver that holds something back
/// learns when there is room.
#[test]
fn loom_deliver_against_read() {
    loom::model(|| {
        let (shared, mailbox) = conversation(1);
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut queue = ReadQueue::default();
                assert_eq!(read(&shared, &mut queue).unwrap(), "a");
                assert_eq!(read(&shared, &mut queue).unwrap(), "b");
            })
        };
        let deliver = |chunk: &'static [u8], held_back| {
            let mut chunks = VecDeque::from([Bytes::from_static(chunk)]);
            shared.deliver(&mut chunks, held_back).into_iter().for_each(Waker::wake);
        };
        deliver(b"a", true);
        called(&shared, &mailbox);
        assert_eq!(shared.room(), 1);
        deliver(b"b", false);
        reader.join().unwrap();
    });
}

/// The driver finds no room while the reader makes it.
#[test]
fn loom_room_against_read() {
    loom::model(|| {
        let (shared, mailbox) = conversation(1);
        shared.deliver(&mut VecDeque::from([Bytes::from_static(b"a")]), false);
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut queue = ReadQueue::default();
                assert_eq!(read(&shared, &mut queue).unwrap(), "a");
            })
        };
        if shared.room() == 0 {
            called(&shared, &mailbox);
            assert_eq!(shared.room(), 1);
        }
        reader.join().unwrap();
    });
}

/// Whatever a write reported as taken comes before the close, and nothing after it.
#[test]
fn loom_close_against_write() {
    loom::model(|| {
        let (shared, mailbox) = conversation(100);
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, Waker::noop()).map(|result| result.is_ok()))
        };
        shared.close_write();
        let mut out = VecDeque::new();
        called(&shared, &mailbox);
        let intake = shared.take_writes(10, 1, &mut out);
        assert!(intake.write_closed && !intake.more);
        let taken = writer.join().unwrap() == Poll::Ready(true);
        assert!(!shared.take_writes(10, 1, &mut VecDeque::new()).more);
        assert_eq!(out.len(), usize::from(taken));
    });
}

/// A shutdown that is about to wait learns that everything is acknowledged.
#[test]
fn loom_shutdown_against_drained() {
    loom::model(|| {
        let (shared, mailbox) = conversation(100);
        let closer = {
            let shared = shared.clone();
            thread::spawn(move || {
                Sleeper::new().block_on(|waker| shared.poll_shutdown(waker)).unwrap();
            })
        };
        called(&shared, &mailbox);
        assert!(shared.take_writes(10, 1, &mut VecDeque::new()).write_closed);
        shared.set_drained().into_iter().for_each(Waker::wake);
        closer.join().unwrap();
    });
}

/// A delivery to handles that are going away leaves nothing behind, and the driver learns that
/// they are gone.
#[test]
fn loom_drop_against_deliver() {
    loom::model(|| {
        let (shared, mailbox) = conversation(100);
        let handles = [Handle::new(shared.clone()), Handle::new(shared.clone())];
        let droppers = handles.map(|handle| thread::spawn(move || drop(handle)));
        shared.deliver(&mut VecDeque::from([Bytes::from_static(b"a")]), false);
        called(&shared, &mailbox);
        assert!(shared.take_writes(10, 1, &mut VecDeque::new()).detached);
        for dropper in droppers {
            dropper.join().unwrap();
        }
        assert!(lock(&shared.rx).clear().is_empty());
    });
}

/// The end of a conversation reaches a reader and a writer that are about to wait.
#[test]
fn loom_end_against_waiting() {
    loom::model(|| {
        let (shared, _mailbox) = conversation(1);
        assert!(write(&shared, Waker::noop()).is_ready());
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || read(&shared, &mut ReadQueue::default()).unwrap_err())
        };
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                Sleeper::new().block_on(|waker| write(&shared, waker)).unwrap_err()
            })
        };
        shared.end(ConnectionError::Reset).into_iter().flatten().for_each(Waker::wake);
        assert_eq!(reader.join().unwrap().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(writer.join().unwrap().kind(), io::ErrorKind::ConnectionReset);
    });
}
