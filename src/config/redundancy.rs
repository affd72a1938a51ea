//! What is sent beside retransmissions so that losses cost no round trip.

use crate::error::ConfigError;
use crate::fec::FecConfig;

/// What a connection sends beside retransmissions so that a loss costs no round trip. Each side
/// sets it for what it sends.
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
    /// Nothing: a lost segment arrives a round trip later. Where losses are frequent, the
    /// retransmissions of messages leave in several copies. The default.
    #[default]
    Off,
    /// Reed-Solomon parity of a fixed layout, as kcp-go sends it with `dataShards` and
    /// `parityShards`. All of it leaves, whatever is lost. The peer must decode FEC: kcp-go and this
    /// crate do, the C implementation takes no datagram with a FEC header.
    ///
    /// A stage outside of the state machine: users of [`proto::Kcp`](crate::proto::Kcp) apply
    /// [`fec`](crate::fec) themselves.
    Fec(FecConfig),
    /// As much as the measured loss asks for, within a limit. Needs
    /// [`close_notify`](crate::KcpConfig::close_notify), by which a peer shows that it takes repair
    /// symbols.
    Auto(AutoRedundancy),
}

impl Redundancy {
    /// The FEC layout that peers without repair symbols are sent.
    pub(crate) fn fec(&self) -> Option<FecConfig> {
        match self {
            Self::Off => None,
            Self::Fec(fec) => Some(*fec),
            Self::Auto(auto) => auto.stock,
        }
    }

    /// The limits of automatic redundancy, if that is on.
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

/// Limits of [`Redundancy::Auto`]: repair symbols of a sliding-window code to peers of this crate, the
/// fewest with which a loss delays one message in a hundred by more than a quarter of a round trip (10
/// ms if that is more). Nothing leaves while losses alone delay fewer, nor while the round trip shows
/// a queue, nor where losses come in bursts that symbols do not recover.
///
/// To other peers copies of small messages ride in the datagrams of newer ones, or leave 20 ms later
/// by themselves, if the limit admits a copy of nearly each message. Only for flows of messages: bulk
/// transfers, with more than 256 segments in flight, get nothing.
///
/// ```
/// use kcpx::{AutoRedundancy, Config, Redundancy};
///
/// // At most 1.3 bytes sent per byte of data.
/// let auto = AutoRedundancy::new().max_overhead(1.3);
/// assert_eq!(auto.max_overhead_per_mille, 1_300);
/// let config = Config::new().redundancy(Redundancy::Auto(auto));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AutoRedundancy {
    /// Most bytes sent for 1,000 bytes of data, 1,000 to 4,000: headers of packets and segments,
    /// retransmissions, repair symbols and copies included. Default 1,600. Only repair symbols and
    /// copies yield to it: where retransmissions alone exceed it, symbols may replace some of them but
    /// add no bytes. Slow flows and small messages may send 12,000 bytes per second of redundancy
    /// whatever the limit is.
    pub max_overhead_per_mille: u16,
    /// FEC layout for peers that take no repair symbols, such as kcp-go: they are sent all of its
    /// parity instead of copies, whatever is lost. Default `None`: copies. Those peers must decode
    /// FEC.
    pub stock: Option<FecConfig>,
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

    /// Sets the most bytes sent per byte of data, 1.0 to 4.0. Default 1.6.
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

    /// Sets the FEC layout for peers that take no repair symbols. Default none.
    #[must_use]
    pub fn stock(mut self, fec: FecConfig) -> Self {
        self.stock = Some(fec);
        self
    }
}
