//! Protection of data against loss, beside retransmission.

use crate::error::ConfigError;
use crate::fec::FecConfig;

/// What protects the data that a connection sends against loss, beside retransmission.
///
/// ```
/// use kcpx::{AutoProtection, Config, Protection};
///
/// let auto = AutoProtection::new().max_overhead(1.3);
/// let config = Config::new().protection(Protection::Auto(auto));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// Nothing more: a segment that is lost arrives a round trip later. Where losses are frequent
    /// the retransmissions of messages leave in several copies, to any peer. The default.
    #[default]
    Off,
    /// Reed-Solomon parity of a fixed layout, which kcp-go understands
    /// ([`Config::fec`](crate::Config::fec)).
    Fixed(FecConfig),
    /// As much as the measured loss asks for, within a limit: repair symbols of a sliding-window
    /// code to peers of this crate that accept them. To other peers copies of small messages ride in
    /// the datagrams of newer ones, or leave 20 ms later by themselves, if the limit admits a copy of
    /// nearly each message. For flows of messages; bulk transfers, with more than 256 segments in
    /// flight, get none.
    ///
    /// With a layout ([`Config::fec`](crate::Config::fec)), peers that do not accept repair symbols
    /// are sent its parity instead of copies, whatever they lose.
    Auto(AutoProtection),
}

/// Limits of [`Protection::Auto`].
///
/// ```
/// use kcpx::{AutoProtection, Config, Protection};
///
/// // At most 1.3 bytes sent per byte of data, or 4,000 bytes a second of repair symbols.
/// let auto = AutoProtection::new().max_overhead(1.3).floor(4_000);
/// assert_eq!(auto.max_overhead_per_mille, 1_300);
/// let config = Config::new().protection(Protection::Auto(auto));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AutoProtection {
    /// Most bytes sent for 1,000 bytes of data, 1,000 to 4,000: headers of packets and segments,
    /// retransmissions, repair symbols and copies included. Default 1,500. Only the last two yield to
    /// it: small messages, whose headers alone need more, get none but those of `floor`. Where
    /// retransmissions alone would exceed it, repair symbols may take the place of some, together no
    /// more bytes than these, except for a second or two in a minute in which that is tried.
    pub max_overhead_per_mille: u16,
    /// Bytes of repair symbols per second that may leave whatever their share is, 0 to 1,000,000.
    /// Default 12,000. For slow flows and small messages, which a share of their few bytes would not
    /// protect: they may exceed `max_overhead_per_mille` by so much.
    pub floor: u32,
}

impl Default for AutoProtection {
    fn default() -> Self {
        Self { max_overhead_per_mille: 1_500, floor: 12_000 }
    }
}

impl AutoProtection {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most bytes sent per byte of data, 1.0 to 4.0. Default 1.5.
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

    /// Sets the bytes of repair symbols per second that may leave whatever their share is. Default
    /// 12,000.
    #[must_use]
    pub fn floor(mut self, bytes_per_second: u32) -> Self {
        self.floor = bytes_per_second;
        self
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let overhead = self.max_overhead_per_mille;
        ConfigError::check("max_overhead (per mille)", overhead, 1_000, 4_000)?;
        ConfigError::check("floor (bytes per second)", self.floor, 0, 1_000_000)
    }
}
