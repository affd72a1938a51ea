//! Out-of-band datagrams (kcp-go OOB), and reflections: datagrams of this side that come back.

use std::time::Instant;

use crate::core::connection::Kcp;
use crate::core::segment::{Command, Segments};
use crate::core::seq::{Sn, Ts};

/// Out-of-band datagrams.
impl Kcp {
    /// When the rate limit admits the next out-of-band datagram; `None`: now.
    pub(crate) fn rate_limited_until(&self, now: Instant) -> Option<Instant> {
        self.rate_limiter.blocked_until(self.clock.at(now)).map(|at| self.clock.instant(at))
    }

    /// Asks the peer whether it accepts out-of-band datagrams without FEC.
    pub(crate) fn ask_for_datagrams(&mut self) {
        self.repair_state().hello.start_for_datagrams();
    }

    /// Whether the peer accepts out-of-band datagrams without FEC; `None` while unknown.
    pub(crate) fn peer_accepts_datagrams(&self) -> Option<bool> {
        let hello = &self.repair.as_ref()?.hello;
        if self.close_state.peer_lacks_control() {
            return Some(false);
        }
        hello.peer_accepts_datagrams()
    }

    /// Charges bytes outside KCP datagrams to the rate limit: out-of-band datagrams, duplicates,
    /// FEC parity and overhead.
    pub(crate) fn on_out_of_band_sent(&mut self, now: Instant, bytes: usize) {
        let now = self.clock.tick(now);
        self.rate_limiter.on_sent(now, bytes);
    }

    /// Whether a rate limit is set.
    #[inline]
    pub(crate) fn is_rate_limited(&self) -> bool {
        self.rate_limiter.next().is_some()
    }

    /// An out-of-band datagram of the peer arrived. It may be a replay, so it is no sign of life,
    /// but may draw a ping.
    pub(crate) fn on_out_of_band_received(&mut self, now: Instant) {
        self.keepalive.on_received(self.clock.at(now), false);
    }
}

/// Reflections.
impl Kcp {
    /// Whether a datagram has a segment that this side sent unasked: number and timestamp match
    /// data in flight or one of the last 64 acknowledged segments, a recent ping or probe, the
    /// initial segment without data, FIN, HELLO or a repair symbol. A segment of the peer matches
    /// by chance once in 2^32 times, since timestamps count from a random epoch and cookies are
    /// random.
    ///
    /// Answers of this side copy number and timestamp of the peer's segment, so their echo proves
    /// nothing and needs no check (`core/tests/echo.rs`).
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

    /// Whether a ping of any kind was sent with this number and cookie.
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
