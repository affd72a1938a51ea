//! The socket: what the driver needs of one, and the real one.
//!
//! Datagrams move in trains: datagrams of equal size between the same two addresses, back to back
//! in memory, of which the last may be shorter. Where the system offers segmentation and
//! coalescing (GSO and GRO), a train is one system call; elsewhere every train has one datagram.

mod bind;
mod buffers;
pub(crate) mod dscp;
mod errors;
mod ip_fragmentation;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod transport;
mod transport_socket;
mod udp;

use std::array;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use quinn_udp::RecvMeta;

pub(crate) use crate::sys::transport::Transmit;

pub(crate) use bind::check_route;
pub(crate) use buffers::Grant;
pub(crate) use errors::{RecvFault, SendFault, classify_recv, classify_send, count};
pub(crate) use transport_socket::TransportSocket;
pub(crate) use udp::UdpSocket;

/// Bytes of the largest datagram: the largest payload that fits an IP packet of either version.
pub(crate) const MAX_DATAGRAM: usize = 65_507;
/// Most bytes of one train.
const MAX_TRAIN_BYTES: usize = MAX_DATAGRAM;

/// Receive buffers of a batch. One holds a whole train, so a few suffice for bulk; more would only
/// save system calls where many peers send one datagram each, and costs cache.
const BUFFERS: usize = 4;

/// Bytes of one receive buffer.
///
/// No datagram is cut short by it: a UDP payload is at most 65,527 bytes, and what the kernel
/// coalesces for one receive stays below 65,536 with all its headers.
const BUFFER: usize = 64 * 1024;

