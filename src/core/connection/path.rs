//! The path of a connection: address validation, anti-amplification limit and path validation (RFC
//! 9000 8.1, 8.2 and 9), and path MTU discovery (DPLPMTUD, RFC 8899). The state machine of MTU
//! discovery is [`MtuDiscovery`](crate::core::path::mtu::MtuDiscovery).

use std::iter;
use std::net::SocketAddr;
use std::time::Instant;

use crate::config;
use crate::core::clock::Micros;
use crate::core::congestion::PathHandle;
use crate::core::connection::Kcp;
use crate::core::connection::output::MAX_FULL_DATAGRAMS_BEFORE_ACK;
use crate::core::keepalive::{PingId, Role};
use crate::core::path::amplification::{AddressProof, Amplification, SendBudget};
use crate::core::path::mtu::Oversized;
use crate::core::path::validation::{PathChallenge, PathValidation};
use crate::core::segment::{Command, HEADER_LEN, Header, Segments};
use crate::core::seq::Ts;
use crate::error::{ConfigError, ConnectionError, TimeoutCause};
use crate::util::path::Path;

/// A path model shared by several connections, see [`Kcp::share_path`].
#[derive(Clone, Debug)]
pub struct SharedPath {
    path: PathHandle,
    /// Start of the connection that created it.
    start: Instant,
}

/// Address validation (RFC 9000 8.1).
impl Kcp {
    /// Pings the peer with the next transmission and then every second until
    /// [`Kcp::is_established`].
    pub fn start_validation(&mut self, now: Instant) {
        self.keepalive.start_validation(self.clock.at(now));
    }

    /// Puts an accepted connection under the anti-amplification limit (RFC 9000 8.1) and starts
    /// address validation. Until the peer is validated, this side sends at most three times the
    /// bytes received in datagrams with data, initial segments or pings of the opener, or `initial_allowance`
    /// bytes if that is more; the [overhead](Kcp::set_overhead) counts in both directions. No data
    /// segment is retransmitted and no MTU probe is sent.
    ///
    /// With an `initial_allowance` of 0 only pings and window updates are sent until then, and
    /// nothing is acknowledged: the peer's retransmissions keep refilling the limit. An ACK without
    /// the CONTROL capability validates such a peer once its first data segment has arrived twice.
    ///
    /// Our pings tell the peer that this side has accepted. A ping of a peer that has accepted too
    /// ends the connection (simultaneous passive open).
    ///
    /// Call before the first [`Kcp::input`]. Default: no limit.
    pub fn require_validation(&mut self, now: Instant, initial_allowance: usize) {
        if !self.is_established() {
            self.amplification = Amplification::limited(initial_allowance);
            if initial_allowance == 0 {
                self.address_proof =
                    AddressProof::AckAndDuplicate { acked: false, duplicated: false };
            }
        }
        self.role.accept();
        self.start_validation(now);
    }

    /// The peer's initial segment has the CONTROL capability: only ACKs with it validate the peer.
    pub(crate) fn expect_capable_acks(&mut self) {
        self.address_proof = AddressProof::CapableAck;
    }

    /// An ACK of a segment of ours with this `frg` arrived.
    pub(super) fn on_address_proof(&mut self, frg: u8) {
        if self.address_proof.on_ack(frg) {
            self.keepalive.on_validated();
        }
    }

    /// No application can have the connection before [`Kcp::accept`], so nothing of the peer is acknowledged.
    pub(crate) fn defer_accept(&mut self) {
        self.defers_accept = true;
    }

    /// The connection waits for the application to accept it, after [`Kcp::defer_accept`].
    pub(crate) fn accept(&mut self) {
        self.defers_accept = false;
    }

    /// Whether the peer gets no acknowledgement now.
    pub(crate) fn withholds_acks(&self) -> bool {
        self.defers_accept || self.amplification.withholds_acks()
    }

