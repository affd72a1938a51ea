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

pub(crate) mod fec;
mod input;
mod lifecycle;
pub(crate) mod multipath;
pub(crate) mod output;
mod path;
#[cfg(feature = "qlog")]
mod qlog;

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::{
    self, AckPolicy, Config, CongestionControl, KcpConfig, KeepaliveSide, Mode, SEGMENT_CHARGE,
    SEGMENT_COST, Setting, Timing, WritePolicy,
};
use crate::core::clock::{Clock, Micros, micros_u32};
use crate::core::close::CloseState;
use crate::core::congestion::pacer::RateLimiter;
use crate::core::keepalive::{Keepalive, Role};
use crate::core::open::{Establishment, PeerState};
use crate::core::path::amplification::{AddressProof, Amplification};
use crate::core::path::set::PathId;
use crate::core::path::validation::PathValidator;
use crate::core::qlog::Qlog;
use crate::core::recv::Receiver;
use crate::core::recv::acks::PendingAcks;
use crate::core::redundancy::controller::RedundancyController;
use crate::core::redundancy::hello::Hello;
use crate::core::send::Sender;
use crate::core::seq::Sn;
use crate::core::stateless_reset::UnconfirmedReset;
use crate::error::{ConfigError, ConnectionError};
use crate::stats::{ConnectionStats, Counters, Estimates, RedundancyStats, Snapshot};
use crate::util::earliest;

pub use crate::core::connection::output::Transmitted;
pub use crate::core::connection::path::SharedPath;

/// Most fragments of one message: `frg` is one byte on the wire.
const MAX_FRAGMENTS: usize = 255;

/// One KCP connection: kcp-go's `KCP`, `ikcpcb` in C.
///
/// ```
/// use std::time::Instant;
///
/// use bytes::Bytes;
/// use kcpx::Config;
/// use kcpx::proto::{Kcp, PacketType, Seed};
///
/// let (now, config) = (Instant::now(), Config::new());
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
    /// From [`Kcp::defer_accept`] until [`Kcp::accept`].
    defers_accept: bool,
    address_proof: AddressProof,
    /// `Some` once a datagram has come on another path, until a path is validated.
    path_validator: Option<Box<PathValidator>>,
    /// Whether messages leave on all paths.
    copies_on_paths: bool,
    /// Whether the peer may announce further paths.
    accepts_paths: bool,
    /// The path of the datagram that is processed.
    arrival: PathId,
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
    qlog: Qlog,
}

/// HELLO and repair symbols of one connection.
#[derive(Debug)]
struct RepairState {
    hello: Hello,
    /// Wanted repair rate, per million; 0: none.
    rate: u32,
    /// Sets the rate with automatic redundancy.
    auto: Option<RedundancyController>,
    received: u64,
    recovered: u64,
    invalid: u64,
}

impl RepairState {
    fn new(accepts_paths: bool) -> Self {
        Self {
            hello: Hello::new(accepts_paths),
            rate: 0,
            auto: None,
            received: 0,
            recovered: 0,
            invalid: 0,
        }
    }
}

/// FEC packets sent with the data of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ParitySent {
    /// Parity packets, and their bytes.
    packets: u64,
    bytes: u64,
    /// Window updates that filled a group.
    fillers: u64,
}

impl ParitySent {
    fn add_to(&self, stats: &mut RedundancyStats) {
        stats.parity_packets_sent = self.packets;
        stats.redundant_bytes_sent += self.bytes;
        stats.fec_fillers_sent = self.fillers;
    }
}

impl Kcp {
    /// A new connection with conversation id `conv`, started at `now`.
    ///
    /// # Errors
    ///
    /// If a setting of the protocol is invalid.
    pub fn new(conv: u32, config: &Config, now: Instant, seed: Seed) -> Result<Self, ConfigError> {
        Self::with_config(conv, &config.kcp, now, seed)
    }

