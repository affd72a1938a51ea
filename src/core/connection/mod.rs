//! The KCP connection, sans I/O: no socket, no clock, no randomness.
//!
//! [`Kcp`] is one connection. Time is an argument of every call that needs it; datagrams go in
//! through [`Kcp::input`] and come out of [`Kcp::poll_transmit`]; the caller owns socket and
//! timers. The only lock is in the process-wide pool of receive buffers (`util/buffer_pool.rs`),
//! held for one pop.
//!
//! The contract: after any call that takes `&mut self`, drain [`Kcp::poll_transmit`] while
//! datagrams can be sent, then read [`Kcp::poll_timeout`] and call [`Kcp::handle_timeout`] at that
//! time. Surplus calls of these have no effect.
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
    /// Bytes that cipher and FEC header add to each sent datagram.
    sent_overhead: u16,
    /// Bytes that the cipher adds to each received datagram.
    received_overhead: u16,
    rate_limiter: RateLimiter,
    /// When [`Kcp::poll_transmit`] was last called.
    last_poll_transmit: Micros,
    /// A window update is due (kcp-go `IKCP_ASK_TELL`). Set by a window probe of the peer or
    /// [`Receiver::wants_window_update`], cleared by the next full segment, small datagram or FEC
    /// filler.
    window_update_pending: bool,
    /// A window update of the peer arrived since [`Kcp::take_window_report`].
    window_reported: bool,
    /// Full datagrams since ACKs were last written, at most `MAX_FULL_DATAGRAMS_BEFORE_ACK`.
    full_datagrams_since_ack: u32,
    /// With [`WritePolicy::Delayed`]: when queued data is sent without a flush.
    cork_until: Option<Micros>,
    /// Set by [`Kcp::flush`] until the send buffer is empty.
    flush_requested: bool,
    establishment: Establishment,
    peer: PeerState,
    role: Role,
    close_state: CloseState,
    /// `Some` once this side or the peer asks for repair symbols or datagrams.
    repair: Option<Box<RepairState>>,
    close_reason: Option<ConnectionError>,
    pending_reset: UnconfirmedReset,
    /// `Some` once parity or fillers were sent.
    parity_sent: Option<Box<ParitySent>>,
    stats: Counters,
}

