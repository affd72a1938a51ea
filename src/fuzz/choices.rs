//! Choices that an input makes. Their order and ranges give the inputs in `fuzz/seeds` their meaning:
//! a change of either re-encodes those seeds in the same commit, so that each still draws the same
//! settings and operations.

use std::num::{NonZeroU8, NonZeroU64};
use std::time::Duration;

use crate::config::{
    AckPolicy, CongestionControl, KcpConfig, KeepaliveInterval, Mode, Setting, Timing, WritePolicy,
};
use crate::core::segment::Command;

/// Commands of generated segments.
pub(super) const COMMANDS: [Command; 6] = [
    Command::Push,
    Command::Ack,
    Command::WindowProbe,
    Command::WindowUpdate,
    Command::Control,
    Command::Repair,
];

/// The input as a source of choices; yields zeros once it is used up.
pub(super) struct Choices<'a>(pub(super) &'a [u8]);

impl Choices<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// Up to 255 bytes, or 1,300 copies of the first.
    pub(super) fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte());
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        if len == 255 { vec![bytes.first().copied().unwrap_or(0); 1_300] } else { bytes.to_vec() }
    }

    pub(super) fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// `mortal`: an idle or dead-peer timeout may end the connection.
    pub(super) fn config(&mut self, mode: Mode, mortal: bool) -> KcpConfig {
        let limits = if mortal { [1, 5, 60] } else { [0; 3] };
        let mut timeout = || {
            let seconds = self.pick(&limits);
            (seconds > 0).then(|| Duration::from_secs(seconds))
        };
        let (idle_timeout, dead_peer_timeout) = (timeout(), timeout());
        let (send_window, recv_window) = (self.pick(&[1, 2, 7, 32, 128]), self.recv_window(mode));
        let mtu = self.pick(&[25, 50, 100, 576, 1_400]);
        let (timing, congestion_control) = self.timing();
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
            ..KcpConfig::default()
        }
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

    pub(super) fn setting(&mut self, mode: Mode) -> Setting {
        match self.byte() % 7 {
            0 => Setting::Windows { send: self.pick(&[1, 9, 200]), recv: self.recv_window(mode) },
            1 => Setting::Timing(self.timing().0),
            6 => Setting::CongestionControl(self.timing().1),
            2 => Setting::AckPolicy(self.acks()),
            3 => Setting::WritePolicy(self.pick(&[WritePolicy::Immediate, WritePolicy::Delayed])),
            4 => Setting::Mtu(self.pick(&[25, 60, 500, 1_400])),
            _ => Setting::RateLimit(NonZeroU64::new(self.pick(&[0, 10_000, 1_000_000]))),
        }
    }
}
