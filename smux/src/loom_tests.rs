//! Models of the state that handles and driver share. A lost wake parks a thread forever, which
//! loom reports as a deadlock.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, Waker};
use std::time::Instant;

use bytes::BytesMut;
use loom::future::block_on;
use loom::thread;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::batch::Batch;
use crate::core::inbox::Opened;
use crate::core::session::Core;
use crate::session::{FIRST_CLIENT_ID, FIRST_SERVER_ID};
use crate::{Config, Error, Session, Stream};

const SYN: [u8; 8] = [1, 0, 0, 0, 3, 0, 0, 0];
const PSH: [u8; 9] = [1, 2, 1, 0, 3, 0, 0, 0, b'x'];

/// The driver's side.
struct Side {
    core: Core,
    batch: Batch,
    now: Instant,
}

impl Side {
    fn new(config: Config, first_id: u32) -> (Session, Self) {
        let now = Instant::now();
        let (session, core, _) = Session::parts(config.keepalive(None), first_id, now);
        (session, Self { core, batch: Batch::new(false), now })
    }

    /// A server that has accepted a stream.
    fn with_stream(config: Config) -> (Session, Stream, Self) {
        let (session, mut side) = Self::new(config, FIRST_SERVER_ID);
        side.receive(&SYN);
        let accepted = session.poll_accept(&mut noop());
        let Poll::Ready(Ok(stream)) = accepted else { panic!("it has arrived") };
        (session, stream, side)
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.core.receive(&mut BytesMut::from(bytes), self.now).unwrap();
        self.wake();
    }

    fn wake(&mut self) {
        self.core.take_signals().wakers.into_iter().for_each(Waker::wake);
    }

    /// Runs turns of the driver until `is_done`, over a carrier that takes everything, and is
    /// flushed if `flushes`.
    fn run(&mut self, flushes: bool, mut is_done: impl FnMut(&mut Core) -> bool) {
        block_on(poll_fn(|cx| {
            self.core.exchange(cx.waker(), self.now);
            self.core.fill(&mut self.batch, self.now);
            let written = self.batch.len();
            self.batch.advance(written);
            self.core.on_written(&mut self.batch);
            if flushes {
                self.core.on_flushed();
            }
            self.wake();
            if is_done(&mut self.core) { Poll::Ready(()) } else { Poll::Pending }
        }));
    }
}

fn noop() -> std::task::Context<'static> {
    std::task::Context::from_waker(Waker::noop())
}

fn write(mut stream: impl AsyncWrite + Unpin) {
    let written = block_on(poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, b"x")));
    assert_eq!(written.unwrap(), 1);
}

/// Returns the byte, or the error.
fn read(stream: &mut Stream) -> std::io::Result<Vec<u8>> {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    block_on(poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buffer)))?;
    Ok(buffer.filled().to_vec())
}

/// Whatever the driver does, it learns of both bytes.
#[test]
fn loom_write_wakes_the_driver() {
    loom::model(|| {
        let (session, mut stream, mut side) = Side::with_stream(Config::new());
        let writer = thread::spawn(move || {
            write(&mut stream);
            write(&mut stream);
            stream
        });
        side.run(false, |core| core.stats().0.payload_sent == 2);
        drop((writer.join().unwrap(), session));
    });
}

/// A writer that waits for capacity continues once a frame is sent.
#[test]
fn loom_frame_that_leaves_wakes_the_writer() {
    loom::model(|| {
        let (session, mut stream, mut side) = Side::with_stream(Config::new().send_buffer(1));
        write(&mut stream);
        let writer = thread::spawn(move || {
            write(&mut stream);
            stream
        });
        side.run(false, |core| core.stats().0.payload_sent == 2);
        drop((writer.join().unwrap(), session));
    });
}

#[test]
fn loom_payload_wakes_the_reader() {
    loom::model(|| {
        let (session, mut stream, mut side) = Side::with_stream(Config::new());
        let reader = thread::spawn(move || {
            assert_eq!(read(&mut stream).unwrap(), b"x");
            stream
        });
        side.receive(&PSH);
        drop((reader.join().unwrap(), session));
    });
}

