//! Tests of the queues against a scripted driver.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Poll, Wake};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::shared::memory_use::charge;
use crate::shared::recv_queue::ReadBuffer;
use crate::shared::requests::{Request, RequestQueue};
use crate::util::queue::BURST_CAPACITY;

/// Counts how often it is woken.
#[derive(Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (count.clone(), Waker::from(count))
    }

    pub(crate) fn woken(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A connection and the driver's side of it.
pub(crate) struct Bench {
    pub(crate) shared: Arc<Shared>,
    pub(crate) endpoint: Arc<RequestQueue>,
    pub(crate) settings: Vec<(ConnId, Setting)>,
    pub(crate) requests: Vec<Request>,
    pub(crate) out: VecDeque<Outgoing>,
}

impl Bench {
    pub(crate) fn new(mode: Mode, send_buffer: usize, recv_buffer: usize) -> Self {
        let endpoint = RequestQueue::new();
        let notifier = endpoint.notifier().clone();
        notifier.set_local(([127, 0, 0, 1], 2).into());
        let mut config = Config::new().mode(mode);
        (config.send_buffer, config.recv_buffer) = (send_buffer, recv_buffer);
        let id = ConnId { slot: 3, generation: 1 };
        let shared = Shared::new(id, 7, Path::to(([127, 0, 0, 1], 1).into()), &config, notifier);
        let (settings, requests) = (Vec::new(), Vec::new());
        Self { shared, endpoint, settings, requests, out: VecDeque::new() }
    }

    /// Whether the driver was notified; if so, it begins an exchange.
    pub(crate) fn notified(&mut self) -> bool {
        let mut ids = Vec::new();
        self.endpoint.drain(&mut self.requests);
        self.endpoint.notifier().drain(&mut ids, &mut self.settings);
        assert!(ids.len() <= 1, "queued once between two exchanges");
        if ids.is_empty() {
            return false;
        }
        self.shared.notifier.begin_exchange();
        true
    }

    pub(crate) fn take(&mut self, limit: usize) -> TakenWrites {
        self.shared.take_writes(limit, 1, Backlog::NONE, &mut self.out)
    }

    fn take_behind(&mut self, limit: usize, backlog: Backlog) -> TakenWrites {
        self.shared.take_writes(limit, 1, backlog, &mut self.out)
    }

    /// The chunks that were taken so far.
    pub(crate) fn chunks(&mut self) -> Vec<Vec<u8>> {
        self.out.drain(..).map(|chunk| chunk.data.to_vec()).collect()
    }

    pub(crate) fn deliver(&self, chunks: &[&[u8]], held_back: bool) -> bool {
        let mut chunks = chunks.iter().map(|chunk| Bytes::copy_from_slice(chunk)).collect();
        let reader = self.shared.recv.deliver(&mut chunks, held_back);
        assert!(chunks.is_empty());
        reader.inspect(Waker::wake_by_ref).count() > 0
    }

    fn write(&self, waker: Option<&Waker>, data: &[u8]) -> Poll<io::Result<usize>> {
        let copy = |count, out: &mut BytesMut| out.extend_from_slice(&data[..count]);
        let mut wait = waker.map_or(Wait::No, Wait::Polled);
        self.shared.send.poll_write_with(
            &mut wait,
            data.len(),
            self.shared.mode == Mode::Stream,
            copy,
        )
    }
}

fn accepted(poll: Poll<io::Result<usize>>) -> Option<usize> {
    match poll {
        Poll::Ready(Ok(count)) => Some(count),
        Poll::Ready(Err(error)) => panic!("{error}"),
        Poll::Pending => None,
    }
}

#[test]
fn writer_blocks_on_a_full_queue_and_is_woken_at_a_quarter_free() {
    let mut bench = Bench::new(Mode::Stream, 1000, 1000);
    let (count, waker) = Count::new();
    assert_eq!(accepted(bench.write(Some(&waker), &[1; 1500])), Some(1000));
    assert_eq!(accepted(bench.write(Some(&waker), &[2; 1])), None);
    assert!(bench.notified());
    assert_eq!(bench.shared.stats().unsent_bytes, 1000);

    assert_eq!(bench.take(249).writers.count(), 0);
    let taken = bench.take(1);
    assert!(taken.more && !taken.write_closed);
    taken.writers.for_each(Waker::wake);
    assert_eq!(count.woken(), 1);
    assert_eq!(bench.take(10).writers.count(), 0, "woken once per registration");
    assert_eq!(accepted(bench.write(Some(&waker), &[2; 300])), Some(260));
    assert_eq!(bench.shared.stats().unsent_bytes, 1000);
}

#[test]
fn bulk_writer_is_given_what_may_wait_and_woken_at_a_quarter_of_it() {
    let mut bench = Bench::new(Mode::Stream, 100_000, 1_000);
    let (count, waker) = Count::new();
    let backlog = |unsent| Backlog { limit: 16_000, unsent };
    let set = |bench: &Bench, unsent| {
        bench.shared.send.set_backlog(backlog(unsent)).for_each(Waker::wake);
    };
    // A burst fills the queue.
    assert_eq!(accepted(bench.write(Some(&waker), &vec![1; 150_000])), Some(100_000));
    assert_eq!(accepted(bench.write(Some(&waker), &[1; 1])), None);
    assert!(bench.take_behind(60_000, backlog(0)).writer_waits);
    assert!(bench.take_behind(60_000, backlog(60_000)).writer_waits);
    assert_eq!(accepted(bench.write(Some(&waker), &[1; 1])), None);
    for unsent in [90_000, 16_000, 12_001] {
        set(&bench, unsent);
        assert_eq!(count.woken(), 0, "{unsent}");
    }
    set(&bench, 12_000);
    assert_eq!(count.woken(), 1);
    set(&bench, 11_000);
    assert_eq!(count.woken(), 1, "no writer waits");
    assert_eq!(accepted(bench.write(Some(&waker), &[1; 9_000])), Some(5_000));
    assert_eq!(accepted(bench.write(Some(&waker), &[1; 1])), None);
    // The limit falls while all of it leaves.
    let fallen = Backlog { limit: 4_000, unsent: 0 };
    bench.take_behind(5_000, backlog(11_000)).writers.for_each(Waker::wake);
    assert_eq!(count.woken(), 1);
    bench.shared.send.set_backlog(fallen).for_each(Waker::wake);
    assert_eq!(count.woken(), 2);
    assert_eq!(accepted(bench.write(Some(&waker), &[1; 900])), Some(900));
    let taken = bench.take_behind(5_000, fallen);
    assert!(!taken.writer_waits && !taken.more);
    // Everything has left: the next burst fills the queue again.
    assert!(!bench.take_behind(5_000, fallen).writer_waits);
    assert_eq!(accepted(bench.write(Some(&waker), &vec![1; 150_000])), Some(100_000));
}

/// A writer waits until every writer has written or is gone, or the stream is closed.
#[test]
fn writer_waits_beside_another_that_writes_and_not_once_it_is_gone() {
    let waits =
        |bench: &mut Bench| bench.take_behind(0, Backlog { limit: 16_000, unsent: 0 }).writer_waits;
    let full = || {
        let bench = Bench::new(Mode::Stream, 1_000, 1_000);
        assert_eq!(accepted(bench.write(None, &[1; 1_500])), Some(1_000));
        bench
    };
    let mut bench = full();
    let (_, waker) = Count::new();
    assert_eq!(accepted(bench.write(Some(&waker), &[1; 1])), None);
    bench.take_behind(100, Backlog { limit: 16_000, unsent: 0 });
    assert_eq!(accepted(bench.write(None, &[1; 10])), Some(10));
    assert!(waits(&mut bench), "the first writer still waits");
    bench.shared.send.close();
    assert!(!waits(&mut bench));
}

#[test]
fn byte_stream_is_cut_to_the_limit() {
    let mut bench = Bench::new(Mode::Stream, 1000, 1000);
    assert_eq!(accepted(bench.write(None, b"abcdef")), Some(6));
    assert_eq!(accepted(bench.write(None, b"gh")), Some(2));
    assert!(bench.take(0).more);
    assert!(bench.take(4).more);
    assert!(!bench.take(100).more);
    assert_eq!(bench.chunks(), [b"abcd", b"efgh"]);
}

#[test]
fn writes_are_chunks_of_their_own_in_message_mode() {
    let mut bench = Bench::new(Mode::Message, 1000, 1000);
    assert_eq!(accepted(bench.write(None, b"abc")), Some(3));
    assert_eq!(accepted(bench.write(None, b"de")), Some(2));
    assert!(!bench.take(100).more);
    assert_eq!(bench.chunks(), [b"abc".as_slice(), b"de"]);
}

#[test]
fn message_is_taken_whole_or_not_at_all() {
    let mut bench = Bench::new(Mode::Message, 1000, 1000);
    let send = |data: &[u8]| bench.shared.poll_send_message(&mut Wait::No, data);
    for message in [[1; 100].as_slice(), &[2; 50], &[]] {
        assert!(send(message).is_ready());
    }
    assert!(bench.take(0).more, "a limit of zero takes no message");
    assert!(bench.take(10).more, "the first one moves whole");
    assert_eq!(bench.chunks(), [[1; 100]]);
    assert!(!bench.take(51).more);
    assert_eq!(bench.chunks(), [[2; 50].as_slice(), &[]]);

    let send = |data: &[u8]| bench.shared.poll_send_message(&mut Wait::No, data);
    assert!(send(&[3; 100]).is_ready() && send(&[4; 100]).is_ready());
    assert!(bench.take(199).more, "the second one does not fit");
    assert!(bench.out.iter().all(|chunk| chunk.message));
    assert_eq!(bench.chunks(), [[3; 100]]);
}

#[test]
fn message_waits_for_capacity_and_is_refused_above_the_maximum() {
    let mut bench = Bench::new(Mode::Message, 1000, 1000);
    let (count, waker) = Count::new();
    bench.shared.max_message.store(2000, Relaxed);
    let send = |data: &[u8]| bench.shared.poll_send_message(&mut Wait::Polled(&waker), data);
    let Poll::Ready(Err(error)) = send(&[0; 2001]) else { panic!("refused") };
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().starts_with("the message has 2001 bytes, at most 2000"));
    assert!(send(&[1; 600]).is_ready());
    assert!(send(&[2; 600]).is_pending());
    assert_eq!(bench.shared.stats().unsent_bytes, 600, "nothing is half queued");
    bench.take(1).writers.for_each(Waker::wake);
    assert_eq!(count.woken(), 1);
    let send = |data: &[u8]| bench.shared.poll_send_message(&mut Wait::Polled(&waker), data);
    assert!(send(&[2; 2000]).is_ready(), "a large one goes when nothing is queued");
    assert!(send(&[3; 1]).is_pending());
}

