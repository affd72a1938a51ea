//! The state machine's settings.

use std::num::{NonZeroU8, NonZeroU64};
use std::time::Duration;

use crate::error::ConfigError;

/// Bytes of a segment header on the wire.
pub(crate) const SEGMENT_HEADER: usize = 24;

/// Largest UDP payload over IPv4.
const MAX_DATAGRAM: u64 = 65_507;

/// What storing one received segment costs beside its payload, generously.
pub(crate) const SEGMENT_COST: usize = 64;

/// Receive memory that one advertised segment stands for: the largest payload of a stock peer
/// (its datagrams are at most 1,500 bytes) and what storing it costs.
pub(crate) const SEGMENT_CHARGE: usize = 1_476 + SEGMENT_COST;

/// The timing preset: KCP's four `nodelay` parameters.
///
/// The constants carry kcptun's names and numbers. The C library's README uses "normal mode" for
/// `0, 40, 0, 0`, which is not [`Timing::NORMAL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub const NORMAL: Self = Self::preset(false, 40, 2, CongestionControl::Disabled);
    /// `0, 30, 2, 1`: kcptun's "fast".
    pub const FAST: Self = Self::preset(false, 30, 2, CongestionControl::Disabled);
    /// `1, 20, 2, 1`: kcptun's "fast2", and the default here.
    pub const FAST2: Self = Self::preset(true, 20, 2, CongestionControl::Disabled);
    /// `1, 10, 2, 1`: kcptun's "fast3".
    pub const FAST3: Self = Self::preset(true, 10, 2, CongestionControl::Disabled);
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
    /// * `nodelay`: retransmission time-out of at least 30 ms instead of 100 ms, and a gentler
    ///   linear back-off.
    /// * `interval`: 10 ms to 5 s. Part of the retransmission time-out, the delay of
    ///   [`AckPolicy::Interval`] and of [`WritePolicy::Delayed`].
    /// * `fast_resend`: how many later transmissions must be acknowledged before a segment counts
    ///   as lost; `None` leaves that to the time-out.
    /// * `congestion`: whether KCP's congestion window applies.
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
}

/// Whether KCP's congestion window limits the sender (kcp-go's `nc` is its opposite).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// Slow start, avoidance, and a reaction to loss.
    Reno,
    /// Only the send window and the peer's receive window limit the sender.
    Disabled,
}

/// How a byte sequence is cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One stream of bytes: small writes share segments. kcp-go's stream mode, and the default.
    Stream,
    /// Each write starts a segment of its own, and messages keep their boundaries.
    Message,
}

/// Segments of both windows unless something else is set.
pub(crate) const DEFAULT_WINDOW: u16 = 1_024;

/// When received data is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPolicy {
    /// Once per received batch of datagrams. The default.
    PerBatch,
    /// After one interval, earlier when a datagram is full of acknowledgements or data arrived out
    /// of order. kcp-go's behaviour without ack-no-delay.
    Interval,
    /// After every datagram: kcp-go's ack-no-delay.
    Immediate,
}

/// When written data leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// As soon as the windows allow. The default.
    Immediate,
    /// After one interval, when the send window is full, or at a flush: kcp-go's write delay.
    Delayed,
}

/// How the retransmission time-out of one segment grows with each expiry.
///
/// Either way it never exceeds [`KcpConfig::max_retransmit_interval`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// By half the time-out with `nodelay`, by the whole without: kcp-go's choice, the default.
    Linear,
    /// Doubled each time.
    Exponential,
}

