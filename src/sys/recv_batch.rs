//! Receive arena: buffers for one batch of received datagrams, coalesced (UDP GRO) or single.

use std::array;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use quinn_udp::RecvMeta;

use crate::util::path::{LocalIp, Path, canonical};

/// Largest UDP payload of an IPv4 packet in bytes, 65,535 - 20 - 8.
pub(crate) const MAX_DATAGRAM: usize = 65_507;
/// Most bytes of one GSO or GRO batch, the limit of a system call.
pub(super) const MAX_GSO_BYTES: usize = MAX_DATAGRAM;
/// Most datagrams of one GRO batch (Linux `UDP_MAX_SEGMENTS`).
const MAX_GRO_SEGMENTS: usize = 64;

/// Number of buffers. One holds a whole GRO batch, so a few suffice for bulk; more would only save system
/// calls when many peers send one datagram each, and cost cache.
pub(super) const BUFFERS: usize = 4;

/// Bytes of one buffer. Never too small: a UDP payload has at most 65,527 bytes, and the kernel coalesces
/// less than 65,536 with all headers.
const BUFFER_LEN: usize = 64 * 1024;

/// A receive of more bytes belongs to a stream, and the next receive finds more even if this one emptied
/// the socket.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAX_LAST_BYTES: usize = 16 * 1024;

/// Whether a receive of `count` of `free` buffers has emptied the socket, which saves a receive that
/// finds nothing. On Linux `recvmmsg` continues until it would block; later datagrams are a new event of
/// the poller. Elsewhere a receive may fill one buffer only.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn is_last(count: usize, free: usize, meta: &[RecvMeta]) -> bool {
    let bytes: usize = meta.iter().take(count).map(|meta| meta.len).sum();
    count < free && bytes < MAX_LAST_BYTES
}

/// Unknown after the receive of one datagram.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn is_last(_count: usize, _free: usize, _meta: &[RecvMeta]) -> bool {
    false
}

/// One filled buffer: datagrams of one path.
#[derive(Clone, Copy, Debug)]
struct GroBatch {
    path: Path,
    /// Bytes of each datagram but the last; never zero.
    segment_size: usize,
    /// Bytes of all datagrams.
    len: usize,
}

/// Receive arena: [`BUFFERS`] buffers of 64 KiB, reused for every receive. The 256 KiB are address space:
/// only written pages use memory.
pub(crate) struct RxBatch {
    /// All buffers in one allocation.
    memory: Vec<u8>,
    /// The contents of the first `used` buffers.
    filled: [GroBatch; BUFFERS],
    used: usize,
}

impl RxBatch {
    /// An empty arena.
    pub(crate) fn new() -> Self {
        let path = Path::to(SocketAddr::from(([0, 0, 0, 0], 0)));
        let none = GroBatch { path, segment_size: 1, len: 0 };
        // The system maps `vec![0; _]` of this size without writing to it.
        Self { memory: vec![0; BUFFERS * BUFFER_LEN], filled: [none; BUFFERS], used: 0 }
    }

    /// Whether every buffer is filled: more datagrams probably wait in the socket.
    pub(crate) fn is_full(&self) -> bool {
        self.used == BUFFERS
    }

    /// Frees all buffers.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// The received GRO batches in order: path, segment size, and datagrams of that size back to back;
    /// the last may be shorter. Addresses are [`canonical`]. The segment size is never zero. Empty
    /// datagrams are left out: packets of this protocol are not empty.
    pub(crate) fn gro_batches(&mut self) -> impl Iterator<Item = (Path, usize, &mut [u8])> {
        let filled = self.filled.iter().take(self.used);
        self.memory.chunks_exact_mut(BUFFER_LEN).zip(filled).filter_map(|(buffer, batch)| {
            let contents = buffer.get_mut(..batch.len).filter(|contents| !contents.is_empty())?;
            Some((batch.path, batch.segment_size, contents))
        })
    }

    /// Adds a datagram as if the socket had received it on `path`, to the last GRO batch if the kernel
    /// would coalesce them. Returns whether a buffer had capacity.
    pub(crate) fn push(&mut self, path: Path, datagram: &[u8]) -> bool {
        let path = Path { peer: canonical(path.peer), ..path };
        let last = self.used.checked_sub(1);
        let last = last.and_then(|last| Some((last, *self.filled.get(last)?)));
        let coalesced = last.filter(|(_, batch)| {
            batch.path == path
                && batch.len.is_multiple_of(batch.segment_size)
                && (1..=batch.segment_size).contains(&datagram.len())
                && batch.len / batch.segment_size < MAX_GRO_SEGMENTS
                && batch.len + datagram.len() <= MAX_GSO_BYTES
        });
        let (buffer, start, segment_size) = match coalesced {
            Some((last, batch)) => (last, batch.len, batch.segment_size),
            None => (self.used, 0, datagram.len().max(1)),
        };
        let len = start + datagram.len();
        let memory = self.memory.chunks_exact_mut(BUFFER_LEN).nth(buffer);
        let free = memory.and_then(|memory| memory.get_mut(start..len));
        let (Some(free), Some(batch)) = (free, self.filled.get_mut(buffer)) else { return false };
        free.copy_from_slice(datagram);
        *batch = GroBatch { path, segment_size, len };
        self.used = buffer + 1;
        true
    }

