//! One side of a connection, whatever implements it, and the settings that every implementation has.

use std::fmt;

use kcpx::{CongestionControl, Mode, Timing};

/// One side of a connection. Times are milliseconds of the virtual clock.
pub trait Peer: fmt::Debug {
    /// Offers data and gives how much was taken: part of it in stream mode, all of a message.
    /// `None` while the queue is full.
    fn send(&mut self, now: u64, data: &[u8]) -> Option<usize>;

    /// The next bytes in order, or the next message.
    fn recv(&mut self) -> Option<Vec<u8>>;

    /// A datagram arrived.
    fn input(&mut self, now: u64, datagram: &[u8]);

    /// Does what is due and appends the datagrams that leave.
    fn update(&mut self, now: u64, out: &mut Vec<Vec<u8>>);

    /// When [`Peer::update`] is to be called next, later than `now`.
    fn next(&self, now: u64) -> Option<u64>;

    /// Whether everything sent is acknowledged.
    fn is_drained(&self) -> bool;
}

/// The presets by kcptun's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the constants of Timing")]
pub enum Preset {
    Protocol,
    Normal,
    Fast,
    Fast2,
    Fast3,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Protocol, Self::Normal, Self::Fast, Self::Fast2, Self::Fast3];

    /// As our types.
    #[must_use]
    pub fn ours(self) -> (Timing, CongestionControl) {
        let timing = match self {
            Self::Protocol => Timing::KCP_DEFAULT,
            Self::Normal => Timing::NORMAL,
            Self::Fast => Timing::FAST,
            Self::Fast2 => Timing::FAST2,
            Self::Fast3 => Timing::FAST3,
        };
        let reno = self == Self::Protocol;
        (timing, if reno { CongestionControl::Reno } else { CongestionControl::Bbr })
    }

    /// As the four numbers: nodelay, interval, resend, nc.
    #[must_use]
    pub fn numbers(self) -> (bool, u16, u8, bool) {
        match self {
            Self::Protocol => (false, 100, 0, false),
            Self::Normal => (false, 40, 2, true),
            Self::Fast => (false, 30, 2, true),
            Self::Fast2 => (true, 20, 2, true),
            Self::Fast3 => (true, 10, 2, true),
        }
    }
}

/// Settings that every implementation has.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Timing.
    pub preset: Preset,
    /// Byte stream or messages.
    pub mode: Mode,
    /// Send window in segments.
    pub send_window: u16,
    /// Receive window in segments; the other implementations raise it to 128.
    pub recv_window: u16,
    /// Largest datagram in bytes.
    pub mtu: u16,
    /// The other implementations flush after every turn with input or writes, as an option of their
    /// wrappers does, instead of at the next tick alone.
    pub eager: bool,
    /// The start of the wire clock.
    pub epoch: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            preset: Preset::Fast2,
            mode: Mode::Stream,
            send_window: 128,
            recv_window: 128,
            mtu: 1_400,
            eager: false,
            epoch: 0,
        }
    }
}

impl Settings {
    /// Payload bytes of a full segment.
    #[must_use]
    pub fn mss(&self) -> usize {
        usize::from(self.mtu) - 24
    }
}
