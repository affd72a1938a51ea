//! Tests of the stream and its halves against a scripted driver.

use std::fmt::Debug;
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::task::Waker;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt,
};

use super::*;
use crate::config::{CongestionControl, Mode};
use crate::error::TimeoutCause;
use crate::shared::connection::tests::{Bench, Count};
use crate::stream::halves::{OwnedReadHalf, ReadHalf, ReuniteError};
use crate::util::buffer_pool;
use crate::util::sync::AtomicUsize;

fn stream(mode: Mode, send_buffer: usize, recv_buffer: usize) -> (KcpStream, Bench) {
    let bench = Bench::new(mode, send_buffer, recv_buffer);
    (KcpStream::new(Handle::new(bench.shared.clone()), bench.endpoint.clone()), bench)
}

fn kind<T: Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Polls once.
fn now<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn ready<F: Future>(future: F) -> F::Output {
    match now(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("is pending"),
    }
}

#[test]
fn stream_implements_the_io_traits_and_debug() {
    fn check<T: AsyncRead + AsyncWrite + Debug + Unpin + Send + Sync + 'static>() {}
    fn buffered<T: AsyncBufRead>() {}
    fn send<T: Send>(_: T) {}
    check::<KcpStream>();
    buffered::<OwnedReadHalf>();
    buffered::<ReadHalf<'_>>();
    let (mut stream, _bench) = stream(Mode::Message, 10, 10);
    send(stream.recv_message());
    send(stream.send_message(b""));
    send(stream.readable());
    assert_eq!(stream.conv(), 7);
    assert_eq!(stream.peer_addr().unwrap().port(), 1);
    assert_eq!(stream.local_addr().unwrap().port(), 2);
    let text = "KcpStream { conv: 7, peer: 127.0.0.1:1, local: 127.0.0.1:2, .. }";
    assert_eq!(format!("{stream:?}"), text);
}

#[tokio::test]
async fn cancelled_write_queues_nothing() {
    let (mut stream, mut bench) = stream(Mode::Stream, 100, 100);
    stream.write_all(&[1; 100]).await.unwrap();
    {
        let mut write = pin!(stream.write(&[2; 50]));
        assert!(now(write.as_mut()).is_pending());
    }
    assert!(now(stream.writable()).is_pending());
    assert_eq!(kind(stream.try_write(&[3; 1])), ErrorKind::WouldBlock);
    assert_eq!(stream.stats().unsent_bytes, 100);
    bench.take(100);
    ready(stream.writable()).unwrap();
    stream.write_all(&[4; 10]).await.unwrap();
    bench.take(100);
    assert_eq!(bench.chunks(), [[1; 100].as_slice(), &[4; 10]]);
}

#[tokio::test]
async fn writable_is_ready_until_a_write_would_block() {
    let (mut stream, mut bench) = stream(Mode::Stream, 100, 100);
    stream.write_all(&[1; 100]).await.unwrap();
    for _ in 0..2 {
        ready(stream.writable()).unwrap();
    }
    assert_eq!(kind(stream.try_write(&[2; 1])), ErrorKind::WouldBlock);
    assert!(now(stream.writable()).is_pending());
    // The queue has capacity, although a writer would not be woken yet.
    bench.take(10);
    ready(stream.writable()).unwrap();
    assert_eq!(stream.try_write(&[3; 50]).unwrap(), 10);
    assert!(now(stream.writable()).is_pending());
    bench.take(100);
    stream.write_all(&[4; 100]).await.unwrap();
    ready(stream.writable()).unwrap();
}

