//! The KCP connection, sans I/O: no socket, no clock, no randomness.
//!
//! [`Kcp`] is one connection. Time is an argument of every call that needs it; datagrams go in
//! through [`Kcp::input`] and come out of [`Kcp::poll_transmit`]; the caller owns socket and
//! timers. Buffers of received data come from a process-wide pool (`util/buffer_pool.rs`), whose
//! lock is held for one pop; there is no other lock.
//!
//! The contract: after any call that takes `&mut self`, drain [`Kcp::poll_transmit`] while
//! datagrams can be sent, then read [`Kcp::poll_timeout`] and call [`Kcp::handle_timeout`] at that
//! time. More calls of these than necessary have no effect.
//!
//! Deviations from `ikcp.c` and kcp-go, none of which changes the wire format: ACKs, `una` and
//! windows are validated before they are applied; timers are exact deadlines instead of
//! `ikcp_update` every interval; loss is detected by order of transmission with a reordering window
//! (RFC 8985); no call scans the send window.

mod acks;
mod bundling;
mod close;
pub(crate) mod fec;
mod gro_input;
mod input;
mod mtu;
mod open;
mod out_of_band;
pub(crate) mod output;
mod path;
mod repair;
mod repair_state;
mod settings;
mod timers;
mod types;

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::{
    AckPolicy, KcpConfig, KeepaliveSide, Mode, SEGMENT_CHARGE, SEGMENT_COST, WritePolicy,
};
use crate::core::clock::{Clock, Micros, micros_u32};
use crate::core::close::CloseState;
use crate::core::congestion::pacer::RateLimiter;
use crate::core::connection::fec::ParitySent;
use crate::core::connection::repair_state::RepairState;
use crate::core::keepalive::Keepalive;
use crate::core::open::{Establishment, PeerState};
use crate::core::path::address_proof::AddressProof;
use crate::core::path::amplification::Amplification;
use crate::core::path::validation::PathValidator;
use crate::core::ping::Role;
use crate::core::recv::pending_acks::PendingAcks;
use crate::core::recv::receiver::Receiver;
use crate::core::send::Sender;
use crate::core::seq::Sn;
use crate::core::stateless_reset::UnconfirmedReset;
use crate::error::{ConfigError, ConnectionError};
use crate::stats::{ConnectionStats, Counters, Estimates, Snapshot};

pub use crate::core::connection::output::Transmitted;
pub use crate::core::connection::path::SharedPath;
pub use crate::core::connection::types::{PacketType, Seed, SendMessageError};

/// Most fragments of one message: `frg` is one byte on the wire.
const MAX_FRAGMENTS: usize = 255;

/// One KCP connection: kcp-go's `KCP`, `ikcpcb` in C.
///
/// ```
/// use std::time::Instant;
///
/// use bytes::Bytes;
/// use kcpx::KcpConfig;
/// use kcpx::proto::{Kcp, PacketType, Seed};
///
/// let (now, config) = (Instant::now(), KcpConfig::new());
/// let mut sender = Kcp::new(7, &config, now, Seed::default())?;
/// let mut receiver = Kcp::new(7, &config, now, Seed::default())?;
///
/// sender.send(now, Bytes::from_static(b"hello"));
/// let mut datagram = Vec::new();
/// while sender.poll_transmit(now, &mut datagram).is_some() {
///     receiver.input(now, &datagram, PacketType::Regular)?;
///     datagram.clear();
/// }
/// assert_eq!(receiver.recv().unwrap(), "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ikcpcb")]
#[derive(Debug)]
pub struct Kcp {
    conv: u32,
    clock: Clock,
    mode: Mode,
    /// Microseconds.
    interval: u32,
    ack_policy: AckPolicy,
    write_policy: WritePolicy,
    pub(super) send: Sender,
    recv: Receiver,
    pub(super) acks: PendingAcks,
    keepalive: Keepalive,
    amplification: Amplification,
    address_proof: AddressProof,
    path_validator: PathValidator,
    /// Bytes that cipher and FEC header add to each datagram sent.
    sent_overhead: u16,
    /// Bytes that the cipher adds to each datagram received.
    received_overhead: u16,
    rate_limiter: RateLimiter,
    /// When [`Kcp::poll_transmit`] was last called.
    last_poll_transmit: Micros,
    /// A window update is due (kcp-go `IKCP_ASK_TELL`). True from a window probe of the peer, or
    /// from [`Receiver::wants_window_update`], until the next datagram other than a CONTROL
    /// segment, an initial segment or an MTU probe.
    window_update_pending: bool,
    /// A window update of the peer has arrived since [`Kcp::take_window_report`].
    window_reported: bool,
    /// Full datagrams since ACKs were last written, see `MAX_FULL_DATAGRAMS_BEFORE_ACK`.
    full_datagrams_since_ack: u32,
    /// With [`WritePolicy::Delayed`]: when queued data leaves without a flush.
    cork_until: Option<Micros>,
    /// True from [`Kcp::flush`] until the send buffer is empty.
    flush_requested: bool,
    establishment: Establishment,
    peer: PeerState,
    role: Role,
    close_state: CloseState,
    /// `Some` once repair symbols are to be sent, or the peer has asked for them.
    repair: Option<Box<RepairState>>,
    close_reason: Option<ConnectionError>,
    pending_reset: UnconfirmedReset,
    /// `Some` once parity or fillers have left.
    parity_sent: Option<Box<ParitySent>>,
    stats: Counters,
}

