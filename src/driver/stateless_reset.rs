//! RSTs without state (as the Stateless Reset of RFC 9000 10.3): a listener reports to a peer that it has
//! no such connection, since the process has restarted, or will not take it.
//!
//! Only pings and initial segments with the CONTROL capability are answered, so only peers that
//! understand the answer; it is no longer than they are, and has no state but a count.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::core::open::InitialSegment;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header, Segments};
use crate::core::stateless_reset::stateless_reset;
use crate::driver::Driver;
use crate::driver::admission::Source;
use crate::sys::Socket;

/// RSTs without state in a second, at most (RFC 9000 10.3.3): those to all peers of a busy listener that
/// has restarted leave within a few seconds.
const MAX_PER_SECOND: u32 = 16_384;

/// Of the second half of these, at most for one source: somebody who asks for many does not use up the
/// share of all others.
const MAX_PER_SOURCE: u16 = 512;

/// How many RSTs without state have left in this second.
#[derive(Debug)]
pub(crate) struct ResetLimiter {
    second_start: Instant,
    sent: u32,
    /// To whom, from half of [`MAX_PER_SECOND`] on.
    by_source: HashMap<Source, u16>,
}

impl ResetLimiter {
    pub(crate) fn new(now: Instant) -> Self {
        Self { second_start: now, sent: 0, by_source: HashMap::new() }
    }

    /// Whether one more may leave to `ip`; counts it.
    fn admit(&mut self, now: Instant, ip: IpAddr) -> bool {
        if now.saturating_duration_since(self.second_start) >= Duration::from_secs(1) {
            *self = Self::new(now);
        }
        if self.sent >= MAX_PER_SECOND {
            return false;
        }
        if self.sent >= MAX_PER_SECOND / 2 {
            let of_source = self.by_source.entry(Source::of(ip)).or_default();
            if *of_source >= MAX_PER_SOURCE {
                return false;
            }
            *of_source += 1;
        }
        self.sent += 1;
        true
    }
}

impl<S: Socket> Driver<S> {
    /// Handles valid segments of no connection: if there is a ping, the peer learns that the connection
    /// does not exist. While initial segments are answered with a Retry it may be about to open, unless the
    /// listener accepts no more.
    pub(super) fn reset_unknown(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let is_ping = |header: &Header| {
            header.command == Command::Push && header.len == 0 && header.frg == CONTROL_CAPABLE
        };
        let ping = Segments::new(datagram).map(|(header, _)| header).find(is_ping);
        let may_open = || {
            // In this order: the queue has a lock.
            self.is_crowded() && self.accept.as_ref().is_some_and(|accept| accept.is_open())
        };
        if let Some(ping) = ping.filter(|_| !may_open()) {
            self.send_stateless_reset(now, from, &ping);
        }
    }

    /// Rejects an initial segment without data.
    pub(super) fn refuse(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        if let Some(InitialSegment::WindowProbe(_)) = InitialSegment::parse(datagram)
            && let Ok(initial) = Header::parse(datagram)
        {
            self.send_stateless_reset(now, from, &initial);
        }
    }

    /// A connection that lives at another address has roamed, or somebody sends copies of its datagrams
    /// to have it reset: then nothing is said.
    fn send_stateless_reset(&mut self, now: Instant, to: SocketAddr, echoed: &Header) {
        let Some(accept) = &self.accept else { return };
        // The locks of `hands_over` and `is_live` come last: they are taken no more often than a RST may
        // leave. While this process hands over, the next one that reads the socket is to answer.
        if self.config.kcp.close_notify
            && self.may_answer()
            && self.resets.admit(now, to.ip())
            && !accept.hands_over()
            && !self.demux.is_live(echoed.conv)
        {
            self.stats.stateless_resets_sent += 1;
            self.send_at_once(now, to, |_| Some(stateless_reset(echoed)));
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;

    #[test]
    fn resets_are_limited_in_each_second() {
        let start = Instant::now();
        let mut limiter = ResetLimiter::new(start);
        for second in 0..3 {
            let now = start + Duration::from_secs(second);
            let ip = |host: u32| IpAddr::from((host % 100).to_be_bytes());
            assert_eq!((0..100_000).filter(|host| limiter.admit(now, ip(*host))).count(), 16_384);
        }
    }

    #[test]
    fn one_source_leaves_most_of_the_second_half_to_others() {
        let now = Instant::now();
        let mut limiter = ResetLimiter::new(now);
        let mut sent = |host: u8| {
            (0..100_000).filter(|_| limiter.admit(now, [192, 0, 2, host].into())).count()
        };
        assert_eq!((sent(1), sent(2), sent(1)), (8_192 + 512, 512, 0));
    }
}
