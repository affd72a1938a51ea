//! Datagrams on their way out.
//!
//! A batch is one run of bytes: datagrams stand back to back, so equal ones for the same peer are
//! a train that leaves in a single system call. Stages that add a header leave room for it by
//! starting the datagram earlier; nothing moves a datagram once it is written. The cipher seals
//! many at a time, before they leave.

use std::array;
use std::io;
use std::mem;
use std::net::SocketAddr;

use crate::stats::EndpointStats;
use crate::sys::{SendFault, Socket, Transmit, classify_send, count};

/// Bytes of a batch at which it is sent: two full trains, which stay in the cache. A little less
/// than [`MAX_GSO_BYTES`] allows, so that no third one begins.
const BATCH: usize = 128_000;
/// Datagrams of a batch beyond which it is sent.
const BATCH_PACKETS: usize = 256;
/// Datagrams that are sealed at a time.
const SEAL: usize = 32;
/// Most bytes one train may have.
const MAX_GSO_BYTES: usize = 65_000;

#[derive(Clone, Copy, Debug)]
struct Packet {
    dst: SocketAddr,
    len: usize,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum Flushed {
    /// Everything left or was lost as the network loses things.
    All,
    /// The socket takes no more now; what is left waits.
    Blocked,
    /// The socket cannot be used any more.
    Fatal(io::Error),
}

#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    bytes: Vec<u8>,
    packets: Vec<Packet>,
    /// Packets and bytes already sealed, and already sent.
    sealed: (usize, usize),
    sent: (usize, usize),
    /// Destinations that refused a datagram for its size since the last look, and that size.
    too_large: Vec<(SocketAddr, usize)>,
    /// The last error that was taken as loss, since the last look.
    fault: Option<io::Error>,
}

