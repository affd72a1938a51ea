//! Choices that an input makes: first the settings, then one operation per record. Their places and
//! ranges give the inputs in `fuzz/seeds` their meaning: a change of either re-encodes those seeds in
//! the same commit, so that each still draws the same settings and operations. 0 is the most common
//! choice, so an input that is too short is valid.

use std::num::{NonZeroU8, NonZeroU64};
use std::time::Duration;

use crate::config::{
    AckPolicy, AutoRedundancy, CongestionControl, KcpConfig, KeepaliveInterval, KeepaliveSide,
    Mode, Redundancy, Setting, Timing, WritePolicy,
};
use crate::core::segment::Command;
use crate::fec::FecConfig;

/// Commands of generated segments.
pub(super) const COMMANDS: [Command; 6] = [
    Command::Push,
    Command::Ack,
    Command::WindowProbe,
    Command::WindowUpdate,
    Command::Control,
    Command::Repair,
];

/// Bytes that [`Choices::config`] takes.
pub(super) const CONFIG: usize = 21;

/// The input as a source of choices; yields zeros once it is used up.
pub(super) struct Choices<'a>(pub(super) &'a [u8]);

impl<'a> Choices<'a> {
    /// The settings, in the first bytes, and the operations, each in a record of its own: a mutation
    /// of one moves no other.
    pub(super) fn split(
        data: &'a [u8],
        settings: usize,
        operation: usize,
    ) -> (Self, impl Iterator<Item = Self>) {
        let (settings, operations) = data.split_at(settings.min(data.len()));
        (Self(settings), operations.chunks(operation).map(Self))
    }

    pub(super) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// Up to 254 bytes, or 1,300; again and again the rest of the input if that is shorter.
    pub(super) fn bytes(&mut self) -> Vec<u8> {
        let len = match self.byte() {
            u8::MAX => 1_300,
            len => usize::from(len),
        };
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes.iter().copied().cycle().take(len).collect()
    }

    pub(super) fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// [`CONFIG`] bytes. `mortal`: an idle or dead-peer timeout may end the connection.
    pub(super) fn config(&mut self, mode: Mode, mortal: bool) -> KcpConfig {
        let (idle_timeout, dead_peer_timeout) = (self.timeout(mortal), self.timeout(mortal));
        let (send_window, recv_window) = (self.pick(&[1, 2, 7, 32, 128]), self.recv_window(mode));
        let mtu = self.pick(&[25, 50, 100, 576, 1_400]);
        let (timing, congestion_control) = self.timing();
        let close_notify = self.byte() & 3 != 3;
        KcpConfig {
            send_window,
            recv_window,
            mtu,
            mode,
            timing,
            congestion_control,
            ack_policy: self.acks(),
            write_policy: self.pick(&[WritePolicy::Immediate, WritePolicy::Delayed]),
            keepalive: self.keepalive(idle_timeout),
            idle_timeout,
            dead_peer_timeout,
            rate_limit: NonZeroU64::new(self.pick(&[0, 0, 0, 20_000])),
            max_retransmit_interval: Duration::from_secs(self.pick(&[10, 10, 1, 60])),
            keepalive_side: self.pick(&[KeepaliveSide::Passive, KeepaliveSide::Active]),
            initial_rate: NonZeroU64::new(self.pick(&[0, 0, 10_000, 10_000_000])),
            pacing_interval: Duration::from_millis(self.pick(&[1, 1, 0, 10])),
            auto_windows: self.byte() & 1 == 0,
            close_notify,
            redundancy: self.redundancy(close_notify),
        }
    }

    fn timeout(&mut self, mortal: bool) -> Option<Duration> {
        let seconds = self.pick(&[1, 5, 60]);
        mortal.then(|| Duration::from_secs(seconds))
    }

    fn redundancy(&mut self, close_notify: bool) -> Redundancy {
        let (kind, stock) = (self.byte() % 8, self.fec());
        match (kind, stock) {
            (5, _) if close_notify => Redundancy::Auto(AutoRedundancy::new()),
            (6, Some(stock)) if close_notify => {
                Redundancy::Auto(AutoRedundancy::new().stock(stock))
            }
            (7, Some(fec)) => Redundancy::Fec(fec),
            _ => Redundancy::Off,
        }
    }

    pub(super) fn fec(&mut self) -> Option<FecConfig> {
        let (data, parity) = self.pick(&[(3, 1), (10, 3), (1, 1), (2, 3)]);
        FecConfig::new(data, parity).ok()
    }

    /// Short enough for the idle timeout, as `validate` requires.
    fn keepalive(&mut self, idle_timeout: Option<Duration>) -> KeepaliveInterval {
        match self.pick(&[None, None, Some(1), Some(15)]).map(Duration::from_secs) {
            None => KeepaliveInterval::Never,
            Some(interval) if idle_timeout.is_some_and(|idle| interval >= idle) => {
                KeepaliveInterval::Auto
            }
            Some(interval) => KeepaliveInterval::After(interval),
        }
    }

    pub(super) fn recv_window(&mut self, mode: Mode) -> u16 {
        match mode {
            Mode::Stream => self.pick(&[1, 2, 7, 32, 128]),
            Mode::Message => self.pick(&[32, 40, 128, 300]),
        }
    }

    fn timing(&mut self) -> (Timing, CongestionControl) {
        let interval = Duration::from_millis(self.pick(&[10, 20, 100, 5_000]));
        let congestion =
            self.pick(&[CongestionControl::Off, CongestionControl::Reno, CongestionControl::Bbr]);
        let resend = NonZeroU8::new(self.pick(&[0, 1, 2, 3, 255]));
        let nodelay = self.byte() & 1 == 0;
        (Timing::new(nodelay, interval, resend).unwrap_or(Timing::FAST3), congestion)
    }

    pub(super) fn acks(&mut self) -> AckPolicy {
        self.pick(&[AckPolicy::PerBatch, AckPolicy::Interval, AckPolicy::Immediate])
    }

    /// `mortal`: a timeout may be set.
    pub(super) fn setting(&mut self, mode: Mode, mortal: bool) -> Setting {
        match self.byte() % 12 {
            0 => Setting::Windows { send: self.pick(&[1, 9, 200]), recv: self.recv_window(mode) },
            1 => Setting::Timing(self.timing().0),
            6 => Setting::CongestionControl(self.timing().1),
            2 => Setting::AckPolicy(self.acks()),
            3 => Setting::WritePolicy(self.pick(&[WritePolicy::Immediate, WritePolicy::Delayed])),
            4 => Setting::Mtu(self.pick(&[25, 60, 500, 1_400])),
            5 => Setting::RateLimit(NonZeroU64::new(self.pick(&[0, 10_000, 1_000_000]))),
            7 => Setting::Duplicates(self.pick(&[0, 1, 8])),
            8 => self.fec().map_or(Setting::NetworkChanged, Setting::Fec),
            9 => {
                let idle = self.timeout(mortal);
                Setting::Keepalive(self.keepalive(idle), idle)
            }
            10 => Setting::DeadPeerTimeout(self.timeout(mortal)),
            _ => Setting::Datagrams,
        }
    }
}