    /// Passes the free buffers to `recv` until all are filled, it fails, or it reports an empty socket.
    /// Returns whether the socket is empty. `has_local_ip`: whether the destination of a peer's datagram
    /// belongs to its path, so that answers leave from there.
    ///
    /// # Errors
    ///
    /// The error of `recv` if nothing was received before it; otherwise the next call reports it.
    pub(super) fn fill(
        &mut self,
        has_local_ip: impl Fn(SocketAddr) -> bool,
        mut recv: impl FnMut(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<(usize, bool)>,
    ) -> io::Result<bool> {
        let before = self.used;
        while !self.is_full() {
            let mut free = self.memory.chunks_exact_mut(BUFFER_LEN).skip(self.used);
            let mut buffers: [_; BUFFERS] =
                array::from_fn(|_| IoSliceMut::new(free.next().unwrap_or_default()));
            let mut meta = [RecvMeta::default(); BUFFERS];
            let free = BUFFERS - self.used;
            let (received, is_last) = match recv(&mut buffers[..free], &mut meta[..free]) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if self.used == before => return Err(error),
                // The socket reports a lasting error again; received datagrams come first.
                Err(error) => return Ok(error.kind() == io::ErrorKind::WouldBlock),
            };
            for meta in meta.iter().take(received) {
                let dst = meta.dst_ip.filter(|_| has_local_ip(meta.addr));
                let local = dst.map_or(LocalIp::ANY, LocalIp::of_destination);
                self.filled[self.used] = GroBatch {
                    path: Path { peer: canonical(meta.addr), local },
                    segment_size: meta.stride.max(1),
                    len: meta.len.min(BUFFER_LEN),
                };
                self.used += 1;
            }
            if is_last {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxBatch").field("filled", &&self.filled[..self.used]).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn pushed_datagrams_coalesce_as_received_ones() {
        let peer = |n| SocketAddr::from(([10, 0, 0, n], 1));
        let mut batch = RxBatch::new();
        for (from, len) in [(1, 10), (1, 10), (1, 3), (1, 10), (2, 4), (2, 5)] {
            assert!(batch.push(Path::to(peer(from)), &vec![from; len]));
        }
        assert!(batch.is_full());
        assert!(!batch.push(Path::to(peer(3)), &[0]));
        // A datagram of the same size or shorter still joins the last GRO batch.
        assert!(batch.push(Path::to(peer(2)), &[2; 5]));
        let received: Vec<_> = batch
            .gro_batches()
            .map(|(path, size, contents)| (path.peer, size, contents.len()))
            .collect();
        let expected = [(peer(1), 10, 23), (peer(1), 10, 10), (peer(2), 4, 4), (peer(2), 5, 10)];
        assert_eq!(received, expected);
        batch.clear();
        assert_eq!(batch.gro_batches().count(), 0);
    }

    #[test]
    fn datagrams_received_before_an_error_are_kept() {
        let mut batch = RxBatch::new();
        let mut calls = 0;
        let result = batch.fill(
            |_| false,
            |buffers, meta| {
                calls += 1;
                match calls {
                    1 => Err(ErrorKind::Interrupted.into()),
                    2 => {
                        assert_eq!((buffers.len(), meta.len()), (BUFFERS, BUFFERS));
                        buffers[0][..3].copy_from_slice(b"abc");
                        (meta[0].len, meta[0].stride) = (3, 3);
                        Ok((1, false))
                    }
                    _ => {
                        assert_eq!((buffers.len(), meta.len()), (BUFFERS - 1, BUFFERS - 1));
                        Err(io::Error::other("later"))
                    }
                }
            },
        );
        assert!(!result.unwrap());
        assert_eq!(calls, 3);
        assert!(batch.gro_batches().map(|(_, _, contents)| contents.to_vec()).eq([b"abc"]));
        assert!(batch.fill(|_| false, |_, _| Err(io::Error::other("now"))).is_err());
    }
}
