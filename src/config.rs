//! `Config`: settings with defaults, validated when they are used.

mod kcp;
mod limits;
mod redundancy;
mod socket;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZeroU64;
#[cfg(feature = "qlog")]
use std::path::PathBuf;
use std::time::Duration;

use crate::crypto::Cipher;
use crate::error::ConfigError;
use crate::fec::{self, FecConfig};

pub use self::kcp::{
    AckPolicy, CongestionControl, KeepaliveInterval, KeepaliveSide, Mode, Timing, WritePolicy,
};
pub(crate) use self::kcp::{
    CONNECTION_COST, DEFAULT_WINDOW, IP_UDP_HEADERS, KcpConfig, SEGMENT_CHARGE, SEGMENT_COST,
    SEGMENT_HEADER, check_mtu, check_timeout, check_windows,
};
pub use self::limits::{AcceptFilter, Limits, Migration, PacketFilter, PathMode};
pub use self::redundancy::{AutoRedundancy, Redundancy};
pub(crate) use self::socket::SocketConfig;

/// Send and receive buffer of a bulk stream, bytes.
const BULK_BUFFER: usize = 4 << 20;

/// Smallest window in segments: the assumed window of an unknown peer (`IKCP_WND_RCV`).
const MIN_WINDOW: u64 = 32;

/// Settings of an endpoint, a listener or a stream. A [`Kcp`](crate::proto::Kcp) without I/O uses the
/// settings of the protocol alone.
///
/// Each setting has one setter, which names its default. [`Config::interactive`], [`Config::bulk`] and
/// [`Config::for_link`] change a few defaults.
///
/// ```
/// use std::time::Duration;
///
/// use kcpx::{Config, Limits, Timing};
///
/// let config = Config::new()
///     .timing(Timing::FAST3)
///     .mtu(1350)
///     .dead_peer_timeout(Some(Duration::from_secs(20)))
///     .limits(Limits::new().max_connections(1_000));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) kcp: KcpConfig,
    pub(crate) cipher: Cipher,
    pub(crate) replay_window: usize,
    pub(crate) conv: Option<u32>,
    pub(crate) packet_filter: Option<PacketFilter>,
    pub(crate) accept_filter: Option<AcceptFilter>,
    pub(crate) socket: SocketConfig,
    pub(crate) limits: Limits,
    pub(crate) assign_conv: bool,
    /// `None`: see [`Self::allowed_migration`].
    pub(crate) migration: Option<Migration>,
    pub(crate) early_data: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) send_buffer: usize,
    pub(crate) recv_buffer: usize,
    pub(crate) linger: Duration,
    pub(crate) duplicates: u8,
    pub(crate) path_mode: PathMode,
    #[cfg(feature = "qlog")]
    pub(crate) qlog: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kcp: KcpConfig::default(),
            cipher: Cipher::default(),
            replay_window: 0,
            conv: None,
            packet_filter: None,
            accept_filter: None,
            socket: SocketConfig::default(),
            limits: Limits::default(),
            assign_conv: false,
            migration: None,
            early_data: false,
            connect_timeout: Duration::from_secs(10),
            send_buffer: 256 * 1024,
            recv_buffer: 256 * 1024,
            linger: Duration::from_secs(10),
            duplicates: 0,
            path_mode: PathMode::Standby,
            #[cfg(feature = "qlog")]
            qlog: None,
        }
    }
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Measured settings for two kinds of traffic.
impl Config {
    /// For messages that must arrive soon: games, calls, requests and responses.
    ///
    /// | setting | value | default |
    /// |---|---|---|
    /// | [`timing`](Self::timing) | [`Timing::FAST3`] | [`Timing::FAST2`] |
    /// | [`redundancy`](Self::redundancy) | [`Redundancy::Auto`], [`max_overhead`](AutoRedundancy::max_overhead) 2.0 | [`Redundancy::Off`] |
    ///
    /// No redundancy without loss, otherwise the amount that measured loss requires, up to 2.0 bytes sent
    /// per byte of data. At an RTT of 50 ms with a 1 KiB message every 10 ms, 99 of 100 messages arrive
    /// within 35 ms at 5 % loss and within 65 ms at 20 %. Each side needs it for its own data. Peers of
    /// this crate get repair symbols; for kcp-go set [`AutoRedundancy::stock`]. Transfers, with more than
    /// 256 segments in flight, get no redundancy.
    ///
    /// ```
    /// use kcpx::Config;
    ///
    /// let config = Config::interactive();
    /// assert!(config.validate().is_ok());
    /// ```
    #[must_use]
    pub fn interactive() -> Self {
        let auto = AutoRedundancy::new().max_overhead(2.0);
        Self::new().timing(Timing::FAST3).redundancy(Redundancy::Auto(auto))
    }

