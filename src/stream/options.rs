//! Socket options of a stream, as `TcpStream` has them: nodelay, linger, `take_error`.

use std::io::{Error, Result};
use std::time::Duration;

use super::KcpStream;
use crate::config::WritePolicy;

/// `TcpStream` options of a connection. `ttl` belongs to the socket, which connections share.
impl KcpStream {
    /// Returns whether written data leaves as soon as the windows allow. Default `true`, unlike TCP.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn nodelay(&self) -> Result<bool> {
        Ok(self.handle().options.nodelay())
    }

    /// Sets whether written data leaves as soon as the windows allow:
    /// [`WritePolicy::Immediate`], or [`WritePolicy::Delayed`] for `false`.
    ///
    /// KCP's own `nodelay` is a timing preset, see [`set_timing`](Self::set_timing).
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> Result<()> {
        let policy = if nodelay { WritePolicy::Immediate } else { WritePolicy::Delayed };
        self.handle().set_write_policy(policy);
        Ok(())
    }

    /// Returns the time set by [`set_linger`](Self::set_linger); `None`, the default, while
    /// [`Config::linger`](crate::Config::linger) applies.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn linger(&self) -> Result<Option<Duration>> {
        Ok(self.handle().options.own_linger())
    }

    /// Sets how long closing continues without progress, 0 s to 1 day in whole milliseconds; `None` for
    /// [`Config::linger`](crate::Config::linger). With zero, dropping the stream aborts it.
    ///
    /// Unlike SO_LINGER it never blocks a thread.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](std::io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`](crate::ConfigError) above a day.
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, time: Option<Duration>) -> Result<()> {
        Ok(self.handle().set_linger(time)?)
    }

    /// Makes dropping the stream abort it: unacknowledged data may be lost, and the peer's reads and
    /// writes fail with [`ConnectionReset`](std::io::ErrorKind::ConnectionReset).
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn set_zero_linger(&self) -> Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Returns why the connection failed, once (SO_ERROR). Reads, writes and [`error`](Self::error) keep
    /// returning the error.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn take_error(&self) -> Result<Option<Error>> {
        Ok(self.handle().take_error().map(Error::from))
    }
}

impl AsRef<Self> for KcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}
