//! The KCP state machine: no I/O, no clock, no lock, no randomness.
//!
//! [`Kcp`] is one conversation. Time is an argument of every call that needs it, datagrams go in
//! through [`Kcp::input`] and come out of [`Kcp::poll_transmit`], and the caller decides when.
//!
//! The contract: after any call that takes `&mut self`, drain [`Kcp::poll_transmit`] when there is
//! room for datagrams, then read [`Kcp::poll_timeout`] and call [`Kcp::handle_timeout`] when that
//! moment has come. Calling any of them too often is harmless.
//!
//! What differs from the stock state machine, none of it visible to the peer: acknowledgements and
//! windows are validated before they are believed; timers are exact deadlines instead of a tick;
//! loss is judged by order of transmission, with an allowance for paths that reorder; nothing
//! scans the window.

mod close;
mod input;
mod mtu;
mod open;
mod out_of_band;
pub(crate) mod output;
mod path;
mod timers;

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::{
    self, AckPolicy, KcpConfig, Mode, SEGMENT_HEADER, Setting, Timing, WritePolicy,
};
use crate::core::clock::{Clock, Micros};
use crate::core::close::CloseState;
use crate::core::congestion::rate_limiter::RateLimiter;
use crate::core::keepalive::Keepalive;
use crate::core::open::{Establishment, PeerState};
use crate::core::path::amplification::Amplification;
use crate::core::path::validation::PathValidator;
use crate::core::recv::pending_acks::PendingAcks;
use crate::core::recv::receiver::Receiver;
use crate::core::send::sender::Sender;
use crate::core::seq::Sn;
use crate::error::{ConfigError, ConnectionError};
use crate::stats::{ConnectionStats, Counters, Estimates, Snapshot};

pub use crate::core::connection::output::Transmitted;
pub(crate) use crate::core::segment::InputError;

/// Most fragments of one message, a limit of the wire.
const MAX_FRAGMENTS: usize = 255;

/// Where a KCP datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketType {
    /// Straight from the network.
    Regular,
    /// Put together from redundancy: says nothing about now, so it feeds neither the round-trip
    /// time nor the window.
    Fec,
}

/// The random part of a conversation, given by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed {
    /// What the time stamps on the wire start from, in milliseconds.
    pub ts_epoch: u32,
    /// Source of the cookies of echo probes.
    pub cookie_seed: u64,
}

/// Why a message was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendMessageError {
    /// There is no room in the send window now.
    #[error("the send window is full")]
    Full,
    /// The peer could not put it together.
    #[error("the message has {size} bytes, allowed are {max}")]
    TooLarge {
        /// Bytes of the message.
        size: usize,
        /// Largest message that the peer is known to be able to receive.
        max: usize,
    },
}

/// One conversation.
#[derive(Debug)]
pub struct Kcp {
    conv: u32,
    clock: Clock,
    mode: Mode,
    interval: Duration,
    ack_policy: AckPolicy,
    write_policy: WritePolicy,
    pub(super) send: Sender,
    recv: Receiver,
    pub(super) acks: PendingAcks,
    keepalive: Keepalive,
    amplification: Amplification,
    path_validator: PathValidator,
    /// Bytes that cipher and FEC header add to each datagram sent, and the cipher to each received.
    sent_overhead: u16,
    received_overhead: u16,
    pacer: RateLimiter,
    /// When something could last leave.
    last_poll_transmit: Micros,
    /// A window answer is owed.
    window_update_pending: bool,
    /// Full datagrams since acknowledgements were last written while some wait.
    full_datagrams_since_ack: u32,
    /// With [`WritePolicy::Delayed`]: when waiting data leaves by itself.
    cork_until: Option<Micros>,
    uncorked: bool,
    establishment: Establishment,
    peer: PeerState,
    close_state: CloseState,
    close_reason: Option<ConnectionError>,
    stats: Counters,
}

impl Kcp {
    /// Starts a conversation at `now`.
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