    /// For large transfers: files, backups, tunnels.
    ///
    /// | setting | value | default |
    /// |---|---|---|
    /// | [`send_buffer`](Self::send_buffer) | 4 MiB | 256 KiB |
    /// | [`recv_buffer`](Self::recv_buffer) | 4 MiB | 256 KiB |
    ///
    /// Windows grow from 1,024 to 8,192 segments with the path ([`Config::windows`]), as by default. No
    /// redundancy: lost data is retransmitted. [`CongestionControl::Bbr`] finds the bandwidth, also on paths
    /// with random loss. If the bandwidth is known, use [`Config::for_link`]. At 5 % loss and with a peer
    /// that decodes FEC, adding `FecConfig::BULK` is up to twice as fast.
    ///
    /// ```
    /// use kcpx::Config;
    ///
    /// let config = Config::bulk();
    /// assert!(config.validate().is_ok());
    /// ```
    #[must_use]
    pub fn bulk() -> Self {
        let mut config = Self::new();
        (config.send_buffer, config.recv_buffer) = (BULK_BUFFER, BULK_BUFFER);
        config
    }
}

/// Windows and buffers from the bandwidth-delay product of a path.
impl Config {
    /// For a path whose bandwidth and round-trip time are known.
    ///
    /// | setting | value | default |
    /// |---|---|---|
    /// | [`windows`](Self::windows) | 5/4 of `bits_per_second` times `rtt`, 32 to 65,535 segments each | 1,024 each, growing to 8,192 |
    /// | [`initial_rate`](Self::initial_rate) | 9/10 of `bits_per_second` | `None`: 32 segments in the first round trip |
    /// | [`send_buffer`](Self::send_buffer), [`recv_buffer`](Self::recv_buffer) | 1,400 bytes per segment of a window, at least the default | 256 KiB each |
    /// | [`socket_buffers`](Self::socket_buffers) | 2,800 bytes per segment of a window, at least the default | 4 MiB each |
    ///
    /// With 5/4 of the bandwidth-delay product in flight, the path stays full while a lost segment is
    /// retransmitted. If the values are too large, some packets are lost in the first round trips, until
    /// [`CongestionControl::Bbr`] has measured the bandwidth.
    ///
    /// The window also limits the loss at a bottleneck: on a shared path pass the connection's share of
    /// the bandwidth. See [the guide](crate::guide::tuning#2-windows).
    #[doc(alias = "BDP")]
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let config = kcpx::Config::for_link(100_000_000, Duration::from_millis(80));
    /// // Windows of 909 segments, and a starting rate of 11.25 MB/s.
    /// assert!(config.validate().is_ok());
    /// ```
    #[must_use]
    pub fn for_link(bits_per_second: u64, rtt: Duration) -> Self {
        let mut config = Self::new();
        let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
        let product = u128::from(bits_per_second) * u128::from(micros) / 8_000_000;
        let segment = u128::from(config.kcp.mtu) - SEGMENT_HEADER as u128;
        let segments = (product * 5 / 4).div_ceil(segment);
        let max = u64::from(u16::MAX);
        let segments = u64::try_from(segments).unwrap_or(max).clamp(MIN_WINDOW, max);
        let window = u16::try_from(segments).unwrap_or(u16::MAX);
        config = config.windows(window, window);
        config.kcp.initial_rate = NonZeroU64::new(bits_per_second / 80 * 9);
        let bytes = usize::from(window) * usize::from(config.kcp.mtu);
        for buffer in [&mut config.send_buffer, &mut config.recv_buffer] {
            *buffer = bytes.max(*buffer);
        }
        let socket = &mut config.socket;
        for buffer in [&mut socket.send_buffer_size, &mut socket.recv_buffer_size] {
            *buffer = buffer.map(|size| size.max(2 * bytes));
        }
        config
    }
}

