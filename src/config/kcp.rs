//! `KcpConfig`: settings of one connection's state machine.

use std::num::{NonZeroU8, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use super::keepalive::check_timeout;
use super::{KeepaliveInterval, KeepaliveSide, Redundancy};
use crate::error::ConfigError;

/// Bytes of a segment header (`IKCP_OVERHEAD`).
pub(crate) const SEGMENT_HEADER: usize = 24;

/// Bytes of the headers of IPv4 and UDP.
pub(crate) const IP_UDP_HEADERS: usize = 20 + 8;

/// Bytes of the largest UDP payload over IPv4, 65,535 - 20 - 8.
const MAX_DATAGRAM: u64 = 65_507;

/// Bytes that storing a received segment costs in addition to its payload, rounded up.
pub(crate) const SEGMENT_COST: usize = 64;

/// Receive memory in bytes per advertised segment: kcp-go's largest payload (`mtuLimit` of 1,500 less the
/// header) and the storage cost.
pub(crate) const SEGMENT_CHARGE: usize = 1_476 + SEGMENT_COST;
/// Bytes of a connection's state without data (tests/memory.rs).
pub(crate) const CONNECTION_COST: usize = 4_096;

/// Timing preset: KCP's four `nodelay` parameters (`ikcp_nodelay`, kcp-go `SetNoDelay`).
///
/// The constants have kcptun's names and values. kcptun's presets disable the congestion window (`nc` 1)
/// and flood a bottleneck's queue with the whole window; here they use [`CongestionControl::Model`].
/// [`Timing::with_congestion`] changes that. "Normal mode" in the C library's README is `0, 40, 0, 0`,
/// not [`Timing::NORMAL`].
///
/// ```
/// use std::num::NonZeroU8;
/// use std::time::Duration;
///
/// use kcpx::{Config, CongestionControl, Timing};
///
/// let config = Config::new().timing(Timing::FAST3);
///
/// // kcp-go's `SetNoDelay(1, 10, 2, 1)`, also without congestion control.
/// let interval = Duration::from_millis(10);
/// let timing = Timing::new(true, interval, NonZeroU8::new(2), CongestionControl::Disabled)?;
/// assert_eq!(timing, Timing::FAST3.with_congestion(CongestionControl::Disabled));
/// # assert!(config.timing(timing).validate().is_ok());
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "nodelay")]
#[doc(alias = "SetNoDelay")]
pub struct Timing {
    pub(crate) nodelay: bool,
    pub(crate) interval: Duration,
    pub(crate) fast_resend: Option<NonZeroU8>,
    pub(crate) congestion: CongestionControl,
}

impl Timing {
    /// `0, 100, 0, 0`: the library default of kcp-go and of the C implementation.
    pub const KCP_DEFAULT: Self = Self::preset(false, 100, 0, CongestionControl::Reno);
    /// `0, 40, 2, 1`: kcptun's "normal".
    pub const NORMAL: Self = Self::preset(false, 40, 2, CongestionControl::Model);
    /// `0, 30, 2, 1`: kcptun's "fast".
    pub const FAST: Self = Self::preset(false, 30, 2, CongestionControl::Model);
    /// `1, 20, 2, 1`: kcptun's "fast2", and the default here.
    pub const FAST2: Self = Self::preset(true, 20, 2, CongestionControl::Model);
    /// `1, 10, 2, 1`: kcptun's "fast3".
    pub const FAST3: Self = Self::preset(true, 10, 2, CongestionControl::Model);
    /// `1, 10, 2, 1`: the "turbo mode" of the C README; equal to [`Timing::FAST3`].
    pub const TURBO: Self = Self::FAST3;

    const fn preset(nodelay: bool, millis: u64, resend: u8, congestion: CongestionControl) -> Self {
        Self {
            nodelay,
            interval: Duration::from_millis(millis),
            fast_resend: NonZeroU8::new(resend),
            congestion,
        }
    }