/// What the driver needs of a socket; a scripted one and a simulated network implement it in tests.
pub(crate) trait Socket: Send + 'static {
    /// Returns the address the socket is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Whether datagrams for `peer` can leave from this socket at all.
    ///
    /// The error says why they cannot.
    fn check_peer(&self, _peer: SocketAddr) -> io::Result<()> {
        Ok(())
    }

    /// Puts `socket` in its place.
    ///
    /// The error says that it cannot be replaced; then nothing has changed.
    fn replace(&mut self, _socket: UdpSocket) -> io::Result<()> {
        let text = "the endpoint runs on a transport, only a UDP socket can be replaced";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    /// Lets datagrams be cut into fragments on their way where the path is too narrow for them, or
    /// leaves that to the system again, which may forbid it.
    fn set_ip_fragmentation(&mut self, _allow: bool) {}

    /// Datagrams one send may carry as a train of equal sizes: 1 where the system does not segment.
    /// May drop to 1 at run time, when segmentation turns out not to work.
    fn max_gso_segments(&self) -> usize;

    /// Fills the free buffers of the batch, and returns as soon as there are none left or nothing
    /// more is there.
    ///
    /// `Err` means that nothing was received: [`WouldBlock`](io::ErrorKind::WouldBlock) when there
    /// was nothing, anything else is for [`classify_recv`] to judge.
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()>;

    /// Sends a train, in several system calls where it takes them.
    ///
    /// Returns the bytes that are gone, always whole datagrams. Fewer than all of them means that
    /// the rest would block or failed: offer it again when [`Self::poll_send_ready`] says so, and
    /// it blocks or fails with nothing before it. `Err` means that nothing of `contents` is gone;
    /// [`classify_send`] says what that error stands for.
    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize>;

    /// Ready when a receive may find something. After [`Self::recv`] found nothing, and for a new
    /// socket, that is only when something arrived.
    ///
    /// An error means that the runtime's I/O driver is gone, and the socket with it.
    fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready when a send may succeed. After [`Self::send`] would block that is only when there is
    /// room again. A new socket counts as blocked until its runtime has heard of it.
    ///
    /// An error means that the runtime's I/O driver is gone, and the socket with it.
    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// One filled receive buffer.
#[derive(Clone, Copy, Debug)]
struct Train {
    from: SocketAddr,
    /// Bytes of each datagram but the last; never zero.
    segment_size: usize,
    /// Bytes of all of them.
    len: usize,
}

/// Receive arena: a few buffers as wide as a train can be, reused for ever.
///
/// Its 256 KiB are address space: only what datagrams were written to becomes memory.
pub(crate) struct RxBatch {
    /// All buffers in one piece.
    memory: Vec<u8>,
    /// What the first `used` buffers hold.
    trains: [Train; BUFFERS],
    used: usize,
}

impl RxBatch {
    /// An empty batch.
    pub(crate) fn new() -> Self {
        let none = Train { from: SocketAddr::from(([0, 0, 0, 0], 0)), segment_size: 1, len: 0 };
        // Zeroed memory of this size comes from the system untouched.
        Self { memory: vec![0; BUFFERS * BUFFER], trains: [none; BUFFERS], used: 0 }
    }

    /// Whether every buffer was filled, so that more is likely waiting.
    pub(crate) fn is_full(&self) -> bool {
        self.used == BUFFERS
    }

    /// Forgets what was received.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// What was received, in order: source, stride, and datagrams of `stride` bytes back to back,
    /// the last of which may be shorter.
    ///
    /// Sources are [`canonical`]. The stride is never zero. Empty datagrams are left out:
    /// they carry nothing for anyone.
    pub(crate) fn trains(&mut self) -> impl Iterator<Item = (SocketAddr, usize, &mut [u8])> {
        let trains = self.trains.iter().take(self.used);
        self.memory.chunks_exact_mut(BUFFER).zip(trains).filter_map(|(buffer, train)| {
            let contents = buffer.get_mut(..train.len).filter(|contents| !contents.is_empty())?;
            Some((train.from, train.segment_size, contents))
        })
    }

    /// Adds a datagram as if it had been received, to the last train where coalescing would do so.
    /// Returns whether there was room.
    pub(crate) fn push(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        let from = canonical(from);
        let last = self.used.checked_sub(1);
        let last = last.and_then(|last| Some((last, *self.trains.get(last)?)));
        let coalesced = last.filter(|(_, train)| {
            train.from == from
                && train.len.is_multiple_of(train.segment_size)
                && (1..=train.segment_size).contains(&datagram.len())
                && train.len / train.segment_size < 64
                && train.len + datagram.len() <= MAX_TRAIN_BYTES
        });
        let (buffer, start, stride) = match coalesced {
            Some((last, train)) => (last, train.len, train.segment_size),
            None => (self.used, 0, datagram.len().max(1)),
        };
        let len = start + datagram.len();
        let memory = self.memory.chunks_exact_mut(BUFFER).nth(buffer);
        let room = memory.and_then(|memory| memory.get_mut(start..len));
        let (Some(room), Some(train)) = (room, self.trains.get_mut(buffer)) else { return false };
        room.copy_from_slice(datagram);
        *train = Train { from, segment_size: stride, len };
        self.used = buffer + 1;
        true
    }

    /// Hands the free buffers to `recv` until they are used up or it fails. An error is returned
    /// when nothing was received before it.
    fn fill(
        &mut self,
        mut recv: impl FnMut(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let before = self.used;
        while !self.is_full() {
            let mut free = self.memory.chunks_exact_mut(BUFFER).skip(self.used);
            let mut buffers: [_; BUFFERS] =
                array::from_fn(|_| IoSliceMut::new(free.next().unwrap_or_default()));
            let mut meta = [RecvMeta::default(); BUFFERS];
            let free = BUFFERS - self.used;
            let received = match recv(&mut buffers[..free], &mut meta[..free]) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if self.used == before => return Err(error),
                // What ails the socket shows again; what arrived is to be looked at first.
                Err(_) => break,
            };
            for meta in meta.iter().take(received) {
                self.trains[self.used] = Train {
                    from: canonical(meta.addr),
                    segment_size: meta.stride.max(1),
                    len: meta.len.min(BUFFER),
                };
                self.used += 1;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxBatch").field("trains", &&self.trains[..self.used]).finish()
    }
}

/// One spelling per peer, fit to be compared and hashed: IPv4 as such instead of mapped into IPv6,
/// and no flow label. The scope of a link-local address stays.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    let mut addr = match addr {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(addr.ip().to_canonical(), addr.port())
        }
        other => other,
    };
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_flowinfo(0);
    }
    addr
}
