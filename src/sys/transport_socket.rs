//! The application's transport as a `Socket`.
//!
//! The driver receives first and polls readiness after `WouldBlock`, while a transport is polled with the
//! waker to wake. So each direction keeps the waker of the transport's last poll: a task that polls
//! readiness with another waker gets `Ready`, and the next receive or send passes that waker on.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use super::recv_batch::{MAX_DATAGRAM, RxBatch};
use super::socket::Socket;
use super::transport::{RecvBatch, Transmit, Transport};

/// Most datagrams offered to the transport in one [`Transmit`], as with GSO on Linux.
const MAX_SEGMENTS: usize = 64;

/// Readiness of one direction.
#[derive(Default)]
struct Direction {
    /// The waker that the transport holds: set by `Pending`, cleared by `Ready`.
    registered: Option<Waker>,
    /// The waker of the last readiness poll, for the transport's next poll.
    waker: Cell<Option<Waker>>,
    /// An error that followed a success in one call, for the next call.
    deferred_error: Option<io::Error>,
}

impl Direction {
    /// Returns the waker to poll the transport with; a no-op one before a task waits.
    fn waker(&mut self) -> Waker {
        self.waker.get_mut().as_ref().unwrap_or(Waker::noop()).clone()
    }

    /// `Pending` if the transport holds a waker of this task.
    fn poll_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        self.waker.set(Some(cx.waker().clone()));
        Poll::Ready(Ok(()))
    }

    /// Returns the result of a call in which `done` succeeded before `error`.
    fn fail<T>(&mut self, error: io::Error, done: Option<T>) -> io::Result<T> {
        self.registered = None;
        // To the driver both kinds have a meaning that the transport did not intend.
        let error = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => io::Error::other(error),
            _ => error,
        };
        match done {
            None => Err(error),
            Some(done) => {
                self.deferred_error = Some(error);
                Ok(done)
            }
        }
    }
}

/// A [`Transport`] as the driver's [`Socket`].
pub(crate) struct TransportSocket {
    transport: Box<dyn Transport>,
    local: SocketAddr,
    max_datagram: usize,
    recv: Direction,
    send: Direction,
}

impl TransportSocket {
    /// Wraps a transport.
    ///
    /// # Errors
    ///
    /// When [`Transport::local_addr`] fails.
    pub(crate) fn new(transport: impl Transport) -> io::Result<Self> {
        Ok(Self {
            local: transport.local_addr()?,
            max_datagram: transport.max_datagram_size().min(MAX_DATAGRAM),
            transport: Box::new(transport),
            recv: Direction::default(),
            send: Direction::default(),
        })
    }

    /// Returns the largest datagram in bytes.
    pub(crate) fn max_datagram(&self) -> usize {
        self.max_datagram
    }
}

impl Socket for TransportSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn max_gso_segments(&self) -> usize {
        MAX_SEGMENTS
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        if let Some(error) = self.recv.deferred_error.take() {
            return Err(error);
        }
        let waker = self.recv.waker();
        let mut cx = Context::from_waker(&waker);
        let mut received = None;
        while !batch.is_full() {
            let mut received_batch = RecvBatch::new(batch);
            match self.transport.poll_recv(&mut cx, &mut received_batch) {
                Poll::Ready(Ok(())) if received_batch.pushed() > 0 => {
                    self.recv.registered = None;
                    received = Some(());
                }
                // Polling again would loop.
                Poll::Ready(Ok(())) => {
                    let error = io::Error::other(
                        "the transport's poll_recv was ready without a datagram: return Pending instead",
                    );
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
        if let Some(error) = self.send.deferred_error.take() {
            return Err(error);
        }
        let Transmit { segment_size, contents, .. } = *transmit;
        if segment_size > self.max_datagram {
            let limit = self.max_datagram;
            let text = format!(
                "the datagram has {segment_size} bytes, the transport takes at most {limit}"
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let waker = self.send.waker();
        let mut cx = Context::from_waker(&waker);
        let size = segment_size.max(1);
        let mut sent = 0;
        while let Some(rest) = contents.get(sent..).filter(|rest| !rest.is_empty()) {
            let done = (sent > 0).then_some(sent);
            let transmit = Transmit { segment_size: size, contents: rest, ..*transmit };
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
        f.debug_struct("TransportSocket").field("local", &self.local).finish_non_exhaustive()
    }
}
