//! `KcpConfig`: settings of one connection's state machine, keepalive included.

use std::num::{NonZeroU8, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use super::Redundancy;
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

/// Timing of retransmissions: three of KCP's four `nodelay` parameters (`ikcp_nodelay`, kcp-go
/// `SetNoDelay`). The fourth, `nc`, is [`CongestionControl`].
///
/// | constant | `nodelay` | `interval` | `fast_resend` | known as |
/// |---|---|---|---|---|
/// | [`KCP_DEFAULT`](Self::KCP_DEFAULT) | off | 100 ms | off | library default of kcp-go and the C implementation |
/// | [`NORMAL`](Self::NORMAL) | off | 40 ms | 2 | kcptun's "normal" |
/// | [`FAST`](Self::FAST) | off | 30 ms | 2 | kcptun's "fast" |
/// | [`FAST2`](Self::FAST2), the default | on | 20 ms | 2 | kcptun's "fast2" |
/// | [`FAST3`](Self::FAST3) | on | 10 ms | 2 | kcptun's "fast3", "turbo mode" of the C library's README |
///
/// "Normal mode" in the C library's README is `0, 40, 0`, not [`Timing::NORMAL`]. [`Timing::new`] explains
/// the parameters.
///
/// ```
/// use std::num::NonZeroU8;
/// use std::time::Duration;
///
/// use kcpx::{Config, CongestionControl, Timing};
///
/// // kcp-go's `SetNoDelay(1, 10, 2, 1)`.
/// let timing = Timing::new(true, Duration::from_millis(10), NonZeroU8::new(2))?;
/// assert_eq!(timing, Timing::FAST3);
/// let config = Config::new().timing(timing).congestion_control(CongestionControl::Off);
/// # assert!(config.validate().is_ok());
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "nodelay")]
#[doc(alias = "SetNoDelay")]
pub struct Timing {
    pub(crate) nodelay: bool,
    pub(crate) interval: Duration,
    pub(crate) fast_resend: Option<NonZeroU8>,
}

impl Timing {
    /// `0, 100, 0` (`nodelay`, `interval`, `resend`).
    pub const KCP_DEFAULT: Self = Self::preset(false, 100, 0);
    /// `0, 40, 2`.
    pub const NORMAL: Self = Self::preset(false, 40, 2);
    /// `0, 30, 2`.
    pub const FAST: Self = Self::preset(false, 30, 2);
    /// `1, 20, 2`: the default.
    pub const FAST2: Self = Self::preset(true, 20, 2);
    /// `1, 10, 2`.
    pub const FAST3: Self = Self::preset(true, 10, 2);

    const fn preset(nodelay: bool, millis: u64, resend: u8) -> Self {
        let interval = Duration::from_millis(millis);
        Self { nodelay, interval, fast_resend: NonZeroU8::new(resend) }
    }

    /// Creates a preset with kcp-go's meaning of each parameter.
    ///
    /// * `nodelay`: minimum RTO of 30 ms instead of 100 ms; the RTO grows by half at each expiry
    ///   instead of by the whole.
    /// * `interval`: 10 ms to 5 s. Part of the RTO, the delay of [`AckPolicy::Interval`] and of
    ///   [`WritePolicy::Delayed`].
    /// * `fast_resend`: later transmissions acknowledged before a segment counts as lost (fast
    ///   retransmit, kcp-go `resend`); `None` leaves that to the RTO.
    ///
    /// # Errors
    ///
    /// When `interval` is outside 10 ms to 5,000 ms.
    pub fn new(
        nodelay: bool,
        interval: Duration,
        fast_resend: Option<NonZeroU8>,
    ) -> Result<Self, ConfigError> {
        ConfigError::check("interval (ms)", interval.as_millis(), 10, 5_000)?;
        Ok(Self { nodelay, interval, fast_resend })
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
            other => Err(ConfigError::unknown("timing", other, "normal, fast, fast2 or fast3")),
        }
    }
}