/// The driver does not read the carrier while all tokens are used, and does after a read.
#[test]
fn loom_read_wakes_a_driver_that_waits_for_tokens() {
    loom::model(|| {
        let (session, mut stream, mut side) =
            Side::with_stream(Config::new().max_receive_buffer(1));
        side.receive(&PSH);
        let reader = thread::spawn(move || {
            assert_eq!(read(&mut stream).unwrap(), b"x");
            stream
        });
        let now = side.now;
        side.run(false, |core| core.may_read(now));
        drop((reader.join().unwrap(), session));
    });
}

#[test]
fn loom_accepted_stream_wakes_the_session() {
    loom::model(|| {
        let (session, mut side) = Side::new(Config::new(), FIRST_SERVER_ID);
        let acceptor = thread::spawn(move || block_on(poll_fn(|cx| session.poll_accept(cx))));
        side.receive(&SYN);
        assert_eq!(acceptor.join().unwrap().unwrap().id(), 3);
    });
}

#[test]
fn loom_flush_returns_once_the_carrier_is_flushed() {
    loom::model(|| {
        let (session, mut stream, mut side) = Side::with_stream(Config::new());
        let writer = thread::spawn(move || {
            write(&mut stream);
            block_on(poll_fn(|cx| Pin::new(&mut stream).poll_flush(cx))).unwrap();
            drop(stream);
            drop(session);
        });
        side.run(true, |core| core.is_closing());
        assert_eq!(side.core.stats().0.payload_sent, 1);
        writer.join().unwrap();
    });
}

/// Bytes written before the last handle is dropped are sent, followed by FIN.
#[test]
fn loom_drop_of_the_last_handle_leaves_everything_to_the_driver() {
    loom::model(|| {
        let (session, mut stream, mut side) = Side::with_stream(Config::new());
        let application = thread::spawn(move || {
            drop(session);
            write(&mut stream);
        });
        side.run(false, |core| core.is_closing() && core.is_drained());
        let (stats, _) = side.core.stats();
        assert_eq!((stats.payload_sent, stats.frames_sent.fin), (1, 1));
        application.join().unwrap();
    });
}

/// Bytes written before `close` are sent, also if another thread is about to put the stream into
/// the inbox, so that the writer does not.
#[test]
fn loom_close_beside_a_dropped_read_half_leaves_everything_to_the_driver() {
    loom::model(|| {
        let (session, stream, mut side) = Side::with_stream(Config::new());
        let (read_half, mut write_half) = stream.into_split();
        let reader = thread::spawn(move || drop(read_half));
        let writer = thread::spawn(move || {
            write(&mut write_half);
            session.handle.mailbox.close();
            (session, write_half)
        });
        side.run(false, |core| core.is_closing() && core.is_drained());
        assert_eq!(side.core.stats().0.payload_sent, 1);
        reader.join().unwrap();
        drop(writer.join().unwrap());
    });
}

/// A stream opened while the session ends gets the session's error, or is not opened.
#[test]
fn loom_stream_opened_at_the_end_of_the_session_ends() {
    loom::model(|| {
        let (session, mut side) = Side::new(Config::new(), FIRST_CLIENT_ID);
        let application = thread::spawn(move || {
            let handle = &session.handle;
            if let Ok(Opened::Stream(stream)) = handle.mailbox.open() {
                let mut stream = Stream::new(stream, handle.clone());
                assert!(read(&mut stream).is_err());
            }
        });
        side.core.fail(&Error::Timeout);
        side.wake();
        application.join().unwrap();
    });
}

/// A flush requested while the session ends returns the session's error.
#[test]
fn loom_flush_at_the_end_of_the_session_ends() {
    loom::model(|| {
        let (session, mut stream, mut side) = Side::with_stream(Config::new());
        write(&mut stream);
        let application = thread::spawn(move || {
            let flushed = block_on(poll_fn(|cx| Pin::new(&mut stream).poll_flush(cx)));
            assert!(flushed.is_err());
        });
        side.core.fail(&Error::Timeout);
        side.wake();
        application.join().unwrap();
        drop(session);
    });
}
