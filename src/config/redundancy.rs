//! Redundancy against losses.

use crate::error::ConfigError;
use crate::fec::FecConfig;

/// Data that a connection sends in addition to retransmissions, so that a loss costs no round trip. Each
/// side sets it for its own data.
///
/// ```
/// use kcpx::{AutoRedundancy, Config, FecConfig, Redundancy};
///
/// let auto = AutoRedundancy::new().max_overhead(1.3).stock(FecConfig::SHORT);
/// let config = Config::new().redundancy(Redundancy::Auto(auto));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Redundancy {
    /// Nothing: a lost segment arrives a round trip later. At frequent losses, retransmissions of
    /// messages leave in several copies. The default.
    #[default]
    Off,
    /// Reed-Solomon parity of a fixed layout, as in kcp-go (`dataShards` and `parityShards`), independent
    /// of loss. The peer must decode FEC: kcp-go and this crate do; the C implementation takes no
    /// datagram with a FEC header.
    ///
    /// A stage outside the state machine: users of [`proto::Kcp`](crate::proto::Kcp) apply
    /// [`fec`](crate::fec) themselves.
    Fec(FecConfig),
    /// The amount that measured loss requires, within a limit. Requires
    /// [`close_notify`](crate::Config::close_notify), by which a peer shows that it takes repair
    /// symbols.
    Auto(AutoRedundancy),
}

impl Redundancy {
    /// FEC layout for peers without repair symbols.
    pub(crate) fn fec(&self) -> Option<FecConfig> {
        match self {
            Self::Off => None,
            Self::Fec(fec) => Some(*fec),
            Self::Auto(auto) => auto.stock,
        }
    }

    /// Limits of automatic redundancy, if it is on.
    pub(crate) fn auto(&self) -> Option<AutoRedundancy> {
        match self {
            Self::Auto(auto) => Some(*auto),
            Self::Off | Self::Fec(_) => None,
        }
    }

    pub(super) fn validate(&self, close_notify: bool) -> Result<(), ConfigError> {
        let Self::Auto(auto) = self else { return Ok(()) };
        if !close_notify {
            let (field, needs) = ("Redundancy::Auto", "close_notify");
            return Err(ConfigError::Requires { field, needs });
        }
        let overhead = auto.max_overhead_per_mille;
        ConfigError::check("max_overhead (per mille)", overhead, 1_000, 4_000)
    }
}

/// Limits of [`Redundancy::Auto`]. Peers of this crate get repair symbols of a sliding-window code: the
/// fewest with which a loss delays at most one message in a hundred by more than a quarter of a round
/// trip (at least 10 ms). None are sent while losses alone delay fewer, while the round trip shows a
/// queue, or while losses come in bursts that symbols do not recover.
///
/// For other peers, copies of small messages leave in the datagrams of newer ones, or 20 ms later by
/// themselves, if the limit allows a copy of nearly each message. Only for message flows: bulk transfers,
/// with more than 256 segments in flight, get nothing.
///
/// ```
/// use kcpx::{AutoRedundancy, Config, Redundancy};
///
/// // At most 1.3 bytes sent per byte of data.
/// let auto = AutoRedundancy::new().max_overhead(1.3);
/// let config = Config::new().redundancy(Redundancy::Auto(auto));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AutoRedundancy {
    /// Most bytes sent per 1,000 bytes of data.
    pub(crate) max_overhead_per_mille: u16,
    /// FEC layout for peers without repair symbols.
    pub(crate) stock: Option<FecConfig>,
}

impl Default for AutoRedundancy {
    fn default() -> Self {
        Self { max_overhead_per_mille: 1_600, stock: None }
    }
}

impl AutoRedundancy {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most bytes sent per byte of data, 1.0 to 4.0 in steps of 0.001: headers of packets and
    /// segments, retransmissions, repair symbols and copies included. Default 1.6. Only repair symbols and
    /// copies are reduced for it: if retransmissions alone exceed it, symbols may replace some of them but
    /// add no bytes. Slow flows and small messages may always send 12,000 bytes per second of redundancy.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and validation rejects what is out of range"
    )]
    pub fn max_overhead(mut self, ratio: f64) -> Self {
        self.max_overhead_per_mille = (ratio * 1_000.0).round() as u16;
        self
    }

    /// Sets the FEC layout for peers without repair symbols, such as kcp-go, instead of copies: all of its
    /// parity leaves, independent of loss. Those peers must decode FEC. Default none: copies.
    #[must_use]
    pub fn stock(mut self, fec: FecConfig) -> Self {
        self.stock = Some(fec);
        self
    }
}