    /// Whether this side accepted the connection and the peer is not validated.
    pub(super) fn is_peer_unvalidated(&self) -> bool {
        self.role != Role::Active && !self.keepalive.is_validated()
    }

    /// Whether both sides have accepted this connection, so that neither has opened it.
    pub(crate) fn is_simultaneous_passive_open(&self) -> bool {
        self.role == Role::BothPassive
    }

    /// The peer's address was validated before the connection opened: lifts the anti-amplification
    /// limit.
    pub(crate) fn on_address_validated(&mut self) {
        self.keepalive.on_validated();
        self.amplification = Amplification::Unlimited;
    }

    /// Size limit of the next datagram under the anti-amplification limit. Check
    /// [`SendBudget::may_send_extras`] before sending FEC parity, duplicates or out-of-band
    /// datagrams.
    #[must_use]
    #[inline]
    pub fn send_budget(&self) -> SendBudget {
        self.amplification.budget(usize::from(self.sent_overhead))
    }

    /// A datagram of `len` bytes was accepted: counts its bytes, and lifts the limit once the peer
    /// is validated. `counts`: [`AddressProof::counts`], and not reconstructed by FEC.
    #[inline]
    pub(super) fn on_amplification_input(&mut self, len: usize, counts: bool) {
        if counts {
            self.amplification.on_received(len + usize::from(self.received_overhead));
        }
        if self.keepalive.is_validated() {
            self.amplification = Amplification::Unlimited;
        }
    }
}

/// Path validation (RFC 9000 8.2).
impl Kcp {
    /// Checks a datagram of this connection that came from `addr` instead of the peer's address.
    /// `cookie` must be random. Does not process the datagram: after [`PathValidation::Validated`]
    /// call [`Kcp::on_path_validated`], then [`Kcp::input`].
    pub fn validate_path(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        datagram: &[u8],
        cookie: u32,
    ) -> PathValidation {
        let is_new = self.has_something_new(datagram);
        self.validate_other_path(now, Path::to(addr), datagram, is_new, cookie)
    }

    /// As [`Self::validate_path`], for a path with a local IP. `is_new`:
    /// [`Self::has_something_new`].
    pub(crate) fn validate_other_path(
        &mut self,
        now: Instant,
        path: Path,
        datagram: &[u8],
        is_new: bool,
        cookie: u32,
    ) -> PathValidation {
        let sn = self.role.ping_sn(self.send.una());
        let new = PathChallenge(PingId { sn, cookie: Ts(cookie) });
        let sent = self.send.una()..self.send.nxt();
        let validator = self.path_validator.get_or_insert_default();
        validator.on_datagram(self.clock.at(now), path, datagram, is_new, new, sent)
    }

    /// Whether a datagram has data that has not arrived, or acknowledges something new.
    pub(crate) fn has_something_new(&self, datagram: &[u8]) -> bool {
        let (una, nxt) = (self.send.una(), self.send.nxt());
        Segments::new(datagram).any(|(header, payload)| {
            let acks = header.una.since(una) > 0 && header.una.since(nxt) <= 0;
            acks || match header.command {
                Command::Push => !payload.is_empty() && self.recv.is_missing(header.sn),
                Command::Ack if self.is_recovered_ack(&header) => {
                    self.send.is_unacked_recovered(header.sn, header.ts.0)
                }
                Command::Ack => self.send.is_unacked(&self.clock, header.sn, header.ts),
                _ => false,
            }
        })
    }

    /// Appends a datagram with a PATH_CHALLENGE, a ping for the candidate path.
    pub fn write_path_challenge(&mut self, challenge: PathChallenge, out: &mut Vec<u8>) {
        self.path_challenge(challenge).emit(out);
    }

    /// The segment that [`Self::write_path_challenge`] appends.
    pub(crate) fn path_challenge(&mut self, challenge: PathChallenge) -> Header {
        self.new_ping(challenge.0)
    }

