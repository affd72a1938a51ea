//! Path MTU discovery of a connection.

use super::Kcp;
use crate::core::clock::Micros;
use crate::core::segment::{Command, HEADER_LEN, Header};
use crate::error::ConnectionError;

/// Path probes.
impl Kcp {
    /// Whether someone should see to it that datagrams may be fragmented on their way.
    pub(crate) fn needs_ip_fragmentation(&self) -> bool {
        self.close_reason.is_none()
            && self.send.awaits_ack()
            && self.send.path.needs_ip_fragmentation(self.keepalive.is_validated())
    }

    /// When the next probe leaves. Without data in flight it can wait: nobody is hurt.
    pub(super) fn path_deadline(&self) -> Option<Micros> {
        self.send.path.deadline().filter(|_| self.send.awaits_ack())
    }

    /// Appends the probe that is due, if any.
    pub(super) fn emit_path_probe(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        if self.path_deadline().is_none_or(|at| now < at) {
            return false;
        }
        let (rto, live) = (self.send.rtt.rto(), &mut self.keepalive);
        let Some(probe) = self.send.path.take_probe(now, rto, || live.next_cookie()) else {
            return false;
        };
        let padding = probe.size - HEADER_LEN;
        let len = u32::try_from(padding).unwrap_or(0);
        let header = self.header(Command::Push, 0, probe.sn, probe.cookie, len);
        header.emit(out);
        out.resize(out.len() + padding, 0);
        match padding {
            0 => self.stats.pings_sent += 1,
            _ => self.stats.mtu_probes_sent += 1,
        }
        true
    }

    /// Whether an acknowledgement answers such a probe.
    pub(super) fn on_path_answer(&mut self, now: Micros, header: &Header) -> bool {
        let (answer, nxt) = ((header.sn, header.ts), self.send.nxt());
        if !self.send.path.on_answer(now, answer, nxt, self.mtu) {
            return false;
        }
        self.keepalive.on_validated();
        if self.update_mss() {
            // What silence held back may be small enough now, or pass in fragments.
            self.send.on_peer_activity(now);
        }
        true
    }

    /// From now on segments are cut for what is both wanted and carried. Returns whether that is
    /// something else than before.
    pub(super) fn update_mss(&mut self) -> bool {
        let (mss, before) = (self.mtu.min(self.send.path.limit()) - HEADER_LEN, self.send.mss());
        self.send.set_mss(mss);
        mss != before
    }

    /// The end of a conversation whose segments are too large for a path that does not carry
    /// fragments either, while its peer answers whatever is small.
    pub(super) fn check_oversized_timeout(&mut self, now: Micros) {
        if self.stranded_until().is_some_and(|until| now >= until) {
            self.close_reason.get_or_insert(ConnectionError::DeadPeer);
        }
    }

    pub(super) fn stranded_until(&self) -> Option<Micros> {
        let since = self.send.path.stranded_since()?;
        let limit = self.keepalive.dead_after()?;
        self.send.is_oldest_unacked().then(|| since.add_micros(limit))
    }

    /// Largest datagram that is sent now, in bytes.
    #[must_use]
    pub fn current_mtu(&self) -> usize {
        HEADER_LEN + self.send.mss()
    }
}
