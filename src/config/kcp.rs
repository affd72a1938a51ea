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

/// Bytes that storing one received segment costs beside its payload, rounded up.
pub(crate) const SEGMENT_COST: usize = 64;

/// Bytes of receive memory for one advertised segment: the largest payload of kcp-go (`mtuLimit` of
/// 1,500 less the header) and the cost of storing it.
pub(crate) const SEGMENT_CHARGE: usize = 1_476 + SEGMENT_COST;
/// Bytes that the state of one connection takes, without any data (tests/memory.rs).
pub(crate) const CONNECTION_COST: usize = 4_096;

/// Timing preset: KCP's four `nodelay` parameters (`ikcp_nodelay`, kcp-go `SetNoDelay`).
///
/// The constants have kcptun's names and numbers. Where these say `nc` 1, no congestion window, the
/// congestion control is [`CongestionControl::Model`]: kcptun's flood the queue of a bottleneck with
/// whatever the window holds. [`Timing::with_congestion`] sets another one, or none. The C library's
/// README uses "normal mode" for `0, 40, 0, 0`, which is not [`Timing::NORMAL`].
///
/// ```
/// use std::num::NonZeroU8;
/// use std::time::Duration;
///
/// use kcpx::{Config, CongestionControl, Timing};
///
/// let config = Config::new().timing(Timing::FAST3);
///
/// // kcp-go's `SetNoDelay(1, 10, 2, 1)`, without congestion control as there.
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

    /// Any combination, with kcp-go's meaning of each parameter.
    ///
    /// * `nodelay`: minimum RTO of 30 ms instead of 100 ms, and an RTO that grows by half instead of
    ///   by the whole with [`Backoff::Linear`].
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

    /// The same with another congestion control.
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

/// Congestion control of the sender (kcp-go's `nc` is its opposite).
///
/// ```
/// use kcpx::{Config, CongestionControl, Timing};
///
/// // A link of one's own: a window that fits it is the only limit.
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
    /// A model of the path, its bandwidth and its shortest round-trip time, as BBRv3 has it
    /// (draft-ietf-ccwg-bbr): data leaves at the rate at which the path delivers it, and at most
    /// twice the bandwidth-delay product is in flight.
    ///
    /// That of all presets with kcptun's `nc` 1. The queue of a bottleneck stays short, and little is
    /// lost in it. Random loss does not reduce the rate, only loss that queues cause. Flows that are limited
    /// by their application, such as messages, are not delayed. On paths with a round trip below
    /// 2 ms it limits nothing. Costs 40 bytes for each segment in flight.
    #[doc(alias = "BBR")]
    Model,
    /// None: only the send window and the peer's receive window limit the sender. For paths that
    /// nobody shares, with windows that fit them: as fast as they allow, and more is lost in the
    /// queue of a bottleneck.
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
/// // Fewer datagrams back to the sender, and a round trip longer by up to one interval.
/// let config = Config::new().ack_policy(AckPolicy::Interval);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "SetACKNoDelay")]
#[doc(alias = "delayed ACK")]
pub enum AckPolicy {
    /// Once per received batch of datagrams. The acknowledgement of one or two segments in order that wake
    /// a reader waits until the tasks that are ready have run, so that it leaves with an answer (RFC 9293
    /// 3.8.6.3); a process that exits at once after a read may leave it unsent. In bulk, which is 16 full
    /// segments in order within a round trip, once for every fourth segment or a quarter of a round trip after
    /// the first; for every second segment if the peer is another implementation. Gaps, duplicates and filled
    /// gaps are acknowledged at once. The default.
    PerBatch,
    /// After one [`Timing`] interval; earlier when a datagram is full of acknowledgements or data
    /// arrived out of order. kcp-go without ack-no-delay.
    Interval,
    /// After every datagram: kcp-go with ack-no-delay. Costs one datagram for each received.
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

/// Back-off of a segment's RTO with each expiry.
///
/// It never exceeds [`KcpConfig::max_retransmit_interval`].
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
    /// Grows by half the RTO with `nodelay`, by the whole RTO without, as in kcp-go. The default.
    Linear,
    /// Doubles each time (RFC 6298 5.5).
    Exponential,
}

