//! A network in memory: its socket, addresses, and datagrams in flight.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use crate::sys::{RxBatch, Socket, Transmit};
use crate::util::path::Path;

/// A socket that receives the input and records sent datagrams.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Destination and contents.
    pub(super) sent: Vec<(SocketAddr, Vec<u8>)>,
    pub(super) local: Option<SocketAddr>,
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
        while let Some((from, datagram)) = self.inbox.pop_front() {
            if !batch.push(Path::to(from), &datagram) {
                self.inbox.push_front((from, datagram));
                break;
            }
            any = true;
        }
        any.then_some(()).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        self.sent.push((transmit.dst, transmit.contents.to_vec()));
        Ok(transmit.contents.len())
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
/// Index of server and client in arrays by side.
pub(super) const SERVER_SIDE: usize = 0;
pub(super) const CLIENT_SIDE: usize = 1;

/// A datagram in flight.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: SocketAddr,
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// It was not sent by its apparent sender at this place and time.
    pub(super) foreign: bool,
}

/// The side that receives datagrams for `to`: the client at both its addresses.
pub(super) fn receiver_of(to: SocketAddr) -> Option<usize> {
    if to == addr(SERVER) {
        Some(SERVER_SIDE)
    } else {
        [addr(CLIENT), addr(ELSEWHERE)].contains(&to).then_some(CLIENT_SIDE)
    }
}
