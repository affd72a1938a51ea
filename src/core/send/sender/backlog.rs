//! How much data may wait to be sent: enough to keep sending, not a whole send window, since later writes
//! wait behind it (Linux `TCP_NOTSENT_LOWAT`).

use std::num::NonZeroU64;

use super::Sender;

/// Least limit, bytes: 13 ms at 10 Mbit/s. Linux applications set 16 to 128 KiB.
const MIN_BACKLOG: usize = 16 << 10;
/// The limit covers what leaves in this time at the present rate, microseconds: several timer ticks and the
/// longest burst of the pacer. A writer that is woken at a quarter of it then writes before the data runs
/// out.
const BACKLOG_TIME: u64 = 10_000;

impl Sender {
    /// Bytes that may wait for their first transmission.
    ///
    /// A paced sender needs the bytes of [`BACKLOG_TIME`] and of the burst that may leave now. Without a
    /// pacing rate a window leaves within an RTT: the limit is then what the windows admit now, and what
    /// acknowledgements admit in that time. `rate_limit` is set by the application, bytes per second.
    pub(crate) fn backlog_limit(&self, rate_limit: Option<NonZeroU64>) -> usize {
        let least = MIN_BACKLOG.max(2 * self.mss) as u64;
        let bytes = |segments: u64| segments.saturating_mul(self.mss as u64);
        let in_time = |bytes: u64, time: u64| bytes.saturating_mul(BACKLOG_TIME) / time;
        let limit = if let Some(pacing) = self.congestion.pacing() {
            bytes(pacing.burst).saturating_add(in_time(pacing.rate.get(), 1_000_000).max(least))
        } else {
            let window = bytes(self.effective_window().into());
            let refill = self.rtt.srtt().map_or(0, |srtt| in_time(window, srtt.max(1)));
            bytes(self.window_left().into()).saturating_add(refill.max(least))
        };
        let limited = rate_limit.map(|rate| in_time(rate.get(), 1_000_000).max(least));
        usize::try_from(limit.min(limited.unwrap_or(u64::MAX))).unwrap_or(usize::MAX)
    }

    /// Sets whether the application holds data that it may not write yet.
    pub(crate) fn set_writer_waits(&mut self, waits: bool) {
        self.writer_waits = waits;
    }

    /// Whether a writer is known to wait.
    pub(crate) fn writer_waits(&self) -> bool {
        self.writer_waits
    }

    /// Whether the application has nothing else to send.
    pub(super) fn is_writer_idle(&self) -> bool {
        self.send_buffer.is_empty() && !self.writer_waits
    }
}