#[test]
fn small_chunks_are_charged_64_bytes() {
    let bench = Bench::new(Mode::Message, 640, 640);
    let sent =
        (0..100).take_while(|_| bench.shared.poll_send_message(&mut Wait::No, &[]).is_ready());
    assert_eq!(sent.count(), 10, "empty messages do not pile up");
    bench.deliver(&[b"a".as_slice(); 10], false);
    assert_eq!(bench.shared.recv.available(usize::MAX), 0);
}

#[test]
fn flush_is_reported_until_its_bytes_are_taken() {
    let mut bench = Bench::new(Mode::Stream, 1000, 1000);
    bench.shared.send.flush().unwrap();
    assert!(!bench.notified(), "nothing to push out");
    assert_eq!(accepted(bench.write(None, b"abcdef")), Some(6));
    assert!(bench.notified());
    assert!(!bench.take(2).flush);
    bench.shared.send.flush().unwrap();
    assert!(bench.notified());
    assert!(bench.take(2).flush);
    assert!(bench.take(2).flush);
    assert!(!bench.take(2).flush);
    bench.shared.send.flush().unwrap();
    assert!(!bench.notified());
}

#[test]
fn shutdown_is_ready_when_drained() {
    let mut bench = Bench::new(Mode::Stream, 1000, 1000);
    let (count, waker) = Count::new();
    assert_eq!(accepted(bench.write(None, b"abc")), Some(3));
    assert!(bench.shared.send.poll_shutdown(&waker).is_pending());
    assert!(bench.notified());
    let taken = bench.take(100);
    assert!(taken.write_closed && !taken.more && !taken.detached && !taken.reset);
    assert!(bench.shared.send.poll_shutdown(&waker).is_pending());
    assert!(!bench.notified(), "closing twice changes nothing");
    let Poll::Ready(Err(error)) = bench.write(None, b"d") else { panic!("closed") };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);

    bench.shared.send.set_drained().unwrap().wake();
    assert_eq!(count.woken(), 1);
    assert!(matches!(bench.shared.send.poll_shutdown(&waker), Poll::Ready(Ok(()))));
    let _readers = bench.shared.end(ConnectionError::EndpointClosed, false);
    assert!(matches!(bench.shared.send.poll_shutdown(&waker), Poll::Ready(Ok(()))));
    bench.shared.send.flush().unwrap();
}