impl SendBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Datagrams that wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.packets.len() - self.sent.0
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH || self.packets.len() >= BATCH_PACKETS
    }

    /// Bytes of all datagrams.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Begins a datagram with room for `head` bytes of headers. Returns where it starts.
    #[inline]
    pub(crate) fn begin(&mut self, head: usize) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + head, 0);
        start
    }

    /// Where the datagram that was begun is written to.
    #[inline]
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Takes back the datagram that was begun at `start`.
    pub(crate) fn cancel(&mut self, start: usize) {
        self.bytes.truncate(start);
    }

    /// What was begun at `start` is a datagram for `dst`.
    #[inline]
    pub(crate) fn commit(&mut self, dst: SocketAddr, start: usize) {
        self.packets.push(Packet { dst, len: self.bytes.len() - start });
    }

    /// Repeats the last datagram, which is sealed if there is a cipher, as it is.
    pub(crate) fn repeat(&mut self, copies: u8) {
        let Some(last) = self.packets.last().copied() else { return };
        for _ in 0..copies {
            self.bytes.extend_from_within(self.bytes.len() - last.len..);
            self.packets.push(last);
        }
        self.sealed = (self.packets.len(), self.bytes.len());
    }

    /// Appends a datagram that leaves as it is. What came before is sealed already.
    pub(crate) fn push_sealed(&mut self, dst: SocketAddr, datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.packets.push(Packet { dst, len: datagram.len() });
        self.sealed = (self.packets.len(), self.bytes.len());
    }

    /// Seals what is not sealed yet, some datagrams at a time.
    pub(crate) fn seal(&mut self, mut seal: impl FnMut(&mut [&mut [u8]])) {
        let mut rest = self.bytes.get_mut(self.sealed.1..).unwrap_or_default();
        let mut lens = self.packets.iter().skip(self.sealed.0).map(|packet| packet.len);
        loop {
            let mut packets: [&mut [u8]; SEAL] = array::from_fn(|_| Default::default());
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

    /// Destinations that refused a datagram for its size, and that size.
    pub(crate) fn take_too_large(&mut self) -> Vec<(SocketAddr, usize)> {
        mem::take(&mut self.too_large)
    }

    /// The last error that was taken as loss.
    pub(crate) fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take()
    }

    /// Sends what is there. Errors that concern one destination or one moment count as loss.
    pub(crate) fn flush(&mut self, socket: &mut impl Socket, stats: &mut EndpointStats) -> Flushed {
        while let Some((dst, segment_size, bytes, packets)) =
            self.next_gso_batch(socket.max_gso_segments())
        {
            let contents = &self.bytes[self.sent.1..self.sent.1 + bytes];
            match socket.send(&Transmit { dst, segment_size, contents }) {
                Ok(accepted) => {
                    let gone = accepted.div_ceil(segment_size.max(1)).min(packets);
                    stats.sent_datagrams += gone as u64;
                    stats.sent_bytes += accepted as u64;
                    self.sent = (self.sent.0 + gone, self.sent.1 + accepted);
                    if gone < packets {
                        return Flushed::Blocked;
                    }
                }
                Err(error) => match classify_send(&error) {
                    SendFault::Blocked => return Flushed::Blocked,
                    SendFault::Interrupted => {}
                    SendFault::Fatal => return Flushed::Fatal(error),
                    fault => {
                        stats.send_errors += 1;
                        count(&mut stats.send_errors_by_class, &error);
                        if fault == SendFault::TooLarge {
                            self.too_large.push((dst, segment_size));
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

    /// The next run of equal datagrams for one destination, of which the last may be shorter:
    /// destination, datagram size, bytes, datagrams.
    fn next_gso_batch(&self, longest: usize) -> Option<(SocketAddr, usize, usize, usize)> {
        let rest = self.packets.get(self.sent.0..)?;
        let first = rest.first()?;
        let (mut bytes, mut count) = (first.len, 1);
        for packet in &rest[1..] {
            let fits = packet.dst == first.dst
                && packet.len <= first.len
                && count < longest
                && bytes + packet.len <= MAX_GSO_BYTES;
            if !fits {
                break;
            }
            (bytes, count) = (bytes + packet.len, count + 1);
            if packet.len < first.len {
                break;
            }
        }
        Some((first.dst, first.len, bytes, count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::{Context, Poll};

    use super::*;
    use crate::sys::RxBatch;

    /// Answers each send with the next of `answers`, then accepts everything.
    struct Script {
        answers: VecDeque<io::Result<usize>>,
        sends: Vec<(u16, usize, usize)>,
        max_train: usize,
    }

    impl Socket for Script {
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(addr(0))
        }
        fn max_gso_segments(&self) -> usize {
            self.max_train
        }
        fn recv(&mut self, _: &mut RxBatch) -> io::Result<()> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
            let len = transmit.contents.len();
            self.sends.push((transmit.dst.port(), transmit.segment_size, len));
            self.answers.pop_front().unwrap_or(Ok(len))
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
        Script { answers: answers.into_iter().collect(), sends: Vec::new(), max_train: 44 }
    }

    fn batch(packets: &[(u16, usize)]) -> SendBatch {
        let mut batch = SendBatch::default();
        for (port, len) in packets {
            let start = batch.begin(0);
            batch.tail().extend(std::iter::repeat_n(7, *len));
            batch.commit(addr(*port), start);
        }
        batch
    }

    #[test]
    fn equal_datagrams_of_one_peer_share_a_send_and_a_shorter_one_ends_it() {
        let mut socket = script([]);
        let mut stats = EndpointStats::default();
        let packets = [(1, 100), (1, 100), (1, 40), (1, 100), (2, 100), (2, 120), (1, 9)];
        let flushed = batch(&packets).flush(&mut socket, &mut stats);
        assert!(matches!(flushed, Flushed::All));
        assert_eq!(
            socket.sends,
            [(1, 100, 240), (1, 100, 100), (2, 100, 100), (2, 120, 120), (1, 9, 9)]
        );
        assert_eq!((stats.sent_datagrams, stats.sent_bytes), (7, 569));
    }

    #[test]
    fn a_train_is_no_longer_than_the_socket_allows() {
        let mut socket = script([]);
        socket.max_train = 2;
        batch(&[(1, 50); 5]).flush(&mut socket, &mut EndpointStats::default());
        assert_eq!(socket.sends, [(1, 50, 100), (1, 50, 100), (1, 50, 50)]);
    }

    #[test]
    fn what_a_blocked_socket_leaves_is_sent_later() {
        let mut socket = script([Ok(100), Err(io::ErrorKind::WouldBlock.into())]);
        let mut stats = EndpointStats::default();
        let mut batch = batch(&[(1, 50), (1, 50), (1, 50), (2, 10)]);
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::Blocked));
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::Blocked));
        assert!(matches!(batch.flush(&mut socket, &mut stats), Flushed::All));
        assert!(batch.is_empty());
        assert_eq!(socket.sends, [(1, 50, 150), (1, 50, 50), (1, 50, 50), (2, 10, 10)]);
        assert_eq!(stats.sent_datagrams, 4);
    }

    #[test]
    fn an_unreachable_peer_costs_its_own_datagrams_only() {
        let mut socket = script([Err(io::ErrorKind::HostUnreachable.into())]);
        let mut stats = EndpointStats::default();
        let flushed = batch(&[(1, 50), (1, 50), (2, 10)]).flush(&mut socket, &mut stats);
        assert!(matches!(flushed, Flushed::All));
        assert_eq!((stats.send_errors, stats.sent_datagrams), (1, 1));
    }

    #[test]
    fn copies_follow_their_original_as_it_was_sealed() {
        let mut batch = SendBatch::default();
        let start = batch.begin(1);
        batch.tail().extend_from_slice(b"abc");
        batch.commit(addr(1), start);
        batch.seal(|packets| packets.iter_mut().for_each(|packet| packet[0] += 1));
        batch.repeat(2);
        batch.seal(|packets| packets.iter_mut().for_each(|packet| packet[0] += 1));
        assert_eq!(batch.bytes, b"\x01abc\x01abc\x01abc");
        let mut socket = script([]);
        batch.flush(&mut socket, &mut EndpointStats::default());
        assert_eq!(socket.sends, [(1, 4, 12)]);
    }

    #[test]
    fn each_datagram_is_sealed_once_and_whole() {
        let lens: Vec<usize> = (0..SEAL * 2 + 5).map(|i| 1 + i % 7).collect();
        let mut batch = SendBatch::default();
        let (mut sealed, mut looks) = (Vec::new(), 0);
        for (i, len) in lens.iter().enumerate() {
            let start = batch.begin(*len);
            batch.commit(addr(1), start);
            if [3, 4, lens.len() - 1].contains(&i) {
                batch.seal(|packets| {
                    looks += 1;
                    sealed.extend(packets.iter().map(|packet| packet.len()));
                });
            }
        }
        assert_eq!((sealed, looks), (lens, 1 + 1 + 2));
        let start = batch.begin(9);
        batch.cancel(start);
        batch.seal(|_| panic!("nothing is left to seal"));
    }
}