    /// The peer is reachable at a new address: drops the challenges of other paths, ends the PTO
    /// back-off, and sends the oldest segments again, which left on the old path.
    pub fn on_path_validated(&mut self, now: Instant) {
        self.path_validator = None;
        self.send.on_path_validated(self.clock.at(now));
    }

    /// The peer's new path leads to another host address, so RTT and capacity may differ (RFC 9000
    /// 9.4).
    pub(crate) fn on_path_changed(&mut self, now: Instant) {
        self.send.on_path_changed(self.clock.at(now));
    }

    /// This host's network has changed: forgets what was measured on the old path (RTT minimum, PTO
    /// back-off, congestion control), and sends a ping and the oldest segment in flight with the next
    /// transmission. Does nothing before the first datagram.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// use kcpx::Config;
    /// use kcpx::proto::{Kcp, Seed};
    ///
    /// let now = Instant::now();
    /// let mut kcp = Kcp::new(7, &Config::new(), now, Seed::default())?;
    /// kcp.send(now, b"hello"[..].into());
    /// let mut out = Vec::new();
    /// kcp.poll_transmit(now, &mut out);
    /// assert_eq!(kcp.poll_transmit(now, &mut out), None);
    /// kcp.network_changed(now);
    /// assert!(kcp.poll_transmit(now, &mut out).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ResetRTO")]
    pub fn network_changed(&mut self, now: Instant) {
        if !self.has_started() || self.close_reason.is_some() {
            return;
        }
        let now = self.clock.tick(now);
        self.send.on_network_changed(now);
        self.establishment.on_network_changed(now);
        // A ping before the peer has the connection would draw a RST.
        self.keepalive.on_network_changed(self.is_established());
        if let Some(paths) = &mut self.send.paths {
            paths.ping_all(now);
        }
        self.update_timers(now);
    }

    /// A ping arrived. If it may be a PATH_CHALLENGE, its answer leaves before any data.
    pub(super) fn on_possible_challenge(&mut self, now: Micros) {
        if self.send.on_ping(now) {
            self.full_datagrams_since_ack = MAX_FULL_DATAGRAMS_BEFORE_ACK;
        }
    }

    /// The path model of this connection, for [`Kcp::share_path`].
    pub fn shared_path(&mut self) -> SharedPath {
        SharedPath { path: self.send.shared_path(), start: self.clock.start() }
    }

    /// Shares the congestion control model with all connections of `path` (RFC 3124): together they
    /// send like one connection, with equal shares for connections that always have data. Share
    /// only between connections with validated peers and the same local and remote address and
    /// port: false acknowledgements mislead all of them. Takes effect while
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr) is set.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// use kcpx::Config;
    /// use kcpx::proto::{Kcp, Seed};
    ///
    /// let (now, config) = (Instant::now(), Config::new());
    /// let mut first = Kcp::new(1, &config, now, Seed::default())?;
    /// let mut second = Kcp::new(2, &config, now, Seed::default())?;
    /// second.share_path(&first.shared_path());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share_path(&mut self, path: &SharedPath) {
        let clock_offset = path.path.clock_offset + self.clock.micros_after(path.start);
        self.send.share_path(path.path.with_offset(clock_offset));
    }

    /// Leaves a shared path, for a connection that moves to another one.
    pub fn leave_path(&mut self) {
        self.send.leave_path();
    }

    /// The ping that tells a passive peer that this side is passive too.
    pub(crate) fn last_ping(&mut self) -> Header {
        let (sn, cookie) = (self.role.ping_sn(self.send.una()), self.keepalive.next_cookie());
        self.new_ping(PingId { sn, cookie })
    }

    /// The segment of a ping sent now: an empty PUSH.
    pub(super) fn new_ping(&mut self, PingId { sn, cookie }: PingId) -> Header {
        self.stats.probes.pings += 1;
        self.header(Command::Push, self.close_state.capability(), sn, cookie, 0)
    }
}

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
        self.send.path.mtu.max_mtu()
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
        self.send.path.mtu.set_overhead(cipher, fec_header);
        self.update_mss();
        Ok(())
    }

    /// Reports that the operating system refused a datagram of `size` bytes, overhead included
    /// (`EMSGSIZE`). Returns the new largest UDP payload in bytes if it fell. New segments are cut
    /// for it, segments in flight keep their size and need [`Kcp::needs_ip_fragmentation`].
    #[doc(alias = "EMSGSIZE")]
    pub fn on_message_too_big(&mut self, size: usize) -> Option<u16> {
        self.on_message_too_big_on(self.active_path(), size)
    }

    /// Whether the caller should let routers fragment datagrams (clear DF): segments in flight
    /// exceed the path MTU.
    #[must_use]
    pub fn needs_ip_fragmentation(&self) -> bool {
        self.close_reason.is_none() && self.send.awaits_ack() && {
            let oversized = self.send.oversized().is_some();
            self.send.path.mtu.may_fragment(oversized, self.keepalive.is_validated())
        }
    }

    /// Sets the size of new segments to the current MTU. Returns whether the size has changed.
    pub(super) fn update_mss(&mut self) -> bool {
        let (before, mtu) = (self.send.mss(), self.send.current_mtu());
        let mss = mtu - HEADER_LEN;
        let mss = mss - self.repair_overhead(mss);
        self.send.set_mss(self.clock.latest(), mtu, mss);
        mss != before
    }
}

