//! `Config`: plain data with defaults, validated when it is used.

mod filter;
mod kcp;
mod keepalive;
mod limits;
mod link;
mod presets;
mod redundancy;
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
    CONNECTION_COST, DEFAULT_WINDOW, IP_UDP_HEADERS, SEGMENT_CHARGE, SEGMENT_COST, SEGMENT_HEADER,
    check_mtu, check_windows,
};
pub(crate) use self::keepalive::check_timeout;
pub use self::keepalive::{KeepaliveInterval, KeepaliveSide};
pub use self::limits::{Limits, Migration, SessionPolicy};
pub use self::redundancy::{AutoRedundancy, Redundancy};
pub use self::socket::SocketConfig;

/// Configuration of an endpoint, a listener or a stream.
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
    /// Settings of each connection's state machine. `mtu` here includes the overhead of FEC and the
    /// cipher.
    pub kcp: KcpConfig,
    /// Whether to recover lost datagrams from a peer's parity, independent of what is sent. Default
    /// `true`. Costs up to four groups of memory per peer that sends parity.
    pub fec_decode: bool,
    /// Encryption; must be the same on both sides. Default [`Cipher::null`]: none.
    pub cipher: Cipher,
    /// Anti-replay window in datagrams, 0 to 1,048,576 (RFC 4303 3.4.3). Default 0: replayed datagrams
    /// have no effect within a connection, and initial ones are remembered anyway. Requires a cipher with
    /// a nonce. Costs memory for a hash per datagram of the window.
    pub replay_window: usize,
    /// KCP conversation id (`conv`) of connections opened by this side. Default `None`: random, never 0.
    /// Each peer can have one connection per id, see
    /// [`Endpoint::connect_with_conv`](crate::Endpoint::connect_with_conv).
    ///
    /// kcp2k servers (Mirror) expect 0. tokio_kcp servers answer 0 with an id of their choice, which this
    /// crate does not adopt.
    ///
    /// Do not reuse an id under one key, neither for another client nor for the client's next connection:
    /// recorded datagrams of one connection would be valid in the other. A listener rejects an id that a
    /// validated peer at another address used under its key within ten seconds
    /// ([`refused_conv_in_use`](crate::EndpointStats::refused_conv_in_use)). If the id has a meaning,
    /// send it in the first message instead, or give each client a key.
    pub conv: Option<u32>,
    /// Filter for datagrams of other protocols on the same port. Default `None`.
    pub packet_filter: Option<PacketFilter>,
    /// Filter for connections opened by peers. Default `None`: all, within `limits`.
    pub accept_filter: Option<AcceptFilter>,
    /// Options of UDP sockets that the crate binds.
    pub socket: SocketConfig,
    /// Limits on connections, mainly those opened by peers.
    pub limits: Limits,
    /// Whether a peer's new connection replaces its others from the same address.
    pub session_policy: SessionPolicy,
    /// Whether to assign a random conversation id to peers that open with id 0, as tokio_kcp clients
    /// request: they adopt the id of the answer. Default `false`: 0 is an ordinary id.
    pub assign_conv: bool,
    /// Whether connections opened by peers migrate to another address of the peer.
    pub migration: Migration,
    /// Whether `connect` returns at once, so that the first data leaves with the opening segment (0-RTT
    /// data in TLS 1.3 and QUIC) instead of a round trip later. Default `false`: `connect` waits for the
    /// peer. Always on without [`close_notify`](KcpConfig::close_notify), since listeners of this crate
    /// take an initial segment without data only from peers that have it.
    pub early_data: bool,
    /// How long `connect` waits for the peer, 1 ms to 1 day, per resolved address. Default 10 s. A
    /// shorter [`dead_peer_timeout`](KcpConfig::dead_peer_timeout) or
    /// [`idle_timeout`](KcpConfig::idle_timeout) ends the wait earlier, with its own error.
    pub connect_timeout: Duration,
    /// Bytes that a stream buffers for sending, 1 to 2^30. Default 256 KiB. A burst may fill the buffer.
    /// A writer that found it full may then fill what leaves within 10 ms, at least 16 KiB and at
    /// most this value, so that later writes do not wait behind seconds of data.
    #[doc(alias = "SO_SNDBUF")]
    pub send_buffer: usize,
    /// Bytes that a stream buffers for the application, 1 to 2^30. Default 256 KiB. The receive window
    /// closes while the buffer is full.
    #[doc(alias = "SO_RCVBUF")]
    pub recv_buffer: usize,
    /// Linger timeout, 0 s to 1 day. Default 10 s. A dropped stream is aborted after this time without an
    /// acknowledgement; zero aborts it at once. `shutdown` fails after this time without a datagram from
    /// the peer. A peer that does not read is kept while it answers window probes, which leave at least
    /// three times in this time.
    #[doc(alias = "SO_LINGER")]
    pub linger: Duration,
    /// Extra copies of each datagram, 0 to 8 (kcp-go `SetDUP`). Default 0. Each copy costs the whole
    /// bandwidth again.
    #[doc(alias = "SetDUP")]
    pub duplicates: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kcp: KcpConfig::default(),
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
            early_data: false,
            connect_timeout: Duration::from_secs(10),
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

    /// Sets the timing preset. Default [`Timing::FAST2`].
    #[doc(alias = "SetNoDelay")]
    #[doc(alias = "NoDelay")]
    #[must_use]
    pub fn timing(mut self, preset: Timing) -> Self {
        self.kcp.timing = preset;
        self
    }

    /// Sets the send and receive windows in segments, 1 to 65,535 each, and turns
    /// [`KcpConfig::auto_windows`] off. Default 1,024 each, with autotuning.
    #[doc(alias = "SetWindowSize")]
    #[must_use]
    pub fn windows(mut self, send: u16, recv: u16) -> Self {
        (self.kcp.send_window, self.kcp.recv_window) = (send, recv);
        self.kcp.auto_windows = false;
        self
    }

    /// Sets the size of the largest datagram in bytes, headers included. Default 1,400.
    #[doc(alias = "SetMtu")]
    #[must_use]
    pub fn mtu(mut self, bytes: u16) -> Self {
        self.kcp.mtu = bytes;
        self
    }

    /// Sets the redundancy against losses ([`KcpConfig::redundancy`]). Default [`Redundancy::Off`].
    #[must_use]
    pub fn redundancy(mut self, redundancy: Redundancy) -> Self {
        self.kcp.redundancy = redundancy;
        self
    }

    /// Sets the encryption. Default none.
    #[must_use]
    pub fn cipher(mut self, cipher: Cipher) -> Self {
        self.cipher = cipher;
        self
    }

    /// Sets stream or message mode. Default [`Mode::Stream`].
    #[doc(alias = "SetStreamMode")]
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.kcp.mode = mode;
        self
    }

    /// Sets when acknowledgements are sent. Default [`AckPolicy::PerBatch`].
    #[doc(alias = "SetACKNoDelay")]
    #[must_use]
    pub fn ack_policy(mut self, policy: AckPolicy) -> Self {
        self.kcp.ack_policy = policy;
        self
    }

    /// Sets when written data is sent. Default [`WritePolicy::Immediate`].
    #[doc(alias = "SetWriteDelay")]
    #[must_use]
    pub fn write_policy(mut self, policy: WritePolicy) -> Self {
        self.kcp.write_policy = policy;
        self
    }

    /// Sets the idle time before a ping, at least 1 s below the idle timeout; `None` for never. Default
    /// [`KeepaliveInterval::Auto`]: 15 s, or a third of a shorter idle timeout.
    #[doc(alias = "SO_KEEPALIVE")]
    #[must_use]
    pub fn keepalive(mut self, after: Option<Duration>) -> Self {
        self.kcp.keepalive = after.map_or(KeepaliveInterval::Never, KeepaliveInterval::After);
        self
    }

    /// Sets the idle time after which a connection ends; `None` for never. Default 60 s.
    #[must_use]
    pub fn idle_timeout(mut self, after: Option<Duration>) -> Self {
        self.kcp.idle_timeout = after;
        self
    }

    /// Sets the linger timeout, see the field. Default 10 s.
    #[doc(alias = "SO_LINGER")]
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Sets whether `connect` returns without waiting for the peer, see the field. Default `false`.
    #[must_use]
    pub fn early_data(mut self, early: bool) -> Self {
        self.early_data = early;
        self
    }

    /// Sets how long `connect` waits for the peer. Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// Sets whether FIN and RST are sent to peers that support them. Default `true`.
    #[must_use]
    pub fn close_notify(mut self, notify: bool) -> Self {
        self.kcp.close_notify = notify;
        self
    }

    /// Sets the conversation id of connections opened by this side. Default random.
    #[must_use]
    pub fn conv(mut self, conv: Option<u32>) -> Self {
        self.conv = conv;
        self
    }

    /// Sets the filter for datagrams of other protocols, see [`PacketFilter`].
    #[must_use]
    pub fn packet_filter(
        mut self,
        takes: impl Fn(SocketAddr, &[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.packet_filter = Some(PacketFilter::new(takes));
        self
    }

    /// Sets the filter for connections opened by peers, see [`AcceptFilter`].
    #[must_use]
    pub fn accept_filter(
        mut self,
        admits: impl Fn(SocketAddr, u32) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.accept_filter = Some(AcceptFilter::new(admits));
        self
    }

    /// Sets the kernel socket buffers in bytes; `None` for the system's default. Default 4 MiB each.
    #[doc(alias = "SO_SNDBUF")]
    #[doc(alias = "SO_RCVBUF")]
    #[must_use]
    pub fn socket_buffers(mut self, send: Option<usize>, recv: Option<usize>) -> Self {
        (self.socket.send_buffer_size, self.socket.recv_buffer_size) = (send, recv);
        self
    }

    /// Sets the number of sockets that a listener binds to its address, see [`SocketConfig::shards`].
    /// Default 1.
    #[doc(alias = "SO_REUSEPORT")]
    #[must_use]
    pub fn shards(mut self, sockets: usize) -> Self {
        self.socket.shards = sockets;
        self
    }

    /// Checks every setting. Functions that take a configuration call it.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.kcp.validate()?;
        self.cipher.check()?;
        check_mtu(self.kcp.mtu, self.overhead())?;
        ConfigError::check("replay_window (datagrams)", self.replay_window, 0, 1 << 20)?;
        if self.replay_window > 0 && self.cipher.overhead().nonce == 0 {
            let needs = "a cipher that has a nonce";
            return Err(ConfigError::Requires { field: "replay_window", needs });
        }
        let buffer = 1 << 30;
        ConfigError::check("send_buffer (bytes)", self.send_buffer, 1, buffer)?;
        ConfigError::check("recv_buffer (bytes)", self.recv_buffer, 1, buffer)?;
        let day = 24 * 60 * 60 * 1_000;
        ConfigError::check("linger (ms)", self.linger.as_millis(), 0, day)?;
        self.limits.validate()?;
        self.migration.check(&self.cipher)?;
        if self.migration != Migration::Off && self.socket.shards > 1 {
            // The system may deliver datagrams from the new address to another socket.
            return Err(ConfigError::Requires { field: "migration", needs: "one shard" });
        }
        ConfigError::check("connect_timeout (ms)", self.connect_timeout.as_millis(), 1, day)?;
        self.socket.validate()?;
        check_duplicates(self.duplicates)
    }
}

