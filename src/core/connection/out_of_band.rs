//! Out-of-band datagrams (kcp-go OOB) as far as they concern the connection, and datagrams of this
//! side that come back (reflections).

use std::time::Instant;

use crate::core::connection::Kcp;
use crate::core::segment::{Command, Segments};
use crate::core::seq::{Sn, Ts};

/// Out-of-band datagrams.
impl Kcp {
    /// When the rate limit lets the next out-of-band datagram leave; `None`: now.
    pub(crate) fn rate_limited_until(&self, now: Instant) -> Option<Instant> {
        self.rate_limiter.blocked_until(self.clock.at(now)).map(|at| self.clock.instant(at))
    }

    /// Asks the peer whether it takes out-of-band datagrams without FEC.
    pub(crate) fn ask_for_datagrams(&mut self) {
        self.repair_state().hello.start_for_datagrams();
    }

    /// Whether the peer takes out-of-band datagrams without FEC; `None` until it has shown that.
    pub(crate) fn peer_accepts_datagrams(&self) -> Option<bool> {
        let hello = &self.repair.as_ref()?.hello;
        if self.close_state.peer_lacks_control() {
            return Some(false);
        }
        hello.peer_accepts_datagrams()
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
    /// Whether a datagram holds a segment that this side sent by itself: number and timestamp are those
    /// of data in flight or of one of the last 64 acknowledged, of a ping or probe that is outstanding
    /// or the one before it, or the timestamp is that of the initial segment without data. A segment of
    /// the peer matches one of them once in 2^32 times, since timestamps count from a random epoch and
    /// cookies are random.
    ///
    /// What this side sends in answer has number and timestamp of the peer's segment, so the echo of an
    /// answer to a forged segment shows no more than the forger could have sent; see
    /// `core/tests/echo.rs`.
    pub(crate) fn is_reflection(&self, datagram: &[u8]) -> bool {
        self.has_started()
            && Segments::new(datagram).any(|(header, payload)| match header.command {
                Command::Push if payload.is_empty() => self.is_own_ping((header.sn, header.ts)),
                Command::Push => {
                    self.send.has_sent(&self.clock, header.sn, header.ts)
                        || self.send.path.is_probe((header.sn, header.ts))
                }
                Command::WindowProbe => self.establishment.is_initial(header.ts),
                Command::Repair => self.is_own_repair(&header),
                Command::Control => self.is_own_fin(&header) || self.is_own_repair(&header),
                Command::Ack | Command::WindowUpdate => false,
            })
    }

    /// Whether a ping of any kind left with this number and cookie.
    fn is_own_ping(&self, ping: (Sn, Ts)) -> bool {
        self.keepalive.is_ping(ping)
            || self.send.path.is_probe(ping)
            || self.path_validator.has_sent(ping)
    }

    /// Counts a reflected datagram.
    pub(crate) fn count_reflected(&mut self) {
        self.stats.reflected_datagrams += 1;
    }
}
