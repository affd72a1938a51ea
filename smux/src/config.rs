//! `Config`: settings of a session, their defaults and ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::ConfigError;

/// Which version of the protocol a session speaks. Nothing is negotiated: both sides must have the
/// same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Version {
    /// Version 1: flow control for the session as a whole only. One stream that nobody reads stops
    /// all others once [`Config::max_receive_buffer`] bytes are unread.
    #[default]
    V1,
    /// Version 2: flow control for each stream.
    V2,
    /// Servers only: the version of the first byte that the client sends. Until it arrives the
    /// server sends nothing, so [`Session::version`](crate::Session::version) is `None`.
    Any,
}

/// Settings of a session. Checked when a session is made.
///
/// ```
/// use std::time::Duration;
///
/// use kcpx_smux::{Config, Version};
///
/// let config = Config::new().version(Version::V2).timeout(Duration::from_secs(60));
/// assert!(config.validate().is_ok());
///
/// let error = config.max_frame_size(70_000).validate().unwrap_err();
/// assert_eq!(error.to_string(), "max_frame_size is 70000: allowed is 1 to 65535");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) version: Version,
    pub(crate) keepalive: Option<Duration>,
    pub(crate) timeout: Duration,
    pub(crate) max_frame_size: usize,
    pub(crate) max_receive_buffer: usize,
    pub(crate) max_stream_buffer: usize,
    pub(crate) send_buffer: usize,
    pub(crate) max_streams: usize,
    pub(crate) accept_backlog: usize,
    pub(crate) fin_delay: Duration,
    pub(crate) first_id: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: Version::V1,
            keepalive: Some(Duration::from_secs(10)),
            timeout: Duration::from_secs(30),
            max_frame_size: 32_768,
            max_receive_buffer: 4 << 20,
            max_stream_buffer: 65_536,
            send_buffer: 64 << 10,
            max_streams: 65_536,
            accept_backlog: 1_024,
            fin_delay: Duration::ZERO,
            first_id: None,
        }
    }
}

impl Config {
    /// The defaults: those of xtaci/smux.
    pub fn new() -> Self {
        Self::default()
    }

    /// The version of the protocol. Default: [`Version::V1`].
    #[doc(alias = "Version")]
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// How often NOP frames leave while nothing else does; above 0. Default: 10 s. With `None` there
    /// are none, and [`Config::timeout`] is not in force.
    #[doc(alias = "KeepAliveInterval")]
    #[doc(alias = "KeepAliveDisabled")]
    pub fn keepalive(mut self, interval: Option<Duration>) -> Self {
        self.keepalive = interval;
        self
    }

    /// The session ends with [`Error::Timeout`](crate::Error::Timeout) when no frame has arrived for
    /// this time; longer than the keepalive interval. Default: 30 s. It does not run while unread bytes
    /// stop the carrier from being read. It also limits how long a session that was closed waits
    /// for a peer that does not take what is queued.
    #[doc(alias = "KeepAliveTimeout")]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Largest payload of a frame that is sent, bytes, 1 to 65,535. Default: 32,768. Frames of any
    /// size are received.
    #[doc(alias = "MaxFrameSize")]
    pub fn max_frame_size(mut self, bytes: usize) -> Self {
        self.max_frame_size = bytes;
        self
    }

    /// Unread bytes of all streams together, 1 to 2^31 - 1. Default: 4 MiB. While there are that
    /// many, the carrier is not read.
    #[doc(alias = "MaxReceiveBuffer")]
    pub fn max_receive_buffer(mut self, bytes: usize) -> Self {
        self.max_receive_buffer = bytes;
        self
    }

    /// Window of a stream in version 2, bytes, 1 to [`Config::max_receive_buffer`]. Default: 65,536.
    /// With many open streams less is advertised: their shares of the receive buffer, but at least
    /// 65,536 bytes. Whatever it is, a peer may send 262,144 bytes before the first update.
    #[doc(alias = "MaxStreamBuffer")]
    pub fn max_stream_buffer(mut self, bytes: usize) -> Self {
        self.max_stream_buffer = bytes;
        self
    }

