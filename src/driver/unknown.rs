//! Datagrams of no connection: answers to a Retry (RFC 9000 8.1.2), and what may migrate.

use std::net::SocketAddr;
use std::time::Instant;

use crate::core::open::InitialSegment;
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::admission::retry::Answer;
use crate::driver::routing::{Key, Route};
use crate::fec::datagram_of;
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// Handles valid segments of no open connection if they answer a Retry, which only the peer itself
    /// can: before migration and TIME-WAIT, which would take the initial segment behind the answer for
    /// one of their own connection. Returns `None` if they do not, otherwise whether a connection
    /// accepted that initial segment.
    pub(super) fn on_retry_answer(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        datagram: &[u8],
        nonce: &[u8],
    ) -> Option<bool> {
        let conv = Header::parse(datagram).ok()?.conv;
        match self.retry.on_datagram(now, (*from, conv), datagram) {
            Answer::None => return None,
            answer => {
                self.stats.retries_answered += 1;
                self.stats.retry_answers_evicted += u64::from(answer == Answer::Replaced);
            }
        }
        let Some(rest) = InitialSegment::find_datagram(datagram) else { return Some(false) };
        match self.demux.route(now, from, rest) {
            Route::Open(initial) => {
                return Some(self.on_initial(now, *from, initial, rest, nonce));
            }
            Route::Reply(header) => self.reply_in_time_wait(now, *from, header),
            _ => {}
        }
        Some(false)
    }

    /// Handles a packet with valid segments of no connection: its connection may migrate.
    pub(super) fn on_unknown(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) {
        let datagram = datagram_of(packet);
        if !self.on_possible_migration(now, from, datagram) {
            self.stats.dropped_no_connection += 1;
            self.on_unmatched(now, from);
            self.reset_unknown(now, from, datagram);
        }
    }

    /// Answers an initial datagram without state (RFC 9000 8.1.2). The answer is no longer than the
    /// datagram was.
    pub(super) fn send_retry(&mut self, now: Instant, key: Key) {
        self.send_at_once(now, key.0, |driver| {
            driver.stats.retries_sent += 1;
            Some(driver.retry.ping(now, key))
        });
    }
}
