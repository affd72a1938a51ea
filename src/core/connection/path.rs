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

/// A path whose model several connections share, see [`Kcp::share_path`].
#[derive(Clone, Debug)]
pub struct SharedPath {
    path: PathHandle,
    /// Start of the connection that gave it.
    start: Instant,
}

/// Address validation (RFC 9000 8.1).
impl Kcp {
    /// Pings the peer with the next transmission and then each second until it has proved that it
    /// received something of this side, see [`Kcp::is_established`].
    pub fn start_validation(&mut self, now: Instant) {
        self.keepalive.start_validation(self.clock.at(now));
    }

    /// Puts an accepted connection under the anti-amplification limit (RFC 9000 8.1) and starts
    /// address validation. An unvalidated peer is sent at most three times the bytes of the
    /// datagrams with data, initial segments or pings that [`Kcp::input`] took, or
    /// `initial_allowance` bytes if that is more; the [overhead](Kcp::set_overhead) counts in both
    /// directions. No data segment is retransmitted and no MTU probe leaves.
    ///
    /// With an `initial_allowance` of 0 the peer is sent pings and window updates alone until it is
    /// validated, and nothing is acknowledged: its retransmissions keep the limit from being used
    /// up. An ACK without the CONTROL capability validates such a peer once its first data segment
    /// has arrived twice.
    ///
    /// Its pings show that this side has accepted, and a ping of a peer that has accepted too ends the
    /// connection, which nobody has opened then.
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

    /// The peer has opened the connection with the CONTROL capability: only an ACK with it validates
    /// the peer.
    pub(crate) fn expect_capable_acks(&mut self) {
        self.address_proof = AddressProof::CapableAck;
    }

    /// An ACK of a segment of ours with this `frg` arrived.
    pub(super) fn on_address_proof(&mut self, frg: u8) {
        if self.address_proof.on_ack(frg) {
            self.keepalive.on_validated();
        }
    }

    /// Whether the peer has opened the connection, and its address is not validated.
    pub(super) fn is_peer_unvalidated(&self) -> bool {
        self.role != Role::Active && !self.keepalive.is_validated()
    }

    /// Whether the peer has accepted this connection as this side has, so that nobody has opened it.
    pub(crate) fn is_opened_by_nobody(&self) -> bool {
        self.role == Role::BothPassive
    }

    /// The peer's address was validated before the connection opened: ends the anti-amplification
    /// limit.
    pub(crate) fn on_address_validated(&mut self) {
        self.keepalive.on_validated();
        self.amplification = Amplification::Unlimited;
    }

    /// Bytes of memory of received data.
    pub(crate) fn recv_memory(&self) -> usize {
        self.recv.memory()
    }

    /// Bytes of memory of data that was not sent or not acknowledged.
    pub(crate) fn send_memory(&self) -> usize {
        self.send.send_buffer().bytes() + self.send.in_flight() as usize * self.send.mss()
    }

    /// Lets received data take `more` bytes of memory than it takes now: what does not fit is dropped
    /// and not acknowledged, and the window opens no further, unless `opens`.
    pub(crate) fn limit_recv_memory(&mut self, more: usize, opens: bool) {
        self.recv.limit_memory(more, opens);
    }

    /// Bytes that the next datagram may have under the anti-amplification limit. Check
    /// [`SendBudget::may_send_extras`] before sending FEC parity, duplicates or out-of-band
    /// datagrams to the peer.
    #[must_use]
    #[inline]
    pub fn send_budget(&self) -> SendBudget {
        self.amplification.budget(usize::from(self.sent_overhead))
    }

    /// A datagram of `len` bytes was accepted: counts its bytes, and ends the limit once the peer
    /// is validated. `counts`: see [`AddressProof::counts`]; not reconstructed by FEC.
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
    /// Judges a datagram of this connection that came from `addr`, which is not the peer's address.
    /// `cookie` is random. The datagram is not processed: after [`PathValidation::Validated`] call
    /// [`Kcp::on_path_validated`], then [`Kcp::input`].
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

    /// As [`Self::validate_path`], of a path that has a local IP, which may be another one than that
    /// of the connection. `is_new`: the datagram has something new, see [`Self::has_something_new`].
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

    /// Whether a datagram of this connection has data that has not arrived, or is the first to
    /// acknowledge something.
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

    /// Appends the datagram of a PATH_CHALLENGE, a ping for the candidate path.
    pub fn write_path_challenge(&mut self, challenge: PathChallenge, out: &mut Vec<u8>) {
        self.path_challenge(challenge).emit(out);
    }

    /// The segment that [`Self::write_path_challenge`] appends.
    pub(crate) fn path_challenge(&mut self, challenge: PathChallenge) -> Header {
        self.new_ping(challenge.sn, challenge.cookie)
    }

    /// The peer is reachable at a new address: challenges of other paths are void, and the PTO
    /// back-off ends.
    pub fn on_path_validated(&mut self, now: Instant) {
        self.path_validator.clear();
        self.send.on_peer_activity(self.clock.at(now));
    }

    /// The path of this connection, for [`Kcp::share_path`].
    pub fn shared_path(&mut self) -> SharedPath {
        SharedPath { path: self.send.shared_path(), start: self.clock.start() }
    }

    /// Shares the model of congestion control with all connections of `path` (RFC 3124): together they send
    /// what one connection would, and those that always have data send equal parts. Share only between
    /// connections with the same local and remote address and port whose peers are validated: a
    /// connection that acknowledges falsely misleads the others. Takes effect while
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

    /// Leaves a shared path: the connection moves to another one.
    pub fn leave_path(&mut self) {
        self.send.leave_path();
    }

    /// The ping that shows a peer, which has accepted this connection too, that this side has not
    /// opened it.
    pub(crate) fn last_ping(&mut self) -> Header {
        let (sn, cookie) = (self.role.ping_sn(self.send.una()), self.keepalive.next_cookie());
        self.new_ping(sn, cookie)
    }

    /// A ping that leaves now: an empty PUSH with a sequence number far before SND.UNA and a random
    /// timestamp.
    pub(super) fn new_ping(&mut self, sn: Sn, cookie: Ts) -> Header {
        self.stats.pings_sent += 1;
        self.header(Command::Push, self.close_state.capability(), sn, cookie, 0)
    }
}
