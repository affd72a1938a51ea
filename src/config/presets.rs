//! `Config::interactive` and `Config::bulk`: what traffic needs, measured.

use super::{AutoRedundancy, Config, Redundancy, Timing};

/// Send and receive buffer of a bulk stream, bytes.
const BULK_BUFFER: usize = 4 << 20;

impl Config {
    /// For messages that are to arrive soon: games, calls, requests and their answers.
    ///
    /// The defaults with [`Timing::FAST3`] and [`Redundancy::Auto`]: redundancy as the measured loss asks
    /// for and none without loss, up to 2.0 bytes sent per byte of data (`max_overhead`). With an RTT of 50 ms and
    /// messages of 1 KiB each 10 ms, 99 of 100 arrive within 35 ms at 5 % loss and within 65 ms at 20 %.
    /// Each side needs it for what it sends. Peers of this crate get repair symbols; for kcp-go set
    /// [`AutoRedundancy::stock`]. Transfers, with more than 256 segments in flight, get no
    /// redundancy.
    ///
    /// ```
    /// use kcpx::{Config, Timing};
    ///
    /// let config = Config::interactive();
    /// assert_eq!(config.kcp.timing, Timing::FAST3);
    /// assert!(config.validate().is_ok());
    /// ```
    #[must_use]
    pub fn interactive() -> Self {
        let auto = AutoRedundancy::new().max_overhead(2.0);
        Self::new().timing(Timing::FAST3).redundancy(Redundancy::Auto(auto))
    }

    /// For transfers of much data: files, backups, tunnels.
    ///
    /// The defaults, whose windows grow from 1,024 to 8,192 segments with the path
    /// ([`KcpConfig::auto_windows`](crate::KcpConfig::auto_windows)), with stream buffers of 4 MiB each
    /// way instead of 256 KiB, and no redundancy: what is lost is retransmitted.
    /// [`CongestionControl::Model`](crate::CongestionControl::Model) finds the bandwidth, also of paths
    /// with random loss. Where the bandwidth is known, [`Config::for_link`] begins with it; where 5 % are
    /// lost and the peer decodes FEC, `FecConfig::BULK` besides is up to twice as fast.
    ///
    /// ```
    /// use kcpx::Config;
    ///
    /// let config = Config::bulk();
    /// assert!(config.kcp.auto_windows && config.send_buffer == 4 << 20);
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
