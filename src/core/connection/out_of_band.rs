//! Out-of-band datagrams (kcp-go OOB) as far as they concern the connection, and datagrams of this
//! side that come back (reflections).

use std::time::Instant;

use crate::core::connection::Kcp;
use crate::core::segment::{Command, Segments};

/// Out-of-band datagrams.
impl Kcp {
    /// When the rate limit lets the next out-of-band datagram leave; `None`: now.
    pub(crate) fn rate_limited_until(&self, now: Instant) -> Option<Instant> {
        self.rate_limiter.blocked_until(self.clock.at(now)).map(|at| self.clock.instant(at))
    }

    /// Charges bytes that left beside the KCP datagrams to the rate limit: out-of-band datagrams,
    /// duplicates, FEC parity and overhead.
    pub(crate) fn on_out_of_band_sent(&mut self, now: Instant, bytes: usize) {
        let now = self.clock.tick(now);
        self.rate_limiter.on_sent(now, bytes);
    }

    /// Whether the application has set a rate limit.
    #[inline]
    pub(crate) fn is_rate_limited(&self) -> bool {
        self.rate_limiter.next().is_some()
    }

    /// An out-of-band datagram of the peer arrived. It may be a replay, so it restarts no timeout;
    /// at most once a second it draws a ping, whose pong does.
    pub(crate) fn on_out_of_band_received(&mut self, now: Instant) {
        self.keepalive.on_received(self.clock.at(now), false);
    }
}

/// Reflections.
impl Kcp {
    /// Whether a datagram holds a segment that this side sent: sequence number and timestamp are
    /// those of one in flight, or of one of the last 64 acknowledged; or the timestamp is that of the
    /// initial segment without data. A segment of the peer matches only by chance, since its timestamps
    /// count from another random epoch.
    pub(crate) fn is_reflection(&self, datagram: &[u8]) -> bool {
        self.has_started()
            && Segments::new(datagram).any(|(header, payload)| {
                self.is_own_fin(&header)
                    || self.is_own_repair(&header)
                    || (header.command == Command::WindowProbe
                        && self.establishment.is_initial(header.ts))
                    || (header.command == Command::Push
                        && !payload.is_empty()
                        && self.send.has_sent(&self.clock, header.sn, header.ts))
            })
    }

    /// Counts a reflected datagram.
    pub(crate) fn count_reflected(&mut self) {
        self.stats.reflected_datagrams += 1;
    }
}