/// Settings of one conversation's state machine.
///
/// Plain data: change the fields you need and leave the rest. [`KcpConfig::validate`] is called by
/// everything that takes a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KcpConfig {
    /// Timing preset. Default [`Timing::FAST2`].
    pub timing: Timing,
    /// Most segments in flight or waiting, 1 to 65,535. Default 1,024.
    pub send_window: u16,
    /// Most segments received and not yet read, 1 to 65,535. Default 1,024.
    pub recv_window: u16,
    /// Whether a window of the default size grows to 8,192 segments, 11 MB, where the path takes
    /// them and the application keeps up. Default on; [`Config::windows`](crate::Config::windows)
    /// turns it off.
    pub auto_windows: bool,
    /// Largest KCP datagram in bytes, 25 to 65,507; within a [`Config`](crate::Config) the largest
    /// UDP payload. Default 1,400. Above 1,500 a kcp-go peer truncates.
    pub mtu: u16,
    /// Byte stream or messages. Default [`Mode::Stream`].
    pub mode: Mode,
    /// When acknowledgements leave. Default [`AckPolicy::PerBatch`].
    pub ack_policy: AckPolicy,
    /// When written data leaves. Default [`WritePolicy::Immediate`].
    pub write_policy: WritePolicy,
    /// Growth of the retransmission time-out. Default [`Backoff::Linear`].
    pub backoff: Backoff,
    /// With nothing new to send, take one acknowledged later transmission (and a reordering
    /// allowance) as a sign of loss. Default `true`, as kcp-go.
    pub early_retransmit: bool,
    /// Upper bound of one segment's retransmission interval, 1 s to 60 s. Default 10 s.
    pub max_retransmit_interval: Duration,
    /// Silence after which a conversation with data or a probe outstanding ends with
    /// [`DeadPeer`](crate::ConnectionError::DeadPeer), 1 s to 1 day; `None` never. Default 60 s.
    pub dead_peer_timeout: Option<Duration>,
    /// Silence after which the peer is asked for a sign of life, 1 s to 1 day; `None` never.
    /// Default 15 s. The side that opened the conversation waits a sixteenth longer, so that
    /// only one of them asks, and both up to 0.1 s, so that many ask together. A stock
    /// server that closed on its side answers this with a new idle session.
    pub keepalive: Option<Duration>,
    /// Silence after which a conversation ends with
    /// [`IdleTimeout`](crate::ConnectionError::IdleTimeout), 1 s to 1 day; `None` never.
    /// Default 60 s; with keepalive on it only ends conversations whose peer is gone. Before
    /// anything has been sent, silence does not count.
    pub idle_timeout: Option<Duration>,
    /// Bytes per second that leave, headers included; `None` for no limit. Default `None`.
    pub rate_limit: Option<NonZeroU64>,
    /// Memory for received data in bytes, at least one segment (1,540). Default `None`:
    /// `recv_window` times 1,540.
    pub recv_memory: Option<usize>,
    /// Tell the peer when this side has written everything, or gives up, and learn the same of it.
    /// Default `true`. Only a peer that advertises to understand it is told, in header fields that
    /// no other implementation reads, so nothing changes for those.
    pub close_notify: bool,
    /// Deliver zero-length messages in message mode. Default `false`: they are acknowledged and
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
            keepalive: Some(Duration::from_secs(15)),
            idle_timeout: Some(Duration::from_secs(60)),
            rate_limit: None,
            recv_memory: None,
            close_notify: true,
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
        let day = 24 * 60 * 60 * 1_000;
        check_windows(self.send_window, self.recv_window)?;
        check_mtu(self.mtu, 0)?;
        let interval = self.max_retransmit_interval.as_millis();
        ConfigError::check("max_retransmit_interval (ms)", interval, 1_000, 60_000)?;
        for (field, limit) in [
            ("dead_peer_timeout (ms)", self.dead_peer_timeout),
            ("keepalive (ms)", self.keepalive),
            ("idle_timeout (ms)", self.idle_timeout),
        ] {
            if let Some(limit) = limit {
                ConfigError::check(field, limit.as_millis(), 1_000, day)?;
            }
        }
        if let Some(bytes) = self.recv_memory {
            let max = 1 << 40;
            ConfigError::check("recv_memory (bytes)", bytes, SEGMENT_CHARGE as u64, max)?;
        }
        Ok(())
    }

    /// Receive memory in bytes that this configuration allows.
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

/// The smallest datagram has room for one byte of data beside the header, and `overhead` more.
pub(crate) fn check_mtu(mtu: u16, overhead: usize) -> Result<(), ConfigError> {
    let min = (overhead + SEGMENT_HEADER) as u64 + 1;
    ConfigError::check("mtu (bytes)", mtu, min, MAX_DATAGRAM)
}