/// Congestion control of the sender (kcp-go `nc` inverts its meaning).
///
/// ```
/// use kcpx::{Config, CongestionControl};
///
/// // On a private link, a window that fits is the only limit.
/// let config = Config::new().congestion_control(CongestionControl::Off).windows(512, 512);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "nc")]
pub enum CongestionControl {
    /// A model of the path's bandwidth and minimum round-trip time, as in BBRv3 (draft-ietf-ccwg-bbr):
    /// data leaves at the measured delivery rate, with at most twice the bandwidth-delay product in
    /// flight. The default.
    ///
    /// Keeps the bottleneck's queue short and loses little in it. Only loss caused by queues reduces the
    /// rate, random loss does not. Does not delay application-limited flows, such as messages. Sets no
    /// limit on paths with a round trip below 2 ms. Costs 40 bytes per segment in flight.
    Bbr,
    /// KCP's congestion window (kcp-go `nc` 0): slow start, congestion avoidance, and reduction on loss.
    Reno,
    /// None (kcp-go `nc` 1): only the send window and the peer's receive window limit the sender. For paths
    /// without other traffic and windows that fit them: as fast as the windows allow, with more loss in a
    /// bottleneck's queue.
    Off,
}

/// `bbr`, `reno` and `off`.
///
/// ```
/// use kcpx::CongestionControl;
///
/// assert_eq!("bbr".parse(), Ok(CongestionControl::Bbr));
/// let error = "cubic".parse::<CongestionControl>().unwrap_err().to_string();
/// assert_eq!(error, "unknown congestion control \"cubic\": use bbr, reno or off");
/// ```
impl FromStr for CongestionControl {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name {
            "bbr" => Ok(Self::Bbr),
            "reno" => Ok(Self::Reno),
            "off" => Ok(Self::Off),
            other => Err(ConfigError::unknown("congestion control", other, "bbr, reno or off")),
        }
    }
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

/// When an idle connection is pinged ([`Config::keepalive`](crate::Config::keepalive)).
///
/// ```
/// use std::time::Duration;
///
/// use kcpx::{Config, KeepaliveInterval};
///
/// let config = Config::new().idle_timeout(Some(Duration::from_secs(9))); // A ping after 3 s.
/// # assert!(config.validate().is_ok());
/// let config = config.keepalive(KeepaliveInterval::After(Duration::from_secs(10)));
/// assert!(config.validate().is_err()); // The connection would end before the first ping.
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepaliveInterval {
    /// After 15 s without a datagram from the peer, or after a third of a shorter
    /// [`idle_timeout`](crate::Config::idle_timeout), at most once a second. The default.
    #[default]
    Auto,
    /// After this time without a datagram from the peer: 1 s to 1 day, at least 1 s below the idle
    /// timeout.
    After(Duration),
    /// Never: an idle connection ends after the idle timeout.
    Never,
}

/// [`KeepaliveInterval::Auto`] with a long idle timeout.
const AUTO_INTERVAL: Duration = Duration::from_secs(15);
/// Divisor of the idle timeout for [`KeepaliveInterval::Auto`]: two pings may be lost.
const IDLE_DIVISOR: u32 = 3;
/// Least time between a ping and the idle timeout, for the answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);

impl KeepaliveInterval {
    /// The idle time before a ping; `None`: never.
    pub(crate) fn period(self, idle_timeout: Option<Duration>) -> Option<Duration> {
        let third = idle_timeout.map_or(Duration::MAX, |idle| idle / IDLE_DIVISOR);
        match self {
            Self::Auto => Some(AUTO_INTERVAL.min(third)),
            Self::After(interval) => Some(interval),
            Self::Never => None,
        }
    }

    /// Checks the interval and the timeout, which limit each other.
    pub(crate) fn validate(self, idle_timeout: Option<Duration>) -> Result<(), ConfigError> {
        check_timeout("idle_timeout (ms)", idle_timeout)?;
        let Self::After(interval) = self else { return Ok(()) };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (field, value) = ("keepalive (ms)", millis(interval));
        ConfigError::check(field, value, 1_000, 24 * 60 * 60 * 1_000)?;
        let other_value = idle_timeout.map_or(u64::MAX, millis);
        let max = other_value.saturating_sub(millis(ANSWER_TIME));
        if value <= max {
            return Ok(());
        }
        if max < 1_000 {
            let (field, needs) = ("KeepaliveInterval::After", "an idle_timeout of at least 2 s");
            return Err(ConfigError::Requires { field, needs });
        }
        Err(ConfigError::Contradicts { field, value, max, other: "idle_timeout (ms)", other_value })
    }
}

