use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::consume_budget;
use tokio::time::Instant;

use crate::config::{Config, Version};
use crate::core::inbox::{Mailbox, Opened, Tokens};
use crate::core::session::Core;
use crate::driver::Driver;
use crate::error::{ConfigError, Error};
use crate::shared::{Handle, Published, Shared};
use crate::stats::Stats;
use crate::stream::Stream;
use crate::sync::{cooperate, register_waker};

/// A session over one connection, the carrier: opens streams, and accepts the peer's.
///
/// Clones are handles of the same session. When all handles and streams are gone, queued bytes are
/// sent and the carrier is shut down, in the background.
///
/// ```
/// use kcpx_smux::{Config, Session};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (ours, theirs) = tokio::io::duplex(65_536);
/// let client = Session::client(ours, Config::new())?;
/// let server = Session::server(theirs, Config::new())?;
///
/// let mut stream = client.open_stream().await?;
/// stream.write_all(b"hello").await?;
/// stream.shutdown().await?;
///
/// let mut accepted = server.accept_stream().await?;
/// let mut received = Vec::new();
/// accepted.read_to_end(&mut received).await?;
/// assert_eq!(received, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) handle: Handle,
}

/// The side that connected uses odd ids, without id 1.
pub(crate) const FIRST_CLIENT_ID: u32 = 3;
pub(crate) const FIRST_SERVER_ID: u32 = 2;

