//! `Config::for_link`: windows and buffers from the bandwidth-delay product of a path.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{Config, SEGMENT_HEADER};

/// Smallest window in segments: the assumed window of an unknown peer (`IKCP_WND_RCV`).
const MIN_WINDOW: u64 = 32;

impl Config {
    /// The defaults, with windows and buffers for a path: 5/4 of its bandwidth-delay product,
    /// `bits_per_second` times `rtt`, so that the path stays full while a lost segment is retransmitted.
    /// Windows are 32 to 65,535 segments of 1,400 bytes; kernel and stream buffers grow with them.
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr) starts at 9/10 of the bandwidth
    /// ([`Config::initial_rate`]) instead of doubling from 32
    /// segments. If the values are too large, some packets are lost in the first round trips, until
    /// measured bandwidth takes over.
    ///
    /// The window also limits the loss at a bottleneck: on a shared path pass the connection's share of
    /// the bandwidth. See docs/tuning.md.
    #[doc(alias = "BDP")]
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let config = kcpx::Config::for_link(100_000_000, Duration::from_millis(80));
    /// // Windows of 909 segments, and a starting rate of 11.25 MB/s.
    /// assert!(config.validate().is_ok());
    /// ```
    #[must_use]
    pub fn for_link(bits_per_second: u64, rtt: Duration) -> Self {
        let mut config = Self::new();
        let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
        let product = u128::from(bits_per_second) * u128::from(micros) / 8_000_000;
        let segment = u128::from(config.kcp.mtu) - SEGMENT_HEADER as u128;
        let segments = (product * 5 / 4).div_ceil(segment);
        let max = u64::from(u16::MAX);
        let segments = u64::try_from(segments).unwrap_or(max).clamp(MIN_WINDOW, max);
        let window = u16::try_from(segments).unwrap_or(u16::MAX);
        config = config.windows(window, window);
        config.kcp.initial_rate = NonZeroU64::new(bits_per_second / 80 * 9);
        let bytes = usize::from(window) * usize::from(config.kcp.mtu);
        for buffer in [&mut config.send_buffer, &mut config.recv_buffer] {
            *buffer = bytes.max(*buffer);
        }
        let socket = &mut config.socket;
        for buffer in [&mut socket.send_buffer_size, &mut socket.recv_buffer_size] {
            *buffer = buffer.map(|size| size.max(2 * bytes));
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_for_link_are_five_quarters_of_the_bdp() {
        for (bits, millis, window) in [
            (0, 0, 32),
            (1_000_000, 20, 32),
            (50_000_000, 50, 284),
            (1_000_000_000, 100, 11_356),
            (100_000_000_000, 1_000, 65_535),
            (u64::MAX, u64::MAX, 65_535),
        ] {
            let config = Config::for_link(bits, Duration::from_millis(millis));
            assert_eq!(config.kcp.send_window, window, "{bits} bit/s, {millis} ms");
            assert_eq!(config.validate(), Ok(()));
        }
    }
}