#[test]
fn shutdown_is_ok_behind_an_end_that_leaves_nothing_undelivered() {
    for (is_delivered, queued) in [(true, false), (true, true), (false, false)] {
        let bench = Bench::new(Mode::Stream, 10, 1000);
        let (_, waker) = Count::new();
        if queued {
            // The driver has not seen this write.
            assert_eq!(accepted(bench.write(None, b"late")), Some(4));
        }
        bench.shared.end(ConnectionError::Reset, is_delivered).for_each(Waker::wake);
        let Poll::Ready(Err(error)) = bench.write(None, b"x") else { panic!("it has ended") };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let is_ok = is_delivered && !queued;
        assert_eq!(bench.shared.send.flush().is_ok(), is_ok);
        let Poll::Ready(result) = bench.shared.send.poll_shutdown(&waker) else {
            panic!("it waits")
        };
        assert_eq!(result.is_ok(), is_ok);
        let Poll::Ready(Err(error)) = bench.write(None, b"x") else { panic!("closed") };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(bench.shared.error(), Some(ConnectionError::Reset));
    }
}

#[test]
fn connection_end_wakes_all_waiters_and_the_first_error_stays() {
    let bench = Bench::new(Mode::Stream, 10, 1000);
    let (count, waker) = Count::new();
    let mut queue = ReadBuffer::default();
    assert_eq!(accepted(bench.write(None, &[0; 10])), Some(10));
    assert!(bench.write(Some(&waker), b"x").is_pending());
    assert!(bench.shared.recv.poll_refill(&mut queue, &mut Wait::Polled(&waker)).is_pending());
    assert!(bench.shared.established.poll(&waker).is_pending());
    let ended = bench.shared.end(ConnectionError::LingerTimeout, false);
    ended.for_each(Waker::wake);
    assert_eq!(count.woken(), 3);
    assert!(bench.shared.end(ConnectionError::Reset, false).next().is_none());
    assert_eq!(bench.shared.error(), Some(ConnectionError::LingerTimeout));

    let timed_out = |error: io::Error| error.kind() == io::ErrorKind::TimedOut;
    let timed = |poll: Poll<io::Result<()>>| match poll {
        Poll::Ready(result) => result.is_err_and(timed_out),
        Poll::Pending => false,
    };
    assert!(timed(bench.write(None, b"x").map_ok(drop)));
    assert!(timed(bench.shared.recv.poll_refill(&mut queue, &mut Wait::No)));
    assert!(timed(bench.shared.established.poll(&waker)));
    assert!(timed(Poll::Ready(bench.shared.send.flush())));
    assert!(timed(bench.shared.send.poll_shutdown(&waker)));
    assert_eq!(bench.shared.stats().unsent_bytes, 0);
}