/// The protocol of each connection.
impl Config {
    /// Sets when a segment is retransmitted. Default [`Timing::FAST2`].
    #[doc(alias = "SetNoDelay")]
    #[doc(alias = "NoDelay")]
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.kcp.timing = timing;
        self
    }

    /// Sets the congestion control of the sender. Default [`CongestionControl::Bbr`].
    #[doc(alias = "nc")]
    #[must_use]
    pub fn congestion_control(mut self, control: CongestionControl) -> Self {
        self.kcp.congestion_control = control;
        self
    }

    /// Sets the send window (segments in flight or waiting) and the receive window (segments received and
    /// not yet read), 1 to 65,535 each. A window costs up to one segment of memory for each.
    ///
    /// Default 1,024 each, with autotuning, which a call ends: the windows grow up to 8,192 segments (11
    /// MB) while the path delivers them and the application keeps up. Congestive loss shrinks the send
    /// window, to 32 segments at least.
    #[doc(alias = "SetWindowSize")]
    #[must_use]
    pub fn windows(mut self, send: u16, recv: u16) -> Self {
        (self.kcp.send_window, self.kcp.recv_window) = (send, recv);
        self.kcp.auto_windows = false;
        self
    }

    /// Sets the largest UDP payload in bytes, with the overhead of cipher and FEC, up to 65,507; of a
    /// [`Kcp`](crate::proto::Kcp) without I/O the largest datagram of KCP. At least one byte of data must
    /// fit: 25 without cipher and FEC. Default 1,400. kcp-go receives at most 1,472. Sizes above 1,472 are
    /// used once the peer has acknowledged a probe of that size.
    #[doc(alias = "SetMtu")]
    #[must_use]
    pub fn mtu(mut self, bytes: u16) -> Self {
        self.kcp.mtu = bytes;
        self
    }

    /// Sets stream or message mode, the same on both sides. Default [`Mode::Stream`].
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

    /// Sets the redundancy against losses. Default [`Redundancy::Off`].
    #[must_use]
    pub fn redundancy(mut self, redundancy: Redundancy) -> Self {
        self.kcp.redundancy = redundancy;
        self
    }

    /// Sets the maximum RTO of a segment, 1 s to 60 s (RFC 6298 2.5). Default 10 s. Each expiry adds half
    /// the RTO with `nodelay`, otherwise the whole RTO, as in kcp-go. Towards a silent peer of another
    /// implementation, back-off ends at 2.5 s (or at the RTO if it is longer), since such a peer answers no
    /// ping that asks whether it is back.
    #[must_use]
    pub fn max_retransmit_interval(mut self, time: Duration) -> Self {
        self.kcp.max_retransmit_interval = time;
        self
    }

    /// Sets the time without a datagram from the peer after which a connection with unacknowledged data or
    /// an unanswered ping ends with [`DeadPeer`](crate::ConnectionError::DeadPeer), 1 s to 1 day; `None`
    /// for never. Default 60 s. A shorter [`idle_timeout`](Self::idle_timeout) comes first.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    #[must_use]
    pub fn dead_peer_timeout(mut self, time: Option<Duration>) -> Self {
        self.kcp.dead_peer_timeout = time;
        self
    }

    /// Sets the idle time before a ping, 1 s to 1 day and at least 1 s below
    /// [`idle_timeout`](Self::idle_timeout), or never. Default [`KeepaliveInterval::Auto`]: 15 s, or a
    /// third of a shorter `idle_timeout`.
    ///
    /// The side that [`keepalive_side`](Self::keepalive_side) does not choose waits longer, so that only
    /// one side pings. Both wait up to 0.1 s longer, so that pings of many connections share wake-ups. A
    /// kcp-go server that closed its side accepts a new idle session for a ping.
    #[doc(alias = "SO_KEEPALIVE")]
    #[doc(alias = "ping")]
    #[must_use]
    pub fn keepalive(mut self, interval: KeepaliveInterval) -> Self {
        self.kcp.keepalive = interval;
        self
    }

    /// Sets the side that sends keepalive pings. Default [`KeepaliveSide::Passive`]: the side that opened
    /// the connection waits a sixteenth longer. With [`Active`](KeepaliveSide::Active), the side that
    /// accepted it waits twice as long, so that several pings may be lost, or a sixteenth longer if twice
    /// is too long for the idle timeout. No effect on a [`Kcp`](crate::proto::Kcp) without I/O, which does
    /// not know who opened the connection.
    #[must_use]
    pub fn keepalive_side(mut self, side: KeepaliveSide) -> Self {
        self.kcp.keepalive_side = side;
        self
    }

    /// Sets the idle time after which a connection ends with
    /// [`IdleTimeout`](crate::ConnectionError::IdleTimeout), 1 s to 1 day; `None` for never. Default 60 s.
    /// With [`keepalive`](Self::keepalive), on by default, it ends only connections whose peer does not
    /// answer. Starts once something was sent.
    #[must_use]
    pub fn idle_timeout(mut self, time: Option<Duration>) -> Self {
        self.kcp.idle_timeout = time;
        self
    }

    /// Sets whether the end of a stream and aborts are sent as CONTROL segments (FIN and RST) to peers that
    /// advertise the capability. Default `true`. The capability is in header fields that other
    /// implementations ignore.
    #[doc(alias = "FIN")]
    #[must_use]
    pub fn close_notify(mut self, notify: bool) -> Self {
        self.kcp.close_notify = notify;
        self
    }

    /// Sets the limit of sent bytes per second, headers included (kcp-go `SetRateLimit` of 5.6.72; version
    /// 5.7.5 counts application bytes); `None`, the default, for no limit.
    #[doc(alias = "SetRateLimit")]
    #[must_use]
    pub fn rate_limit(mut self, bytes_per_second: Option<NonZeroU64>) -> Self {
        self.kcp.rate_limit = bytes_per_second;
        self
    }

    /// Sets the starting rate of [`CongestionControl::Bbr`] in bytes per second, headers included, also
    /// after an idle time; `None`, the default: 32 segments in the first round trip. Measured bandwidth
    /// takes over after a few round trips. If the rate is too high, the excess is queued or lost until
    /// then.
    #[must_use]
    pub fn initial_rate(mut self, bytes_per_second: Option<NonZeroU64>) -> Self {
        self.kcp.initial_rate = bytes_per_second;
        self
    }

    /// Sets the time span of paced data that leaves at once, 0 to 10 ms, and at most a 20th of the minimum
    /// round trip with [`CongestionControl::Bbr`]. Default 1 ms: one datagram up to 11 Mbit/s, three at 20
    /// Mbit/s. A longer interval needs fewer timers and makes longer bursts. Intervals below the timer
    /// granularity (1 ms in Tokio) shorten bursts little.
    #[must_use]
    pub fn pacing_interval(mut self, time: Duration) -> Self {
        self.kcp.pacing_interval = time;
        self
    }
}

