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
use crate::driver::packet_codec::{SendExtras, Written};
use crate::driver::retry::Answer;
use crate::fec::{FecFlag, fec_flag};
use crate::shared::conn_id::ConnId;
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// Handles valid segments of no open connection: the answer to a Retry, which may be followed by
    /// the initial segment. Returns whether a connection accepted that.
    pub(super) fn on_unknown(
        &mut self,
        now: Instant,
        from: &SocketAddr,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        let Ok(header) = Header::parse(datagram) else { return false };
        let rest = self.on_retry_answer(now, (*from, header.conv), datagram);
        let Some(rest) = rest else { return false };
        match self.demux.route(now, from, rest) {
            Route::Open(initial) => {
                self.on_initial(now, *from, initial, (rest, PacketType::Regular), nonce)
            }
            _ => false,
        }
    }

    /// Takes a datagram of no connection, if it answers a Retry. Returns the rest of the datagram
    /// from its initial segment on, if it has one.
    fn on_retry_answer<'a>(
        &mut self,
        now: Instant,
        key: Key,
        datagram: &'a [u8],
    ) -> Option<&'a [u8]> {
        match self.retry.on_datagram(now, key, datagram) {
            Answer::None => return None,
            Answer::Refused => self.stats.refused_per_ip += 1,
            Answer::Taken => self.stats.retries_answered += 1,
        }
        InitialSegment::find_datagram(datagram)
    }

    /// Answers an initial datagram without state (RFC 9000 8.1.2). The answer is no longer than the
    /// datagram was.
    pub(super) fn send_retry(&mut self, now: Instant, key: Key) {
        if !self.may_answer() {
            return;
        }
        self.stats.retries_sent += 1;
        let retry = &self.retry;
        let extras = SendExtras::default();
        let write = |tail: &mut Vec<u8>| {
            retry.write(now, key, tail);
            Written::Other
        };
        let sent = self.codec.encode(now, &mut self.tx, key.0, extras, write);
        self.budget = self.budget.saturating_sub(sent);
    }

    /// Holds a packet of an unknown connection that may open soon.
    pub(super) fn hold_early(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) {
        let Ok(header) = Header::parse(datagram_of(packet)) else { return };
        let is_open = self.accept.as_ref().is_some_and(|accept| accept.is_open());
        let filter = self.config.accept_filter.as_ref();
        if is_open
            && !self.unvalidated.is_crowded()
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
