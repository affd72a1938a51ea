//! The driver: one task per session, owner of carrier and state machine.

use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::core::batch::{Batch, MAX_SLICES};
use crate::core::session::Core;
use crate::error::Error;
use crate::shared::{Published, Shared};

/// Rounds of reading and writing before other tasks run: few, so that the received bytes are still
/// in the CPU caches when a stream reads them.
const MAX_ROUNDS: usize = 4;

/// How long a shut-down carrier is still read, so that late bytes do not cause a reset that
/// overtakes the sent bytes.
const LINGER: Duration = Duration::from_secs(2);

/// Reads and writes the carrier of a session; returned by [`Session::client_with_driver`] and
/// [`Session::server_with_driver`].
///
/// Poll this future for the session to advance, within a Tokio runtime with time enabled. It
/// returns the reason for which the session has ended. Dropping it ends the session with
/// [`Error::Closed`] and drops the carrier.
///
/// [`Session::client_with_driver`]: crate::Session::client_with_driver
/// [`Session::server_with_driver`]: crate::Session::server_with_driver
#[must_use = "a session does nothing unless its driver is polled"]
pub struct Driver<T> {
    io: T,
    core: Core,
    shared: Arc<Shared>,
    input: BytesMut,
    batch: Batch,
    /// Bytes were written since the last flush.
    needs_flush: bool,
    phase: Phase,
    /// Result of [`Session::close`](crate::Session::close), set once the carrier is shut down.
    close_result: Result<(), Error>,
    /// The session ends because everything was sent: only the carrier's shutdown remains.
    is_drained: bool,
    sleep: Pin<Box<Sleep>>,
}

