//! The state machine between the turns of a driver, where a session shows nothing yet.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::BytesMut;
use tokio::io::AsyncWrite;

use super::batch::Batch;
use super::inbox::Opened;
use super::session::Core;
use super::stream::SharedStream;
use crate::session::FIRST_SERVER_ID;
use crate::{Config, Error, Session, Stream};

/// SYN of stream 3 in version 1.
const SYN: [u8; 8] = [1, 0, 0, 0, 3, 0, 0, 0];

/// A server without a carrier.
struct Side {
    session: Session,
    core: Core,
    batch: Batch,
    now: Instant,
}

impl Side {
    /// A server that has accepted streams 3, 5 and so on.
    fn with_streams<const N: usize>() -> (Self, [Stream; N]) {
        let now = Instant::now();
        let (session, core, _) =
            Session::parts(Config::new().keepalive(None), FIRST_SERVER_ID, now);
        let mut side = Self { session, core, batch: Batch::new(false), now };
        let mut id = 1;
        let streams = std::array::from_fn(|_| {
            id += 2;
            side.open(id)
        });
        (side, streams)
    }

    /// The peer opens a stream.
    fn open(&mut self, id: u8) -> Stream {
        let mut syn = SYN;
        syn[4] = id;
        self.core.receive(&mut BytesMut::from(&syn[..]), self.now).unwrap();
        let Poll::Ready(Ok(stream)) = self.session.poll_accept(&mut context()) else {
            panic!("it has arrived")
        };
        stream
    }

    fn shared(&self, id: u32) -> Arc<SharedStream> {
        Arc::clone(&self.core.streams[&id].stream)
    }

    fn exchange(&mut self) {
        self.core.exchange(Waker::noop(), self.now);
    }

    /// Sends all that is queued. Returns the number of bytes.
    fn send(&mut self) -> usize {
        self.core.fill(&mut self.batch, self.now);
        let len = self.batch.len();
        self.batch.advance(len);
        self.core.on_written(&mut self.batch);
        len
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn write(stream: &mut Stream) {
    let written = Pin::new(stream).poll_write(&mut context(), b"x");
    assert!(matches!(written, Poll::Ready(Ok(1))), "{written:?}");
}

fn flush(stream: &mut Stream) -> Poll<std::io::Result<()>> {
    Pin::new(stream).poll_flush(&mut context())
}

/// One handle is about to put the stream into the inbox, so that another one, which writes, does not.
#[test]
fn session_is_not_drained_before_the_driver_has_seen_every_change() {
    for writes in [true, false] {
        let (mut side, [mut stream]) = Side::with_streams();
        let shared = side.shared(3);
        assert!(shared.lock().enter_inbox());
        if writes {
            write(&mut stream);
        }
        side.session.handle.mailbox.close();
        side.exchange();
        assert_eq!(side.send(), 0);
        assert!(side.core.is_closing() && !side.core.is_drained());
        side.session.handle.mailbox.push_changed(&shared);
        side.exchange();
        assert_eq!(side.send(), if writes { 9 } else { 0 });
        assert!(side.core.is_drained());
    }
}

#[test]
fn stream_waits_for_a_flush_of_the_carrier_once_and_only_if_it_asks() {
    let (mut side, [mut stream]) = Side::with_streams();
    write(&mut stream);
    side.exchange();
    assert!(!side.core.wants_flush());
    assert_eq!(side.send(), 9);
    assert!(flush(&mut stream).is_pending());
    side.exchange();
    // Another change of a stream that waits already.
    write(&mut stream);
    side.exchange();
    assert!(side.core.wants_flush());
    assert_eq!(side.core.flushing.len(), 1);
    assert_eq!(side.send(), 9);
    side.core.on_flushed();
    assert!(!side.core.wants_flush());
    assert!(matches!(flush(&mut stream), Poll::Ready(Ok(()))));
}

/// By a carrier that takes no more bytes, and by the end of the session.
#[test]
fn failed_session_discards_what_is_queued_and_fails_flushes_of_it_alone() {
    for ends in [false, true] {
        let (mut side, [mut unsent, mut flushed]) = Side::with_streams();
        write(&mut flushed);
        side.exchange();
        side.send();
        side.core.on_flushed();
        write(&mut unsent);
        side.exchange();
        assert_eq!(side.core.queued_streams, 1);
        let shared = side.shared(3);
        if ends {
            side.core.fail(&Error::Timeout);
        } else {
            side.core.fail_sending(&Error::Timeout, &mut side.batch, side.now);
        }
        assert_eq!((side.core.queued_streams, shared.lock().send.queue.len()), (0, 0));
        assert!(matches!(flush(&mut unsent), Poll::Ready(Err(_))));
        assert!(matches!(flush(&mut flushed), Poll::Ready(Ok(()))));
    }
}

/// A dropped stream of this side's parity, which the driver has yet to forget, still holds its id.
#[test]
fn id_that_a_peer_takes_of_ours_is_reserved_once_and_again_when_its_stream_is_gone() {
    let (mut side, []) = Side::with_streams();
    assert!(side.core.exchange_and_reserve(6, side.now));
    assert!(!side.core.exchange_and_reserve(6, side.now));
    let mut stream = side.open(2);
    assert!(Pin::new(&mut stream).poll_shutdown(&mut context()).is_pending());
    side.exchange();
    assert_eq!(side.send(), 8);
    assert!(!side.core.exchange_and_reserve(2, side.now));
    drop(stream);
    assert!(side.core.exchange_and_reserve(2, side.now));
    assert_eq!(side.core.num_streams(), 0);
    let opened = side.session.handle.mailbox.open();
    assert!(matches!(opened, Ok(Opened::Stream(stream)) if stream.id == 4));
}

/// Each round leaves a little unread payload in each of many read buffers.
#[test]
fn stream_whose_payload_was_copied_out_of_sparse_read_buffers_shares_others_later() {
    const PAYLOAD: usize = 4_096;
    let (mut side, [_stream]) = Side::with_streams::<1>();
    let [low, high] = (PAYLOAD as u16).to_le_bytes();
    let mut payload = vec![1, 2, low, high, 3, 0, 0, 0];
    payload.resize(8 + PAYLOAD, 7);
    // The payload and NOP frames, after which the next read takes another buffer.
    payload.extend([1, 3, 0, 0, 0, 0, 0, 0].repeat(6_600));
    let mut input = BytesMut::new();
    side.core.prepare_input(&mut input);
    for round in 0..3 {
        let mut buffers = 0;
        while buffers == 0 || !side.core.sharing.is_empty() {
            input.extend_from_slice(&payload);
            side.core.receive(&mut input, side.now).unwrap();
            assert!(side.core.sharing.contains(&3), "round {round}");
            side.core.prepare_input(&mut input);
            buffers += 1;
        }
        assert!((4..10).contains(&buffers), "{buffers} buffers in round {round}");
    }
}