    /// Bytes that writes may queue on a stream, 1 to 2^30. Default: 64 KiB. After a stream is shut down
    /// or dropped, they leave before those of streams that finish later, in turns with streams that go
    /// on.
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = bytes;
        self
    }

    /// Streams that the peer may have open at once, at least 1. Default: 65,536. A further one is
    /// answered with FIN.
    pub fn max_streams(mut self, streams: usize) -> Self {
        self.max_streams = streams;
        self
    }

    /// Streams that may wait for [`Session::accept_stream`](crate::Session::accept_stream), at least
    /// 1. Default: 1,024. A further one is answered with FIN.
    pub fn accept_backlog(mut self, streams: usize) -> Self {
        self.accept_backlog = streams;
        self
    }

    /// How long FIN is withheld, after the last byte has left, on a stream whose peer sent FIN
    /// first; 0 to 1 h. Default: 0 s.
    ///
    /// For peers that run xtaci/smux 1.5.54 to 1.5.57: they discard what their application has not
    /// read yet as soon as both sides have sent FIN. Costs a stream that lives as much longer.
    pub fn fin_delay(mut self, delay: Duration) -> Self {
        self.fin_delay = delay;
        self
    }

    /// The id of the first stream that is opened. For tests of the last ids.
    #[doc(hidden)]
    pub fn first_id(mut self, id: u32) -> Self {
        self.first_id = Some(id);
        self
    }

    /// Checks all settings, as the constructors of [`Session`](crate::Session) do.
    ///
    /// # Errors
    ///
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = Duration::from_nanos(1)..=Duration::MAX;
        if let Some(interval) = self.keepalive {
            if !positive.contains(&interval) {
                return Err(refused("keepalive", &format_args!("{interval:?}"), "above 0 s"));
            }
            // With both alike the NOP of the peer is on its way when the session ends.
            if self.timeout <= interval {
                let allowed = format!("more than keepalive, {interval:?}");
                return Err(refused("timeout", &format_args!("{:?}", self.timeout), &allowed));
            }
        }
        in_range("max_frame_size", self.max_frame_size, 1..=65_535)?;
        in_range("max_receive_buffer", self.max_receive_buffer, 1..=(1 << 31) - 1)?;
        in_range("max_stream_buffer", self.max_stream_buffer, 1..=self.max_receive_buffer)?;
        in_range("send_buffer", self.send_buffer, 1..=1 << 30)?;
        in_range("max_streams", self.max_streams, 1..=usize::MAX)?;
        in_range("accept_backlog", self.accept_backlog, 1..=usize::MAX)?;
        if self.fin_delay > Duration::from_secs(3_600) {
            let value = format!("{:?}", self.fin_delay);
            return Err(refused("fin_delay", &value, "0 s to 1 h"));
        }
        Ok(())
    }

    /// [`Config::validate`], for a client: it has to choose a version.
    pub(crate) fn validate_client(&self) -> Result<(), ConfigError> {
        if self.version == Version::Any {
            return Err(refused("version", &"Any", "V1 or V2 for a client"));
        }
        self.validate()
    }
}

fn refused(field: &'static str, value: &dyn Display, allowed: &str) -> ConfigError {
    ConfigError { field, value: value.to_string(), allowed: allowed.to_owned() }
}

fn in_range(
    field: &'static str,
    value: usize,
    range: RangeInclusive<usize>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let allowed = match *range.end() {
        usize::MAX => format!("{} and more", range.start()),
        end => format!("{} to {end}", range.start()),
    };
    Err(refused(field, &value, &allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_out_of_range_names_field_value_and_range() {
        let config = Config::new;
        let hour = Duration::from_secs(3_600);
        let cases = [
            (config().keepalive(Some(Duration::ZERO)), "keepalive is 0ns: allowed is above 0 s"),
            (
                config().timeout(Duration::from_secs(10)),
                "timeout is 10s: allowed is more than keepalive, 10s",
            ),
            (config().max_frame_size(0), "max_frame_size is 0: allowed is 1 to 65535"),
            (
                config().max_receive_buffer(1 << 31),
                "max_receive_buffer is 2147483648: allowed is 1 to 2147483647",
            ),
            (
                config().max_stream_buffer((4 << 20) + 1),
                "max_stream_buffer is 4194305: allowed is 1 to 4194304",
            ),
            (config().send_buffer(0), "send_buffer is 0: allowed is 1 to 1073741824"),
            (config().max_streams(0), "max_streams is 0: allowed is 1 and more"),
            (config().accept_backlog(0), "accept_backlog is 0: allowed is 1 and more"),
            (config().fin_delay(2 * hour), "fin_delay is 7200s: allowed is 0 s to 1 h"),
        ];
        for (config, message) in cases {
            assert_eq!(config.validate().unwrap_err().to_string(), message);
        }
        let any = config().version(Version::Any);
        assert!(any.validate().is_ok());
        let refused = any.validate_client().unwrap_err();
        assert_eq!(refused.to_string(), "version is Any: allowed is V1 or V2 for a client");
        assert!(config().keepalive(None).timeout(Duration::ZERO).validate().is_ok());
    }
}