    /// As [`Kcp::new`] with the settings of the protocol alone.
    pub(crate) fn with_config(
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
    pub(crate) fn starting_at(
        conv: u32,
        config: &KcpConfig,
        now: Instant,
        seed: Seed,
        sn: Sn,
    ) -> Self {
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
            path_validator: None,
            copies_on_paths: false,
            accepts_paths: false,
            arrival: PathId::FIRST,
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
            defers_accept: false,
            close_reason: None,
            pending_reset: UnconfirmedReset::default(),
            parity_sent: None,
            stats: Counters::default(),
            qlog: Qlog::default(),
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
    /// per segment of its window.
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
        self.qlog.release_memory();
        if let Some(paths) = &mut self.send.paths {
            paths.release_memory();
        }
    }

    /// Memory of received data, bytes.
    pub(crate) fn recv_memory(&self) -> usize {
        self.recv.memory()
    }

    /// Memory of unsent and unacknowledged data, bytes.
    pub(crate) fn send_memory(&self) -> usize {
        self.send.send_buffer().bytes() + self.send.in_flight() as usize * self.send.mss()
    }

    /// Memory of the qlog, bytes.
    pub(crate) fn qlog_memory(&self) -> usize {
        self.qlog.memory()
    }

    /// Limits received data to `more` bytes of memory beyond now: segments that do not fit are
    /// dropped without an ACK, and the window opens no further unless `opens`.
    pub(crate) fn limit_recv_memory(&mut self, more: usize, opens: bool) {
        self.recv.limit_memory(more, opens);
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

    /// Logs the end of the connection.
    pub(crate) fn log_end(&mut self, now: Instant, reason: ConnectionError) {
        self.qlog.on_ended(self.clock.at(now), reason);
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
        let rtt = &self.send.path.rtt;
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

/// Settings.
impl Kcp {
    /// Sets the windows, segments, and switches window autotuning off. Default: as configured. In
    /// message mode the largest window advertised so far still limits messages, since the peer may
    /// send one of that size.
    ///
    /// # Errors
    ///
    /// If a window is outside 1 to 65,535.
    #[doc(alias = "SetWindowSize")]
    #[doc(alias = "WndSize")]
    pub fn set_windows(&mut self, send: u16, recv: u16) -> Result<(), ConfigError> {
        config::check_windows(send, recv)?;
        self.apply(Setting::Windows { send, recv });
        Ok(())
    }

    /// Sets the timing: interval, minimum RTO and fast retransmit. Default: as configured.
    #[doc(alias = "SetNoDelay")]
    #[doc(alias = "NoDelay")]
    pub fn set_timing(&mut self, preset: Timing) {
        self.apply(Setting::Timing(preset));
    }

    /// Sets the congestion control, which starts afresh. Default: as configured.
    pub fn set_congestion_control(&mut self, control: CongestionControl) {
        self.apply(Setting::CongestionControl(control));
    }

    /// Sets when ACKs are sent. Default: as configured.
    #[doc(alias = "SetACKNoDelay")]
    pub fn set_ack_policy(&mut self, policy: AckPolicy) {
        self.apply(Setting::AckPolicy(policy));
    }

    /// Sets when written data is sent. Default: as configured.
    #[doc(alias = "SetWriteDelay")]
    pub fn set_write_policy(&mut self, policy: WritePolicy) {
        self.apply(Setting::WritePolicy(policy));
    }

    /// Sets the MTU: the largest UDP payload in bytes, [overhead](Kcp::set_overhead) included.
    /// Default: as configured. Existing segments keep their size, and need
    /// [`Kcp::needs_ip_fragmentation`] if it fell. Restarts black-hole detection.
    ///
    /// # Errors
    ///
    /// If it is outside 25 plus the overhead to 65,507.
    #[doc(alias = "SetMtu")]
    pub fn set_mtu(&mut self, mtu: u16) -> Result<(), ConfigError> {
        config::check_mtu(mtu, usize::from(self.sent_overhead))?;
        self.apply(Setting::Mtu(mtu));
        Ok(())
    }

    /// Limits the bytes sent per second; `None`: no limit. Default: as configured.
    #[doc(alias = "SetRateLimit")]
    pub fn set_rate_limit(&mut self, rate: Option<NonZeroU64>) {
        self.apply(Setting::RateLimit(rate));
    }

    /// Applies a validated setting; ignores settings of other layers.
    pub(crate) fn apply(&mut self, setting: Setting) {
        match setting {
            Setting::Windows { send, recv } => {
                self.send.set_window(send);
                self.recv.set_window(recv);
            }
            Setting::Timing(preset) => {
                self.interval = micros_u32(preset.interval);
                self.send.set_timing(&preset);
            }
            Setting::CongestionControl(control) => self.send.set_congestion_control(control),
            Setting::AckPolicy(policy) => self.ack_policy = policy,
            Setting::WritePolicy(policy) => {
                self.write_policy = policy;
                self.cork_until = None;
                // Queued data is not delayed twice.
                self.flush();
            }
            Setting::Mtu(mtu) => {
                self.send.path.mtu.on_max_mtu_changed(mtu);
                if let Some(paths) = &mut self.send.paths {
                    paths.limit_mtu(mtu);
                }
                self.update_mss();
            }
            Setting::RateLimit(rate) => self.rate_limiter.set_rate(rate),
            Setting::Keepalive(interval, idle) => self.keepalive.set_timeouts(interval, idle),
            Setting::DeadPeerTimeout(timeout) => self.keepalive.set_dead_peer_timeout(timeout),
            Setting::Datagrams => self.ask_for_datagrams(),
            Setting::Duplicates(_) | Setting::Fec(_) | Setting::NetworkChanged => {}
        }
    }
}

/// RTOs without a sign of life after which a ping asks the peer for the state of the connection.
const ASK_AFTER_TIMEOUTS: u64 = 3;
/// Longest such wait after a window probe, microseconds: shorter than the longest interval of
/// window probes, since each restarts it.
const MAX_ASK_WAIT_AFTER_PROBE: u64 = 4_000_000;

impl Kcp {
    /// When to call [`Kcp::handle_timeout`] next; `None` while no timer runs.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Under the anti-amplification limit passed deadlines do not count: only a datagram of the
        // peer releases what is held back.
        let limited = !self.send_budget().is_unlimited();
        let work = self.work_after(limited.then_some(self.last_poll_transmit));
        // The lifetime of a RST ends even if the limit holds it back.
        let reset_until = self.close_reason.and_then(|_| self.reset_until());
        earliest([work, self.poll_liveness(), reset_until])
    }

    /// The next deadline that must not be late: all except [`Self::poll_liveness`].
    pub(crate) fn poll_work(&self) -> Option<Instant> {
        self.work_after(None)
    }

    /// As [`Self::poll_work`], ignoring deadlines up to `after`, if given.
    fn work_after(&self, after: Option<Micros>) -> Option<Instant> {
        let counted = |at: Option<Micros>| at.filter(|at| after.is_none_or(|after| *at > after));
        if self.close_reason.is_some() {
            let reset = counted(self.close_state.reset_deadline());
            return reset.map(|at| self.clock.instant(at));
        }
        let work = earliest([
            counted(self.send.deadline(self.may_send_new())),
            counted(self.send.unproved_deadline(self.may_send_new())),
            counted(self.ack_deadline()),
            counted(self.cork_until.filter(|_| !self.send.send_buffer().is_empty())),
            counted(self.send.remote.deadline()),
            counted(self.close_state.fin_deadline()),
            counted(self.mtu_probe_deadline()),
            counted(self.oversized_deadline()),
            counted(self.initial_deadline()),
            counted(self.hello_deadline()),
            counted(self.send.repair_deadline()),
            counted(self.send.bundling_deadline()),
        ]);
        // The rate limit delays every datagram.
        let work = work.map(|at| self.rate_limiter.blocked_until(at).unwrap_or(at));
        // Pacer and rate limit need a timer only if they release segments after the latest
        // `poll_transmit`: a segment that was free then waits for another event.
        let ahead = |at: &Micros| *at > self.last_poll_transmit;
        let resume = Some(self.send.pacer_resume_at()).filter(ahead);
        let resume = resume.filter(|&at| self.next_segment(at).is_some());
        let resume = resume.map(|at| self.rate_limiter.blocked_until(at).unwrap_or(at));
        let rate_limited =
            self.rate_limiter.next().filter(ahead).filter(|&at| self.has_work_at(at));
        let mut next = earliest([counted(work), counted(resume), counted(rate_limited)]);
        if self.send.paths.is_some() {
            // The rate limit does not delay pings.
            next = earliest([next, counted(self.paths_deadline())]);
        }
        next.map(|at| self.clock.instant(at))
    }

    /// The next deadline of keepalive, validation, idle timeout, dead-peer timeout and stateless
    /// RSTs. These may be late, so the driver coalesces them.
    pub(crate) fn poll_liveness(&self) -> Option<Instant> {
        if self.close_reason.is_some() {
            return None;
        }
        let keepalive = self.keepalive.deadline(self.has_started(), self.ask_at());
        // A ping that is due needs no timer.
        let reset = self.pending_reset.deadline().filter(|_| !self.keepalive.is_due());
        earliest([keepalive, reset]).map(|at| self.clock.instant(at))
    }

    /// When to ask the peer for the state of the connection. Only if it supports CONTROL: it then
    /// reports a lost state, where another peer would take the ping for an initial segment. Not
    /// while it answers window probes.
    fn ask_at(&self) -> Option<Micros> {
        if !self.close_state.peer_supports_control() {
            return None;
        }
        let time = ASK_AFTER_TIMEOUTS * self.send.path.rtt.rto();
        let probe = self.send.remote.probe_sent();
        let wait = time.min(MAX_ASK_WAIT_AFTER_PROBE);
        let after_probe = probe.and_then(|sent| self.keepalive.ask_after_probe(sent, wait));
        earliest([self.keepalive.ask_at(time), after_probe])
    }

    /// Acts on the deadlines that have passed. Call [`Kcp::poll_transmit`] afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        let (now, started) = (self.clock.at(now), self.has_started());
        if self.close_reason.is_some() {
            self.rotate_reset(now);
            self.close_state.reset_mut().expire(now);
            return;
        }
        if self.cork_until.is_some_and(|until| now >= until) {
            self.flush();
            self.cork_until = None;
        }
        // Before the timers that follow from the RTT of the active path.
        self.check_paths(now);
        if let Err(error) = self.keepalive.handle_timeout(now, started, self.ask_at()) {
            self.close_reason = Some(error);
        }
        self.close_reason = self.close_reason.or_else(|| self.pending_reset.end(now));
        self.send.expire_unproved(now);
        self.expire_hello(now);
        self.retransmit_ping(now);
        self.check_oversized_timeout(now);
    }

    /// Rearms the timers that depend on both directions: the dead-peer timeout while an answer of
    /// the peer is due, and the persist timer (RFC 9293 3.8.6.1).
    #[inline]
    fn update_timers(&mut self, now: Micros) {
        let asks = self.close_state.needs_capability_ping()
            && self.send.is_drained()
            && self.has_started();
        self.keepalive.ask_for_capability(now, asks);
        // `ask_at` does not ask a peer without CONTROL: only retransmissions find out that it is
        // back.
        let is_asked = self.close_state.peer_supports_control() || !self.keepalive.is_validated();
        self.send.limit_pto(!is_asked);
        let in_flight = self.send.has_unacked() || self.close_state.awaits_fin_ack();
        self.keepalive.update_outstanding(now, self.owes_answer(), in_flight);
        self.send.remote.update_persist_timer(now, self.send.is_window_blocked());
        self.choose_path(now);
    }

    /// Whether an answer of the peer is due: to data, FIN or an initial segment.
    fn owes_answer(&self) -> bool {
        self.send.awaits_ack()
            || self.close_state.awaits_fin_ack()
            || self.establishment.awaits_answer()
    }

    /// Whether this side has sent a datagram.
    #[inline]
    pub(crate) fn has_started(&self) -> bool {
        self.establishment.has_started()
    }

    /// Asserts every invariant that holds between calls.
    ///
    /// # Panics
    ///
    /// If one does not hold. For tests and fuzzing.
    #[cfg(any(test, feature = "_testkit"))]
    pub fn check_invariants(&self) {
        self.send.check_invariants();
        self.recv.check_invariants();
        assert!(!self.send.redundancy.sends_repairs() || self.repair.is_some());
        self.close_state.check_invariants(self.recv.nxt());
        assert!(self.send.in_flight() <= u32::from(u16::MAX));
        assert!(self.acks.len() <= usize::from(u16::MAX) + 4);
        if self.close_reason.is_none() && self.send.is_window_blocked() {
            assert!(self.send.remote.deadline().is_some(), "a closed window is probed");
        }
        let limited = !self.send_budget().is_unlimited();
        if self.close_reason.is_none() && self.send.awaits_ack() && !limited {
            assert!(self.poll_timeout().is_some(), "unacknowledged data has a timer");
        }
    }
}

/// How a KCP datagram arrived: the `pktType` of kcp-go's `Input`.
///
/// ```
/// use std::time::Instant;
///
/// use kcpx::fec::{FecDecoder, FecFlag, HEADER_LEN, fec_flag};
/// use kcpx::proto::{Kcp, PacketType};
///
/// fn on_packet(kcp: &mut Kcp, decoder: &mut FecDecoder, now: Instant, packet: &[u8]) {
///     if let (FecFlag::Data, Some(datagram)) = (fec_flag(packet), packet.get(HEADER_LEN..)) {
///         let _ = kcp.input(now, datagram, PacketType::Regular);
///     }
///     decoder.input(now, packet, |datagram| kcp.input(now, datagram, PacketType::Fec).is_ok());
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PacketType {
    /// From the network.
    #[doc(alias = "IKCP_PACKET_REGULAR")]
    Regular,
    /// Reconstructed by FEC: late, so its ACKs are no RTT samples and its `wnd` is ignored.
    #[doc(alias = "IKCP_PACKET_FEC")]
    Fec,
}

/// Random numbers of one connection, drawn by the caller.
///
/// ```
/// use kcpx::proto::Seed;
///
/// let seed = Seed::new(getrandom::u32()?, getrandom::u64()?);
/// # let _ = seed;
/// # Ok::<(), getrandom::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seed {
    /// First `ts` on the wire, milliseconds.
    pub ts_epoch: u32,
    /// Seed of the ping cookies; must be unpredictable (RFC 9000 8.2.1).
    pub cookie_seed: u64,
}

impl Seed {
    /// `ts_epoch`: first `ts` on the wire, milliseconds. `cookie_seed`: seed of the ping cookies,
    /// which must be unpredictable (RFC 9000 8.2.1). Default of both: 0, for tests.
    #[must_use]
    pub const fn new(ts_epoch: u32, cookie_seed: u64) -> Self {
        Self { ts_epoch, cookie_seed }
    }
}

/// Why a message was not accepted for sending.
///
/// ```
/// use std::time::Instant;
///
/// use kcpx::proto::{Kcp, Seed, SendMessageError};
/// use kcpx::{Config, Mode};
///
/// let (now, config) = (Instant::now(), Config::new().mode(Mode::Message));
/// let mut kcp = Kcp::new(7, &config, now, Seed::default())?;
/// let (size, max) = (kcp.max_message_size() + 1, kcp.max_message_size());
/// let refused = kcp.send_message(now, vec![0; size].into());
/// assert_eq!(refused, Err(SendMessageError::TooLarge { size, max }));
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendMessageError {
    /// The send window has no capacity for the whole message now: try again after the peer has
    /// acknowledged data.
    #[error("the send window is full: send again once the peer has acknowledged data")]
    Full,
    /// The peer could not reassemble the message.
    #[error("message must be at most {max} bytes, got {size}")]
    TooLarge {
        /// Bytes of the message.
        size: usize,
        /// Largest message in bytes, see
        /// [`Kcp::max_message_size`](crate::proto::Kcp::max_message_size).
        max: usize,
    },
}