/// MTU probes.
impl Kcp {
    /// When the next MTU probe, or the ping before one, is sent. Only while data is in flight.
    pub(super) fn mtu_probe_deadline(&self) -> Option<Micros> {
        self.send.path.mtu.deadline().filter(|_| self.send.awaits_ack())
    }

    /// Appends the MTU probe or ping that is due, if any.
    pub(super) fn write_mtu_probe(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        if self.mtu_probe_deadline().is_none_or(|at| now < at) {
            return false;
        }
        let (rto, keepalive) = (self.send.path.rtt.rto(), &mut self.keepalive);
        let Some(probe) = self.send.path.mtu.poll_probe(now, rto, || keepalive.next_cookie())
        else {
            return false;
        };
        let padding = probe.size - HEADER_LEN;
        let len = u32::try_from(padding).unwrap_or(0);
        let header = self.header(Command::Push, 0, probe.sn, probe.cookie, len);
        header.emit(out);
        out.resize(out.len() + padding, 0);
        match padding {
            0 => self.stats.probes.pings += 1,
            _ => self.stats.probes.mtu += 1,
        }
        true
    }

    /// Whether this side has sent the MTU probe, or the ping before one, on any path.
    pub(super) fn is_mtu_probe(&self, probe: PingId) -> bool {
        self.send.every_path().any(|path| path.mtu.is_probe(probe))
    }

    /// An ACK arrived that matches no segment in flight. Returns whether it answers an MTU probe or
    /// the ping before one, on any path.
    pub(super) fn on_mtu_probe_ack(&mut self, now: Micros, header: &Header) -> bool {
        let probe = PingId::named_by(header);
        let others = self.send.paths.iter_mut().flat_map(|paths| paths.others_mut());
        let paths = iter::once(&mut self.send.path).chain(others.map(|(_, path)| path));
        let is_answer = { paths }.any(|path| path.mtu.on_ack(now, probe));
        if !is_answer {
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
            let since = self.send.oversized().map(Oversized::last_progress);
            let answers = since.is_some_and(|since| self.keepalive.last_alive() > since);
            let heard = if answers { TimeoutCause::SmallDatagrams } else { TimeoutCause::Nothing };
            self.close_reason.get_or_insert(ConnectionError::DeadPeer(heard));
        }
    }

    pub(super) fn oversized_deadline(&self) -> Option<Micros> {
        let since = self.send.oversized()?.last_progress();
        let limit = self.keepalive.dead_after()?;
        self.send.is_oldest_unacked().then(|| since.add_micros(limit))
    }
}