impl Config {
    /// Whether `connect` waits for the peer.
    pub(crate) fn waits_for_peer(&self) -> bool {
        self.kcp.close_notify && !self.early_data
    }
}

/// Size of a datagram: MTU less the overhead of FEC and cipher.
impl Config {
    /// Returns the bytes that FEC and the cipher add to each KCP datagram.
    pub(crate) fn overhead(&self) -> usize {
        let (cipher, fec_header) = self.overheads();
        usize::from(cipher) + usize::from(fec_header)
    }

    /// Returns the overhead in bytes of the cipher (header and trailer) and of the FEC header.
    pub(crate) fn overheads(&self) -> (u16, u16) {
        let cipher = self.cipher.overhead();
        let bytes = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let fec_header = if self.kcp.redundancy.fec().is_some() { fec::HEADER_LEN } else { 0 };
        (bytes(cipher.header_len + cipher.trailer_len), bytes(fec_header))
    }
}

pub(crate) fn check_duplicates(copies: u8) -> Result<(), ConfigError> {
    ConfigError::check("duplicates", copies, 0, 8)
}

/// A setting that may change during a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Windows {
        send: u16,
        recv: u16,
    },
    Timing(Timing),
    AckPolicy(AckPolicy),
    WritePolicy(WritePolicy),
    /// Bytes. Can only be lowered: segments in flight keep their size.
    Mtu(u16),
    RateLimit(Option<NonZeroU64>),
    Duplicates(u8),
    /// Applies to all connections with the peer's address.
    Fec(FecConfig),
    /// Keepalive interval and idle timeout.
    Keepalive(KeepaliveInterval, Option<Duration>),
    DeadPeerTimeout(Option<Duration>),
    /// Datagrams may be sent: asks the peer whether it takes them.
    Datagrams,
}
