//! A network in memory: its socket, addresses, and datagrams in flight.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use crate::sys::{RxBatch, Socket, Transmit};
use crate::util::path::{LocalIp, Path};

/// A socket that receives the input and records sent datagrams.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) inbox: VecDeque<(Path, Vec<u8>)>,
    pub(super) sent: Vec<(Path, Vec<u8>)>,
    pub(super) local: Option<SocketAddr>,
    /// Local addresses that the host has lost: what leaves from them is lost.
    pub(super) gone: Vec<LocalIp>,
    pub(super) is_source_gone: bool,
}

impl Socket for Wire {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local.unwrap_or_else(|| addr(0)))
    }

    fn max_gso_segments(&self) -> usize {
        1
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
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
        let path = Path { peer: transmit.dst, local: transmit.local };
        if self.gone.contains(&transmit.local) {
            self.is_source_gone = true;
        } else {
            self.sent.push((path, transmit.contents.to_vec()));
        }
        Ok(transmit.contents.len())
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

/// A datagram in flight.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: SocketAddr,
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// It was not sent by its apparent sender at this place and time.
    pub(super) foreign: bool,
}

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