#[test]
fn blocked_driver_is_notified_at_half_free() {
    let mut bench = Bench::new(Mode::Stream, 1000, 800);
    let mut queue = ReadBuffer::default();
    bench.deliver(&[&[1; 500], &[2; 300]], false);
    assert!(bench.shared.recv.poll_refill(&mut queue, &mut Wait::No).is_ready());
    assert_eq!(
        bench.shared.recv.available(usize::MAX),
        0,
        "a move to the reader's own queue frees nothing"
    );
    queue.consume(390);
    bench.shared.recv.report_read(&mut queue);
    assert!(!bench.notified(), "410 of 800 are left");
    queue.consume(110);
    bench.shared.recv.report_read(&mut queue);
    assert!(bench.notified());
    assert_eq!(bench.shared.recv.available(usize::MAX), 500);

    // A delivery that holds data back asks for the same.
    bench.deliver(&[&[3; 500]], true);
    queue.consume(300);
    bench.shared.recv.report_read(&mut queue);
    assert!(!bench.notified(), "500 of 800 are left");
    assert!(bench.shared.recv.poll_refill(&mut queue, &mut Wait::No).is_ready());
    queue.consume(101);
    bench.shared.recv.report_read(&mut queue);
    assert!(bench.notified());
}

#[test]
fn held_back_delivery_into_a_drained_queue_notifies_at_once() {
    let mut bench = Bench::new(Mode::Stream, 1000, 800);
    bench.deliver(&[], true);
    assert!(bench.notified(), "no read will come to notify");
    bench.deliver(&[b"x"], true);
    assert!(!bench.notified());
}