/// Connections, and the datagrams that carry them.
impl Config {
    /// Sets the encryption, the same on both sides. Default [`Cipher::null`]: none.
    #[must_use]
    pub fn cipher(mut self, cipher: Cipher) -> Self {
        self.cipher = cipher;
        self
    }

    /// Sets the anti-replay window in datagrams, 0 to 1,048,576 (RFC 4303 3.4.3). Default 0: replayed
    /// datagrams have no effect within a connection, and initial ones are remembered anyway. Requires a
    /// cipher with a nonce. Costs memory for a hash per datagram of the window.
    #[must_use]
    pub fn replay_window(mut self, datagrams: usize) -> Self {
        self.replay_window = datagrams;
        self
    }

    /// Sets the KCP conversation id (`conv`) of connections opened by this side. Default `None`: random,
    /// never 0. Each peer can have one connection per id, see
    /// [`Endpoint::connect_with_conv`](crate::Endpoint::connect_with_conv).
    ///
    /// kcp2k servers (Mirror) expect 0. tokio_kcp servers answer 0 with an id of their choice, which this
    /// crate does not adopt.
    ///
    /// Do not reuse an id under one key, neither for another client nor for the client's next connection:
    /// recorded datagrams of one connection would be valid in the other. A listener rejects an id that a
    /// validated peer at another address used under its key within ten seconds
    /// ([`RefusedStats::conv_in_use`](crate::stats::RefusedStats::conv_in_use)). If the id has a meaning,
    /// send it in the first message instead, or give each client a key.
    #[must_use]
    pub fn conv(mut self, conv: Option<u32>) -> Self {
        self.conv = conv;
        self
    }

    /// Sets whether to assign a random conversation id to peers that open with id 0: clients of tokio_kcp
    /// that call `connect_with_conv(0)` send nothing after their first packet until the answer has another
    /// id. Default `false`: 0 is an ordinary id, as kcp2k clients use it.
    #[must_use]
    pub fn assign_conv(mut self, assign: bool) -> Self {
        self.assign_conv = assign;
        self
    }