/// Settings of one connection's state machine.
///
/// Plain data: change the fields you need and leave the rest. [`KcpConfig::validate`] is called by
/// everything that takes a configuration.
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
    /// Window autotuning: windows of the default size grow up to 8,192 segments (11 MB) while the
    /// path delivers them and the application keeps up. On congestive loss the send window shrinks,
    /// to 32 segments at least. Default `true`;
    /// [`Config::windows`](crate::Config::windows) turns it off.
    pub auto_windows: bool,
    /// Largest KCP datagram in bytes, 25 to 65,507 (kcp-go `SetMtu`); within a
    /// [`Config`](crate::Config) the largest UDP payload. Default 1,400. kcp-go receives at most
    /// 1,472. More than that is used once the peer has acknowledged a probe of that size.
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
    /// Early retransmit (RFC 5827): with no new data to send, one acknowledged later transmission
    /// and a reordering window are enough to declare a segment lost. Default `true`, as in kcp-go.
    pub early_retransmit: bool,
    /// Maximum RTO of one segment, 1 s to 60 s (RFC 6298 2.5). Back-off ends at 2.5 s, or at the RTO if that is
    /// longer, while a peer of another implementation is silent: it answers no ping that asks whether it is back.
    /// Default 10 s.
    pub max_retransmit_interval: Duration,
    /// Time without a datagram of the peer after which a connection with unacknowledged data or a
    /// ping outstanding ends with [`DeadPeer`](crate::ConnectionError::DeadPeer), 1 s to 1 day;
    /// `None` never. Default 60 s. A shorter [`idle_timeout`](Self::idle_timeout) comes first.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub dead_peer_timeout: Option<Duration>,
    /// Idle time after which a ping is sent, 1 s to 1 day and at least 1 s less than
    /// [`idle_timeout`](Self::idle_timeout), or never. Default [`Auto`](KeepaliveInterval::Auto): 15 s, or a
    /// third of `idle_timeout` if that is shorter. The other side than
    /// [`keepalive_side`](Self::keepalive_side) waits longer, so that only one side pings, and both wait up
    /// to 0.1 s longer, so that the pings of many connections share wake-ups. A kcp-go server that
    /// closed its side accepts a new idle session for a ping.
    #[doc(alias = "SO_KEEPALIVE")]
    #[doc(alias = "ping")]
    pub keepalive: KeepaliveInterval,
    /// Which side sends these pings. Default [`Passive`](KeepaliveSide::Passive): the side that opened the
    /// connection waits a sixteenth longer. With [`Active`](KeepaliveSide::Active) the side that accepted it
    /// waits twice as long, so that a ping or several may be lost; a sixteenth longer if the double is too
    /// long for [`idle_timeout`](Self::idle_timeout). No effect on a
    /// [`Kcp`](crate::proto::Kcp) without I/O, which does not know who opened the connection.
    pub keepalive_side: KeepaliveSide,
    /// Idle time after which a connection ends with
    /// [`IdleTimeout`](crate::ConnectionError::IdleTimeout), 1 s to 1 day; `None` never.
    /// Default 60 s; with [`keepalive`](Self::keepalive) on, as by default, it only ends connections whose
    /// peer does not answer. It does not run before anything has been sent.
    pub idle_timeout: Option<Duration>,
    /// Limit of sent bytes per second, headers included (kcp-go `SetRateLimit` of 5.6.72; version 5.7.5
    /// counts the bytes that the application writes); `None` for no limit. Default `None`.
    #[doc(alias = "SetRateLimit")]
    pub rate_limit: Option<NonZeroU64>,
    /// Bytes per second, headers included, at which a sender with [`CongestionControl::Model`] begins,
    /// and begins again after an idle time; `None`, the default: 32 segments in the first round trip.
    /// Once the path has delivered data, what it delivered decides; if that is less, what was too much
    /// waits or is lost for a few round trips.
    pub initial_rate: Option<NonZeroU64>,
    /// Paced data of this time leaves at once, 0 to 10 ms, and at most a 20th of the shortest round trip with
    /// [`CongestionControl::Model`]. Default 1 ms: one datagram up to 11 Mbit/s, three at 20. A longer interval
    /// saves timers and makes longer bursts. A shorter one makes shorter bursts where the timers allow it;
    /// Tokio's have a granularity of 1 ms.
    pub pacing_interval: Duration,
    /// Receive memory in bytes, at least one segment (1,540). Default `None`:
    /// `recv_window` times 1,540.
    pub recv_memory: Option<usize>,
    /// End of stream and abort by CONTROL segments (FIN and RST), to a peer that advertises the
    /// capability. Default `true`. The capability stands in header fields that other implementations
    /// do not read, so nothing changes for them.
    #[doc(alias = "FIN")]
    pub close_notify: bool,
    /// What is sent beside retransmissions so that losses cost no round trip. Default
    /// [`Redundancy::Off`].
    pub redundancy: Redundancy,
    /// Deliver empty messages in message mode. Default `false`: they are acknowledged and skipped.
    /// A byte stream always skips them.
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

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that is outside its range.
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

/// Checks the MTU in bytes: at least one byte of data, the header, and `overhead`.
pub(crate) fn check_mtu(mtu: u16, overhead: usize) -> Result<(), ConfigError> {
    let min = (overhead + SEGMENT_HEADER) as u64 + 1;
    ConfigError::check("mtu (bytes)", mtu, min, MAX_DATAGRAM)
}