    /// Both directions start at `sn`, which only two cores of this crate agree on: for tests of
    /// the wrap.
    #[doc(hidden)]
    #[must_use]
    pub fn starting_at(conv: u32, config: &KcpConfig, now: Instant, seed: Seed, sn: Sn) -> Self {
        let mut pacer = RateLimiter::default();
        pacer.set_rate(config.rate_limit);
        Self {
            conv,
            clock: Clock::new(now, seed.ts_epoch),
            mode: config.mode,
            interval: config.timing.interval,
            ack_policy: config.ack_policy,
            write_policy: config.write_policy,
            send: Sender::new(config, sn, usize::from(config.mtu) - SEGMENT_HEADER),
            recv: Receiver::new(config, sn),
            acks: PendingAcks::default(),
            keepalive: Keepalive::new(config, Micros(0), seed.cookie_seed),
            amplification: Amplification::Unlimited,
            path_validator: PathValidator::default(),
            sent_overhead: 0,
            received_overhead: 0,
            pacer,
            last_poll_transmit: Micros(0),
            window_update_pending: false,
            full_datagrams_since_ack: 0,
            cork_until: None,
            uncorked: false,
            establishment: Establishment::Idle,
            peer: PeerState::new(),
            close_state: CloseState::new(config.close_notify),
            close_reason: None,
            stats: Counters::default(),
        }
    }

    /// The conversation id.
    #[must_use]
    pub fn conv(&self) -> u32 {
        self.conv
    }

    // ----- application -----

    /// Payload bytes that the send window admits now.
    #[must_use]
    pub fn send_capacity(&self) -> usize {
        self.send.available() * self.send.mss()
    }

    /// What writes are rounded up to in terms of [`Kcp::send_capacity`]: in message mode each starts a
    /// segment of its own.
    pub(crate) fn send_unit(&self) -> usize {
        match self.mode {
            Mode::Stream => 1,
            Mode::Message => self.send.mss(),
        }
    }

    /// Queues bytes: in stream mode behind those already queued, in message mode cut into segments
    /// of their own, as a kcp-go session does with each write.
    ///
    /// Everything is taken; ask [`Kcp::send_capacity`] first to stay within the send window. Empty
    /// data is ignored.
    pub fn send(&mut self, now: Instant, mut data: Bytes) {
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
        self.queued(now);
    }

    /// Queues one message that the peer receives whole, in fragments where it exceeds a segment.
    ///
    /// # Errors
    ///
    /// [`SendMessageError::TooLarge`] beyond [`Kcp::max_message_size`]: more fragments than 255 or
    /// than the peer's receive window could never be put together.
    /// [`SendMessageError::Full`] when the send window has no room for all of it now. Nothing is
    /// queued in either case.
    pub fn send_message(&mut self, now: Instant, data: Bytes) -> Result<(), SendMessageError> {
        let max = self.max_message_size();
        if data.len() > max {
            return Err(SendMessageError::TooLarge { size: data.len(), max });
        }
        self.queue_message(now, data).map_err(|_| SendMessageError::Full)
    }

