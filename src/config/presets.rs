//! `Config::interactive` and `Config::bulk`: measured settings for two kinds of traffic.

use super::{AutoRedundancy, Config, Redundancy, Timing};

/// Send and receive buffer of a bulk stream, bytes.
const BULK_BUFFER: usize = 4 << 20;

impl Config {
    /// For messages that must arrive soon: games, calls, requests and responses.
    ///
    /// The defaults with [`Timing::FAST3`] and [`Redundancy::Auto`]: no redundancy without loss,
    /// otherwise the amount that measured loss requires, up to 2.0 bytes sent per byte of data
    /// (`max_overhead`). At an RTT of 50 ms with a 1 KiB message every 10 ms, 99 of 100 messages arrive
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
    /// The defaults, with stream buffers of 4 MiB instead of 256 KiB. Windows grow from 1,024 to 8,192
    /// segments with the path ([`Config::windows`]). No redundancy: lost data is retransmitted.
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr) finds the bandwidth, also on paths
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_differ_from_the_defaults_in_what_they_document() {
        let interactive = Config::interactive();
        assert_eq!(interactive.validate(), Ok(()));
        let auto = interactive.kcp.redundancy.auto().unwrap();
        assert_eq!(auto, AutoRedundancy { max_overhead_per_mille: 2_000, stock: None });
        let rest = interactive.timing(Timing::FAST2).redundancy(Redundancy::Off);
        assert_eq!(rest, Config::new());

        let mut bulk = Config::bulk();
        assert_eq!(bulk.validate(), Ok(()));
        assert_eq!((bulk.send_buffer, bulk.recv_buffer), (4 << 20, 4 << 20));
        (bulk.send_buffer, bulk.recv_buffer) = (256 << 10, 256 << 10);
        assert_eq!(bulk, Config::new());
    }
}
