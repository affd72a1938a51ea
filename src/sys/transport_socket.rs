//! A transport of the application in the place of the socket.
//!
//! The driver tries first and asks for readiness when there is nothing; a transport is polled with
//! the waker that is to be woken. So each side keeps the waker that the transport was last given:
//! who waits with another one is told to try again, and the transport then gets that.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use super::{MAX_DATAGRAM, RxBatch, Socket};
use crate::sys::transport::{RecvBatch, Transmit, Transport};

/// Datagrams offered at a time.
const TRAIN: usize = 64;

/// One direction.
#[derive(Default)]
struct Side {
    /// What the transport holds since it had nothing or no room.
    registered: Option<Waker>,
    /// What it is polled with.
    waker: Cell<Option<Waker>>,
    /// What failed behind something that did not.
    fault: Option<io::Error>,
}

impl Side {
    /// The waker to poll with. Before anyone waited nobody needs to be woken.
    fn waker(&mut self) -> Waker {
        self.waker.get_mut().as_ref().unwrap_or(Waker::noop()).clone()
    }

    /// `Pending` if the transport is going to wake this very task.
    fn poll_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        self.waker.set(Some(cx.waker().clone()));
        Poll::Ready(Ok(()))
    }

    /// What the caller is told after `error`, before which `done` went well.
    fn fail<T>(&mut self, error: io::Error, done: Option<T>) -> io::Result<T> {
        self.registered = None;
        // These have a meaning for whoever tries again, and the transport said something else.
        let error = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => io::Error::other(error),
            _ => error,
        };
        match done {
            None => Err(error),
            Some(done) => {
                self.fault = Some(error);
                Ok(done)
            }
        }
    }
}

/// A [`Transport`] as the driver's socket.
pub(crate) struct TransportSocket {
    transport: Box<dyn Transport>,
    local: SocketAddr,
    max_datagram: usize,
    recv: Side,
    send: Side,
}

impl TransportSocket {
    /// # Errors
    ///
    /// When the transport has no address.
    pub(crate) fn new(transport: impl Transport) -> io::Result<Self> {
        Ok(Self {
            local: transport.local_addr()?,
            max_datagram: transport.max_datagram_size().min(MAX_DATAGRAM),
            transport: Box::new(transport),
            recv: Side::default(),
            send: Side::default(),
        })
    }

    /// Bytes of the largest datagram that it carries.
    pub(crate) fn max_datagram(&self) -> usize {
        self.max_datagram
    }
}

impl Socket for TransportSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn max_gso_segments(&self) -> usize {
        TRAIN
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        if let Some(error) = self.recv.fault.take() {
            return Err(error);
        }
        let waker = self.recv.waker();
        let mut cx = Context::from_waker(&waker);
        let mut received = None;
        while !batch.is_full() {
            let mut room = RecvBatch::new(batch);
            match self.transport.poll_recv(&mut cx, &mut room) {
                Poll::Ready(Ok(())) if room.pushed() > 0 => {
                    self.recv.registered = None;
                    received = Some(());
                }
                // Asking on would find the same, again and again.
                Poll::Ready(Ok(())) => {
                    let error = io::Error::other("the transport was ready and had nothing");
                    return self.recv.fail(error, received);
                }
                Poll::Ready(Err(error)) => return self.recv.fail(error, received),
                Poll::Pending => {
                    self.recv.registered = Some(waker);
                    return received.ok_or_else(|| ErrorKind::WouldBlock.into());
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        if let Some(error) = self.send.fault.take() {
            return Err(error);
        }
        let Transmit { dst, segment_size, contents } = *transmit;
        if segment_size > self.max_datagram {
            let limit = self.max_datagram;
            let text =
                format!("the datagram has {segment_size} bytes, the transport takes {limit}");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let waker = self.send.waker();
        let mut cx = Context::from_waker(&waker);
        let size = segment_size.max(1);
        let mut sent = 0;
        while let Some(rest) = contents.get(sent..).filter(|rest| !rest.is_empty()) {
            let done = (sent > 0).then_some(sent);
            let transmit = Transmit { dst, segment_size: size, contents: rest };
            match self.transport.poll_send(&mut cx, &transmit) {
                Poll::Ready(Ok(0)) => return self.send.fail(ErrorKind::WriteZero.into(), done),
                Poll::Ready(Ok(taken)) => {
                    self.send.registered = None;
                    sent = sent.saturating_add(taken.saturating_mul(size)).min(contents.len());
                }
                Poll::Ready(Err(error)) => return self.send.fail(error, done),
                Poll::Pending => {
                    self.send.registered = Some(waker);
                    return done.ok_or_else(|| ErrorKind::WouldBlock.into());
                }
            }
        }
        Ok(sent)
    }

    fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.recv.poll_ready(cx)
    }

    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.poll_ready(cx)
    }
}

impl fmt::Debug for TransportSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("local", &self.local).finish_non_exhaustive()
    }
}