#[tokio::test]
async fn blocked_reader_and_writer_are_woken() {
    let (stream, mut bench) = stream(Mode::Stream, 100, 100);
    let (mut reader, mut writer) = stream.into_split();
    let read = tokio::spawn(async move {
        let mut buf = vec![0; 300];
        reader.read_exact(&mut buf).await.map(|_| buf)
    });
    let write = tokio::spawn(async move {
        writer.write_all(&[5; 300]).await.unwrap();
        writer.shutdown().await
    });
    let mut sent = 0;
    for _ in 0..6 {
        tokio::task::yield_now().await;
        if bench.notified() {
            let taken = bench.take(1000);
            sent += bench.chunks().concat().len();
            taken.writers.for_each(Waker::wake);
        }
        if bench.shared.recv.available(usize::MAX) >= 64 {
            bench.deliver(&[&[6; 64]], false);
        }
    }
    assert_eq!(sent, 300);
    assert_eq!(read.await.unwrap().unwrap(), [6; 300]);
    bench.shared.send.set_drained().unwrap().wake();
    write.await.unwrap().unwrap();
}

#[tokio::test]
async fn connection_error_comes_after_buffered_bytes() {
    let (mut stream, bench) = stream(Mode::Stream, 100, 100);
    bench.deliver(&[b"abc", b"def"], false);
    assert_eq!(stream.read_u8().await.unwrap(), b'a');
    bench.deliver(&[b"ghi"], false);
    let _wakers = bench.shared.end(ConnectionError::PeerRestarted, false);
    assert_eq!(kind(stream.write(b"x").await), ErrorKind::ConnectionReset);
    assert_eq!(kind(stream.flush().await), ErrorKind::ConnectionReset);
    assert_eq!(kind(stream.shutdown().await), ErrorKind::ConnectionReset);
    let mut text = String::new();
    let error = stream.read_to_string(&mut text).await.unwrap_err();
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    assert_eq!(cause, Some(&ConnectionError::PeerRestarted));
    assert_eq!(kind(stream.read_u8().await), ErrorKind::ConnectionReset);
    assert_eq!(stream.error(), Some(ConnectionError::PeerRestarted));
    assert_eq!(kind(stream.read(&mut []).await), ErrorKind::ConnectionReset);
    ready(stream.readable()).unwrap();
    assert_eq!(kind(stream.try_read(&mut [0; 4])), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn read_crosses_chunks_in_stream_mode() {
    let (mut stream, bench) = stream(Mode::Stream, 100, 1000);
    bench.deliver(&[b"abc", b"", b"def\ngh"], false);
    let mut buf = [0; 5];
    assert_eq!(stream.read(&mut buf).await.unwrap(), 5);
    assert_eq!(&buf, b"abcde");
    let mut line = String::new();
    let (mut half, _) = stream.split();
    half.read_line(&mut line).await.unwrap();
    assert_eq!(line, "f\n");
    assert_eq!(stream.read_chunk().await.unwrap(), "gh");
    assert!(now(stream.read_chunk()).is_pending());
    Pin::new(&mut stream.split().0).consume(10);
}

#[tokio::test]
async fn peek_takes_nothing_and_sees_later_bytes() {
    let (mut stream, bench) = stream(Mode::Stream, 100, 1000);
    let mut buf = [0; 8];
    assert!(now(stream.peek(&mut buf)).is_pending());
    assert!(now(stream.readable()).is_pending());
    assert_eq!(kind(stream.try_read(&mut buf)), ErrorKind::WouldBlock);
    assert!(now(stream.peek(&mut [])).is_pending());
    assert_eq!(kind(stream.try_read(&mut [])), ErrorKind::WouldBlock);
    bench.deliver(&[b"abc"], false);
    ready(stream.readable()).unwrap();
    assert_eq!(stream.peek(&mut buf).await.unwrap(), 3);
    bench.deliver(&[b"def", b"ghi"], false);
    assert_eq!(stream.peek(&mut buf).await.unwrap(), 8);
    assert_eq!(&buf, b"abcdefgh");
    let (mut one, mut two) = ([0; 2], [0; 4]);
    let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut []), IoSliceMut::new(&mut two)];
    assert_eq!(stream.try_read_vectored(&mut bufs).unwrap(), 6);
    assert_eq!((&one, &two), (b"ab", b"cdef"));
    assert_eq!(stream.try_read(&mut buf).unwrap(), 3);
    let (reader, _writer) = stream.split();
    assert_eq!(kind(reader.try_read(&mut buf)), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn vectored_write_makes_one_chunk() {
    for mode in [Mode::Stream, Mode::Message] {
        let (mut stream, mut bench) = stream(mode, 100, 100);
        assert!(stream.is_write_vectored());
        let bufs = [b"ab".as_slice(), b"", b"cde"].map(IoSlice::new);
        assert_eq!(stream.write_vectored(&bufs).await.unwrap(), 5);
        bench.take(100);
        assert_eq!(bench.chunks(), [b"abcde"]);
        let long = [[1; 60], [2; 60]];
        let bufs = [IoSlice::new(&long[0]), IoSlice::new(&long[1])];
        assert_eq!(stream.try_write_vectored(&bufs).unwrap(), 100);
        assert_eq!(kind(stream.try_write_vectored(&bufs)), ErrorKind::WouldBlock);
        assert_eq!(stream.write_vectored(&[]).await.unwrap(), 0);
        bench.take(100);
        assert_eq!(bench.chunks(), [[[1; 60].as_slice(), &[2; 40]].concat()]);
    }
}

#[tokio::test]
async fn write_from_writes_one_read_at_a_time() {
    let (mut stream, mut bench) = stream(Mode::Stream, 100_000, 100);
    let large = vec![3; buffer_pool::BUFFER_LEN + 5];
    let mut reader = b"abc".chain(&large[..]);
    for expected in [3, buffer_pool::BUFFER_LEN, 5, 0, 0] {
        assert_eq!(stream.write_from(&mut reader).await.unwrap(), expected);
    }
    bench.take(100_000);
    let (first, last) = large.split_at(buffer_pool::BUFFER_LEN);
    assert_eq!(bench.chunks(), [b"abc", first, last]);
}

#[tokio::test]
async fn write_from_reads_nothing_that_it_cannot_write() {
    let (mut whole, mut bench) = stream(Mode::Stream, 100, 100);
    let mut reader = &[1; 150][..];
    assert_eq!(whole.write_from(&mut reader).await.unwrap(), 100);
    assert!(now(whole.write_from(&mut reader)).is_pending());
    assert_eq!(reader.len(), 50);
    bench.take(100);
    let (_read, mut write) = whole.split();
    assert_eq!(write.write_from(&mut reader).await.unwrap(), 50);
    bench.take(100);
    assert!(now(whole.shutdown()).is_pending());
    let mut reader = &[2; 50][..];
    assert_eq!(kind(whole.write_from(&mut reader).await), ErrorKind::BrokenPipe);

    let (mut whole, bench) = stream(Mode::Stream, 100, 100);
    bench.shared.end(ConnectionError::PeerRestarted, false).for_each(Waker::wake);
    assert_eq!(kind(whole.write_from(&mut reader).await), ErrorKind::ConnectionReset);
    assert_eq!(reader.len(), 50);
}

#[tokio::test]
async fn write_from_cancelled_loses_nothing_and_reports_the_readers_error() {
    let (whole, mut bench) = stream(Mode::Stream, 100, 100);
    let (_read, mut write) = whole.into_split();
    let (mut source, mut reader) = tokio::io::duplex(100);
    assert!(now(write.write_from(&mut reader)).is_pending());
    source.write_all(b"abc").await.unwrap();
    assert_eq!(ready(write.write_from(&mut reader)).unwrap(), 3);
    assert!(bench.notified());
    bench.take(100);
    assert_eq!(bench.chunks(), [b"abc"]);

    let mut failing = Failing;
    assert_eq!(kind(write.write_from(&mut failing).await), ErrorKind::TimedOut);
    assert!(!bench.notified());
}

/// A reader with an error.
struct Failing;

impl AsyncRead for Failing {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

#[tokio::test]
async fn messages_keep_their_boundaries() {
    let (mut stream, mut bench) = stream(Mode::Message, 1000, 1000);
    stream.send_message(b"one").await.unwrap();
    stream.send_message(b"").await.unwrap();
    bench.take(1000);
    assert!(bench.out.iter().all(|chunk| chunk.message));
    assert_eq!(bench.chunks(), [b"one".as_slice(), b""]);
    assert_eq!(stream.max_message_size(), 1376);
    let error = stream.send_message(&[0; 1377]).await.unwrap_err();
    assert!(error.to_string().starts_with("the message has 1377 bytes, at most 1376"));

    bench.deliver(&[b"hello", b"world", b"again"], false);
    let mut buf = [0; 100];
    assert_eq!(stream.peek(&mut buf).await.unwrap(), 5);
    assert_eq!(stream.read(&mut buf[..2]).await.unwrap(), 2);
    assert_eq!(stream.read(&mut buf).await.unwrap(), 3);
    ready(stream.readable()).unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'w');
    assert_eq!(stream.recv_message().await.unwrap(), "orld");
    assert_eq!(stream.read_chunk().await.unwrap(), "again");
    assert!(now(stream.recv_message()).is_pending());
    assert!(now(stream.read(&mut buf)).is_pending());
}

#[tokio::test]
async fn message_calls_are_refused_in_stream_mode() {
    let (mut stream, _bench) = stream(Mode::Stream, 1000, 1000);
    let refused = "messages require Mode::Message, this connection is in Stream mode";
    let sent = stream.send_message(b"x").await.unwrap_err();
    assert_eq!((sent.kind(), sent.to_string().as_str()), (ErrorKind::InvalidInput, refused));
    assert_eq!(kind(stream.recv_message().await), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn established_and_connection_end_wake_waiters() {
    let (stream, bench) = stream(Mode::Stream, 1000, 1000);
    assert!(now(stream.established()).is_pending());
    bench.shared.established.set();
    ready(stream.established()).unwrap();

    let (count, waker) = Count::new();
    let mut cx = Context::from_waker(&waker);
    let mut readable = pin!(stream.readable());
    assert!(readable.as_mut().poll(&mut cx).is_pending());
    bench.shared.end(ConnectionError::DeadPeer(TimeoutCause::Nothing), false).for_each(Waker::wake);
    assert_eq!(count.woken(), 1);
    assert!(readable.as_mut().poll(&mut cx).is_ready());
}

#[tokio::test]
async fn busy_reader_yields_to_other_tasks() {
    let (mut stream, bench) = stream(Mode::Stream, 1000, 1 << 20);
    bench.deliver(&[&[0; 10_000]], false);
    let reads = Arc::new(AtomicUsize::new(0));
    let reader = {
        let reads = reads.clone();
        tokio::spawn(async move {
            while stream.read(&mut [0; 1]).await.unwrap() > 0 {
                reads.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    // On one thread this task only goes on because the reader yields.
    tokio::task::yield_now().await;
    assert!((1..10_000).contains(&reads.load(Ordering::Relaxed)));
    reader.abort();
}

#[tokio::test]
async fn drop_and_abort_notify_the_driver() {
    let (mut dropped, mut bench) = stream(Mode::Stream, 1000, 1000);
    dropped.write_all(b"last words").await.unwrap();
    drop(dropped);
    assert!(bench.notified());
    let taken = bench.take(1000);
    assert!(taken.detached && !taken.reset);
    assert_eq!(bench.chunks(), [b"last words"]);

    let (mut aborted, mut bench) = stream(Mode::Stream, 1000, 1000);
    aborted.write_all(b"never mind").await.unwrap();
    aborted.abort();
    assert!(bench.notified());
    let taken = bench.take(1000);
    assert!(taken.detached && taken.reset && !taken.more);
    assert!(bench.out.is_empty());
}

#[tokio::test]
async fn stream_dropped_detaches_although_borrowed_halves_are_in_scope() {
    let (mut stream, bench) = stream(Mode::Stream, 1000, 1000);
    // The compiler allows the drop below, since the halves are not used after it. They live until the end
    // of the test.
    let (_reader, mut writer) = stream.split();
    writer.write_all(b"last words").await.unwrap();
    drop(stream);
    assert!(bench.shared.is_detached());
}

#[tokio::test]
async fn owned_write_half_dropped_closes_the_write_side() {
    let (whole, mut bench) = stream(Mode::Stream, 1000, 1000);
    let (reader, mut writer) = whole.into_split();
    writer.write_all(b"bye").await.unwrap();
    drop(writer);
    assert!(bench.notified());
    let taken = bench.take(1000);
    assert!(taken.write_closed && !taken.detached);
    assert_eq!(bench.chunks(), [b"bye"]);
    drop(reader);
    assert!(bench.notified() && bench.take(0).detached);

    let (whole, mut bench) = stream(Mode::Stream, 1000, 1000);
    let (reader, writer) = whole.into_split();
    writer.forget();
    assert!(!bench.notified());
    drop(reader);
    let taken = bench.take(0);
    assert!(taken.detached && !taken.write_closed);
}

#[tokio::test]
async fn halves_reunite_only_if_of_the_same_stream() {
    let (one, mut bench) = stream(Mode::Stream, 1000, 1000);
    let (two, _other) = stream(Mode::Stream, 1000, 1000);
    bench.deliver(&[b"abc"], false);
    let (mut read_one, write_one) = one.into_split();
    assert_eq!(read_one.read_u8().await.unwrap(), b'a');
    let (read_two, write_two) = two.into_split();
    let error = read_one.reunite(write_two).unwrap_err();
    assert!(error.to_string().starts_with("the halves belong to different streams"), "{error}");
    let ReuniteError(read_one, write_two) = error;
    let ReuniteError(read_two, write_one) = write_one.reunite(read_two).unwrap_err();
    drop((read_two, write_two));

    let mut one = write_one.reunite(read_one).unwrap();
    assert!(!bench.notified(), "neither closed nor detached");
    assert_eq!(one.read_u16().await.unwrap(), u16::from_be_bytes(*b"bc"));
    one.write_all(b"x").await.unwrap();
    drop(one);
    assert!(bench.notified() && bench.take(10).detached);
}

#[test]
fn settings_are_validated_and_sent_in_order() {
    let (stream, mut bench) = stream(Mode::Stream, 1000, 1000);
    stream.set_windows(1, 2).unwrap();
    assert!(stream.set_windows(0, 2).is_err());
    stream.set_timing(Timing::FAST3);
    stream.set_congestion_control(CongestionControl::Reno);
    stream.set_ack_policy(AckPolicy::Immediate);
    stream.set_write_policy(WritePolicy::Delayed);
    stream.set_mtu(1200).unwrap();
    let refused = stream.set_mtu(1201).unwrap_err();
    assert_eq!(refused.to_string(), "mtu (bytes) must be between 25 and 1200, got 1201");
    assert!(stream.set_mtu(24).is_err());
    stream.set_rate_limit(NonZeroU64::new(5));
    stream.set_duplicates(8).unwrap();
    assert!(stream.set_duplicates(9).is_err());
    assert!(!bench.notified());
    assert!(bench.settings.iter().all(|(id, _)| *id == bench.shared.id()));
    let settings = bench.settings.iter().map(|(_, setting)| *setting);
    let expected = [
        Setting::Windows { send: 1, recv: 2 },
        Setting::Timing(Timing::FAST3),
        Setting::CongestionControl(CongestionControl::Reno),
        Setting::AckPolicy(AckPolicy::Immediate),
        Setting::WritePolicy(WritePolicy::Delayed),
        Setting::Mtu(1200),
        Setting::RateLimit(NonZeroU64::new(5)),
        Setting::Duplicates(8),
    ];
    assert!(settings.eq(expected));
}

/// Tasks that hold a stream are allocated in steps of 128 bytes, which 8 more bytes in the stream can
/// cost each idle connection.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn stream_is_64_bytes() {
    assert!(size_of::<KcpStream>() <= 64, "{}", size_of::<KcpStream>());
}
