//! Path MTU discovery of a connection (DPLPMTUD, RFC 8899): MTU probes in and out, `EMSGSIZE`, and
//! the resulting segment size. The state machine is [`MtuDiscovery`].
//!
//! [`MtuDiscovery`]: crate::core::path::mtu::MtuDiscovery

use std::time::Instant;

use super::Kcp;
use crate::config::{self, Mode};
use crate::core::clock::Micros;
use crate::core::segment::{Command, HEADER_LEN, Header};
use crate::error::{ConfigError, ConnectionError, Heard};

/// Datagram sizes.
impl Kcp {
    /// Largest datagram sent now, bytes: the configured MTU less the [overhead](Kcp::set_overhead),
    /// or the PLPMTU of the path if that is smaller (RFC 8899).
    #[doc(alias = "PMTUD")]
    #[doc(alias = "DPLPMTUD")]
    #[must_use]
    pub fn current_mtu(&self) -> usize {
        HEADER_LEN + self.send.mss()
    }

    /// Upper bound of the UDP payload, bytes: as configured, or lowered by `EMSGSIZE`.
    pub(crate) fn max_mtu(&self) -> u16 {
        self.send.path.max_mtu()
    }

    /// Sets the bytes that the caller adds to each datagram of [`Kcp::poll_transmit`]: `cipher` in
    /// both directions, `fec_header` to sent datagrams with
    /// [new data](crate::proto::Transmitted::new_segments). Default: 0. They count against the MTU
    /// and the anti-amplification limit. Call it before anything is sent.
    ///
    /// # Errors
    ///
    /// If the MTU leaves no byte for data.
    pub fn set_overhead(&mut self, cipher: u16, fec_header: u16) -> Result<(), ConfigError> {
        let sent = cipher.saturating_add(fec_header);
        config::check_mtu(self.max_mtu(), usize::from(sent))?;
        (self.sent_overhead, self.received_overhead) = (sent, cipher);
        self.send.path.set_overhead(cipher, fec_header);
        self.update_mss();
        Ok(())
    }

    /// Reports that the operating system refused a datagram of `size` bytes, overhead included
    /// (`EMSGSIZE`). Returns the new largest UDP payload in bytes if it fell. New segments are cut
    /// for it, segments in flight keep their size.
    #[doc(alias = "EMSGSIZE")]
    pub fn on_message_too_big(&mut self, size: usize) -> Option<u16> {
        if !self.send.path.on_message_too_big(size) {
            return None;
        }
        self.update_mss();
        Some(self.max_mtu())
    }

    /// As [`Kcp::on_message_too_big`], if the operating system may have the MTU from an ICMP
    /// message.
    pub(crate) fn on_packet_too_big(&mut self, now: Instant, size: usize) {
        if self.send.path.on_packet_too_big(self.clock.at(now), size) {
            self.update_mss();
        }
    }

    /// Whether the caller should let routers fragment datagrams (clear DF): segments in flight
    /// exceed the path MTU.
    #[must_use]
    pub fn needs_ip_fragmentation(&self) -> bool {
        self.close_reason.is_none()
            && self.send.awaits_ack()
            && self.send.path.needs_ip_fragmentation(self.keepalive.is_validated())
    }

    /// Sets the size of new segments to the current MTU. Returns whether the size has changed.
    pub(super) fn update_mss(&mut self) -> bool {
        let before = self.send.mss();
        let mss = self.send.path.current_mtu() - HEADER_LEN;
        let mss = mss - self.repair_overhead(mss);
        self.send.set_mss(mss);
        mss != before
    }
}

/// MTU probes.
impl Kcp {
    /// When the next MTU probe, or the ping before one, is sent. Only while data is in flight.
    pub(super) fn mtu_probe_deadline(&self) -> Option<Micros> {
        self.send.path.deadline().filter(|_| self.send.awaits_ack())
    }

    /// Appends the MTU probe or ping that is due, if any.
    pub(super) fn write_mtu_probe(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        if self.mtu_probe_deadline().is_none_or(|at| now < at) {
            return false;
        }
        let (rto, keepalive) = (self.send.rtt.rto(), &mut self.keepalive);
        let Some(probe) = self.send.path.poll_probe(now, rto, || keepalive.next_cookie()) else {
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

    /// An ACK arrived that matches no segment in flight. Returns whether it answers an MTU probe or
    /// the ping before one.
    pub(super) fn on_mtu_probe_ack(&mut self, now: Micros, header: &Header) -> bool {
        // Segments of queued messages keep their size: they are oversized too.
        let queued = match self.mode {
            Mode::Stream => 0,
            Mode::Message => self.send.send_buffer().segments(self.send.mss()),
        };
        let oversized_until = self.send.nxt().advance(u32::try_from(queued).unwrap_or(0));
        let answer = (header.sn, header.ts);
        if !self.send.path.on_ack(now, answer, oversized_until) {
            return false;
        }
        self.keepalive.on_validated();
        if self.update_mss() {
            // Ends the PTO back-off: segments may be small enough now, or pass in IP fragments.
            self.send.on_peer_activity(now);
        }
        true
    }

    /// Ends the connection if oversized segments made no progress for the dead-peer timeout: the
    /// path carries no IP fragments, while small datagrams of the peer keep restarting that
    /// timeout.
    pub(super) fn check_oversized_timeout(&mut self, now: Micros) {
        if self.oversized_deadline().is_some_and(|until| now >= until) {
            let since = self.send.path.oversized_since();
            let answers = since.is_some_and(|since| self.keepalive.last_alive() > since);
            let heard = if answers { Heard::SmallDatagrams } else { Heard::Nothing };
            self.close_reason.get_or_insert(ConnectionError::DeadPeer(heard));
        }
    }

    pub(super) fn oversized_deadline(&self) -> Option<Micros> {
        let since = self.send.path.oversized_since()?;
        let limit = self.keepalive.dead_after()?;
        self.send.is_oldest_unacked().then(|| since.add_micros(limit))
    }
}