impl Kcp {
    /// A new connection with conversation id `conv`, started at `now`.
    ///
    /// # Errors
    ///
    /// If `config` is invalid.
    pub fn new(
        conv: u32,
        config: &KcpConfig,
        now: Instant,
        seed: Seed,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self::starting_at(conv, config, now, seed, Sn(0)))
    }

    /// As [`Kcp::new`] with first sequence number `sn` in both directions, for tests of sequence
    /// wrap. Both sides must use the same.
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

    /// Payload bytes to write now. Limited by the send window and by the backlog of unsent data: at
    /// most what 10 ms of sending take, at least 16 KiB, since later writes wait behind it. Ask
    /// again after [`Kcp::poll_transmit`], which sends the backlog.
    ///
    /// The capacity may never reach the size of a large block: write a block in parts, and call
    /// [`Kcp::send_message`] until it does not return [`Full`](SendMessageError::Full).
    #[doc(alias = "WaitSnd")]
    #[must_use]
    pub fn send_capacity(&self) -> usize {
        let (limit, unsent) = self.send_backlog();
        self.window_capacity().min(limit.saturating_sub(unsent))
    }

    /// Payload bytes that the send window admits.
    pub(crate) fn window_capacity(&self) -> usize {
        self.send.available() * self.send.mss()
    }

    /// Limit of the unsent bytes, and the unsent bytes.
    pub(crate) fn send_backlog(&self) -> (usize, usize) {
        let limit = self.send.backlog_limit(self.rate_limiter.rate());
        (limit, self.send.send_buffer().bytes())
    }

    /// Whether a writer waits or will soon: a message larger than the free part of the limit waits
    /// before the limit is reached.
    pub(super) fn is_backlogged(&self) -> bool {
        let (limit, unsent) = self.send_backlog();
        self.send.writer_waits() || self.send.available() == 0 || unsent >= limit / 4 * 3
    }

    /// Sets whether the application has more to write than [`Kcp::send_capacity`]: the sender then
    /// does not count as application-limited. Holds until a datagram arrives while the send buffer
    /// is empty.
    pub(crate) fn set_writer_waits(&mut self, waits: bool) {
        self.send.set_writer_waits(waits);
    }

    /// Writes use [`Kcp::send_capacity`] in multiples of these bytes: in message mode each write
    /// starts a new segment.
    pub(crate) fn send_unit(&self) -> usize {
        match self.mode {
            Mode::Stream => 1,
            Mode::Message => self.send.mss(),
        }
    }

    /// Queues bytes: in stream mode behind the queued bytes, in message mode in new segments, as
    /// kcp-go's `UDPSession.Write`.
    ///
    /// Queues all bytes: ask [`Kcp::send_capacity`] first. Ignores empty data.
    pub fn send(&mut self, now: Instant, data: Bytes) {
        self.queue(now, data);
        self.expect_more();
    }

    /// Without capacity left, the writer may have more.
    fn expect_more(&mut self) {
        self.send.set_writer_waits(self.send_capacity() == 0);
    }

    /// As [`Kcp::send`], for a caller of [`Kcp::set_writer_waits`].
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

    /// Queues one message, fragmented if it exceeds a segment. The peer receives it whole.
    ///
    /// # Errors
    ///
    /// [`SendMessageError::TooLarge`] beyond [`Kcp::max_message_size`]: the peer could never
    /// reassemble the message. [`SendMessageError::Full`] if the send window has no capacity for
    /// the whole message now. Nothing is queued in either case.
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

    /// Queues a message of a checked size, or returns it while the send window has no capacity. If
    /// MTU or window have shrunk since the check, it waits for an empty send window, and its
    /// segments exceed the MSS if it would need more than 255 of them.
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

    /// Largest message in bytes that [`Kcp::send_message`] accepts: at most 255 fragments, the
    /// largest window that the peer advertised (32 before the first) and our configured send
    /// window. With a large MTU fewer fragments: a peer of this crate has memory for 1,540 bytes
    /// per segment of its window unless [`KcpConfig::recv_memory`](crate::KcpConfig::recv_memory)
    /// is set.
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

    /// Data was queued: starts the write delay and rearms timers.
    fn on_queued(&mut self, now: Instant) {
        let now = self.clock.tick(now);
        if self.write_policy == WritePolicy::Delayed && self.cork_until.is_none() {
            self.cork_until = Some(now.add_micros(self.interval.into()));
        }
        // Starts the persist timer if the peer's window is zero.
        self.update_timers(now);
    }

    /// Sends data that [`WritePolicy::Delayed`] holds back with the next transmissions (kcp-go
    /// `flush`).
    pub fn flush(&mut self) {
        self.flush_requested = !self.send.send_buffer().is_empty();
    }

    /// The next bytes in order, or in message mode the next message; `None` if nothing is readable.
    pub fn recv(&mut self) -> Option<Bytes> {
        let chunk = self.recv.recv()?;
        self.window_update_pending |= self.recv.wants_window_update();
        Some(chunk)
    }

    /// Bytes that [`Kcp::recv`] would return; `None` if nothing is readable.
    #[doc(alias = "PeekSize")]
    #[must_use]
    pub fn readable(&self) -> Option<usize> {
        self.recv.readable()
    }

    /// Frees the spare capacity of the queues, for an idle connection.
    pub fn release_memory(&mut self) {
        self.send.release_memory();
        self.recv.release_memory();
        self.acks.release_memory();
    }

    /// Sends pending ACKs with the next transmission under every [`AckPolicy`] (RFC 9000 13.2.1,
    /// immediate acknowledgement).
    pub(crate) fn flush_acks(&mut self) {
        self.acks.flush();
    }

    /// Sends a ping with the next transmission (RFC 9000 19.2), at most one a second. Call it after
    /// the first data was sent: some implementations take any first segment, pings included, for an
    /// initial segment.
    pub fn ping(&mut self, now: Instant) {
        self.keepalive.request_ping(self.clock.at(now));
    }

    /// Waits longer between keepalive pings than the peer, if `keepalive_side` is the other side.
    /// `is_active`: this side opened the connection.
    pub(crate) fn defer_keepalive(&mut self, is_active: bool, keepalive_side: KeepaliveSide) {
        match (keepalive_side, is_active) {
            (KeepaliveSide::Passive, true) => self.keepalive.defer(),
            (KeepaliveSide::Active, false) => self.keepalive.defer_by_a_period(),
            (KeepaliveSide::Passive, false) | (KeepaliveSide::Active, true) => {}
        }
    }

    /// Whether all queued data was sent and is acknowledged cumulatively.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.send.is_drained()
    }

    /// SND.UNA: the oldest number that is not acknowledged cumulatively.
    pub(crate) fn una(&self) -> Sn {
        self.send.una()
    }

    /// RCV.NXT: the next number expected.
    pub(crate) fn rcv_nxt(&self) -> Sn {
        self.recv.nxt()
    }

    /// Whether [`Kcp::release_memory`] would free a noteworthy capacity.
    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.send.has_reclaimable_memory()
            || self.recv.has_reclaimable_memory()
            || self.acks.has_reclaimable_memory()
    }

    /// Whether the peer is validated: it has acknowledged a segment or a ping of this side (RFC
    /// 9000 8.1).
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