impl Session {
    /// A session over `io`, on the side that made the connection. Its driver runs as a task of the
    /// current Tokio runtime.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range, or the version is [`Version::Any`], which is for servers
    /// only.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime, like `tokio::spawn`.
    pub fn client<T>(io: T, config: Config) -> Result<Self, ConfigError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (session, driver) = Self::client_with_driver(io, config)?;
        drop(tokio::spawn(driver));
        Ok(session)
    }

    /// A session over `io`, on the side that accepted the connection. Its driver runs as a task of
    /// the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime, like `tokio::spawn`.
    pub fn server<T>(io: T, config: Config) -> Result<Self, ConfigError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (session, driver) = Self::server_with_driver(io, config)?;
        drop(tokio::spawn(driver));
        Ok(session)
    }

    /// [`Session::client`], but returns the driver: for carriers that are not `Send`, and for tasks
    /// that are not spawned on the current runtime.
    ///
    /// # Errors
    ///
    /// Same as [`Session::client`].
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time enabled.
    pub fn client_with_driver<T>(io: T, config: Config) -> Result<(Self, Driver<T>), ConfigError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        config.validate_client()?;
        Ok(Self::new(io, config, FIRST_CLIENT_ID))
    }

    /// [`Session::server`], but returns the driver.
    ///
    /// # Errors
    ///
    /// Same as [`Session::server`].
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time enabled.
    pub fn server_with_driver<T>(io: T, config: Config) -> Result<(Self, Driver<T>), ConfigError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        config.validate()?;
        Ok(Self::new(io, config, FIRST_SERVER_ID))
    }

    fn new<T>(io: T, config: Config, first_id: u32) -> (Self, Driver<T>)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (session, core, shared) = Self::parts(config, first_id, Instant::now().into_std());
        (session, Driver::new(io, core, shared))
    }

    pub(crate) fn parts(
        mut config: Config,
        first_id: u32,
        now: std::time::Instant,
    ) -> (Self, Core, Arc<Shared>) {
        let first_id = *config.first_id.get_or_insert(first_id);
        let version = match config.version {
            Version::V1 => Some(1),
            Version::V2 => Some(2),
            Version::Any => None,
        };
        let tokens = Tokens::new(config.max_receive_buffer);
        let mailbox = Arc::new(Mailbox::new(tokens, version, first_id));
        let shared = Arc::new(Shared::new(config.clone(), Arc::clone(&mailbox), now));
        let core = Core::new(config, mailbox, now);
        let session = Self { handle: Handle::new(Arc::clone(&shared)) };
        (session, core, shared)
    }

    /// Opens a stream without asking the peer, which may refuse it: the stream then ends as if the
    /// peer had closed it. Waits while 1,024 streams have unsent SYN frames.
    ///
    /// # Errors
    ///
    /// The reason for which the session has ended; [`Error::Closed`] once it is being closed;
    /// [`Error::IdsExhausted`] after 2^31 streams.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped future has opened no stream.
    pub async fn open_stream(&self) -> Result<Stream, Error> {
        loop {
            let mut notified = pin!(self.handle.may_open.notified());
            notified.as_mut().enable();
            match self.handle.mailbox.open()? {
                Opened::Stream(stream) => return Ok(Stream::new(stream, self.handle.clone())),
                Opened::Full => notified.await,
            }
        }
    }

    /// Waits for a stream of the peer. Any number of tasks may wait.
    ///
    /// # Errors
    ///
    /// The reason for which the session has ended, after all earlier streams.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no stream is lost.
    pub async fn accept_stream(&self) -> Result<Stream, Error> {
        // Yields to other tasks in a loop over a session that always has a stream, or has ended.
        consume_budget().await;
        loop {
            let mut notified = pin!(self.handle.accepted.notified());
            notified.as_mut().enable();
            if let Some(result) = self.try_accept() {
                return result;
            }
            notified.await;
        }
    }

    /// Polls for a stream of the peer. Only the last task to call it is woken.
    ///
    /// # Errors
    ///
    /// Same as [`Session::accept_stream`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Stream, Error>> {
        cooperate(cx, |cx| self.poll_next(cx))
    }

    fn poll_next(&self, cx: &Context<'_>) -> Poll<Result<Stream, Error>> {
        if let Some(result) = self.try_accept() {
            return Poll::Ready(result);
        }
        let mut queue = self.handle.mailbox.accept_queue();
        let replaced = register_waker(&mut queue.waker, cx.waker());
        drop(queue);
        drop(replaced);
        // A stream may have arrived in between.
        self.try_accept().map_or(Poll::Pending, Poll::Ready)
    }

    fn try_accept(&self) -> Option<Result<Stream, Error>> {
        // Reads the end first: all earlier streams are in the queue then.
        let end = self.handle.mailbox.lock().end.clone();
        let accepted = self.handle.mailbox.accept_queue().streams.pop_front();
        match accepted {
            Some(stream) => Some(Ok(Stream::new(stream, self.handle.clone()))),
            None => end.map(Err),
        }
    }

    /// Closes the session: no further streams are opened or accepted, and writes fail. Sends the
    /// queued bytes, shuts the carrier down, and waits for the shutdown. Streams still return
    /// received bytes.
    ///
    /// Waits at most [`Config::timeout`](crate::Config::timeout) for a peer that does not take the
    /// queued bytes, and equally long for the shutdown of the carrier.
    ///
    /// # Errors
    ///
    /// The reason for which the session has ended before everything was sent,
    /// [`io::ErrorKind::UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) if the peer ended the
    /// carrier; the error of the carrier's shutdown, [`Error::Timeout`] if that takes too long;
    /// [`Error::Closed`] if the driver was dropped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the session is closed even if the future is dropped.
    pub async fn close(&self) -> Result<(), Error> {
        self.handle.mailbox.close();
        loop {
            let mut notified = pin!(self.handle.ended.notified());
            notified.as_mut().enable();
            if let Some(result) = self.handle.close_result() {
                return result;
            }
            notified.await;
        }
    }

    /// Waits until the session has ended; returns the reason. The carrier is shut down later;
    /// [`Session::close`] waits for that.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn closed(&self) -> Error {
        loop {
            let mut notified = pin!(self.handle.ended.notified());
            notified.as_mut().enable();
            if let Some(error) = self.handle.end() {
                return error;
            }
            notified.await;
        }
    }

    /// Whether the session has ended, is being closed, or can no longer send.
    pub fn is_closed(&self) -> bool {
        let inbox = self.handle.mailbox.lock();
        inbox.closing || inbox.end.is_some() || inbox.send_error.is_some()
    }

    /// Number of live streams of both sides: those that can still send or receive.
    pub fn num_streams(&self) -> usize {
        self.handle.published().num_streams
    }

    /// Counters as of the driver's last run.
    pub fn stats(&self) -> Stats {
        let Published { mut stats, last_header, .. } = self.handle.published();
        stats.unread = self.handle.mailbox.tokens.unread();
        stats.last_header = Instant::now().into_std().saturating_duration_since(last_header);
        stats
    }

    /// Version of the session, 1 or 2; `None` if a server with [`Version::Any`] has received
    /// nothing.
    pub fn version(&self) -> Option<u8> {
        self.handle.mailbox.version()
    }
}

impl Stream {
    /// Returns a handle of the session.
    pub fn session(&self) -> Session {
        Session { handle: self.handle().clone() }
    }
}
