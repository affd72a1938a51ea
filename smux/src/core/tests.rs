//! The state machine between the turns of a driver, where a session shows nothing yet.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::batch::{Batch, MAX_BATCH, MAX_SLICES};
use super::inbox::Opened;
use super::session::Core;
use super::stream::SharedStream;
use crate::session::FIRST_SERVER_ID;
use crate::{Config, Error, Session, Stream, Version};

const SYN: u8 = 0;
const FIN: u8 = 1;
const PSH: u8 = 2;
const NOP: u8 = 3;
const UPD: u8 = 4;

/// A server without a carrier.
struct Side {
    session: Session,
    core: Core,
    batch: Batch,
    now: Instant,
}

impl Side {
    /// A server of version 1 that has accepted streams 3, 5 and so on.
    fn with_streams<const N: usize>() -> (Self, [Stream; N]) {
        Self::of_version(Version::V1)
    }

    /// The same in either version.
    fn of_version<const N: usize>(version: Version) -> (Self, [Stream; N]) {
        let now = Instant::now();
        let config = Config::new().keepalive(None).version(version);
        let (session, core, _) = Session::parts(config, FIRST_SERVER_ID, now);
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
        self.receive(SYN, id, &[]);
        let Poll::Ready(Ok(stream)) = self.session.poll_accept(&mut context()) else {
            panic!("it has arrived")
        };
        stream
    }

    /// The peer sends a frame.
    fn receive(&mut self, command: u8, id: u8, payload: &[u8]) {
        let [low, high] = (payload.len() as u16).to_le_bytes();
        let header = [self.core.version(), command, low, high, id, 0, 0, 0];
        let mut frame = BytesMut::from(&header[..]);
        frame.extend_from_slice(payload);
        self.core.receive(&mut frame, self.now).unwrap();
    }

