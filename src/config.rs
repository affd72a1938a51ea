//! Configuration as types: plain data with defaults, checked once when it is used.

mod filter;
mod kcp;
mod limits;
mod link;
mod socket;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::crypto::Cipher;
use crate::error::ConfigError;
use crate::fec::{self, FecConfig};

pub use self::filter::{AcceptFilter, PacketFilter};
pub use self::kcp::{AckPolicy, Backoff, CongestionControl, KcpConfig, Mode, Timing, WritePolicy};
pub(crate) use self::kcp::{
    DEFAULT_WINDOW, SEGMENT_CHARGE, SEGMENT_COST, SEGMENT_HEADER, check_mtu, check_windows,
};
pub use self::limits::{Limits, Migration, SessionPolicy};
pub use self::socket::SocketConfig;

/// Everything an endpoint, a listener or a stream can be told.
///
/// ```
/// use kcpx::{Config, Timing};
///
/// let config = Config::new().timing(Timing::FAST3).windows(2048, 2048).mtu(1350);
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The state machine of each conversation. Its `mtu` is here that of the whole datagram, with
    /// what FEC and the cipher add.
    pub kcp: KcpConfig,
    /// Redundancy in what this side sends. Default `None`. The peer need not do the same.
    pub fec: Option<FecConfig>,
    /// Recover lost datagrams from the redundancy that a peer sends, whatever this side sends.
    /// Default `true`; costs up to four groups of memory for a peer that sends any.
    pub fec_decode: bool,
    /// Encryption; both sides must agree. Default [`Cipher::null`]: none.
    pub cipher: Cipher,
    /// How many of the latest datagrams are remembered so that one of them is not taken twice, 0 to
    /// 1,048,576. Default 0: inside a conversation a repeated datagram has no effect, and one that
    /// opened a conversation is remembered in any case. Needs a cipher with a nonce.
    pub replay_window: usize,
    /// The id of the conversations opened from here, 1 to 4,294,967,295. Default `None`: a random
    /// one, never 0. An id can be in use once with each peer, see
    /// [`Endpoint::connect_with_conv`](crate::Endpoint::connect_with_conv).
    pub conv: Option<u32>,
    /// Sorts out datagrams of other protocols on the same port. Default `None`.
    pub packet_filter: Option<PacketFilter>,
    /// Decides who may open a conversation. Default `None`: everybody, within `limits`.
    pub accept_filter: Option<AcceptFilter>,
    /// The UDP socket, where the crate makes it.
    pub socket: SocketConfig,
    /// Bounds against strangers.
    pub limits: Limits,
    /// When a peer opens another conversation from the same address.
    pub session_policy: SessionPolicy,
    /// Take an opening under conversation id 0 as a request for one, as tokio_kcp's clients send it:
    /// the answer carries a random id, which the client adopts. Default `false`: 0 is an id like
    /// any other.
    pub assign_conv: bool,
    /// Whether conversations that peers opened follow them to another address.
    pub migration: Migration,
    /// Let the peer know of a conversation when it is opened from here, and not only with its first
    /// data, so that the peer may speak first. Default `false`. Needs
    /// [`close_notify`](KcpConfig::close_notify), whose mark makes a listener of this crate take it
    /// for an opening; kcp-go takes anything for one.
    pub open_on_connect: bool,
    /// Bytes a stream takes from the application before the protocol has room, 1 to 2^30.
    /// Default 256 KiB.
    pub send_buffer: usize,
    /// Bytes a stream holds ready for the application, 1 to 2^30. Beyond that the protocol's
    /// receive window closes. Default 256 KiB.
    pub recv_buffer: usize,
    /// How long closing goes on without success, 0 s to 1 day. A dropped stream is given up when
    /// nothing more was acknowledged for this long; zero aborts it at once. A `shutdown` fails
    /// when nothing was heard of the peer for this long. Default 10 s.
    pub linger: Duration,
    /// Extra copies of each datagram, 0 to 8 (kcp-go's `SetDUP`). Default 0.
    pub duplicates: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kcp: KcpConfig::default(),
            fec: None,
            fec_decode: true,
            cipher: Cipher::default(),
            replay_window: 0,
            conv: None,
            packet_filter: None,
            accept_filter: None,
            socket: SocketConfig::default(),
            limits: Limits::default(),
            session_policy: SessionPolicy::default(),
            assign_conv: false,
            migration: Migration::default(),
            open_on_connect: false,
            send_buffer: 256 * 1024,
            recv_buffer: 256 * 1024,
            linger: Duration::from_secs(10),
            duplicates: 0,
        }
    }
}

impl Config {
    /// The defaults: stream mode, [`Timing::FAST2`], windows of 1,024, datagrams of 1,400 bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the timing preset.
    #[must_use]
    pub fn timing(mut self, preset: Timing) -> Self {
        self.kcp.timing = preset;
        self
    }

    /// Sets the send and receive windows in segments, 1 to 65,535 each. Without this they grow
    /// with the path, see [`KcpConfig::auto_windows`].
    #[must_use]
    pub fn windows(mut self, send: u16, recv: u16) -> Self {
        (self.kcp.send_window, self.kcp.recv_window) = (send, recv);
        self.kcp.auto_windows = false;
        self
    }

    /// Sets the largest datagram in bytes, headers included.
    #[must_use]
    pub fn mtu(mut self, bytes: u16) -> Self {
        self.kcp.mtu = bytes;
        self
    }

    /// Sets the redundancy in what this side sends.
    #[must_use]
    pub fn fec(mut self, fec: FecConfig) -> Self {
        self.fec = Some(fec);
        self
    }