#[test]
fn reader_is_woken_once_per_registration() {
    let bench = Bench::new(Mode::Stream, 1000, 800);
    let (count, waker) = Count::new();
    let mut queue = ReadBuffer::default();
    assert!(bench.shared.recv.poll_refill(&mut queue, &mut Wait::Polled(&waker)).is_pending());
    assert!(!bench.deliver(&[], false));
    assert!(bench.deliver(&[b"a"], false));
    assert!(!bench.deliver(&[b"b"], false));
    assert_eq!(count.woken(), 1);
    assert!(bench.shared.established.poll(&waker).is_pending());
    bench.shared.established.set().unwrap().wake();
    assert!(bench.shared.established.poll(&waker).is_ready());
}

#[test]
fn last_handle_dropped_detaches() {
    let mut bench = Bench::new(Mode::Stream, 1000, 800);
    let handle = Handle::new(bench.shared.clone());
    let other = handle.clone();
    assert_eq!(accepted(bench.write(None, b"last words")), Some(10));
    bench.deliver(&[b"never read"], false);
    assert!(bench.notified());
    drop(handle);
    assert!(!bench.notified() && !bench.shared.is_detached());
    drop(other);
    assert!(bench.notified());
    let taken = bench.take(100);
    assert!(taken.detached && !taken.reset);
    assert_eq!(bench.chunks(), [b"last words"]);
    assert_eq!(bench.shared.recv.available(usize::MAX), 800);
    bench.deliver(&[b"nor this"], false);
    assert!(bench.shared.recv.clear().is_empty());
}

#[test]
fn burst_memory_is_released() {
    let mut bench = Bench::new(Mode::Message, 1 << 20, 1 << 20);
    let mut queue = ReadBuffer::default();
    for _ in 0..1000 {
        assert!(bench.shared.poll_send_message(&mut Wait::No, b"m").is_ready());
        bench.deliver(&[b"m"], false);
    }
    bench.take(usize::MAX);
    assert!(bench.shared.recv.poll_refill(&mut queue, &mut Wait::No).is_ready());
    while queue.pop().is_some() {}
    assert!(bench.shared.recv.poll_refill(&mut queue, &mut Wait::No).is_pending());
    let capacity = bench.shared.send.clear().capacity()
        + bench.shared.recv.clear().capacity()
        + queue.capacity();
    assert!(capacity <= 3 * BURST_CAPACITY, "{capacity}");
    assert!(size_of::<Shared>() < 1024, "{}", size_of::<Shared>());
}

