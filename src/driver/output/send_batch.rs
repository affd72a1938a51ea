//! Send batch: datagrams of one turn, sent with UDP GSO.
//!
//! A send batch is one contiguous buffer of datagrams back to back, so datagrams of equal size to one address
//! are a GSO batch, which one system call sends (Linux UDP_SEGMENT). A datagram begins with reserved bytes
//! for headers and is not moved once written, except where FEC leaves its header out. The cipher seals up to
//! [`SEAL_PACKETS`] datagrams at a time, before they are sent.

use std::array;
use std::io;
use std::iter;
use std::mem;

use crate::stats::EndpointStats;
use crate::sys::{SendFault, Socket, Transmit, classify_send, count};
use crate::util::path::Path;

/// Bytes at which a send batch is flushed: two full GSO batches, which stay in the CPU cache. A little less
/// than twice [`MAX_GSO_BYTES`], so that no third GSO batch begins.
const BATCH_BYTES: usize = 128_000;
/// Datagrams at which a send batch is flushed.
const BATCH_PACKETS: usize = 256;
/// Most datagrams passed to the cipher at a time.
const SEAL_PACKETS: usize = 32;
/// Most bytes of one GSO batch, below the 65,507 bytes of the largest UDP payload over IPv4: 46 datagrams of
/// 1,400 bytes, or 44 of 1,472 bytes.
const MAX_GSO_BYTES: usize = 65_000;

#[derive(Clone, Copy, Debug)]
struct Packet {
    path: Path,
    len: usize,
}

#[derive(Debug)]
pub(crate) enum Flushed {
    /// Everything was sent, or dropped like loss in the network.
    All,
    /// The send would block: the rest stays in the batch.
    Blocked,
    /// The socket has failed for good.
    Fatal(io::Error),
}

#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    bytes: Vec<u8>,
    packets: Vec<Packet>,
    /// Datagrams and bytes already sealed.
    sealed: (usize, usize),
    /// Datagrams and bytes already sent.
    sent: (usize, usize),
    /// Paths of datagrams that failed with EMSGSIZE since the last `take_too_large`, and their size in
    /// bytes.
    too_large: Vec<(Path, usize)>,
    /// Paths whose local IP the system did not take since the last `take_gone`.
    gone: Vec<Path>,
    /// The last transient error since the last `take_fault`.
    fault: Option<io::Error>,
}