    /// Creates a preset with kcp-go's meaning of each parameter.
    ///
    /// * `nodelay`: minimum RTO of 30 ms instead of 100 ms; with [`Backoff::Linear`] the RTO grows by
    ///   half at each expiry instead of by the whole.
    /// * `interval`: 10 ms to 5 s. Part of the RTO, the delay of [`AckPolicy::Interval`] and of
    ///   [`WritePolicy::Delayed`].
    /// * `fast_resend`: later transmissions acknowledged before a segment counts as lost (fast
    ///   retransmit, kcp-go `resend`); `None` leaves that to the RTO.
    /// * `congestion`: KCP's congestion window (kcp-go `nc` 0), a model of the path, or none.
    ///
    /// # Errors
    ///
    /// When `interval` is outside 10 ms to 5,000 ms.
    pub fn new(
        nodelay: bool,
        interval: Duration,
        fast_resend: Option<NonZeroU8>,
        congestion: CongestionControl,
    ) -> Result<Self, ConfigError> {
        ConfigError::check("interval (ms)", interval.as_millis(), 10, 5_000)?;
        Ok(Self { nodelay, interval, fast_resend, congestion })
    }

    /// Replaces the congestion control.
    #[must_use]
    pub const fn with_congestion(self, congestion: CongestionControl) -> Self {
        Self { congestion, ..self }
    }
}

/// kcptun's names of `--mode`: `normal`, `fast`, `fast2` and `fast3`.
///
/// ```
/// use kcpx::Timing;
///
/// assert_eq!("fast2".parse(), Ok(Timing::FAST2));
/// let error = "fast33".parse::<Timing>().unwrap_err().to_string();
/// assert_eq!(error, "unknown timing \"fast33\": use normal, fast, fast2 or fast3");
/// ```
impl FromStr for Timing {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name {
            "normal" => Ok(Self::NORMAL),
            "fast" => Ok(Self::FAST),
            "fast2" => Ok(Self::FAST2),
            "fast3" => Ok(Self::FAST3),
            other => Err(ConfigError::UnknownTiming { name: other.to_owned() }),
        }
    }
}

/// Congestion control of the sender (kcp-go `nc` inverts its meaning).
///
/// ```
/// use kcpx::{Config, CongestionControl, Timing};
///
/// // On a private link, a window that fits is the only limit.
/// let timing = Timing::FAST2.with_congestion(CongestionControl::Disabled);
/// let config = Config::new().timing(timing).windows(512, 512);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "nc")]
pub enum CongestionControl {
    /// KCP's congestion window: slow start, congestion avoidance, and reduction on loss.
    Reno,
    /// A model of the path's bandwidth and minimum round-trip time, as in BBRv3 (draft-ietf-ccwg-bbr):
    /// data leaves at the measured delivery rate, with at most twice the bandwidth-delay product in
    /// flight.
    ///
    /// Used by the presets NORMAL, FAST, FAST2 and FAST3. Keeps the bottleneck's queue short and loses
    /// little in it. Only loss caused by queues reduces the rate, random loss does not. Does not delay
    /// application-limited flows, such as messages. Sets no limit on paths with a round trip below 2 ms.
    /// Costs 40 bytes per segment in flight.
    #[doc(alias = "BBR")]
    Model,
    /// None: only the send window and the peer's receive window limit the sender. For paths without other
    /// traffic and windows that fit them: as fast as the windows allow, with more loss in a bottleneck's
    /// queue.
    Disabled,
}

/// Byte stream or messages (kcp-go `SetStreamMode`).
///
/// ```
/// use kcpx::{Config, KcpListener, KcpStream, Mode};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let config = Config::new().mode(Mode::Message); // On both sides.
/// let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await?;
/// let mut client = KcpStream::connect_with(listener.local_addr()?, config).await?;
/// let (mut server, _peer) = listener.accept().await?;
///
/// client.send_message(b"one").await?;
/// client.send_message(b"two").await?;
/// assert_eq!(server.recv_message().await?, "one");
/// assert_eq!(server.recv_message().await?, "two");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "SetStreamMode")]
pub enum Mode {
    /// A byte stream: small writes share segments. The default.
    Stream,
    /// Messages: each write starts a segment and keeps its boundaries. kcp-go's default.
    Message,
}