    /// The peer has read nothing of a stream, and grants it a window.
    fn receive_window(&mut self, id: u8, window: u32) {
        self.receive(UPD, id, &[0, window].map(u32::to_le_bytes).concat());
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

    /// Sends a batch. Returns command, stream and payload bytes of its frames.
    fn send_frames(&mut self) -> Vec<(u8, u8, usize)> {
        self.core.fill(&mut self.batch, self.now);
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        // Everything is copied, into one piece.
        self.batch.slices(&mut slices);
        let mut bytes = &slices[0][..];
        let mut frames = Vec::new();
        while let [_, command, low, high, id, _, _, _, rest @ ..] = bytes {
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            frames.push((*command, *id, len));
            bytes = &rest[len..];
        }
        self.batch.advance(self.batch.len());
        self.core.on_written(&mut self.batch);
        frames
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn write(stream: &mut Stream) {
    write_bytes(stream, 1);
}

fn write_bytes(stream: &mut Stream, len: usize) {
    let written = Pin::new(stream).poll_write(&mut context(), &vec![7; len]);
    assert!(matches!(written, Poll::Ready(Ok(all)) if all == len), "{written:?}");
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

/// The carrier is flushed between the request and the driver's next look at the stream.
#[test]
fn flush_that_is_done_when_the_driver_sees_the_request_does_not_wait_for_the_next_batch() {
    let (mut side, [mut stream, mut other]) = Side::with_streams();
    write(&mut stream);
    side.exchange();
    side.send();
    assert!(flush(&mut stream).is_pending());
    side.core.on_flushed();
    assert_eq!(side.core.take_signals().wakers.len(), 0);
    write(&mut other);
    side.exchange();
    assert_eq!(side.core.take_signals().wakers.len(), 1);
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

/// Otherwise the peer could not use the id again while the application holds the stream.
#[test]
fn stream_that_a_peer_opens_and_ends_is_over_at_once_if_the_carrier_takes_no_more_bytes() {
    let (mut side, [_earlier]) = Side::with_streams();
    side.core.fail_sending(&Error::Timeout, &mut side.batch, side.now);
    let mut stream = side.open(5);
    assert!(matches!(flush(&mut stream), Poll::Ready(Ok(()))));
    let written = Pin::new(&mut stream).poll_write(&mut context(), b"x");
    assert!(matches!(written, Poll::Ready(Err(_))), "{written:?}");
    side.receive(PSH, 5, b"all");
    assert_eq!(side.core.num_streams(), 2);
    for id in [3, 5] {
        side.receive(FIN, id, &[]);
    }
    assert_eq!(side.core.num_streams(), 0);
    side.open(5);
}

/// A SYN counts until the batch that has it is written.
#[test]
fn streams_wait_to_be_opened_while_1024_syns_are_unsent() {
    let (mut side, [mut stream]) = Side::with_streams();
    let open = |side: &Side| side.session.handle.mailbox.open();
    assert!(matches!(open(&side), Ok(Opened::Stream(_))));
    side.exchange();
    assert_eq!(side.send(), 8);
    // All are opened while a batch without a SYN waits for the carrier.
    write(&mut stream);
    side.exchange();
    side.core.fill(&mut side.batch, side.now);
    for _ in 0..1_024 {
        assert!(matches!(open(&side), Ok(Opened::Stream(_))));
    }
    side.batch.advance(9);
    side.core.on_written(&mut side.batch);
    assert!(matches!(open(&side), Ok(Opened::Full)));
    side.exchange();
    assert!(matches!(open(&side), Ok(Opened::Full)));
    assert!(!side.core.take_signals().may_open);
    assert_eq!(side.send(), 1_024 * 8);
    assert!(side.core.take_signals().may_open);
    for _ in 0..1_024 {
        assert!(matches!(open(&side), Ok(Opened::Stream(_))));
    }
    assert!(matches!(open(&side), Ok(Opened::Full)));
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
    let mut payload = vec![1, PSH, low, high, 3, 0, 0, 0];
    payload.resize(8 + PAYLOAD, 7);
    // The payload and NOP frames, after which the next read takes another buffer.
    payload.extend([1, NOP, 0, 0, 0, 0, 0, 0].repeat(6_600));
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

/// A shorter rest of a batch is left, and the frame begins the next batch.
#[test]
fn frame_is_cut_to_the_rest_of_a_batch_if_that_is_at_least_4_kib() {
    for (rest, cut) in [(4_095, 0), (4_096, 4_096)] {
        let (mut side, [mut first, mut second, mut third]) = Side::with_streams();
        let len = MAX_BATCH - 3 * 8 - 32_768 - rest;
        write_bytes(&mut first, 32_768);
        write_bytes(&mut second, len);
        write_bytes(&mut third, 10_000);
        side.exchange();
        let mut expected = vec![(PSH, 3, 32_768), (PSH, 5, len)];
        expected.extend((cut > 0).then_some((PSH, 7, cut)));
        assert_eq!(side.send_frames(), expected);
        assert_eq!(side.send_frames(), [(PSH, 7, 10_000 - cut)]);
    }
}

#[test]
fn stream_with_at_most_2_kib_comes_before_streams_with_more() {
    let (mut side, [mut bulk, mut sparse]) = Side::with_streams();
    write_bytes(&mut bulk, 2_049);
    write_bytes(&mut sparse, 2_048);
    side.exchange();
    assert_eq!(side.send_frames(), [(PSH, 5, 2_048), (PSH, 3, 2_049)]);
}

/// So that a peer that reads streams in this order does not have to buffer the later ones.
#[test]
fn finished_streams_come_in_their_order_and_in_turns_with_bulk_but_fin_alone_comes_first() {
    let (mut side, [mut bulk, mut first, mut second, mut third]) = Side::with_streams();
    write_bytes(&mut bulk, 10_000);
    write_bytes(&mut first, 10_000);
    write_bytes(&mut second, 1);
    for stream in [&mut first, &mut second, &mut third] {
        assert!(Pin::new(stream).poll_shutdown(&mut context()).is_pending());
    }
    side.exchange();
    let finishing = [(PSH, 5, 10_000), (FIN, 5, 0), (PSH, 3, 10_000), (PSH, 7, 1), (FIN, 7, 0)];
    assert_eq!(side.send_frames(), [&[(FIN, 9, 0)], &finishing[..]].concat());
}

/// Otherwise the inbox would grow with each change while the driver is not polled.
#[test]
fn stream_is_in_the_inbox_once_however_often_it_changes() {
    let (side, [mut stream]) = Side::with_streams();
    let shared = side.shared(3);
    let idle = Arc::strong_count(&shared);
    write(&mut stream);
    assert_eq!(Arc::strong_count(&shared), idle + 1);
    for _ in 0..2 {
        assert!(Pin::new(&mut stream).poll_shutdown(&mut context()).is_pending());
        assert_eq!(Arc::strong_count(&shared), idle + 1);
    }
    // Two halves fewer.
    drop(stream);
    assert_eq!(Arc::strong_count(&shared), idle + 1 - 2);
}

/// Otherwise the queue would grow with each change of a stream while the carrier is blocked.
#[test]
fn window_update_is_queued_once_and_only_if_it_is_owed() {
    let (mut side, [mut stream]) = Side::of_version(Version::V2);
    side.receive(PSH, 3, b"all");
    let read = Pin::new(&mut stream).poll_read(&mut context(), &mut ReadBuf::new(&mut [0; 3]));
    assert!(matches!(read, Poll::Ready(Ok(()))), "{read:?}");
    side.exchange();
    assert_eq!(side.core.control.len(), 1);
    write(&mut stream);
    side.exchange();
    assert_eq!(side.core.control.len(), 1);
    assert_eq!(side.send_frames(), [(UPD, 3, 8), (PSH, 3, 1)]);
    write(&mut stream);
    side.exchange();
    assert_eq!(side.core.control.len(), 0);
    assert_eq!(side.send_frames(), [(PSH, 3, 1)]);
}

/// The carrier takes the bytes only after the timeout of the stream.
#[test]
fn dropped_stream_is_reset_at_its_deadline_unless_it_was_granted_window_before() {
    for is_granted in [false, true] {
        let (mut side, [mut stream]) = Side::of_version(Version::V2);
        side.receive_window(3, 0);
        write_bytes(&mut stream, 1_000);
        drop(stream);
        side.exchange();
        assert_eq!(side.send_frames(), [(UPD, 3, 8)]);
        if is_granted {
            side.receive_window(3, 5_000);
        }
        side.now = side.core.deadline().unwrap();
        side.core.on_timer(side.now).unwrap();
        assert_eq!(side.core.deadline(), None);
        let frames = side.send_frames();
        if is_granted {
            // The reset after FIN: data that the peer still sends is not read.
            assert_eq!(frames, [(PSH, 3, 1_000), (FIN, 3, 0), (NOP, 3, 0)]);
        } else {
            assert_eq!(frames, [(NOP, 3, 0), (FIN, 3, 0)]);
        }
    }
}