impl Kcp {
    /// A new connection with conversation id `conv`. `ts` on the wire counts from `now`.
    ///
    /// # Errors
    ///
    /// When `config` is not valid.
    pub fn new(
        conv: u32,
        config: &KcpConfig,
        now: Instant,
        seed: Seed,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self::starting_at(conv, config, now, seed, Sn(0)))
    }

    /// As [`Kcp::new`] with first sequence number `sn` in both directions; both sides must use the
    /// same: for tests of sequence wrap.
    #[doc(hidden)]
    #[must_use]
    pub fn starting_at(conv: u32, config: &KcpConfig, now: Instant, seed: Seed, sn: Sn) -> Self {
        let mut rate_limiter = RateLimiter::default();
        rate_limiter.set_rate(config.rate_limit);
        let mut kcp = Self {
            conv,
            clock: Clock::new(now, seed.ts_epoch),
            mode: config.mode,
            interval: micros_u32(config.timing.interval),
            ack_policy: config.ack_policy,
            write_policy: config.write_policy,
            send: Sender::new(config, sn),
            recv: Receiver::new(config, sn),
            acks: PendingAcks::default(),
            keepalive: Keepalive::new(config, Micros(0), seed.cookie_seed),
            amplification: Amplification::Unlimited,
            address_proof: AddressProof::default(),
            path_validator: PathValidator::default(),
            sent_overhead: 0,
            received_overhead: 0,
            rate_limiter,
            last_poll_transmit: Micros(0),
            window_update_pending: false,
            window_reported: false,
            full_datagrams_since_ack: 0,
            cork_until: None,
            flush_requested: false,
            establishment: Establishment::Idle,
            peer: PeerState::new(),
            role: Role::default(),
            close_state: CloseState::new(config.close_notify),
            repair: None,
            close_reason: None,
            pending_reset: UnconfirmedReset::default(),
            parity_sent: None,
            stats: Counters::default(),
        };
        if let Some(limits) = config.redundancy.auto() {
            kcp.start_auto_redundancy(limits);
        }
        kcp
    }

    /// The conversation id (`conv` on the wire).
    #[must_use]
    pub fn conv(&self) -> u32 {
        self.conv
    }

    /// Payload bytes to write now. The send window bounds them, and so does what waits to be sent: no more than
    /// leaves within 10 ms, at least 16 KiB. More would be a queue in which later writes wait. Ask again after
    /// [`Kcp::poll_transmit`], which sends what waits.
    ///
    /// The capacity may never reach the size of a large block. Write a block in parts. Call
    /// [`Kcp::send_message`] until it is not [`Full`](SendMessageError::Full).
    #[doc(alias = "WaitSnd")]
    #[must_use]
    pub fn send_capacity(&self) -> usize {
        let (limit, unsent) = self.send_backlog();
        self.window_capacity().min(limit.saturating_sub(unsent))
    }

    /// Payload bytes that the send window admits now.
    pub(crate) fn window_capacity(&self) -> usize {
        self.send.available() * self.send.mss()
    }

    /// Bytes that may wait to be sent, and bytes that do.
    pub(crate) fn send_backlog(&self) -> (usize, usize) {
        let limit = self.send.backlog_limit(self.rate_limiter.rate());
        (limit, self.send.send_buffer().bytes())
    }

    /// Whether a writer waits, or is to wait soon: one whose message exceeds what is free waits before all of
    /// the limit is used.
    pub(super) fn is_backlogged(&self) -> bool {
        let (limit, unsent) = self.send_backlog();
        self.send.writer_waits() || self.send.available() == 0 || unsent >= limit / 4 * 3
    }

    /// Sets whether the application has more to write than [`Kcp::send_capacity`]: the sender is then not
    /// taken for one that has nothing to send. Holds until the next datagram that finds nothing to send.
    pub(crate) fn set_writer_waits(&mut self, waits: bool) {
        self.send.set_writer_waits(waits);
    }

    /// A write takes a multiple of this many bytes of [`Kcp::send_capacity`]: in message mode each
    /// write starts a segment of its own.
    pub(crate) fn send_unit(&self) -> usize {
        match self.mode {
            Mode::Stream => 1,
            Mode::Message => self.send.mss(),
        }
    }

    /// Queues bytes: in stream mode behind those already queued, in message mode cut into segments
    /// of their own, as kcp-go's `UDPSession.Write` does.
    ///
    /// All bytes are queued, whatever [`Kcp::send_capacity`] is: call that first. Empty
    /// data is ignored.
    pub fn send(&mut self, now: Instant, data: Bytes) {
        self.queue(now, data);
        self.expect_more();
    }

    /// A writer that is given no more capacity may have more.
    fn expect_more(&mut self) {
        self.send.set_writer_waits(self.send_capacity() == 0);
    }

    /// As [`Kcp::send`], for a caller that says itself whether there is more to write
    /// ([`Kcp::set_writer_waits`]).
    pub(crate) fn queue(&mut self, now: Instant, mut data: Bytes) {
        if data.is_empty() {
            return;
        }
        match self.mode {
            Mode::Stream => self.send.push(data, 0),
            Mode::Message => {
                while !data.is_empty() {
                    let piece = data.split_to(data.len().min(self.send.mss()));
                    self.send.push(piece, 0);
                }
            }
        }
        self.on_queued(now);
    }

    /// Queues one message that the peer receives whole, in fragments where it exceeds a segment.
    ///
    /// # Errors
    ///
    /// [`SendMessageError::TooLarge`] beyond [`Kcp::max_message_size`]: a message of more fragments
    /// than 255 or than the peer's receive window could never be reassembled.
    /// [`SendMessageError::Full`] when the send window has no capacity for the whole message now.
    /// Nothing is queued in either case.
    pub fn send_message(&mut self, now: Instant, data: Bytes) -> Result<(), SendMessageError> {
        let max = self.max_message_size();
        if data.len() > max {
            return Err(SendMessageError::TooLarge { size: data.len(), max });
        }
        let queued = self.queue_message(now, data).map_err(|_| SendMessageError::Full);
        match queued {
            Ok(()) => self.expect_more(),
            Err(_) => self.send.set_writer_waits(true),
        }
        queued
    }

    /// Queues a message whose size was checked before, or returns the message while the send window
    /// has no capacity. If MTU or window have shrunk since the check, the message is queued once
    /// the send window is empty, in segments larger than the MSS if it would need more than 255 of
    /// them.
    pub(crate) fn queue_message(&mut self, now: Instant, mut data: Bytes) -> Result<(), Bytes> {
        let piece = self.send.mss().max(data.len().div_ceil(MAX_FRAGMENTS));
        let fragments = data.len().div_ceil(piece).max(1);
        if fragments > self.send.available() && !self.send.is_drained() {
            return Err(data);
        }
        for frg in (0..fragments).rev() {
            let payload = data.split_to(data.len().min(piece));
            self.send.push(payload, u8::try_from(frg).unwrap_or(u8::MAX));
        }
        self.on_queued(now);
        Ok(())
    }

    /// Largest message in bytes that [`Kcp::send_message`] takes: as many fragments as the largest
    /// window that the peer advertised (32 before the first), our configured send window and the wire
    /// allow, and no more bytes than a window of usual segments takes: a peer of this crate has memory for
    /// 1,540 bytes a segment unless [`KcpConfig::recv_memory`](crate::KcpConfig::recv_memory) says
    /// otherwise, so segments of a larger MTU are fewer.
    #[must_use]
    pub fn max_message_size(&self) -> usize {
        let (largest, mss) = (usize::from(self.send.remote.largest()), self.send.mss());
        let memory = largest * SEGMENT_CHARGE / (mss + SEGMENT_COST);
        let fragments = MAX_FRAGMENTS
            .min(largest)
            .min(memory)
            .min(usize::from(self.send.configured_window()))
            // A zero window is temporary.
            .max(1);
        fragments * mss
    }

    /// Data was queued: starts the write delay and re-arms timers.
    fn on_queued(&mut self, now: Instant) {
        let now = self.clock.tick(now);
        if self.write_policy == WritePolicy::Delayed && self.cork_until.is_none() {
            self.cork_until = Some(now.add_micros(self.interval.into()));
        }
        // Starts the persist timer if the peer's window is zero.
        self.update_timers(now);
    }

    /// Lets data that [`WritePolicy::Delayed`] holds back leave now (kcp-go `flush`).
    pub fn flush(&mut self) {
        self.flush_requested = !self.send.send_buffer().is_empty();
    }

    /// The next bytes in order, or in message mode the next message. `None`: nothing is readable.
    pub fn recv(&mut self) -> Option<Bytes> {
        let chunk = self.recv.recv()?;
        self.window_update_pending |= self.recv.wants_window_update();
        Some(chunk)
    }

    /// Bytes of what [`Kcp::recv`] would return; `None` when nothing is readable.
    #[doc(alias = "PeekSize")]
    #[must_use]
    pub fn readable(&self) -> Option<usize> {
        self.recv.readable()
    }

    /// Frees the spare capacity of the queues: for an idle connection.
    pub fn release_memory(&mut self) {
        self.send.release_memory();
        self.recv.release_memory();
        self.acks.release_memory();
    }

    /// Lets pending ACKs leave with the next transmission under every [`AckPolicy`] (RFC 9000
    /// 13.2.1, immediate acknowledgement).
    pub(crate) fn flush_acks(&mut self) {
        self.acks.flush();
    }

    /// Sends a ping with the next transmission (RFC 9000 19.2). To be called after the first data
    /// of a connection has left: some implementations take any first segment, also a ping, for an
    /// initial segment.
    pub fn ping(&mut self, now: Instant) {
        self.keepalive.request_ping(self.clock.at(now));
    }

    /// Waits longer between keepalive pings than the peer does, so that one side pings for both:
    /// `keepalive_side`. `is_active`: this side has opened the connection.
    pub(crate) fn defer_keepalive(&mut self, is_active: bool, keepalive_side: KeepaliveSide) {
        match (keepalive_side, is_active) {
            (KeepaliveSide::Passive, true) => self.keepalive.defer(),
            (KeepaliveSide::Active, false) => self.keepalive.defer_by_a_period(),
            (KeepaliveSide::Passive, false) | (KeepaliveSide::Active, true) => {}
        }
    }

    /// Whether all data queued was sent and is acknowledged cumulatively.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.send.is_drained()
    }

    /// SND.UNA: the oldest sequence number that is not acknowledged cumulatively.
    pub(crate) fn una(&self) -> Sn {
        self.send.una()
    }

    /// RCV.NXT: the next sequence number expected of the peer.
    pub(crate) fn rcv_nxt(&self) -> Sn {
        self.recv.nxt()
    }

    /// Whether [`Kcp::release_memory`] would free a noteworthy capacity.
    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.send.has_reclaimable_memory()
            || self.recv.has_reclaimable_memory()
            || self.acks.has_reclaimable_memory()
    }

    /// Whether the peer is validated: it acknowledged a segment or a ping of this side (RFC 9000
    /// 8.1).
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.keepalive.is_validated()
    }

    /// Time since the peer last showed a sign of life.
    pub(crate) fn time_since_alive(&self, now: Instant) -> Duration {
        Duration::from_micros(self.clock.at(now).since(self.keepalive.last_alive()))
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.close_reason
    }

    /// A snapshot of the counters and estimates.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        Snapshot::of(self.stats, self.estimates(), self.redundancy_stats()).stats()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.stats
    }

    pub(crate) fn estimates(&self) -> Estimates {
        let rtt = &self.send.rtt;
        let (cwnd_segments, pacing_rate, delivery_rate) = self.send.congestion_estimates();
        Estimates {
            srtt: rtt.srtt().unwrap_or(0),
            rttvar: rtt.rttvar(),
            rto: rtt.rto(),
            min_rtt: rtt.min(),
            cwnd_segments,
            pacing_rate,
            delivery_rate,
            peer_window_segments: self.send.remote.available(self.send.una()),
            in_flight_segments: self.send.in_flight(),
            unsent_bytes: self.send.send_buffer().bytes() as u64,
            current_mtu: u16::try_from(self.current_mtu()).unwrap_or(u16::MAX),
            peer_supports_control: self.close_state.peer_supports_control(),
        }
    }
}