#[derive(Debug)]
enum Phase {
    Running,
    /// All handles are gone, or one has requested the end. Left when everything queued is written,
    /// or at this time.
    Draining(Instant),
    /// The session has ended or is about to. Left when the carrier is shut down, or at this time.
    ShuttingDown(Error, Instant),
    /// The carrier is read to its end. Left at that, or at this time.
    Lingering(Error, Instant),
    Done(Error),
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    pub(crate) fn new(io: T, core: Core, shared: Arc<Shared>) -> Self {
        let batch = Batch::new(io.is_write_vectored());
        Self {
            io,
            core,
            shared,
            input: BytesMut::new(),
            batch,
            needs_flush: false,
            phase: Phase::Running,
            close_result: Ok(()),
            is_drained: false,
            sleep: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Runs one turn. `Ready(Ok)` when no work is left, with the waker registered.
    fn poll_session(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), Error>> {
        for _ in 0..MAX_ROUNDS {
            let mut progress = self.core.exchange(cx.waker(), now.into_std());
            progress |= self.poll_receive(cx, now)?;
            match self.poll_send(cx, now) {
                Ok(sent) => progress |= sent,
                // Received bytes are still delivered, unless all readers are gone.
                Err(error) if self.core.is_closing() => return Poll::Ready(Err(error)),
                Err(error) => {
                    self.core.fail_sending(&error, &mut self.batch, now.into_std());
                    self.needs_flush = false;
                    progress = true;
                }
            }
            self.signal();
            if !progress {
                return Poll::Ready(Ok(()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once. Returns whether anything arrived.
    fn poll_receive(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<bool, Error> {
        if !self.core.may_read(now.into_std()) {
            return Ok(false);
        }
        self.core.prepare_input(&mut self.input);
        match poll_read(&mut self.io, &mut self.input, cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Ready(Ok(0)) if self.core.is_between_frames() => {
                if self.core.has_unsent(&self.batch) {
                    self.close_result = Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Err(Error::Closed)
            }
            Poll::Ready(Ok(0)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Poll::Ready(Ok(_)) => {
                self.core.receive(&mut self.input, now.into_std())?;
                Ok(true)
            }
        }
    }

    /// Writes once. Returns whether anything was written.
    fn poll_send(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<bool, Error> {
        if self.core.send_error().is_some() {
            self.core.discard_output();
            return Ok(false);
        }
        if self.batch.is_empty() {
            // A stream that waits for a flush must not wait until all others have nothing to send.
            if self.core.wants_flush() && self.poll_flush(cx)?.is_pending() {
                return Ok(false);
            }
            self.core.fill(&mut self.batch, now.into_std());
        }
        if self.batch.is_empty() {
            let _ = self.poll_flush(cx)?;
            return Ok(false);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let set = self.batch.slices(&mut slices);
        let io = Pin::new(&mut self.io);
        let poll = match &slices[..set] {
            [slice] => io.poll_write(cx, slice),
            slices => io.poll_write_vectored(cx, slices),
        };
        match poll? {
            Poll::Pending => {
                self.batch.on_blocked();
                Ok(false)
            }
            Poll::Ready(0) => Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Poll::Ready(written) => {
                self.needs_flush = true;
                self.batch.advance(written);
                if self.batch.is_empty() {
                    self.core.on_written(&mut self.batch);
                }
                Ok(true)
            }
        }
    }

    /// Flushes the carrier after all batches are written.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.needs_flush {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.needs_flush = false;
        }
        self.core.on_flushed();
        Poll::Ready(Ok(()))
    }

    /// Arms the timer. Returns whether it has fired.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<bool, Error> {
        let (limit, deadline) = match &self.phase {
            Phase::Running => (None, self.core.deadline()),
            Phase::Draining(until) => (Some(*until), self.core.deadline()),
            Phase::ShuttingDown(_, until) | Phase::Lingering(_, until) => (Some(*until), None),
            Phase::Done(_) => return Ok(false),
        };
        let deadline = deadline.map(Instant::from_std);
        let Some(deadline) = [deadline, limit].into_iter().flatten().min() else {
            return Ok(false);
        };
        // A deadline that moves later is noticed when the timer fires: it is not reset for each
        // frame.
        if self.sleep.is_elapsed() || self.sleep.deadline() > deadline {
            self.sleep.as_mut().reset(deadline);
        }
        if self.sleep.as_mut().poll(cx).is_pending() {
            return Ok(false);
        }
        if limit.is_none_or(|limit| now < limit) {
            self.core.on_timer(now.into_std())?;
        }
        Ok(true)
    }

    /// Wakes the wakers that the state machine collected. No lock is held.
    fn signal(&mut self) {
        let signals = self.core.take_signals();
        for waker in signals.wakers {
            waker.wake();
        }
        if signals.accepted {
            self.shared.accepted.notify_waiters();
        }
        if signals.may_open {
            self.shared.may_open.notify_waiters();
        }
    }

    fn publish(&self) {
        let (stats, last_header) = self.core.stats();
        let num_streams = self.core.num_streams();
        self.shared.publish(Published { stats, last_header, num_streams });
    }

    /// Ends the session for its handles; the carrier is shut down later.
    fn fail(&mut self, error: Error, now: Instant) {
        let error = self.core.send_error().cloned().unwrap_or(error);
        self.core.fail(&error);
        // Bytes after a malformed frame.
        self.input.clear();
        self.signal();
        self.publish();
        self.shared.ended.notify_waiters();
        let limit = match &error {
            Error::Closed => self.shared.config.timeout,
            error => {
                self.close_result = Err(error.clone());
                LINGER
            }
        };
        self.phase = Phase::ShuttingDown(error, now + limit);
    }

    fn poll_phase(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), Error>> {
        match &self.phase {
            Phase::Running | Phase::Draining(_) => {
                // A peer that sends without end does not delay the session's end.
                let _ = self.poll_session(cx, now)?;
                if self.poll_close(now)? {
                    return Poll::Ready(Ok(()));
                }
            }
            Phase::ShuttingDown(error, until) => {
                let shut_down = Pin::new(&mut self.io).poll_shutdown(cx);
                if shut_down.is_ready() || now >= *until {
                    let result = match shut_down {
                        _ if !self.is_drained => self.close_result.clone(),
                        Poll::Ready(result) => result.map_err(Error::from),
                        Poll::Pending => Err(Error::Timeout),
                    };
                    self.phase = Phase::Lingering(error.clone(), now + LINGER);
                    self.shared.set_close_result(result);
                    return Poll::Ready(Ok(()));
                }
            }
            Phase::Lingering(error, until) => {
                self.core.prepare_input(&mut self.input);
                let end = match poll_read(&mut self.io, &mut self.input, cx) {
                    Poll::Ready(Ok(0) | Err(_)) => true,
                    Poll::Ready(Ok(_)) => {
                        self.input.clear();
                        cx.waker().wake_by_ref();
                        false
                    }
                    Poll::Pending => false,
                };
                if end || now >= *until {
                    self.phase = Phase::Done(error.clone());
                    return Poll::Ready(Ok(()));
                }
            }
            Phase::Done(_) => return Poll::Ready(Ok(())),
        }
        match self.poll_timer(cx, now)? {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Advances a session that is to be closed. Returns whether its phase has changed.
    fn poll_close(&mut self, now: Instant) -> Result<bool, Error> {
        if !self.core.is_closing() {
            return Ok(false);
        }
        if let Some(error) = self.core.send_error() {
            return Err(error.clone());
        }
        if let Phase::Running = self.phase {
            self.phase = Phase::Draining(now + self.shared.config.timeout);
        }
        if self.batch.is_empty() && !self.needs_flush && self.core.is_drained() {
            self.is_drained = true;
            self.fail(Error::Closed, now);
            return Ok(true);
        }
        match self.phase {
            Phase::Draining(until) if now >= until => Err(Error::Timeout),
            _ => Ok(false),
        }
    }
}

/// Reads into `input`, see [`Core::prepare_input`].
fn poll_read<T: AsyncRead + Unpin>(
    io: &mut T,
    input: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    // A `read_buf` future buffers nothing: bytes are in `input` when it is ready.
    pin!(io.read_buf(input)).poll(cx)
}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for Driver<T> {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        let this = &mut *self;
        let mut now = Instant::now();
        loop {
            if let Phase::Done(error) = &this.phase {
                return Poll::Ready(error.clone());
            }
            match this.poll_phase(cx, now) {
                Poll::Ready(Ok(())) => now = Instant::now(),
                Poll::Ready(Err(error)) => this.fail(error, now),
                Poll::Pending => {
                    this.publish();
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        // No effect on a session that has ended.
        self.core.fail(&Error::Closed);
        for waker in self.core.take_signals().wakers {
            waker.wake();
        }
        self.shared.accepted.notify_waiters();
        self.shared.may_open.notify_waiters();
        self.shared.set_close_result(Err(Error::Closed));
    }
}

impl<T> std::fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("phase", &self.phase).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use tokio::io::ReadBuf;

    use super::*;
    use crate::session::FIRST_CLIENT_ID;
    use crate::{Config, Session};

    /// A carrier that takes everything, delivers nothing, and counts its flushes.
    struct Silent {
        flushes: usize,
    }

    impl AsyncRead for Silent {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Silent {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn carrier_is_flushed_once_behind_what_was_written_and_not_while_idle() {
        let config = Config::new().keepalive(None);
        let (session, core, shared) =
            Session::parts(config, FIRST_CLIENT_ID, std::time::Instant::now());
        let mut driver = Driver::new(Silent { flushes: 0 }, core, shared);
        let mut flushes = || {
            let poll = Pin::new(&mut driver).poll(&mut Context::from_waker(Waker::noop()));
            assert!(poll.is_pending());
            driver.io.flushes
        };
        assert_eq!(flushes(), 0);
        assert!(session.handle.mailbox.open().is_ok());
        assert_eq!([flushes(), flushes()], [1, 1]);
    }
}