/// Default of both windows in segments.
pub(crate) const DEFAULT_WINDOW: u16 = 1_024;

/// When acknowledgements of received data are sent (kcp-go `SetACKNoDelay`).
///
/// ```
/// use kcpx::{AckPolicy, Config};
///
/// // Fewer datagrams to the sender, and a round trip longer by up to one interval.
/// let config = Config::new().ack_policy(AckPolicy::Interval);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "SetACKNoDelay")]
#[doc(alias = "delayed ACK")]
pub enum AckPolicy {
    /// Once per received batch of datagrams. The default. An acknowledgement of one or two in-order
    /// segments that wake a reader waits until ready tasks have run, to leave with an answer (RFC 9293
    /// 3.8.6.3); a process that exits right after a read may leave it unsent. In bulk (16 full in-order
    /// segments within a round trip) once per four segments, at the latest a quarter of a round trip
    /// after the first; once per two segments for other implementations. Gaps, filled gaps and duplicates
    /// are acknowledged at once.
    PerBatch,
    /// After one [`Timing`] interval; earlier when a datagram is full of acknowledgements or data arrived
    /// out of order. kcp-go without ack-no-delay.
    Interval,
    /// After every datagram, which costs one datagram each. kcp-go with ack-no-delay.
    Immediate,
}

/// When written data is sent (kcp-go `SetWriteDelay`).
///
/// ```
/// use kcpx::{Config, WritePolicy};
///
/// // Small writes share datagrams, and each waits for up to one interval.
/// let config = Config::new().write_policy(WritePolicy::Delayed);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "SetWriteDelay")]
pub enum WritePolicy {
    /// As soon as the windows permit. The default.
    Immediate,
    /// After one [`Timing`] interval, when the send window is full, or at a flush: kcp-go's write
    /// delay.
    Delayed,
}

/// Back-off of a segment's RTO after each expiry.
///
/// [`KcpConfig::max_retransmit_interval`] limits it.
///
/// ```
/// use std::time::Duration;
///
/// use kcpx::{Backoff, Config};
///
/// let mut config = Config::new();
/// config.kcp.backoff = Backoff::Exponential;
/// config.kcp.max_retransmit_interval = Duration::from_secs(60);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backoff {
    /// Adds half the RTO with `nodelay`, otherwise the whole RTO, as in kcp-go. The default.
    Linear,
    /// Doubles each time (RFC 6298 5.5).
    Exponential,
}

