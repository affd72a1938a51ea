//! Redundant data bundling: copies of segments in datagrams with newer ones, or in datagrams of
//! their own if no newer one comes.

use super::Kcp;
use crate::core::clock::Micros;
use crate::core::path::amplification::SendBudget;
use crate::core::segment::Command;
use crate::core::seq::Sn;

impl Kcp {
    /// Copies segments into datagrams with newer ones: `per_million` bytes of copies per million
    /// bytes of data, each segment at most once. 0, the default: none. Works with any peer, at any
    /// time; drain [`Kcp::poll_transmit`] afterwards. Flows with more than 256 segments in flight,
    /// and datagrams more than half full, get none.
    #[doc(hidden)]
    pub fn set_bundling_rate(&mut self, per_million: u32) {
        let nxt = self.send.nxt();
        self.send.redundancy.set_bundling_rate(per_million, nxt);
    }

    /// Whether copies are due in a datagram of their own.
    #[inline]
    pub(super) fn has_bundle_due(&self, now: Micros) -> bool {
        self.send.bundling_deadline().is_some_and(|at| now >= at)
    }

    /// Appends the datagram of copies that is due, if any.
    pub(super) fn write_bundle(
        &mut self,
        now: Micros,
        budget: SendBudget,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.has_bundle_due(now) || !budget.may_retransmit() {
            return false;
        }
        let (start, nxt) = (out.len(), self.send.nxt());
        let space = budget.cap(self.current_mtu());
        self.write_copies(now, nxt, space, out);
        self.send.end_bundle(now, nxt);
        out.len() > start
    }

    /// Inserts copies of segments before `nxt` at `start`, at most `space` bytes.
    ///
    /// In front of the new segments, since the peer acknowledges in this order and only the last
    /// ACK of a datagram is an RTT sample.
    pub(super) fn bundle_copies(
        &mut self,
        now: Micros,
        nxt: Sn,
        (start, space): (usize, usize),
        out: &mut Vec<u8>,
    ) {
        let end = out.len();
        if self.write_copies(now, nxt, space, out) {
            out[start..].rotate_left(end - start);
            self.send.end_bundle(now, nxt);
        }
    }

    /// Appends copies of segments before `nxt`, the newest first, at most `space` bytes. Returns
    /// whether there was one.
    fn write_copies(&mut self, now: Micros, nxt: Sn, space: usize, out: &mut Vec<u8>) -> bool {
        let (start, mut end) = (out.len(), nxt);
        let ts = self.clock.timestamp(now);
        let template = self.header(Command::Push, 0, Sn(0), ts, 0);
        while let Some(sn) = self.send.next_bundled(now, end, space - (out.len() - start)) {
            let Some(segment) = self.send.transmit_bundled(now, sn, ts) else { break };
            segment.emit(template, out);
            end = sn;
        }
        end != nxt
    }
}