    /// Sets the filter for datagrams of other protocols on the same port, see [`PacketFilter`]. Default:
    /// none.
    #[must_use]
    pub fn packet_filter(
        mut self,
        takes: impl Fn(SocketAddr, &[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.packet_filter = Some(PacketFilter::new(takes));
        self
    }

    /// Sets the filter for connections opened by peers, see [`AcceptFilter`]. Default: all, within
    /// [`limits`](Self::limits).
    #[must_use]
    pub fn accept_filter(
        mut self,
        admits: impl Fn(SocketAddr, u32) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.accept_filter = Some(AcceptFilter::new(admits));
        self
    }

    /// Sets the limits on connections, mainly those opened by peers.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets whether connections opened by peers migrate to another address of the peer. Default:
    /// [`Migration::Authenticated`] with an AEAD cipher and one [shard](Self::shards), otherwise
    /// [`Migration::Off`]. docs/mobility.md has examples and times.
    ///
    /// Without a key, nothing tells a client that has changed its address from another client with the same
    /// conversation id. If its first segment of data leaves again from the new address, since the acknowledgement
    /// went to the old one, the listener accepts a second connection, which reads that data again.
    #[must_use]
    pub fn migration(mut self, migration: Migration) -> Self {
        self.migration = Some(migration);
        self
    }

    /// Sets what this side sends on the paths of a connection with several
    /// ([`KcpStream::add_path`](crate::KcpStream::add_path)). Default [`PathMode::Standby`].
    #[must_use]
    pub fn path_mode(mut self, mode: PathMode) -> Self {
        self.path_mode = mode;
        self
    }

    /// Sets whether `connect` returns at once, so that the first data leaves with the opening segment
    /// (0-RTT data in TLS 1.3 and QUIC) instead of a round trip later. Default `false`: `connect` waits for
    /// the peer. Always on without [`close_notify`](Self::close_notify), since listeners of this crate take
    /// an initial segment without data only from peers that have it.
    #[must_use]
    pub fn early_data(mut self, early: bool) -> Self {
        self.early_data = early;
        self
    }

    /// Sets how long `connect` waits for the peer, 1 ms to 1 day, per resolved address. Default 10 s. A
    /// shorter [`dead_peer_timeout`](Self::dead_peer_timeout) or [`idle_timeout`](Self::idle_timeout) ends
    /// the wait earlier, with its own error.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// Sets the bytes that a stream buffers for sending, 1 to 2^30. Default 256 KiB. A burst may fill the
    /// buffer. A writer that found it full may then fill what leaves within 10 ms, at least 16 KiB and at
    /// most this value, so that later writes do not wait behind seconds of data.
    #[doc(alias = "SO_SNDBUF")]
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = bytes;
        self
    }

    /// Sets the bytes that a stream buffers for the application, 1 to 2^30. Default 256 KiB. The receive
    /// window closes while the buffer is full.
    #[doc(alias = "SO_RCVBUF")]
    #[must_use]
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.recv_buffer = bytes;
        self
    }

    /// Sets the linger timeout, 0 s to 1 day. Default 10 s. A dropped stream is aborted after this time
    /// without an acknowledgement; zero aborts it at once. `shutdown` fails after this time without a
    /// datagram from the peer. A peer that does not read is kept while it answers window probes, which
    /// leave at least three times in this time.
    #[doc(alias = "SO_LINGER")]
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Sets the number of extra copies of each datagram, 0 to 8 (kcp-go `SetDUP`). Default 0. Each copy
    /// costs the whole bandwidth again.
    #[doc(alias = "SetDUP")]
    #[must_use]
    pub fn duplicates(mut self, copies: u8) -> Self {
        self.duplicates = copies;
        self
    }
}

/// UDP sockets that the crate binds. Adopted sockets keep their own options.
impl Config {
    /// Sets the kernel socket buffers in bytes, 1 to 2^30; `None` for the system's default. Default 4 MiB
    /// each, as in kcptun. The system may grant less, which is logged once per process (feature `tracing`).
    /// A receive buffer smaller than a window loses bursts.
    #[doc(alias = "SO_SNDBUF")]
    #[doc(alias = "SO_RCVBUF")]
    #[must_use]
    pub fn socket_buffers(mut self, send: Option<usize>, recv: Option<usize>) -> Self {
        (self.socket.send_buffer_size, self.socket.recv_buffer_size) = (send, recv);
        self
    }