#[derive(Clone, Debug)]
enum Op {
    Write(usize),
    Take(usize),
    Deliver(Vec<usize>),
    Read(usize),
    Refill,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (0_usize..400).prop_map(Op::Write),
        (0_usize..400).prop_map(Op::Take),
        proptest::collection::vec(0_usize..200, 0..4).prop_map(Op::Deliver),
        (0_usize..400).prop_map(Op::Read),
        Just(Op::Refill),
    ];
    proptest::collection::vec(op, 0..200)
}

/// `count` bytes of an endless sequence, beginning at `from`.
fn sequence(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|i| (i % 251).to_le_bytes()[0]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes keep their order within the limits, and a blocked side is notified once the other one has
    /// freed capacity.
    #[test]
    fn bytes_keep_their_order_in_any_interleaving(ops in ops(), send in 1_usize..600, recv in 1_usize..600) {
        let mut bench = Bench::new(Mode::Stream, send, recv);
        let (mut written, mut moved, mut delivered, mut read) = (0, 0, 0, 0);
        let mut queue = ReadBuffer::default();
        let (writer, waker) = Count::new();
        let mut writer_waits = None;
        let mut blocked = false;
        for op in ops {
            match op {
                Op::Write(count) => {
                    let data = sequence(written, count);
                    match accepted(bench.write(Some(&waker), &data)) {
                        Some(count) => written += count,
                        None => writer_waits = Some(writer.woken()),
                    }
                    prop_assert!(written - moved <= send);
                }
                Op::Take(limit) => {
                    blocked &= !bench.notified();
                    let taken = bench.take(limit);
                    taken.writers.for_each(Waker::wake);
                    let bytes = bench.chunks().concat();
                    prop_assert!(bytes.len() <= limit);
                    prop_assert_eq!(&bytes, &sequence(moved, bytes.len()));
                    moved += bytes.len();
                    prop_assert_eq!(taken.more, moved < written);
                    if let Some(before) = writer_waits && !taken.more {
                        prop_assert!(writer.woken() > before);
                        writer_waits = None;
                    }
                }
                Op::Deliver(sizes) => {
                    bench.notified();
                    let mut chunks = VecDeque::new();
                    let mut available = bench.shared.recv.available(usize::MAX);
                    let mut held_back = false;
                    for size in sizes {
                        if available == 0 {
                            held_back = true;
                            break;
                        }
                        available = available.saturating_sub(charge(size));
                        chunks.push_back(Bytes::from(sequence(delivered, size)));
                        delivered += size;
                    }
                    drop(bench.shared.recv.deliver(&mut chunks, held_back));
                    blocked = held_back;
                    prop_assert!(delivered - read <= recv + 200);
                }
                Op::Read(limit) => {
                    let mut bytes = Vec::new();
                    while bytes.len() < limit && let Some(chunk) = queue.front() {
                        let part = chunk[..chunk.len().min(limit - bytes.len())].to_vec();
                        queue.consume(part.len());
                        bytes.extend(part);
                    }
                    bench.shared.recv.report_read(&mut queue);
                    prop_assert_eq!(&bytes, &sequence(read, bytes.len()));
                    read += bytes.len();
                }
                Op::Refill => {
                    let empty = bench.shared.recv.poll_refill(&mut queue, &mut Wait::No).is_pending();
                    prop_assert_eq!(empty, queue.front().is_none());
                    if empty && blocked {
                        prop_assert!(bench.notified(), "the driver waits for an empty queue");
                        blocked = false;
                    }
                }
            }
        }
    }
}
