//! Datagrams of no connection: answers to a Retry (RFC 9000 8.1.2), data that arrives before the
//! initial segment of its connection, and parity that may recover that.

use std::net::SocketAddr;
use std::time::Instant;

use crate::core::connection::PacketType;
use crate::core::open::InitialSegment;
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::demux::{Key, Route};
use crate::driver::early_arrivals::datagram_of;
use crate::driver::retry::Answer;
use crate::fec::{FecFlag, fec_flag};
use crate::shared::conn_id::ConnId;
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
                let packet = (rest, PacketType::Regular);
                return Some(self.on_initial(now, *from, initial, packet, nonce));
            }
            Route::Reply(header) => self.reply_in_time_wait(now, *from, header),
            _ => {}
        }
        Some(false)
    }

    /// Handles a packet with valid segments of no connection: its connection may migrate, or open soon.
    pub(super) fn on_unknown(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) {
        let datagram = datagram_of(packet);
        if !self.on_possible_migration(now, from, datagram) {
            self.stats.dropped_no_connection += 1;
            self.on_unmatched(now, from);
            self.reset_unknown(now, from, datagram);
        }
        // A connection that may migrate need not be that of this packet.
        self.hold_early(now, from, packet);
    }

    /// Answers an initial datagram without state (RFC 9000 8.1.2). The answer is no longer than the
    /// datagram was.
    pub(super) fn send_retry(&mut self, now: Instant, key: Key) {
        self.send_at_once(now, key.0, |driver| {
            driver.stats.retries_sent += 1;
            Some(driver.retry.ping(now, key))
        });
    }

    /// Holds a packet of an unknown connection that may open soon. While there are many unvalidated
    /// peers it cannot: its initial segment is answered without state.
    fn hold_early(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) {
        let Ok(header) = Header::parse(datagram_of(packet)) else { return };
        let is_open = self.accept.as_ref().is_some_and(|accept| accept.is_open());
        let filter = self.config.accept_filter.as_ref();
        if is_open
            && !self.unvalidated.is_crowded()
            && self.demux.find(&(from, header.conv)).is_none()
            && filter.is_none_or(|filter| filter.admits(from, header.conv))
        {
            self.early.hold(now, from, packet, self.unvalidated.budget_mut());
        }
    }

    /// Delivers what arrived before the initial segment of a connection that has opened now.
    pub(super) fn deliver_early(
        &mut self,
        now: Instant,
        id: ConnId,
        from: SocketAddr,
        initial: &[u8],
    ) {
        let packets = self.early.take(from, initial, self.unvalidated.budget_mut());
        for packet in packets {
            self.stats.early_datagrams += 1;
            if self.deliver(now, id, datagram_of(&packet), PacketType::Regular)
                && fec_flag(&packet) == FecFlag::Data
            {
                self.on_shard(now, from, &packet);
            }
        }
    }

    /// Handles a parity packet from an address without a connection: it may recover an initial segment
    /// whose connection has other packets here. Returns whether a connection opened.
    pub(super) fn on_early_parity(
        &mut self,
        now: Instant,
        from: SocketAddr,
        parity: &[u8],
        nonce: &[u8],
    ) -> bool {
        let (Some(layout), true) = (self.config.fec, self.config.fec_decode) else { return false };
        let budget = self.unvalidated.budget_mut();
        let Some(datagram) = self.early.recover(now, from, parity, layout, budget) else {
            return false;
        };
        let Route::Open(initial) = self.demux.route(now, &from, &datagram) else { return false };
        let accepted = self.on_initial(now, from, initial, (&datagram, PacketType::Fec), nonce);
        if accepted {
            self.on_shard(now, from, parity);
        }
        accepted
    }
}
