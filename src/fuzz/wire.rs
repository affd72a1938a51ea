//! A network in memory: its socket, addresses, and datagrams in flight.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use crate::sys::{RxBatch, Socket, Transmit};
use crate::util::path::{LocalIp, Path};
use crate::util::sync::{Arc, Mutex, lock};

/// A socket that receives the input and records sent datagrams.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) inbox: VecDeque<(Path, Vec<u8>)>,
    pub(super) sent: Vec<(Path, Vec<u8>)>,
    pub(super) local: Option<SocketAddr>,
    /// Local addresses that the host has lost: what leaves from them is lost.
    pub(super) gone: Vec<LocalIp>,
    pub(super) is_source_gone: bool,
    /// Datagrams per GSO batch; 0: the system does not segment.
    pub(super) batch: usize,
    /// Errors of the next sends and receives.
    pub(super) send_faults: VecDeque<io::Error>,
    pub(super) recv_faults: VecDeque<io::Error>,
    /// The next send takes a part of its batch, and the following one blocks.
    pub(super) is_short: bool,
    /// Whether the send buffer is full.
    pub(super) is_blocked: bool,
    /// Largest datagram that leaves without IP fragmentation, bytes; `None`: any.
    pub(super) route_mtu: Option<usize>,
    pub(super) fragments: bool,
    /// Takes the datagrams that leave while the driver is dropped.
    pub(super) last: Option<Arc<Mutex<Sent>>>,
}

/// Sent datagrams.
pub(super) type Sent = Vec<(Path, Vec<u8>)>;

#[cfg(unix)]
const TOO_LARGE: i32 = libc::EMSGSIZE;
#[cfg(windows)]
const TOO_LARGE: i32 = 10_040;
#[cfg(unix)]
const UNUSABLE: i32 = libc::EBADF;
#[cfg(windows)]
const UNUSABLE: i32 = 10_038;

/// An error of each class that does not end an endpoint, see `sys/errors.rs`.
pub(super) fn fault(class: u8) -> io::Error {
    match class % 8 {
        0 => io::ErrorKind::WouldBlock.into(),
        1 => io::ErrorKind::Interrupted.into(),
        2 => io::ErrorKind::OutOfMemory.into(),
        3 => io::ErrorKind::PermissionDenied.into(),
        4 => io::ErrorKind::ConnectionRefused.into(),
        5 => io::ErrorKind::NetworkUnreachable.into(),
        6 => io::Error::from_raw_os_error(TOO_LARGE),
        _ => io::ErrorKind::Other.into(),
    }
}

/// The error of a socket that is closed.
pub(super) fn unusable() -> io::Error {
    io::Error::from_raw_os_error(UNUSABLE)
}

impl Socket for Wire {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local.unwrap_or_else(|| addr(0)))
    }

    fn max_gso_segments(&self) -> usize {
        self.batch.max(1)
    }

    fn set_ip_fragmentation(&mut self, allow: bool) {
        self.fragments = allow;
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        if let Some(error) = self.recv_faults.pop_front() {
            return Err(error);
        }
        let mut any = false;
        while let Some((path, datagram)) = self.inbox.pop_front() {
            if !batch.push(path, &datagram) {
                self.inbox.push_front((path, datagram));
                break;
            }
            any = true;
        }
        any.then_some(()).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        if let Some(error) = self.send_faults.pop_front() {
            return Err(error);
        }
        if self.is_blocked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let size = transmit.segment_size.max(1);
        if !self.fragments && self.route_mtu.is_some_and(|mtu| size > mtu) {
            return Err(io::Error::from_raw_os_error(TOO_LARGE));
        }
        let path = Path { peer: transmit.dst, local: transmit.local };
        if self.gone.contains(&transmit.local) {
            self.is_source_gone = true;
            return Ok(transmit.contents.len());
        }
        let mut taken = transmit.contents;
        if self.is_short && taken.len() > size {
            taken = &taken[..size];
            self.is_short = false;
            self.send_faults.push_back(io::ErrorKind::WouldBlock.into());
        }
        let datagrams = taken.chunks(size).map(|datagram| (path, datagram.to_vec()));
        match &self.last {
            Some(last) => lock(last).extend(datagrams),
            None => self.sent.extend(datagrams),
        }
        Ok(taken.len())
    }

    fn take_source_gone(&mut self) -> bool {
        std::mem::take(&mut self.is_source_gone)
    }

    fn poll_recv_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_send_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub(super) fn addr(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 4_000))
}

pub(super) const SERVER: u8 = 0;
pub(super) const CLIENT: u8 = 1;
/// The client's second source address.
pub(super) const ELSEWHERE: u8 = 2;
/// Further addresses of the client's host: one more than a connection takes.
pub(super) const FURTHER: [u8; 4] = [6, 7, 8, 9];
/// Distance from a further address to the one that a NAT may give it.
pub(super) const OUTSIDE: u8 = 10;
/// Index of server and client in arrays by side.
pub(crate) const SERVER_SIDE: usize = 0;
pub(crate) const CLIENT_SIDE: usize = 1;

/// The side that receives datagrams for `to`: the client at all its addresses.
pub(super) fn receiver_of(to: SocketAddr) -> Option<usize> {
    if to == addr(SERVER) {
        Some(SERVER_SIDE)
    } else {
        let is_client = [addr(CLIENT), addr(ELSEWHERE)].contains(&to) || further_of(to).is_some();
        is_client.then_some(CLIENT_SIDE)
    }
}

/// The further address of the client that has `outside`, and whether that is its own address.
pub(super) fn further_of(outside: SocketAddr) -> Option<(u8, bool)> {
    let own = FURTHER.into_iter().find(|host| addr(*host) == outside).map(|host| (host, true));
    let other = FURTHER.into_iter().find(|host| addr(*host + OUTSIDE) == outside);
    own.or_else(|| other.map(|host| (host, false)))
}
