//! Settings that may change while the connection runs.

use std::num::NonZeroU64;

use super::Kcp;
use crate::config::{self, AckPolicy, Setting, Timing, WritePolicy};
use crate::core::clock::micros_u32;
use crate::error::ConfigError;

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

    /// Sets the timing preset: interval, minimum RTO, fast retransmit and congestion control.
    /// Default: as configured.
    #[doc(alias = "SetNoDelay")]
    #[doc(alias = "NoDelay")]
    pub fn set_timing(&mut self, preset: Timing) {
        self.apply(Setting::Timing(preset));
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
    /// Default: as configured. Existing segments keep their size. Restarts black-hole detection.
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
            Setting::AckPolicy(policy) => self.ack_policy = policy,
            Setting::WritePolicy(policy) => {
                self.write_policy = policy;
                self.cork_until = None;
                // Queued data is not delayed twice.
                self.flush();
            }
            Setting::Mtu(mtu) => {
                self.send.path.on_max_mtu_changed(mtu);
                self.update_mss();
            }
            Setting::RateLimit(rate) => self.rate_limiter.set_rate(rate),
            Setting::Keepalive(interval, idle) => self.keepalive.set_timeouts(interval, idle),
            Setting::DeadPeerTimeout(timeout) => self.keepalive.set_dead_peer_timeout(timeout),
            Setting::Datagrams => self.ask_for_datagrams(),
            Setting::Duplicates(_) | Setting::Fec(_) => {}
        }
    }
}