    /// Sets the encryption.
    #[must_use]
    pub fn cipher(mut self, cipher: Cipher) -> Self {
        self.cipher = cipher;
        self
    }

    /// Sets byte stream or message mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.kcp.mode = mode;
        self
    }

    /// Sets when acknowledgements leave.
    #[must_use]
    pub fn ack_policy(mut self, policy: AckPolicy) -> Self {
        self.kcp.ack_policy = policy;
        self
    }

    /// Sets when written data leaves.
    #[must_use]
    pub fn write_policy(mut self, policy: WritePolicy) -> Self {
        self.kcp.write_policy = policy;
        self
    }

    /// Sets the silence after which the peer is asked for a sign of life.
    #[must_use]
    pub fn keepalive(mut self, after: Option<Duration>) -> Self {
        self.kcp.keepalive = after;
        self
    }

    /// Sets the silence that ends a conversation.
    #[must_use]
    pub fn idle_timeout(mut self, after: Option<Duration>) -> Self {
        self.kcp.idle_timeout = after;
        self
    }

    /// Sets how long a dropped stream keeps delivering what was written.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Sets whether the peer learns of a conversation before there is data for it.
    #[must_use]
    pub fn open_on_connect(mut self, open: bool) -> Self {
        self.open_on_connect = open;
        self
    }

    /// Sets whether peers that understand it are told of the end of a stream.
    #[must_use]
    pub fn close_notify(mut self, notify: bool) -> Self {
        self.kcp.close_notify = notify;
        self
    }

    /// Sets the id of the conversations opened from here.
    #[must_use]
    pub fn conv(mut self, conv: Option<u32>) -> Self {
        self.conv = conv;
        self
    }

    /// Sets what sorts out datagrams of other protocols; see [`PacketFilter`].
    #[must_use]
    pub fn packet_filter(
        mut self,
        takes: impl Fn(SocketAddr, &[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.packet_filter = Some(PacketFilter::new(takes));
        self
    }

    /// Sets what decides who may open a conversation; see [`AcceptFilter`].
    #[must_use]
    pub fn accept_filter(
        mut self,
        admits: impl Fn(SocketAddr, u32) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.accept_filter = Some(AcceptFilter::new(admits));
        self
    }

    /// Sets the kernel's socket buffers in bytes; `None` leaves the system's default.
    #[must_use]
    pub fn socket_buffers(mut self, send: Option<usize>, recv: Option<usize>) -> Self {
        (self.socket.send_buffer_size, self.socket.recv_buffer_size) = (send, recv);
        self
    }

    /// Sets how many sockets a listener binds to its address; see [`SocketConfig::shards`].
    #[must_use]
    pub fn shards(mut self, sockets: usize) -> Self {
        self.socket.shards = sockets;
        self
    }

    /// Checks every field. Called by everything that takes a configuration.
    ///
    /// # Errors
    ///
    /// The first field that is outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.kcp.validate()?;
        self.cipher.check()?;
        check_mtu(self.kcp.mtu, self.overhead())?;
        ConfigError::check("replay_window (datagrams)", self.replay_window, 0, 1 << 20)?;
        let buffer = 1 << 30;
        ConfigError::check("send_buffer (bytes)", self.send_buffer, 1, buffer)?;
        ConfigError::check("recv_buffer (bytes)", self.recv_buffer, 1, buffer)?;
        ConfigError::check("linger (ms)", self.linger.as_millis(), 0, 24 * 60 * 60 * 1_000)?;
        self.limits.validate()?;
        self.migration.check(&self.cipher)?;
        if self.migration != Migration::Off && self.socket.shards > 1 {
            // Wherever the peer is now, what it sends arrives at another socket.
            return Err(ConfigError::Requires { field: "migration", needs: "one shard" });
        }
        if self.open_on_connect && !self.kcp.close_notify {
            return Err(ConfigError::Requires { field: "open_on_connect", needs: "close_notify" });
        }
        if let Some(conv) = self.conv {
            check_conv(conv)?;
        }
        self.socket.validate()?;
        check_duplicates(self.duplicates)
    }
}

/// What the stages leave of a datagram: the only place that knows.
impl Config {
    /// Bytes that FEC and the cipher add to each KCP datagram.
    pub(crate) fn overhead(&self) -> usize {
        let (cipher, fec_header) = self.overheads();
        usize::from(cipher) + usize::from(fec_header)
    }

    /// The same apart: bytes of the cipher, in both directions, and of the FEC header.
    pub(crate) fn overheads(&self) -> (u16, u16) {
        let cipher = self.cipher.overhead();
        let bytes = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let fec_header = if self.fec.is_some() { fec::HEADER_LEN } else { 0 };
        (bytes(cipher.header_len + cipher.trailer_len), bytes(fec_header))
    }
}

/// Zero names no conversation.
pub(crate) fn check_conv(conv: u32) -> Result<(), ConfigError> {
    ConfigError::check("conv", conv, 1, u64::from(u32::MAX))
}

pub(crate) fn check_duplicates(copies: u8) -> Result<(), ConfigError> {
    ConfigError::check("duplicates", copies, 0, 8)
}

/// A setting that may change while a conversation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Windows {
        send: u16,
        recv: u16,
    },
    Timing(Timing),
    AckPolicy(AckPolicy),
    WritePolicy(WritePolicy),
    /// Downwards only: what is in flight keeps its size.
    Mtu(u16),
    RateLimit(Option<NonZeroU64>),
    Duplicates(u8),
    /// Of everything that goes to this address.
    Fec(FecConfig),
}
