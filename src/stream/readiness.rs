//! Readiness (`ready`, `readable`, `writable`) and `try_read_buf`, for the stream and its halves.

use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{Interest, Ready};

use crate::shared::connection::Shared;
use crate::shared::waiters::{Registration, Wait};
use crate::stream::KcpStream;
use crate::stream::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::stream::rw::{Reader, Writer};

impl KcpStream {
    /// Waits until the stream is ready for at least one operation of `interest`, and returns all that are
    /// ready.
    ///
    /// At the end of the peer's stream, once everything is read, and after the end of the connection the
    /// stream is readable and [`READ_CLOSED`](Ready::READ_CLOSED). After the end of the connection it is
    /// also writable and [`WRITE_CLOSED`](Ready::WRITE_CLOSED), and [`ERROR`](Ready::ERROR) if `interest`
    /// includes errors. There is no urgent data: an interest in it waits for `READ_CLOSED`.
    ///
    /// # Errors
    ///
    /// None; the next read or write returns the error of an ended connection.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ready(&self, interest: Interest) -> Result<Ready> {
        ready(self.handle(), Some(&self.read), interest).await
    }
}

macro_rules! readable {
    ($($reader:ty: $side:ident),*) => {$(
        impl $reader {
            /// Waits until there is something to read, or nothing more will come.
            ///
            /// # Errors
            ///
            /// None; the next read returns the error of an ended connection.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe.
            pub async fn readable(&self) -> Result<()> {
                let mut waiter = self.$side.handle.recv.waiter();
                poll_fn(|cx| self.$side.poll_readable(cx, Some(&mut waiter))).await
            }

            /// Reads available bytes into the spare capacity of `buf`, without waiting, and returns their
            /// number. A growing buffer gets at most its spare capacity, or 64 bytes if it has none.
            ///
            /// # Errors
            ///
            /// As [`KcpStream::try_read`].
            pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> Result<usize> {
                let limit = buf.chunk_mut().len();
                self.$side.try_read_with(limit, |part| buf.put_slice(part))
            }
        }
    )*};
}

macro_rules! writable {
    ($($writer:ty),*) => {$(
        impl $writer {
            /// Waits until a write may take bytes, or fail.
            ///
            /// As with Tokio's sockets, readiness ends with a write that finds the queue full
            /// ([`WouldBlock`](ErrorKind::WouldBlock)). It begins again once a quarter is free: a quarter
            /// of [`Config::send_buffer`](crate::Config::send_buffer), or of the data that leaves within
            /// 10 ms.
            ///
            /// # Errors
            ///
            /// None; the next write returns the error.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe.
            pub async fn writable(&self) -> Result<()> {
                let mut waiter = self.handle().send.waiter();
                poll_fn(|cx| self.writer().poll_write_ready(cx, Some(&mut waiter))).await
            }
        }
    )*};
}

readable!(KcpStream: read, ReadHalf<'_>: side, OwnedReadHalf: side);
writable!(KcpStream, WriteHalf<'_>, OwnedWriteHalf);

impl KcpStream {
    /// Polls until there is something to read, as [`readable`](Self::readable).
    ///
    /// # Errors
    ///
    /// None, as [`readable`](Self::readable).
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.read.poll_readable(cx, None)
    }

    /// Polls until a write may take bytes, as [`writable`](Self::writable).
    ///
    /// # Errors
    ///
    /// None, as [`writable`](Self::writable).
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.writer().poll_write_ready(cx, None)
    }
}

macro_rules! ready_readers {
    ($($half:ty),*) => {$(
        impl $half {
            /// Waits until the half, or the write half, is ready, as [`KcpStream::ready`].
            ///
            /// # Errors
            ///
            /// None, as [`KcpStream::ready`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe.
            pub async fn ready(&self, interest: Interest) -> Result<Ready> {
                ready(self.handle(), Some(&self.side), interest).await
            }
        }
    )*};
}

macro_rules! ready_writers {
    ($($half:ty),*) => {$(
        impl $half {
            /// Waits until the half is ready, as [`KcpStream::ready`]. Only the read half sees readable
            /// data: an interest in reading is ignored beside others.
            ///
            /// # Errors
            ///
            /// [`InvalidInput`](ErrorKind::InvalidInput) if `interest` names only reading.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe.
            pub async fn ready(&self, interest: Interest) -> Result<Ready> {
                ready(self.handle(), None, interest).await
            }
        }
    )*};
}

ready_readers!(OwnedReadHalf, ReadHalf<'_>);
ready_writers!(OwnedWriteHalf, WriteHalf<'_>);

/// Ready with the operations of `interest` that are ready, once there is at least one.
async fn ready(shared: &Shared, reader: Option<&Reader>, interest: Interest) -> Result<Ready> {
    if reader.is_none() && interest == Interest::READABLE {
        let text = "the write half does not see readable data: call ready on the read half";
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let reader = reader.filter(|_| interest.is_readable());
    let (mut reading, mut writing) = (shared.recv.waiter(), shared.send.waiter());
    poll_fn(|cx| {
        let mut ready = match reader.map(|side| side.poll_open(cx, Some(&mut reading))) {
            Some(Poll::Ready(true)) => Ready::READABLE,
            Some(Poll::Ready(false)) => Ready::READABLE | Ready::READ_CLOSED,
            Some(Poll::Pending) | None => Ready::EMPTY,
        };
        if interest.is_writable()
            && Writer::new(shared).poll_write_ready(cx, Some(&mut writing)).is_ready()
        {
            ready |= Ready::WRITABLE;
            if shared.error().is_some() {
                ready |= Ready::WRITE_CLOSED;
            }
        }
        ready |= poll_end(cx, shared, interest, &mut reading);
        if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(ready)) }
    })
    .await
}

/// Readiness for an interest in urgent data or errors: the end, if it has come. Registers the task.
fn poll_end(
    cx: &Context<'_>,
    shared: &Shared,
    interest: Interest,
    registration: &mut Registration,
) -> Ready {
    let (urgent, errors) = (is_priority(interest), interest.is_error());
    let mut ready = Ready::EMPTY;
    if !urgent && !errors {
        return ready;
    }
    if shared.recv.is_closed(&mut Wait::Future(registration, cx.waker())) && urgent {
        ready |= Ready::READ_CLOSED;
    }
    // Checked after the registration: a connection's error is set before its readers are woken.
    if shared.error().is_some() && errors {
        ready |= Ready::ERROR;
    }
    ready
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_priority(interest: Interest) -> bool {
    interest.is_priority()
}

/// Tokio has it on Linux and Android only.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_priority(_: Interest) -> bool {
    false
}