/// Settings of one connection's state machine.
///
/// Plain data: change the fields you need. Functions that take a configuration call
/// [`KcpConfig::validate`].
///
/// ```
/// use std::num::NonZeroU64;
/// use std::time::Duration;
///
/// use kcpx::Config;
///
/// let mut config = Config::new();
/// config.kcp.dead_peer_timeout = Some(Duration::from_secs(20));
/// config.kcp.rate_limit = NonZeroU64::new(1_000_000); // Bytes per second.
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KcpConfig {
    /// Timing preset. Default [`Timing::FAST2`].
    pub timing: Timing,
    /// Send window in segments, in flight or waiting, 1 to 65,535 (kcp-go `SetWindowSize`). Default
    /// 1,024. Costs up to one segment of memory each.
    #[doc(alias = "SetWindowSize")]
    pub send_window: u16,
    /// Receive window in segments received and not yet read, 1 to 65,535. Default 1,024.
    #[doc(alias = "SetWindowSize")]
    pub recv_window: u16,
    /// Window autotuning: default-sized windows grow up to 8,192 segments (11 MB) while the path delivers
    /// them and the application keeps up. Congestive loss shrinks the send window, to 32 segments at
    /// least. Default `true`; [`Config::windows`](crate::Config::windows) turns it off.
    pub auto_windows: bool,
    /// Largest KCP datagram in bytes, 25 to 65,507 (kcp-go `SetMtu`); in a [`Config`](crate::Config) the
    /// largest UDP payload. Default 1,400. kcp-go receives at most 1,472. Sizes above 1,472 are used once
    /// the peer has acknowledged a probe of that size.
    #[doc(alias = "SetMtu")]
    pub mtu: u16,
    /// Byte stream or messages. Default [`Mode::Stream`].
    pub mode: Mode,
    /// When acknowledgements are sent. Default [`AckPolicy::PerBatch`].
    pub ack_policy: AckPolicy,
    /// When written data is sent. Default [`WritePolicy::Immediate`].
    pub write_policy: WritePolicy,
    /// Back-off of the RTO. Default [`Backoff::Linear`].
    pub backoff: Backoff,
    /// Early retransmit (RFC 5827): without new data to send, one acknowledged later transmission and a
    /// reordering window declare a segment lost. Default `true`, as in kcp-go.
    pub early_retransmit: bool,
    /// Maximum RTO of a segment, 1 s to 60 s (RFC 6298 2.5). Default 10 s. Towards a silent peer of
    /// another implementation, back-off ends at 2.5 s (or at the RTO if it is longer), since such a peer
    /// answers no ping that asks whether it is back.
    pub max_retransmit_interval: Duration,
    /// Time without a datagram from the peer after which a connection with unacknowledged data or an
    /// unanswered ping ends with [`DeadPeer`](crate::ConnectionError::DeadPeer), 1 s to 1 day; `None` for
    /// never. Default 60 s. A shorter [`idle_timeout`](Self::idle_timeout) comes first.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub dead_peer_timeout: Option<Duration>,
    /// Idle time before a ping, 1 s to 1 day and at least 1 s below [`idle_timeout`](Self::idle_timeout),
    /// or never. Default [`Auto`](KeepaliveInterval::Auto): 15 s, or a third of a shorter `idle_timeout`.
    /// The side that [`keepalive_side`](Self::keepalive_side) does not choose waits longer, so that only
    /// one side pings. Both wait up to 0.1 s longer, so that pings of many connections share wake-ups. A
    /// kcp-go server that closed its side accepts a new idle session for a ping.
    #[doc(alias = "SO_KEEPALIVE")]
    #[doc(alias = "ping")]
    pub keepalive: KeepaliveInterval,
    /// The side that sends keepalive pings. Default [`Passive`](KeepaliveSide::Passive): the side that
    /// opened the connection waits a sixteenth longer. With [`Active`](KeepaliveSide::Active), the side
    /// that accepted it waits twice as long, so that several pings may be lost, or a sixteenth longer if
    /// twice is too long for [`idle_timeout`](Self::idle_timeout). No effect on a
    /// [`Kcp`](crate::proto::Kcp) without I/O, which does not know who opened the connection.
    pub keepalive_side: KeepaliveSide,
    /// Idle time after which a connection ends with [`IdleTimeout`](crate::ConnectionError::IdleTimeout),
    /// 1 s to 1 day; `None` for never. Default 60 s. With [`keepalive`](Self::keepalive), on by default,
    /// it ends only connections whose peer does not answer. Starts once something was sent.
    pub idle_timeout: Option<Duration>,
    /// Limit of sent bytes per second, headers included (kcp-go `SetRateLimit` of 5.6.72; version 5.7.5
    /// counts application bytes); `None` for no limit. Default `None`.
    #[doc(alias = "SetRateLimit")]
    pub rate_limit: Option<NonZeroU64>,
    /// Starting rate of a sender with [`CongestionControl::Model`] in bytes per second, headers included,
    /// also after an idle time; `None`, the default: 32 segments in the first round trip. Measured
    /// bandwidth takes over after a few round trips. If the rate is too high, the excess is queued or
    /// lost until then.
    pub initial_rate: Option<NonZeroU64>,
    /// Time span of paced data that leaves at once, 0 to 10 ms, and at most a 20th of the minimum round
    /// trip with [`CongestionControl::Model`]. Default 1 ms: one datagram up to 11 Mbit/s, three at 20
    /// Mbit/s. A longer interval needs fewer timers and makes longer bursts. Intervals below the timer
    /// granularity (1 ms in Tokio) shorten bursts little.
    pub pacing_interval: Duration,
    /// Receive memory in bytes, at least one segment (1,540). Default `None`: `recv_window` times 1,540.
    pub recv_memory: Option<usize>,
    /// Whether to send the end of a stream and aborts as CONTROL segments (FIN and RST) to peers that
    /// advertise the capability. Default `true`. The capability is in header fields that other
    /// implementations ignore.
    #[doc(alias = "FIN")]
    pub close_notify: bool,
    /// Redundancy against losses. Default [`Redundancy::Off`].
    pub redundancy: Redundancy,
    /// Whether to deliver empty messages in message mode. Default `false`: they are acknowledged and
    /// skipped. A byte stream always skips them.
    pub empty_messages: bool,
}

