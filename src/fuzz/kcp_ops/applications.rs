//! Reading and writing, and settings that applications and endpoints change.

use std::sync::LazyLock;

use bytes::Bytes;

use super::{Pair, Side};
use crate::config::{Mode, Setting};
use crate::core::connection::SendMessageError;
use crate::fuzz::Choices;

/// Most fragments of a message: the assumed window of a peer that has not advertised one.
const FRAGMENTS: usize = 32;
/// Written and read bytes repeat with this period.
const PERIOD: usize = 251;
/// The bytes of a write are a part of this.
static PATTERN: LazyLock<Bytes> =
    LazyLock::new(|| (0..=250).cycle().take(1 << 19).collect::<Vec<u8>>().into());

/// `len` bytes of the pattern from `offset`, without a copy.
fn pattern(offset: usize, len: usize) -> Bytes {
    let start = offset % PERIOD;
    PATTERN.slice(start..start + len)
}

impl Pair {
    /// Writes up to `len` bytes, within the send window.
    pub(super) fn write(&mut self, side: usize, len: usize, queues: bool) {
        let (now, Side { kcp, written, .. }) = (self.now, &mut self.sides[side]);
        let len = len.min(kcp.send_capacity());
        let data = pattern(*written, len);
        *written += len;
        if queues {
            kcp.queue(now, data);
            kcp.set_writer_waits(kcp.send_capacity() == 0);
        } else {
            kcp.send(now, data);
        }
    }

    /// Writes a message of several segments, if the mode has messages.
    pub(super) fn message(&mut self, side: usize, share: u8, queues: bool) {
        if self.mode == Mode::Stream {
            return;
        }
        let (now, Side { kcp, written, .. }) = (self.now, &mut self.sides[side]);
        let most = kcp.max_message_size();
        let unit = (kcp.send_unit() * FRAGMENTS).min(most);
        let len = usize::from(share) * unit / 255;
        let data = pattern(*written, len);
        let is_taken = if queues {
            kcp.queue_message(now, data).is_ok()
        } else {
            let result = kcp.send_message(now, data);
            assert!(!matches!(result, Err(SendMessageError::TooLarge { .. })), "{len} of {most}");
            result.is_ok()
        };
        if is_taken {
            *written += len;
        }
    }

    /// Reads up to `most` chunks or messages, and compares them with the bytes written.
    pub(super) fn recv(&mut self, side: usize, most: usize) {
        for _ in 0..most {
            let readable = self.sides[side].kcp.readable();
            let chunk = self.sides[side].kcp.recv();
            assert_eq!(readable, chunk.as_ref().map(Bytes::len));
            let Some(chunk) = chunk else { break };
            let unread = self.sides[1 - side].written - self.sides[side].read;
            let mut offset = self.sides[side].read;
            self.sides[side].read += chunk.len();
            if self.tainted {
                self.sides[side].read = self.sides[side].read.min(self.sides[1 - side].written);
                continue;
            }
            assert!(chunk.len() <= unread, "more bytes than were sent");
            for part in chunk.chunks(PATTERN.len() - PERIOD) {
                assert!(*part == pattern(offset, part.len()), "other bytes than were sent");
                offset += part.len();
            }
        }
    }

    /// Changes a setting, by the method that applications call if there is one.
    pub(super) fn set(&mut self, side: usize, choices: &mut Choices<'_>) {
        let setting = choices.setting(self.mode, self.mortal);
        let kcp = &mut self.sides[side].kcp;
        match setting {
            Setting::Windows { send, recv } => kcp.set_windows(send, recv).expect("in range"),
            Setting::Timing(timing) => kcp.set_timing(timing),
            Setting::CongestionControl(control) => kcp.set_congestion_control(control),
            Setting::AckPolicy(policy) => kcp.set_ack_policy(policy),
            Setting::WritePolicy(policy) => kcp.set_write_policy(policy),
            // Refused below the overhead.
            Setting::Mtu(mtu) => drop(kcp.set_mtu(mtu)),
            Setting::RateLimit(rate) => kcp.set_rate_limit(rate),
            other => kcp.apply(other),
        }
    }
}