    /// Queues a message whose size was checked when it was accepted, or gives it back while there
    /// is no room. Limits that have shrunk since then make it wait for an empty window, and
    /// segments exceed the datagram size where 255 of them would not do.
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
        self.queued(now);
        Ok(())
    }

    /// Largest message in bytes that [`Kcp::send_message`] takes: as many fragments as the peer's
    /// largest window so far (32 until it told one), our own send window and the wire allow.
    #[must_use]
    pub fn max_message_size(&self) -> usize {
        let fragments = MAX_FRAGMENTS
            .min(usize::from(self.send.remote.largest()))
            .min(usize::from(self.send.window()))
            // A closed window opens again.
            .max(1);
        fragments * self.send.mss()
    }

    fn queued(&mut self, now: Instant) {
        let now = self.clock.at(now);
        if self.write_policy == WritePolicy::Delayed && self.cork_until.is_none() {
            self.cork_until = Some(now.add(self.interval));
        }
        // The peer's window may be closed already.
        self.update_timers(now);
    }

    /// Lets corked data leave now.
    pub fn flush(&mut self) {
        self.uncorked = !self.send.send_buffer().is_empty();
    }

    /// The next bytes in order, or in message mode the next message.
    pub fn recv(&mut self) -> Option<Bytes> {
        let chunk = self.recv.recv()?;
        self.window_update_pending |= self.recv.wants_window_update();
        Some(chunk)
    }

    /// Bytes of what [`Kcp::recv`] would return; `None` when it would return nothing.
    #[must_use]
    pub fn readable(&self) -> Option<usize> {
        self.recv.readable()
    }

    /// Gives back memory that only a busy conversation needs.
    pub fn release_memory(&mut self) {
        self.send.release_memory();
        self.recv.release_memory();
        self.acks.release_memory();
    }

    /// Lets waiting acknowledgements leave with the next transmission, whatever the policy.
    pub(crate) fn flush_acks(&mut self) {
        self.acks.flush();
    }

    /// Asks the peer for a sign of life with the next transmission. Not before the first data of a
    /// conversation: the probe would be the first thing the peer hears.
    pub fn ping(&mut self, now: Instant) {
        self.keepalive.request_ping(self.clock.at(now));
    }

    /// The peer goes first with keepalives.
    pub(crate) fn defer_keepalive(&mut self) {
        self.keepalive.defer();
    }

    // ----- state -----

    /// Whether everything sent is acknowledged cumulatively and nothing waits.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.send.is_drained()
    }

    /// The oldest number that is not acknowledged cumulatively.
    pub(crate) fn una(&self) -> Sn {
        self.send.una()
    }

    /// The next number expected of the peer.
    pub(crate) fn rcv_nxt(&self) -> Sn {
        self.recv.nxt()
    }

    /// Whether [`Kcp::release_memory`] would give back something worth it.
    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.send.has_reclaimable_memory()
            || self.recv.has_reclaimable_memory()
            || self.acks.has_reclaimable_memory()
    }

    /// Whether the peer has proved that it received something of ours.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.keepalive.is_validated()
    }

    /// Why the conversation ended by itself, if it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.close_reason
    }

    /// A snapshot of the counters and estimates.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        Snapshot::of(self.stats, self.estimates()).stats()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.stats
    }

    pub(crate) fn estimates(&self) -> Estimates {
        let rtt = &self.send.rtt;
        Estimates {
            srtt: rtt.srtt().unwrap_or(0),
            rttvar: rtt.rttvar(),
            rto: rtt.rto(),
            min_rtt: rtt.min(),
            cwnd_segments: self.send.cwnd.window().min(u32::from(self.send.window())),
            peer_window_segments: self.send.remote.available(self.send.una()),
            in_flight_segments: self.send.in_flight(),
            unsent_bytes: self.send.send_buffer().bytes() as u64,
            current_mtu: u32::try_from(self.current_mtu()).unwrap_or(u32::MAX),
        }
    }

    // ----- settings -----

    /// Sets the windows in segments.
    ///
    /// # Errors
    ///
    /// When one is outside 1 to 65,535.
    pub fn set_windows(&mut self, send: u16, recv: u16) -> Result<(), ConfigError> {
        config::check_windows(send, recv)?;
        self.apply(Setting::Windows { send, recv });
        Ok(())
    }

    /// Sets the timing preset.
    pub fn set_timing(&mut self, preset: Timing) {
        self.apply(Setting::Timing(preset));
    }

    /// Sets when acknowledgements leave.
    pub fn set_ack_policy(&mut self, policy: AckPolicy) {
        self.apply(Setting::AckPolicy(policy));
    }

    /// Sets when written data leaves.
    pub fn set_write_policy(&mut self, policy: WritePolicy) {
        self.apply(Setting::WritePolicy(policy));
    }

    /// Sets the largest datagram in bytes. Segments that exist already keep their size.
    ///
    /// # Errors
    ///
    /// When it is outside 25 to 65,507.
    pub fn set_mtu(&mut self, mtu: u16) -> Result<(), ConfigError> {
        config::check_mtu(mtu, usize::from(self.sent_overhead))?;
        self.apply(Setting::Mtu(mtu));
        Ok(())
    }

    /// Sets the bytes per second that may leave.
    pub fn set_rate_limit(&mut self, rate: Option<NonZeroU64>) {
        self.apply(Setting::RateLimit(rate));
    }

    /// Applies a validated setting; those that concern other layers do nothing here.
    pub(crate) fn apply(&mut self, setting: Setting) {
        match setting {
            Setting::Windows { send, recv } => {
                self.send.set_window(send);
                self.recv.set_window(recv);
            }
            Setting::Timing(preset) => {
                self.interval = preset.interval;
                self.send.set_timing(&preset);
            }
            Setting::AckPolicy(policy) => self.ack_policy = policy,
            Setting::WritePolicy(policy) => {
                self.write_policy = policy;
                self.cork_until = None;
                // What waits already is not held back a second time.
                self.flush();
            }
            Setting::Mtu(mtu) => {
                self.send.path.on_max_mtu_changed(mtu);
                self.update_mss();
            }
            Setting::RateLimit(rate) => self.pacer.set_rate(rate),
            Setting::Duplicates(_) | Setting::Fec(_) => {}
        }
    }
}