    /// Sets whether an IPv6 socket serves only IPv6 peers (`IPV6_V6ONLY`). Default `false`: a wildcard IPv6
    /// socket serves both.
    #[must_use]
    pub fn only_v6(mut self, only: bool) -> Self {
        self.socket.only_v6 = only;
        self
    }

    /// Sets the DSCP of each IP packet, 0 to 63 (kcp-go `SetDSCP`, kcptun `--dscp`), for both IP versions.
    /// Default `None`: the system's, which is 0. Outside Linux and Android it turns GSO off, and wildcard
    /// sockets answer from an address of the system's choice.
    #[doc(alias = "SetDSCP")]
    #[doc(alias = "IP_TOS")]
    #[must_use]
    pub fn dscp(mut self, dscp: Option<u8>) -> Self {
        self.socket.dscp = dscp;
        self
    }

    /// Sets the TTL (IPv4) and hop limit (IPv6), 1 to 255 hops. Default `None`: the system's.
    #[doc(alias = "IP_TTL")]
    #[must_use]
    pub fn ttl(mut self, hops: Option<u32>) -> Self {
        self.socket.ttl = hops;
        self
    }

    /// Sets the name of the network interface, 1 to 15 bytes, such as `eth0`. Default `None`: by route.
    /// Linux and Android only; otherwise binding fails with
    /// [`Unsupported`](std::io::ErrorKind::Unsupported). Some systems require privileges.
    #[doc(alias = "SO_BINDTODEVICE")]
    #[must_use]
    pub fn device(mut self, name: Option<String>) -> Self {
        self.socket.device = name;
        self
    }

    /// Sets the number of sockets that [`KcpListener::bind_with`](crate::KcpListener::bind_with) binds to
    /// its address (`SO_REUSEPORT`), 1 to 64; only 1 on systems other than Linux and Android. Default 1.
    /// Each socket has its own task, so that a server can use that number of cores. The system distributes
    /// peers by address, which excludes [`migration`](Self::migration): with several shards its default
    /// is [`Migration::Off`]. Each socket costs kernel buffers
    /// and tables. Other functions bind one socket; functions that adopt sockets use all sockets they get.
    #[doc(alias = "SO_REUSEPORT")]
    #[must_use]
    pub fn shards(mut self, sockets: usize) -> Self {
        self.socket.shards = sockets;
        self
    }
}

/// Diagnosis.
#[cfg(feature = "qlog")]
impl Config {
    /// Writes a log of each connection into the folder `dir`, which must exist. Default: no logs.
    ///
    /// The logs are JSON text sequences by the main schema of qlog. [qvis](https://qvis.quictools.info) and
    /// `kcpx-trace graph` draw them: packets, losses, round trips, rate and phase of the congestion control. A
    /// file is called `<conv>-<time>-<client|server>.sqlog`, with the start of the connection in milliseconds
    /// since 1970. A connection that a peer opened gets one once the peer is validated, and each socket has up to
    /// 256 open at once: further connections have none, which an event of `tracing` says once.
    ///
    /// A thread for each socket writes them, up to 0.1 s later; the end of an endpoint waits for it up to a
    /// second. Up to 8 MiB wait in memory, then events are dropped and counted in the log. After an error of
    /// the disk the endpoint logs no more and says so once, as an event of `tracing`; its connections go on.
    ///
    /// Functions that bind a socket fail with the error of the folder if they cannot write into it.
    #[must_use]
    pub fn qlog(mut self, dir: impl Into<PathBuf>) -> Self {
        self.qlog = Some(dir.into());
        self
    }
}

impl Config {
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
        self.allowed_migration().check(&self.cipher)?;
        if self.allowed_migration() != Migration::Off && self.socket.shards > 1 {
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

    /// Which migrations of peers are allowed.
    pub(crate) fn allowed_migration(&self) -> Migration {
        let authenticates = self.cipher.is_aead() && self.socket.shards == 1;
        let default = if authenticates { Migration::Authenticated } else { Migration::Off };
        self.migration.unwrap_or(default)
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
    CongestionControl(CongestionControl),
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
    /// The path has changed, see `KcpStream::network_changed`.
    NetworkChanged,
}