/// The side of an idle connection that sends keepalive pings
/// ([`Config::keepalive`](crate::Config::keepalive)). The other side answers them, and pings only
/// if none arrive. RFC 9000 10.1.2 leaves the choice to the application. Use the same on both sides.
///
/// With either, a side that received only pings for two thirds of the idle timeout sends one itself,
/// since those pings may be replayed.
///
/// ```
/// use kcpx::{Config, KeepaliveSide};
///
/// // For clients behind a NAT, and for their server.
/// let config = Config::new().keepalive_side(KeepaliveSide::Active);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepaliveSide {
    /// The side that accepted the connection. The default: a listener pings together all connections that
    /// are due within a tenth of a second, which is cheapest for it.
    #[default]
    Passive,
    /// The side that opened the connection. For paths with a NAT or balancer that forgets connections,
    /// due to a short timeout or a restart: only a datagram from inside is sure to renew a mapping (RFC
    /// 4787 REQ-6). Without the mapping, a server's ping cannot reach the client, and may take the
    /// mapping that the client's next datagram needs. docs/lab.md in the repository has the cost.
    Active,
}

/// Settings of one connection's state machine; the setters of [`Config`](super::Config) document them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KcpConfig {
    pub(crate) timing: Timing,
    pub(crate) congestion_control: CongestionControl,
    pub(crate) send_window: u16,
    pub(crate) recv_window: u16,
    /// Whether windows of the default size follow the path.
    pub(crate) auto_windows: bool,
    pub(crate) mtu: u16,
    pub(crate) mode: Mode,
    pub(crate) ack_policy: AckPolicy,
    pub(crate) write_policy: WritePolicy,
    pub(crate) max_retransmit_interval: Duration,
    pub(crate) dead_peer_timeout: Option<Duration>,
    pub(crate) keepalive: KeepaliveInterval,
    pub(crate) keepalive_side: KeepaliveSide,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) rate_limit: Option<NonZeroU64>,
    pub(crate) initial_rate: Option<NonZeroU64>,
    pub(crate) pacing_interval: Duration,
    pub(crate) close_notify: bool,
    pub(crate) redundancy: Redundancy,
}

impl Default for KcpConfig {
    fn default() -> Self {
        Self {
            timing: Timing::FAST2,
            congestion_control: CongestionControl::Bbr,
            send_window: DEFAULT_WINDOW,
            recv_window: DEFAULT_WINDOW,
            auto_windows: true,
            mtu: 1_400,
            mode: Mode::Stream,
            ack_policy: AckPolicy::PerBatch,
            write_policy: WritePolicy::Immediate,
            max_retransmit_interval: Duration::from_secs(10),
            dead_peer_timeout: Some(Duration::from_secs(60)),
            keepalive: KeepaliveInterval::Auto,
            keepalive_side: KeepaliveSide::Passive,
            idle_timeout: Some(Duration::from_secs(60)),
            rate_limit: None,
            initial_rate: None,
            pacing_interval: Duration::from_millis(1),
            close_notify: true,
            redundancy: Redundancy::default(),
        }
    }
}

impl KcpConfig {
    /// Fails with the first setting that is out of range.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check_windows(self.send_window, self.recv_window)?;
        check_mtu(self.mtu, 0)?;
        let interval = self.max_retransmit_interval.as_millis();
        ConfigError::check("max_retransmit_interval (ms)", interval, 1_000, 60_000)?;
        ConfigError::check("pacing_interval (us)", self.pacing_interval.as_micros(), 0, 10_000)?;
        check_timeout("dead_peer_timeout (ms)", self.dead_peer_timeout)?;
        self.keepalive.validate(self.idle_timeout)?;
        self.redundancy.validate(self.close_notify)
    }

    /// Returns the receive memory in bytes.
    pub(crate) fn recv_budget(&self) -> usize {
        usize::from(self.recv_window) * SEGMENT_CHARGE
    }
}

/// Checks a timeout: 1 s to 1 day, or none.
pub(crate) fn check_timeout(
    field: &'static str,
    limit: Option<Duration>,
) -> Result<(), ConfigError> {
    let day = 24 * 60 * 60 * 1_000;
    limit.map_or(Ok(()), |limit| ConfigError::check(field, limit.as_millis(), 1_000, day))
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
