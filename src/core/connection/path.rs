//! Address validation, the anti-amplification limit and path validation of a connection (RFC 9000
//! 8.1, 8.2 and 9).

use std::net::SocketAddr;
use std::time::Instant;

use super::Kcp;
use crate::core::congestion::PathHandle;
use crate::core::path::address_proof::AddressProof;
use crate::core::path::amplification::{Amplification, SendBudget};
use crate::core::path::validation::{PathChallenge, PathValidation};
use crate::core::ping::Role;
use crate::core::segment::{Command, Header, Segments};
use crate::core::seq::{Sn, Ts};
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
    /// bytes received in datagrams with data, initial segments or pings, or `initial_allowance`
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

    /// Whether this side accepted the connection and the peer is not validated.
    pub(super) fn is_peer_unvalidated(&self) -> bool {
        self.role != Role::Active && !self.keepalive.is_validated()
    }

    /// Whether both sides have accepted the connection and neither has opened it.
    pub(crate) fn is_opened_by_nobody(&self) -> bool {
        self.role == Role::BothPassive
    }

    /// The peer's address was validated before the connection opened: lifts the anti-amplification
    /// limit.
    pub(crate) fn on_address_validated(&mut self) {
        self.keepalive.on_validated();
        self.amplification = Amplification::Unlimited;
    }

    /// Memory of received data, bytes.
    pub(crate) fn recv_memory(&self) -> usize {
        self.recv.memory()
    }

    /// Memory of unsent and unacknowledged data, bytes.
    pub(crate) fn send_memory(&self) -> usize {
        self.send.send_buffer().bytes() + self.send.in_flight() as usize * self.send.mss()
    }

    /// Limits received data to `more` bytes of memory beyond now: segments that do not fit are
    /// dropped without an ACK, and the window opens no further unless `opens`.
    pub(crate) fn limit_recv_memory(&mut self, more: usize, opens: bool) {
        self.recv.limit_memory(more, opens);
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
        self.validate_other_path(now, Path::to(addr), (datagram, is_new), cookie)
    }

    /// As [`Self::validate_path`], for a path with a local IP. `is_new`:
    /// [`Self::has_something_new`].
    pub(crate) fn validate_other_path(
        &mut self,
        now: Instant,
        path: Path,
        (datagram, is_new): (&[u8], bool),
        cookie: u32,
    ) -> PathValidation {
        let new = PathChallenge { sn: self.role.ping_sn(self.send.una()), cookie: Ts(cookie) };
        self.path_validator.on_datagram(self.clock.at(now), path, (datagram, is_new), new)
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
        self.new_ping(challenge.sn, challenge.cookie)
    }

    /// The peer is reachable at a new address: drops the challenges of other paths, and ends the
    /// PTO back-off.
    pub fn on_path_validated(&mut self, now: Instant) {
        self.path_validator.clear();
        self.send.on_peer_activity(self.clock.at(now));
    }

    /// The path model of this connection, for [`Kcp::share_path`].
    pub fn shared_path(&mut self) -> SharedPath {
        SharedPath { path: self.send.shared_path(), start: self.clock.start() }
    }

    /// Shares the congestion control model with all connections of `path` (RFC 3124): together they
    /// send like one connection, with equal shares for connections that always have data. Share
    /// only between connections with validated peers and the same local and remote address and
    /// port: false acknowledgements mislead all of them. Takes effect while
    /// [`CongestionControl::Model`](crate::CongestionControl::Model) is set.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// use kcpx::KcpConfig;
    /// use kcpx::proto::{Kcp, Seed};
    ///
    /// let (now, config) = (Instant::now(), KcpConfig::new());
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
        self.new_ping(sn, cookie)
    }

    /// The segment of a ping sent now: an empty PUSH.
    pub(super) fn new_ping(&mut self, sn: Sn, cookie: Ts) -> Header {
        self.stats.pings_sent += 1;
        self.header(Command::Push, self.close_state.capability(), sn, cookie, 0)
    }
}
