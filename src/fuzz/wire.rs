//! A network in memory.

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