impl Default for KcpConfig {
    fn default() -> Self {
        Self {
            timing: Timing::FAST2,
            send_window: DEFAULT_WINDOW,
            recv_window: DEFAULT_WINDOW,
            auto_windows: true,
            mtu: 1_400,
            mode: Mode::Stream,
            ack_policy: AckPolicy::PerBatch,
            write_policy: WritePolicy::Immediate,
            backoff: Backoff::Linear,
            early_retransmit: true,
            max_retransmit_interval: Duration::from_secs(10),
            dead_peer_timeout: Some(Duration::from_secs(60)),
            keepalive: KeepaliveInterval::Auto,
            keepalive_side: KeepaliveSide::Passive,
            idle_timeout: Some(Duration::from_secs(60)),
            rate_limit: None,
            initial_rate: None,
            pacing_interval: Duration::from_millis(1),
            recv_memory: None,
            close_notify: true,
            redundancy: Redundancy::default(),
            empty_messages: false,
        }
    }
}

impl KcpConfig {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_windows(self.send_window, self.recv_window)?;
        check_mtu(self.mtu, 0)?;
        let interval = self.max_retransmit_interval.as_millis();
        ConfigError::check("max_retransmit_interval (ms)", interval, 1_000, 60_000)?;
        ConfigError::check("pacing_interval (us)", self.pacing_interval.as_micros(), 0, 10_000)?;
        check_timeout("dead_peer_timeout (ms)", self.dead_peer_timeout)?;
        self.keepalive.validate(self.idle_timeout)?;
        self.redundancy.validate(self.close_notify)?;
        if let Some(bytes) = self.recv_memory {
            let max = 1 << 40;
            ConfigError::check("recv_memory (bytes)", bytes, SEGMENT_CHARGE as u64, max)?;
        }
        Ok(())
    }

    /// Returns the receive memory in bytes.
    pub(crate) fn recv_budget(&self) -> usize {
        let derived = usize::from(self.recv_window) * SEGMENT_CHARGE;
        self.recv_memory.unwrap_or(derived)
    }
}

pub(crate) fn check_windows(send: u16, recv: u16) -> Result<(), ConfigError> {
    let max = u64::from(u16::MAX);
    ConfigError::check("send_window (segments)", send, 1, max)?;
    ConfigError::check("recv_window (segments)", recv, 1, max)
}

/// Checks the MTU in bytes: at least `overhead`, the header and one byte of data.
pub(crate) fn check_mtu(mtu: u16, overhead: usize) -> Result<(), ConfigError> {
    let min = (overhead + SEGMENT_HEADER) as u64 + 1;
    ConfigError::check("mtu (bytes)", mtu, min, MAX_DATAGRAM)
}
