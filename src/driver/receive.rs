//! The receiving half of a turn.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Driver, RECV_CALLS, RX, TURN_ANSWERS, TURN_PACKETS};
use crate::core::segment::Header;
use crate::demux::Route;
use crate::mailbox::ConnId;
use crate::stream::KcpStream;
use crate::sys::{RecvFault, RxBatch, Socket, of_recv};

/// Receive errors in a row after which the socket is left alone for a while, and how long at
/// most.
const PATIENCE: u32 = 64;
const LONGEST_REST: Duration = Duration::from_millis(50);

impl<S: Socket> Driver<S> {
    /// Receives until nothing is there or the turn's share is used up. Returns whether more is
    /// waiting; an error means that the socket cannot be used any more.
    pub(super) fn receive(&mut self, now: Instant) -> io::Result<bool> {
        if self.recv_rest.is_some_and(|until| now < until) {
            return Ok(false);
        }
        self.recv_rest = None;
        // Taken out for the time of use: the thread's buffers are not borrowed while wakers or
        // destructors of others might run.
        let mut batch = RX.take().unwrap_or_else(RxBatch::new);
        let result = self.receive_into(now, &mut batch);
        RX.set(Some(batch));
        result
    }

    fn receive_into(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<bool> {
        for _ in 0..RECV_CALLS {
            batch.clear();
            match self.socket.recv(batch) {
                Ok(()) => self.recv_failures = 0,
                Err(error) => match of_recv(&error) {
                    RecvFault::Empty => return Ok(false),
                    RecvFault::Fatal => return Err(error),
                    RecvFault::Interrupted | RecvFault::Ignore => {
                        self.stats.recv_errors += 1;
                        if self.must_rest(now) {
                            return Ok(false);
                        }
                        continue;
                    }
                },
            }
            for (from, stride, train) in batch.trains() {
                for datagram in train.chunks(stride.max(1)) {
                    self.on_datagram(now, from, datagram);
                }
            }
            if !batch.is_full() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts a receive error. Errors that come without a datagram between them are not about
    /// datagrams; asking on would only keep a processor busy.
    fn must_rest(&mut self, now: Instant) -> bool {
        self.recv_failures = self.recv_failures.saturating_add(1);
        let Some(beyond) = self.recv_failures.checked_sub(PATIENCE).filter(|more| *more > 0) else {
            return false;
        };
        let rest = Duration::from_millis(1 << beyond.min(6)).min(LONGEST_REST);
        self.recv_rest = Some(now + rest);
        true
    }

    fn on_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        self.stats.received_datagrams += 1;
        self.stats.received_bytes += datagram.len() as u64;
        match self.demux.route(now, from, datagram) {
            Route::Existing(id) => self.deliver(now, id, datagram),
            Route::Open(hash) => self.on_opening(now, from, hash, datagram),
            Route::Acknowledge(header) => {
                self.stats.dropped_closed += 1;
                self.acknowledge(from, &header);
            }
            Route::Closed => self.stats.dropped_closed += 1,
            Route::Unknown => self.stats.dropped_unknown += 1,
            Route::Malformed => self.stats.dropped_malformed += 1,
            Route::Short => self.stats.dropped_short += 1,
        }
    }

    fn deliver(&mut self, now: Instant, id: ConnId, datagram: &[u8]) {
        let Some(conn) = self.get_mut(id) else { return };
        match conn.input(now, datagram) {
            Ok(acknowledge_now) => {
                if acknowledge_now {
                    // The policy asks for an answer to each datagram; it joins the batch.
                    let slot = id.slot as usize;
                    let may = self.may_answer();
                    if let Some(conn) = self.conns.get_mut(slot).filter(|_| may) {
                        let sent = conn.transmit(now, &mut self.tx, 1);
                        self.budget = self.budget.saturating_sub(sent);
                    }
                }
                self.touch(id);
            }
            Err(_) => self.stats.dropped_malformed += 1,
        }
    }

    /// Someone unknown opens a conversation. Whatever refuses it does so before anything is
    /// allocated.
    fn on_opening(&mut self, now: Instant, from: SocketAddr, hash: u64, datagram: &[u8]) {
        let Some(accept) = self.accept.clone().filter(|accept| accept.is_open()) else {
            self.stats.dropped_not_accepting += 1;
            return;
        };
        if self.conns.len() >= self.config.limits.max_connections {
            self.stats.refused_connections += 1;
            return;
        }
        if accept.len() >= self.config.limits.backlog {
            self.stats.refused_backlog += 1;
            return;
        }
        let Ok(header) = Header::parse(datagram) else { return };
        // The configuration was validated when the driver was made.
        let Ok(shared) = self.open(now, (from, header.conv), Some(hash)) else { return };
        self.stats.opened_by_peers += 1;
        let id = shared.id;
        self.deliver(now, id, datagram);
        self.scratch.wakers.extend(accept.push(KcpStream::new(shared)));
    }

    /// Whether the turn has room for an answer that waits for nobody's turn.
    fn may_answer(&self) -> bool {
        !self.blocked && !self.tx.is_full() && self.budget > TURN_PACKETS - TURN_ANSWERS
    }

    /// Answers a repetition on behalf of a conversation that ended.
    fn acknowledge(&mut self, to: SocketAddr, header: &Header) {
        if !self.may_answer() {
            return;
        }
        self.budget -= 1;
        let out = self.tx.tail();
        let start = out.len();
        header.emit(out);
        let len = out.len() - start;
        self.tx.commit(to, len, 0);
    }
}
