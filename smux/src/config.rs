//! `Config`: settings of a session, with defaults and ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::ConfigError;

/// Protocol version of a session. It is not negotiated: both sides must use the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Version {
    /// Version 1: flow control for the session as a whole. One unread stream stops all others once
    /// [`Config::max_receive_buffer`] bytes are unread.
    #[default]
    V1,
    /// Version 2: flow control for each stream.
    V2,
    /// Servers only: the version in the first byte from the client. Until it arrives the server
    /// sends nothing, and [`Session::version`](crate::Session::version) is `None`.
    Any,
}

/// Settings of a session; the constructors of [`Session`](crate::Session) check them.
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
/// assert_eq!(error.to_string(), "max_frame_size must be 1 to 65535, got 70000");
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
    /// The defaults, which are xtaci/smux's.
    pub fn new() -> Self {
        Self::default()
    }

    /// Protocol version. Default: [`Version::V1`].
    #[doc(alias = "Version")]
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// Interval of NOP frames while nothing else is sent; above 0. Default: 10 s. `None` sends no
    /// NOP frames and disables [`Config::timeout`].
    #[doc(alias = "KeepAliveInterval")]
    #[doc(alias = "KeepAliveDisabled")]
    pub fn keepalive(mut self, interval: Option<Duration>) -> Self {
        self.keepalive = interval;
        self
    }

    /// Ends the session with [`Error::Timeout`](crate::Error::Timeout) if no frame has arrived for
    /// this time; longer than the keepalive interval. Default: 30 s. The time stops while unread
    /// bytes keep the carrier from being read. It also limits how long a closed session waits for a
    /// peer that does not take the queued bytes.
    #[doc(alias = "KeepAliveTimeout")]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Largest payload of a sent frame, in bytes, 1 to 65,535. Default: 32,768. Received frames may
    /// have any size.
    #[doc(alias = "MaxFrameSize")]
    pub fn max_frame_size(mut self, bytes: usize) -> Self {
        self.max_frame_size = bytes;
        self
    }

    /// Limit of unread bytes of all streams together, 1 to 2^31 - 1. Default: 4 MiB. At the limit
    /// the carrier is not read.
    #[doc(alias = "MaxReceiveBuffer")]
    pub fn max_receive_buffer(mut self, bytes: usize) -> Self {
        self.max_receive_buffer = bytes;
        self
    }

    /// Window of a stream in version 2, in bytes, 1 to [`Config::max_receive_buffer`]. Default:
    /// 65,536. With many open streams each is advertised its share of the receive buffer instead,
    /// but at least 65,536 bytes. A peer may always send 262,144 bytes before the first update.
    #[doc(alias = "MaxStreamBuffer")]
    pub fn max_stream_buffer(mut self, bytes: usize) -> Self {
        self.max_stream_buffer = bytes;
        self
    }

    /// Bytes that writes may queue on a stream, 1 to 2^30. Default: 64 KiB. After a stream is shut
    /// down or dropped, its bytes are sent before bytes of later finished streams, in turns with
    /// open streams.
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = bytes;
        self
    }

    /// Limit of the peer's open streams, at least 1. Default: 65,536. Further streams are refused
    /// with FIN.
    pub fn max_streams(mut self, streams: usize) -> Self {
        self.max_streams = streams;
        self
    }

    /// Limit of streams that wait for [`Session::accept_stream`](crate::Session::accept_stream), at
    /// least 1. Default: 1,024. Further streams are refused with FIN.
    pub fn accept_backlog(mut self, streams: usize) -> Self {
        self.accept_backlog = streams;
        self
    }

    /// Delay of FIN after the last byte, if the peer sent FIN first; 0 to 1 h. Default: 0 s.
    ///
    /// For peers that run xtaci/smux 1.5.54 to 1.5.57: they discard unread bytes as soon as both
    /// sides have sent FIN. The stream stays open for the delay.
    pub fn fin_delay(mut self, delay: Duration) -> Self {
        self.fin_delay = delay;
        self
    }

    /// Id of the first opened stream, for tests of the last ids.
    #[doc(hidden)]
    pub fn first_id(mut self, id: u32) -> Self {
        self.first_id = Some(id);
        self
    }

    /// Checks all settings, as the constructors of [`Session`](crate::Session) do.
    ///
    /// # Errors
    ///
    /// The first setting out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = Duration::from_nanos(1)..=Duration::MAX;
        if let Some(interval) = self.keepalive {
            if !positive.contains(&interval) {
                return Err(refused("keepalive", &format_args!("{interval:?}"), "above 0 s"));
            }
            // If both were equal, the peer's NOP would still be in flight at the end of the
            // session.
            if self.timeout <= interval {
                let allowed = format!("more than keepalive ({interval:?})");
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

    /// [`Config::validate`] for a client, which must choose a version.
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
        usize::MAX => format!("{} or more", range.start()),
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
            (config().keepalive(Some(Duration::ZERO)), "keepalive must be above 0 s, got 0ns"),
            (
                config().timeout(Duration::from_secs(10)),
                "timeout must be more than keepalive (10s), got 10s",
            ),
            (config().max_frame_size(0), "max_frame_size must be 1 to 65535, got 0"),
            (
                config().max_receive_buffer(1 << 31),
                "max_receive_buffer must be 1 to 2147483647, got 2147483648",
            ),
            (
                config().max_stream_buffer((4 << 20) + 1),
                "max_stream_buffer must be 1 to 4194304, got 4194305",
            ),
            (config().send_buffer(0), "send_buffer must be 1 to 1073741824, got 0"),
            (config().max_streams(0), "max_streams must be 1 or more, got 0"),
            (config().accept_backlog(0), "accept_backlog must be 1 or more, got 0"),
            (config().fin_delay(2 * hour), "fin_delay must be 0 s to 1 h, got 7200s"),
        ];
        for (config, message) in cases {
            assert_eq!(config.validate().unwrap_err().to_string(), message);
        }
        let any = config().version(Version::Any);
        assert!(any.validate().is_ok());
        let refused = any.validate_client().unwrap_err();
        assert_eq!(refused.to_string(), "version must be V1 or V2 for a client, got Any");
        assert!(config().keepalive(None).timeout(Duration::ZERO).validate().is_ok());
    }
}