impl SendBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Datagrams not sent yet.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.packets.len() - self.sent.0
    }

    /// Bytes that the buffer of datagrams takes.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.packets.len() >= BATCH_PACKETS
    }

    /// Datagrams in the batch, sent ones included.
    pub(crate) fn datagrams(&self) -> usize {
        self.packets.len()
    }

    /// Path and length of each datagram after the first `before`.
    pub(crate) fn appended(&self, before: usize) -> impl Iterator<Item = (Path, usize)> + '_ {
        self.packets.iter().skip(before).map(|packet| (packet.path, packet.len))
    }

    /// Bytes of all datagrams in the batch.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Begins a datagram and reserves `head` bytes for headers. Returns the offset of its start.
    #[inline]
    pub(crate) fn begin(&mut self, head: usize) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + head, 0);
        start
    }

    /// The buffer that the begun datagram is appended to.
    #[inline]
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Removes `count` reserved bytes at `at`, within the datagram begun last.
    pub(crate) fn remove(&mut self, at: usize, count: usize) {
        let end = (at + count).min(self.bytes.len());
        self.bytes.drain(at.min(end)..end);
    }

    /// Discards the datagram begun at `start`.
    pub(crate) fn cancel(&mut self, start: usize) {
        self.bytes.truncate(start);
    }

    /// Completes the datagram begun at `start`, for `path`.
    #[inline]
    pub(crate) fn commit(&mut self, path: Path, start: usize) {
        self.packets.push(Packet { path, len: self.bytes.len() - start });
    }

    /// Datagrams of `len` bytes after which the batch [is full](Self::is_full).
    #[inline]
    pub(crate) fn capacity_left(&self, len: usize) -> usize {
        let bytes = BATCH_BYTES.saturating_sub(self.bytes.len()).div_ceil(len.max(1));
        bytes.min(BATCH_PACKETS.saturating_sub(self.packets.len()))
    }

    /// Appends the datagrams for `path` that `write` writes, all of equal length. Returns their number, which
    /// `write` returns.
    pub(crate) fn append_equal(
        &mut self,
        path: Path,
        write: impl FnOnce(&mut Vec<u8>) -> usize,
    ) -> usize {
        let start = self.bytes.len();
        let count = write(&mut self.bytes);
        let len = (self.bytes.len() - start) / count.max(1);
        debug_assert_eq!(len * count, self.bytes.len() - start, "datagrams differ in length");
        self.packets.extend(iter::repeat_n(Packet { path, len }, count));
        count
    }

    /// Appends `copies` copies of the last datagram, which must be sealed if there is a cipher.
    pub(crate) fn duplicate(&mut self, copies: u8) {
        let Some(last) = self.packets.last().copied() else { return };
        for _ in 0..copies {
            self.bytes.extend_from_within(self.bytes.len() - last.len..);
            self.packets.push(last);
        }
        self.sealed = (self.packets.len(), self.bytes.len());
    }

    /// Appends a datagram that no stage changes. All datagrams before it must be sealed.
    pub(crate) fn push_sealed(&mut self, path: Path, datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.packets.push(Packet { path, len: datagram.len() });
        self.sealed = (self.packets.len(), self.bytes.len());
    }

    /// Passes the datagrams that are not sealed yet to `seal`, up to [`SEAL_PACKETS`] at a time.
    pub(crate) fn seal(&mut self, mut seal: impl FnMut(&mut [&mut [u8]])) {
        let mut rest = self.bytes.get_mut(self.sealed.1..).unwrap_or_default();
        let mut lens = self.packets.iter().skip(self.sealed.0).map(|packet| packet.len);
        loop {
            let mut packets: [&mut [u8]; SEAL_PACKETS] = array::from_fn(|_| Default::default());
            let mut count = 0;
            for (slot, len) in packets.iter_mut().zip(&mut lens) {
                (*slot, rest) = mem::take(&mut rest).split_at_mut(len);
                count += 1;
            }
            if count == 0 {
                break;
            }
            seal(&mut packets[..count]);
        }
        self.sealed = (self.packets.len(), self.bytes.len());
    }

    /// Destinations of datagrams above the MTU of the route, which failed with EMSGSIZE or left in IP
    /// fragments, and their size in bytes.
    pub(crate) fn take_too_large(&mut self) -> Vec<(Path, usize)> {
        mem::take(&mut self.too_large)
    }

    /// Paths whose local IP the system does not take as a source.
    pub(crate) fn take_gone(&mut self) -> Vec<Path> {
        mem::take(&mut self.gone)
    }

    pub(crate) fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take()
    }

    /// Passes each datagram to `send` instead of a socket.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn drain(&mut self, mut send: impl FnMut(Path, &[u8])) {
        let mut rest = self.bytes.as_slice();
        for packet in self.packets.drain(..) {
            let (datagram, others) = rest.split_at(packet.len);
            send(packet.path, datagram);
            rest = others;
        }
        self.bytes.clear();
        (self.sealed, self.sent) = ((0, 0), (0, 0));
    }

    /// Frees the buffers, unless datagrams wait in them.
    pub(crate) fn release_memory(&mut self) {
        if self.is_empty() {
            (self.bytes, self.packets) = (Vec::new(), Vec::new());
        }
    }

    /// Sends the batch. Transient errors and errors of one destination count as loss.
    pub(crate) fn flush(&mut self, socket: &mut impl Socket, stats: &mut EndpointStats) -> Flushed {
        while let Some((path, segment_size, bytes, packets)) =
            self.next_gso_batch(socket.max_gso_segments())
        {
            let contents = &self.bytes[self.sent.1..self.sent.1 + bytes];
            let Path { peer: dst, local } = path;
            let sent = socket.send(&Transmit { dst, segment_size, contents, local });
            if socket.take_source_gone() && !self.gone.contains(&path) {
                self.gone.push(path);
            }
            if socket.take_above_route_mtu() {
                self.too_large.push((path, segment_size));
            }
            match sent {
                Ok(accepted) => {
                    let accepted_datagrams = accepted.div_ceil(segment_size.max(1)).min(packets);
                    stats.sent.datagrams += accepted_datagrams as u64;
                    stats.sent.bytes += accepted as u64;
                    self.sent = (self.sent.0 + accepted_datagrams, self.sent.1 + accepted);
                    if accepted_datagrams < packets {
                        return Flushed::Blocked;
                    }
                }
                Err(error) => match classify_send(&error) {
                    SendFault::Blocked => return Flushed::Blocked,
                    SendFault::Interrupted => {}
                    SendFault::Fatal => return Flushed::Fatal(error),
                    fault => {
                        count(&mut stats.send_errors, &error);
                        if fault == SendFault::TooLarge {
                            self.too_large.push((path, segment_size));
                        }
                        self.fault = Some(error);
                        self.sent = (self.sent.0 + packets, self.sent.1 + bytes);
                    }
                },
            }
        }
        self.bytes.clear();
        self.packets.clear();
        (self.sealed, self.sent) = ((0, 0), (0, 0));
        Flushed::All
    }

    /// The next GSO batch: datagrams of equal size on one path, except that the last may be shorter. Returns
    /// path, segment size, bytes and datagrams.
    fn next_gso_batch(&self, max_segments: usize) -> Option<(Path, usize, usize, usize)> {
        let rest = self.packets.get(self.sent.0..)?;
        let first = rest.first()?;
        let (mut bytes, mut count) = (first.len, 1);
        for packet in &rest[1..] {
            let fits = packet.path == first.path
                && packet.len <= first.len
                && count < max_segments
                && bytes + packet.len <= MAX_GSO_BYTES;
            if !fits {
                break;
            }
            (bytes, count) = (bytes + packet.len, count + 1);
            if packet.len < first.len {
                break;
            }
        }
        Some((first.path, first.len, bytes, count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::SocketAddr;
    use std::task::{Context, Poll};

    use super::*;
    use crate::sys::RxBatch;
    use crate::util::path::LocalIp;

    /// Answers each send with the next of `answers`, then accepts everything.
    struct Script {
        answers: VecDeque<io::Result<usize>>,
        sends: Vec<(u16, usize, usize)>,
        max_segments: usize,
        /// A host that has lost all its addresses, and whether it had to report that.
        lost: bool,
        source_gone: bool,
    }

    impl Socket for Script {
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(addr(0))
        }
        fn max_gso_segments(&self) -> usize {
            self.max_segments
        }
        fn recv(&mut self, _: &mut RxBatch) -> io::Result<()> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
            let len = transmit.contents.len();
            self.sends.push((transmit.dst.port(), transmit.segment_size, len));
            self.source_gone = self.lost && transmit.local != LocalIp::ANY;
            self.answers.pop_front().unwrap_or(Ok(len))
        }
        fn take_source_gone(&mut self) -> bool {
            mem::take(&mut self.source_gone)
        }
        fn poll_recv_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
        fn poll_send_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn script(answers: impl IntoIterator<Item = io::Result<usize>>) -> Script {
        let (answers, sends) = (answers.into_iter().collect(), Vec::new());
        Script { answers, sends, max_segments: 44, lost: false, source_gone: false }
    }

    fn batch(packets: &[(u16, usize)]) -> SendBatch {
        let mut batch = SendBatch::default();
        for (port, len) in packets {
            let start = batch.begin(0);
            batch.tail().extend(iter::repeat_n(7, *len));
            batch.commit(Path::to(addr(*port)), start);
        }
        batch
    }

    #[test]
    fn gso_batch_holds_equal_datagrams_to_one_peer_and_ends_at_a_shorter_one() {
        let mut socket = script([]);
        let mut stats = EndpointStats::default();
        let packets = [(1, 100), (1, 100), (1, 40), (1, 100), (2, 100), (2, 120), (1, 9)];
        let flushed = batch(&packets).flush(&mut socket, &mut stats);
        assert!(matches!(flushed, Flushed::All));
        assert_eq!(
            socket.sends,
            [(1, 100, 240), (1, 100, 100), (2, 100, 100), (2, 120, 120), (1, 9, 9)]
        );
        assert_eq!((stats.sent.datagrams, stats.sent.bytes), (7, 569));
    }

    #[test]
    fn equal_datagrams_appended_at_once_fill_the_batch_and_not_more() {
        let path = Path::to(addr(1));
        for len in [1, 999, 1_400, BATCH_BYTES + 1] {
            let mut batch = SendBatch::default();
            batch.push_sealed(path, &[7; 10]);
            let count = batch.capacity_left(len);
            let write = |tail: &mut Vec<u8>| {
                tail.resize(tail.len() + (count - 1) * len, 7);
                count - 1
            };
            assert_eq!(batch.append_equal(path, write), count - 1);
            assert!(!batch.is_full() && batch.capacity_left(len) == 1, "{len}");
            batch.push_sealed(path, &vec![7; len]);
            assert!(batch.is_full() && batch.capacity_left(len) == 0, "{len}");
            let mut socket = script([]);
            batch.flush(&mut socket, &mut EndpointStats::default());
            assert_eq!(socket.sends.iter().map(|(_, _, len)| len).sum::<usize>(), 10 + count * len);
        }
        let mut batch = SendBatch::default();
        assert_eq!(batch.append_equal(path, |_| 0), 0);
        assert!(batch.is_empty());
    }

    #[test]
    fn release_of_memory_keeps_datagrams_that_wait() {
        let mut socket = script([Err(io::ErrorKind::WouldBlock.into())]);
        let mut stats = EndpointStats::default();
        let mut batch = batch(&[(1, 100)]);
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::Blocked));
        batch.release_memory();
        assert_eq!((batch.len(), batch.bytes()), (1, 100));
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::All));
        batch.release_memory();
        assert_eq!((batch.bytes.capacity(), batch.packets.capacity()), (0, 0));
    }

    #[test]
    fn gso_batch_leaves_from_one_address() {
        let mut socket = script([]);
        let mut batch = SendBatch::default();
        for host in [Some(1), Some(1), Some(2), None, None] {
            let start = batch.begin(50);
            let ip = |host| LocalIp::of_destination([127, 0, 0, host].into());
            let local = host.map_or(LocalIp::ANY, ip);
            batch.commit(Path { peer: addr(1), local }, start);
        }
        batch.flush(&mut socket, &mut EndpointStats::default());
        assert_eq!(socket.sends, [(1, 50, 100), (1, 50, 50), (1, 50, 100)]);
    }

    #[test]
    fn every_path_is_reported_whose_address_is_gone() {
        let error = io::ErrorKind::HostUnreachable.into();
        let mut socket = Script { lost: true, ..script([Ok(50), Err(error)]) };
        let mut batch = SendBatch::default();
        let local = LocalIp::of_destination([127, 0, 0, 1].into());
        for port in [1, 2, 3, 3, 1] {
            let start = batch.begin(50);
            batch.commit(Path { peer: addr(port), local }, start);
        }
        let start = batch.begin(50);
        batch.commit(Path::to(addr(4)), start);
        batch.flush(&mut socket, &mut EndpointStats::default());
        let ports: Vec<_> = batch.take_gone().iter().map(|path| path.peer.port()).collect();
        assert_eq!(ports, [1, 2, 3]);
        assert!(batch.take_gone().is_empty());
    }

    #[test]
    fn gso_batch_is_bounded_by_the_sockets_segment_limit() {
        let mut socket = script([]);
        socket.max_segments = 2;
        batch(&[(1, 50); 5]).flush(&mut socket, &mut EndpointStats::default());
        assert_eq!(socket.sends, [(1, 50, 100), (1, 50, 100), (1, 50, 50)]);
    }

    #[test]
    fn blocked_socket_sends_the_rest_later() {
        let mut socket = script([Ok(100), Err(io::ErrorKind::WouldBlock.into())]);
        let mut stats = EndpointStats::default();
        let mut batch = batch(&[(1, 50), (1, 50), (1, 50), (2, 10)]);
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::Blocked));
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::Blocked));
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::All));
        assert!(batch.is_empty());
        assert_eq!(socket.sends, [(1, 50, 150), (1, 50, 50), (1, 50, 50), (2, 10, 10)]);
        assert_eq!(stats.sent.datagrams, 4);
    }

    #[test]
    fn send_error_of_one_peer_drops_its_datagrams_only() {
        let mut socket = script([Err(io::ErrorKind::HostUnreachable.into())]);
        let mut stats = EndpointStats::default();
        let flushed = batch(&[(1, 50), (1, 50), (2, 10)]).flush(&mut socket, &mut stats);
        assert!(matches!(flushed, Flushed::All));
        assert_eq!((stats.send_errors.total(), stats.sent.datagrams), (1, 1));
    }

    #[test]
    fn duplicates_follow_the_original_as_sealed() {
        let mut batch = SendBatch::default();
        let start = batch.begin(1);
        batch.tail().extend_from_slice(b"abc");
        batch.commit(Path::to(addr(1)), start);
        batch.seal(|packets| packets.iter_mut().for_each(|packet| packet[0] += 1));
        batch.duplicate(2);
        batch.seal(|packets| packets.iter_mut().for_each(|packet| packet[0] += 1));
        assert_eq!(batch.bytes, b"\x01abc\x01abc\x01abc");
        let mut socket = script([]);
        batch.flush(&mut socket, &mut EndpointStats::default());
        assert_eq!(socket.sends, [(1, 4, 12)]);
    }

    #[test]
    fn seal_covers_each_datagram_once() {
        let lens: Vec<usize> = (0..SEAL_PACKETS * 2 + 5).map(|i| 1 + i % 7).collect();
        let mut batch = SendBatch::default();
        let (mut sealed, mut calls) = (Vec::new(), 0);
        for (i, len) in lens.iter().enumerate() {
            let start = batch.begin(*len);
            batch.commit(Path::to(addr(1)), start);
            if [3, 4, lens.len() - 1].contains(&i) {
                batch.seal(|packets| {
                    calls += 1;
                    sealed.extend(packets.iter().map(|packet| packet.len()));
                });
            }
        }
        assert_eq!((sealed, calls), (lens, 1 + 1 + 2));
        let start = batch.begin(9);
        batch.cancel(start);
        batch.seal(|_| panic!("nothing is left to seal"));
    }
}
